"""``DeviceClass``: what a payload was compiled for, never which device ran it."""

from __future__ import annotations

import os

from ..errors import UsageError

#: Payloads that hold machine code of one architecture, by the names compilers give them.
_MACHINE_CODE = frozenset({"cubin", "sass", "fatbin", "hsaco", "so", "o", "obj", "elf", "exe"})


class DeviceClass:
    """A class of devices that run the same code. Made by its class methods.

    A device index, a host or a serial number is never part of it. ``portable`` is
    true only for ``cuda_any``; an entry keyed with it must not hold machine code,
    and ``Cache.put`` looks.
    """

    __slots__ = ("name", "portable")

    name: str
    portable: bool

    def __init__(self, name: str, *, portable: bool = False) -> None:
        self.name = name
        self.portable = portable

    @classmethod
    def cpu(cls, machine: str | None = None, isa: str = "") -> DeviceClass:
        """A CPU: its architecture (this machine's by default) and, where code depends on it, its ISA."""
        machine = machine or os.uname().machine
        return cls(f"cpu/{machine}/{isa}" if isa else f"cpu/{machine}")

    @classmethod
    def cuda(cls, major: int, minor: int, suffix: str = "") -> DeviceClass:
        """One compute capability: ``cuda(9, 0)``, or ``cuda(9, 0, "a")`` for sm_90a."""
        for part in (major, minor):
            if type(part) is not int or part < 0:
                raise UsageError(f"a compute capability is two whole numbers such as (9, 0), not {(major, minor)!r}")
        if suffix not in ("", "a", "f"):
            raise UsageError(f"an architecture suffix is 'a', 'f' or nothing, not {suffix!r}")
        return cls(f"cuda/sm_{major}{minor}{suffix}")

    @classmethod
    def cuda_any(cls, payload: str) -> DeviceClass:
        """Any CUDA device, for payloads that are not machine code: ``cuda_any("ptx")``.

        One key for every device while the payload is a cubin serves code that the
        device cannot run, so the payload has to be named and machine code is refused.
        """
        if payload.lower().lstrip(".") in _MACHINE_CODE:
            raise UsageError(f"{payload!r} is machine code: key it with DeviceClass.cuda(major, minor)")
        return cls(f"cuda/any/{payload}", portable=True)

    @classmethod
    def rocm(cls, gfx: str) -> DeviceClass:
        """One AMD target: ``rocm("gfx942")``."""
        if not gfx.startswith("gfx") or not gfx[3:4].isalnum():
            raise UsageError(f"a ROCm target looks like 'gfx942', not {gfx!r}")
        return cls(f"rocm/{gfx}")

    __hotstart_label__ = "hotstart.DeviceClass"

    def __hotstart_key__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceClass) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"DeviceClass({self.name!r})"

"""Sizes as people write them: ``10GiB``, ``512MiB``, a plain number of bytes."""

from __future__ import annotations

from ..errors import SizeError

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "B": 1}


def parse_size(value: int | str, what: str, *, zero: bool = False) -> int:
    """Bytes. Zero only where it means "off"; never "unbounded".

    Decimal units are refused rather than guessed: half of those who write GB mean GiB.
    Raises SizeError that shows how to write it.
    """
    number: float = -1
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str):
        unit = next((unit for unit in _UNITS if value.endswith(unit)), "")
        digits, factor = value.removesuffix(unit), _UNITS.get(unit, 1)
        if digits.replace(".", "", 1).isascii() and digits.replace(".", "", 1).isdigit():
            number = float(digits) * factor if "." in digits else int(digits) * factor
    if number < 0:
        raise SizeError(f'{what}: {value!r} is not a size; write bytes or a binary unit without a space: "10GiB"')
    if number < 1 and not (zero and number == 0):
        raise SizeError(f"{what}: a size of {value!r} would keep nothing" + ("; 0 turns it off" if zero else ""))
    return int(number)


def show_size(count: float) -> str:
    """``1.4 GiB``: for people, three digits at most."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"

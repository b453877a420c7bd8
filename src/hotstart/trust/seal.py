"""Sealed objects: bytes with a statement of what they are, signed by who made them.

    sealed     head statement signature payload
    head       "hotS" version:u8 zero:u8 zero:u16 statement-length:u32 signature-length:u32 payload-length:u64
    statement  canonical mapping: what, key, payload (BLAKE3), encoding, size, scope, producer, time
    signature  Ed25519 over "hotstart statement 1\\n" and the statement; empty when unsigned

What is checked, and in this order: that it is what was asked for (kind, key, scope),
that a key trusted for the scope signed it, that the payload is the one it speaks of.
So a good object under another name, in another scope, or with other bytes is nothing.
The statement alone says who made what when: ``ls`` and ``gc`` need no payload.
"""

from __future__ import annotations

import struct
import time

from blake3 import blake3

from ..errors import HotstartError
from ..keys.digest import decode, encode, threads_for
from ..log import say
from .scope import TrustList
from .signing import MissingSignerError, SigningKey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Bytes = bytes | bytearray | memoryview

_VERSION = 1
_MAGIC = b"hotS"
_HEAD = struct.Struct("<4sBBHIIQ")
_SIGNED = b"hotstart statement 1\n"

#: Head, statement and signature are never longer: who wants only those asks for this many bytes.
STATEMENT_LIMIT = 2048

_TYPES = {
    "what": str, "key": str, "payload": bytes, "encoding": int, "size": int, "scope": str, "producer": str, "time": int,
}  # fmt: skip


class RejectedError(HotstartError):
    """Not to be used, as if it were absent. ``cause`` is the word it is counted under."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class Statement:
    """What is said of a payload, and by whom. ``producer`` is the id of a key, empty when nobody signed."""

    __slots__ = ("encoding", "key", "payload", "producer", "scope", "size", "time", "what")

    what: str
    key: str
    #: BLAKE3 of the payload as it travels.
    payload: bytes
    encoding: int
    #: Bytes of what is in the payload once it is unpacked.
    size: int
    scope: str
    producer: str
    #: Nanoseconds since the epoch, by the producer's clock. Shown to people; nothing is decided by it.
    time: int

    def __init__(self, **values: Any) -> None:
        for name in _TYPES:
            setattr(self, name, values[name])

    def pack(self) -> bytes:
        return encode({name: getattr(self, name) for name in _TYPES})

    @classmethod
    def unpack(cls, data: bytes) -> Statement:
        """Raises RejectedError."""
        try:
            values = decode(data)
        except ValueError as error:
            raise RejectedError(str(error), "malformed") from None
        if not isinstance(values, dict) or {n: type(v) for n, v in values.items()} != _TYPES:
            raise RejectedError("the statement does not say what it should", "malformed")
        return cls(**values)


class Trust:
    """The judge: which statements count here."""

    def __init__(self, trusted: TrustList, *, allow_unsigned: bool = False) -> None:
        self.trusted = trusted
        self.allow_unsigned = allow_unsigned

    def refresh(self) -> Trust:
        """Itself, with the list as it is in its file now: a revocation counts in processes that run already."""
        self.trusted = self.trusted.current()
        return self

    def judge(self, statement: Statement, raw: bytes, signature: bytes) -> str:
        """The id of the key that signed it and is trusted for its scope; "" if unsigned ones are allowed and
        nobody's signature was checked, whatever it says of its producer. Raises RejectedError otherwise."""
        entry = self.trusted.find(statement.producer) if statement.producer else None
        if entry is not None and entry.revoked:
            raise RejectedError(f"signed by {statement.producer}, which was revoked", "revoked")
        if entry is not None and entry.covers(statement.scope) and signature:
            try:
                good = entry.key.checks(signature, _SIGNED + raw)
            except MissingSignerError as error:
                raise RejectedError(str(error), "missing_extra") from None
            if not good:
                raise RejectedError(f"the signature of {statement.producer} does not match", "signature")
            return statement.producer
        if self.allow_unsigned:
            say(
                "warning",
                "HOTSTART_ALLOW_UNSIGNED is set: whoever can write to the remote can run code here",
                once="allow_unsigned",
            )
            return ""
        if not signature or not statement.producer:
            raise RejectedError("nobody signed it", "unsigned")
        if entry is not None:
            raise RejectedError(f"{statement.producer} is not trusted for scope {statement.scope!r}", "untrusted")
        raise RejectedError(f"{statement.producer} is not among the trusted keys", "untrusted")


def seal(
    what: str, key: str, scope: str, payload: Bytes, *, encoding: int, size: int, signer: SigningKey | None,
    now: int | None = None,
) -> bytes:  # fmt: skip
    """The beginning of a sealed object: all but the payload, which follows it."""
    statement = Statement(
        what=what,
        key=key,
        payload=digest(payload),
        encoding=encoding,
        size=size,
        scope=scope,
        producer=signer.id if signer is not None else "",
        time=time.time_ns() if now is None else now,
    ).pack()
    signature = signer.sign(_SIGNED + statement) if signer is not None else b""
    head = _HEAD.pack(_MAGIC, _VERSION, 0, 0, len(statement), len(signature), len(payload)) + statement + signature
    if len(head) > STATEMENT_LIMIT:
        raise ValueError("the statement is too long")
    return head


class Sealed:
    """An object taken apart, nothing in it believed yet."""

    __slots__ = ("at", "length", "raw", "signature", "statement")

    def __init__(self, data: Bytes) -> None:
        """Raises RejectedError. ``data`` is at least the beginning."""
        view = memoryview(data)
        if len(view) < _HEAD.size:
            raise RejectedError("it is too short to be a sealed object", "malformed")
        magic, version, _, _, statement, signature, self.length = _HEAD.unpack_from(view)
        if magic != _MAGIC:
            raise RejectedError("it does not begin like a sealed object", "malformed")
        if version != _VERSION:
            raise RejectedError(f"it is of version {version}", "other_version")
        #: Where the payload begins.
        self.at = _HEAD.size + statement + signature
        if self.at > min(STATEMENT_LIMIT, len(view)):
            raise RejectedError("its statement is too long", "malformed")
        self.raw = bytes(view[_HEAD.size : _HEAD.size + statement])
        self.signature = bytes(view[_HEAD.size + statement : self.at])
        self.statement = Statement.unpack(self.raw)

    def check(self, what: str, key: str, scope: str, trust: Trust) -> None:
        """That it is what was asked for and somebody trusted made it. Raises RejectedError.

        From then on the statement names a producer only if that one's signature was checked.
        """
        statement = self.statement
        if statement.what != what or statement.key != key:
            raise RejectedError(f"it holds the {statement.what} {statement.key[:12]}…", "other_key")
        if statement.scope != scope:
            raise RejectedError(f"it was made for scope {statement.scope!r}", "other_scope")
        statement.producer = trust.judge(statement, self.raw, self.signature)

    def check_payload(self, payload: Bytes) -> None:
        if len(payload) != self.length or digest(payload) != self.statement.payload:
            raise RejectedError("its bytes are not those it was signed for", "payload")


def digest(data: Bytes) -> bytes:
    return blake3(data, max_threads=threads_for(len(data))).digest()

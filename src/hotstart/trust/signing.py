"""Ed25519 keys: making them, keeping them, signing and checking with them. Through ``cryptography``.

A private key is a file of two lines, readable by its owner alone. A public key is one
word, ``ed25519:…``, to be passed around; its id, sixteen digits of its digest, is what
people see.
"""

from __future__ import annotations

import os
import stat
from base64 import urlsafe_b64decode, urlsafe_b64encode

from ..errors import HotstartError, UsageError
from ..keys.digest import digest_of
from ..store import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HEADING = "hotstart signing key 1"
_PUBLIC = "ed25519:"


class MissingSignerError(HotstartError):
    """``cryptography`` is not installed: nothing can be signed or checked."""


class PublicKey:
    """A key that signatures are checked with. Equal when the bytes are."""

    __slots__ = ("_checker", "id", "raw")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != 32:
            raise UsageError("a public key is 32 bytes")
        self.raw = raw
        self.id = digest_of(raw)[:16]
        self._checker: Any = None

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """From ``ed25519:…``. Raises UsageError."""
        try:
            if text.startswith(_PUBLIC):
                return cls(urlsafe_b64decode(text.removeprefix(_PUBLIC) + "="))
        except ValueError:
            pass
        raise UsageError(f"{text[:60]!r} is not a public key: {_PUBLIC} and 43 characters, as `trust keygen` prints it")

    def checks(self, signature: bytes, message: bytes) -> bool:
        """Whether this key made that signature."""
        if self._checker is None:
            self._checker = _ed25519().Ed25519PublicKey.from_public_bytes(self.raw)
        from cryptography.exceptions import InvalidSignature

        try:
            self._checker.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def __str__(self) -> str:
        return _PUBLIC + urlsafe_b64encode(self.raw).decode().rstrip("=")

    def __repr__(self) -> str:
        return f"<PublicKey {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)


class SigningKey:
    """A private key. Nothing prints it."""

    __slots__ = ("_key", "public")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 32:
            raise UsageError("a private key is 32 bytes")
        module = _ed25519()
        self._key: Any = module.Ed25519PrivateKey.from_private_bytes(secret)
        self.public = PublicKey(self._key.public_key().public_bytes_raw())

    @property
    def id(self) -> str:
        return self.public.id

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)  # type: ignore[no-any-return]

    @classmethod
    def load(cls, path: str) -> SigningKey:
        """From a file that only its owner can read. Raises UsageError, one line that says what to do."""
        try:
            fd = files.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise UsageError(f"signing key {path}: {error.strerror}; `hotstart trust keygen` makes one") from None
        try:
            info = files.fstat(fd)
            text = files.read(fd, 4096).decode("ascii", "replace")
        finally:
            files.close_quietly(fd)
        if not stat.S_ISREG(info.st_mode):
            raise UsageError(f"signing key {path} is not a file")
        if hasattr(os, "geteuid") and info.st_mode & 0o077:
            raise UsageError(f"signing key {path} can be read by others: chmod 600 it, or make a new one")
        lines = text.split("\n")
        try:
            if lines[0].strip() == _HEADING:
                return cls(urlsafe_b64decode(lines[1].strip() + "="))
        except (ValueError, IndexError):
            pass
        raise UsageError(f"signing key {path} does not hold a key of this version; `hotstart trust keygen` makes one")

    def __repr__(self) -> str:
        return f"<SigningKey {self.id}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a signing key does not travel")


def keygen(path: str) -> PublicKey:
    """Make a key and keep it in ``path``, mode 0600. Raises UsageError when there is a file already."""
    secret = os.urandom(32)
    key = SigningKey(secret)
    data = f"{_HEADING}\n{urlsafe_b64encode(secret).decode().rstrip('=')}\n".encode()
    try:
        files.makedirs(os.path.dirname(os.path.abspath(path)))
        fd = files.open(path, files.CREATE, files.PRIVATE_FILE)
    except FileExistsError:
        raise UsageError(f"{path} exists; a key is not overwritten, remove it first") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    try:
        files.write_all(fd, [data], len(data))
        files.fsync(fd)
    finally:
        files.close(fd)
    return key.public


def default_key_file() -> str:
    return f"{_config_directory()}/signing.key"


def default_trust_file() -> str:
    return f"{_config_directory()}/trusted.keys"


def _config_directory() -> str:
    return (os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")) + "/hotstart"


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MissingSignerError('signatures need cryptography: pip install "hotstart[sign]"') from None
    return ed25519

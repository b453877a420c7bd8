"""Every exception hotstart raises on purpose, as one tree.

    HotstartError
    ├── UsageError (ValueError)        a call that cannot mean anything
    │   ├── SizeError                  "10 GB", a negative budget
    │   ├── AddressError               not the digest of anything
    │   └── ArtifactNameError          "../x", an empty name, a NUL
    ├── UncacheableError (TypeError)   a field that has no canonical form; carries .field
    ├── CompileError (RuntimeError)    the compiler refused the source; carries .log
    ├── StoreError (OSError)           a directory that cannot be a store
    │   └── UnsafeStoreError           somebody else could write into it
    ├── RemoteError                    a remote did not do what it was asked; carries .cause. Within hotstart only,
    │   │                              but for who calls a backend of ``hotstart.remote`` itself
    │   ├── AbsentError                there is no such object
    │   ├── RefusedError               it said no: credentials, permission, a full bucket
    │   ├── TimedOutError              no answer in time
    │   ├── BrokenError                reset, 500, cut short, unreachable
    │   └── OpenError                  nobody asked: the breaker is open (remote/guard)
    ├── RejectedError                  an object of a remote that is not to be used (trust/seal); within hotstart only
    └── MissingSignerError             ``cryptography`` is not installed (trust/signing)

Only misuse raises. A damaged entry, a full disk, a read-only file system or a
remote that hangs is a miss or a dropped write, and a counter in ``Cache.stats()``.
"""

from __future__ import annotations


class HotstartError(Exception):
    """Base of everything in this tree."""


class UsageError(HotstartError, ValueError):
    """The arguments cannot mean anything; the message says what would."""


class SizeError(UsageError):
    """A size that is not a positive number of bytes or a string such as "10GiB"."""


class AddressError(UsageError):
    """A content address that is not 64 lower-case hexadecimal digits."""


class ArtifactNameError(UsageError):
    """An artifact name that could leave its directory or cannot be a name at all."""


class UncacheableError(HotstartError, TypeError):
    """Something has no canonical form, so no complete key can be made of it.

    ``field`` is the path to the offending value, such as ``options[2]``.
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.reason = message


class CompileError(HotstartError, RuntimeError):
    """A compiler refused what it was given. ``log`` is what it said, ``status`` its own name for it."""

    def __init__(self, message: str, log: str = "", status: str = "") -> None:
        super().__init__(f"{message}\n{log}".rstrip())
        self.message = message
        self.log = log
        self.status = status

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, str, str]]:
        return type(self), (self.message, self.log, self.status)


class StoreError(HotstartError, OSError):
    """The given directory cannot be used as a store."""


class UnsafeStoreError(StoreError):
    """Another user owns the directory or may write into it."""


class RemoteError(HotstartError):
    """A remote did not do what it was asked; ``cause`` is the word it is counted under."""

    kind = "broken"

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.cause = cause or self.kind


class AbsentError(RemoteError):
    """No object of that name."""

    kind = "absent"


class RefusedError(RemoteError):
    """It will say no again if asked again."""

    kind = "refused"


class TimedOutError(RemoteError):
    """It did not answer in time."""

    kind = "timed_out"


class BrokenError(RemoteError):
    """It could not be reached, or what came is not what was asked for."""

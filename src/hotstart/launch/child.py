"""The child process: started, watched and outlived, so that nobody can tell that we are between.

It is in our process group, has our terminal, descriptors, mask and ignored signals, and
the signal dispositions that it would have had (Python ignores SIGPIPE and SIGXFSZ, which
a child inherits). All signals are blocked here and taken one by one:

    INT, QUIT, TSTP   the terminal sent them to the child as well: not passed on
    by the kernel     likewise
    the child stops   so do we, by the same signal, and the shell sees its job stopped
    all others        passed on

``_signal`` and ``fork`` are used as they are: ``signal`` and ``subprocess`` would cost every
start-up more than all that is done here.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Mapping
else:
    import _signal

NOT_FOUND = 127
NOT_EXECUTABLE = 126

_ENOEXEC = 8
_ENOENT = 2

#: What the terminal sends to the whole group.
_FROM_TERMINAL = frozenset((_signal.SIGINT, _signal.SIGQUIT, _signal.SIGTSTP))

#: What asks a program to end.
_ENDING = frozenset((_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGQUIT))

#: Raised by what a process does itself. Blocked, they would wait and be taken for somebody else's: SIGXFSZ
#: of a file of ours that the disk did not take was once passed on to the command.
_OURS = frozenset(
    getattr(_signal, name)
    for name in (
        *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGABRT", "SIGSYS", "SIGKILL", "SIGSTOP"),
        *("SIGPIPE", "SIGXFSZ"),
    )
    if hasattr(_signal, name)
)

#: How Linux says that no process sent a signal: the terminal or the kernel did.
_SI_KERNEL = 0x80


class CannotStartError(Exception):
    """The command cannot be started. ``status`` is what a shell would end with."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Ended:
    """How the child ended: ``status`` as ``waitpid`` has it, ``seconds`` of processor time of it and its children,
    and whether anybody asked for the end (``told``)."""

    __slots__ = ("seconds", "status", "told")

    def __init__(self, status: int, seconds: float, told: bool) -> None:
        self.status = status
        self.seconds = seconds
        self.told = told

    @property
    def code(self) -> int:
        """As a shell shows it: the exit status, or 128 and the signal."""
        return 128 + os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else os.WEXITSTATUS(self.status)


def find(name: str, environ: Mapping[str, str]) -> str:
    """The file that ``name`` means on the user's PATH, as a shell would find it. Raises CannotStartError."""
    if "/" in name:
        return name
    denied = False
    for place in environ.get("PATH", os.defpath).split(":") if name else ():
        path = f"{place or '.'}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
        denied = denied or os.path.isfile(path)
    if denied:
        raise CannotStartError(f"{name}: permission denied", NOT_EXECUTABLE)
    raise CannotStartError(f"{name}: command not found", NOT_FOUND)


def block() -> set[int]:
    """Hold all signals back from now on; the mask as it was."""
    if _signal.getsignal(_signal.SIGCHLD) == _signal.SIG_IGN:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # ignored, the end of a child could not be waited for
    return set(_signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals() - _OURS))


def unblock() -> None:
    """Take all signals again: in a child of ours that is not the command."""
    _signal.pthread_sigmask(_signal.SIG_SETMASK, [])


def asked_to_end() -> int:
    """A signal that ends programs and is waiting, or 0."""
    return min(_signal.sigpending() & _ENDING, default=0)


def start(command: list[str], environ: Mapping[str, str], mask: set[int]) -> int:
    """The process id of ``command``, started with ``mask``. Raises CannotStartError.

    By fork, and not by ``posix_spawn``: glibc's leaves two of its own signals ignored in the
    child. What goes wrong in the child is told through a pipe that a successful exec closes.
    """
    path = find(command[0], environ)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _execute(path, command, environ, mask)
        except BaseException as error:
            number = error.errno if isinstance(error, OSError) else 0
            os.write(writer, b"%d %b" % (number or 0, str(error).encode("utf-8", "replace")))
        finally:
            os._exit(NOT_EXECUTABLE)
    os.close(writer)
    try:
        told = os.read(reader, 4096)
    finally:
        os.close(reader)
    if not told:
        return pid
    os.waitpid(pid, 0)
    text, _, message = told.decode("utf-8", "replace").partition(" ")
    code = int(text)
    raise _cannot_start(command[0], path, OSError(code, os.strerror(code)) if code else ValueError(message))


def _execute(path: str, command: list[str], environ: Mapping[str, str], mask: set[int]) -> None:
    """Become ``command``; returns only by raising OSError or ValueError."""
    # Python ignores these, and an ignored signal stays ignored. Its handlers end by themselves.
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    if hasattr(_signal, "SIGXFSZ"):
        _signal.signal(_signal.SIGXFSZ, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    try:
        os.execve(path, command, environ)
    except OSError as error:
        if error.errno != _ENOEXEC:
            raise
        # A script without "#!": every shell gives it to sh.
        os.execve("/bin/sh", ["/bin/sh", path, *command[1:]], environ)


def _cannot_start(name: str, path: str, error: OSError | ValueError) -> CannotStartError:
    if not isinstance(error, OSError):  # a NUL in an argument, "=" in the name of a variable
        return CannotStartError(f"{name}: {error}", NOT_EXECUTABLE)
    reason = "is a directory" if os.path.isdir(path) else (error.strerror or str(error)).lower()
    return CannotStartError(f"{name}: {reason}", NOT_FOUND if error.errno == _ENOENT else NOT_EXECUTABLE)


def watch(pid: int) -> Ended:
    """Wait for the end of ``pid``, passing signals on. Signals are blocked before and after."""
    told = False
    waited: set[int] = set(_signal.valid_signals() - _OURS)
    while True:
        # Before the wait as well: the child may have ended before anything was blocked.
        found, status, usage = os.wait4(pid, os.WNOHANG | os.WUNTRACED)
        if found == pid:
            if not os.WIFSTOPPED(status):
                return Ended(status, usage.ru_utime + usage.ru_stime, told)
            _stop(os.WSTOPSIG(status))
            continue
        number, by_kernel = _next_signal(waited)
        if number in _ENDING:
            told = True
        if number in _FROM_TERMINAL or number == _signal.SIGCHLD or by_kernel:
            continue
        try:
            os.kill(pid, number)
        except OSError:
            continue  # it has just ended, or became another user's


def _next_signal(waited: set[int]) -> tuple[int, bool]:
    """The next signal that arrives, and whether the kernel itself sent it (False where that is not told)."""
    if not hasattr(_signal, "sigwaitinfo"):
        return _signal.sigwait(waited), False
    seen = _signal.sigwaitinfo(waited)
    return seen.si_signo, seen.si_code == _SI_KERNEL


def _stop(number: int) -> None:
    """Stop as the child did, until somebody continues us: the shell then continues the whole group."""
    handler = _signal.getsignal(number) if number != _signal.SIGSTOP else None
    if handler is not None:
        _signal.signal(number, _signal.SIG_DFL)
    before = _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, before)
    if handler is not None:
        _signal.signal(number, handler)


def asked_to_stop() -> bool:
    """Whether a signal that ends programs is waiting: then what is still being kept is given up."""
    return not _signal.sigpending().isdisjoint(_ENDING)


def end_like(status: int, mask: set[int]) -> int:
    """The child's exit status for us to end with; if a signal ended it, the same one ends us here."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    try:
        # The child's core, if any, is the one that people want to look at.
        from resource import RLIMIT_CORE, getrlimit, setrlimit

        setrlimit(RLIMIT_CORE, (0, getrlimit(RLIMIT_CORE)[1]))
        if number not in (_signal.SIGKILL, _signal.SIGSTOP):
            _signal.signal(number, _signal.SIG_DFL)
            _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    except (ImportError, OSError, ValueError):
        pass  # a signal that cannot be sent here: say what a shell would say
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    return 128 + number


def become(command: list[str], environ: Mapping[str, str], mask: set[int]) -> int:
    """Replace this process by ``command``: where there is nothing for us to do afterwards. Raises CannotStartError."""
    path = find(command[0], environ)
    try:
        _execute(path, command, environ, mask)
    except (OSError, ValueError) as error:
        raise _cannot_start(command[0], path, error) from None
    return NOT_EXECUTABLE

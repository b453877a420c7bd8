"""``Elsewhere``: a remote that another process asks for us. For who was forked from a process that used the client.

``obstore`` works in threads that do not come along into a forked child: there a call waits
for them for ever, and so does one of a new client, since the threads belong to the library.
A process that is started afresh has its own. It is started when such a child first asks,
answers one call after another over a pipe, and ends when the pipe does.

    frame    head-length:u32 data-length:u64 head data
    head     JSON; of a question what, arguments, of an answer value or error; progress before it, any number of times
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading

from .contract import (
    AbsentError,
    BrokenError,
    Found,
    Item,
    RefusedError,
    Remote,
    TimedOutError,
    as_remote_error,
    check_name,
    listen,
    progress,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from subprocess import Popen
    from typing import Any

    from .contract import Bytes

_FRAME = struct.Struct("<IQ")
_ERRORS = {cls.kind: cls for cls in (AbsentError, RefusedError, TimedOutError, BrokenError)}

#: Finds what its parent found, in the same places, and nothing in the working directory that the parent did not.
_PROGRAM = "import sys; sys.path[:] = {path!r}; from hotstart.remote.elsewhere import main; main()"


class Elsewhere(Remote):
    """The remote at ``address``, asked by a process of its own. As safe for threads as any; they take turns."""

    def __init__(self, address: str, shown: str, identity: str, timeout: float, *, read_only: bool) -> None:
        self.address, self.shown, self.identity, self.timeout = address, shown, identity, timeout
        self.read_only = read_only
        self._turn = threading.Lock()
        self._process: Popen[bytes] | None = None

    @classmethod
    def of(cls, remote: Remote) -> Elsewhere | None:
        """The same remote from elsewhere; None where no process can be started (an interpreter inside a program)."""
        if not remote.address or not sys.executable:
            return None
        return cls(remote.address, remote.shown, remote.identity, remote.timeout, read_only=remote.read_only)

    def prepare(self) -> None:
        with self._turn:
            self._start()

    def get(self, name: str, limit: int) -> Found:
        (size, tag), data = self._ask("get", check_name(name), limit)
        return Found(data, size, tag)

    def get_range(self, name: str, start: int, length: int, tag: str = "") -> Bytes:
        return self._ask("get_range", check_name(name), start, length, tag)[1]

    def put(self, name: str, data: Bytes, *, replaces: str = "") -> bool:
        return bool(self._ask("put", check_name(name), replaces, data=data)[0])

    def delete(self, names: Iterable[str]) -> None:
        self._ask("delete", [check_name(name) for name in names])

    def list(self, prefix: str) -> Iterator[Item]:
        for name, size, modified in self._ask("list", prefix)[0]:
            yield Item(name, size, modified)

    def close(self) -> None:
        with self._turn:
            self._stop()

    def after_fork(self) -> None:
        """It is the parent's. Its end of the pipe is closed here, so that it ends with the parent."""
        process, self._process = self._process, None
        self._turn = threading.Lock()
        if process is not None:
            _close(process)

    def _ask(self, what: str, *arguments: Any, data: Bytes = b"") -> tuple[Any, bytes]:
        with self._turn:
            process = self._start()
            try:
                assert process.stdin is not None and process.stdout is not None
                _send(process.stdin.fileno(), {"what": what, "arguments": arguments}, data)
                head, body = _receive(process.stdout.fileno())
                while "progress" in head:
                    progress(head["progress"])
                    head, body = _receive(process.stdout.fileno())
            except (OSError, EOFError, ValueError):
                self._stop()
                raise BrokenError(f"{self.shown}: the process that asks it has ended", "helper") from None
        self.requests += head["requests"]
        _raise_if_error(head)
        return head["value"], body

    def _start(self) -> Popen[bytes]:
        if self._process is not None:
            return self._process
        import subprocess

        environment = os.environ | {"HOTSTART_LOG": "off"}  # what is to be said, this process says
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM.format(path=sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=environment,
                start_new_session=True,  # a Ctrl-C is for the program; this ends with its pipe
            )
        except OSError as error:
            raise RefusedError(f"{self.shown}: no process to ask it could be started: {error}", "forked") from None
        try:
            assert process.stdin is not None and process.stdout is not None
            # Not on the command line, which everybody on the machine can read.
            _send(process.stdin.fileno(), {"address": self.address, "read_only": self.read_only})
            head, _ = _receive(process.stdout.fileno())
        except (OSError, EOFError, ValueError):
            _close(process)
            process.wait()
            raise RefusedError(
                f"{self.shown}: a forked process cannot use what its parent used before", "forked"
            ) from None
        self._process = process
        if "error" in head:
            self._stop()
        _raise_if_error(head)
        return process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _close(process)
            try:
                process.wait(self.timeout)
            except Exception:  # TimeoutExpired, of a module that is only imported where it is needed
                process.kill()
                process.wait()


def _close(process: Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _raise_if_error(head: dict[str, Any]) -> None:
    if "error" in head:
        kind, cause, text = head["error"]
        raise _ERRORS.get(kind, BrokenError)(text, cause)


def _send(fd: int, head: dict[str, Any], data: Bytes = b"") -> None:
    raw = json.dumps(head).encode()
    for part in (_FRAME.pack(len(raw), len(data)) + raw, data):
        view = memoryview(part)
        while view:
            view = view[os.write(fd, view) :]


def _receive(fd: int) -> tuple[dict[str, Any], bytes]:
    head, data = _FRAME.unpack(_read(fd, _FRAME.size))
    return json.loads(_read(fd, head)), bytes(_read(fd, data))


def _read(fd: int, length: int) -> bytearray:
    got = bytearray()
    while len(got) < length:
        piece = os.read(fd, min(length - len(got), 1 << 20))
        if not piece:
            raise EOFError
        got += piece
    return got


# -- in the process that asks ----------------------------------------------------


def main() -> None:
    """Answer what comes on standard input until it ends."""
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not get among the frames
    try:
        head, _ = _receive(0)
    except EOFError:
        return
    from .url import open_remote

    remote = open_remote(head["address"], read_only=head["read_only"])
    try:
        remote.prepare()
        _send(answers, {"value": None})
    except BaseException as raised:
        error = as_remote_error(raised, remote.shown)
        _send(answers, {"error": [error.kind, error.cause, str(error)]})
        return
    listen(lambda count: _send(answers, {"progress": count}))
    while True:
        try:
            head, data = _receive(0)
        except EOFError:
            return
        before = remote.requests
        body: Bytes = b""
        answer: dict[str, Any] = {}
        try:
            answer["value"], body = _do(remote, head["what"], head["arguments"], data)
        except BaseException as raised:
            error = as_remote_error(raised, remote.shown)
            answer = {"error": [error.kind, error.cause, str(error)]}
        try:
            _send(answers, {**answer, "requests": remote.requests - before}, body)
        except BrokenPipeError:
            return  # nobody waits for it


def _do(remote: Remote, what: str, arguments: list[Any], data: bytes) -> tuple[Any, Bytes]:
    if what == "get":
        found = remote.get(*arguments)
        return (found.size, found.tag), found.data
    if what == "get_range":
        return None, remote.get_range(*arguments)
    if what == "put":
        name, replaces = arguments
        return remote.put(name, data, replaces=replaces), b""
    if what == "delete":
        remote.delete(arguments[0])
        return None, b""
    return [(item.name, item.size, item.modified) for item in remote.list(arguments[0])], b""

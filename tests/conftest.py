"""What the tests share: children by fork, a scale for the heavy ones, and an end to whatever hangs."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# In CI the same examples every time: what lands must not depend on luck. Elsewhere they differ from run to run.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("here", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# So that a failing ``assert`` in these shows its values, as it would in a test file.
pytest.register_assert_rewrite("hotstart.testing.conformance", "hotstart.testing.machine")

# Tests write a module, import it, and write it again within a second: a compiled file would be taken for the new one.
sys.dont_write_bytecode = True

# A shell has its background jobs ignore these, and children inherit that: tests of signals would test nothing, or hang.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

#: Far above what any of these tests needs; nothing is concluded from how long a test took.
HANG = 240


class Child:
    """A forked process that runs one function; its return value (as JSON) is its result."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._reader)
            self._run(writer, function, args)
        os.close(writer)
        self._status: int | None = None

    def _run(self, writer: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """In the child; never returns, so that no test runner continues twice."""
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            answer = json.dumps({"value": function(*args)})
        except BaseException:
            answer = json.dumps({"error": traceback.format_exc()})
        try:
            data = answer.encode()
            while data:
                data = data[os.write(writer, data) :]
        finally:
            os._exit(0)

    def result(self, within: float = HANG / 2) -> Any:
        """What the function returned. Fails the test if it raised, was killed, or is not done in time."""
        data = b""
        deadline = time.monotonic() + within
        while True:
            ready, _, _ = select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.kill()
                pytest.fail(f"a child process hangs (over {within:.0f} s)")
            piece = os.read(self._reader, 1 << 16)
            if not piece:
                break
            data += piece
        self.wait()
        if not data:
            pytest.fail(f"a child process died: status {self._status}")
        answer = json.loads(data)
        if "error" in answer:
            pytest.fail(f"in a child process:\n{answer['error']}")
        return answer["value"]

    def is_running(self) -> bool:
        """Until it has its answer ready, or has ended without one."""
        return self._status is None and not select.select([self._reader], [], [], 0)[0]

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._status is None:
            self.send(signal.SIGKILL)
            self.wait()

    def wait(self) -> int:
        """The wait status, once it has ended."""
        if self._status is None:
            self._status = os.waitpid(self.pid, 0)[1]
        return self._status

    def close(self) -> None:
        self.kill()
        os.close(self._reader)


@pytest.fixture
def fork() -> Iterator[Callable[..., Child]]:
    """``fork(function, *args)`` runs it in a child; whatever still lives at the end of the test is killed."""
    children: list[Child] = []

    def start(function: Callable[..., Any], *args: Any) -> Child:
        child = Child(function, *args)
        children.append(child)
        return child

    yield start
    for child in children:
        child.close()


@pytest.fixture
def swift_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where the system has a file system for that, else on disk.

    For tests that make and remove tens of thousands of files, to which the disk adds nothing but time.
    """
    memory = Path("/dev/shm")
    if not memory.is_dir() or not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < 1 << 30:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="hotstart-test-", dir=memory, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def scale() -> int:
    """Multiplies the repetitions of the heavy tests: HOTSTART_TEST_SCALE, 1 by default."""
    return max(1, int(os.environ.get("HOTSTART_TEST_SCALE", "1")))


@pytest.fixture
def hang_guard(scale: int) -> Iterator[None]:
    """Ends a test that hangs, with a trace of where it does."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return

    def expired(_number: int, _frame: object) -> None:
        raise TimeoutError(f"the test hangs (over {HANG * scale} s)")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(HANG * scale)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)

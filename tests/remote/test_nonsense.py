"""Settings that a client panics at, and servers whose answers make no sense, end in one line and a miss: no program.

A panic in Rust arrives as an exception that is no ``Exception``, an answer of a wrong type as a ``TypeError``
from the depths of a client. Neither may get past the guard.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hotstart
from hotstart.errors import UsageError
from hotstart.remote.contract import BrokenError, Found
from hotstart.remote.directory import Directory
from hotstart.remote.guard import Guarded
from hotstart.remote.url import open_remote
from hotstart.store.counters import Counters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.machines import Team, key_of
else:
    from machines import Team, key_of

COMPILE = """
import hotstart

with hotstart.open() as cache:
    print(cache.get_or_compile(hotstart.Key("test", name="k"), lambda: {"x": b"1"}).tier, cache.stats()["remote"])
"""


class PanicException(BaseException):
    """As pyo3's: not an Exception."""


class Panicking(Directory):
    def get(self, name: str, limit: int) -> Found:
        raise PanicException("called `Result::unwrap()` on an `Err` value: redis://:hunter2@h")

    def stream(self, name: str, start: int, length: int) -> Iterator[Any]:
        yield b"1"
        raise PanicException("at hunter2")


def test_a_panic_is_broken_and_counted(tmp_path: Path) -> None:
    guarded = Guarded(Panicking(str(tmp_path)), Counters(), "")
    with pytest.raises(BrokenError) as caught:
        guarded.get("a", 1)
    assert caught.value.cause == "nonsense"
    assert "hunter2" not in str(caught.value)
    assert guarded._counters.snapshot()["remote.broken.nonsense"] == 1
    with pytest.raises(BrokenError):
        list(guarded.stream("a", 0, 10))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit])
def test_what_is_not_the_remotes_is_not_its_fault(tmp_path: Path, error: type[BaseException]) -> None:
    class Ending(Directory):
        def get(self, name: str, limit: int) -> Found:
            raise error

    with pytest.raises(error):
        Guarded(Ending(str(tmp_path)), Counters(), "").get("a", 1)


@pytest.mark.parametrize(
    "url",
    [
        "s3://te am", "s3://team/a\nb", "s3://team?endpoint=http://a b", "s3://team?endpoint=http://a%20b",
        "s3://team?region=a%0Ab", "s3://team?region=a b", "s3://te%20am", "s3://team?endpoint=http://h:99999",
        "s3://team?endpoint=http://[::1", "az://con tainer", "az://c?account=a%20b", "s3://te\tam", "s3://user:word",
        "file:///mnt/a%00b",
    ],
)  # fmt: skip
def test_urls_that_clients_panic_at_are_refused_before(url: str) -> None:
    with pytest.raises(UsageError, match=r"^remote '") as caught:
        open_remote(url)
    assert "\n" not in str(caught.value)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "HOTSTART_HOME": str(tmp_path / "hotstart"),
        "AWS_ACCESS_KEY_ID": "reader",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        # Nobody listens there: a client that gets that far says so.
        "HOTSTART_REMOTE": "s3://team/x?endpoint=http://127.0.0.1:9&timeout=2",
        "HOTSTART_ALLOW_UNSIGNED": "1",
    }


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"])
def test_a_variable_with_a_line_break_at_its_end_is_named(name: str, environment: dict[str, str]) -> None:
    environment[name] = "hunter2\n"
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "'refused.credentials':" in done.stdout
    assert f"{name} begins or ends with a line break" in done.stderr
    assert "hunter2" not in done.stderr
    assert "panicked" not in done.stderr


@pytest.mark.parametrize("url", ["s3://te am", "s3://team?region=a%0Ab", "s3:/team"])
def test_local_caching_goes_on_with_a_url_that_cannot_be_one(url: str, environment: dict[str, str]) -> None:
    environment["HOTSTART_REMOTE"] = url
    for tier in ("compiled", "disk"):
        done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(tier)
        # Who finds it on disk asks nobody.
        assert len(done.stderr.splitlines()) == (tier == "compiled")


@contextmanager
def answering(answers: dict[bytes, bytes]) -> Iterator[int]:
    """A server that speaks Redis' protocol and answers each command with what it is told; its port."""
    hello = b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n"
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with client, client.makefile("rb") as lines:
            try:
                while line := lines.readline():
                    words = [lines.read(int(lines.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:]))]
                    client.sendall(answers.get(words[0].upper(), hello if words[0] == b"HELLO" else b"+OK\r\n"))
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.mark.parametrize(
    "answers",
    [
        {b"GETRANGE": b"$3\r\nabc\r\n", b"STRLEN": b"_\r\n"},
        {b"GETRANGE": b":5\r\n", b"STRLEN": b":500\r\n"},
        {b"GETRANGE": b"$3\r\nabc\r\n", b"STRLEN": b"$1\r\nx\r\n"},
        {b"GETRANGE": b"*2\r\n:1\r\n:2\r\n", b"STRLEN": b":18\r\n"},
        {b"HELLO": b"+OK\r\n"},
    ],
    ids=["no length", "a number for bytes", "text for a length", "a list for bytes", "no greeting"],
)
def test_answers_of_wrong_types_are_a_miss(tmp_path: Path, answers: dict[bytes, bytes], hang_guard: None) -> None:
    team = Team(tmp_path, "")
    with answering(answers) as port:
        url = f"redis://127.0.0.1:{port}?timeout=2"
        with hotstart.Cache(str(tmp_path / "store"), remote=url, trust=team.list.path) as cache:
            assert cache.get_or_compile(key_of(1), lambda: {"cubin": b"x"}).tier == "compiled"
            assert cache.stats()["remote"]["broken.nonsense"] >= 1

"""``hotstart run`` on two machines with one remote: the second starts hot, and no remote ever stands in the way.

Machines are directories of their own for home, user and temporary files; the remote is a directory.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotstart.launch.names import shared_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.launch.launching import HOTSTART, Place
else:
    from launching import HOTSTART, Place

#: Compiles three kernels where there are none, and says how many it had to.
PROGRAM = """\
import os, sys
made = 0
for name in sys.argv[1:] or ["A", "B", "C"]:
    place = os.path.join(os.environ["TRITON_CACHE_DIR"], name)
    if not os.path.exists(f"{place}/k.cubin"):
        os.makedirs(place, exist_ok=True)
        with open(f"{place}/k.cubin", "wb") as file:
            file.write(name.encode() * 1000)
        made += 1
print("compiled", made)
"""


@pytest.fixture
def machines(tmp_path: Path) -> Callable[..., Place]:
    """``machines("one")``: a machine that signs with the team's key; ``signs=False`` for one that only reads."""
    key = subprocess.run(
        [*HOTSTART, "trust", "keygen", "--json", "--file", str(tmp_path / "team.key")],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path / "admin"), "HOTSTART_HOME": str(tmp_path / "admin")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    public = json.loads(key.stdout)["public"]

    def machine(name: str, *, signs: bool = True, trusts: bool = True, url: str = "") -> Place:
        (tmp_path / name).mkdir()
        place = Place(tmp_path / name)
        (place.path / "user").mkdir()
        place.environ["HOTSTART_REMOTE"] = url or f"file://{tmp_path}/shared"
        if signs:
            place.environ["HOTSTART_SIGNING_KEY"] = str(tmp_path / "team.key")
        if trusts:
            assert place.hotstart("trust", "add", public, "--scope", "main").returncode == 0
        (place.work / "train.py").write_text(PROGRAM)
        return place

    return machine


def train(place: Place, *arguments: str, options: tuple[str, ...] = (), said: str | None = "") -> int:
    """How many kernels ``train.py`` compiled; ``said`` is all there may be on stderr, None for anything."""
    done = place.run(*options, sys.executable, "train.py", *arguments)
    assert done.returncode == 0, done.stderr
    if said is not None:
        assert done.stderr == said
    return int(done.stdout.removeprefix("compiled "))


def lines(place: Place, *arguments: str) -> tuple[str, list[str]]:
    done = place.run(sys.executable, "train.py", *arguments)
    assert done.returncode == 0
    return done.stdout.strip(), done.stderr.splitlines()


def test_the_second_machine_compiles_nothing(machines: Callable[..., Place], tmp_path: Path) -> None:
    one, two = machines("one"), machines("two", signs=False)
    assert train(one) == 3
    published = {path.name for path in (tmp_path / "shared/v1/main").iterdir()}
    assert published == {"packs", "workloads"}, "nothing one by one"
    assert train(two) == 0
    record = two.record()
    assert record["remote"]["entries"] == 3
    assert record["remote"]["requests"] == 2, "a manifest and a pack"
    assert record["frameworks"]["triton"]["restored"] == 3
    assert record["frameworks"]["triton"]["new"] == 0
    assert two.files() == one.files()


def test_a_start_with_nothing_missing_asks_nobody(machines: Callable[..., Place]) -> None:
    """Remotes are asked by a child: there is none but the command, and nothing of ``remote`` is imported."""
    one, two = machines("one"), machines("two", signs=False)
    train(one)
    train(two)
    code = (
        "import os, sys; from hotstart.cli.main import main\n"
        "fork, children = os.fork, []\n"
        "def counted():\n"
        "    pid = fork()\n"
        "    children.append(pid)\n"
        "    return pid\n"
        "os.fork = counted\n"
        f"main(['run', {sys.executable!r}, 'train.py'])\n"
        "print(len(children), *[m for m in sys.modules if m.startswith(('hotstart.remote', 'hotstart.trust'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=two.environ, cwd=two.work, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("compiled 0\n1\n", "")


def test_what_is_compiled_later_is_published_too(machines: Callable[..., Place]) -> None:
    one, two = machines("one"), machines("two", signs=False)
    train(one)
    assert train(one, "A", "D") == 1
    assert train(two, "A", "B", "C", "D") == 0


def test_a_workload_that_is_new_to_a_machine_is_asked_for(machines: Callable[..., Place]) -> None:
    """Although nothing that the machine knows of is missing."""
    one, two = machines("one"), machines("two", signs=False)
    train(one, "A", options=("--name", "first"))
    train(one, "B", options=("--name", "second"))
    assert train(two, "A", options=("--name", "first")) == 0
    assert not (two.root / "triton/B").exists()
    assert train(two, "B", options=("--name", "second")) == 0


def test_a_publisher_that_trusts_nobody_adds_to_what_it_published(machines: Callable[..., Place]) -> None:
    one, two = machines("one", trusts=False), machines("two", signs=False)
    train(one, "A", said=None)
    train(one, "D", said=None)
    assert train(two, "A", "D") == 0


def test_another_workload_is_prefetched(machines: Callable[..., Place]) -> None:
    one, two = machines("one"), machines("two", signs=False)
    train(one, "A", options=("--name", "base"))
    assert train(two, "A", options=("--name", "tune", "--prefetch", "base")) == 0


def test_a_name_with_spaces_is_shared_as_well(machines: Callable[..., Place]) -> None:
    one, two = machines("one"), machines("two", signs=False)
    train(one, options=("--name", "größer als = gedacht"))
    assert train(two, options=("--name", "größer als = gedacht")) == 0
    assert shared_name("a b") != shared_name("a_b")
    assert shared_name("train.py") == "train.py"


def test_runs_that_start_at_once_pull_once(machines: Callable[..., Place]) -> None:
    one, two = machines("one"), machines("two", signs=False)
    train(one)
    runs = [
        subprocess.Popen(
            [*HOTSTART, "run", "--json", sys.executable, "train.py"],
            env=two.environ, cwd=two.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    ended = [run.communicate(timeout=120) for run in runs]
    assert [out for out, _ in ended] == ["compiled 0\n"] * 4
    pulled = [json.loads(err).get("remote", {}).get("entries", 0) for _, err in ended]
    assert sorted(pulled) == [0, 0, 0, 3]


def test_directories_that_were_wiped_are_restored_without_the_remote(
    machines: Callable[..., Place], tmp_path: Path
) -> None:
    one = machines("one")
    train(one)
    one.wipe()
    shutil.rmtree(tmp_path / "shared")
    assert train(one) == 0


def test_an_evicted_store_is_filled_again(machines: Callable[..., Place]) -> None:
    one, two = machines("one"), machines("two", signs=False)
    train(one)
    train(two)
    shutil.rmtree(two.home)
    assert train(two) == 0


def test_what_the_remote_has_lost_is_said_once_asked_for_once_and_repaired_by_a_push(
    machines: Callable[..., Place], tmp_path: Path
) -> None:
    one, two = machines("one"), machines("two", signs=False)
    train(one)
    shutil.rmtree(tmp_path / "shared/v1/main/packs")
    compiled, said = lines(two)
    assert compiled == "compiled 3"
    assert len(said) == 1 and "`hotstart push train.py` on a machine that has them" in said[0]
    assert len(list((two.home / "launch/asked").iterdir())) == 1
    assert train(two) == 0
    assert one.hotstart("push", "train.py").returncode == 0
    assert train(machines("three", signs=False)) == 0


def test_who_signs_nothing_publishes_nothing(machines: Callable[..., Place], tmp_path: Path) -> None:
    assert train(machines("one", signs=False)) == 3
    assert not (tmp_path / "shared").exists()


def test_offline_leaves_the_remote_alone(machines: Callable[..., Place], tmp_path: Path) -> None:
    one, two = machines("one"), machines("two", signs=False)
    one.environ["HOTSTART_OFFLINE"] = "1"
    assert train(one) == 3
    assert not (tmp_path / "shared").exists()
    del one.environ["HOTSTART_OFFLINE"]
    train(one, "D")
    two.environ["HOTSTART_OFFLINE"] = "1"
    assert train(two, "D") == 1
    assert "remote" not in two.record()


def test_what_nobody_signed_is_compiled_instead(machines: Callable[..., Place], tmp_path: Path) -> None:
    one, two = machines("one", signs=False), machines("two", signs=False)
    one.environ["HOTSTART_ALLOW_UNSIGNED"] = "1"
    train(one, said=None)
    assert (tmp_path / "shared/v1/main/workloads/train.py").exists()
    out, said = lines(two)
    assert out == "compiled 3"
    assert len(said) == 1
    assert "nobody signed it" in said[0]


def test_what_a_stranger_signed_is_compiled_instead(machines: Callable[..., Place], tmp_path: Path) -> None:
    one, two = machines("one"), machines("two", signs=False)
    assert one.hotstart("trust", "keygen", "--file", str(tmp_path / "stranger.key")).returncode == 0
    one.environ["HOTSTART_SIGNING_KEY"] = str(tmp_path / "stranger.key")
    train(one, said=None)
    out, said = lines(two)
    assert (out, len(said)) == ("compiled 3", 1)
    assert "is not among the trusted keys" in said[0]


def test_who_trusts_nobody_is_told_once(machines: Callable[..., Place]) -> None:
    one, two = machines("one"), machines("two", trusts=False)
    train(one)
    out, said = lines(two)
    assert (out, len(said)) == ("compiled 3", 1)
    assert "trusts no key" in said[0]


@pytest.mark.parametrize("url", ["s4://x/y", "s3://", "redis://", "file://relative"])
def test_a_url_that_means_nothing_is_one_line(machines: Callable[..., Place], url: str) -> None:
    out, said = lines(machines("one", url=url))
    assert (out, len(said)) == ("compiled 3", 1)
    assert url.partition(":")[0] in said[0]


def test_a_key_that_others_can_read_is_one_line(machines: Callable[..., Place], tmp_path: Path) -> None:
    one = machines("one")
    (tmp_path / "team.key").chmod(0o644)
    out, said = lines(one)
    assert (out, len(said)) == ("compiled 3", 1)
    assert "can be read by others" in said[0]


def test_a_remote_that_is_broken_is_one_line(machines: Callable[..., Place], tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("not a directory")
    one = machines("one")
    out, said = lines(one)
    assert (out, len(said)) == ("compiled 3", 1)
    assert str(tmp_path / "shared") in said[0]


def test_a_remote_that_is_down_is_one_line_and_is_asked_again_when_it_is_back(
    machines: Callable[..., Place], tmp_path: Path
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    one, two = machines("one"), machines("two", signs=False)
    train(one)
    there = two.environ["HOTSTART_REMOTE"]
    two.environ["HOTSTART_REMOTE"] = f"redis://127.0.0.1:{port}?timeout=1"
    out, said = lines(two, "A")
    assert (out, len(said)) == ("compiled 1", 1)
    assert "redis://127.0.0.1" in said[0]
    assert lines(two, "A") == ("compiled 0", []), "left alone, in silence"
    two.environ["HOTSTART_REMOTE"] = there
    assert train(two) == 0


def test_a_remote_that_never_answers_costs_one_time_out(machines: Callable[..., Place]) -> None:
    """Counted in connections: the breaker keeps publishing, and the next run, from asking again."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        server.setblocking(False)
        one = machines("one", url=f"redis://127.0.0.1:{server.getsockname()[1]}?timeout=1")
        out, said = lines(one)
        assert (out, len(said)) == ("compiled 3", 1)
        assert lines(one, "A", "D") == ("compiled 1", [])
        server.accept()
        with pytest.raises(BlockingIOError):
            server.accept()


def test_being_told_to_stop_while_pulling_ends_at_once(machines: Callable[..., Place]) -> None:
    """The command is not started, and nobody is left behind."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        server.settimeout(30)
        one = machines("one", url=f"redis://127.0.0.1:{server.getsockname()[1]}?timeout=600")
        run = subprocess.Popen(
            [*HOTSTART, "run", sys.executable, "train.py"], env=one.environ, cwd=one.work, stdout=subprocess.PIPE
        )
        connection, _ = server.accept()
        run.send_signal(signal.SIGTERM)
        assert run.communicate(timeout=30)[0] == b""
        assert run.returncode == -signal.SIGTERM
        connection.settimeout(30)
        while connection.recv(1 << 16):
            pass  # what was asked before; then the end, since its process is gone
        connection.close()


def test_publishing_takes_no_longer_than_the_grace(machines: Callable[..., Place]) -> None:
    """A remote that was asked before, and now says no more."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        one = machines("one", url=f"redis://127.0.0.1:{server.getsockname()[1]}?timeout=600")
        assert one.run(sys.executable, "train.py", "A", env={"HOTSTART_OFFLINE": "1"}).returncode == 0
        _note_asked(one)
        began = time.monotonic()
        done = one.run("--grace", "1", sys.executable, "train.py", "B", timeout=120)
        assert (done.returncode, done.stdout) == (0, "compiled 1\n")
        assert done.stderr == (
            "hotstart: there was no time to publish train.py: the next run that compiles sends the rest,"
            " or now `hotstart push train.py`\n"
        )
        assert time.monotonic() - began < 60, "far below the 600 s that the remote may take"


def initialised(place: Place, *arguments: str, before: str = "", name: str = "None") -> tuple[str, list[str]]:
    """``train.py`` as a program that calls ``hotstart.init()`` itself; what it printed, and what was said."""
    text = f"{before}\nimport hotstart\nhotstart.init(name={name})\n{PROGRAM}"
    (place.work / "serve.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "serve.py", *arguments],
        env=place.environ, cwd=place.work, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.splitlines()


def test_a_program_that_calls_init_publishes_and_pulls(machines: Callable[..., Place], tmp_path: Path) -> None:
    one, two = machines("one"), machines("two", signs=False)
    assert initialised(one) == ("compiled 3", [])
    assert {path.name for path in (tmp_path / "shared/v1/main").iterdir()} == {"packs", "workloads"}
    assert initialised(two) == ("compiled 0", [])
    assert two.record()["remote"]["entries"] == 3
    assert initialised(one, "A", "D") == ("compiled 1", [])
    shutil.rmtree(two.home)
    assert initialised(two, "A", "B", "C", "D") == ("compiled 0", [])


def test_init_and_run_share_workloads_by_name(machines: Callable[..., Place]) -> None:
    one, two = machines("one"), machines("two", signs=False)
    train(one, options=("--name", "base"))
    assert initialised(two, name="'base'") == ("compiled 0", [])


def test_init_with_nothing_missing_starts_nobody_and_imports_no_client(machines: Callable[..., Place]) -> None:
    one = machines("one")
    initialised(one)
    before = (
        "import atexit, subprocess, sys\n"
        "def refuse(*_, **__): raise AssertionError('started a process')\n"
        "subprocess.Popen.__init__ = refuse\n"
        "atexit.register(lambda: print(*[m for m in sys.modules if m.startswith('hotstart.remote')]))\n"
    )
    assert initialised(one, before=before) == ("compiled 0", [])


def test_init_survives_a_remote_that_never_answers(machines: Callable[..., Place]) -> None:
    """One time-out, said once; the breaker keeps the end of the program from waiting again."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        server.setblocking(False)
        one = machines("one", url=f"redis://127.0.0.1:{server.getsockname()[1]}?timeout=1")
        out, said = initialised(one)
        assert (out, len(said)) == ("compiled 3", 1), said
        assert initialised(one, "A", "D") == ("compiled 1", [])
        server.accept()
        with pytest.raises(BlockingIOError):
            server.accept()


def test_publishing_as_a_program_ends_takes_no_longer_than_its_grace(machines: Callable[..., Place]) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        one = machines("one", url=f"redis://127.0.0.1:{server.getsockname()[1]}?timeout=600")
        one.environ["HOTSTART_OFFLINE"] = "1"
        initialised(one, "A")
        del one.environ["HOTSTART_OFFLINE"]
        _note_asked(one, "serve.py")
        before = "import hotstart.launch.init as module\nmodule.GRACE = 2.0\n"
        out, said = initialised(one, "B", before=before)
        assert out == "compiled 1"
        assert said == [
            "hotstart: there was no time to publish serve.py: the next run that compiles sends the rest,"
            " or now `hotstart push serve.py`"
        ]


def test_init_works_in_a_program_that_has_threads_and_a_client_of_its_own(machines: Callable[..., Place]) -> None:
    """A child forked from it could use neither."""
    pytest.importorskip("obstore", reason="needs obstore, as a program that reads its data with it has")
    one, two = machines("one"), machines("two", signs=False)
    before = (
        "import threading, time, obstore\n"
        "from obstore.store import MemoryStore\n"
        "obstore.put(MemoryStore(), 'a', b'1')\n"
        "threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
    )
    assert initialised(one, before=before) == ("compiled 3", [])
    assert initialised(two, before=before) == ("compiled 0", [])


def _note_asked(place: Place, name: str = "train.py") -> None:
    """As if the remote had said before what it has."""
    from zlib import crc32

    (place.home / "launch/asked").mkdir(parents=True)
    where = f"{place.environ['HOTSTART_REMOTE']}\0main".encode()
    (place.home / f"launch/asked/{crc32(where):08x}-{name}").touch()


def test_the_name_of_a_mark_does_not_depend_on_a_password() -> None:
    from types import SimpleNamespace

    from hotstart.launch import share

    def mark(remote: str) -> str:
        session = SimpleNamespace(config={"remote": remote, "scope": "main"}, home="/home")
        return share._mark(session, "train")  # type: ignore[arg-type]

    chain = "redis://:{}@cache/0,s3://team/x?endpoint=http://h"
    assert mark(chain.format("hunter,2")) == mark(chain.format("other?@"))
    assert mark(chain.format("a")) != mark("redis://:a@cache/1,s3://team/x?endpoint=http://h")

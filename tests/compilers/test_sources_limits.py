"""SourceCache within bounds: the cap, who uses what, and disks that do not play along."""

from __future__ import annotations

import errno
import fcntl
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotstart import StoreError, log
from hotstart.compilers import leases, private, sources
from hotstart.compilers.sources import SourceCache
from hotstart.store.counters import Counters
from hotstart.testing import FailingIO, KillingIO

Fork = Callable[..., Any]

SOURCE = "def kernel(x):\n    return x + 1\n"


@pytest.fixture(autouse=True)
def _said_nothing_yet() -> None:
    log._said.clear()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "sources"


def sources_in(root: Path) -> list[Path]:
    return [path for path in root.glob("??/*") if path.name != "__pycache__"]


def size_of(root: Path) -> int:
    return sum(path.lstat().st_size for path in sources_in(root))


def program(n: int, size: int = 1000) -> str:
    text = f"N = {n}\n"
    return text + "#" * (size - len(text))


def write_in_child(fork: Fork, root: Path, numbers: range, max_size: int) -> dict[str, int]:
    """By a process that has ended when this returns: nothing it wrote is in use."""

    def work() -> dict[str, int]:
        cache = SourceCache(root, max_size=max_size)
        for n in numbers:
            assert Path(cache.path_for(program(n), f"k{n}")).read_text() == program(n)
        return cache.stats()

    found: dict[str, int] = fork(work).result()
    return found


def test_the_cap_holds_over_all_processes_and_the_oldest_goes_first(root: Path, fork: Fork) -> None:
    for start in range(0, 30, 3):
        write_in_child(fork, root, range(start, start + 3), max_size=10_000)
        assert size_of(root) <= 10_000
    kept = sorted(int(path.name[1:].partition("_")[0]) for path in sources_in(root))
    assert kept == list(range(30 - len(kept), 30)) and len(kept) >= 8
    # Using one again makes it young.
    oldest = kept[0]
    write_in_child(fork, root, range(oldest, oldest + 1), max_size=10_000)
    write_in_child(fork, root, range(100, 104), max_size=10_000)
    names = {path.name.partition("_")[0] for path in sources_in(root)}
    assert f"k{oldest}" in names and f"k{kept[1]}" not in names


def test_what_a_living_process_uses_is_never_evicted(root: Path, fork: Fork) -> None:
    ready, done = os.pipe(), os.pipe()

    def hold() -> str:
        path = SourceCache(root, max_size=10_000).path_for(SOURCE, "held")
        os.write(ready[1], path.encode())
        os.read(done[0], 1)
        return Path(path).read_text()

    child = fork(hold)
    path = Path(os.read(ready[0], 4096).decode())
    for start in range(0, 40, 8):
        write_in_child(fork, root, range(start, start + 8), max_size=10_000)
        assert path.read_text() == SOURCE
    assert size_of(root) <= 10_000
    os.write(done[1], b"x")
    assert child.result() == SOURCE
    write_in_child(fork, root, range(50, 60), max_size=10_000)
    assert not path.exists(), "kept for a process that has ended"


def test_a_killed_process_holds_nothing(root: Path, fork: Fork) -> None:
    def hold() -> None:
        SourceCache(root, max_size=10_000).path_for(SOURCE, "held")
        time.sleep(600)

    child = fork(hold)
    while not sources_in(root):
        time.sleep(0.01)
    child.send(signal.SIGKILL)
    child.wait()
    for start in (0, 10, 20):
        write_in_child(fork, root, range(start, start + 10), max_size=10_000)
    assert not [path for path in sources_in(root) if path.name.startswith("held")]
    assert len(list((root / "leases").iterdir())) == 1, "the leases of ended processes pile up"  # the last one's


@pytest.mark.parametrize("daemon", [False, True], ids=["child", "daemon"])
def test_a_forked_child_goes_on_using_what_its_parent_was_given(
    root: Path, tmp_path: Path, fork: Fork, daemon: bool
) -> None:
    """The parent has ended. A child needs to do nothing; a daemon, which closes all files, asks once more."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        "from hotstart.compilers.sources import SourceCache\n"
        "root, ready, end, daemon = sys.argv[1:]\n"
        "path = SourceCache(root, max_size=10_000).path_for('held = 1\\n', 'held')\n"
        "if os.fork() == 0:\n"
        "    os.closerange(0, 256 if daemon == 'True' else 3)\n"
        "    if daemon == 'True':\n"
        "        os.open(ready + '.first', os.O_RDWR | os.O_CREAT)\n"
        "        SourceCache(root, max_size=10_000).path_for('own = 1\\n', 'own')\n"
        "    os.close(os.open(ready, os.O_WRONLY | os.O_CREAT))\n"
        "    for _ in range(6000):\n"
        "        if os.path.exists(end):\n"
        "            break\n"
        "        time.sleep(0.01)\n"
        "    os._exit(0)\n"
        "print(path)\n"
    )
    ready, end = tmp_path / "ready", tmp_path / "end"
    command = [sys.executable, str(script), str(root), str(ready), str(end), str(daemon)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        path = Path(done.stdout.strip())
        wait_for(ready.exists)
        for start in (0, 20):
            write_in_child(fork, root, range(start, start + 20), max_size=10_000)
            assert path.exists(), "evicted under a child of the process that imported it"
    finally:
        end.touch()

    def gone() -> bool:
        SourceCache(root, max_size=10_000).clear()
        return not path.exists()

    wait_for(gone)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.01)


def test_a_lease_writes_into_no_other_file(tmp_path: Path) -> None:
    """The descriptor was closed by somebody, and its number now means another file."""
    lease = leases.Lease(str(tmp_path / "leases"))
    lease.add("a" * 32)
    other = tmp_path / "other"
    fd = os.open(other, os.O_RDWR | os.O_CREAT)
    os.dup2(fd, lease._fd)
    lease.add("b" * 32)
    assert other.read_bytes() == b""
    assert leases.leased(str(tmp_path / "leases"), Counters()) == {"a" * 32, "b" * 32}
    lease.retire()
    os.close(fd)


def test_a_line_that_was_torn_by_a_full_disk_spoils_no_other(tmp_path: Path) -> None:
    lease = leases.Lease(str(tmp_path / "leases"))
    lease.add("a" * 32)
    with FailingIO(errno.ENOSPC, at=1, torn=True, only=("writev",)), pytest.raises(OSError, match="No space"):
        lease.add("b" * 32)
    lease.add("c" * 32)
    found = leases.leased(str(tmp_path / "leases"), Counters())
    assert found is not None and {"a" * 32, "c" * 32} <= found
    lease.retire()
    assert list((tmp_path / "leases").iterdir()) == []


def test_leases_of_the_dead_are_removed_when_there_are_many(tmp_path: Path) -> None:
    directory = tmp_path / "leases"
    directory.mkdir()
    for n in range(100):
        (directory / f"dead{n}").write_text("a" * 32 + "\n")
    lease = leases.Lease(str(directory))
    lease.add("b" * 32)
    assert len(list(directory.iterdir())) == 1
    lease.retire()


def test_adding_a_file_waits_for_its_turn_but_not_for_ever(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SourceCache(root)
    cache.path_for(SOURCE, "first")
    holder = os.open(root / "lock", os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(cache.path_for(SOURCE, "second")))
    thread.start()
    thread.join(0.2)
    assert found == [] and len(sources_in(root)) == 1, "did not wait"
    assert Path(cache.path_for(SOURCE, "first")).exists()  # ours already: needs no turn
    fcntl.flock(holder, fcntl.LOCK_UN)
    thread.join(60)
    assert found[0].startswith(str(root))
    fcntl.flock(holder, fcntl.LOCK_EX)
    monkeypatch.setattr(sources, "_LOCK_WAIT", 0.05)
    assert cache.path_for(SOURCE, "third").startswith(str(root))
    assert cache.stats()["error.lock.EAGAIN"] == 1
    os.close(holder)


def test_over_the_budget_with_everything_in_use_the_budget_holds(root: Path) -> None:
    cache = SourceCache(root, max_size=3000)
    paths = [cache.path_for(program(n), "k") for n in range(6)]
    assert [path.startswith(str(root)) for path in paths] == [True] * 3 + [False] * 3
    assert all(Path(path).read_text() == program(n) for n, path in enumerate(paths))
    assert [cache.path_for(program(n), "k") for n in range(6)] == paths
    assert size_of(root) == 3000
    stats = cache.stats()
    assert (stats["diverted"], stats["evicted"]) == (6, 0) and stats["refused.full"] == 6


def test_one_that_is_larger_than_the_cap_is_not_admitted_by_emptying_the_cache(root: Path, fork: Fork) -> None:
    write_in_child(fork, root, range(3), max_size=10_000)
    cache = SourceCache(root, max_size=10_000)
    path = cache.path_for(program(1, 20_000), "large")
    assert Path(path).read_text() == program(1, 20_000) and len(sources_in(root)) == 3
    assert cache.stats()["refused.oversize"] == 1


def test_lost_accounts_are_counted_again(root: Path, fork: Fork) -> None:
    write_in_child(fork, root, range(9), max_size=10_000)
    for content in (b"", b"nonsense", b"-5\n", b"0\n"):
        (root / "lock").write_bytes(content)
        write_in_child(fork, root, range(9, 20), max_size=10_000)
        assert size_of(root) <= 11_000  # an account of 0 is believed until it says that the cache is full
    (root / "lock").unlink()
    write_in_child(fork, root, range(30, 40), max_size=10_000)
    assert size_of(root) <= 10_000


def test_clear_leaves_what_is_in_use(root: Path, fork: Fork) -> None:
    write_in_child(fork, root, range(5), max_size=10_000)
    cache = SourceCache(root, max_size=10_000)
    mine = cache.path_for(SOURCE, "mine")
    assert cache.clear() == 5
    assert [str(path) for path in sources_in(root)] == [mine]


def test_what_is_there_is_used_even_when_nobody_can_be_told(root: Path, fork: Fork) -> None:
    path = fork(lambda: SourceCache(root).path_for(SOURCE, "kernel")).result()
    cache = SourceCache(root)
    with FailingIO(errno.EROFS, at=1, onwards=True, only=("writev", "write", "mkdir", "rename", "utime")):
        assert cache.path_for(SOURCE, "kernel") == path
    stats = cache.stats()
    assert (stats["hit"], stats["unleased"], stats["diverted"], stats["error.touch.EROFS"]) == (1, 1, 0, 1)


# -- when the disk does not play along --------------------------------------------------------


def test_a_read_only_directory_serves_what_it_has(root: Path, capfd: pytest.CaptureFixture[str], fork: Fork) -> None:
    known = fork(lambda: SourceCache(root).path_for(SOURCE, "kernel")).result()
    before = sorted(root.rglob("*"))
    cache = SourceCache(root, read_only=True)
    assert cache.path_for(SOURCE, "kernel") == known
    for n in range(3):
        path = cache.path_for(program(n), "new")
        assert Path(path).read_text() == program(n) and not path.startswith(str(root))
    Path(known).write_text(SOURCE.replace("1", "2"))
    assert cache.path_for(SOURCE, "kernel") != known
    assert sorted(root.rglob("*")) == before
    assert capfd.readouterr().err.count("private temporary directory") == 1
    stats = cache.stats()
    assert (stats["hit"], stats["diverted"], stats["written"]) == (1, 4, 0)


@pytest.mark.parametrize("root", ["/sys/nowhere/sources", "/dev/null/sources"])
def test_a_place_where_nothing_can_be_made_is_gone_around(root: str) -> None:
    try:
        cache = SourceCache(root)
    except StoreError as error:
        assert "file" in str(error)  # a part of the path is one: that is for the caller to put right
        return
    module = cache.load(SOURCE, "elsewhere")
    assert module.kernel(1) == 2 and inspect.getsource(module.kernel).startswith("def kernel")


def test_a_file_that_cannot_grow_is_gone_around(root: Path, fork: Fork) -> None:
    """A real refusal of the kernel's: no file of this process may have more than 500 bytes."""
    import resource

    def work() -> list[Any]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        cache = SourceCache(root)
        small = cache.path_for("x = 1\n", "small")
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
        try:
            cache.path_for(program(1), "large")
            refused = False
        except StoreError as error:
            refused = "not even to a temporary directory" in str(error)
        value = cache.load(program(7), "large").N
        return [small.startswith(str(root)), refused, value, cache.path_for("x = 1\n", "small") == small]

    assert fork(work).result() == [True, True, 7, True]
    assert list(root.rglob("tmp/*")) == [] and len(sources_in(root)) == 1


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_whatever_fails_the_file_handed_out_is_the_source(tmp_path: Path, error: int) -> None:
    def work(root: Path) -> None:
        cache = SourceCache(root, max_size=4000)
        for n in range(3):
            path = cache.path_for(program(n), "k")
            assert Path(path).read_text() == program(n)

    with FailingIO() as io:
        work(tmp_path / "counted")
    for at in range(1, io.calls + 1):
        with FailingIO(error, at=at):
            work(tmp_path / f"once{at}")
    for at in range(1, io.calls + 1, 5):
        with FailingIO(error, at=at, onwards=True):
            work(tmp_path / f"onwards{at}")


def test_killed_at_any_call_the_directory_still_works(tmp_path: Path, fork: Fork) -> None:
    def work(root: Path) -> None:
        cache = SourceCache(root, max_size=2500)
        for n in range(2):
            cache.path_for(program(n), "k")

    with FailingIO() as io:
        fork_free = tmp_path / "counted"
        work(fork_free)
    for at in range(1, io.calls + 1):
        root = tmp_path / f"killed{at}"

        def killed(root: Path = root, at: int = at) -> None:
            with KillingIO(at):
                work(root)

        fork(killed).wait()
        write_in_child(fork, root, range(4), max_size=2500)
        for path in sources_in(root):
            assert path.read_text().startswith("N = ") and path.stat().st_size == 1000, (at, io.log[at - 1])
        assert size_of(root) <= 2500


def test_processes_at_once_all_get_whole_files(root: Path, fork: Fork, scale: int) -> None:
    def work(seed: int) -> int:
        cache = SourceCache(root, max_size=20_000)
        for n in range(60 * scale):
            number = (n * (seed * 2 + 1)) % 40
            path = cache.path_for(program(number), "k")
            assert Path(path).read_text() == program(number)
        return cache.stats()["replaced"]

    assert [child.result() for child in [fork(work, seed) for seed in range(5)]] == [0] * 5
    assert size_of(root) <= 20_000


def test_the_private_directory_goes_with_its_process_and_with_no_other(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "from hotstart.compilers.sources import SourceCache\n"
        "cache = SourceCache(sys.argv[1], max_size=0)\n"
        "path = cache.path_for('x = 1\\n', 'k')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    assert cache.path_for('x = 1\\n', 'k') != path\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert open(path).read() == 'x = 1\\n'\n"
        "assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700\n"
        "print(os.path.dirname(path))\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(script), str(tmp_path / "sources")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("hotstart-")] == []
    assert private._directories.keys() <= {os.getpid()}


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_what_a_process_leaves_that_ends_without_a_word_is_removed_by_the_next(tmp_path: Path, end: str) -> None:
    script = "\n".join(
        (
            "import os, sys",
            "from hotstart.compilers.private import private_directory",
            "print(private_directory(), flush=True)",
            "if sys.argv[1] == 'wait': sys.stdin.read()",
            f"if sys.argv[1] == 'leave': {end}",
        )
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def start(how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, how]
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def place_of(process: subprocess.Popen[str]) -> Path:
        assert process.stdout is not None
        return Path(process.stdout.readline().strip())

    with start("leave") as dead, start("wait") as alive:
        left, used = place_of(dead), place_of(alive)
        dead.wait()
        with start("end") as soon:
            place_of(soon)
        assert left.is_dir(), "it is too young to say that nobody is about to lock it"
        for path in (left, used):
            os.utime(path, (0, 0))
        with start("end") as later:
            place_of(later)
        assert not left.exists()
        assert used.is_dir(), "its process is alive"
        alive.communicate()
    assert list(tmp_path.glob("hotstart-*")) == []


def test_it_lives_under_the_configured_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTSTART_HOME", str(tmp_path / "home"))
    assert SourceCache().path_for(SOURCE, "kernel").startswith(str(tmp_path / "home" / "sources"))
    monkeypatch.setenv("HOTSTART_READ_ONLY", "1")
    monkeypatch.setenv("HOTSTART_HOME", str(tmp_path / "other"))
    assert Path(SourceCache().path_for(SOURCE, "kernel")).read_text() == SOURCE
    assert not (tmp_path / "other").exists()

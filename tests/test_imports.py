"""Keeps the way to a hit short: the modules a fresh process imports, and the system calls the store makes.

Both are counted, not timed. A new import or a new call on these paths fails here
and has to be argued for; what takes a millisecond is paid in every user's start-up.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import blake3
import pytest
import xxhash

import hotstart
from hotstart.store import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: ``import hotstart`` alone: the package, and nothing else.
IMPORT = {"__future__", "hotstart"}

#: Built into the interpreter or loaded by ``site`` in any case.
INTERPRETER = {
    *("_abc", "_codecs", "_collections_abc", "_io", "_signal", "_stat", "_thread", "_weakref", "abc", "codecs"),
    *("atexit", "errno", "genericpath", "io", "itertools", "os", "os.path", "posix", "posixpath", "stat", "time"),
}

#: What is imported on the way to a first hit, from the standard library and from the two hash packages.
FIRST_HIT = {
    *("_struct", "struct", "fcntl", "heapq", "_heapq"),
    *("_collections", "collections", "_operator", "operator", "keyword", "reprlib", "types"),
    *("_weakrefset", "weakref"),
    *("blake3", "blake3.blake3", "xxhash", "xxhash._xxhash", "xxhash.version"),
}

#: The parts of hotstart that a hit needs, and those they bring along.
FIRST_HIT_OURS = {
    *("hotstart", "hotstart.cache", "hotstart.drafting", "hotstart.errors", "hotstart.lifetime", "hotstart.log"),
    *("hotstart.keys", "hotstart.keys.digest", "hotstart.keys.key"),
    *("hotstart.store", "hotstart.store.counters", "hotstart.store.entry", "hotstart.store.files"),
    *("hotstart.store.local", "hotstart.store.memory", "hotstart.store.sizes"),
    *("hotstart.store.content", "hotstart.store.eviction", "hotstart.store.gc", "hotstart.store.index"),
    *("hotstart.store.ledger", "hotstart.store.naming", "hotstart.store.pins", "hotstart.store.upkeep"),
}

#: Each of these alone costs more than a hit; named so that a failure says what is meant.
HEAVY = {
    *("sqlite3", "json", "dataclasses", "typing", "logging", "pathlib", "tempfile", "asyncio", "subprocess"),
    *("inspect", "re", "enum", "functools", "contextlib", "threading", "random", "shutil", "hashlib", "tomllib"),
    *("importlib.metadata", "importlib.util", "concurrent.futures", "platform", "uuid", "pickle", "datetime"),
}


def imported_by(program: str) -> set[str]:
    """Modules that ``program`` adds to those of a bare interpreter.

    Without ``site``, whose ``.pth`` files import things that would hide ours.
    """
    roots = {str(Path(module.__file__ or "").parent.parent) for module in (hotstart, blake3, xxhash)}
    # ``before`` holds nothing but what the interpreter needs to run a line of code.
    code = (
        f"import sys; sys.path += {sorted(roots)!r}; before = set(sys.modules)\n{program}\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.fixture
def key() -> hotstart.Key:
    return hotstart.Key("nvrtc", source="__global__ void k() {}", arch="sm_90")


FIRST_HIT_PROGRAM = """
import hotstart
cache = hotstart.Cache({path!r})
entry = cache.get(hotstart.Key("nvrtc", source="__global__ void k() {{}}", arch="sm_90"))
if entry is None or entry["cubin"] != b"code" or entry.tier != "disk":
    raise SystemExit("not a hit")
"""


def test_importing_the_package_imports_nothing_else() -> None:
    assert imported_by("import hotstart") <= IMPORT


def test_a_first_hit_imports_only_what_is_listed(tmp_path: Path, key: hotstart.Key) -> None:
    with hotstart.Cache(tmp_path / "store") as cache:
        assert cache.put(key, {"cubin": b"code"})
    found = imported_by(FIRST_HIT_PROGRAM.format(path=str(tmp_path / "store")))
    assert found & HEAVY == set()
    ours = {name for name in found if name.partition(".")[0] == "hotstart"}
    assert ours <= FIRST_HIT_OURS
    assert found - ours <= IMPORT | INTERPRETER | FIRST_HIT


def test_a_miss_imports_no_more_than_a_hit(tmp_path: Path, key: hotstart.Key) -> None:
    with hotstart.Cache(tmp_path / "store") as cache:
        assert cache.put(key, {"cubin": b"code"})
    hit = FIRST_HIT_PROGRAM.format(path=str(tmp_path / "store"))
    miss = 'assert cache.get(hotstart.Key("nvrtc", source="other")) is None'
    assert imported_by(f"{hit}\n{miss}") == imported_by(hit)


#: Every system call of the store goes through ``hotstart.store.files`` under its own name.
CALLS = sorted(
    name
    for name, value in vars(files).items()
    if getattr(value, "__module__", "") in ("posix", "fcntl") and not isinstance(value, type)
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each call of ``hotstart.store.files`` is made from now on; the calls themselves go through."""
    counted: dict[str, int] = {}

    def counting(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted_call(*args: object, **options: object) -> object:
            counted[name] = counted.get(name, 0) + 1
            return call(*args, **options)

        return counted_call

    for name in CALLS:
        monkeypatch.setattr(files, name, counting(name, getattr(files, name)))
    return counted


@pytest.fixture
def cache(tmp_path: Path) -> hotstart.Cache:
    """Disk alone, with one entry in it, so that what happens once per process is over."""
    cache = hotstart.Cache(tmp_path / "store", memory=0)
    assert cache.put(hotstart.Key("warm", up=1), {"cubin": b"code"})
    return cache


def test_the_counted_calls_are_those_of_the_seam() -> None:
    assert {"open", "close", "pread", "pwrite", "writev", "fstat", "stat", "rename", "unlink", "utime", "flock"} <= {
        *CALLS
    }


def test_a_hit_is_one_open_two_reads_one_touch(
    cache: hotstart.Cache, key: hotstart.Key, request: pytest.FixtureRequest
) -> None:
    assert cache.put(key, {"cubin": bytes(50_000)})
    calls = request.getfixturevalue("calls")
    entry = cache.get(key)
    assert entry is not None
    assert len(entry["cubin"]) == 50_000
    assert calls == {"open": 1, "pread": 2, "utime": 1, "close": 1}


def test_a_miss_is_one_open(cache: hotstart.Cache, key: hotstart.Key, request: pytest.FixtureRequest) -> None:
    calls = request.getfixturevalue("calls")
    assert cache.get(key) is None
    assert calls == {"open": 1}


def test_a_hit_in_memory_makes_no_call(tmp_path: Path, key: hotstart.Key, request: pytest.FixtureRequest) -> None:
    cache = hotstart.Cache(tmp_path / "store")
    assert cache.put(key, {"cubin": b"code"})
    calls = request.getfixturevalue("calls")
    entry = cache.get(key)
    assert entry is not None
    assert entry.tier == "memory"
    assert calls == {}


def test_a_put_stays_within_its_calls(cache: hotstart.Cache, request: pytest.FixtureRequest) -> None:
    """The file: create, write, close, look, name. The ledger: lock, look, record, head, unlock.

    At most: doing with fewer is welcome, and then the number here goes down.
    """
    warm = hotstart.Key("warm", up=1)
    # In a directory that exists: making one is paid 256 times in the life of a store.
    near = next(key for n in range(100_000) if (key := hotstart.Key("near", n=n)).digest[:2] == warm.digest[:2])
    calls = request.getfixturevalue("calls")
    assert cache.put(near, {"cubin": bytes(50_000)})
    of_the_file = {"open": 1, "writev": 1, "close": 1, "access": 1, "rename": 1}
    of_the_ledger = {"flock": 2, "fstat": 1, "pread": 1, "pwrite": 2}
    allowed = of_the_file | of_the_ledger
    assert {name: count for name, count in calls.items() if count > allowed.get(name, 0)} == {}


def test_a_put_of_a_small_entry_evicts_nothing_and_opens_no_index(
    cache: hotstart.Cache, key: hotstart.Key, tmp_path: Path
) -> None:
    assert cache.put(key, {"cubin": b"code"})
    assert not (tmp_path / "store" / "index.sqlite").exists()


def test_a_hit_makes_no_call_around_the_seam(tmp_path: Path, key: hotstart.Key) -> None:
    """What ``files`` does not see, the interpreter's audit hook does: opens and touches, however they are made."""
    with hotstart.Cache(tmp_path / "store") as cache:
        assert cache.put(key, {"cubin": b"code"})
    program = FIRST_HIT_PROGRAM.format(path=str(tmp_path / "store")) + (
        "import sys\n"
        "key, seen = hotstart.Key('nvrtc', source='__global__ void k() {}', arch='sm_90'), []\n"
        f"cache = hotstart.Cache({str(tmp_path / 'store')!r}, memory=0)\n"
        "sys.addaudithook(lambda event, _: seen.append(event))\n"
        "entry = cache.get(key)\n"
        "found = list(seen)\n"
        "assert entry is not None\n"
        "assert found == ['open', 'os.utime'], found\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

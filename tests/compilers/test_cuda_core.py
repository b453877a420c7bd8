"""cuda.core's program cache contract on our stores, and the holes of its own caches closed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hotstart

core = pytest.importorskip("cuda.core", reason="needs cuda-core, cuda-bindings and nvidia-cuda-nvrtc")
from cuda.core import ObjectCode, Program, ProgramOptions  # noqa: E402
from cuda.core.utils import ProgramCacheResource  # noqa: E402
from cuda.core.utils import make_program_cache_key as their_key  # noqa: E402

from hotstart.compilers import cuda_core_keys  # noqa: E402
from hotstart.compilers.cuda_core import (  # noqa: E402
    FileProgramCache,
    ProgramCache,
    SQLiteProgramCache,
    make_program_cache_key,
)

SOURCE = 'extern "C" __global__ void k(float* a) { a[0] = a[0] / 3.f; }'

Make = Callable[..., Any]


@pytest.fixture(params=["shared", "files", "sqlite"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def shared(max_size_bytes: int | None = None) -> ProgramCache:
        return ProgramCache(hotstart.Cache(tmp_path / "shared", memory=0))

    def files(max_size_bytes: int | None = None) -> FileProgramCache:
        return FileProgramCache(tmp_path / "files", max_size_bytes=max_size_bytes)

    def sqlite(max_size_bytes: int | None = None) -> SQLiteProgramCache:
        return SQLiteProgramCache(tmp_path / "programs.db", max_size_bytes=max_size_bytes)

    return {"shared": shared, "files": files, "sqlite": sqlite}[request.param]


def program(**options: Any) -> Any:
    return Program(SOURCE, "c++", options=ProgramOptions(arch="sm_90", **options))


def test_program_compile_hits_and_gives_the_same_code(make: Make) -> None:
    with make() as cache:
        assert isinstance(cache, ProgramCacheResource)
        first = program().compile("cubin", cache=cache)
        assert len(cache) == 1
    with make() as cache:
        second = program().compile("cubin", cache=cache)
        assert len(cache) == 1
        assert bytes(first.code) == bytes(second.code) == bytes(program().compile("cubin").code)
        program(fma=False).compile("cubin", cache=cache)
        program().compile("ltoir", cache=cache)
        assert len(cache) == 3


def test_bytes_and_str_keys_alias(make: Make) -> None:
    with make() as cache:
        cache["k"] = b"1"
        assert cache[b"k"] == cache["k"] == b"1"
        assert len(cache) == 1
        del cache[b"k"]
        assert cache.get("k") is None
        assert cache.get("k", b"none") == b"none"


@pytest.mark.parametrize("value", [b"", b"abc", bytearray(b"abc"), memoryview(b"abc"), os.urandom(400_000)])
def test_bytes_like_values_come_back_as_bytes(make: Make, value: Any) -> None:
    with make() as cache:
        cache["k"] = value
        assert type(cache["k"]) is bytes
        assert cache["k"] == bytes(value)


def test_object_code_is_stored_by_content(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "k.cubin"
    path.write_bytes(b"\x7fELF one")
    with make() as cache:
        cache["path"] = ObjectCode.from_cubin(str(path))
        path.write_bytes(b"\x7fELF two")
        assert cache["path"] == b"\x7fELF one"
        cache["bytes"] = ObjectCode.from_cubin(b"\x7fELF three")
        assert cache["bytes"] == b"\x7fELF three"
        path.unlink()
        with pytest.raises(FileNotFoundError, match=str(path)):
            cache["gone"] = ObjectCode.from_cubin(str(path))


@pytest.mark.parametrize("key", [1, None, 1.5, ("k",)])
def test_other_keys_and_values_are_refused(make: Make, key: Any) -> None:
    with make() as cache:
        with pytest.raises(TypeError, match="keys must be bytes or str"):
            cache[key]
        with pytest.raises(TypeError, match="keys must be bytes or str"):
            cache[key] = b""
        with pytest.raises(TypeError, match="keys must be bytes or str"):
            del cache[key]
        with pytest.raises(TypeError, match="bytes-like or ObjectCode"):
            cache["k"] = "text"


def test_absent_keys_raise_key_error_with_the_key(make: Make) -> None:
    with make() as cache:
        for missing in ("absent", b"absent"):
            with pytest.raises(KeyError) as caught:
                cache[missing]
            assert caught.value.args == (missing,)
            with pytest.raises(KeyError):
                del cache[missing]


def test_update_and_clear(make: Make) -> None:
    with make() as cache:
        cache.update({"a": b"1", b"b": b"2"})
        cache.update([("c", b"3"), ("a", b"4")])
        assert len(cache) == 3
        assert [cache[name] for name in "abc"] == [b"4", b"2", b"3"]
        cache.clear()
        assert len(cache) == 0
        assert cache.get("a") is None


@pytest.mark.parametrize("size", [0, -1, 1.5, "10", True])
def test_caps_that_make_no_sense_are_refused(tmp_path: Path, size: Any) -> None:
    for cls in (FileProgramCache, SQLiteProgramCache):
        with pytest.raises(ValueError, match="max_size_bytes"):
            cls(tmp_path / "x", max_size_bytes=size)


@pytest.mark.parametrize("cls", [FileProgramCache, SQLiteProgramCache])
def test_a_cap_of_a_few_kilobytes_means_what_it_says(tmp_path: Path, cls: Any) -> None:
    with cls(tmp_path / "c", max_size_bytes=3000) as cache:
        for n in range(10):
            cache[f"k{n}"] = bytes(1000)
            assert len(cache) == min(n + 1, 3)
        assert [n for n in range(10) if cache.get(f"k{n}") is not None] == [7, 8, 9]
        assert cache["k7"] == bytes(1000)  # a use: k8 goes next
        cache["new"] = bytes(1000)
        assert cache.get("k8") is None
        assert cache.get("k7") is not None
        cache["huge"] = bytes(3001)
        assert cache.get("huge") is None
        assert len(cache) == 3


def test_the_shared_cache_keeps_to_its_own_entries(tmp_path: Path) -> None:
    cache = hotstart.Cache(tmp_path / "s")
    other = hotstart.Key("triton", n=1)
    cache.put(other, {"x": b"1"})
    programs = ProgramCache(cache)
    programs["a"] = b"1"
    assert len(programs) == 1
    programs.clear()
    assert len(programs) == 0
    assert cache.get(other) is not None
    with pytest.raises(TypeError, match=r"hotstart\.Cache"):
        ProgramCache({})  # type: ignore[arg-type]


def test_a_damaged_entry_is_compiled_again(tmp_path: Path) -> None:
    good = bytes(program().compile("cubin").code)
    for damage in (lambda data: data[:100], lambda data: b"", lambda data: data[:-1] + bytes([data[-1] ^ 1])):
        with FileProgramCache(tmp_path / "f") as cache:
            program().compile("cubin", cache=cache)
            (path,) = (tmp_path / "f" / "entries").rglob("*/*")
            path.write_bytes(damage(path.read_bytes()))
            assert bytes(program().compile("cubin", cache=cache).code) == good
            assert bytes(program().compile("cubin", cache=cache).code) == good
            assert cache.cache.stats()["corrupt"] == 1
            cache.clear()


def test_a_damaged_row_is_compiled_again(tmp_path: Path) -> None:
    with SQLiteProgramCache(tmp_path / "p.db") as cache:
        cache["a"], cache["b"] = b"one", b"two"
        cache._db.execute("UPDATE programs SET data = ? WHERE used = 1", (b"oops",))
        assert cache.get("a") is None
        assert cache["b"] == b"two"
        assert cache.errors == 1


def test_a_store_that_breaks_never_aborts_a_compile(tmp_path: Path) -> None:
    from hotstart.testing import FailingIO

    expected = bytes(program().compile("cubin").code)
    with FileProgramCache(tmp_path / "f") as cache:
        for count in range(1, 25):
            with FailingIO(errno.ENOSPC, at=count, onwards=True):
                assert bytes(program().compile("cubin", cache=cache).code) == expected
    with SQLiteProgramCache(tmp_path / "p.db") as database:
        database._db.execute("DROP TABLE programs")
        assert bytes(program().compile("cubin", cache=database).code) == expected
        assert database.errors >= 2
        assert len(database) == 0


def test_sqlite_missing_is_said_only_when_it_is_needed(tmp_path: Path) -> None:
    check = f"""
import sys
sys.modules["sqlite3"] = None
from hotstart import StoreError
from hotstart.compilers.cuda_core import FileProgramCache, SQLiteProgramCache
try:
    SQLiteProgramCache({str(tmp_path / "p.db")!r})
except StoreError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert "needs sqlite3" in done.stdout
    (tmp_path / "text").write_text("this is not a database, but it is long enough to look at" * 20)
    with pytest.raises(hotstart.StoreError, match="no database"):
        SQLiteProgramCache(tmp_path / "text")


def test_paths_that_cannot_be_a_database_are_said_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "no" / "dir.db", tmp_path, tmp_path / "pipe"):
        with pytest.raises(hotstart.StoreError, match=str(path)):
            SQLiteProgramCache(path)


FULL_DISK = """
import resource, signal, sys
from cuda.core import Program, ProgramOptions
from hotstart.compilers.cuda_core import SQLiteProgramCache
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
room = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, room[1]))
cache = SQLiteProgramCache(sys.argv[1])
make = lambda: Program(sys.argv[2], "c++", options=ProgramOptions(arch="sm_90")).compile("cubin", cache=cache)
print(len(make().code), cache.errors, len(cache))
resource.setrlimit(resource.RLIMIT_FSIZE, room)
print(len(make().code), len(cache))
"""


def test_on_a_full_disk_there_is_a_cache_that_has_nothing(tmp_path: Path) -> None:
    """And when there is room again it has."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "p.db"), SOURCE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    full, room = (line.split() for line in done.stdout.splitlines())
    assert int(full[0]) == int(room[0]) > 0
    assert int(full[1]) > 0
    assert (full[2], room[1]) == ("0", "1")
    assert done.stderr.count("compiling without it") == 1


def test_threads_share_one_database(tmp_path: Path) -> None:
    with SQLiteProgramCache(tmp_path / "p.db", max_size_bytes=50_000) as cache:

        def work(seed: int) -> None:
            for step in range(100):
                name = f"k{(seed * 31 + step) % 40}"
                value = cache.get(name)
                assert value is None or value == name.encode() * 500
                cache[name] = name.encode() * 500

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert cache.errors == 0
        assert 0 < len(cache) <= 50


#: Where a header may lie that a source includes, and how it is named there: ``{here}`` is the working directory.
INCLUDES = {
    "in the working directory": ("value.h", "value.h"),
    "by its absolute path": ("../elsewhere/value.h", "{here}/../elsewhere/value.h"),
    "in a directory below": ("sub/value.h", "sub/value.h"),
    "in the directory above": ("../value.h", "../value.h"),
    "by a name that says nothing": ("value.def", "value.def"),
    "by a name without a dot": ("value", "value"),
}


@pytest.mark.parametrize("name", INCLUDES)
@pytest.mark.parametrize("nested", [False, True], ids=["included", "included by a header"])
def test_an_edited_header_counts_wherever_it_lies(make: Make, name: str, nested: bool) -> None:
    """cuda.core's own key does not see any of them, and its own caches serve the old code."""
    path, spelled = INCLUDES[name]
    spelled = spelled.format(here=os.getcwd())
    Path(path).parent.mkdir(exist_ok=True)
    Path("outer.h").write_text(f'#include "{spelled}"\n')
    source = f'#include "{"outer.h" if nested else spelled}"\nextern "C" __global__ void k(int* a) {{ a[0] = VALUE; }}'
    options = ProgramOptions(arch="sm_90")
    with make() as cache:
        for value in (1, 1234567, 1):
            Path(path).write_text(f"#define VALUE {value}\n")
            compiled = bytes(Program(source, "c++", options=options).compile("cubin", cache=cache).code)
            assert compiled == bytes(Program(source, "c++", options=options).compile("cubin").code)
        assert len(cache) == 2


def test_what_lies_in_the_working_directory_costs_a_hit_nothing(
    cache: hotstart.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a look at a thousand headers that nothing includes, nor a wait at a pipe."""
    programs = ProgramCache(cache)
    os.mkfifo("pipe.h")
    Path("unrelated.h").write_text("#define A 1\n")
    program().compile("cubin", cache=programs)

    def refuse(*_: object) -> None:
        raise AssertionError("the working directory is scanned")

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    program().compile("cubin", cache=programs)
    Path("unrelated.h").write_text("#define A 2\n")
    program().compile("cubin", cache=programs)
    monkeypatch.undo()
    assert len(programs) == 1


def test_a_header_edited_while_it_is_compiled_is_not_stored(make: Make) -> None:
    Path("value.h").write_text("#define VALUE 1\n")
    with make() as cache:
        key = make_program_cache_key(
            code='#include "value.h"\n' + SOURCE,
            code_type="c++",
            options=ProgramOptions(arch="sm_90"),
            target_type="cubin",
        )
        Path("value.h").write_text("#define VALUE 22\n")
        cache[key] = b"compiled from who knows which"
        assert len(cache) == 0


def test_a_program_that_cannot_have_a_key_is_compiled_each_time(
    make: Make, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotstart.log._said", set())
    source = 'extern "C" __global__ void k(const char** a) { a[0] = __TIME__; }'
    with make() as cache:
        for _ in range(2):
            Program(source, "c++", options=ProgramOptions(arch="sm_90")).compile("cubin", cache=cache)
        assert len(cache) == 0
        refused = None if isinstance(cache, SQLiteProgramCache) else cache.cache.stats()["refused"]
        assert (refused["uncacheable"] if refused else cache.uncacheable) == 4  # asked for and not stored, twice
    assert capfd.readouterr().err.count("compiled anew each time") == 1


def test_keys_of_others_stay_as_they_were(tmp_path: Path) -> None:
    """Our function in the place of cuda.core's gives the same bytes to every cache, and can be taken away."""
    from cuda.core import utils
    from cuda.core.utils import FileStreamProgramCache

    given: dict[str, Any] = {"code": SOURCE, "code_type": "c++", "target_type": "cubin"}
    given["options"] = ProgramOptions(arch="sm_90")
    FileProgramCache(tmp_path / "ours").close()
    assert utils.make_program_cache_key is not their_key
    assert utils.make_program_cache_key(**given) == their_key(**given)
    with pytest.raises(ValueError, match="include_path"):
        utils.make_program_cache_key(**{**given, "options": ProgramOptions(arch="sm_90", include_path="x")})
    with FileStreamProgramCache(tmp_path / "theirs") as cache:
        program().compile("cubin", cache=cache)
        assert cache[their_key(**given)]
    cuda_core_keys.step_back()
    assert utils.make_program_cache_key is their_key
    assert type(their_key(**given)) is bytes


def test_a_key_that_may_lack_headers_is_not_believed(
    make: Make, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As with a cuda.core that makes its keys somewhere else."""
    monkeypatch.setattr("hotstart.log._said", set())
    with make() as cache:
        made_by_hand = bytes(32)
        cache[made_by_hand] = b"1"
        assert cache[made_by_hand] == b"1"
        cuda_core_keys.step_back()
        Path("value.h").write_text("#define VALUE 1\n")
        source = '#include "value.h"\nextern "C" __global__ void k(int* a) { a[0] = VALUE; }'
        compiled = Program(source, "c++", options=ProgramOptions(arch="sm_90")).compile("cubin", cache=cache)
        assert bytes(compiled.code)
        assert len(cache) == 1
        assert cache.get(made_by_hand) is None
        assert "make_program_cache_key" in capfd.readouterr().err
        ours = make_program_cache_key(
            code=source, code_type="c++", options=ProgramOptions(arch="sm_90"), target_type="cubin"
        )
        cache[ours] = b"2"
        assert cache[ours] == b"2"


class TestKey:
    """``make_program_cache_key``: cuda.core's, completed."""

    @staticmethod
    def key(code: str = SOURCE, target: str = "cubin", **options: Any) -> bytes:
        name_expressions = options.pop("name_expressions", ())
        return make_program_cache_key(
            code=code,
            code_type="c++",
            options=ProgramOptions(arch=options.pop("arch", "sm_90"), **options),
            target_type=target,
            name_expressions=name_expressions,
        )

    def test_the_fields_of_theirs_count(self) -> None:
        keys = [
            self.key(),
            self.key(SOURCE + " "),
            self.key(target="ptx"),
            self.key(arch="sm_80"),
            self.key(fma=False),
            self.key(name="other"),
            self.key(name_expressions=["k"]),
            self.key(name_expressions=[b"k"]),
        ]
        assert len(set(keys)) == len(keys)
        assert self.key() == self.key()
        assert all(isinstance(key, bytes) and len(key) == 32 for key in keys)

    def test_the_patch_release_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from hotstart.keys import toolchain
        from hotstart.keys.toolchain.identity import Toolchain

        before = self.key()
        real = toolchain.nvrtc()
        other = Toolchain(real.name, real.version, tuple(digest[::-1] for digest in real.digests), real.watched)
        monkeypatch.setattr(toolchain, "nvrtc", lambda: other)
        assert self.key() != before
        plain = ProgramOptions(arch="sm_90")
        assert their_key(code=SOURCE, code_type="c++", options=plain, target_type="cubin") == their_key(
            code=SOURCE, code_type="c++", options=plain, target_type="cubin"
        )

    def test_headers_are_followed_where_theirs_refuses(self) -> None:
        source = '#include "value.h"\n' + SOURCE
        Path("inc").mkdir()
        keys = []
        for text in ("1", "2", "1"):
            Path("inc/value.h").write_text(text)
            keys.append(self.key(source, include_path="inc"))
        assert keys[0] == keys[2] != keys[1]
        Path("pre.h").write_text("#define A 1")
        first = self.key(pre_include="pre.h")
        Path("pre.h").write_text("#define A 2")
        assert self.key(pre_include="pre.h") != first

    @pytest.mark.parametrize("option", ["create_pch", "time", "fdevice_time_trace"])
    def test_side_effects_are_refused_as_there(self, option: str) -> None:
        with pytest.raises(ValueError, match=option.split("_")[-1]):
            self.key(**{option: "out"})

    def test_precompiled_headers_are_refused(self) -> None:
        with pytest.raises(ValueError, match="pch"):
            self.key(use_pch="x.pch")

    def test_the_time_of_day_has_no_key(self) -> None:
        with pytest.raises(hotstart.UncacheableError, match="time"):
            self.key("const char* t = __TIME__;")

    def test_ptx_and_nvvm_have_keys_of_their_own_compilers(self) -> None:
        options = ProgramOptions(arch="sm_90")
        ptx = make_program_cache_key(code=".version 8.8", code_type="ptx", options=options, target_type="cubin")
        assert ptx != make_program_cache_key(code=".version 8.7", code_type="ptx", options=options, target_type="cubin")

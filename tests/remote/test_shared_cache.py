"""``Cache`` with a remote: tiers in order, what is counted, what is imported when, bad settings, offline, exit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hotstart
from hotstart import log
from hotstart.config import load
from hotstart.store.flight import Pending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.remote.machines import Team, key_of, make_entry, same
else:
    from machines import Team, key_of, make_entry, same


@pytest.fixture
def machine(team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., hotstart.Cache]:
    """A machine: a home and a store of its own."""
    monkeypatch.delenv("HOTSTART_HOME", raising=False)

    def make(name: str, **options: Any) -> hotstart.Cache:
        options = {
            "remote": team.url,
            "trust": str(team.directory / "trusted.keys"),
            "signing_key": str(team.directory / "trusted.key"),
        } | options
        return hotstart.Cache(tmp_path / name / "store", **options)

    return make


def test_the_second_machine_finds_what_the_first_compiled(machine: Callable[..., hotstart.Cache]) -> None:
    with machine("one") as one:
        for number in range(5):
            made = one.get_or_compile(key_of(number), lambda n=number: {"cubin": b"%d" % n})  # type: ignore[misc]
            assert made.tier == "compiled"
    two = machine("two")

    def never() -> dict[str, bytes]:
        raise AssertionError("compiled again")

    for number in range(5):
        entry = two.get_or_compile(key_of(number), never)
        assert (entry["cubin"], entry.tier) == (b"%d" % number, "remote")
    stats = two.stats()
    assert (stats["hits"]["remote"], stats["compiled"], stats["misses"], stats["remote"]["hits"]) == (5, 0, 0, 5)
    # From now on without the remote: memory, then disk.
    assert [two.get_or_compile(key_of(n), never).tier for n in range(5)] == ["memory"] * 5
    two.close()
    alone = machine("two", remote="", memory=0)
    found = [alone.get(key_of(number)) for number in range(5)]
    assert [entry.tier for entry in found if entry is not None] == ["disk"] * 5
    assert "remote" not in alone.stats()


def test_a_put_is_published_and_a_read_only_machine_publishes_nothing(
    machine: Callable[..., hotstart.Cache], team: Team
) -> None:
    with machine("one", read_only=True) as one:
        assert not one.put(key_of(1), {"cubin": b"1"})
    with machine("two") as two:
        assert two.get(key_of(1)) is None
        assert two.put(key_of(1), {"cubin": b"2"})
    with machine("three") as three:
        entry = three.get(key_of(1))
        assert entry is not None and entry["cubin"] == b"2"
        assert entry.provenance["signer"] == team.trusted.id


def test_who_trusts_nobody_gets_nothing(machine: Callable[..., hotstart.Cache], tmp_path: Path) -> None:
    with machine("one") as one:
        assert one.put(key_of(1), {"cubin": b"1"})
    with machine("two", trust=str(tmp_path / "empty.keys")) as two:
        assert two.get(key_of(1)) is None
        assert two.stats()["remote"]["rejected.untrusted"] == 1


def test_a_local_hit_asks_nobody_and_imports_nothing(near: Team, tmp_path: Path) -> None:
    options = {"remote": "s3://bucket/prefix?endpoint=http://127.0.0.1:9", "trust": near.list.path}
    with hotstart.Cache(tmp_path / "store") as cache:
        assert cache.put(key_of(1), {"cubin": b"1"})
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import hotstart
key = hotstart.Key("test", name="kernel", number=1)
cache = hotstart.Cache({str(tmp_path / "store")!r}, **{options!r})
assert cache.get(key).tier == "disk"
cache.close()
print(*sorted(name for name in sys.modules if name.startswith(("hotstart.remote", "hotstart.trust"))))
print(*sorted({{"obstore", "redis", "cryptography", "urllib", "threading", "typing"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", _with_path(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hotstart.remote hotstart.remote.sharing\n\n"


def _with_path(program: str) -> str:
    import blake3
    import xxhash

    roots = {str(Path(module.__file__ or "").parent.parent) for module in (hotstart, blake3, xxhash)}
    return f"import sys; sys.path += {sorted(roots)!r}\n{program}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"remote": "s4://x"}, "it begins with"),
        ({"remote": "s3://"}, "names no bucket"),
        ({"scope": "../main"}, "a scope is"),
        ({"scope": ""}, "a scope is"),
    ],
)
def test_bad_settings_are_one_line_and_local_caching_goes_on(
    near: Team, tmp_path: Path, options: dict[str, str], said: str, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(log, "_said", set())
    cache = hotstart.Cache(tmp_path / "store", **{"remote": near.url, "trust": near.list.path, **options})  # type: ignore[arg-type]
    assert cache.get_or_compile(key_of(1), lambda: {"x": b"1"})["x"] == b"1"
    assert cache.get(key_of(1)) is not None
    err = capfd.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "case", ["readable key", "no key", "empty list", "broken list", "unreachable", "writable list"]
)
def test_bad_keys_and_lists_are_one_line_and_local_caching_goes_on(
    near: Team, tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_said", set())
    options = {"remote": near.url, "trust": near.list.path, "signing_key": str(near.directory / "trusted.key")}
    if case == "readable key":
        Path(options["signing_key"]).chmod(0o644)
    elif case == "no key":
        options["signing_key"] = str(tmp_path / "none")
    elif case == "empty list":
        options["trust"] = str(tmp_path / "none")
    elif case == "broken list":
        Path(options["trust"]).write_text("nonsense\n")
    elif case == "writable list":
        Path(options["trust"]).chmod(0o666)
    else:
        options["remote"] = "redis://:secret@127.0.0.1:9/0"
    with hotstart.Cache(tmp_path / "store", **options) as cache:  # type: ignore[arg-type]
        for number in range(5):
            assert cache.get_or_compile(key_of(number), lambda: {"x": b"1"})["x"] == b"1"
    err = capfd.readouterr().err
    assert 1 <= err.count("\n") <= 2, err
    assert "secret" not in err
    words = {"readable key": "chmod 600", "no key": "trust keygen", "empty list": "trusts no key",
             "broken list": "line 1", "unreachable": "cannot be reached", "writable list": "chmod 644"}  # fmt: skip
    assert words[case] in err


def test_without_cryptography_nothing_signed_is_used_and_local_caching_goes_on(
    near: Team, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also nothing is replaced: what cannot be checked may be good."""
    entry = make_entry(1)
    assert near.machine().publish(entry)
    monkeypatch.setattr(log, "_said", set())
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    options = {"remote": near.url, "trust": near.list.path, "signing_key": str(near.directory / "trusted.key")}
    with hotstart.Cache(tmp_path / "store", allow_unsigned=True, **options) as cache:  # type: ignore[arg-type]
        assert cache.get_or_compile(key_of(1), lambda: {"x": b"1"})["x"] == b"1"
        cache.close()
        said = cache.stats()["remote"]
    assert said["rejected.missing_extra"] >= 1
    assert "replaced" not in said
    err = capfd.readouterr().err
    assert 'pip install "hotstart[sign]"' in err
    assert err.count("\n") <= 2, err
    monkeypatch.delitem(sys.modules, "cryptography.hazmat.primitives.asymmetric")
    assert same(near.machine().read(entry.digest), entry)


@pytest.mark.parametrize("how", ["Process", "Pool"])
def test_a_worker_of_multiprocessing_that_ends_has_sent_everything(near: Team, tmp_path: Path, how: str) -> None:
    """Such a process ends without what is registered at exit."""
    program = f"""
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
import hotstart
context = multiprocessing.get_context("fork")
cache = hotstart.Cache({str(tmp_path / "store")!r}, remote={near.url!r}, trust={near.list.path!r},
                       signing_key={str(near.directory / "trusted.key")!r})

def work(first):
    for number in range(first, first + 20):
        cache.put(hotstart.Key("test", name="kernel", number=number), {{"cubin": bytes(1000)}})

if {how!r} == "Process":
    workers = [context.Process(target=work, args=(first,)) for first in (0, 20)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
else:
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        list(pool.map(work, (0, 20)))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert len(list(near.machine().remotes[0].list("v1/main/entries/"))) == 40


def test_what_a_project_may_say(near: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where to look; not whom to trust, nor where to send what is compiled here."""
    for name in list(os.environ):
        if name.startswith("HOTSTART_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    (tmp_path / "project" / "hotstart.toml").write_text(
        f'remote = "{near.url}"\nscope = "main"\ntrust = "evil.keys"\nallow_unsigned = true\nsigning_key = "x"\n'
    )
    config = load()
    assert (config["trust"], config["allow_unsigned"], config["signing_key"]) == ("", False, "")
    assert config.sharing()["remote"].endswith("read_only=1")
    monkeypatch.setenv("HOTSTART_REMOTE", near.url)
    assert load().sharing()["remote"] == near.url
    monkeypatch.setenv("HOTSTART_OFFLINE", "1")
    assert "remote" not in load().sharing()


def test_a_process_that_ends_has_sent_everything(near: Team, tmp_path: Path) -> None:
    program = f"""
import hotstart
cache = hotstart.Cache({str(tmp_path / "store")!r}, remote={near.url!r}, trust={near.list.path!r},
                       signing_key={str(near.directory / "trusted.key")!r})
for number in range(20):
    cache.put(hotstart.Key("test", name="kernel", number=number), {{"cubin": bytes(1000)}})
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert len(list(near.machine().remotes[0].list("v1/main/entries/"))) == 20


def test_a_forked_child_publishes_its_own(near: Team, tmp_path: Path, fork: Callable[..., Any]) -> None:
    options = {"remote": near.url, "trust": near.list.path, "signing_key": str(near.directory / "trusted.key")}
    cache = hotstart.Cache(tmp_path / "store", **options)  # type: ignore[arg-type]
    assert cache.put(key_of(0), {"x": b"0"})

    def child() -> str:
        assert cache.put(key_of(1), {"x": b"1"})
        cache.close()
        return json.dumps(cache.stats()["remote"]["puts"])

    assert fork(child).result() == "1"
    cache.close()
    assert len(list(near.machine().remotes[0].list("v1/main/entries/"))) == 2


def _begin_elsewhere(cache: hotstart.Cache) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(cache.begin(key_of(1), wait=60.0)))
    thread.start()
    return thread, found


def test_a_compile_that_ends_in_another_call_is_waited_for_by_other_hosts(
    machine: Callable[..., hotstart.Cache], hang_guard: None
) -> None:
    with machine("one") as one, machine("two") as two:
        pending = one.begin(key_of(1))
        assert isinstance(pending, Pending)
        thread, found = _begin_elsewhere(two)
        time.sleep(0.5)
        assert found == []
        assert pending.finish({"cubin": b"1"})
        thread.join()
        assert found[0]["cubin"] == b"1"


def test_one_that_is_abandoned_holds_nobody_up(machine: Callable[..., hotstart.Cache], hang_guard: None) -> None:
    with machine("one") as one, machine("two") as two:
        for cache in (one, two):
            assert cache.sharing is not None and cache.sharing.tier is not None
            cache.sharing.tier.leases.lease = 1.0
        pending = one.begin(key_of(1))
        assert isinstance(pending, Pending)
        thread, found = _begin_elsewhere(two)
        time.sleep(0.3)
        pending.abandon()
        del pending
        thread.join()
        assert isinstance(found.pop(), Pending)
        assert one.sharing is not None and one.sharing.tier is not None
        assert one.sharing.tier.leases._held == {}

"""HandleCache: one build per key, whoever asks; bounded; and nothing survives where it would not work."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotstart import Key, UncacheableError, UsageError
from hotstart.compilers import handles
from hotstart.compilers.handles import HandleCache
from hotstart.compilers.tokens import token_of
from hotstart.keys.digest import encode

PATIENCE = 20.0


class Handle:
    """A launcher, as far as a cache can tell."""


def together(*work: Callable[[], object]) -> list[Any]:
    """Run all at once; results or exceptions in order. Fails when one of them hangs."""
    results: list[Any] = [None] * len(work)

    def run(at: int) -> None:
        try:
            results[at] = work[at]()
        except BaseException as error:
            results[at] = error

    threads = [threading.Thread(target=run, args=(at,), daemon=True) for at in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "somebody waits for ever"
    return results


# -- one build per key ----------------------------------------------------------------


def test_threads_that_ask_at_once_get_the_one_handle_that_one_of_them_built() -> None:
    cache = HandleCache()
    start = threading.Barrier(12)
    built = []

    def build() -> Handle:
        time.sleep(0.05)
        built.append(Handle())
        return built[-1]

    def ask() -> object:
        start.wait()
        return cache.get_or_build(("kernel", 1), build)

    results = together(*[ask] * 12)
    assert len(built) == 1
    assert all(result is built[0] for result in results)
    stats = cache.stats()
    assert stats["built"] == 1 and stats["waited"] + stats["hits"] == 11
    assert (stats["failed"], stats["evicted"], stats["entries"]) == (0, 0, 1)


def test_an_exception_reaches_every_waiter_and_is_not_kept() -> None:
    cache = HandleCache()
    waiting = threading.Event()

    def fail() -> None:
        waiting.wait(PATIENCE)
        raise RuntimeError("ptxas fatal")

    def follow() -> object:
        while not cache._flying:
            time.sleep(0.001)
        threading.Timer(0.1, waiting.set).start()
        return cache.get_or_build("k", lambda: pytest.fail("built a second time"))

    results = together(lambda: cache.get_or_build("k", fail), follow, follow)
    assert [str(result) for result in results] == ["ptxas fatal"] * 3
    assert "k" not in cache and cache.stats()["failed"] == 1
    assert cache.get_or_build("k", lambda: "fine") == "fine"


def test_when_the_one_that_builds_is_interrupted_another_takes_over() -> None:
    cache = HandleCache()
    inside = threading.Event()

    def interrupted() -> None:
        inside.set()
        time.sleep(0.1)
        raise KeyboardInterrupt

    def follow() -> object:
        inside.wait(PATIENCE)
        return cache.get_or_build("k", lambda: "built by another")

    first, second = together(lambda: cache.get_or_build("k", interrupted), follow)
    assert isinstance(first, KeyboardInterrupt) and second == "built by another"


def test_a_build_that_asks_for_its_own_key_builds() -> None:
    cache = HandleCache()
    inner, outer = Handle(), Handle()

    def build() -> Handle:
        assert cache.get_or_build("k", lambda: inner) is inner
        return outer

    assert together(lambda: cache.get_or_build("k", build)) == [outer]
    assert cache.get("k") is outer


@pytest.mark.parametrize("caches", [1, 2])
def test_two_keys_in_opposite_orders_do_not_hang(caches: int) -> None:
    first, second = (HandleCache(), HandleCache()) if caches == 2 else [HandleCache()] * 2
    both_inside = threading.Barrier(2)

    def outer(mine: tuple[HandleCache, str], other: tuple[HandleCache, str]) -> object:
        def build() -> object:
            both_inside.wait(PATIENCE)
            return (mine[1], other[0].get_or_build(other[1], lambda: f"{other[1]} on its own"))

        return mine[0].get_or_build(mine[1], build)

    a, b = (first, "a"), (second, "b")
    results = together(lambda: outer(a, b), lambda: outer(b, a))
    assert not any(isinstance(result, BaseException) for result in results), results
    assert {result[0] for result in results} == {"a", "b"}


def test_waiting_inside_a_build_is_no_circle() -> None:
    """A thread that builds one key waits for another's key: only what leads back to itself is built twice."""
    cache = HandleCache()
    b_inside = threading.Event()
    builds = []

    def build_b() -> str:
        builds.append("b")
        b_inside.set()
        time.sleep(0.1)
        return "B"

    def build_a() -> str:
        builds.append("a")
        b_inside.wait(PATIENCE)
        return "A" + str(cache.get_or_build("b", build_b))

    results = together(lambda: cache.get_or_build("a", build_a), lambda: cache.get_or_build("b", build_b))
    assert results == ["AB", "B"] and sorted(builds) == ["a", "b"]


def test_what_landed_between_the_look_and_the_build_is_not_built_again() -> None:
    cache = HandleCache()
    cache.put("k", "landed")
    assert cache._build(token_of("k"), lambda: pytest.fail("built again")) == "landed"


def test_a_wait_that_is_over_is_no_part_of_a_circle() -> None:
    """A thread whose wait has ended but which does not run yet: whoever ended it may wait for that thread."""
    me, other = threading.get_ident(), -1
    landed, flying = handles._Flight(me), handles._Flight(other)
    handles._waiting[other] = landed
    try:
        assert not handles._may_wait(flying, me)
        landed.done.set()
        assert handles._may_wait(flying, me)
    finally:
        handles._waiting.clear()


def test_nobody_waits_longer_than_allowed_and_what_was_built_then_serves_the_others() -> None:
    cache = HandleCache(wait=0.1)
    release = threading.Event()
    hanging = threading.Thread(target=lambda: cache.get_or_build("k", lambda: release.wait(PATIENCE)), daemon=True)
    hanging.start()
    while not cache._flying:
        time.sleep(0.001)
    assert cache.get_or_build("k", lambda: "mine") == "mine"
    assert cache.get_or_build("k", lambda: pytest.fail("built a third time")) == "mine"
    release.set()
    hanging.join(PATIENCE)
    assert cache.get("k") == "mine"


def test_a_build_that_was_overtaken_by_clear_or_delete_is_not_kept() -> None:
    cache = HandleCache()

    def cleared() -> str:
        cache.clear()
        return "from before"

    def deleted() -> str:
        cache.delete("k")
        return "from before"

    for build in (cleared, deleted):
        assert cache.get_or_build("k", build) == "from before"
        assert "k" not in cache
    assert cache.get_or_build("k", lambda: "new") == "new"


# -- keys -------------------------------------------------------------------------------

NINE = [True, 1, 1.0, "1", b"1", (1,), [1], {1: 0}, {"1": 0}]


def test_what_python_calls_equal_is_not_confused() -> None:
    cache = HandleCache()
    values = [*NINE, 0, False, None, -0.0, 0.0, (), [], "", b""]
    handles = [cache.get_or_build(value, Handle) for value in values]
    assert len(set(map(id, handles))) == len(values) and cache.stats()["hits"] == 0
    assert all(cache.get(value) is handle for value, handle in zip(values, handles, strict=True))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, -0.0, 1.0, 2.0]) | st.sampled_from("01ab"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("ab") | st.integers(0, 1), inner, max_size=2)
    ),
    max_leaves=6,
)


@settings(max_examples=300)
@given(st.lists(PLAIN, min_size=2, max_size=8))
def test_two_keys_share_a_handle_exactly_when_their_values_are_the_same(keys: list[Any]) -> None:
    cache = HandleCache()
    handles = [cache.get_or_build(key, Handle) for key in keys]
    for one, first in zip(keys, handles, strict=True):
        for other, second in zip(keys, handles, strict=True):
            assert (first is second) == (encode(one) == encode(other))


def test_a_key_and_the_text_of_its_digest_are_two_keys() -> None:
    cache = HandleCache()
    key = Key("kernel", n=1)
    cache.put(key, "by key")
    assert cache.get(Key("kernel", n=1)) == "by key"
    assert cache.get(key.digest) is None


def test_what_has_no_form_is_refused_with_its_place() -> None:
    cache = HandleCache()
    with pytest.raises(UncacheableError) as caught:
        cache.get_or_build(("kernel", {"stream": object()}), Handle)
    assert caught.value.field == "[1]['stream']"


def test_functions_count_by_what_they_do_and_symbols_by_which_are_the_same() -> None:
    class Sym:
        pass

    class Tensor:
        dtype = "float16"

        def __init__(self, *shape: object, device: str = "cuda:0") -> None:
            self.shape = shape
            self.device = device

    cache = HandleCache()
    s, t = Sym(), Sym()
    exec_one: dict[str, Any] = {}
    exec_two: dict[str, Any] = {}
    exec("def f(x): return x + 1", exec_one)
    exec("def f(x): return x + 2", exec_two)
    keys = [
        (exec_one["f"], Tensor(s, s)),
        (exec_two["f"], Tensor(s, s)),
        (exec_one["f"], Tensor(s, t)),
        (exec_one["f"], Tensor(s, s, device="cuda:1")),
        (exec_one["f"], [Tensor(s), Tensor(s)]),
        (exec_one["f"], [Tensor(s), Tensor(t)]),
    ]
    handles = [cache.get_or_build(key, Handle) for key in keys]
    assert len(set(map(id, handles))) == len(keys)
    u = Sym()
    assert cache.get_or_build((exec_one["f"], Tensor(u, u)), Handle) is handles[0]


# -- bounded ------------------------------------------------------------------------------


def test_the_least_recently_used_leaves_first() -> None:
    gone: list[str] = []
    cache = HandleCache(3, on_evict=gone.append)
    for name in "abc":
        cache.put(name, name)
    assert cache.get("a") == "a"
    cache.put("d", "d")
    assert cache.get_or_build("e", lambda: "e") == "e"
    assert gone == ["b", "c"]
    assert [name in cache for name in "abcde"] == [True, False, False, True, True]
    assert len(cache) == 3 and cache.stats()["evicted"] == 2


def test_zero_turns_it_off() -> None:
    cache = HandleCache(0)
    assert not cache.put("k", 1)
    assert cache.get_or_build("k", Handle) is not cache.get_or_build("k", Handle)
    assert len(cache) == 0 and cache.stats()["built"] == 2


@pytest.mark.parametrize("size", [-1, 1.5, True, "256", None])
def test_a_size_that_is_no_count_is_refused(size: Any) -> None:
    with pytest.raises(UsageError, match="count"):
        HandleCache(size)


def test_every_handle_that_leaves_is_told_once_and_one_that_stays_is_not() -> None:
    gone: list[object] = []
    cache = HandleCache(8, on_evict=gone.append)
    kept, old, new = Handle(), Handle(), Handle()
    cache.put("kept", kept)
    cache.put("kept", kept)
    assert gone == []
    cache.put("k", old)
    cache.put("k", new)
    assert gone == [old]
    assert cache.delete("k") and not cache.delete("k")
    assert gone == [old, new]
    with cache:
        pass
    assert gone == [old, new, kept] and len(cache) == 0


def test_a_handle_that_cannot_be_closed_does_not_stop_the_build(capfd: pytest.CaptureFixture[str]) -> None:
    from hotstart import log

    log._said.clear()

    def refuse(handle: object) -> None:
        raise OSError("context is gone")

    cache = HandleCache(1, on_evict=refuse)
    for n in range(4):
        assert cache.get_or_build(n, Handle) is cache.get(n)
    assert cache.stats()["evict_errors"] == 3
    assert capfd.readouterr().err.count("context is gone") == 1


def test_a_handle_somebody_still_uses_is_found_again_after_it_was_evicted() -> None:
    cache = HandleCache(1)
    used = cache.get_or_build("used", Handle)
    cache.get_or_build("unused", Handle)
    cache.get_or_build("third", Handle)
    gc.collect()
    assert cache.get_or_build("used", Handle) is used
    before = cache.stats()["built"]
    cache.get_or_build("unused", Handle)
    assert cache.stats()["built"] == before + 1
    cache.delete("used")
    assert cache.get("used") is None


def test_a_closed_handle_is_never_found_again() -> None:
    cache = HandleCache(1, on_evict=lambda handle: None)
    used = cache.get_or_build("used", Handle)
    cache.put("other", Handle())
    assert cache.get("used") is None
    assert cache.get_or_build("used", Handle) is not used


def test_a_destructor_may_use_the_cache() -> None:
    cache = HandleCache(1)
    seen = []

    class Busy:
        def __del__(self) -> None:
            seen.append(cache.get("new"))

    cache.put("old", Busy())
    together(lambda: cache.put("new", 1))
    gc.collect()
    assert seen == [1]


def test_none_is_a_value() -> None:
    cache = HandleCache()
    assert cache.get_or_build("k", lambda: None) is None
    assert cache.get_or_build("k", lambda: pytest.fail("built again")) is None
    assert "k" in cache and cache.get("k", "default") is None


def test_many_threads_on_few_slots_always_get_what_belongs_to_their_key() -> None:
    cache = HandleCache(4)

    def work() -> None:
        for n in range(400):
            assert cache.get_or_build(("k", n % 11), lambda n=n: ("k", n % 11)) == ("k", n % 11)  # type: ignore[misc]

    assert together(*[work] * 6) == [None] * 6
    assert len(cache) == 4


# -- fork -----------------------------------------------------------------------------------


Fork = Callable[..., Any]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_starts_empty_and_closes_nothing_of_its_parent(fork: Fork) -> None:
    closed: list[object] = []

    class Module:
        def __del__(self) -> None:
            closed.append(self)

    cache = HandleCache(2, on_evict=closed.append)
    cache.put("k", Module())

    def child() -> bool:
        empty = len(cache) == 0 and "k" not in cache and cache.stats()["hits"] == 0
        fresh = cache.get_or_build("k", lambda: "new") == "new"
        cache.clear()
        gc.collect()
        return empty and fresh and closed == ["new"]

    assert fork(child).result()
    assert isinstance(cache.get("k"), Module) and closed == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_a_thread_builds_builds_for_itself(fork: Fork) -> None:
    cache = HandleCache()
    inside, release = threading.Event(), threading.Event()

    def build() -> str:
        inside.set()
        release.wait(PATIENCE)
        return "parent's"

    thread = threading.Thread(target=lambda: cache.get_or_build("k", build))
    thread.start()
    inside.wait(PATIENCE)
    assert fork(lambda: cache.get_or_build("k", lambda: "child's")).result() == "child's"
    release.set()
    thread.join(PATIENCE)
    assert cache.get("k") == "parent's"


def test_a_lock_held_at_the_moment_of_a_fork_is_free_in_the_child(fork: Fork) -> None:
    cache = HandleCache()
    with handles._waiting_lock, cache._lock:
        free = fork(lambda: not handles._waiting_lock.locked() and cache.get_or_build("k", lambda: True))
        assert free.result()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_was_begun_before_a_fork_is_not_kept_in_the_child() -> None:
    cache = HandleCache()
    results = []

    def build() -> str:
        child = os.fork()
        results.append(child)
        return "begun in the parent"

    cache.get_or_build("k", build)
    if results[-1] == 0:
        os._exit(0 if "k" not in cache else 1)
    assert os.waitpid(results[-1], 0)[1] == 0
    assert "k" in cache

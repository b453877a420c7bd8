"""What will not start hot runs as torch.compile would, and the record says why."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

import hotstart.torch
from hotstart import log
from hotstart.cache import Cache
from hotstart.cli.main import main
from hotstart.errors import UsageError
from hotstart.torch import jobs, promote, record, versions
from hotstart.torch.key import Call

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.torch import hot_models as models
else:
    import hot_models as models

torch: Any = pytest.importorskip("torch", reason="needs torch (any build, no GPU)")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setenv("HOTSTART_HOME", str(tmp_path))
    return Cache(f"{tmp_path}/store")


def compiled(target: Any, cache: Cache, **arguments: Any) -> Any:
    """With Dynamo as it is, and without Inductor behind it: what falls back falls back before that."""
    made = hotstart.torch.compile(target, cache=cache, **arguments)
    made._engine._plain = torch.compile(target, backend="eager")
    return made


def breaks(x: Any) -> Any:
    print("a graph break")
    return x + 1


def depends_on_data(x: Any) -> Any:
    return x + 1 if x.sum() > 0 else x - 1


class Twice(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 2


class Counts(torch.nn.Module):  # type: ignore[misc]
    """Changes an attribute of its own: more than a function of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x * self.calls


class Remembers(torch.nn.Module):  # type: ignore[misc]
    """Replaces a buffer instead of writing to it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(2))

    def forward(self, x: Any) -> Any:
        self.last: Any = self.last + x
        return self.last * 2


@torch.library.custom_op("hotstart_test::triple", mutates_args=())  # type: ignore[untyped-decorator, unused-ignore]
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@triple.register_fake  # type: ignore[untyped-decorator, unused-ignore]
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def calls_custom(x: Any) -> Any:
    return torch.ops.hotstart_test.triple(x)


def opens_a_file(x: Any) -> Any:
    with open("/dev/null") as file:
        return x + len(file.read())


def no_tensor(x: Any) -> Any:
    return x.shape[0]


CASES: dict[str, tuple[Any, str]] = {
    "graph break": (breaks, "graph breaks"),
    "data": (depends_on_data, "graph breaks"),
    "custom operator": (calls_custom, "custom operator"),
    "file": (opens_a_file, "reads files"),
    "no tensor": (no_tensor, "no tensor"),
    "attribute": (Counts(), "changed attributes"),
    "buffer": (Remembers(), "assigns to last"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_runs_and_the_record_says_why_it_is_not_hot(store: Cache, name: str) -> None:
    target, reason = CASES[name]
    made = compiled(target, store)
    with torch.no_grad():
        made(torch.ones(2))
    said = hotstart.torch.records()[-1]
    assert said["event"] == "plain", said
    assert reason in said["reason"]
    assert not len(store)


def test_a_custom_autograd_function_is_inlined_in_inference() -> None:
    with torch.no_grad():
        assert Call(lambda x: Twice.apply(x), (torch.ones(2),), {}, {}).key()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"mode": "reduce-overhead"}, "CUDA graphs"),
        ({"options": {"triton.cudagraphs": True}}, "CUDA graphs"),
    ],
)
def test_what_a_package_cannot_be_is_said(store: Cache, arguments: dict[str, Any], reason: str) -> None:
    made = compiled(torch.nn.ReLU(), store, **arguments)
    made(torch.ones(2))
    said = hotstart.torch.records()[-1]
    assert reason in said["reason"] + said["advice"]


def test_a_torch_outside_the_tested_range_is_left_alone(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "NEWEST", (2, 12))
    monkeypatch.setattr(versions, "OLDEST", (2, 12))
    made = compiled(torch.nn.ReLU(), store)
    assert made(-torch.ones(2)).tolist() == [0.0, 0.0]
    assert "outside the tested range" in hotstart.torch.records()[-1]["reason"]


def test_the_reason_is_recorded_once_for_a_shape(store: Cache) -> None:
    made = compiled(opens_a_file, store)
    for _ in range(5):
        made(torch.ones(2))
    assert len(hotstart.torch.records()) == 1


def test_misuse_is_an_error() -> None:
    with pytest.raises(UsageError, match="promote"):
        hotstart.torch.compile(torch.nn.ReLU(), promote="later")
    with pytest.raises(UsageError, match="compiled"):
        hotstart.torch.compile(3)
    with pytest.raises(UsageError, match="dimension"):
        hotstart.torch.mark_dynamic(torch.ones(2), 1)


def test_it_is_a_decorator_of_functions_and_methods(store: Cache) -> None:
    @hotstart.torch.compile(cache=store, promote="never", backend="eager")  # type: ignore[untyped-decorator]
    def function(x: Any) -> Any:
        """What it does."""
        return x + 1

    class Holder:
        @hotstart.torch.compile(cache=store, promote="never", backend="eager")  # type: ignore[untyped-decorator]
        def method(self, x: Any) -> Any:
            return x * 2

    assert function(torch.ones(1)).item() == 2.0
    assert (function.__name__, function.__doc__) == ("function", "What it does.")
    assert Holder().method(torch.ones(1)).item() == 2.0


def test_a_store_in_memory_alone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTSTART_HOME", str(tmp_path))
    made = compiled(torch.nn.ReLU(), Cache(None))
    made(torch.ones(2))
    assert "no store on disk" in hotstart.torch.records()[-1]["reason"]


def test_memory_that_is_short_skips_the_promotion(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "available", lambda: 1 << 20)
    made = compiled(torch.nn.ReLU(), store)
    made(torch.ones(2))
    said = hotstart.torch.records()[-1]
    assert (said["event"], "memory" in said["reason"]) == ("skipped", True)


@pytest.fixture
def wrong(built: Callable[[str], Path], store: Cache) -> Any:
    """A store with a package that is filed under the key of another call, and that call."""
    x, y = models.matrices()
    hotstart.torch.mark_dynamic(x, 0, max=64)
    with torch.no_grad():
        cubed = Call(models.plain_function, (x, y), {"power": 3}, {}).key()
        squared = Call(models.plain_function, (x, y), {"power": 2}, {}).key()
    entry = Cache(f"{built('function')}/store").get(cubed)
    assert entry is not None
    store.put(squared, dict(entry.items()), meta=entry.meta)
    return squared, (x, y), entry


def check_first(store: Cache, args: tuple[Any, Any], **arguments: Any) -> None:
    made = compiled(models.plain_function, store, **arguments)
    with torch.no_grad():
        for found, wanted in zip(made(*args, power=2), models.plain_function(*args, power=2), strict=True):
            torch.testing.assert_close(found, wanted)


def test_a_wrong_package_is_found_by_the_check_and_set_aside(
    wrong: Any, store: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, args, _ = wrong
    check_first(store, args, promote="never", check=True)
    assert key not in store
    assert [line["event"] for line in hotstart.torch.records()] == ["hit", "quarantined"]
    assert len(list((tmp_path / "store" / "quarantine").iterdir())) == 1
    assert store.stats()["corrupt"] == 1
    assert "is in quarantine: tensor 0 of the result" in capsys.readouterr().err
    assert main(["stats"]) == 0
    assert "1 quarantined" in capsys.readouterr().out
    main(["doctor"])
    assert "1 damaged file set aside" in capsys.readouterr().out
    assert store.verify()["damaged"] == []


def test_a_wrong_package_is_neither_built_again_nor_served_when_it_comes_back(
    wrong: Any, store: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, args, entry = wrong
    check_first(store, args, promote="now", check=True)
    said = hotstart.torch.records()
    assert [line["event"] for line in said] == ["hit", "quarantined", "skipped"]
    assert "a check found the package wrong" in said[-1]["reason"]
    store.put(key, dict(entry.items()), meta=entry.meta)  # as a remote store would give it back
    check_first(store, args, promote="never", check=False)
    assert [line["event"] for line in hotstart.torch.records()][3:] == []
    # Another compiler may build another package; that one is served.
    monkeypatch.setenv("CXX", "another")
    claimed = jobs.claim(store, key)
    assert isinstance(claimed, jobs.Job)
    claimed.release()


# -- one line for each ----------------------------------------------------------------


def uses_autograd(x: Any) -> Any:
    return Twice.apply(x)


def breaks_the_graph(x: Any) -> Any:
    torch._dynamo.graph_break()
    return x + 1


def branches(x: Any) -> Any:
    return x + 1 if x.sum() > 0 else x - 1


class HalfOnMeta(torch.nn.Module):  # type: ignore[misc]
    """As a model whose parts are on two devices, one of which has no content."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.other = torch.nn.Parameter(torch.ones(2, device="meta"))

    def forward(self, x: Any) -> Any:
        return x * self.weight


LINES: dict[str, tuple[Any, bool, str, str]] = {
    "custom autograd": (uses_autograd, True, "gradients are wanted", "torch.no_grad()"),
    "graph break": (breaks_the_graph, False, "the graph breaks", "torch._dynamo.explain says where"),
    "data": (branches, False, "the graph breaks", "torch.cond"),
    "several devices": (HalfOnMeta(), False, "other is a tensor of layout torch.strided on meta", "to_empty()"),
    "file": (opens_a_file, False, "reads files", "put what it reads into the key"),
}


@pytest.mark.parametrize("name", LINES)
def test_it_runs_and_one_line_says_why_and_what_would_change_it(
    store: Cache, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, grad, reason, advice = LINES[name]
    monkeypatch.setattr(log, "_said", set())
    if grad:
        monkeypatch.setenv("HOTSTART_LOG", "info")  # training is ordinary, and not said unasked
    made = compiled(target, store)
    x = torch.ones(2, requires_grad=grad)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            torch.testing.assert_close(made(x), target(x))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hotstart: ")]
    assert len(lines) == 1, lines
    assert "will not start hot" in lines[0]
    assert reason in lines[0]
    assert advice in lines[0]
    assert main(["why"]) == 0
    told = capsys.readouterr().out
    assert reason in told
    assert advice in told


def test_a_torch_outside_the_tested_range_is_said_once(
    store: Cache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(versions, "NEWEST", (2, 10))
    monkeypatch.setattr(log, "_said", set())
    for _ in range(2):
        made = compiled(torch.nn.ReLU(), store)
        for size in (2, 3):
            assert made(-torch.ones(size)).tolist() == [0.0] * size
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hotstart: ")]
    assert len(lines) == 1, lines
    assert "is outside the tested range (2.11 to 2.10); use a torch in that range" in lines[0]


def test_a_damaged_record_is_passed_over(store: Cache) -> None:
    record.note("plain", "a")
    with open(f"{record.directory()}/record.jsonl", "a") as file:
        file.write('{"cut sho')
    assert [line["name"] for line in hotstart.torch.records()] == ["a"]


def test_a_package_that_crashes_takes_only_the_test_of_it_down(
    built: Callable[[str], Path], store: Cache, tmp_path: Path
) -> None:
    """A compiler that cannot make loadable packages: what it made aborts as soon as it is loaded."""
    x, y = models.matrices()
    hotstart.torch.mark_dynamic(x, 0, max=64)
    with torch.no_grad():
        key = Call(models.plain_function, (x, y), {"power": 3}, {}).key()
    entry = Cache(f"{built('function')}/store").get(key)
    assert entry is not None
    source = tmp_path / "abort.c"
    source.write_text("#include <stdlib.h>\n__attribute__((constructor)) static void f(void) { abort(); }\n")
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "torch.compile needs a C compiler, and so does this"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(tmp_path / "abort.so"), str(source)], check=True)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "good.pt2").write_bytes(entry["package"])
    with zipfile.ZipFile(folder / "good.pt2") as good, zipfile.ZipFile(folder / "package.pt2", "w") as bad:
        for item in good.infolist():
            name = item.filename.replace("new/", "package/")
            data = (tmp_path / "abort.so").read_bytes() if name.endswith(".so") else good.read(item)
            bad.writestr(name, data)
    job = {"settings": {"inference": False}, "device": ["cpu", -1], "tensors": [], "model_tensors": 0}
    (folder / "job.json").write_text(json.dumps(job))
    torch.save({}, folder / "values.pt")
    assert promote._verify(str(folder)) == "SIGABRT"

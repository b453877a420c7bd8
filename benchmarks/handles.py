"""A kernel language's ``make()`` called again for a kernel it has made: through ``HandleCache``, and without.

The language is ``benchmarks.arrangement``: about 7 ms of symbols for a matrix product
with an addend, about 50 ms for a convolution written as one. What is timed is what a
caller of ``make`` waits for: key (both functions with all they reach, tensors, block
sizes), look-up, launcher. One launcher of each is run and its result checked, so that
nobody times nonsense.
"""

from __future__ import annotations

import hotstart
from hotstart.compilers.handles import HandleCache
from hotstart.compilers.memoize import memoize_handle
from hotstart.compilers.tokens import token_of

from .arrangement import Tensor, make, symbol
from .common import Call, Target, Times, bars, figure, rotate, save, save_plot, say, spread, table
from .common import targets_table as show_targets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

MAKE, OURS, KEY, READY = "make()", "hotstart, make() again", "hotstart, the key of it", "hotstart, key at hand"

#: What ninetoothed reports of its own in-process cache, as a share of ``make()``.
_REPORTED = {"addmm": 0.174 / 7.09, "conv2d": 0.373 / 45.6}
_LIMITS = {"addmm": 1 / 100, "conv2d": 1 / 200}


# The kernels are written as users write them: without annotations.


def product_arrangement(a, b, c, bm, bn, bk):  # type: ignore[no-untyped-def]
    """Each program makes one tile of ``c`` from a row of tiles of ``a`` and a column of tiles of ``b``."""
    c = c.tile((bm, bn))
    a = a.tile((bm, bk)).tile((1, -1)).expand((-1, c.shape[1])).squeeze(0, level=1)
    b = b.tile((bk, bn)).tile((-1, 1)).expand((c.shape[0], -1)).squeeze(1, level=1)
    return a, b, c


def addmm_arrangement(x, a, b, c, bm, bn, bk):  # type: ignore[no-untyped-def]
    a, b, c = product_arrangement(a, b, c, bm, bn, bk)  # type: ignore[no-untyped-call]
    return x.tile((bm, bn)), a, b, c


def conv2d_arrangement(x, w, y, bm, bn, bk):  # type: ignore[no-untyped-def]
    """Windows of ``x`` as rows of a matrix, filters as columns of another."""
    x = x.tile((1, *w.shape[1:]), strides=(-1, -1, 1, 1))
    x = x.squeeze(1).squeeze(0, level=1).ravel().flatten(0, 3).flatten(1, 4)
    w = w.flatten(1, 4).permute((1, 0))
    y = y.permute((0, 2, 3, 1)).flatten(0, 3)
    return product_arrangement(x, w, y, bm, bn, bk)  # type: ignore[no-untyped-call]


def addmm(x, a, b, c):  # type: ignore[no-untyped-def]
    total = x
    for k in range(a.shape[0]):
        total = total + a[k] @ b[k]
    c = total  # noqa: F841  # a write, in this language


def product(a, b, c):  # type: ignore[no-untyped-def]
    total = 0
    for k in range(a.shape[0]):
        total = total + a[k] @ b[k]
    c = total  # noqa: F841


def kernels() -> dict[str, tuple[Callable[..., Any], Callable[..., None], tuple[Tensor, ...], dict[str, int]]]:
    """By name the arguments of ``make``."""
    blocks = {"bm": 4, "bn": 8, "bk": 16}
    height, width = symbol("H") - symbol("R") + 1, symbol("W") - symbol("S") + 1
    return {
        "addmm": (addmm_arrangement, addmm, (Tensor("MN"), Tensor("MK"), Tensor("KN"), Tensor("MN")), blocks),
        "conv2d": (
            *(conv2d_arrangement, product),
            (Tensor("NCHW"), Tensor("KCRS"), Tensor(("N", "K", height, width))),
            blocks,
        ),
    }


def key_of(
    arrangement: Callable[..., Any], application: Callable[..., None], tensors: tuple[Tensor, ...], **meta: int
) -> object:
    """All that ``make`` depends on, as the author of the language would write it."""
    return arrangement, application, [tensor.signature for tensor in tensors], meta


def check(name: str, launcher: Callable[..., None]) -> None:
    """Raises AssertionError when the launcher does not compute what it should."""
    import numpy

    random = numpy.random.default_rng(0)
    if name == "addmm":
        x, a, b, c = (random.random(shape) for shape in ((13, 17), (13, 21), (21, 17), (13, 17)))
        launcher(x, a, b, c)
        assert numpy.allclose(c, x + a @ b)
        return
    x, w, y = (random.random(shape) for shape in ((2, 3, 9, 8), (5, 3, 3, 2), (2, 5, 7, 7)))
    launcher(x, w, y)
    windows = numpy.lib.stride_tricks.sliding_window_view(x, (3, 2), axis=(2, 3))
    assert numpy.allclose(y, numpy.einsum("nchwrs,kcrs->nkhw", windows, w))


def run(out: Path, *, quick: bool) -> list[Target]:
    results = {name: _measure(name, *arguments, count=40 if quick else 120) for name, arguments in kernels().items()}
    targets = [
        Target(f"make() again / make(), {name}", "memory", row[OURS].p50 / row[MAKE].p50, _LIMITS[name])
        for name, row in results.items()
    ]
    _show(results, targets)
    save(
        out,
        "handles",
        {
            "setup": {"unit": "µs", "reported_by_ninetoothed": {k: round(v, 4) for k, v in _REPORTED.items()}},
            "calls": {name: {title: times.summary() for title, times in row.items()} for name, row in results.items()},
            "targets": [target.record() for target in targets],
        },
    )
    _plot(out, results)
    return targets


def _measure(
    name: str,
    arrangement: Callable[..., Any],
    application: Callable[..., None],
    tensors: tuple[Tensor, ...],
    meta: dict[str, int],
    count: int,
) -> dict[str, Times]:
    say(name)
    cache = HandleCache()
    cached = memoize_handle(key=key_of, cache=cache)(make)
    launcher = cached(arrangement, application, tensors, **meta)
    check(name, launcher)
    ready = hotstart.Key("kernel", name=name)
    cache.put(ready, launcher)
    calls: dict[str, Callable[[Any], object]] = {
        MAKE: lambda _: make(arrangement, application, tensors, **meta),
        OURS: lambda _: cached(arrangement, application, tensors, **meta),
        KEY: lambda _: token_of(key_of(arrangement, application, tensors, **meta)),
        READY: lambda _: cache.get(ready),
    }
    row = rotate({title: Call(each, [None]) for title, each in calls.items()}, count, chunk=20)
    assert cache.stats()["built"] == 1, cache.stats()
    return row


def _show(results: dict[str, dict[str, Times]], targets: list[Target]) -> None:
    for name, row in results.items():
        rows = [[title, *spread(times), row[MAKE].p50 / times.p50] for title, times in row.items()]
        rows.append(["ninetoothed, as it reports", *["–"] * 4, 1 / _REPORTED[name]])
        table(f"{name}: a kernel made once, asked for again", ["µs", "p50", "p90", "p99", "max", "× faster"], rows)
    show_targets("handles: what was promised (ratios of p50)", targets)


def _plot(out: Path, results: dict[str, dict[str, Times]]) -> None:
    drawing, axes = figure(1, len(results), 4.6 * len(results), 2.2)
    for column, (name, row) in enumerate(results.items()):
        p50, p99 = ({title: times.at(share) for title, times in row.items()} for share in (0.5, 0.99))
        bars(axes[0][column], name, p50, p99, log=True)
        axes[0][column].set_xlabel("µs, p50; thin line to p99")
    save_plot(out, "handles", drawing)

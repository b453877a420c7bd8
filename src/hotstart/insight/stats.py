"""Numbers by framework: hits, misses, entries, bytes, seconds saved.

Three sources. What the store holds is counted from its files, now. Hits, misses and
seconds saved are the sums that runs have left (``launch.totals``): exact for every run that
came to its end, without those that were killed or had no disk to write on. What a program
did with the Python API outside ``hotstart run`` is in its own ``Cache.stats()``.
"""

from __future__ import annotations

from ..launch import state, totals
from . import listing, models

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..store.local import LocalStore

#: What a framework's row holds, in this order: name → (what it is called for people, is it a counter).
COLUMNS = ("hits", "misses", "restored", "rebuilt", "entries", "bytes", "seconds_saved")


def gather(home: str, root: str, store: LocalStore | None, step: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Everything, as plain data. ``root`` is where the redirected directories are."""
    sums = totals.read(home) or {"since": None, "runs": 0, "frameworks": {}}
    held = listing.by_framework(store, step) if store is not None else {}
    rows: dict[str, dict[str, Any]] = {}
    for name in sorted({*held, *sums["frameworks"]}):
        counted = sums["frameworks"].get(name) or {}
        own = held.get(name) or listing.Held()
        rows[name] = {
            "hits": int(counted.get("hits", 0)),
            "misses": int(counted.get("new", 0)),
            "restored": int(counted.get("restored", 0)),
            "rebuilt": int(counted.get("rebuilt", 0)),
            "entries": own.entries,
            "bytes": own.bytes,
            "seconds_saved": float(counted.get("seconds_saved", 0.0)),
            "seconds_held": own.cost,
            "runs": int(counted.get("runs", 0)),
        }
    entries, total = store.totals() if store is not None else (0, 0)
    directories = state.read(home, root)
    return {
        "home": home,
        "since": sums["since"],
        "runs": int(sums["runs"]),
        "frameworks": rows,
        "store": {
            "entries": entries,
            "bytes": total,
            "max_size": store.max_size if store is not None else 0,
            "quarantined": _quarantined(store),
        },
        "models": models.counted(home),
        "directories": {"bytes": directories.bytes if directories is not None else 0},
    }


def _quarantined(store: LocalStore | None) -> int:
    from ..store import files

    try:
        return len(files.listdir(f"{store.root}/quarantine")) if store is not None else 0
    except OSError:
        return 0  # nothing ever was


_METRICS = (
    ("hits", "hotstart_hits_total", "counter", "Units that were found compiled, by runs that ended."),
    ("misses", "hotstart_misses_total", "counter", "Units that had to be compiled, by runs that ended."),
    ("restored", "hotstart_restored_total", "counter", "Units that were given back to a directory."),
    ("rebuilt", "hotstart_rebuilt_total", "counter", "Units that were built again although their graph was found."),
    ("seconds_saved", "hotstart_saved_seconds_total", "counter", "Seconds of compiling that hits have saved."),
    ("entries", "hotstart_entries", "gauge", "Entries in the store."),
    ("bytes", "hotstart_bytes", "gauge", "Bytes of these entries in the store."),
)


def prometheus(numbers: dict[str, Any]) -> str:
    """The same in Prometheus' text format, for a node exporter's textfile collector."""
    lines = []
    for column, name, kind, text in _METRICS:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [
            f'{name}{{framework="{_escaped(row)}"}} {_number(found[column])}'
            for row, found in numbers["frameworks"].items()
        ]
    lines += [
        "# HELP hotstart_models_total Models and functions under hotstart.torch.compile, by what happened.",
        "# TYPE hotstart_models_total counter",
        *(f'hotstart_models_total{{event="{event}"}} {number}' for event, number in numbers["models"].items()),
    ]
    for name, kind, text, value in (
        ("hotstart_runs_total", "counter", "Runs under hotstart run that came to their end.", numbers["runs"]),
        ("hotstart_store_bytes", "gauge", "Bytes in the store.", numbers["store"]["bytes"]),
        ("hotstart_store_max_bytes", "gauge", "The budget of the store.", numbers["store"]["max_size"]),
        ("hotstart_store_entries", "gauge", "Entries in the store.", numbers["store"]["entries"]),
        ("hotstart_store_quarantined", "gauge", "Damaged files set aside.", numbers["store"]["quarantined"]),
        ("hotstart_directories_bytes", "gauge", "Bytes in redirected directories.", numbers["directories"]["bytes"]),
    ):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {_number(value)}"]
    return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}" if abs(value) < 1e6 else repr(float(value))

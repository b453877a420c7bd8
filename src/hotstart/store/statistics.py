"""``Cache.stats()``: flat counters turned into something to read."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .counters import Counters
    from .local import LocalStore
    from .memory import Memory


def summarise(counters: Counters, memory: Memory, disk: LocalStore | None, layers: list[LocalStore]) -> dict[str, Any]:
    """Every counter, even those that are zero: a key that appears only after an error cannot be watched."""
    counted = counters.snapshot()
    entries, total = disk.totals() if disk is not None else (len(memory), memory.bytes)
    tiers: list[Memory | LocalStore] = [memory, *([disk] if disk else []), *layers]
    hits = {
        "memory": memory.hits,
        "disk": disk.hits if disk is not None else 0,
        "layer": sum(layer.hits for layer in layers),
        "flight": int(counted.get("hit.flight", 0)),
    }
    return {
        "hits": hits,
        "misses": int(counted.get("miss", 0)),
        "compiled": int(counted.get("compiled", 0)),
        "puts": int(counted.get("put", 0)),
        "evicted": int(counted.get("evicted", 0)),
        "corrupt": int(counted.get("corrupt", 0)),
        "expired": int(counted.get("expired", 0)),
        "other_version": int(counted.get("other_version", 0)),
        "refused": _group(counted, "refused."),
        "errors": _group(counted, "error."),
        "seconds_saved": counted.get("seconds_saved", 0.0) + sum(tier.saved for tier in tiers),
        "seconds_compiling": counted.get("seconds_compiling", 0.0),
        "bytes_written": disk.written if disk is not None else 0,
        "index_rebuilt": int(counted.get("index_rebuilt", 0)),
        "swept": int(counted.get("swept", 0)),
        "entries": entries,
        "bytes": total,
        "max_size": disk.max_size if disk is not None else memory.max_bytes,
        "memory": {"entries": len(memory), "bytes": memory.bytes, "evicted": memory.evicted},
    }


def _group(counted: dict[str, float], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): int(count) for name, count in sorted(counted.items()) if name.startswith(prefix)}

"""A process as the fault tests run it: a store of its own or a shared one, a remote, and so many compiles.

    python compiling.py '{"store": …, "remote": …, "directory": …, "first": 0, "count": 7, …}'

Prints one line of JSON: how many results were right, what was compiled, the counters, the seconds it took.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial

import hotstart


def key_of(number: int) -> hotstart.Key:
    return hotstart.Key("faults", name="kernel", number=number)


def result_of(number: int) -> dict[str, bytes]:
    return {"cubin": b"code of %d " % number * 200, "log": b"fine"}


def main() -> None:
    asked = json.loads(sys.argv[1])
    compiled: list[int] = []

    def made(number: int) -> dict[str, bytes]:
        time.sleep(asked.get("seconds", 0.01))
        compiled.append(number)
        return result_of(number)

    directory = asked["directory"]
    started = time.monotonic()
    cache = hotstart.Cache(
        asked["store"],
        remote=asked["remote"],
        trust=f"{directory}/trusted.keys",
        signing_key=f"{directory}/trusted.key",
    )
    if asked.get("lease"):
        assert cache.sharing is not None and cache.sharing.tier is not None
        cache.sharing.tier.leases.lease = asked["lease"]
    right = 0
    numbers = range(asked["first"], asked["first"] + asked["count"])
    if asked.get("ready"):
        print("ready", flush=True)
        sys.stdin.readline()
    for number in numbers:
        entry = cache.get_or_compile(key_of(number), partial(made, number))
        right += dict(entry.items()) == result_of(number)
    looped = time.monotonic() - started
    cache.close()
    stats = cache.stats()
    print(
        json.dumps(
            {
                "right": right,
                "compiled": compiled,
                "remote": stats.get("remote", {}),
                "corrupt": stats["corrupt"],
                "seconds": looped,
                "with_close": time.monotonic() - started,
            }
        )
    )


if __name__ == "__main__":
    main()

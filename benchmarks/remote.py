"""A workload of 200 MB in 2,000 entries from S3 on loopback, beside one raw get of the same bytes and boto3 by file.

Client and server share the machine's cores, so what the client computes is taken from
the server. The content is machine code cut from an installed library (zstd makes it
three to four times smaller), and random bytes beside it, where compression gains nothing.
All restores end in the local store, checked, named and accounted for; the raw get ends in
memory and checks nothing; boto3 writes files and checks nothing. Two floors stand beside them:
the raw get with its bytes written to one file, and 2,000 files written from memory by a loop
of open, write and close that does nothing else.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import hotstart
from hotstart.remote.pushing import push
from hotstart.remote.tier import RemoteTier, open_tier
from hotstart.remote.workloads import pull
from hotstart.store.counters import Counters
from hotstart.testing.servers import BUCKET, MissingServerError, Server, seaweedfs
from hotstart.trust.scope import TrustList
from hotstart.trust.signing import keygen

from .common import Target, bars, figure, filesystem, places, save, save_plot, say, table
from .common import targets_table as show_targets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIZE = 100_000
PACK = 64 << 20


def run(out: Path, *, quick: bool) -> list[Target]:
    count, rounds = (400, 3) if quick else (2000, 3)
    targets: list[Target] = []
    results: dict[str, Any] = {}
    rows = []
    pushes: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hotstart-bench-") as directory, places() as found:
        try:
            with seaweedfs(Path(directory)) as server:
                os.environ.update(server.environment)
                for kind, content in (("machine code", _machine_code(count)), ("random bytes", _random(count))):
                    if content is None:
                        say("remote: no large library is installed to cut machine code from")
                        continue
                    bench = _Bench(Path(directory), server, kind.replace(" ", "-"), content)
                    pushes[kind] = bench.pushed
                    for place, path in found.items():
                        result = bench.compare(Path(path), rounds)
                        results[f"{kind}, store on {place}"] = result
                        where = f"{kind}, {place}"
                        rows.append([where, *(result[name] for name in _SHOWN)])
                        targets += _targets(where, result)
        except MissingServerError as error:
            say(f"remote: {error}")
            return []
    table(f"{count * SIZE / 1e6:.0f} MB in {count} entries, seconds (medians, in turns)", ["", *_SHOWN], rows)
    table(
        "push of the same", ["", *_PUSHED], [[kind, *(done[name] for name in _PUSHED)] for kind, done in pushes.items()]
    )
    show_targets("targets", targets)
    save(out, "remote", {"entries": count, "bytes": count * SIZE, "rounds": rounds, "results": results,
                         "push": pushes, "targets": [target.record() for target in targets]})  # fmt: skip
    _plot(out, results)
    return targets


_TIMED = ("raw get", "hotstart", "boto3", "raw get, one file", "files from memory")
_SHOWN = (*_TIMED, "raw / hotstart", "boto3 / hotstart", "requests", "wire MB")
_PUSHED = ("seconds", "MB/s", "requests", "wire MB")


def _plot(out: Path, results: dict[str, Any]) -> None:
    drawing, axes = figure(len(results), 1, 7.0, 1.5 * len(results))
    for axis, (where, result) in zip(axes[:, 0], results.items(), strict=True):
        bars(axis, f"{where}, seconds", {name: result[name] for name in _TIMED}, log=True)
    save_plot(out, "remote", drawing)


def _targets(where: str, result: dict[str, float]) -> list[Target]:
    allowed = 3 + -(-int(result["bytes"]) // PACK)
    found = [Target("requests", where, result["requests"], allowed)]
    found.append(Target("restore / boto3 file by file", where, result["hotstart"] / result["boto3"], 0.2))
    found.append(Target("restore / raw get", where, result["hotstart"] / result["raw get"], 2.0))
    return found


class _Bench:
    """One kind of content in the remote, three ways. ``pushed`` says what it took to publish it."""

    def __init__(self, directory: Path, server: Server, name: str, content: list[bytes]) -> None:
        import boto3
        import obstore

        self.name, self.content, self.server = name, content, server
        keys = directory / name
        keys.mkdir()
        public = keygen(str(keys / "key"))
        TrustList.load(str(keys / "trusted")).add(public, ["main"])
        self._keys = keys
        self._obstore = obstore
        self._boto = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server.port}", region_name="us-east-1")
        with hotstart.Cache(keys / "store", memory=0) as cache:
            for number, data in enumerate(content):
                cache.put(hotstart.Key("bench", name=name, number=number), {"kernel.so": data}, cost=1.0)
            assert cache.disk is not None
            digests = cache.digests()
            begun = perf_counter()
            done = push(self._tier(), cache.disk, name, digests)
            spent = perf_counter() - begun
        self.wire = done.bytes
        size = sum(map(len, content))
        self.pushed = {
            "seconds": spent,
            "MB/s": size / spent / 1e6,
            "requests": done.requests,
            "wire MB": done.bytes / 1e6,
        }
        self._raw = self._tier().remotes[0].inner._open()[2]  # type: ignore[attr-defined]
        obstore.put(self._raw, f"raw/{name}", b"".join(content))
        for number, data in enumerate(content):
            self._boto.put_object(Bucket=BUCKET, Key=f"files/{name}/{number}", Body=data)

    def _tier(self) -> RemoteTier:
        return open_tier(
            self.server.url("bench"), Counters(), trust=f"{self._keys}/trusted", signing_key=f"{self._keys}/key"
        )

    def compare(self, place: Path, rounds: int) -> dict[str, float]:
        times: dict[str, list[float]] = {name: [] for name in _TIMED}
        requests = 0
        os.sync()  # also what was written to the other place
        for number in range(rounds):
            _settle(place)
            times["raw get"].append(self._raw_get())
            spent, requests = self._restore(place / f"store-{self.name}-{number}")
            times["hotstart"].append(spent)
            times["raw get, one file"].append(self._raw_get(place / f"one-{self.name}-{number}"))
            times["files from memory"].append(self._from_memory(place / f"files-{self.name}-{number}"))
            if number == 0:  # the slowest by far, and steady
                times["boto3"].append(self._by_boto(place / f"boto3-{self.name}"))
        result: dict[str, float] = {name: median(found) for name, found in times.items()}
        result["raw / hotstart"] = result["raw get"] / result["hotstart"]
        result["boto3 / hotstart"] = result["boto3"] / result["hotstart"]
        result["requests"] = requests
        result["wire MB"] = self.wire / 1e6
        result["bytes"] = sum(map(len, self.content))
        return result

    def _raw_get(self, path: Path | None = None) -> float:
        if path is not None:
            _settle(path.parent)
        begun = perf_counter()
        data = self._obstore.get(self._raw, f"raw/{self.name}").bytes()
        if path is not None:
            path.mkdir()
            (path / "one").write_bytes(data)
        spent = perf_counter() - begun
        assert len(data) == sum(map(len, self.content))
        if path is not None:
            _remove(path)
        return spent

    def _from_memory(self, path: Path) -> float:
        """The least that files cost: nothing is received, checked, renamed or accounted for."""
        path.mkdir()
        names = [f"{path}/{number}" for number in range(len(self.content))]
        _settle(path)
        begun = perf_counter()
        for name, data in zip(names, self.content, strict=True):
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(fd, data)
            os.close(fd)
        spent = perf_counter() - begun
        _remove(path)
        return spent

    def _restore(self, path: Path) -> tuple[float, int]:
        tier = self._tier()
        with hotstart.Cache(path, memory=0) as cache:
            assert cache.disk is not None
            _settle(path.parent)
            begun = perf_counter()
            done = pull(tier, cache.disk, self.name)
            spent = perf_counter() - begun
        assert (done.entries, done.failed) == (len(self.content), 0)
        _remove(path)
        return spent, done.requests

    def _by_boto(self, path: Path) -> float:
        path.mkdir()
        _settle(path)
        begun = perf_counter()
        for number in range(len(self.content)):
            body = self._boto.get_object(Bucket=BUCKET, Key=f"files/{self.name}/{number}")["Body"].read()
            (path / str(number)).write_bytes(body)
        spent = perf_counter() - begun
        _remove(path)
        return spent


def _settle(place: Path) -> None:
    """A disk at rest, as a machine has that starts: what was written before is not to be paid for now."""
    if filesystem(str(place)) != "tmpfs":
        os.sync()
        sleep(1.5)


def _remove(path: Path) -> None:
    """Not on a disk, which is cleared at the end: where 2,000 files were deleted shortly before, making as many took
    1.0 s here instead of 0.3 s, and a machine that starts has deleted none."""
    if filesystem(str(path)) == "tmpfs":
        shutil.rmtree(path)


def _machine_code(count: int) -> list[bytes] | None:
    """Pieces of the largest shared library that is installed."""
    root = Path(sysconfig.get_paths()["purelib"])
    libraries = sorted(root.glob("*/lib/*.so*"), key=lambda path: path.stat().st_size)
    if not libraries or libraries[-1].stat().st_size < count * SIZE:
        return None
    with libraries[-1].open("rb") as library:
        library.seek((libraries[-1].stat().st_size - count * SIZE) // 2)
        return [library.read(SIZE) for _ in range(count)]


def _random(count: int) -> list[bytes]:
    chance = random.Random(1)
    return [chance.randbytes(SIZE) for _ in range(count)]


if __name__ == "__main__":
    run(Path(__file__).parent / "results" / "quick", quick="--quick" in sys.argv)

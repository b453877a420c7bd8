"""A workload of 200 MB in 2,000 entries from S3 on loopback, beside one raw get of the same bytes and boto3 by file.

Client and server share the machine's cores, so what the client computes is taken from
the server. The content is machine code cut from an installed library (zstd makes it
three to four times smaller), and random bytes beside it, where compression gains nothing.
All restores end in the local store, checked, named and accounted for; the raw get ends in
memory and checks nothing; boto3 writes files and checks nothing.
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
from time import perf_counter

import hotstart
from hotstart.remote.tier import RemoteTier, open_tier
from hotstart.remote.workloads import pull, push
from hotstart.store.counters import Counters
from hotstart.testing.servers import BUCKET, MissingServerError, Server, seaweedfs
from hotstart.trust.scope import TrustList
from hotstart.trust.signing import keygen

from .common import Target, places, save, say, table
from .common import targets_table as show_targets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIZE = 100_000
PACK = 64 << 20


def run(out: Path, *, quick: bool) -> list[Target]:
    count, rounds = (400, 3) if quick else (2000, 5)
    targets: list[Target] = []
    results: dict[str, Any] = {}
    rows = []
    with tempfile.TemporaryDirectory(prefix="hotstart-bench-") as directory, places() as found:
        try:
            with seaweedfs(Path(directory)) as server:
                os.environ.update(server.environment)
                for kind, content in (("machine code", _machine_code(count)), ("random bytes", _random(count))):
                    if content is None:
                        say("remote: no large library is installed to cut machine code from")
                        continue
                    bench = _Bench(Path(directory), server, kind.replace(" ", "-"), content)
                    for place, path in found.items():
                        result = bench.compare(Path(path), rounds)
                        results[f"{kind}, store on {place}"] = result
                        where = f"{kind}, {place}"
                        rows.append([where, *(result[name] for name in _SHOWN)])
                        targets += _targets(where, result, kind == "machine code")
        except MissingServerError as error:
            say(f"remote: {error}")
            return []
    table(f"{count * SIZE / 1e6:.0f} MB in {count} entries, seconds (medians, in turns)", ["", *_SHOWN], rows)
    show_targets("targets", targets)
    save(out, "remote", {"entries": count, "bytes": count * SIZE, "rounds": rounds, "results": results,
                         "targets": [target.record() for target in targets]})  # fmt: skip
    return targets


_SHOWN = ("raw get", "hotstart", "boto3", "raw / hotstart", "boto3 / hotstart", "requests", "wire MB")


def _targets(where: str, result: dict[str, float], compresses: bool) -> list[Target]:
    allowed = 3 + -(-int(result["bytes"]) // PACK)
    found = [Target("requests", where, result["requests"], allowed)]
    found.append(Target("restore / boto3 file by file", where, result["hotstart"] / result["boto3"], 0.2))
    found.append(Target("restore / raw get" + ("" if compresses else ", reported"), where,
                        result["hotstart"] / result["raw get"], 2.0))  # fmt: skip
    return found


class _Bench:
    """One kind of content in the remote, three ways."""

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
            self.wire = push(self._tier(), cache.disk, name, cache.digests()).bytes
        self._raw = self._tier().remotes[0].inner._open()[2]  # type: ignore[attr-defined]
        obstore.put(self._raw, f"raw/{name}", b"".join(content))
        for number, data in enumerate(content):
            self._boto.put_object(Bucket=BUCKET, Key=f"files/{name}/{number}", Body=data)

    def _tier(self) -> RemoteTier:
        return open_tier(
            self.server.url("bench"), Counters(), trust=f"{self._keys}/trusted", signing_key=f"{self._keys}/key"
        )

    def compare(self, place: Path, rounds: int) -> dict[str, float]:
        times: dict[str, list[float]] = {"raw get": [], "hotstart": [], "boto3": []}
        requests = 0
        for number in range(rounds):
            times["raw get"].append(self._raw_get())
            spent, requests = self._restore(place / f"store-{self.name}")
            times["hotstart"].append(spent)
            if number == 0:  # the slowest by far, and steady
                times["boto3"].append(self._by_boto(place / f"files-{self.name}"))
        result: dict[str, float] = {name: median(found) for name, found in times.items()}
        result["raw / hotstart"] = result["raw get"] / result["hotstart"]
        result["boto3 / hotstart"] = result["boto3"] / result["hotstart"]
        result["requests"] = requests
        result["wire MB"] = self.wire / 1e6
        result["bytes"] = sum(map(len, self.content))
        return result

    def _raw_get(self) -> float:
        begun = perf_counter()
        data = self._obstore.get(self._raw, f"raw/{self.name}").bytes()
        spent = perf_counter() - begun
        assert len(data) == sum(map(len, self.content))
        return spent

    def _restore(self, path: Path) -> tuple[float, int]:
        shutil.rmtree(path, ignore_errors=True)
        tier = self._tier()
        with hotstart.Cache(path, memory=0) as cache:
            assert cache.disk is not None
            begun = perf_counter()
            done = pull(tier, cache.disk, self.name)
            spent = perf_counter() - begun
        assert (done.entries, done.failed) == (len(self.content), 0)
        shutil.rmtree(path, ignore_errors=True)
        return spent, done.requests

    def _by_boto(self, path: Path) -> float:
        path.mkdir()
        begun = perf_counter()
        for number in range(len(self.content)):
            body = self._boto.get_object(Bucket=BUCKET, Key=f"files/{self.name}/{number}")["Body"].read()
            (path / str(number)).write_bytes(body)
        spent = perf_counter() - begun
        shutil.rmtree(path)
        return spent


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

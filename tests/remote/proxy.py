"""A TCP proxy on loopback that does to a connection what networks and servers do: hangs, resets, cuts, lies, dies.

Stands in front of a real server; what it lets through is the server's own answer.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import Self

#: Answers bodies longer than this are interfered with in the middle; shorter ones at their end.
_SOME = 300

_REQUESTS = (b"GET ", b"PUT ", b"POST", b"HEAD", b"DELE")

#: What stores say that take no more: status and the code in the body.
_FULL = {"507": ("507 Insufficient Storage", "XMinioStorageFull"), "quota": ("403 Forbidden", "QuotaExceeded")}


class Proxy:
    """``mode`` may be changed at any time:

    pass       everything as it is
    hang       accept, and never answer
    reset      a reset in the middle of the answer
    truncate   the connection closed in the middle of the answer
    500, 503   an error instead of an answer
    507        writing answered as MinIO does when its disks are full; reading goes on
    quota      writing answered as Ceph does when a quota is used up; reading goes on
    drip       the body of the answer one byte at a time, a quarter of a second apart
    flip       one byte of the body changed
    down       nobody listens
    """

    def __init__(self, port: int) -> None:
        self.mode = "pass"
        self.connections = 0
        self._target = port
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(128)
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._listener.close()
        self.drop()

    def drop(self) -> None:
        """End what is open."""
        for connection in list(self._open):
            _reset(connection)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(client)
            if self.mode == "down":
                _reset(client)
            else:
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                self._open.add(server)
                threading.Thread(target=self._answers, args=(server, client), daemon=True).start()
                while data := client.recv(1 << 16):
                    mode = self.mode
                    if mode == "hang":
                        threading.Event().wait(600)
                        return
                    if mode in ("500", "503") and data.startswith(_REQUESTS):
                        _answer(client, f"{mode} Error", "")
                        return
                    if mode in _FULL and data.startswith(b"PUT "):
                        status, code = _FULL[mode]
                        _answer(client, status, f"<Error><Code>{code}</Code><Message>No room.</Message></Error>")
                        return
                    if mode in ("500", "503"):
                        client.sendall(b"-ERR internal error\r\n")
                        continue
                    if mode == "down":
                        return
                    server.sendall(data)
        except OSError:
            pass
        finally:
            _reset(client)
            self._open.discard(client)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(1 << 16):
                mode = self.mode
                if mode == "hang":
                    return
                if mode == "drip":
                    head = data.find(b"\r\n\r\n") + 4 if data.startswith(b"HTTP") else 0
                    client.sendall(data[:head])
                    for byte in data[head:]:
                        client.sendall(bytes([byte]))
                        time.sleep(0.25)
                    continue
                half = len(data) - min(len(data), _SOME) // 2
                if mode in ("reset", "truncate"):
                    client.sendall(data[:half])
                    if mode == "reset":
                        _reset(client)
                    else:
                        client.shutdown(socket.SHUT_RDWR)
                    return
                if mode == "flip" and len(data) > _SOME:
                    data = data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]
                client.sendall(data)
        except OSError:
            pass
        finally:
            _reset(client)


def _answer(client: socket.socket, status: str, body: str) -> None:
    """One answer, then the connection is over; the rest of what the client sends is read, else it would see a reset."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
    client.sendall(f"{head}Connection: close\r\n\r\n{body}".encode())
    client.shutdown(socket.SHUT_WR)
    while client.recv(1 << 16):
        pass


def _reset(connection: socket.socket) -> None:
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)  # wakes a thread that reads from it: until then closing does nothing
    except OSError:
        pass
    try:
        connection.close()
    except OSError:
        pass

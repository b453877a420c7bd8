"""``ContentStore``: bytes named by their BLAKE3 digest.

A blob's file is its payload followed by a trailer:

    payload  as given, or one zstd frame
    trailer  address (32), u64 size of the content, u8 encoding, 3 zero bytes,
             magic "hoB" and a version byte, check (16)

``check`` is XXH3-128 of everything before it. The payload comes first so that a
file can be cloned by the file system and cut, without a copy. Files lie two
directories deep, ``ab/cd/…``; the address never leaves 64 hexadecimal digits, so
no name from outside becomes a path.
"""

from __future__ import annotations

import os
import struct

from blake3 import blake3
from xxhash import xxh3_128

from ..errors import AddressError, StoreError, UsageError
from ..keys.digest import digest_of, threads_for
from . import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Any, BinaryIO, Protocol

    class _Sink(Protocol):
        """All that is asked of a target."""

        def write(self, piece: bytes, /) -> object: ...


_TRAILER = struct.Struct("<32sQB3x4s")
_CHECK_SIZE = 16
TRAILER_SIZE = _TRAILER.size + _CHECK_SIZE
_MAGIC = b"hoB\x01"
_RAW, _ZSTD = 0, 1

#: Streams move in pieces of this size, so that a file of gigabytes never sits in memory.
_PIECE = 1 << 20

#: What a stream of unknown length is taken for: worth several threads.
_LARGE = 1 << 30

#: Incompressible data is stored as it is unless zstd saves at least this share.
_WORTH_IT = 0.9


class DamagedBlobError(Exception):
    """A file that is not the blob it is named after; ``identity`` says which file. Never leaves ``store/``."""

    def __init__(self, identity: os.stat_result) -> None:
        super().__init__()
        self.identity = identity


class Staged:
    """A blob written under a temporary name, ready to be adopted; or one that was in place already."""

    __slots__ = ("address", "size", "temporary")

    def __init__(self, address: str, size: int, temporary: str | None) -> None:
        self.address = address
        #: Bytes on disk.
        self.size = size
        self.temporary = temporary


class ContentStore:
    """Blobs under ``root``; safe for any number of threads and processes.

    ``put`` returns the address; putting the same bytes again costs a look and
    writes nothing. ``get`` returns bytes that were checked, or None; a damaged blob
    is moved to ``quarantine/`` and is None from then on. A write that fails raises
    StoreError (an address for bytes that are not there would be a lie); a read
    never raises but for a malformed address.
    """

    def __init__(self, root: str | os.PathLike[str], *, durable: bool = False) -> None:
        root = files.private_directory(os.fspath(root))
        self._place(root, f"{root}/tmp", f"{root}/quarantine", durable)

    @classmethod
    def inside(cls, root: str, temporary: str, quarantine: str, *, durable: bool) -> ContentStore:
        """The blobs of a larger store, which looks after the directories itself."""
        store = cls.__new__(cls)
        store._place(root, temporary, quarantine, durable)
        return store

    def _place(self, root: str, temporary: str, quarantine: str, durable: bool) -> None:
        self.root = root
        self.durable = durable
        self._temporaries = temporary
        self._quarantine = quarantine

    def put(self, data: bytes | bytearray | memoryview, *, compress: bool = False) -> str:
        """Store ``data`` and return its address."""
        return self._keep(self.stage(data, compress=compress))

    def put_stream(self, source: BinaryIO, *, compress: bool = False) -> str:
        """Store all that can be read from ``source``, a piece at a time."""
        return self._keep(self.stage_stream(source, compress=compress))

    def put_file(self, path: str | os.PathLike[str], *, compress: bool = False) -> str:
        with open(path, "rb", buffering=0) as source:
            return self.put_stream(source, compress=compress)

    def get(self, address: str) -> bytes | None:
        """The bytes, checked; None when absent, unreadable or damaged."""
        try:
            content, damaged = self.fetch(address)
        except OSError:
            return None
        if damaged is not None:
            self.quarantine(address, damaged)
        return content

    def fetch(self, address: str) -> tuple[bytes | None, os.stat_result | None]:
        """The bytes, checked; or None and, if a file was there but damaged, which file that was.

        OSError passes through: a disk that cannot be read now says nothing about the blob.
        """
        try:
            fd = files.open(self.path(address), files.READ)
        except FileNotFoundError:
            return None, None
        try:
            identity = files.fstat(fd)
            data = files.read_all(fd, identity.st_size)
        finally:
            files.close(fd)
        content = _open_blob(data, address)
        return content, identity if content is None else None

    def copy_to(self, address: str, target: _Sink) -> bool:
        """Write the blob to ``target`` a piece at a time; False when absent or damaged.

        The check is complete only at the end, so ``target`` must be something that
        can be thrown away: callers that hand bytes on use a temporary file.
        """
        pieces = self.pieces(address)
        try:
            while True:
                try:
                    piece = next(pieces, None)
                except DamagedBlobError as error:
                    self.quarantine(address, error.identity)
                    return False
                except OSError:
                    return False
                if piece is None:
                    return True
                target.write(piece)
        finally:
            pieces.close()

    def pieces(self, address: str, *, deep: bool = False) -> Generator[bytes]:
        """The content a piece at a time; checked, and with ``deep`` its BLAKE3 as well, once the last was given.

        Raises FileNotFoundError when absent, DamagedBlobError, or the OSError of a disk
        that cannot be read, which says nothing about the blob.
        """
        fd = files.open(self.path(address), files.READ)
        try:
            identity = files.fstat(fd)
            digest = blake3(max_threads=threads_for(_LARGE)) if deep else None
            for piece in _checked_pieces(fd, identity, address):
                if digest is not None:
                    digest.update(piece)
                yield piece
            if digest is not None and digest.hexdigest() != address:
                raise DamagedBlobError(identity)
        finally:
            files.close(fd)

    def exists(self, address: str) -> bool:
        return files.access(self.path(address), os.F_OK)

    __contains__ = exists

    def delete(self, address: str) -> bool:
        """Whether it was there."""
        try:
            files.unlink(self.path(address))
        except OSError:
            return False
        return True

    def size(self, address: str) -> int | None:
        """Bytes of the content (not of the file, which may be compressed); None when absent."""
        try:
            fd = files.open(self.path(address), files.READ)
            try:
                end = files.fstat(fd).st_size
                trailer = files.pread(fd, TRAILER_SIZE, max(0, end - TRAILER_SIZE))
            finally:
                files.close(fd)
        except OSError:
            return None
        if len(trailer) != TRAILER_SIZE:
            return None
        named, size, _, magic = _TRAILER.unpack_from(trailer)
        return int(size) if magic == _MAGIC and named.hex() == address else None

    def verify(self, address: str | None = None) -> list[str]:
        """Read one blob or all of them, compute their BLAKE3 anew, and return the addresses that were wrong.

        The wrong ones are in quarantine afterwards, but for those that could not be read.
        """
        wrong = []
        for found in [address] if address is not None else list(self):
            try:
                for _ in self.pieces(found, deep=True):
                    pass
            except DamagedBlobError as error:
                wrong.append(found)
                self.quarantine(found, error.identity)
            except FileNotFoundError:
                if address is not None:  # else it was deleted since it was listed
                    wrong.append(found)
            except OSError:
                wrong.append(found)
        return wrong

    def status(self, address: str) -> os.stat_result | None:
        """What ``stat`` says of the blob's file; None when there is none. OSError passes through."""
        try:
            return files.stat(self.path(address), follow_symlinks=False)
        except FileNotFoundError:
            return None

    def __iter__(self) -> Iterator[str]:
        for name, _ in files.walk(self.root, 2):
            if _is_address(name):
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def path(self, address: str) -> str:
        """Where the blob lies. Raises AddressError for anything that is not an address."""
        if not _is_address(address):
            raise AddressError(f"a content address is 64 lower-case hexadecimal digits, not {address!r}")
        return f"{self.root}/{address[:2]}/{address[2:4]}/{address[4:]}"

    def stage(self, data: bytes | bytearray | memoryview, *, compress: bool = False) -> Staged:
        """Write ``data`` under a temporary name, unless it is in place."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise UsageError(f"content is bytes-like, not {type(data).__name__}")
        view = memoryview(data)
        view = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
        address = digest_of(view)
        staged = self._in_place(address)
        if staged is not None:
            return staged
        payload: bytes | memoryview = view
        encoding = _RAW
        if compress:
            packed = _zstd().compress(view)
            if len(packed) < len(view) * _WORTH_IT:
                payload, encoding = packed, _ZSTD
        trailer = _TRAILER.pack(bytes.fromhex(address), len(view), encoding, _MAGIC)
        check = xxh3_128(payload)
        check.update(trailer)
        pieces = [payload, trailer + check.digest()]
        size = len(payload) + TRAILER_SIZE
        path, fd = self._temporary()
        try:
            try:
                files.write_all(fd, pieces, size)
                if self.durable:
                    files.fsync(fd)
            finally:
                files.close(fd)
        except BaseException as error:
            raise _gave_up(path, error) from error
        return Staged(address, size, path)

    def stage_stream(self, source: BinaryIO, *, compress: bool = False) -> Staged:
        """As ``stage``, for what does not fit into memory: written first, named when the digest is known."""
        digest, check = blake3(max_threads=threads_for(_LARGE)), xxh3_128()
        packer = _zstd().ZstdCompressor() if compress else None
        size = written = 0
        path, fd = self._temporary()
        try:
            try:

                def put(piece: bytes) -> None:
                    nonlocal written
                    check.update(piece)
                    written += len(piece)
                    files.write_all(fd, [piece], len(piece))

                while piece := source.read(_PIECE):
                    digest.update(piece)
                    size += len(piece)
                    put(packer.compress(piece) if packer else piece)
                if packer:
                    put(packer.flush())
                address = digest.hexdigest()
                trailer = _TRAILER.pack(bytes.fromhex(address), size, _ZSTD if packer else _RAW, _MAGIC)
                put(trailer)
                files.write_all(fd, [check.digest()], _CHECK_SIZE)
                if self.durable:
                    files.fsync(fd)
            finally:
                files.close(fd)
        except BaseException as error:
            raise _gave_up(path, error) from error
        staged = self._in_place(address)
        if staged is not None:
            remove(path)
            return staged
        return Staged(address, written + _CHECK_SIZE, path)

    def adopt(self, staged: Staged) -> None:
        """Give a staged blob its name. One that was in place has it, unless it was deleted since.

        Two writers of the same blob may both get here: the second replaces the
        first's file by an equal one. OSError passes through.
        """
        path = self.path(staged.address)
        if staged.temporary is None:
            return
        try:
            files.rename(staged.temporary, path)
        except FileNotFoundError:
            files.makedirs(os.path.dirname(path))
            files.rename(staged.temporary, path)
        staged.temporary = None
        if self.durable:
            files.sync_directory(os.path.dirname(path))

    def quarantine(self, address: str, identity: os.stat_result | None) -> None:
        """Move a damaged blob aside, unless it has been replaced since it was read."""
        move_aside(self.path(address), self._quarantine, identity)

    def _keep(self, staged: Staged) -> str:
        temporary = staged.temporary
        try:
            self.adopt(staged)
        except OSError as error:
            raise _gave_up(temporary, error) from error
        return staged.address

    def _in_place(self, address: str) -> Staged | None:
        """A blob that is there already and sound; one that is not gets replaced.

        All of it is read: by its trailer alone a damaged blob would be shared, and the
        entry that was just put lost with it.
        """
        try:
            for _ in self.pieces(address):
                pass
            info = self.status(address)
        except (DamagedBlobError, OSError):
            return None
        return Staged(address, info.st_size, None) if info is not None else None

    def _temporary(self) -> tuple[str, int]:
        path = f"{self._temporaries}/{files.unique_name()}"
        try:
            try:
                return path, files.open(path, files.CREATE, files.PRIVATE_FILE)
            except FileNotFoundError:
                files.makedirs(os.path.dirname(path))
                return path, files.open(path, files.CREATE, files.PRIVATE_FILE)
        except OSError as error:
            raise _gave_up(None, error) from error


def move_aside(path: str, quarantine: str, identity: os.stat_result | None, keep: int = 32) -> bool:
    """Move a damaged file to ``quarantine``, which holds at most ``keep`` of them.

    ``identity`` is the file that was found damaged: another one under the same name
    is a newer write and stays. Whether the damaged file is gone from its place.
    """
    try:
        info = files.stat(path, follow_symlinks=False)
        if identity is not None and (info.st_ino, info.st_mtime_ns) != (identity.st_ino, identity.st_mtime_ns):
            return False
        try:
            files.makedirs(quarantine)
            if len(files.listdir(quarantine)) < keep:
                files.rename(path, f"{quarantine}/{os.path.basename(path)}.{files.unique_name()}")
                return True
        except OSError:
            pass  # no room to keep it for inspection: it must go all the same
        files.unlink(path)
    except OSError:
        return False
    return True


def remove(path: str | None) -> None:
    """Unlink what may be gone already."""
    if path is not None:
        try:
            files.unlink(path)
        except OSError:
            pass  # a temporary file left behind is swept later


def _gave_up(path: str | None, error: BaseException) -> BaseException:
    """Clean up after a failed write; what to raise instead of an OSError without context."""
    remove(path)
    if isinstance(error, OSError) and not isinstance(error, StoreError):
        wrapped = StoreError(f"the blob could not be written: {error.strerror or error}")
        wrapped.errno = error.errno
        return wrapped
    return error


def digest_named(name: str) -> bytes | None:
    """The digest a file is named after; None for a stranger's file, which is nothing of ours to count or to remove."""
    return bytes.fromhex(name) if _is_address(name) else None


def _is_address(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and not text.strip("0123456789abcdef")


def _open_blob(data: bytes, address: str) -> bytes | None:
    """The content of a blob's file if it is what its address says, else None."""
    end = len(data) - TRAILER_SIZE
    if end < 0:
        return None
    view = memoryview(data)
    named, size, encoding, magic = _TRAILER.unpack_from(data, end)
    if xxh3_128(view[:-_CHECK_SIZE]).digest() != data[-_CHECK_SIZE:] or magic != _MAGIC or named.hex() != address:
        return None
    if encoding == _RAW:
        return data[:end] if size == end else None
    zstd = _zstd()
    try:
        content: bytes = zstd.decompress(view[:end])
    except (zstd.ZstdError, EOFError):  # the checksum held: only a foreign writer gets here
        return None
    return content if len(content) == size else None


def _checked_pieces(fd: int, identity: os.stat_result, address: str) -> Iterator[bytes]:
    left = identity.st_size - TRAILER_SIZE
    trailer = files.read_at(fd, TRAILER_SIZE, left) if left >= 0 else b""
    if len(trailer) != TRAILER_SIZE:
        raise DamagedBlobError(identity)
    named, size, encoding, magic = _TRAILER.unpack_from(trailer)
    if magic != _MAGIC or named.hex() != address:
        raise DamagedBlobError(identity)
    check = xxh3_128()
    given = 0
    unpacker = _zstd().ZstdDecompressor() if encoding == _ZSTD else None
    while left:
        piece = files.read(fd, min(_PIECE, left))
        if not piece:
            raise DamagedBlobError(identity)
        left -= len(piece)
        check.update(piece)
        while piece or (unpacker is not None and not unpacker.needs_input and not unpacker.eof):
            content = piece
            if unpacker is not None:
                try:
                    # A megabyte of zstd may hold gigabytes: they come out a piece at a time too.
                    content = unpacker.decompress(piece, _PIECE)
                except (EOFError, _zstd().ZstdError):
                    raise DamagedBlobError(identity) from None
            piece = b""
            given += len(content)
            if content:
                yield content
    check.update(trailer[: _TRAILER.size])
    if check.digest() != trailer[_TRAILER.size :] or given != size:
        raise DamagedBlobError(identity)


def _zstd() -> Any:
    """The zstd module: in the standard library from 3.14 on, a backport before. Imported only where it is used."""
    try:
        from compression import zstd
    except ImportError:
        from backports import zstd
    return zstd

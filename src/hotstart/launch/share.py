"""``hotstart run`` and the remote: a workload is brought here before it starts, and published when it made more.

Both happen in a process of their own, forked before anything of ``remote`` is imported: a
remote that hangs can then be ended at any time, and the command is started by a process
without threads of a client. What a remote does never reaches the command.

    HOME/launch/asked/REMOTE-NAME   a remote has said what it has of this workload; empty

So a workload that is new to a machine is asked for once, and from then on only when
something has to be restored anyway.
"""

from __future__ import annotations

import os
from zlib import crc32

from .. import log
from . import state
from .names import shared_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..store.local import LocalStore
    from .inventory import Inventory
    from .session import Session

#: A remote that gives no sign for this long, in seconds, is given up, whatever its own time-outs say: a dead NFS
#: server blocks whoever asks it in the kernel.
SILENCE = 60.0

#: How often somebody who wants us to stop is looked for, in seconds.
_LOOK = 0.05

_SIGKILL = 9


def is_known(session: Session) -> bool:
    """Whether the remote was asked for this workload before, and answered."""
    return os.path.exists(_mark(session, session.workload))


def _mark(session: Session, workload: str) -> str:
    where = f"{session.config['remote']}\0{session.config['scope']}".encode("utf-8", "surrogatepass")
    return f"{state.directory(session.home)}/asked/{crc32(where):08x}-{shared_name(workload)}"


def bring(session: Session, stop: Callable[[], bool]) -> bool:
    """Pull what this run wants from the remote; whether entries came. The caller holds the turn.

    Its own workload only if directories are not as they were or nobody has asked yet: whoever
    had the turn before may have done it. What was named by ``--prefetch``, always.
    """
    known = state.read(session.home, session.root)
    wanted = list(session.prefetch)
    if known is None or known.changed() or not is_known(session):
        wanted.insert(0, session.workload)
    if not wanted:
        return False
    names = list(dict.fromkeys(wanted))
    done = _apart(lambda beat: _pull(session, names, beat), stop, SILENCE)
    if done is None:
        session.troubles.append("the remote was given up while a workload was being pulled")
        state.forget(session.home)  # entries may have come
        return True
    for name in done["answered"]:
        _note_answer(_mark(session, name))
    session.shared["pulled"] = {key: done[key] for key in ("entries", "bytes", "present", "failed", "requests")}
    if done["entries"]:
        # Before they are restored: a run that is ended meanwhile leaves them for the next to see.
        state.forget(session.home)
    return bool(done["entries"])


def publish(session: Session, limit: float, stop: Callable[[], bool]) -> None:
    """Push the groups this workload used when it ran last, for at most ``limit`` seconds."""
    from . import inventory

    known = inventory.load(session.home)
    digests = _digests(known, session.workload) if known is not None else []
    if not digests or limit <= 0:
        return
    from time import monotonic

    deadline = monotonic() + limit
    done = _apart(lambda beat: _push(session, digests, beat), lambda: stop() or monotonic() > deadline, limit)
    if done is None:
        # Packs that went out stay, and are found by the next push; a manifest comes last or not at all.
        log.say("warning", f"there was no time to publish {session.workload}: the next run that compiles does")
        session.troubles.append("there was no time to publish")
    elif done:
        session.shared["pushed"] = done


def _digests(known: Inventory, workload: str) -> list[str]:
    """Of all parts of the groups in its roster, and of those that they need."""
    from .parcel import key

    found: dict[str, None] = {}
    labels = list(known.rosters.get(workload, ()))
    seen = set(labels)
    for label in labels:
        group = known.groups.get(label)
        if group is None:
            continue
        for part in range(group.parts):
            found[key(group.framework, group.name, part).digest] = None
        labels += [need for need in group.needs if need not in seen]
        seen.update(group.needs)
    return list(found)


def _note_answer(path: str) -> None:
    from ..store import files

    try:
        files.makedirs(os.path.dirname(path))
        files.close(files.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, files.PRIVATE_FILE))
    except OSError:
        pass  # asked again next time


# -- in a process of its own -----------------------------------------------------


def _pull(session: Session, names: list[str], beat: Callable[..., object]) -> dict[str, Any]:
    done: dict[str, Any] = {"entries": 0, "bytes": 0, "present": 0, "failed": 0, "requests": 0, "answered": []}
    opened = _open(session)
    if opened is None:
        return done
    from ..remote.workloads import pull

    tier, disk = opened
    for name in names:
        came = pull(tier, disk, shared_name(name), beat)
        for key in ("entries", "bytes", "present", "failed", "requests"):
            done[key] += getattr(came, key)
        if not came.unanswered and not came.failed:
            done["answered"].append(name)
        if came.failed:
            log.say("warning", f"{came.failed} entries of {name} did not come", once="pull failed")
    disk.close()
    return done


def _push(session: Session, digests: Iterable[str], beat: Callable[..., object]) -> dict[str, Any]:
    opened = _open(session)
    if opened is None or not opened[0].writable:
        return {}
    from ..remote.contract import RemoteError
    from ..remote.workloads import push

    tier, disk = opened
    before = set(log._said)
    try:
        done = push(tier, disk, shared_name(session.workload), digests, beat)
    except RemoteError as error:
        if log._said == before:  # else its guard has said it
            log.say("warning", f"{session.workload} was not published: {error}")
        return {}
    disk.close()
    return {key: getattr(done, key) for key in ("entries", "bytes", "present", "foreign", "failed", "requests")}


def _open(session: Session) -> tuple[Any, LocalStore] | None:
    cache = session.config.open(memory=0, path=f"{session.home}/store", under=[])
    tier = cache.sharing.tier if cache.sharing is not None else None
    return (tier, cache.disk) if tier is not None and cache.disk is not None else None


def _apart(work: Callable[[Callable[..., object]], Any], stop: Callable[[], bool], silence: float) -> Any:
    """What ``work`` returns, done in a child; None when it was ended because of ``stop`` or gave no sign so long.

    ``work`` is given a function to call as it gets on. What it raises is raised here, as OSError.
    """
    import json

    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            try:
                made = {"done": work(lambda *_: os.write(writer, b"."))}
            except Exception as error:
                made = {"error": f"{type(error).__name__}: {error}"}
            os.write(writer, b"\n" + json.dumps({**made, "said": sorted(log._said)}).encode())
        finally:
            os._exit(0)  # also when nobody listens any more
    os.close(writer)
    answer = None
    try:
        answer = _listen(reader, stop, silence)
    finally:
        os.close(reader)
        if answer is None:
            os.kill(pid, _SIGKILL)
        _reap(pid)
    if answer is None:
        return None
    try:
        told = json.loads(answer)
    except ValueError:
        raise OSError("the process that asked the remote died") from None
    log._said.update(told["said"])  # said once is enough, whichever process it was
    if "error" in told:
        raise OSError(told["error"])
    return told["done"]


def _listen(reader: int, stop: Callable[[], bool], silence: float) -> bytes | None:
    """The last line that comes before the end; None if it was not waited for."""
    from select import select
    from time import monotonic

    heard = b""
    last = monotonic()
    while True:
        if select([reader], [], [], _LOOK)[0]:
            piece = os.read(reader, 1 << 16)
            if not piece:
                return heard.rpartition(b"\n")[2]
            heard += piece
            last = monotonic()
        if stop() or monotonic() - last > silence:
            return None


def _reap(pid: int) -> None:
    """Not waited for longer than a moment: a child that is blocked in the kernel may stay for ever."""
    from time import sleep

    for pause in (0.0, 0.001, 0.01, 0.05, 0.2):
        sleep(pause)
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return

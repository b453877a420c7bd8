"""``hotstart run`` and the remote: a workload is brought here before it starts, and published when it made more.

Both happen in a process of their own, forked before anything of ``remote`` is imported: a
remote that hangs can then be ended at any time, and the command is started by a process
without threads of a client. What a remote does never reaches the command. ``hotstart.init()``
is called by a program that may have threads, and a client of its own: for that the process
is started afresh.

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

    from ..config import Config
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
    # Without passwords: four bytes of a digest are enough to try words against.
    remote = "://".join(part.rpartition("@")[2] for part in session.config["remote"].split("://"))
    where = f"{remote}\0{session.config['scope']}".encode("utf-8", "surrogatepass")
    return f"{state.directory(session.home)}/asked/{crc32(where):08x}-{shared_name(workload)}"


def bring(session: Session, stop: Callable[[], bool], *, fresh: bool = False) -> bool:
    """Pull what this run wants from the remote; whether entries came. The caller holds the turn.

    ``fresh``: this process cannot simply be forked.

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
    done = _apart(session, {"pull": names}, stop, SILENCE, fresh)
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


def publish(session: Session, limit: float, stop: Callable[[], bool], *, fresh: bool = False) -> None:
    """Push the groups this workload used when it ran last, for at most ``limit`` seconds. ``fresh`` as in ``bring``."""
    from . import inventory

    known = inventory.load(session.home)
    digests = _digests(known, session.workload) if known is not None else []
    if not digests or limit <= 0:
        return
    from time import monotonic

    deadline = monotonic() + limit
    done = _apart(session, {"push": digests}, lambda: stop() or monotonic() > deadline, limit, fresh)
    if done is None:
        # Packs that went out stay, and are found by the next push; a manifest comes last or not at all.
        log.say(
            "warning",
            f"there was no time to publish {session.workload}: the next run that compiles sends the rest,"
            f" or now `hotstart push {_quoted(session.workload)}`",
        )
        session.troubles.append("there was no time to publish")
    elif done:
        session.shared["pushed"] = done


def _quoted(name: str) -> str:
    from shlex import quote

    return quote(name)


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


class _Asker:
    """What of a session the process that asks a remote needs."""

    def __init__(self, config: Config, home: str, workload: str) -> None:
        self.config = config
        self.home = home
        self.workload = workload


def _do(asker: Session | _Asker, asked: dict[str, list[str]], beat: Callable[..., object]) -> dict[str, Any]:
    return _pull(asker, asked["pull"], beat) if "pull" in asked else _push(asker, asked["push"], beat)


def _pull(asker: Session | _Asker, names: list[str], beat: Callable[..., object]) -> dict[str, Any]:
    done: dict[str, Any] = {"entries": 0, "bytes": 0, "present": 0, "failed": 0, "requests": 0, "answered": []}
    opened = _open(asker)
    if opened is None:
        return done
    from ..remote.workloads import pull

    tier, disk = opened
    for name in names:
        came = pull(tier, disk, shared_name(name), beat)
        for key in ("entries", "bytes", "present", "failed", "requests"):
            done[key] += getattr(came, key)
        # What the remote has lost does not come by asking at every start; a push brings it back.
        if not came.unanswered and came.failed == came.gone:
            done["answered"].append(name)
        if came.failed > came.gone:
            log.say("warning", f"{came.failed} entries of {name} did not come", once="pull failed")
    disk.close()
    return done


def _push(asker: Session | _Asker, digests: Iterable[str], beat: Callable[..., object]) -> dict[str, Any]:
    opened = _open(asker)
    if opened is None or not opened[0].writable:
        return {}
    from ..remote.contract import RemoteError
    from ..remote.pushing import push

    tier, disk = opened
    before = log.said()
    try:
        done = push(tier, disk, shared_name(asker.workload), digests, beat)
    except RemoteError as error:
        if log.said() == before:  # else its guard has said it
            log.say("warning", f"{asker.workload} was not published: {error}")
        return {}
    disk.close()
    return {key: getattr(done, key) for key in ("entries", "bytes", "present", "foreign", "failed", "requests")}


def _open(asker: Session | _Asker) -> tuple[Any, LocalStore] | None:
    cache = asker.config.open(memory=0, path=f"{asker.home}/store", under=[])
    tier = cache.sharing.tier if cache.sharing is not None else None
    return (tier, cache.disk) if tier is not None and cache.disk is not None else None


def _apart(session: Session, asked: dict[str, list[str]], stop: Callable[[], bool], silence: float, fresh: bool) -> Any:
    """What came of it, done in a child; None when that was ended because of ``stop`` or gave no sign so long.

    What goes wrong there is raised here, as OSError.
    """
    import json

    pid, reader = (_start if fresh else _fork)(session, asked)
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
    log.note_said(told["said"])
    if "error" in told:
        raise OSError(told["error"])
    return told["done"]


def _fork(session: Session, asked: dict[str, list[str]]) -> tuple[int, int]:
    """A child that does it, and where to hear of it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            _report(session, asked, writer)
        finally:
            os._exit(0)  # also when nobody listens any more
    os.close(writer)
    return pid, reader


def _start(session: Session, asked: dict[str, list[str]]) -> tuple[int, int]:
    """The same in a process that has nothing of this one."""
    import json
    import subprocess
    import sys

    if not sys.executable:
        raise OSError("this program knows of no interpreter to start")
    config = session.config
    said = {
        "values": config.values, "sources": config.sources, "remote_of_project": config.remote_of_project,
        "home": session.home, "workload": session.workload, "asked": asked, "said": sorted(log.said()),
    }  # fmt: skip
    program = f"import sys; sys.path[:] = {sys.path!r}; from hotstart.launch.share import main; main()"
    reader, writer = os.pipe()
    try:
        # Its own session: a Ctrl-C is for the program, which then ends this one.
        started = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=writer, start_new_session=True
        )
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    assert started.stdin is not None
    try:
        # Through a pipe: settings may hold a password, and everybody can read a command line.
        started.stdin.write(json.dumps(said).encode())
        started.stdin.close()
    except OSError:
        pass  # it died at once; that is heard below
    started.returncode = 0  # waited for by us
    return started.pid, reader


def main() -> None:
    """The process that ``_start`` starts."""
    import json
    import sys

    said = json.loads(sys.stdin.buffer.read())
    writer = os.dup(1)
    os.dup2(2, 1)  # nothing else is to get among what is reported
    from ..config import Config

    log.note_said(said["said"])
    config = Config(said["values"], said["sources"], remote_of_project=said["remote_of_project"])
    try:
        _report(_Asker(config, said["home"], said["workload"]), said["asked"], writer)
    finally:
        os._exit(0)


def _report(asker: Session | _Asker, asked: dict[str, list[str]], writer: int) -> None:
    """Do it, with a dot for each step and a line of JSON at the end."""
    import json

    made: dict[str, Any]
    try:
        made = {"done": _do(asker, asked, lambda *_: os.write(writer, b"."))}
    except Exception as error:
        made = {"error": f"{type(error).__name__}: {error}"}
    data = b"\n" + json.dumps({**made, "said": sorted(log.said())}).encode()
    while data:
        data = data[os.write(writer, data) :]


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

"""``hotstart run``: set, restore, start, wait, capture, say.

In a run in which nothing is missing and nothing is new this file, the table and a handful of
small modules are all that is imported; everything else waits behind a directory that is not
as it was.
"""

from __future__ import annotations

import os
import sys

from ..config import home_directory, load
from ..errors import HotstartError, UsageError
from . import child, state
from .environment import MARK, directories, plan, users_locale

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .environment import Plan
    from .session import Session

#: Seconds that capturing may take once the command was killed or told to stop. Kubernetes gives thirty in all.
GRACE = 20.0

#: A command that used less processor time than this, in seconds, has imported no framework: importing
#: the smallest takes longer. Nobody asks then which files were read.
_IMPORTED_SOMETHING = 0.4


def run(
    command: list[str],
    *,
    name: str | None = None,
    only: list[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    grace: float | None = None,
    quiet: bool = False,
    prefetch: list[str] | None = None,
) -> int:
    """Run ``command`` with every framework's cache in our directories; its exit status.

    If a signal ended it, the same signal ends this process. 127 and 126 for what cannot be
    found or started, as from a shell. Whatever is wrong with the store or the remote, the
    command runs. ``prefetch`` names further workloads to bring from the remote.
    Raises UsageError for an unknown name in ``only`` and for an empty command.
    """
    if not command:
        raise UsageError("run: no command was given; for example: hotstart run python train.py")
    environ = dict(os.environ)
    users_locale(environ)
    opened = _open(environ, only, force, name or workload(command))
    if dry_run:
        return _show(opened)
    mask = child.block()
    try:
        if opened is None:
            return child.become(command, environ, mask)
        session, planned = opened
        session.prefetch = prefetch or []
        environ.update(planned.variables)
        environ[MARK] = session.id
        return _run(session, planned, command, environ, mask, GRACE if grace is None else grace, quiet)
    except child.CannotStartError as error:
        say(str(error))
        return error.status


def _run(
    session: Session,
    planned: Plan,
    command: list[str],
    environ: dict[str, str],
    mask: set[int],
    grace: float,
    quiet: bool,
) -> int:
    session.command, session.environ = command, environ
    session.begin()
    try:
        known = state.read(session.home, session.root)
        if known is None or known.changed() or is_new_here(session):
            _attempt(session, "restore", lambda: _restore(session, catalogue=known is None))
            known = state.read(session.home, session.root)
        asked = child.asked_to_end()
        if asked:  # while we restored: the command would have been ended by it
            session.end()
            return child.end_like(asked, mask)
        pid = child.start(command, environ, mask)
        ended = child.watch(pid)
        changed = known is None or known.changed()
        if changed or session.events or ended.seconds > _IMPORTED_SOMETHING:
            hurry = ended.told or os.WIFSIGNALED(ended.status)
            time = _Time(grace if hurry else None)
            _attempt(session, "capture", lambda: _capture(session, time))
            # Before anything is sent, which may take long enough for somebody to end us.
            _attempt(session, "record", lambda: _record(session, planned, command, environ, ended))
            if has_remote(session) and any(event.event == "new" for event in session.events):
                _attempt(session, "publishing", lambda: _publish(session, time, grace))
    finally:
        session.end()
    if not quiet and (session.events or planned.left) and _on_terminal():
        _attempt(session, "summary", lambda: _summarise(session, planned))
    return child.end_like(ended.status, mask)


def workload(command: list[str]) -> str:
    """What to call a command when nobody says: its script or module, else its own name."""
    words = iter(command)
    called = os.path.basename(next(words)) or "command"
    if called.startswith(("python", "pypy", "torchrun")):
        for word in words:
            if word == "-m":
                called = next(words, called)
                break
            if word == "-c":
                break
            if not word.startswith("-"):
                called = os.path.basename(word) or called
                break
    plain = "".join(sign if sign.isprintable() and sign not in "/\\" else "_" for sign in called)
    return plain.strip()[:128] or "command"


def _open(environ: dict[str, str], only: list[str] | None, force: bool, called: str) -> tuple[Session, Plan] | None:
    """The session, and what to set; None when hotstart is off or has no place to keep anything, which is said."""
    try:
        config = load()
        if config["disable"]:
            return None
        home = os.path.abspath(home_directory(config["home"]))
        root = directories(home)
    except (HotstartError, OSError) as error:
        say(f"{error}; the command runs without a cache")
        return None
    if not os.access(root, os.W_OK | os.X_OK):
        say(f"{root} cannot be written; the command runs without a cache")
        return None
    planned = plan(root, environ, only, force=force)
    from .session import Session

    return Session(config, home, root, planned.rows, called), planned


def has_remote(session: Session) -> bool:
    """Whether a remote is configured and this run may use it."""
    return bool(session.config["remote"]) and not session.config["offline"] and not session.read_only


def is_new_here(session: Session) -> bool:
    """Whether there is a remote to ask though all that is known is in place."""
    if not has_remote(session):
        return False
    if session.prefetch:
        return True
    from .share import is_known

    return not is_known(session)


def _restore(session: Session, *, catalogue: bool) -> None:
    from .restore import bring_back

    bring_back(session, catalogue=catalogue, fetch=(lambda: _fetch(session)) if has_remote(session) else None)


def _fetch(session: Session) -> bool:
    from .share import bring

    try:
        return bring(session, child.asked_to_stop)
    except OSError as error:
        say(f"nothing was pulled: {error}")  # and what is here is restored all the same
        session.troubles.append(f"pull: {error}")
        return False


class _Time:
    """How long what follows the command may take: ``grace`` seconds from now, or until somebody asks us to end."""

    def __init__(self, grace: float | None) -> None:
        from time import monotonic

        self.now = monotonic
        self.grace = grace
        self.deadline = monotonic() + grace if grace is not None else None
        self.asked = child.asked_to_stop()  # what came while the command was ending was meant for the command

    def is_up(self) -> bool:
        late = self.deadline is not None and self.now() > self.deadline
        return late or (not self.asked and child.asked_to_stop())


def _capture(session: Session, time: _Time) -> None:
    from .capture import take_in

    take_in(session, 30.0 if time.grace is None else time.grace, time.is_up)


def _publish(session: Session, time: _Time, grace: float) -> None:
    if time.is_up():
        return
    from .share import publish

    publish(session, grace if time.deadline is None else time.deadline - time.now(), time.is_up)


def _attempt(session: Session, what: str, work: Any) -> None:
    """Do ``work``. Whatever goes wrong with it is said in a line and is no reason not to run the command."""
    try:
        work()
    except Exception as error:  # the user's program comes first, whatever we got wrong
        if os.environ.get("HOTSTART_LOG", "").lower() == "debug":
            import traceback

            traceback.print_exc()
        if not session.broken:  # the same cause is likely to come again at the end
            session.broken = True
            say(f"{what} failed: {type(error).__name__}: {error}")
        session.troubles.append(f"{what}: {error}")


def _record(session: Session, planned: Plan, command: list[str], environ: dict[str, str], ended: child.Ended) -> None:
    from .report import record

    record(session, planned, command, environ, ended)


def _summarise(session: Session, planned: Plan) -> None:
    from .report import line

    text = line(session, planned)
    if text:
        say(text)


def _show(opened: tuple[Session, Plan] | None) -> int:
    """``--dry-run``: what would be set, and what left alone."""
    if opened is None:
        print("nothing would be set")
        return 0
    session, planned = opened
    for variable, value in planned.variables.items():
        print(f"{variable}={value}")
    for framework, kept in planned.left.items():
        print(f"# {framework}: {', '.join(kept)} stay as they are")
    known = state.read(session.home, session.root)
    if known is None or known.changed():
        print("# directories have changed: what is missing would be restored")
    return 0


def _on_terminal() -> bool:
    try:
        return sys.stderr is not None and os.isatty(2)
    except OSError:
        return False


def say(message: str) -> None:
    """Our part, in one line on stderr. Nothing where there is none."""
    if sys.stderr is None:
        return  # descriptor 2 may by now be another file
    line = f"hotstart: {' '.join(message.split())}\n"
    try:
        os.write(2, line.encode("utf-8", "surrogateescape"))
    except OSError:
        pass  # closed, or nobody reads it

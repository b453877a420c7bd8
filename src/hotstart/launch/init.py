"""``hotstart.init()``: what ``hotstart run`` does, for those who own the first line of a program."""

from __future__ import annotations

import os
import sys

from ..compilers.contract import AT_IMPORT, AT_START
from ..config import home_directory, load
from ..errors import HotstartError
from ..log import say
from . import state
from .environment import MARK, directories, plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .environment import Plan
    from .session import Session

#: Seconds that capturing may take as the program ends.
GRACE = 20.0

_session: Session | None = None


def init(
    only: list[str] | None = None, *, force: bool = False, capture: bool = True, name: str | None = None
) -> dict[str, str]:
    """Redirect every framework's cache in this process and its children; where each one went, by framework.

    To be called before the frameworks are imported: one that has read its variables already is
    warned about by name and left out. Restores what is missing first, and takes in what is new
    when this process ends (not with ``capture=False``, nor under ``hotstart run``, which does it).
    With a remote the workload ``name`` (that of the script unless given) is pulled first and what is
    new is published at the end, as ``hotstart run`` does; within seconds, whatever the remote does.
    Calling it again is harmless. Raises UsageError for an unknown name in ``only`` and for a ``name``
    that cannot be one; where there is no place for a store, or hotstart is turned off, it returns {}
    and the program goes on.
    """
    global _session
    try:
        config = load()
        if config["disable"]:
            return {}
        home = os.path.abspath(home_directory(config["home"]))
        root = directories(home)
    except (HotstartError, OSError) as error:
        say("warning", f"{error}; caches stay where they are", once="init")
        return {}
    planned = plan(root, os.environ, only, force=force)
    late = _too_late(planned)
    under_run = bool(os.environ.get(MARK))
    if _session is None and not under_run:
        from .names import check_name
        from .run import workload
        from .session import Session

        called = check_name(name) if name is not None else workload([sys.executable, *sys.argv[:1]])
        _session = Session(config, home, root, planned.rows, called)
        _session.command, _session.environ = [sys.executable, *sys.argv], {**os.environ, **planned.variables}
        _session.begin()
        _restore(_session)
        if capture:
            import atexit

            atexit.register(_at_exit, _session, planned, os.getpid())
    os.environ.update(planned.variables)
    return {row.name: f"{root}/{row.variables[0].path}" for row in planned.rows if row.name not in late}


def _too_late(planned: Plan) -> set[str]:
    """Frameworks that have read their variables; those that have our values are fine."""
    late = set()
    for row in planned.rows:
        if all(os.environ.get(item.name) == planned.variables.get(item.name) for item in row.variables):
            continue
        loaded = [module for module in row.modules if module in sys.modules]
        if row.read in (AT_IMPORT, AT_START) and loaded:
            late.add(row.name)
            say(
                "warning",
                f"{row.title} was imported ({loaded[0]}) before hotstart.init(): its cache stays where it is;"
                " call init() first, or use hotstart run",
                once=f"late {row.name}",
            )
    return late


def _restore(session: Session) -> None:
    from .run import has_remote, is_new_here

    known = state.read(session.home, session.root)
    if known is not None and not known.changed() and not is_new_here(session):
        return
    from .restore import bring_back

    try:
        bring_back(session, catalogue=known is None, fetch=(lambda: _fetch(session)) if has_remote(session) else None)
    except Exception as error:  # the program comes first, whatever we got wrong
        say("warning", f"restore failed: {type(error).__name__}: {error}")


def _fetch(session: Session) -> bool:
    from .share import bring

    try:
        return bring(session, lambda: False, fresh=True)
    except OSError as error:
        say("warning", f"nothing was pulled: {error}")  # and what is here is restored all the same
        session.troubles.append(f"pull: {error}")
        return False


def _at_exit(session: Session, planned: Plan, process: int) -> None:
    """Take in what is new, in the process that called ``init`` and not in those it forked."""
    if os.getpid() != process:
        return
    from time import monotonic, process_time

    from .capture import take_in
    from .child import Ended
    from .report import record
    from .run import has_remote

    deadline = monotonic() + GRACE
    try:
        known = state.read(session.home, session.root)
        if session.events or known is None or known.changed() or process_time() > 0.5:
            take_in(session, GRACE, lambda: monotonic() > deadline)
            command = [sys.executable, *sys.argv]
            record(session, planned, command, dict(os.environ), Ended(0, process_time(), told=False))
            if has_remote(session) and any(event.event == "new" for event in session.events):
                from .share import publish

                publish(session, deadline - monotonic(), lambda: False, fresh=True)
    except Exception as error:  # as the program ends nobody is there to handle it
        say("warning", f"capture failed: {type(error).__name__}: {error}")
    finally:
        session.end()

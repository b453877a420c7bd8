"""Single flight across hosts, as a state machine without a clock, a network or a thread.

Who wants an entry that nobody has published asks a ``Seeker`` what to do next and tells
it what came of it. ``remote/leases`` carries the steps out against a real remote,
``benchmarks/simulation`` against a modelled one: it is the same machine.

    lease N     an object, created and never changed; N counts from 1
    holder      who created the highest N; to say that it lives it creates N + 1, …
    observer    has seen N; when by its own clock a lease time has passed since it first
                saw it, and nothing newer came, the holder is dead: it creates N + 1 itself

No time is ever compared between two machines. Creation decides, so of many who take over
one does. A holder that is done has published first and then removes its leases; one that
failed only removes them. So leases that vanish without an entry mean: compile alone. And
whoever has waited long enough, or cannot ask, compiles alone too: waiting is a favour,
never a condition.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds after which a holder that has not renewed is taken for dead.
LEASE = 20.0

#: A holder renews this many times within a lease.
RENEWALS = 3

#: The first pause between two looks; then this part of the time waited so far, up to a quarter of the lease.
_FIRST_PAUSE = 0.1
#: The first pause when the remote asks everybody to slow down.
_BUSY_PAUSE = 1.0
_GROWTH = 0.5
_LONGEST = 0.25

# Steps: what to do, with a number where there is one.
LOOK = "look"  # is the entry there? → told_look
PEEK = "peek"  # is lease N there, and N + 1? → told_peek
SURVEY = "survey"  # which is the highest lease? → told_survey
CREATE = "create"  # create lease N → told_create
PAUSE = "pause"  # let so many seconds pass → told_pause
LEAD = "lead"  # compile, as the holder of lease N
ALONE = "alone"  # compile, without a lease
DONE = "done"  # the entry is there


class Seeker:
    """One who wants an entry that it has just found absent.

    ``step`` is what to do now, ``number`` belongs to it. ``patience`` is the longest
    that anybody waits; ``chance()`` gives numbers from 0 to 1 to spread the looks.
    """

    __slots__ = (
        "_chance", "_lease", "_patience", "_peeked", "_seen", "_since", "_started", "created", "number", "step", "why",
    )  # fmt: skip

    def __init__(self, now: float, chance: Callable[[], float], *, lease: float = LEASE, patience: float) -> None:
        self._chance = chance
        self._lease = lease
        self._patience = patience
        self._started = now
        #: The highest lease seen, and since when by our clock.
        self._seen = 0
        self._since = now
        #: When we last looked after the leases themselves.
        self._peeked = now
        #: The lease that is ours, if any: to be removed when all is done.
        self.created = 0
        #: Why it is compiled alone.
        self.why = ""
        self.step, self.number = PEEK, 1.0

    def told_peek(self, now: float, here: bool, next_here: bool) -> None:
        """What became of ``PEEK N``."""
        number = int(self.number)
        self._peeked = now
        if next_here:
            self.step = SURVEY
        elif here:
            self._observed(now, number)
        elif self._seen == 0:
            self.step, self.number = CREATE, 1.0
        else:
            self._vanished()

    def told_survey(self, now: float, highest: int) -> None:
        if highest:
            self._observed(now, highest)
        elif self._seen == 0:
            self.step, self.number = CREATE, 1.0
        else:
            self._vanished()

    def told_create(self, now: float, created: bool) -> None:
        if created:
            self.created = int(self.number)
            # Another may have published and removed its lease since we looked.
            self.step = LOOK
        else:
            self.step, self.number = PEEK, float(max(self._seen, 1))

    def told_look(self, now: float, there: bool) -> None:
        if there:
            self.step = DONE
        elif self.created:
            self.step, self.number = LEAD, float(self.created)
        elif self.why == "vanished":
            self.step = ALONE
        elif self._seen and now - self._peeked < renewal_after(self._lease) and now - self._since < self._lease:
            # The entry is asked for at every look, the leases only as often as they can change: a third of the cost.
            self._observed(now, self._seen)
        else:
            self.step, self.number = PEEK, float(max(self._seen, 1))

    def told_busy(self, now: float) -> None:
        """The remote asks everybody to slow down: nothing was learnt, and a little later it may be."""
        if now - self._started >= self._patience:
            self.step, self.why = ALONE, "patience"
        else:
            self._pause(now, self._started + self._patience, _BUSY_PAUSE)

    def told_pause(self, now: float) -> None:
        self.step = LOOK

    def failed(self, why: str) -> None:
        """The remote could not be asked."""
        self.step, self.why = ALONE, why

    def _vanished(self) -> None:
        """The holder is done, or has failed: one last look tells which."""
        self.step, self.why = LOOK, "vanished"

    def _observed(self, now: float, number: int) -> None:
        if number > self._seen:
            self._seen, self._since = number, now
        if now - self._started >= self._patience:
            self.step, self.why = ALONE, "patience"
        elif now - self._since >= self._lease:
            self.step, self.number = CREATE, float(self._seen + 1)
        else:
            self._pause(now, min(self._since + self._lease, self._started + self._patience))

    def _pause(self, now: float, until: float, first: float = _FIRST_PAUSE) -> None:
        """Longer the longer it takes, spread by chance, and not past what has to be noticed."""
        longest = min(_LONGEST * self._lease, max(first, _GROWTH * (now - self._started)))
        self.step, self.number = PAUSE, max(0.0, min(longest * (0.75 + 0.5 * self._chance()), until - now))


def renewal_after(lease: float = LEASE) -> float:
    """Seconds between two renewals of a holder."""
    return lease / RENEWALS

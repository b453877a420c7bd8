"""Why something will not start hot: one exception, carrying the sentence that people read."""

from __future__ import annotations


class NotHotError(Exception):
    """This call runs as plain torch.compile. ``reason`` says why, ``advice`` what would change that.

    ``expected``: nobody has to be told unasked, as of training.

    Never leaves ``hotstart.torch``: the wrapper catches it, records it and calls torch.compile.
    """

    def __init__(self, reason: str, advice: str = "", *, expected: bool = False) -> None:
        super().__init__(f"{reason}; {advice}" if advice else reason)
        self.reason = reason
        self.advice = advice
        self.expected = expected

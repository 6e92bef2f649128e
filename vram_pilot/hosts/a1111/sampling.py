"""Which round of denoiser calls begins a step of the sampler. Pure."""

from __future__ import annotations

#: Samplers that make the first round ahead of their first step, and so one less in the last.
AHEAD = ("UniPC",)


class StepCounter:
    """One pass of one sampler.

    The WebUI says when it asks the denoiser (a round), and, somewhere within each step, that the sampler reports it. A sampler
    of the second order makes two rounds a step, PLMS two in its first step only; the last step of most makes one.

    total: steps of the pass, as the WebUI's progress counts them; name: the sampler's.
    """

    def __init__(self, total: int, *, name: str, second_order: bool) -> None:
        self.total = total
        self.index = -1
        self._rounds_needed = 2 if second_order else 1
        self._rounds = 0
        self._ahead = name in AHEAD
        self._reported = False

    def round(self) -> bool:
        """A round is about to begin. True when it is the first one of a step, whose number is `index` from then on."""
        first = self.index < 0 or ((self._reported or self._ahead) and self._rounds >= self._rounds_needed)
        if first:
            self.index += 1
            self._rounds, self._reported = 0, False
        self._rounds += 1
        return first

    def report(self) -> None:
        """The sampler has reported the step."""
        self._reported = True

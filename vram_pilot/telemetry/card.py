"""The instruments of the one card that torch computes on. The driver's library is held only while somebody wants readings."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from vram_pilot.telemetry.backoff import Backoff
from vram_pilot.telemetry.cards import CudaDevice, Match, match
from vram_pilot.telemetry.facts import Fact, read_facts
from vram_pilot.telemetry.field import Field, OpenCard, Values
from vram_pilot.telemetry.inventory import handles, list_cards
from vram_pilot.telemetry.nvml import Fault, Nvml
from vram_pilot.telemetry.rates import link_bytes_per_s

log = logging.getLogger(__name__)

_FACTS_EVERY_S = 60.0


class CardSession:
    """Opens the library at the first reading, finds the card, and begins anew when it was lost or CUDA knows better.

    device: what CUDA says of the card so far; has_context: whether this process has a context there; warn: gets what a user
    should know. `match`, `facts` and `note` may be read from any thread, the rest belongs to one.
    """

    def __init__(
        self,
        device: Callable[[], CudaDevice],
        environ: Mapping[str, str],
        nvml: Nvml | None = None,
        *,
        has_context: Callable[[], bool] = lambda: True,
        warn: Callable[[str], None] = log.warning,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.match: Match | None = None
        self.facts: dict[str, Fact] = {}
        self.note: str | None = None
        self.monotonic = monotonic
        self._device, self._environ, self._nvml = device, environ, nvml or Nvml()
        self._has_context, self._warn, self._wall, self._pause = has_context, warn, wall, pause
        self._card: OpenCard | None = None
        self._troubles = Backoff()
        self._asked_for: CudaDevice | None = None
        self._is_lost = False
        self._facts_at_s = 0.0
        self._users: set[str] = set()

    def card(self, user: str) -> OpenCard | None:
        """The open card, None while there is none: `note` says why. user: who must `release` it. Raises nothing."""
        self._users.add(user)
        device = self._device()
        if device != self._asked_for:
            self._drop()
            self._troubles.worked()
        if self._card is None and self._troubles.ready(self.monotonic()):
            self._asked_for = device
            try:
                self._card = self._open(device)
            except Fault as fault:
                self._failed(f"The card has no readings: {fault}.")
        return self._card

    def refresh_facts(self) -> None:
        """Reads the facts where that is due. Raises Fault when the card is lost."""
        if self._card is not None and self.monotonic() >= self._facts_at_s:
            self._facts_at_s = self.monotonic() + _FACTS_EVERY_S
            self.facts = read_facts(self._card)
            generation, width = self.facts["pcie_generation_max"], self.facts["pcie_width_max"]
            if isinstance(generation, (int, float)) and isinstance(width, (int, float)):
                self._card.link_bytes_per_s = link_bytes_per_s(generation, width)

    def works(self) -> None:
        """A reading came."""
        self._troubles.worked()
        self._is_lost, self.note = False, None

    def lost(self, fault: Fault) -> None:
        """The card no longer answers: every handle is worth nothing, and a new one is asked for after a while."""
        self._failed(f"The card can no longer be read: {fault}.")
        if not self._is_lost:
            self._is_lost = True
            self._warn(f"{self.note} Its readings are missing until it answers again.")

    def release(self, user: str) -> None:
        """Gives the library back when nobody else uses it. Idempotent."""
        self._users.discard(user)
        if not self._users:
            self._drop()

    def _open(self, device: CudaDevice) -> OpenCard:
        """Raises Fault."""
        self._nvml.open()
        found = match(list_cards(self._nvml), device, self._environ)
        self.match = found
        if found.card is None:
            raise Fault("absent", found.reason or "there is none")
        handle, whole = handles(self._nvml, found)
        self._facts_at_s = 0.0
        return OpenCard(
            self._nvml, handle, whole, self._has_context, monotonic=self.monotonic, wall=self._wall, pause=self._pause
        )

    def _failed(self, text: str) -> None:
        self.note = text
        self._troubles.failed(self.monotonic())
        self._drop()

    def _drop(self) -> None:
        self._card = None
        self._nvml.close()


class CardSampler:
    """One tier of the card's readings. Each field has its own troubles, and comes back by itself."""

    def __init__(
        self, name: str, period_s: float, fields: tuple[Field, ...], session: CardSession, *, facts: bool = False
    ) -> None:
        self.name, self.period_s = name, period_s
        self._fields = [(field, Backoff()) for field in fields]
        self._session, self._facts = session, facts
        self._card: OpenCard | None = None

    @property
    def note(self) -> str | None:
        return self._session.note

    def sample(self) -> dict[str, float | None]:
        values: dict[str, float | None] = {name: None for field, _ in self._fields for name in field.names}
        card = self._session.card(self.name)
        if card is not self._card:
            self._forget()
            self._card = card
        if card is None:
            return values
        try:
            if self._facts:
                self._session.refresh_facts()
            for field, backoff in self._fields:
                if backoff.ready(card.monotonic()):
                    values.update(zip(field.names, self._read(card, field, backoff)))
        except Fault as fault:
            self._session.lost(fault)
            return dict.fromkeys(values)
        if any(value is not None for value in values.values()):
            self._session.works()
        return values

    def close(self) -> None:
        self._forget()
        self._session.release(self.name)

    def _read(self, card: OpenCard, field: Field, backoff: Backoff) -> Values:
        """The field's values, none when it fails. Raises Fault when the card is lost."""
        try:
            values = field.read(card)
        except Fault as fault:
            if fault.kind == "lost":
                raise
            backoff.failed(card.monotonic(), unsupported=fault.kind == "unsupported")
        except Exception as error:  # an answer of another shape than this binding gave so far
            log.debug("VRAM Pilot: %s could not be read", field.names[0], exc_info=error)
            backoff.failed(card.monotonic())
        else:
            backoff.worked()
            return values
        return (None,) * len(field.names)

    def _forget(self) -> None:
        """Each field gives back what it took of the card that was, and begins as new."""
        before, self._card = self._card, None
        for field, backoff in self._fields:
            backoff.worked()
            if before is not None:
                try:
                    field.close(before)
                except Fault:  # the library is gone, and what was taken with it
                    continue

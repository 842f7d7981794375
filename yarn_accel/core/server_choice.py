"""Where one request goes: to the server that should finish it first (paper section 5, first idea).

::

    predicted finish = queue + transfer over the link + compute by measured rate

A request has a place: its node's home server or, when it waits at a server already, that one. It leaves it
only if it gains enough elsewhere: the larger of `min_gain_s` and `min_gain_share` of what the request itself
takes at its place. While waiting it moves at most `max_moves` times. So servers that take turns in being a
little faster move nothing, and n requests move at most n times `max_moves` times. A server that is gone or
refuses is no place: leaving it is always allowed.

What was sent after a server reported its queue is not in its queue yet: the chooser adds it until the next
report.

Standard library only, Python 3.8: the client of a mapper uses the same object as the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from yarn_accel.core.units import format_duration_s

#: Units of work per second of an accelerator of weight 1 while nothing was measured anywhere.
_NOMINAL_RATE = 1e11


@dataclass(frozen=True)
class ChooserSettings:
    """How much better another place must be before requests leave one.

    Attributes:
        min_gain_s: seconds the request must finish earlier elsewhere.
        min_gain_share: the same as a share of transfer and compute at its place; not of the queue there, or
            long queues would be allowed to grow uneven.
        max_moves: how often one waiting request may be moved.
    """

    min_gain_s: float = 0.01
    min_gain_share: float = 0.1
    max_moves: int = 1


@dataclass(frozen=True)
class RoutableRequest:
    """One request as far as its place matters.

    Attributes:
        work: units of work, such as floating-point operations; the unit of `ServerView.rates`.
        n_bytes: what it moves over the link, inputs and results.
        server: the ANode it waits at; empty: it was not sent yet.
        n_moves: how often it was moved.
    """

    operation: str
    work: float
    n_bytes: int
    server: str = ""
    n_moves: int = 0


@dataclass(frozen=True)
class ServerView:
    """The facts known about an ANode's server.

    Attributes:
        seq: number of the report the figures come from.
        queue_s: seconds of work ahead of a request.
        link_bytes_per_s: between the asking node and the server; infinite on one node.
        rates: measured units of work per second, by operation.
        weight: of its accelerators; stands in for a rate that was not measured.
        accepts: whether it takes requests.
    """

    server: str
    seq: int
    queue_s: float
    link_bytes_per_s: float = math.inf
    rates: Mapping[str, float] = field(default_factory=dict)
    weight: float = 1.0
    accepts: bool = True


@dataclass(frozen=True)
class Prediction:
    """When a server should have finished a request, in seconds from now."""

    server: str
    queue_s: float
    transfer_s: float
    compute_s: float

    @property
    def finish_s(self) -> float:
        """All three parts."""
        return self.queue_s + self.transfer_s + self.compute_s

    def __str__(self) -> str:
        parts = (
            f"{format_duration_s(self.queue_s)} queue, {format_duration_s(self.transfer_s)} transfer, "
            f"{format_duration_s(self.compute_s)} compute"
        )
        return f"{self.server} in {format_duration_s(self.finish_s)} ({parts})"


@dataclass(frozen=True)
class Choice:
    """Where a request goes.

    Attributes:
        server: None: nowhere, it is computed where it is.
        reason: one sentence.
        predicted_s: seconds until it should be finished; infinite without a server.
    """

    server: str | None
    reason: str
    predicted_s: float


class RequestChooser:
    """Chooses for the requests of one node or of several; equal questions get equal answers."""

    def __init__(self, settings: ChooserSettings | None = None) -> None:
        self._settings = settings or ChooserSettings()
        self._sent: dict[str, tuple[int, float]] = {}

    def choose(self, home: str | None, request: RoutableRequest, views: Iterable[ServerView]) -> Choice:
        """Choose among the servers that accept.

        Args:
            home: the ANode the request's node is bound to; the node itself if it is an ANode.
            request: sent or not.
            views: the servers the node may use; others are not looked at.
        """
        seen = list(views)
        predictions = {view.server: self._predict(view, request, seen) for view in seen if view.accepts}
        if not predictions:
            return Choice(None, "no accelerator node of the rack takes requests", math.inf)
        best = min(predictions.values(), key=lambda one: (one.finish_s, one.server))
        place = predictions.get(request.server or home or "")
        chosen, reason = self._weigh(request, best, place)
        if chosen.server != request.server:
            self._note(next(view for view in seen if view.server == chosen.server), chosen.compute_s)
        return Choice(chosen.server, reason, chosen.finish_s)

    def _weigh(
        self, request: RoutableRequest, best: Prediction, place: Prediction | None
    ) -> tuple[Prediction, str]:
        """Stay or go, and why."""
        if place is None:
            return best, f"{best} is first"
        gain_s = place.finish_s - best.finish_s
        if gain_s <= 0:
            return place, f"{place} is first"
        settings = self._settings
        if request.server and request.n_moves >= settings.max_moves:
            return place, f"stays: {place}; it was moved {request.n_moves} times already"
        if gain_s < max(settings.min_gain_s, settings.min_gain_share * (place.transfer_s + place.compute_s)):
            return place, f"stays: {place}; {best} gains too little"
        return best, f"{best} is first; {place} is its place"

    def _predict(self, view: ServerView, request: RoutableRequest, views: Sequence[ServerView]) -> Prediction:
        seq, sent_s = self._sent.get(view.server, (view.seq, 0.0))
        queue_s = view.queue_s + (sent_s if seq == view.seq else 0.0)
        is_there = request.server == view.server
        transfer_s = 0.0 if is_there else request.n_bytes / max(view.link_bytes_per_s, 1.0)
        return Prediction(view.server, queue_s, transfer_s, request.work / _rate(view, request, views))

    def _note(self, view: ServerView, compute_s: float) -> None:
        seq, sent_s = self._sent.get(view.server, (view.seq, 0.0))
        self._sent[view.server] = view.seq, compute_s + (sent_s if seq == view.seq else 0.0)


def _rate(view: ServerView, request: RoutableRequest, views: Sequence[ServerView]) -> float:
    """Units of work per second; what was not measured is scaled by weight from the servers where it was."""
    rate = view.rates.get(request.operation, 0.0)
    if rate > 0:
        return rate
    known = [
        one.rates[request.operation] / one.weight
        for one in views
        if one.rates.get(request.operation, 0.0) > 0
    ]
    return view.weight * (sum(known) / len(known) if known else _NOMINAL_RATE)

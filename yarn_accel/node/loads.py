"""The load of a server, for clients that choose among servers: values and JSON, no I/O.

An agent measures its own server (`LoadMeter`) and sends the result with its heartbeat; under the policy
`container` the master gives it to the agents of all nodes that may use that server, and these give it to
their mappers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_OPERATIONS = 32
_MAX_QUEUE_S = 1e6
_MAX_NAME = 100
_MAX_SEQ = 2**53
#: How much the newest measurement counts against those before.
_SHARE_OF_NEW = 0.5


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """What is known of a server.

    Attributes:
        seq: number of the report it comes from.
        queue_s: seconds until all that it has taken should be computed.
        rates: requests per second the whole server computes, by operation; only what was measured.
        weight: speed of its devices against the others', above 0.
        accepts: whether it takes requests.
    """

    seq: int = 0
    queue_s: float = 0.0
    rates: Mapping[str, float] = field(default_factory=dict)
    weight: float = 1.0
    accepts: bool = True


def parse_load(document: Any, seq: int = 0, weight: float = 1.0) -> ServerLoad:
    """Read a load; never raises: what cannot be used is left out.

    Args:
        document: as `load_document` writes it, or what a heartbeat says (``queue_s`` and ``rates`` only).
        seq, weight: for a document that does not say.
    """
    values = document if isinstance(document, dict) else {}
    rates = values.get("rates")
    good = {
        str(name)[:_MAX_NAME]: float(rate)
        for name, rate in (rates.items() if isinstance(rates, dict) else ())
        if _is_number(rate) and rate > 0
    }
    given_seq, given_weight = values.get("seq", seq), values.get("weight", weight)
    queue_s = values.get("queue_s", 0.0)
    return ServerLoad(
        seq=int(given_seq) if _is_number(given_seq) and 0 <= given_seq < _MAX_SEQ else seq,
        queue_s=min(max(float(queue_s), 0.0), _MAX_QUEUE_S) if _is_number(queue_s) else 0.0,
        rates=dict(list(good.items())[:MAX_OPERATIONS]),
        weight=float(given_weight) if _is_number(given_weight) and given_weight > 0 else weight,
        accepts=values.get("accepts", True) is True,
    )


def load_document(load: ServerLoad) -> dict[str, Any]:
    """A load as `parse_load` reads it."""
    return {
        "seq": load.seq,
        "queue_s": round(load.queue_s, 6),
        "rates": {name: float(f"{rate:.6g}") for name, rate in load.rates.items()},
        "weight": load.weight,
        "accepts": load.accepts,
    }


class LoadMeter:
    """Measures one server from the figures it shows, one report after the other."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}
        self._request_s: dict[str, float] = {}
        self._any_s = 0.0

    def measure(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """What a heartbeat says about the load: ``queue_s`` and ``rates``.

        Args:
            figures: of `server_stats.parse_figures`; a server whose counters fell back is a new one.
        """
        n_workers = max(1.0, float(figures.get("computing_workers", figures.get("workers", 1.0))))
        n_done, spent_s = 0.0, 0.0
        for name, counts in figures.get("operations", {}).items():
            done, compute_s = counts["done"], counts["compute_s"]
            done_before, s_before = self._before.get(name, (0.0, 0.0))
            if done < done_before or compute_s < s_before:
                done_before, s_before = 0.0, 0.0
                self._request_s.pop(name, None)
            self._before[name] = done, compute_s
            if done > done_before and compute_s > s_before:
                n_done, spent_s = n_done + done - done_before, spent_s + compute_s - s_before
                seen_s = (compute_s - s_before) / (done - done_before)
                self._request_s[name] = _smoothed(self._request_s.get(name), seen_s)
        if n_done:
            self._any_s = _smoothed(self._any_s or None, spent_s / n_done)
        return {
            "queue_s": round(figures.get("in_flight", 0.0) * self._any_s / n_workers, 6),
            "rates": {name: float(f"{n_workers / s:.6g}") for name, s in self._request_s.items()},
        }


def _smoothed(before: float | None, seen: float) -> float:
    return seen if before is None else before + _SHARE_OF_NEW * (seen - before)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

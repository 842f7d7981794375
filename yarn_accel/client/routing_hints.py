"""What a task knows for choosing a server per request: values, no I/O.

The agent adds this to its answer while the policy is `container`::

    {"v": 1, "binding": {...}, "policy": {"name": "container", "min_gain_s": 0.01, "max_moves": 1},
     "loads": {"w1": {"seq": 7, "queue_s": 1.5, "rates": {"lu": 3.1}, "weight": 1.0, "accepts": true}}}

A client without hints sends its requests to the home server of its node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple

from yarn_accel.client.binding import Binding, Reason, explain
from yarn_accel.core.server_choice import ChooserSettings, ServerView

#: Figures older than this (seconds) are not used.
STALE_S = 10.0
_POLICY = "container"
_MAX_RATES = 32
_MAX_SEQ = 2**53


@dataclass(frozen=True)
class RoutingHints:
    """What `RequestChooser` needs.

    Attributes:
        home: the server of this node, or that it is bound to; empty: none.
        views: the servers this node may use, as their agents reported them.
        settings: of the policy.
    """

    home: str = ""
    views: Tuple[ServerView, ...] = ()
    settings: ChooserSettings = field(default_factory=ChooserSettings)


def parse_routing_hints(document: Any, binding: Binding, node: str, age_s: float) -> Optional[RoutingHints]:
    """The hints in an agent's answer; None under another policy, or when the figures are too old.

    Args:
        document: the answer; every value is checked, and an unusable one is left out.
        binding: the servers of the same answer.
        node: this task's node.
        age_s: age of the master's figures.
    """
    policy = document.get("policy")
    loads = document.get("loads")
    if not isinstance(policy, dict) or policy.get("name") != _POLICY or age_s > STALE_S:
        return None
    if not isinstance(loads, dict):
        return None
    known = explain(binding, node)
    is_home = known and known[0][1] in (Reason.OWN_NODE, Reason.BOUND)
    views = tuple(_view(server.name, loads[server.name]) for server, _ in known if server.name in loads)
    usual = ChooserSettings()
    settings = ChooserSettings(
        _at_least_0(policy.get("min_gain_s"), usual.min_gain_s),
        _at_least_0(policy.get("min_gain_share"), usual.min_gain_share),
        int(_at_least_0(policy.get("max_moves"), usual.max_moves)),
    )
    return RoutingHints(known[0][0].name if is_home else "", views, settings) if views else None


def _view(server: str, load: Any) -> ServerView:
    values: Mapping[str, Any] = load if isinstance(load, dict) else {}
    rates: Dict[str, float] = {}
    reported = values.get("rates")
    for name, rate in (reported if isinstance(reported, dict) else {}).items():
        if _at_least_0(rate, 0.0) > 0 and len(rates) < _MAX_RATES:
            rates[str(name)] = float(rate)
    return ServerView(
        server,
        int(min(_at_least_0(values.get("seq"), 0), _MAX_SEQ)),
        _at_least_0(values.get("queue_s"), 0.0),
        math.inf,
        rates,
        _at_least_0(values.get("weight"), 1.0) or 1.0,
        values.get("accepts", True) is True,
    )


def _at_least_0(value: Any, otherwise: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return otherwise
    return float(value) if 0 <= value < math.inf else otherwise

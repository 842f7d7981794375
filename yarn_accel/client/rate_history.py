"""What a client measures of its servers: seconds per request, speed of the link, length of answers.

It completes the figures of the agent, which are a second or two old and lack what only this process measures.
"""

from __future__ import annotations

import collections
from dataclasses import replace
from typing import Deque, Dict, Optional, Tuple

from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.core.server_choice import RequestChooser, RoutableRequest, ServerView

#: How much the newest answer counts against those before.
_SHARE_OF_NEW = 0.3
#: Shorter exchanges do not measure a link.
_MIN_LINK_BYTES = 256 * 1024
#: A link is as fast as the fastest of so many exchanges; the others waited for something else.
_N_EXCHANGES = 8
_LEAST_S = 1e-6


def sent_bytes(call: Call) -> int:
    """Bytes of the inputs that travel with a call; what the server reads itself does not count."""
    return sum(item.spec.nbytes for item in call.inputs if type(item) is Tensor)


class RateHistory:
    """The measurements of one client."""

    def __init__(self) -> None:
        self._request_s: Dict[Tuple[str, str], float] = {}
        self._reply_bytes: Dict[str, float] = {}
        self._links: Dict[str, Deque[float]] = {}

    def record(self, server: str, call: Call, reply: Reply, elapsed_s: float) -> None:
        """Add the measurements of one answer.

        Args:
            elapsed_s: from the beginning of sending until the answer was here.
        """
        compute_s = reply.seconds.get("compute", 0.0)
        if compute_s > 0:
            place = server, call.operation
            self._request_s[place] = _smoothed(self._request_s.get(place), compute_s)
        returned = sum(tensor.spec.nbytes for tensor in reply.tensors.values())
        before = self._reply_bytes.get(call.operation)
        self._reply_bytes[call.operation] = _smoothed(before, float(returned))
        sent = sent_bytes(call)
        if sent + returned >= _MIN_LINK_BYTES:
            # Receiving the inputs is part of the server's `read`; so is reading references.
            is_reading = any(type(item) is not Tensor for item in call.inputs)
            stages = ("read", "queue", "compute", "write") if is_reading else ("queue", "compute", "write")
            moving_s = max(elapsed_s - sum(reply.seconds.get(stage, 0.0) for stage in stages), _LEAST_S)
            exchanges = self._links.setdefault(server, collections.deque(maxlen=_N_EXCHANGES))
            exchanges.append((sent + returned) / moving_s)

    def reply_bytes(self, call: Call) -> int:
        """Expected length of the answer, as far as it travels."""
        return 0 if call.output_uri else int(self._reply_bytes.get(call.operation, 0.0))

    def with_own_rates(self, view: ServerView) -> ServerView:
        """A view completed with this client's own measurements."""
        own = {
            operation: 1.0 / seconds
            for (server, operation), seconds in self._request_s.items()
            if server == view.server
        }
        exchanges = self._links.get(view.server)
        link = max(exchanges) if exchanges else view.link_bytes_per_s
        return replace(view, rates={**own, **view.rates}, link_bytes_per_s=link)

    def expected_s(self, view: ServerView, request: RoutableRequest) -> float:
        """Expected seconds of computing a request at an idle server."""
        alone = replace(view, queue_s=0.0, accepts=True)
        chosen = RequestChooser().choose(None, replace(request, server="", n_bytes=0), (alone,))
        return chosen.predicted_s


def _smoothed(before: Optional[float], seen: float) -> float:
    return seen if before is None else before + _SHARE_OF_NEW * (seen - before)

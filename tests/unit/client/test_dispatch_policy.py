"""Servers chosen per request: the agent's figures, and what this client has sent since."""

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call
from yarn_accel.client.dispatch_state import DispatchedCall, ServerState
from yarn_accel.client.request_routing import PerRequestPolicy, RateHistory, RoutingHints
from yarn_accel.core.server_choice import ServerView


def test_what_was_sent_since_the_report_counts_once():
    servers = [ServerState(Endpoint(name, "host", 1)) for name in ("w1", "w2")]
    views = tuple(
        ServerView(name, seq=1, queue_s=queue_s, rates={"lu": 1.0})
        for name, queue_s in (("w1", 0.0), ("w2", 2.5))
    )
    policy = PerRequestPolicy(RoutingHints("", views), RateHistory())
    chosen = []
    for n in range(4):
        call = DispatchedCall(Call(f"k{n}", "lu"))
        call.server = policy.choose(call, servers, 0.0).server
        policy.note_sent(call, servers, 0.0)
        call.server.calls.append(call)
        chosen.append(call.server.endpoint.name)
    assert chosen == ["w1", "w1", "w1", "w2"]

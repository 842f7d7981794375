"""What a client learns from its answers: each fact alone, and that the agent's word comes first."""

import math

import pytest

from yarn_accel.client.calls import Call, Reference, Reply, Tensor
from yarn_accel.client.request_routing import RateHistory, sent_bytes
from yarn_accel.core.server_choice import RoutableRequest, ServerView
from yarn_accel.wire import TensorSpec

MB = 1_000_000


def tensor(n_bytes):
    return Tensor(TensorSpec("|u1", (n_bytes,)), bytes(n_bytes))


def reply(n_bytes=0, **seconds):
    return Reply({}, {"out": tensor(n_bytes)} if n_bytes else {}, "w1", "cpu", seconds, 0, 0)


def view(**changes):
    return ServerView(**{"server": "w1", "seq": 1, "queue_s": 3.0, **changes})


def test_only_what_travels_counts_as_sent():
    assert sent_bytes(Call("k", "lu", {}, (tensor(10), Reference("file:/a"), tensor(5)))) == 15


def test_the_rate_is_that_of_its_answers_where_the_agent_knows_none():
    known = RateHistory()
    for _ in range(20):
        known.record("w1", Call("k", "lu"), reply(compute=0.5), 0.6)
    assert known.with_own_rates(view()).rates["lu"] == pytest.approx(2.0)
    assert known.with_own_rates(view(rates={"lu": 9.0})).rates == {"lu": 9.0}
    assert known.with_own_rates(view(server="w2")).rates == {}
    assert known.expected_s(view(rates={"lu": 4.0}), RoutableRequest("lu", 1.0, MB)) == pytest.approx(0.25)


def test_the_link_is_as_fast_as_the_fastest_of_the_last_exchanges():
    known = RateHistory()
    call = Call("k", "echo", {}, (tensor(MB),))
    assert known.with_own_rates(view()).link_bytes_per_s == math.inf
    known.record("w1", call, reply(MB, compute=1.0, queue=5.0, read=0.1), 6.2)
    assert known.with_own_rates(view()).link_bytes_per_s == pytest.approx(10 * MB)
    known.record("w1", call, reply(MB, compute=1.0), 21.0)
    assert known.with_own_rates(view()).link_bytes_per_s == pytest.approx(10 * MB)
    for _ in range(8):
        known.record("w1", call, reply(MB, compute=1.0), 21.0)
    assert known.with_own_rates(view()).link_bytes_per_s == pytest.approx(0.1 * MB), (
        "a slowed link is noticed"
    )
    assert known.with_own_rates(view(server="w2")).link_bytes_per_s == math.inf


def test_small_answers_say_nothing_about_a_link_and_answers_in_storage_do_not_travel():
    known = RateHistory()
    known.record("w1", Call("k", "lu", {}, (tensor(100),)), reply(100, compute=1.0), 9.0)
    assert known.with_own_rates(view()).link_bytes_per_s == math.inf
    assert known.reply_bytes(Call("k", "lu")) == 100
    assert known.reply_bytes(Call("k", "lu", output_uri="file:/x")) == 0
    assert known.reply_bytes(Call("k", "qr")) == 0

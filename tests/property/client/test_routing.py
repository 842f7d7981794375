"""Whatever servers do, every call gets exactly one outcome, and no two servers owe the same answer."""

import math
import os
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from yarn_accel.client import dispatch, routing
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call, Reply
from yarn_accel.client.dispatch import Dispatcher
from yarn_accel.client.routing_hints import RoutingHints
from yarn_accel.core.server_choice import ChooserSettings, ServerView
from yarn_accel.errors import RejectedError, StorageError, UnavailableError
from yarn_accel.wire.credential import issue

CREDENTIAL = issue(bytes(32), "alice", 2**40, "k1")
NAMES = ("a", "b", "c")
REQUEST_S = 0.6
DEEDS = st.lists(
    st.sampled_from(["ok", "ok", "ok", "nothing", "busy", "storage", "lost", "drain", "bad"]), max_size=40
)


class World:
    """Scripted servers, a clock that goes on by itself, and figures that change."""

    def __init__(self, deeds, unreachable, queues, max_moves):
        self.deeds = {name: list(deed) for name, deed in deeds.items()}
        self.unreachable = unreachable
        self.queues = queues
        self.settings = ChooserSettings(0.0, 0.0, max_moves)
        self.owed = {}
        self.n_moved = {}
        self.now_s = 0.0
        self.seq = 0
        self.always_readable, write_end = os.pipe()
        os.close(write_end)

    def monotonic(self):
        self.now_s += 0.001
        return self.now_s

    def sleep(self, seconds):
        self.now_s += max(seconds, 0.0)

    def routing_hints(self):
        self.seq = int(self.now_s)
        if self.queues[self.seq % len(self.queues)] is None:
            return None
        queue_s = {
            name: self.queues[(self.seq + at) % len(self.queues)] or 0.0 for at, name in enumerate(NAMES)
        }
        views = tuple(
            ServerView(name, self.seq, queue_s[name], math.inf, {"lu": 10.0}, 1.0, True) for name in NAMES
        )
        return RoutingHints("a", views, self.settings)


class ScriptedClient:
    def __init__(self, endpoint, credential, **options):
        self.endpoint = endpoint
        self.is_draining = False
        self.has_outgoing = False
        self._flying = []
        self._cancelled = []
        self._is_lost = False
        self._done_s = 0.0

    def connect(self):
        if self.endpoint.name in WORLD.unreachable:
            raise UnavailableError(f"nobody answers as {self.endpoint.name}")

    def close(self):
        for call in self._flying:
            del WORLD.owed[call.key]
        self._flying = []

    def fileno(self):
        return WORLD.always_readable

    def submit(self, call, is_blocking=True):
        assert not self._is_lost
        assert call.key not in WORLD.owed, "two servers owe the same answer"
        WORLD.owed[call.key] = self.endpoint.name
        self._done_s = self._done_s if self._flying else WORLD.now_s + REQUEST_S
        self._flying.append(call)

    def cancel(self, call):
        assert call in self._flying
        self._cancelled.append(call)

    def arrived(self):
        WORLD.now_s += 0.05
        is_cancelled = any(call in self._flying for call in self._cancelled)
        if not self._flying or (WORLD.now_s < self._done_s and not is_cancelled):
            return None
        self._done_s = WORLD.now_s + REQUEST_S
        return self._answer()

    def next_outcome(self):
        while True:
            found = self._answer()
            if found is not None:
                return found

    def _answer(self):
        deeds = WORLD.deeds[self.endpoint.name]
        deed = deeds.pop() if deeds else "ok"
        if deed == "nothing":
            return None
        if deed == "lost":
            self._is_lost = True
            raise UnavailableError("vanished")
        if deed == "drain":
            self.is_draining = True
            return None
        if self._cancelled and self._cancelled[0] in self._flying:
            call = self._cancelled.pop(0)
            self._flying.remove(call)
            WORLD.n_moved[call.key] = WORLD.n_moved.get(call.key, 0) + 1
            outcome = RejectedError("cancelled", "the call was cancelled")
        else:
            call = self._flying.pop(0)
            outcome = {
                "ok": Reply({}, {}, self.endpoint.name, "cpu", {"compute": 0.1}, 0, 0),
                "busy": UnavailableError("busy", retry_after_s=0.3),
                "storage": StorageError("DataNode gone", transient=True),
                "bad": RejectedError("not-finite", "NaN"),
            }[deed]
        del WORLD.owed[call.key]
        return call, outcome


@given(
    st.fixed_dictionaries(dict.fromkeys(NAMES, DEEDS)),
    st.sets(st.sampled_from(NAMES)),
    st.lists(st.sampled_from([None, 0.0, 0.0, 1.0, 20.0]), min_size=1, max_size=7),
    st.integers(0, 2),
    st.integers(1, 5),
)
@example({"a": ["lost"], "b": [], "c": ["ok", "lost"]}, set(), [0.0, 1.0], 1, 5)
@example(dict.fromkeys(NAMES, ()), set(), [20.0, 0.0, 1.0], 1, 5)
def test_every_call_gets_exactly_one_outcome(deeds, unreachable, queues, max_moves, window):
    global WORLD
    WORLD = World(deeds, unreachable, queues, max_moves)
    endpoints = [Endpoint(name, "host", 1) for name in NAMES]
    calls = [Call(f"k{number}", "lu") for number in range(12)]
    try:
        with (
            mock.patch.object(dispatch, "Client", ScriptedClient),
            mock.patch.object(routing.time, "monotonic", WORLD.monotonic),
            mock.patch.object(routing.time, "sleep", WORLD.sleep),
            Dispatcher(
                endpoints,
                CREDENTIAL,
                follow=lambda is_urgent: endpoints,
                routing_hints=WORLD.routing_hints,
                patience_s=5.0,
            ) as dispatcher,
        ):
            outcomes = list(dispatcher.map(iter(calls), window=window))
    finally:
        os.close(WORLD.always_readable)
    assert sorted(call.key for call, _ in outcomes) == sorted(call.key for call in calls)
    assert not any(
        isinstance(outcome, RejectedError) and outcome.code == "cancelled" for _, outcome in outcomes
    )
    assert WORLD.owed == {}
    assert dispatcher.counts["moved"] == sum(WORLD.n_moved.values())
    assert all(n <= max_moves for n in WORLD.n_moved.values())


def test_leaving_early_closes_all_connections():
    global WORLD
    WORLD = World({name: [] for name in NAMES}, set(), [0.0], 1)
    endpoints = [Endpoint(name, "host", 1) for name in NAMES]
    with (
        mock.patch.object(dispatch, "Client", ScriptedClient),
        mock.patch.object(routing.time, "monotonic", WORLD.monotonic),
        Dispatcher(endpoints, CREDENTIAL, routing_hints=WORLD.routing_hints) as dispatcher,
    ):
        answers = dispatcher.map([Call(f"k{number}", "lu") for number in range(9)], window=4)
        next(answers)
        assert WORLD.owed
        answers.close()
        assert WORLD.owed == {}
    os.close(WORLD.always_readable)
    with pytest.raises(StopIteration):
        next(answers)

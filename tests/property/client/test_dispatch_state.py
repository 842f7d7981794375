"""Whatever servers do, every call gets exactly one outcome, and only servers that may be asked are asked."""

import math

from hypothesis import example, given
from hypothesis import strategies as st

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call, Reply
from yarn_accel.client.dispatch_state import DispatchState, ServersFound
from yarn_accel.client.request_routing import RoutingHints
from yarn_accel.core.server_choice import ChooserSettings, ServerView
from yarn_accel.errors import RejectedError, StorageError, UnavailableError

SERVERS = tuple(Endpoint(name, "host", 1) for name in ("a", "b", "c"))
PATIENCE_S = 5.0
MAX_ATTEMPTS = 3
NOT_NOW = UnavailableError("busy", retry_after_s=0.3)
GONE = UnavailableError("vanished")


class LooksAlways(DispatchState):
    """Never takes the short way."""

    def _find_steady(self):
        return None


class World:
    """Carries commands out as servers would that do what the test says, and checks that they make sense."""

    def __init__(self, has_fallback, max_moves):
        settings = {"patience_s": PATIENCE_S, "max_attempts": MAX_ATTEMPTS, "connect_timeout_s": 3.0}
        settings["has_fallback"] = self.has_fallback = has_fallback
        self.state = DispatchState(lambda: 1.0, **settings)
        self.looks_always = LooksAlways(lambda: 1.0, **settings)
        self.max_moves, self.reachable = max_moves, set(SERVERS)
        self.now_s, self.connect_s, self.seq, self.computing = 0.0, 0.0, 0, None
        self.at, self.draining, self.recalled, self.cancelled = {}, set(), set(), set()
        self.submitted, self.outcomes, self.n_sent, self.n_cancelled, self.events = [], [], {}, {}, []

    def apply(self, *event):
        self.events.append(event)
        n_events = 0
        while self.events:
            n_events += 1
            assert n_events < 100, "it goes round in circles"
            name, *arguments = self.events.pop(0)
            commands = getattr(self.state, name)(*arguments, self.now_s)
            self.state.validate()
            assert repr(commands) == repr(getattr(self.looks_always, name)(*arguments, self.now_s))
            assert self.state.wake_at_s == self.looks_always.wake_at_s
            assert self.state.wake_at_s >= self.now_s
            for command in commands:
                getattr(self, type(command).__name__)(command)

    def ConnectServer(self, command):
        assert command.server not in self.at
        if command.server in self.reachable:
            self.at[command.server] = []
            self.draining.discard(command.server)
            self.events.append(("connected", command.server))
        else:
            self.now_s += min(self.connect_s, command.timeout_s)
            self.events.append(("unreachable", command.server, GONE))

    def CloseServer(self, command):
        del self.at[command.server]

    def SendCall(self, command):
        assert command.call.key not in self.cancelled, "nobody wants it"
        assert command.server not in self.draining
        assert all(command.call not in calls for calls in self.at.values()), "two servers owe one answer"
        self.at[command.server].append(command.call)
        self.n_sent[command.call.key] = self.n_sent.get(command.call.key, 0) + 1

    def RecallCall(self, command):
        assert command.call in self.at[command.server]
        self.recalled.add(command.call.key)

    def ComputeLocally(self, command):
        assert self.has_fallback
        assert self.computing is None
        assert all(command.call not in calls for calls in self.at.values())
        self.computing = command.call

    def DeliverOutcome(self, command):
        assert all(command.call not in calls for calls in self.at.values())
        assert command.call.key in self.cancelled or getattr(command.outcome, "code", "") != "cancelled"
        self.outcomes.append(command.call.key)

    def FindServers(self, command):
        pass

    def DoubtServer(self, command):
        assert self.at[command.server]

    def TellWait(self, command):
        assert command.text

    # What servers and time do

    def submit(self):
        self.submitted.append(Call(f"k{len(self.submitted)}", "lu"))
        self.apply("submitted", self.submitted[-1])

    def answer(self, server, kind):
        calls = self.at.get(server)
        if not calls:
            return
        recalled = [call for call in calls if call.key in self.recalled]
        call = (recalled or calls)[0]
        calls.remove(call)
        outcome = {
            "ok": Reply({}, {}, server.name, "cpu", {"compute": 0.1}, 0, 0),
            "busy": NOT_NOW,
            "storage": StorageError("DataNode gone", transient=True),
            "bad": RejectedError("not-finite", "NaN"),
        }[kind]
        if recalled:
            self.recalled.discard(call.key)
            if kind == "ok":
                outcome = RejectedError("cancelled", "the call was cancelled")
                if call.key not in self.cancelled:
                    self.n_cancelled[call.key] = self.n_cancelled.get(call.key, 0) + 1
        self.apply("answered", server, call, outcome)

    def cancel(self, which):
        if which < len(self.submitted):
            call = self.submitted[which]
            is_open, is_computing = call.key not in self.outcomes, call is self.computing
            is_sent = any(call in calls for calls in self.at.values())
            if is_open and not is_computing:
                self.cancelled.add(call.key)
            self.apply("cancelled", call)
            assert is_sent or is_computing or call.key in self.outcomes, "a call that waits ends at once"

    def lose(self, server):
        if server in self.at:
            self.recalled -= {call.key for call in self.at[server]}
            self.at[server] = []
            self.apply("lost", server, GONE)

    def drain(self, server):
        if server in self.at:
            self.draining.add(server)
            self.apply("draining", server)

    def find(self, listed, queues):
        hints = None
        self.seq += 1
        if queues is not None:
            views = tuple(
                ServerView(each.name, self.seq, abs(queue), math.inf, {"lu": 10.0}, 1.0, queue >= 0)
                for each, queue in zip(SERVERS, queues, strict=True)
            )
            hints = RoutingHints("a", views, ChooserSettings(0.0, 0.0, self.max_moves))
        self.apply("found", ServersFound(tuple(SERVERS[at] for at in listed), hints, "", may_come=True))

    def toggle(self, server):
        self.reachable ^= {server}
        self.lose(server)

    def wait(self, seconds):
        self.now_s += seconds
        self.apply("tick")

    def compute(self):
        if self.computing is not None:
            self.computing = None
            self.apply("computed", Reply({}, {}, "here", "cpu", {}, 0, 0))


SERVER = st.sampled_from(SERVERS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit")),
        st.tuples(st.just("answer"), SERVER, st.sampled_from(["ok", "ok", "ok", "busy", "storage", "bad"])),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.just("lose"), SERVER),
        st.tuples(st.just("toggle"), SERVER),
        st.tuples(st.just("drain"), SERVER),
        st.tuples(
            st.just("find"),
            st.lists(st.integers(0, 2), unique=True),
            st.none() | st.tuples(*[st.sampled_from([0.0, 1.0, 20.0, -1.0])] * 3),
        ),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 0.3, 1.0, 4.0, 40.0])),
        st.tuples(st.just("compute")),
    ),
    max_size=60,
)


#: An answer ends the time in which a server was busy, else the second "not now" would count as its failure.
BUSY_TWICE = [
    ("submit",),
    ("answer", SERVERS[0], "busy"),
    ("wait", 1.0),
    ("answer", SERVERS[0], "ok"),
    ("submit",),
    ("wait", 40.0),
    ("answer", SERVERS[0], "busy"),
    ("wait", 1.0),
]


def live(world, steps):
    world.apply("found", ServersFound(SERVERS))
    for name, *arguments in steps:
        getattr(world, name)(*arguments)


def settle(world):
    """Time goes on, and servers answer what they have, until nothing is open."""
    for _ in range(2000):
        if not world.state.n_open:
            return
        world.compute()
        for server in SERVERS:
            world.answer(server, "ok")
        world.wait(0.3)
    raise AssertionError("a call never gets its outcome")


@given(STEPS, st.booleans(), st.integers(0, 2))
@example([("submit",), ("toggle", SERVERS[0]), ("toggle", SERVERS[1]), ("toggle", SERVERS[2])], True, 0)
@example([("submit",), ("submit",), ("drain", SERVERS[0]), ("find", [], None)], True, 0)
@example(BUSY_TWICE, True, 0)
def test_every_call_gets_exactly_one_outcome(steps, has_fallback, max_moves):
    world = World(has_fallback, max_moves)
    live(world, steps)
    settle(world)
    assert sorted(world.outcomes) == sorted(call.key for call in world.submitted)
    assert world.state.counts["moved"] == sum(world.n_cancelled.values())
    assert all(n <= max(max_moves, 4) for n in world.n_cancelled.values())


@given(STEPS)
def test_an_abandoned_map_leaves_nothing_behind(steps):
    world = World(has_fallback=True, max_moves=1)
    live(world, steps)
    world.computing = None
    world.recalled.clear()
    for calls in world.at.values():
        calls.clear()
    world.apply("abandoned")
    n_before = len(world.outcomes)
    assert world.state.n_open == 0
    world.reachable = set(SERVERS)
    world.submit()
    settle(world)
    assert world.outcomes[n_before:] == [world.submitted[-1].key]


@given(STEPS, st.booleans(), st.sampled_from([0.0, 3.0]))
def test_without_a_server_the_patience_is_kept_and_ends(steps, has_fallback, connect_s):
    """From the moment that the last server is gone, also where finding out takes its time for each."""
    world = World(has_fallback, max_moves=1)
    live(world, [step for step in steps if step[0] in ("submit", "answer", "find", "compute")])
    settle(world)
    world.reachable, world.connect_s = set(), connect_s
    began_s, n_before = world.now_s, len(world.outcomes)
    world.submit()
    for server in SERVERS:
        world.lose(server)
    while len(world.outcomes) == n_before:
        assert world.now_s <= began_s + PATIENCE_S + 0.5 + len(SERVERS) * connect_s
        world.wait(0.1)
        if world.computing is not None:
            assert world.now_s >= began_s + PATIENCE_S - 0.1
        world.compute()
    world.submit()
    world.compute()
    assert len(world.outcomes) == n_before + 2, "the next one does not wait again"


@given(st.integers(1, 6), st.booleans())
def test_a_call_that_kills_servers_is_tried_a_bounded_number_of_times(n_calls, has_fallback):
    world = World(has_fallback, max_moves=1)
    world.apply("found", ServersFound(SERVERS))
    for _ in range(n_calls):
        world.submit()
    for _ in range(200):
        for server in SERVERS:
            if world.at.get(server):
                world.lose(server)
        world.wait(0.3)
        world.compute()
    assert len(world.outcomes) == n_calls
    assert set(world.n_sent.values()) == {MAX_ATTEMPTS}


@given(STEPS)
def test_a_busy_server_is_not_asked_before_it_wants_to_be(steps):
    world = World(has_fallback=True, max_moves=1)
    live(world, steps)
    settle(world)
    world.reachable = {SERVERS[0]}
    world.find([0], None)
    world.wait(300.0)
    world.submit()
    assert world.at[SERVERS[0]]
    world.answer(SERVERS[0], "busy")
    until_s = world.now_s + NOT_NOW.retry_after_s
    assert not world.at[SERVERS[0]]
    world.wait(0.2)
    assert not world.at[SERVERS[0]]
    assert world.state.wake_at_s == until_s
    world.wait(until_s - world.now_s)
    assert world.at[SERVERS[0]]

"""The dispatcher against scripted clients: who is asked, what if it goes, who answers in the end."""

import pytest

from yarn_accel.client import dispatch
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.dispatch import FALLBACK_DEVICE, Dispatcher
from yarn_accel.client.dispatch_state import ServersFound
from yarn_accel.errors import AuthenticationError, RejectedError, StorageError, UnavailableError
from yarn_accel.wire import PACK_BYTES, TensorSpec
from yarn_accel.wire.credential import issue

CREDENTIAL = issue(bytes(32), "alice", 2**40, "k1")


def reply(server, device="cpu"):
    return Reply({}, {}, server, device, {}, 0, 0)


class World:
    """Servers by name; a script per server says what each submitted call comes to."""

    def __init__(self):
        self.scripts = {}
        self.connected, self.closed, self.doubted, self.timeouts = [], [], [], []
        self.now_s = 0.0

    def endpoints(self):
        return [Endpoint(name, "host", 1) for name in self.scripts]


class ScriptedClient:
    """Stands in for `Client`: answers from its server's script, one item per call."""

    has_outgoing = has_answers = False
    carrier = "tcp"
    pack_bytes = PACK_BYTES

    def __init__(self, endpoint, credential, **options):
        self.endpoint = endpoint
        self.is_draining = False
        WORLD.timeouts.append(options["connect_timeout_s"])
        self._script = WORLD.scripts[endpoint.name]
        self._flying = []

    def connect(self):
        WORLD.connected.append(self.endpoint.name)
        if not self._script:
            raise UnavailableError(f"no pipeline server answers as {self.endpoint.name}")
        if self._script[0] == "refuse":
            raise AuthenticationError("wrong secret or expired")

    def close(self):
        self._flying = []
        WORLD.closed.append(self.endpoint.name)

    def fileno(self):
        return 0

    @property
    def n_in_flight(self):
        return len(self._flying)

    def await_bytes(self):
        if self._script[0] == "silence":
            WORLD.now_s += 0.25
            return False
        return True

    def submit(self, call, is_blocking):
        assert not is_blocking
        self._flying.append(call)

    def doubt(self):
        WORLD.doubted.append(self.endpoint.name)

    def arrived(self, is_new=True):
        if not self._flying:
            return None
        if self._script[0] == "silence":
            return None
        item = self._script.pop(0)
        if item == "lost":
            raise UnavailableError(f"server {self.endpoint.name} vanished")
        if item == "drain":
            self.is_draining = True
            item = UnavailableError("shutting down", retry_after_s=0.1)
        call = self._flying.pop(0)
        return call, reply(self.endpoint.name) if item == "ok" else item


class Poll:
    """Stands in for `select.poll`: time passes, and nothing happens."""

    def register(self, descriptor, interest):
        pass

    def poll(self, wait_ms):
        WORLD.now_s += wait_ms / 1000
        return []


class Fallback:
    def __init__(self):
        self.keys = []

    def call(self, call):
        self.keys.append(call.key)
        if call.key == "bad":
            raise RejectedError("not-finite", "NaN")
        return reply("here")


@pytest.fixture(autouse=True)
def world(monkeypatch):
    global WORLD
    WORLD = World()
    monkeypatch.setattr(dispatch, "Client", ScriptedClient)
    monkeypatch.setattr(dispatch.time, "monotonic", lambda: WORLD.now_s)

    monkeypatch.setattr(dispatch.select, "poll", Poll)
    return WORLD


def run(world, n_calls, fallback=None, endpoints=None, **options):
    texts = []
    calls = [Call(f"k{n}", "lu") for n in range(n_calls)]
    given = world.endpoints() if endpoints is None else endpoints
    with Dispatcher(given, CREDENTIAL, fallback, texts.append, **options) as dispatcher:
        outcomes = [(call.key, outcome) for call, outcome in dispatcher.map(iter(calls), window=3)]
    assert sorted(key for key, _ in outcomes) == sorted(call.key for call in calls)
    return dict(outcomes), texts


def servers_of(outcomes):
    return [outcomes[key].server for key in sorted(outcomes)]


@pytest.mark.parametrize("first", [["ok"] * 5, [], ["refuse"]], ids=["answers", "is not there", "refuses"])
def test_the_first_server_that_takes_calls_gets_them_all(world, first):
    world.scripts = {"w1": list(first), "w2": ["ok"] * 5}
    outcomes, texts = run(world, 5)
    assert servers_of(outcomes) == ["w2" if first != ["ok"] * 5 else "w1"] * 5
    assert (world.connected, texts) == (["w1"], []) or first != ["ok"] * 5


def test_a_draining_server_is_left_when_it_has_answered(world):
    world.scripts = {"w1": ["ok", "drain", "ok"], "w2": ["ok", "ok"]}
    outcomes, _ = run(world, 4)
    assert sorted(servers_of(outcomes)) == ["w1", "w1", "w2", "w2"]
    assert world.closed[0] == "w1"


def test_a_new_binding_takes_the_next_requests_and_leaves_those_in_flight(world):
    world.scripts = {"w1": ["ok"] * 9, "w2": ["ok"] * 9}
    w1, w2 = world.endpoints()
    asked = []

    def find(is_urgent):
        asked.append(is_urgent)
        return ServersFound((w1,) if len(asked) < 6 else (w2, w1))

    outcomes, texts = run(world, 9, find_servers=find)
    assert servers_of(outcomes) == ["w1"] * 4 + ["w2"] * 5
    assert world.connected == ["w1", "w2"]
    assert texts == ["bound to server w2 now, before to w1"]
    assert not any(asked)


def test_after_a_loss_the_binding_is_asked_for_at_once(world):
    world.scripts = {"w1": ["ok", "lost"], "w2": ["ok"] * 9, "w3": ["ok"] * 9}
    w1, _, w3 = world.endpoints()
    outcomes, _ = run(world, 5, find_servers=lambda is_urgent: ServersFound((w3, w1) if is_urgent else ()))
    assert servers_of(outcomes) == ["w1", "w3", "w3", "w3", "w3"]


def test_what_is_waited_for_is_what_the_server_answered(world):
    world.scripts = {"w1": [UnavailableError("no memory for it", retry_after_s=1.0)] * 3 + ["ok"]}
    _, texts = run(world, 1)
    assert set(texts) == {"waiting for server w1: no memory for it"}
    storage = StorageError("DataNode gone", transient=True)
    world.scripts = {"w1": [storage] * 3 + ["ok"]}
    _, texts = run(world, 1)
    assert set(texts) == {"waiting for storage: DataNode gone"}


def test_a_server_that_stays_busy_beyond_the_patience_is_left(world):
    world.scripts = {"w1": ["ok"] + [UnavailableError("busy", retry_after_s=1.0)] * 60, "w2": ["ok"]}
    outcomes, texts = run(world, 2, patience_s=5.0)
    assert servers_of(outcomes) == ["w1", "w2"]
    assert any("busy" in text for text in texts)


def test_without_servers_the_own_cpu_answers(world):
    world.scripts = {"w1": [], "w2": []}
    fallback = Fallback()
    outcomes, texts = run(world, 3, fallback, patience_s=2.0)
    assert {outcome.device for outcome in outcomes.values()} == {FALLBACK_DEVICE}
    assert fallback.keys == ["k0", "k1", "k2"]
    assert 2.0 <= world.now_s < 5.0
    assert any("no pipeline server answers" in text for text in texts)


def test_having_given_up_the_servers_are_asked_again_later(world):
    world.scripts = {"w1": []}

    class Slow(Fallback):
        def call(self, call):
            world.now_s += 20
            world.scripts["w1"] = ["ok"] * 10 if call.key >= "k2" else []
            return super().call(call)

    outcomes, _ = run(world, 5, Slow(), patience_s=1.0)
    assert [outcome.server for outcome in outcomes.values()] == ["here"] * 4 + ["w1"]


def test_without_servers_and_fallback_every_call_gets_one_clear_error(world):
    world.scripts = {"w1": [], "w2": []}
    outcomes, _ = run(world, 3, patience_s=2.0)
    text = "no pipeline server answers (tried w1, w2); last: no pipeline server answers as w2"
    assert all(isinstance(each, UnavailableError) and text in str(each) for each in outcomes.values())
    assert world.now_s < 5.0


def test_no_server_known(world):
    outcomes, _ = run(world, 1)
    assert "no pipeline server is known for this node: start a pipeline server" in str(outcomes["k0"])
    outcomes, _ = run(world, 1, Fallback())
    assert outcomes["k0"].device == FALLBACK_DEVICE
    assert world.now_s == 0


def test_a_refused_credential_is_an_error_at_once(world):
    world.scripts = {"w1": ["refuse"], "w2": ["refuse"]}
    with pytest.raises(AuthenticationError, match="expired"):
        run(world, 1, Fallback())
    assert world.now_s == 0


def test_storage_that_may_recover_is_tried_again_and_no_other_error_is(world):
    again, final = StorageError("DataNode gone", transient=True), StorageError("no such file")
    world.scripts = {"w1": [again, final, RejectedError("not-finite", "NaN"), "ok"]}
    outcomes, _ = run(world, 3, Fallback())
    assert {type(each) for each in outcomes.values()} == {RejectedError, Reply, StorageError}


def test_where_one_servers_storage_fails_another_is_asked(world):
    """HDFS gives a server the DataNode of its own node first, also one that has just died."""
    world.scripts = {"w1": ["ok"] + [StorageError("DataNode gone", transient=True)] * 9, "w2": ["ok"] * 9}
    outcomes, _ = run(world, 6)
    assert servers_of(outcomes) == ["w1"] + ["w2"] * 5
    assert world.connected == ["w1", "w2"]


@pytest.mark.parametrize(("n_failures", "said"), [(30, "'w1'"), (300, "DataNode gone")])
def test_storage_is_waited_for_as_long_as_a_namenode_takes_to_know_a_dead_datanode(world, n_failures, said):
    world.scripts = {"w1": [StorageError("DataNode gone", transient=True)] * n_failures + ["ok"]}
    outcomes, texts = run(world, 1, max_attempts=3, patience_s=20.0 if n_failures == 300 else 60.0)
    assert said in str(outcomes["k0"])
    assert "waiting for storage: DataNode gone" in texts
    assert n_failures < 300 or 20.0 <= world.now_s <= 25.0


def slowly(world, n_calls, step_s, **options):
    """Calls one after the other, each with some work of the caller before it; the servers that answered."""
    servers = []
    with Dispatcher(world.endpoints(), CREDENTIAL, **options) as dispatcher:
        for n in range(n_calls):
            servers.append(dispatcher.call(Call(f"k{n}", "lu")).server)
            world.now_s += step_s
    return servers


def test_a_server_whose_storage_failed_for_a_moment_gets_another_chance(world):
    world.scripts = {"w1": [StorageError("DataNode gone", transient=True)] + ["ok"] * 9, "w2": ["ok"] * 30}
    assert slowly(world, 8, 3.0) == ["w2"] * 4 + ["w1"] * 4


def test_one_that_is_lost_while_another_is_to_be_asked_does_not_stain_that_one(world):
    """Its storage failed, so the next requests go to the other; then it is lost with those in flight."""
    world.scripts = {"w1": [StorageError("DataNode gone", transient=True), "lost"], "w2": ["ok"] * 9}
    outcomes, _ = run(world, 3)
    assert servers_of(outcomes) == ["w2"] * 3
    assert world.connected == ["w1", "w2"]


def test_the_fallbacks_own_error_is_the_outcome(world):
    with Dispatcher([], CREDENTIAL, Fallback()) as dispatcher, pytest.raises(RejectedError, match="NaN"):
        dispatcher.call(Call("bad", "lu"))


def test_packs_go_to_the_next_server_whole(world):
    tensor = Tensor(TensorSpec("<f8", (1, 1)), bytes(8))
    calls = [Call(f"k{n}", "lu", {}, (tensor,)) for n in range(6)]
    world.scripts = {"w1": ["lost"], "w2": ["ok", RejectedError("not-finite", "item 1: NaN")] + ["ok"] * 3}
    with Dispatcher(world.endpoints(), CREDENTIAL) as dispatcher:
        outcomes = list(dispatcher.map(iter(calls), window=2, pack=3))
    assert sorted(call.key for call, _ in outcomes) == [f"k{n}" for n in range(6)]
    assert all(isinstance(outcome, Reply) for _, outcome in outcomes)
    assert world.scripts["w2"] == []


def test_waiting_times_are_spread(world):
    """Clients that a full server sends away together do not come back together."""
    ends = set()
    for _ in range(20):
        world.now_s = 0.0
        world.scripts = {"w1": [UnavailableError("busy", retry_after_s=1.0), "ok"]}
        run(world, 1)
        ends.add(round(world.now_s, 6))
        assert 1.0 <= world.now_s <= 1.25
    assert len(ends) > 10


def test_a_server_that_is_not_named_any_more_is_doubted_and_finishes_what_it_has(world):
    world.scripts = {"w1": ["ok", "ok", "silence"], "w2": ["ok"] * 9}
    w1, w2 = world.endpoints()
    script = world.scripts["w1"]

    def find(is_urgent):
        if world.now_s > 2.0 and script[0] == "silence":
            script[:] = ["ok"] * 9
        return ServersFound((w1, w2) if world.now_s < 1.0 else (w2,))

    outcomes, _ = run(world, 9, find_servers=find)
    assert servers_of(outcomes) == ["w1"] * 5 + ["w2"] * 4
    assert world.doubted == ["w1"]
    assert world.closed[0] == "w1"


def test_where_no_server_is_known_yet_one_is_waited_for(world):
    world.scripts = {"w1": ["ok"] * 9}
    known, reason = tuple(world.endpoints()), "the agent knows no server for this node"

    def find(is_urgent):
        is_known = world.now_s > 3.0
        return ServersFound(known if is_known else (), None, "" if is_known else reason, may_come=True)

    outcomes, texts = run(world, 2, Fallback(), find_servers=find, endpoints=(), patience_s=10.0)
    assert servers_of(outcomes) == ["w1", "w1"]
    assert texts == [f"waiting for a server: {reason}"]
    assert 3.0 <= world.now_s < 5.0


def test_a_connection_gets_more_time_with_each_failure_only_where_there_is_no_other_server(world):
    """Short at first: the binding may name another one by now."""
    world.scripts = {"w1": ["refuse"], "w2": ["ok"] * 30}
    slowly(world, 12, 1.0)
    assert world.timeouts == [1.0, 3.0, 1.0]
    world.timeouts, world.scripts = [], {"w1": []}
    run(world, 1, patience_s=5.0)
    assert world.timeouts[:5] == [3.0, 1.0, 2.0, 3.0, 3.0]

"""A request that comes twice is computed once; nobody is forgotten, nobody gets another's answer."""

import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from yarn_accel.pipeline.ledger import Answer, Ledger, Waiter, addressed
from yarn_accel.wire import Failed, RemoteInput, Request, Result, TensorSpec

SPEC = TensorSpec("|u1", (3,))
REQUEST = Request(1, "k", "echo", {}, (SPEC,))
RESULT = Answer(Result(0, {"n": 1}, (), "w1", "cpu", {}, 3, 3), (memoryview(b"abc"),))


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ledger(clock):
    return Ledger(10_000, 60.0, clock)


def test_an_answer_goes_to_everyone_under_their_own_number(ledger):
    first, second = Waiter("session a", 1), Waiter("session b", 9)
    entry = ledger.admit("alice", REQUEST, first).entry
    joined = ledger.admit("alice", dataclasses.replace(REQUEST, id=9), second)
    assert (joined.entry, joined.answer, joined.is_conflict) == (None, None, False)
    waiters = ledger.settle(entry, RESULT)
    assert waiters == [first, second]
    assert [addressed(RESULT, waiter).id for waiter in waiters] == [1, 9]
    assert ledger.n_running == 0


def test_a_small_answer_is_repeated_until_it_is_old(ledger, clock):
    ledger.settle(ledger.admit("alice", REQUEST, Waiter("a", 1)).entry, RESULT)
    clock.now_s = 60.0
    known = ledger.admit("alice", REQUEST, Waiter("b", 2)).answer
    assert known.message == RESULT.message
    assert [bytes(part) for part in known.payload] == [b"abc"]
    clock.now_s = 60.1
    assert ledger.admit("alice", REQUEST, Waiter("b", 3)).entry is not None
    assert ledger.cached_bytes == 0


def test_tenants_do_not_share_keys(ledger):
    assert ledger.admit("alice", REQUEST, Waiter("a", 1)).entry is not None
    assert ledger.admit("bob", REQUEST, Waiter("b", 1)).entry is not None


@pytest.mark.parametrize(
    "change",
    [{"operation": "lu"}, {"params": {"x": 1}}, {"inputs": (SPEC, SPEC)}, {"output_uri": "hdfs:///x"}],
)
def test_the_same_key_for_another_request_is_a_conflict(ledger, change):
    entry = ledger.admit("alice", REQUEST, Waiter("a", 1)).entry
    other = dataclasses.replace(REQUEST, **change)
    assert ledger.admit("alice", other, Waiter("a", 2)).is_conflict
    ledger.settle(entry, RESULT)
    assert ledger.admit("alice", other, Waiter("a", 3)).is_conflict


@pytest.mark.parametrize(
    "message",
    [
        Failed(0, "storage", "storage", "DataNode gone", transient=True),
        Failed(0, "storage", "storage", "no such file"),
        Failed(0, "unavailable", "out-of-memory", "", transient=True),
        Failed(0, "internal", "internal-error", ""),
        Failed(0, "rejected", "deadline-exceeded", ""),
    ],
)
def test_what_may_be_better_next_time_is_computed_again(ledger, message):
    ledger.settle(ledger.admit("alice", REQUEST, Waiter("a", 1)).entry, Answer(message))
    assert ledger.admit("alice", REQUEST, Waiter("a", 2)).entry is not None


@pytest.mark.parametrize("change", [{"output_uri": "hdfs:///x"}, {"inputs": (RemoteInput("hdfs:///x"),)}])
def test_what_names_files_is_computed_again(ledger, change):
    request = dataclasses.replace(REQUEST, **change)
    ledger.settle(ledger.admit("alice", request, Waiter("a", 1)).entry, RESULT)
    assert ledger.admit("alice", request, Waiter("a", 2)).entry is not None


def test_a_large_answer_is_not_kept(ledger):
    large = Answer(RESULT.message, (memoryview(bytes(Ledger.SMALL_BYTES + 1)),))
    ledger.settle(ledger.admit("alice", REQUEST, Waiter("a", 1)).entry, large)
    assert ledger.cached_bytes == 0


def test_who_left_is_not_waited_for(ledger):
    entry = ledger.admit("alice", REQUEST, Waiter("a", 1)).entry
    ledger.admit("alice", REQUEST, Waiter("b", 2))
    assert ledger.withdraw("a") == 1
    assert not ledger.drop_if_abandoned(entry)
    assert ledger.withdraw("b", 3) == 0
    assert ledger.withdraw("b", 2) == 1
    assert ledger.drop_if_abandoned(entry)
    assert ledger.n_running == 0
    assert ledger.admit("alice", REQUEST, Waiter("c", 1)).entry is not entry


class LedgerMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order: one answer each, and the bound of the cache holds."""

    names = st.sampled_from(["a", "b"])

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.ledger = Ledger(3 * 1024 + 10, 60.0, self.clock)
        self.entries = {}
        self.waiting = set()
        self.next_id = 0

    @rule(tenant=names, key=names, session=names)
    def admit(self, tenant, key, session):
        self.next_id += 1
        waiter = Waiter(session, self.next_id)
        verdict = self.ledger.admit(tenant, dataclasses.replace(REQUEST, id=self.next_id, key=key), waiter)
        assert not verdict.is_conflict
        if verdict.answer is None:
            self.waiting.add(waiter)
        if verdict.entry is not None:
            assert (tenant, key) not in self.entries
            self.entries[tenant, key] = verdict.entry

    @rule(tenant=names, key=names)
    def settle(self, tenant, key):
        entry = self.entries.pop((tenant, key), None)
        if entry is not None:
            for waiter in self.ledger.settle(entry, RESULT):
                self.waiting.remove(waiter)

    @rule(tenant=names, key=names)
    def drop(self, tenant, key):
        entry = self.entries.get((tenant, key))
        if entry is not None and self.ledger.drop_if_abandoned(entry):
            del self.entries[tenant, key]

    @rule(session=names)
    def leave(self, session):
        left = {waiter for waiter in self.waiting if waiter.session == session}
        assert self.ledger.withdraw(session) == len(left)
        self.waiting -= left

    @rule(seconds=st.sampled_from([1.0, 61.0]))
    def wait(self, seconds):
        self.clock.now_s += seconds

    @invariant()
    def everyone_is_known(self):
        assert {waiter for _, waiter in self.ledger.waiters()} == self.waiting
        assert self.ledger.n_running == len(self.entries)
        for session in ("a", "b"):
            assert self.ledger.n_waiting(session) == sum(waiter.session == session for waiter in self.waiting)

    @invariant()
    def the_cache_is_bounded(self):
        assert 0 <= self.ledger.cached_bytes <= 3 * 1024 + 10


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)

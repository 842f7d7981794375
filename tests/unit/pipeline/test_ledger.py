"""A request that comes twice is computed once; nobody is forgotten, nobody gets another's answer."""

import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from yarn_accel.pipeline.lease import Lease
from yarn_accel.pipeline.ledger import Answer, Ledger, Waiter, addressed
from yarn_accel.wire import Failed, RemoteInput, Request, Result, TensorSpec

SPEC = TensorSpec("|u1", (3,))
REQUEST = Request(1, "k", "echo", {}, (SPEC,))
RESULT = Answer(Result(0, {"n": 1}, (), "w1", "cpu", {}, 3, 3), (memoryview(b"abc"),))
DIGEST = b"d"


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


class Memory:
    """Memory with a lease; counts how often it returns."""

    def __init__(self, n_bytes=1 << 20):
        self.n_returned = 0
        self.lease = Lease(self.returned, n_bytes)
        self.answer = Answer(RESULT.message, (memoryview(bytes(n_bytes)),), self.lease)

    def returned(self):
        self.n_returned += 1


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ledger(clock):
    return Ledger(20_000, 60.0, clock, kept_bytes=4 << 20)


def ask(ledger, session="a", request_id=1, *, tenant="alice", request=REQUEST, digest=DIGEST, stamp=None):
    """A request whose payload arrives at once: what is to be done, and the entry it came under."""
    verdict = ledger.admit(tenant, dataclasses.replace(request, id=request_id), Waiter(session, request_id))
    if verdict.entry is None:
        return verdict
    return ledger.confirm(verdict.entry, digest, stamp)


def test_an_answer_goes_to_everyone_under_their_own_number(ledger):
    entry = ask(ledger, "session a", 1).entry
    joined = ask(ledger, "session b", 9)
    assert (joined.entry, joined.answer, joined.is_conflict) == (None, None, False)
    assert ledger.n_running == 1
    waiters = ledger.settle(entry, RESULT)
    assert waiters == [Waiter("session a", 1), Waiter("session b", 9)]
    assert [addressed(RESULT, waiter).id for waiter in waiters] == [1, 9]
    assert ledger.n_running == 0
    assert ledger.n_waiting("session a") == 0


def test_two_payloads_that_arrive_at_the_same_time_are_computed_once(ledger):
    first = ledger.admit("alice", REQUEST, Waiter("a", 1)).entry
    second = ledger.admit("alice", REQUEST, Waiter("b", 1)).entry
    assert ledger.n_running == 2
    assert ledger.confirm(second, DIGEST).entry is second
    assert ledger.confirm(first, DIGEST).entry is None
    assert ledger.settle(second, RESULT) == [Waiter("b", 1), Waiter("a", 1)]


def test_a_small_answer_is_repeated_until_it_is_old(ledger, clock):
    ledger.settle(ask(ledger).entry, RESULT)
    clock.now_s = 60.0
    known = ask(ledger, "b", 2).answer
    assert known.message == RESULT.message
    assert [bytes(part) for part in known.payload] == [b"abc"]
    assert ledger.n_waiting("b") == 0
    clock.now_s = 60.1
    assert ask(ledger, "b", 3).entry is not None
    assert ledger.cached_bytes == 0


def test_tenants_do_not_share_keys(ledger):
    assert ask(ledger).entry is not None
    assert ask(ledger, tenant="bob", request_id=2).entry is not None


@pytest.mark.parametrize(
    "change",
    [{"operation": "lu"}, {"params": {"x": 1}}, {"inputs": (SPEC, SPEC)}, {"output_uri": "hdfs:///x"}],
)
def test_the_same_key_for_another_request_is_a_conflict(ledger, change):
    entry = ask(ledger).entry
    other = dataclasses.replace(REQUEST, **change)
    assert ask(ledger, request_id=2, request=other).is_conflict
    ledger.settle(entry, RESULT)
    assert ask(ledger, request_id=3, request=other).is_conflict
    assert ledger.n_waiting("a") == 0


def test_the_same_key_for_other_bytes_is_a_conflict(ledger):
    entry = ask(ledger).entry
    assert ask(ledger, "b", digest=b"other").is_conflict
    assert ledger.n_waiting("b") == 0
    ledger.settle(entry, RESULT)
    assert ask(ledger, "b", digest=b"other").is_conflict
    assert ledger.n_running == 0


def test_a_connection_uses_a_number_once_at_a_time(ledger):
    entry = ask(ledger).entry
    assert ask(ledger, request=dataclasses.replace(REQUEST, key="other")).is_conflict
    ledger.settle(entry, RESULT)
    assert ask(ledger, request=dataclasses.replace(REQUEST, key="other")).entry is not None


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
    ledger.settle(ask(ledger).entry, Answer(message))
    assert ask(ledger, request_id=2).entry is not None


def test_a_rejection_is_repeated(ledger):
    failed = Failed(0, "rejected", "singular", "")
    ledger.settle(ask(ledger).entry, Answer(failed))
    assert ask(ledger, request_id=2).answer.message == failed


def test_a_file_that_changed_is_another_request(ledger):
    request = dataclasses.replace(REQUEST, inputs=(RemoteInput("hdfs://nn/x"),))
    ledger.settle(ask(ledger, request=request, digest=b"length and time").entry, RESULT)
    assert ask(ledger, "b", request=request, digest=b"length and time").answer is not None
    assert ask(ledger, "b", request=request, digest=b"another time").is_conflict


def test_a_written_answer_is_repeated_only_while_the_output_is_there(ledger):
    request = dataclasses.replace(REQUEST, output_uri="hdfs://nn/x")
    entry = ask(ledger, request=request).entry
    ledger.settle(entry, RESULT._replace(output_stamp=("length", "time")))
    assert ledger.knows(entry)
    assert ask(ledger, "b", request=request, stamp=("length", "time")).answer is not None
    again = ask(ledger, "b", request=request, stamp=None)
    assert again.entry is not None
    ledger.settle(again.entry, RESULT)
    assert ask(ledger, "b", request=request, stamp=None).entry is not None


# Large answers


def test_a_large_answer_that_was_dear_is_kept_where_it_lies(ledger):
    memory = Memory()
    assert ledger.settle(ask(ledger).entry, memory.answer, compute_s=1.0)
    memory.lease.give_back()
    assert memory.n_returned == 0
    assert ledger.kept_bytes == 1 << 20
    known = ask(ledger, "b").answer
    assert known.payload is memory.answer.payload
    known.lease.give_back()
    assert memory.n_returned == 0


def test_a_large_answer_that_was_cheap_is_only_noted(ledger):
    memory = Memory()
    ledger.settle(ask(ledger).entry, memory.answer, compute_s=1e-6)
    memory.lease.give_back()
    assert memory.n_returned == 1
    assert ask(ledger, "b", digest=b"other").is_conflict
    assert ask(ledger, "b").entry is not None


def test_what_nobody_could_be_told_is_kept_even_if_cheap(ledger):
    memory = Memory()
    entry = ask(ledger).entry
    ledger.withdraw("a")
    assert ledger.settle(entry, memory.answer) == []
    memory.lease.give_back()
    answer = ask(ledger, "b").answer
    assert answer.nbytes == 1 << 20
    answer.lease.give_back()


def test_what_could_not_be_delivered_is_kept_afterwards(ledger):
    memory = Memory()
    entry = ask(ledger).entry
    ledger.settle(entry, memory.answer)
    ledger.keep(entry, memory.answer)
    ledger.keep(entry, memory.answer)
    memory.lease.give_back()
    assert memory.lease.n_holders == 1
    ask(ledger, "b").answer.lease.give_back()
    assert ledger.evict(1) == 1 << 20
    assert memory.n_returned == 1


def test_memory_returns_when_it_is_wanted_oldest_first(ledger):
    memories = [Memory() for _ in range(3)]
    for number, memory in enumerate(memories):
        request = dataclasses.replace(REQUEST, key=f"k{number}")
        ledger.settle(ask(ledger, request=request).entry, memory.answer, compute_s=1.0)
        memory.lease.give_back()
    busy = ask(ledger, request=dataclasses.replace(REQUEST, key="k0")).answer
    assert ledger.evict((1 << 20) + 1) == 2 << 20
    assert [memory.n_returned for memory in memories] == [0, 1, 0]
    busy.lease.give_back()
    assert [memory.n_returned for memory in memories] == [1, 1, 0]
    assert ledger.kept_bytes == 1 << 20
    assert ledger.evict(1 << 30) == 1 << 20
    assert ledger.evict(1) == 0


def test_kept_answers_are_bounded_and_grow_old(ledger, clock):
    memories = [Memory() for _ in range(6)]
    for number, memory in enumerate(memories):
        request = dataclasses.replace(REQUEST, key=f"k{number}")
        ledger.settle(ask(ledger, request=request).entry, memory.answer, compute_s=1.0)
        memory.lease.give_back()
    assert ledger.kept_bytes == 4 << 20
    assert [memory.n_returned for memory in memories] == [1, 1, 0, 0, 0, 0]
    huge = Memory(5 << 20)
    request = dataclasses.replace(REQUEST, key="huge")
    ledger.settle(ask(ledger, request=request).entry, huge.answer, compute_s=1.0)
    huge.lease.give_back()
    assert huge.n_returned == 1
    clock.now_s = 100.0
    ledger.forget_old()
    assert all(memory.n_returned == 1 for memory in memories)
    assert (ledger.kept_bytes, ledger.cached_bytes) == (0, 0)


def test_giving_back_may_ask_the_ledger(ledger):
    """The pool that gets its memory back has waiters, who may want more of it."""
    lease = Lease(lambda: ledger.evict(1), 1 << 20)
    answer = Answer(RESULT.message, (memoryview(bytes(1 << 20)),), lease)
    ledger.settle(ask(ledger).entry, answer, compute_s=1.0)
    lease.give_back()
    assert ledger.evict(1) == 1 << 20


def test_a_lease_returns_once_and_is_not_taken_after():
    memory = Memory()
    memory.lease.take(2)
    for _ in range(3):
        assert memory.n_returned == 0
        memory.lease.give_back()
    assert memory.n_returned == 1
    with pytest.raises(ValueError, match="nobody"):
        memory.lease.take()
    with pytest.raises(ValueError, match="nobody"):
        memory.lease.give_back()


# Those who go away, and those who crash


def test_who_left_is_not_waited_for(ledger):
    entry = ask(ledger).entry
    ask(ledger, "b", 2)
    assert ledger.withdraw("a") == 1
    assert not ledger.drop_if_abandoned(entry)
    assert ledger.withdraw("b", 3) == 0
    assert ledger.withdraw("b", 2) == 1
    assert ledger.drop_if_abandoned(entry)
    assert ledger.n_running == 0
    assert ask(ledger, "c").entry is not entry


def test_who_left_before_the_payload_was_there_starts_nothing(ledger):
    entry = ledger.admit("alice", REQUEST, Waiter("a", 1)).entry
    assert ledger.withdraw("a", 1) == 1
    assert ledger.confirm(entry, DIGEST).entry is None
    assert ledger.n_running == 0


def test_a_refused_request_before_its_payload_is_not_remembered(ledger):
    entry = ledger.admit("alice", REQUEST, Waiter("a", 1)).entry
    assert ledger.settle(entry, Answer(Failed(0, "rejected", "bad", ""))) == [Waiter("a", 1)]
    assert ledger.n_running == ledger.cached_bytes == 0


def test_an_entry_withdrawn_tells_who_waited(ledger):
    entry = ask(ledger).entry
    ask(ledger, "b", 2)
    assert ledger.withdraw_entry(entry) == [Waiter("a", 1), Waiter("b", 2)]
    assert ask(ledger).entry is not None


def test_crashes_are_counted_by_tenant_and_key_until_it_works(ledger):
    entry = ask(ledger).entry
    assert ledger.crashed(entry) == 1
    ledger.withdraw_entry(entry)
    entry = ask(ledger).entry
    assert ledger.crashed(entry) == 2
    other = ask(ledger, tenant="bob", request_id=2).entry
    assert ledger.crashed(other) == 1
    ledger.settle(entry, RESULT)
    assert ledger.crashed(entry) == 1


def test_nothing_grows_without_bound(ledger, clock):
    for number in range(5000):
        request = dataclasses.replace(REQUEST, key=f"k{number}", params={"x": "y" * 1000})
        entry = ask(ledger, f"session {number}", request=request).entry
        ledger.crashed(entry)
        if number % 2:
            ledger.settle(entry, RESULT)
        else:
            ledger.withdraw_entry(entry)
    assert ledger.cached_bytes <= 20_000
    assert len(ledger._answered) < 20
    assert not ledger._waits
    assert len(ledger._crashed) <= 4096


class LedgerMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order: one answer each, and memory is bounded and returns once."""

    names = st.sampled_from(["a", "b"])
    digests = st.sampled_from([b"1", b"2"])

    def __init__(self):
        super().__init__()
        self.clock = Clock()
        self.ledger = Ledger(4 * 1024 + 10, 60.0, self.clock, kept_bytes=2 << 20)
        self.arriving = []
        self.entries = {}
        self.waiting = {}
        self.memories = []
        self.next_id = 0

    @rule(tenant=names, key=names, session=names)
    def admit(self, tenant, key, session):
        self.next_id += 1
        waiter = Waiter(session, self.next_id)
        request = dataclasses.replace(REQUEST, id=self.next_id, key=key)
        entry = self.ledger.admit(tenant, request, waiter).entry
        self.waiting[waiter] = entry
        self.arriving.append(entry)

    @rule(digest=digests)
    def confirm(self, digest):
        if not self.arriving:
            return
        entry = self.arriving.pop(0)
        mine = [waiter for waiter, of in self.waiting.items() if of is entry]
        verdict = self.ledger.confirm(entry, digest)
        running = self.entries.get(entry.name)
        if not mine:
            assert (verdict.entry, verdict.answer, verdict.is_conflict) == (None, None, False)
        elif verdict.entry is not None:
            assert running is None
            self.entries[entry.name] = entry
        elif verdict.answer is not None:
            assert verdict.answer.message.info["digest"] == str(digest)
            if verdict.answer.lease is not None:
                verdict.answer.lease.give_back()
            del self.waiting[mine[0]]
        elif verdict.is_conflict:
            assert running is None or running.digest != digest
            del self.waiting[mine[0]]
        else:
            assert running.digest == digest
            self.waiting[mine[0]] = running

    @rule(tenant=names, key=names, is_large=st.booleans(), compute_s=st.sampled_from([0.0, 9.0]))
    def settle(self, tenant, key, is_large, compute_s):
        entry = self.entries.pop((tenant, key), None)
        if entry is None:
            return
        answer = RESULT
        if is_large:
            self.memories.append(Memory())
            answer = self.memories[-1].answer
        message = dataclasses.replace(RESULT.message, info={"digest": str(entry.digest)})
        waiters = self.ledger.settle(entry, answer._replace(message=message), compute_s)
        assert set(waiters) == {waiter for waiter, of in self.waiting.items() if of is entry}
        for waiter in waiters:
            del self.waiting[waiter]
        if answer.lease is not None:
            answer.lease.give_back()

    @rule(tenant=names, key=names)
    def drop(self, tenant, key):
        entry = self.entries.get((tenant, key))
        if entry is not None and self.ledger.drop_if_abandoned(entry):
            del self.entries[tenant, key]

    @rule(session=names)
    def leave(self, session):
        left = {waiter for waiter in self.waiting if waiter.session == session}
        assert self.ledger.withdraw(session) == len(left)
        for waiter in left:
            del self.waiting[waiter]

    @rule(seconds=st.sampled_from([1.0, 61.0]))
    def wait(self, seconds):
        self.clock.now_s += seconds

    @rule()
    def evict(self):
        kept = self.ledger.kept_bytes
        assert self.ledger.evict(1) == min(kept, 1 << 20)

    @invariant()
    def everyone_is_known(self):
        assert {waiter: id(entry) for entry, waiter in self.ledger.waiters()} == {
            waiter: id(entry) for waiter, entry in self.waiting.items()
        }
        assert self.ledger.n_running == len(self.entries) + len(self.arriving)
        for session in ("a", "b"):
            assert self.ledger.n_waiting(session) == sum(waiter.session == session for waiter in self.waiting)

    @invariant()
    def memory_is_bounded_and_returns_once(self):
        assert 0 <= self.ledger.cached_bytes <= 4 * 1024 + 10
        assert all(memory.n_returned <= 1 for memory in self.memories)
        held = sum(memory.lease.n_bytes for memory in self.memories if not memory.n_returned)
        assert held == self.ledger.kept_bytes <= 2 << 20


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)

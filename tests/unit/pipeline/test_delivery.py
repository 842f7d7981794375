"""The short way of a small answer to its only waiter: same message, same counts, memory back once."""

from types import SimpleNamespace

import pytest

from yarn_accel.pipeline.budget import ByteBudget
from yarn_accel.pipeline.counters import Counters
from yarn_accel.pipeline.delivery import Delivery
from yarn_accel.pipeline.ledger import Ledger, Waiter
from yarn_accel.pipeline.loans import Loans
from yarn_accel.pipeline.pool import Pool
from yarn_accel.pipeline.work import Holding as RealHolding
from yarn_accel.pipeline.work import Work
from yarn_accel.pipeline.workers.jobs import Area, JobDone
from yarn_accel.wire import Busy, Request, TensorSpec


class Session:
    """Takes what is posted, and says at once that it has left."""

    def __init__(self, is_lost=False):
        self.sender = self
        self.is_lost = is_lost
        self.works = {}
        self.posted = []

    def post(self, parcel):
        self.posted.append((parcel.message, [bytes(part) for part in parcel.payload]))
        parcel.over(was_sent=not self.is_lost)


class Holding:
    """Memory that counts how often it is given back."""

    lent_inputs = lent_outputs = None
    held_bytes = 0
    n_bytes = 1 << 20
    is_shown = False

    def __init__(self):
        self.n_freed = 0

    def view(self, segment, offset, n_bytes):
        assert not self.n_freed
        return memoryview(bytes([7]) * n_bytes)

    def free(self):
        self.n_freed += 1

    def leave_share(self):
        pass


def answer(
    n_items, n_others=0, is_lost=False, kept_bytes=0, first_session=Session, holding=None, segments=(1,)
):
    """What one request, and others of the same key, come to: sessions, counters, its memory."""
    counters, ledger = Counters(), Ledger(1 << 20, 60.0, kept_bytes=kept_bytes)
    delivery = Delivery(SimpleNamespace(name="s"), ledger, counters, None)
    spec = TensorSpec("|u1", (n_items,))
    plan = SimpleNamespace(references=())
    sessions = [first_session(is_lost), *(Session(is_lost) for _ in range(n_others))]
    works = []
    for number, session in enumerate(sessions, 1):
        request = Request(number, "key", "echo", {}, (spec,))
        counters.add("requests", 1, "t")
        entry = ledger.admit("t", request, Waiter(session, number)).entry
        own = holding if holding is not None and number == 1 else Holding()
        works.append(Work("t", session, entry, request, plan, own, 0.0))
        ledger.confirm(entry, b"digest")
    done = JobDone(works[0].id, tuple((str(at), Area(at, 0, spec)) for at in segments), {}, 1e-6, 1e-6, False)
    delivery.result(works[0], done)
    return sessions, counters.snapshot(), works[0].holding, ledger


@pytest.mark.parametrize("n_items", [8, Ledger.SMALL_BYTES, Ledger.SMALL_BYTES + 1])
def test_one_who_waits(n_items):
    (session,), counted, holding, ledger = answer(n_items)
    ((message, payload),) = session.posted
    assert (message.id, message.bytes_out, payload) == (1, n_items, [bytes([7]) * n_items])
    assert (holding.n_freed, ledger.n_running) == (1, 0)
    assert (counted["requests"], counted["done"], counted["duplicates"]) == (1, 1, 0)
    assert counted["bytes_out"] == counted["tenants"]["t"]["bytes_out"] == n_items
    assert sum(counted["latency"]["operations"]["echo"]["counts"]) == 1


@pytest.mark.parametrize("n_items", [8, Ledger.SMALL_BYTES + 1])
def test_an_answer_that_is_being_handed_out_is_not_forgotten_by_a_drain(n_items):
    seen = []

    class Watching(Session):
        def post(self, parcel):
            seen.append((ledger.n_running, delivery.is_idle))
            super().post(parcel)

    counters, ledger = Counters(), Ledger(1 << 20, 60.0)
    delivery = Delivery(SimpleNamespace(name="s"), ledger, counters, None)
    spec, session = TensorSpec("|u1", (n_items,)), Watching()
    request = Request(1, "key", "echo", {}, (spec,))
    entry = ledger.admit("t", request, Waiter(session, 1)).entry
    work = Work("t", session, entry, request, SimpleNamespace(references=()), Holding(), 0.0)
    ledger.confirm(entry, b"digest")
    assert delivery.is_idle
    delivery.result(work, JobDone(work.id, (("0", Area(1, 0, spec)),), {}, 1e-6, 1e-6, False))
    assert seen == [(0, False)]
    assert delivery.is_idle


@pytest.mark.parametrize("n_items", [8, Ledger.SMALL_BYTES + 1])
def test_several_who_wait(n_items):
    sessions, counted, holding, _ = answer(n_items, n_others=2)
    assert [session.posted[0][0].id for session in sessions] == [1, 2, 3]
    assert all(session.posted[0][1] == [bytes([7]) * n_items] for session in sessions)
    assert holding.n_freed == 1
    assert (counted["requests"], counted["done"], counted["duplicates"]) == (3, 3, 2)


@pytest.mark.parametrize("n_others", [0, 2])
@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
def test_a_large_answer_that_did_not_arrive_is_kept_while_there_is_room(n_others, kept_bytes):
    """It was cheap, so had it arrived, it would not have been."""
    sessions, _, holding, ledger = answer(
        Ledger.SMALL_BYTES + 1, n_others, is_lost=True, kept_bytes=kept_bytes
    )
    assert (holding.n_freed, ledger.kept_bytes) == ((0, 1 << 20) if kept_bytes else (1, 0))
    again = Request(9, "key", "echo", {}, (TensorSpec("|u1", (Ledger.SMALL_BYTES + 1,)),))
    entry = ledger.admit("t", again, Waiter(Session(), 9)).entry
    known = ledger.confirm(entry, b"digest").answer
    assert (known is not None) == bool(kept_bytes)
    if known is not None:
        assert bytes(known.payload[0]) == sessions[0].posted[0][1][0]
        known.lease.give_back()
        ledger.evict(1)
    assert holding.n_freed == 1


def test_a_large_cheap_answer_that_arrived_is_not_kept():
    _, _, holding, ledger = answer(Ledger.SMALL_BYTES + 1, kept_bytes=1 << 20)
    assert (holding.n_freed, ledger.kept_bytes) == (1, 0)


@pytest.mark.parametrize("segment_of_outputs", ["of its own", "of the inputs"])
@pytest.mark.parametrize("n_items", [8, Ledger.SMALL_BYTES + 1])
def test_the_memory_of_inputs_may_be_named_again_by_who_reads_the_answer(n_items, segment_of_outputs):
    """The client may send its next request before the server has so much as returned from sending."""
    pool = Pool(64 << 20)
    loans = Loans(pool, 4 << 20)
    number = loans.lend(1 << 20).segment.id

    class Holder(RealHolding):
        def view(self, segment, offset, n_bytes):
            return memoryview(bytes([7]) * n_bytes)

    class Quick(Session):
        def post(self, parcel):
            loans.done(loans.use(number, 1 << 20, exclusive=True))
            super().post(parcel)

    holding = Holder(pool, ByteBudget(1 << 30), loans)
    holding.lent_inputs = loans.use(number, 1 << 20, exclusive=True)
    in_inputs = segment_of_outputs == "of the inputs"
    # Outputs in two segments cannot be shown where they lie: they travel.
    areas = (number, number + 1) if in_inputs else (number + 1,)
    sessions, _, _, _ = answer(n_items, n_others=1, first_session=Quick, holding=holding, segments=areas)
    ((mine, payload),), ((other, _),) = (session.posted for session in sessions)
    assert (mine.id, payload[0]) == (1, bytes([7]) * n_items)
    assert isinstance(other, Busy) == in_inputs, "what one client may write to is not sent to another"
    assert holding.lent_inputs is None
    loans.end()
    pool.close()
    assert pool.used_bytes == 0

"""Whatever completes when: every call gets exactly one outcome, in order if that was asked for."""

import gc

from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.dispatch import CallSource
from yarn_accel.client.shared_memory import ReplyPool, SharedMemory, SharedSegment
from yarn_accel.errors import RejectedError, UnavailableError
from yarn_accel.wire import TensorSpec

FORMS = st.sampled_from(["a", "b", "bad", "lost", "echo", "nothing now"])


def call_of(position, form):
    operation = "echo" if form == "echo" else "lu"
    n = 2 if form == "b" else 1
    tensor = Tensor(TensorSpec("|u1", (n,)), bytes([position % 256]) * n)
    return Call(f"{position}-{form}", operation, {}, (tensor,))


def answer_to(call):
    """The answer of a server to a request: each byte of the input, or the error its keys ask for."""
    keys = call.key
    if keys.startswith("pack/"):
        data = bytes(call.inputs[0].data)
        spec = call.inputs[0].spec
        return Reply({"first": list(data[:: spec.shape[1]])}, {"out": Tensor(spec, data)}, "w", "c", {}, 0, 0)
    if keys.endswith("bad"):
        return RejectedError("bad", keys)
    if keys.endswith("lost"):
        return UnavailableError(keys)
    spec = call.inputs[0].spec
    data = bytes(call.inputs[0].data)
    return Reply({"first": data[0]}, {"out": Tensor(spec, data)}, "w", "c", {}, 0, 0)


@given(
    st.lists(FORMS, max_size=40),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from([1, 2, 3, "auto"]),
    st.data(),
)
def test_every_call_gets_one_outcome(forms, window, is_ordered, pack, data):
    items = [None if form == "nothing now" else call_of(at, form) for at, form in enumerate(forms)]
    calls = [call for call in items if call is not None]
    bad = {call.key for call in calls if call.key.endswith(("bad", "lost"))}
    source = CallSource(iter(items), window, is_ordered, pack)
    members = {}
    flying, seen = [], []
    while True:
        while len(flying) < window:
            call = source.next()
            if call is None:
                break
            flying.append(call)
            members[id(call)] = source._packs.get(id(call), (call, (call,)))[1]
        if not flying:
            if source.is_exhausted:
                break
            continue
        call = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
        is_spoilt = call.key.startswith("pack/") and any(one.key in bad for one in members[id(call)])
        outcome = RejectedError("bad", "item 0") if is_spoilt else answer_to(call)
        seen += source.settle(call, outcome)
    assert sorted(call.key for call, _ in seen) == sorted(call.key for call in calls)
    if is_ordered:
        assert [call for call, _ in seen] == calls
    for call, outcome in seen:
        if call.key in bad:
            assert outcome.message == call.key
        else:
            assert bytes(outcome.tensors["out"].data) == bytes(call.inputs[0].data)
            assert outcome.info == {"first": call.inputs[0].data[0]}


@given(st.lists(st.tuples(st.integers(1, 3 << 20), st.booleans()), max_size=30))
def test_pool_memory_in_use_is_never_handed_out_twice(steps):
    pool = ReplyPool(idle_bytes=8 << 20)
    held = []
    for number, (n_bytes, is_dropping) in enumerate(steps):
        view = pool.take(n_bytes)
        assert len(view) == n_bytes
        view[:1] = view[-1:] = bytes([number])
        held.append((number, view))
        del view
        if is_dropping:
            del held[0]
            gc.collect(0)
        for wrote, kept in held:
            assert kept[0] == kept[-1] == wrote


class View(bytearray):
    """Stands in for the memory of a view: it can be watched."""


class FakeRegion:
    """Stands in for mapped memory: its views are dropped when the test says so."""

    def __init__(self, n_bytes):
        self.n_bytes = n_bytes
        self.views = []

    def lend(self, drops, owner):
        self.views.append(View())
        drops.watch(self.views[-1], owner)
        return memoryview(b"")


@given(
    st.lists(st.tuples(st.sampled_from(["take", "hold", "leave", "drop"]), st.integers(0, 7)), max_size=60)
)
def test_a_segment_is_free_only_when_nobody_uses_it(steps):
    granted = SharedMemory(1 << 30)
    segments = [SharedSegment(number, FakeRegion(1 << number), is_reusable=True) for number in range(4)]
    granted._free.extend(segments)
    users = {segment.id: 0 for segment in segments}
    requests = []
    for step, at in steps:
        if step == "take":
            segment = granted.take(1 << (at % 4))
            if segment is not None:
                assert users[segment.id] == 0
                users[segment.id] = 1
                requests.append(segment)
        elif step == "hold" and requests:
            segment = requests[at % len(requests)]
            granted.hold(segment)
            users[segment.id] += 1
        elif step == "leave" and requests:
            segment = requests.pop(at % len(requests))
            users[segment.id] -= 1
            granted.release(segment)
        elif step == "drop":
            segment = segments[at % 4]
            if segment.region.views:
                segment.region.views.pop()
                users[segment.id] -= 1
        assert all(segment.n_users >= users[segment.id] for segment in segments)
    granted.segments_to_return()
    assert {segment.id for segment in granted._free} == {number for number, n in users.items() if n == 0}

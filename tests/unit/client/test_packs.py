"""Packing, order and forms: many calls as one request, answers apart again, each call its own outcome."""

import itertools
from itertools import repeat

import pytest

from yarn_accel.client.calls import Call, Reference, Reply, Tensor
from yarn_accel.client.dispatch import CallSource, is_packable, pack, pack_size, same_form, split
from yarn_accel.client.fallback import LocalExecutor
from yarn_accel.errors import LocalProtocolError, RejectedError, UnavailableError
from yarn_accel.operations import Operation, Outcome, counts, registry
from yarn_accel.wire import LARGE_PACK_BYTES, PACK_BYTES, NamedTensor, TensorSpec
from yarn_accel.wire.credential import issue

np = pytest.importorskip("numpy")
CREDENTIAL = issue(bytes(range(32)), "alice", 2**40, "k1")


def matrices(n_calls, order="C", n=4, operation="lu", bad=()):
    rng = np.random.default_rng(5)
    for position in range(n_calls):
        matrix = rng.standard_normal((n, n))
        matrix = np.asarray(matrix @ matrix.T + n * np.eye(n), order=order)
        if position in bad:
            matrix[1, 1] = np.nan
        yield Call(f"k{position}", operation, {}, (matrix,))


def run(source, answer, window=3):
    """Send what the source says to `answer`, the newest first, and return what the caller sees."""
    outcomes, flying = [], []
    while True:
        while len(flying) < window:
            call = source.next()
            if call is None:
                break
            flying.append(call)
        if not flying:
            return outcomes
        call = flying.pop()
        try:
            outcome = answer(call)
        except (RejectedError, UnavailableError) as error:
            outcome = error
        outcomes += source.settle(call, outcome)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("operation", ["lu", "qr", "cholesky"])
def test_a_pack_gives_each_call_what_it_gets_alone(operation, order):
    compute = LocalExecutor().call
    sent = []

    def answer(call):
        sent.append(call)
        return compute(call)

    calls = list(matrices(7, order, operation=operation))
    outcomes = dict((call.key, reply) for call, reply in run(CallSource(calls, 3, pack=3), answer))
    assert sorted(len(call.inputs[0].array()) for call in sent) == [3, 3, 4]
    assert set(outcomes) == {call.key for call in calls}
    for call in calls:
        alone = compute(call)
        together = outcomes[call.key]
        assert list(together.tensors) == list(alone.tensors)
        assert dict(together.info) == dict(alone.info)
        for name, array in together.arrays().items():
            np.testing.assert_allclose(array, alone.tensors[name].array(), rtol=1e-12, atol=1e-12)


def test_gemm_packs_both_inputs():
    rng = np.random.default_rng(3)
    calls = [Call(f"k{n}", "gemm", {}, (rng.random((3, 2)), rng.random((2, 5)))) for n in range(4)]
    outcomes = run(CallSource(calls, 2, pack="auto"), LocalExecutor().call)
    for call, reply in outcomes:
        left, right = (item.array() for item in call.inputs)
        np.testing.assert_allclose(reply.tensors["c"].array(), left @ right)
    assert len(outcomes) == 4


def test_one_bad_call_of_a_pack_fails_alone():
    sent = []

    def answer(call):
        sent.append(call.key)
        return LocalExecutor().call(call)

    calls = list(matrices(5, bad=(2,)))
    outcomes = dict((call.key, outcome) for call, outcome in run(CallSource(calls, 2, pack=8), answer))
    assert isinstance(outcomes.pop("k2"), RejectedError)
    assert all(isinstance(outcome, Reply) for outcome in outcomes.values())
    assert sent[0].startswith("pack/")
    assert sorted(sent[1:]) == [call.key for call in calls]


def test_another_error_of_a_pack_is_that_of_each_call():
    def answer(call):
        raise UnavailableError("gone")

    outcomes = run(CallSource(matrices(3), 2, pack=8), answer)
    assert [str(outcome) for _, outcome in outcomes] == ["gone"] * 3


def test_only_calls_of_the_same_form_travel_together():
    calls = [
        *matrices(2),
        *matrices(2, n=5),
        Call("p", "lu", {"form": "separate"}, (np.eye(5),)),
        Call("d", "lu", {"form": "separate"}, (np.eye(5),), deadline_s=2.0),
        Call("h", "lu", {"form": "separate"}, (np.eye(5),), deadline_s=2.0, priority=3),
        Call("u", "lu", {}, (Reference("file:///x"),)),
        Call("e", "echo", {}, (np.eye(5),)),
        Call("o", "lu", {}, (np.eye(5),), output_uri="file:///y"),
        Call("b", "lu", {}, (np.eye(1000),)),
    ]
    source = CallSource(calls, 2, pack=4)
    sent = list(iter(source.next, None))
    assert [len(call.inputs[0].spec.shape) if isinstance(call.inputs[0], Tensor) else 0 for call in sent] == [
        3, 3, 2, 2, 2, 0, 2, 2, 2
    ]  # fmt: skip
    assert [call.key for call in sent[2:]] == ["p", "d", "h", "u", "e", "o", "b"]


def test_the_key_of_a_pack_follows_from_its_calls():
    first, second, third = (list(matrices(n)) for n in (3, 3, 4))
    assert pack(first).key == pack(second).key != pack(third).key
    assert (
        pack([Call("ab", "lu", {}, first[0].inputs), Call("c", "lu", {}, first[0].inputs)]).key
        != pack([Call("a", "lu", {}, first[0].inputs), Call("bc", "lu", {}, first[0].inputs)]).key
    )


def row_sums(arrays, params, place=None):
    (rows,) = arrays
    sums = rows.sum(axis=-1)
    facts = sums.max(axis=-1)
    return Outcome({"sums": sums}, {"largest": facts.tolist() if facts.ndim else float(facts)})


@pytest.mark.parametrize("takes_stacks", [True, False])
def test_an_operation_of_others_travels_in_packs_if_it_takes_stacks(monkeypatch, takes_stacks):
    operation = Operation(
        "row_sums", "sums of rows", 1, _fits, row_sums, counts.none, takes_stacks=takes_stacks
    )
    monkeypatch.setitem(registry._table, "row_sums", operation)
    compute, sent = LocalExecutor().call, []

    def answer(call):
        sent.append(call)
        return compute(call)

    calls = [Call(f"k{n}", "row_sums", {}, (np.arange(6.0).reshape(2, 3) + n,)) for n in range(4)]
    outcomes = {call.key: reply for call, reply in run(CallSource(calls, 4, pack=4), answer)}
    assert len(sent) == (1 if takes_stacks else 4)
    for n, call in enumerate(calls):
        reply = outcomes[call.key]
        assert reply.tensors["sums"].array().tolist() == [3.0 + 3 * n, 12.0 + 3 * n]
        assert reply.info["largest"] == 12.0 + 3 * n


def _fits(specs, params):
    """Every input is fine."""


def test_an_operation_that_nobody_here_knows_travels_as_the_server_says():
    call = Call("k", "of-a-site", {}, (np.eye(2),))
    assert not is_packable(call, lambda name: False)
    assert is_packable(call, lambda name: name == "of-a-site")
    assert not is_packable(Call("k", "echo", {}, (np.eye(2),)), lambda name: True), "known here better"


def test_the_automatic_size_is_bounded_by_calls_and_bytes():
    small = next(matrices(1, n=4))
    medium = next(matrices(1, n=64))
    assert pack_size(small, "auto") == 64
    assert pack_size(medium, "auto") == 16
    assert pack_size(medium, 3) == 3
    assert is_packable(small, lambda name: False)
    assert same_form(small, next(matrices(1)))
    for wrong in (0, "all"):
        with pytest.raises(LocalProtocolError, match="'auto'"):
            CallSource((), 1, pack=wrong)


@pytest.mark.parametrize(
    ("n", "pack_bytes", "size"),
    [
        (181, PACK_BYTES, 2),
        (182, PACK_BYTES, 0),
        (256, LARGE_PACK_BYTES, 16),
        (512, LARGE_PACK_BYTES, 4),
        (513, LARGE_PACK_BYTES, 0),
    ],
)
def test_larger_matrices_travel_in_packs_to_servers_that_compute_them_together(n, pack_bytes, size):
    call = Call("k", "lu", {}, (np.zeros((n, n)),))
    assert is_packable(call, lambda name: False, pack_bytes) == bool(size)
    if size:
        assert pack_size(call, "auto", pack_bytes) == size
        source = CallSource(repeat(call, 2 * size), 2, pack="auto", pack_bytes=lambda: pack_bytes)
        assert [len(each.inputs[0].array()) for each in iter(source.next, None)] == [size, size]


def test_no_pack_of_any_size_that_is_asked_for_exceeds_the_bytes():
    call = Call("k", "lu", {}, (np.zeros((256, 256)),))
    assert pack_size(call, 1000, LARGE_PACK_BYTES) == LARGE_PACK_BYTES // (8 * 256 * 256)


def test_a_tensor_of_the_wrong_length_spoils_no_pack():
    good = list(matrices(2))
    bad = Call("bad", "lu", {}, (Tensor(TensorSpec("<f8", (4, 4)), b"short"),))
    source = CallSource([good[0], bad, good[1]], 2, pack=8)
    assert [call.key for call in iter(source.next, None)] == ["k0", "bad", "k1"]


def test_time_and_bytes_are_shared_out():
    reply = Reply({"n": [1, 2], "kind": "x"}, {}, "w1", "cpu", {"compute": 3.0}, 10, 20)
    first, second = split(reply, 2)
    assert (first.info, second.info) == ({"n": 1, "kind": "x"}, {"n": 2, "kind": "x"})
    assert (first.seconds, first.bytes_in, first.bytes_out) == ({"compute": 1.5}, 5, 10)


def test_a_call_given_twice_is_answered_twice_in_order():
    call = Call("k", "echo")
    source = CallSource(itertools.repeat(call, 3), 2, ordered=True)
    reply = Reply({}, {}, "w1", "cpu", {}, 0, 0)
    assert run(source, lambda call: reply) == [(call, reply)] * 3


def test_little_is_sent_ahead_of_a_slow_call():
    pulled = []

    def calls():
        for n in itertools.count():
            pulled.append(n)
            yield Call(f"k{n}", "echo")

    source = CallSource(calls(), 2, ordered=True)
    reply = Reply({}, {}, "w1", "cpu", {}, 0, 0)
    slow = source.next()
    while True:
        call = source.next()
        if call is None:
            break
        assert source.settle(call, reply) == []
    assert len(pulled) <= 10
    assert [call.key for call, _ in source.settle(slow, reply)] == [f"k{n}" for n in pulled]
    assert source.next() is not None


def test_arrays_are_inputs_as_they_are():
    array = np.arange(6.0).reshape(2, 3)
    call = Call("k", "echo", {}, [array, Reference("file:///x")])
    assert call.inputs[0].spec == TensorSpec("<f8", (2, 3))
    assert np.shares_memory(call.inputs[0].array(), array)
    assert call.inputs[1] == Reference("file:///x")


def test_named_tensor_of_a_pack_in_fortran_order_is_cut_too():
    stack = np.asfortranarray(np.arange(12.0).reshape(2, 3, 2))
    reply = Reply({}, {"a": Tensor.of(stack)}, "w1", "cpu", {}, 0, 0)
    for position, part in enumerate(split(reply, 2)):
        assert np.array_equal(part.tensors["a"].array(), stack[position])
    assert NamedTensor("a", TensorSpec("<f8", (2, 3, 2), "F")).spec.order == "F"

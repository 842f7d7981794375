"""A real server over real sockets with the real operations."""

import threading
import time

import numpy as np
import pytest

from yarn_accel.client.client import Call, Client, Reference, Reply, Tensor
from yarn_accel.errors import AccelError, RejectedError, StorageError
from yarn_accel.operations.operation import Operation, Outcome
from yarn_accel.wire import TensorSpec

RNG = np.random.default_rng(7)


def positive_definite(n):
    a = RNG.standard_normal((n, n))
    return np.asfortranarray(a @ a.T + n * np.eye(n))


@pytest.fixture(params=["tcp", "unix"])
def server(request, start_server, tmp_path):
    if request.param == "unix":
        return start_server(listen_host="", unix_path=str(tmp_path / "socket"))
    return start_server()


def test_a_factorization_by_value(server, credential):
    a = RNG.standard_normal((60, 60))
    with Client(server.endpoint, credential) as client:
        reply = client.call(Call("k1", "qr", {}, (Tensor.of(np.asfortranarray(a)),)))
    assert np.abs(reply.tensors["q"].array() @ reply.tensors["r"].array() - a).max() < 1e-12
    assert (reply.server, reply.device, reply.bytes_in) == ("w1", "cpu", a.nbytes)
    assert set(reply.seconds) == {"read", "queue", "compute", "write", "total"}
    assert server.stats()["done"] == 1


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "<i8", "<f4", "<c16"])
def test_arrays_come_back_as_they_went(start_server, credential, order, dtype):
    arrays = [
        np.asarray(RNG.integers(0, 100, (3, 5)), dtype, order=order),
        np.zeros((0, 4), dtype),
        np.asarray(RNG.integers(0, 100, 7), dtype),
    ]
    with Client(start_server().endpoint, credential) as client:
        reply = client.call(Call("k1", "echo", {"x": [1, None]}, tuple(Tensor.of(array) for array in arrays)))
    assert reply.info["params"] == {"x": [1, None]}
    back = [tensor.array() for tensor in reply.tensors.values()]
    for sent, got in zip(arrays, back, strict=True):
        assert np.array_equal(sent, got)
        assert sent.dtype == got.dtype


def test_by_reference_and_back_and_checked_by_reference(start_server, credential, tmp_path):
    """The way of jobs/factorize: input by URI, factors to a URI, residual of both by URI."""
    a = np.asfortranarray(RNG.standard_normal((50, 50)))
    (tmp_path / "a.f8").write_bytes(a.tobytes(order="F"))
    source = Reference(f"file://{tmp_path}/a.f8", TensorSpec("<f8", (50, 50), "F"))
    output = f"file://{tmp_path}/factors/a.npz"
    with Client(start_server().endpoint, credential) as client:
        for operation, names in (("lu", ["lu", "piv"]), ("qr", ["q", "r"])):
            reply = client.call(Call(operation, operation, {}, (source,), output))
            assert reply.tensors == {}
            assert reply.bytes_in == a.nbytes
            with np.load(tmp_path / "factors/a.npz") as written:
                assert written.files == names
            checked = client.call(
                Call(f"{operation}-r", "residual", {"operation": operation}, (source, Reference(output)))
            )
            assert checked.info["passed"] is True, checked.info
    assert [path.name for path in (tmp_path / "factors").iterdir() if path.is_file()] == ["a.npz"]
    assert list((tmp_path / "factors/_tmp").iterdir()) == []


def test_references_and_values_in_one_request(start_server, credential, tmp_path):
    np.save(tmp_path / "b.npy", np.arange(12.0).reshape(3, 4))
    np.savez(tmp_path / "c.npz", x=np.arange(3), y=np.eye(2))
    (tmp_path / "d.bin").write_bytes(b"abc")
    inputs = (
        Tensor.of(np.ones(2)),
        Reference(f"file://{tmp_path}/b.npy"),
        Reference(f"file://{tmp_path}/c.npz"),
        Reference(f"file://{tmp_path}/d.bin"),
    )
    with Client(start_server().endpoint, credential) as client:
        reply = client.call(Call("k", "echo", {}, inputs))
    got = [tensor.array() for tensor in reply.tensors.values()]
    wanted = [np.ones(2), np.arange(12.0).reshape(3, 4), np.arange(3), np.eye(2), np.frombuffer(b"abc", "u1")]
    assert all(np.array_equal(left, right) for left, right in zip(got, wanted, strict=True))


def bad_calls(folder):
    good = Tensor.of(np.eye(3))
    nan = np.eye(3)
    nan[1, 2] = np.nan
    indefinite = np.diag([1.0, 1.0, -1.0, 1.0])
    (folder / "short").write_bytes(b"1234567")
    np.savez_compressed(folder / "packed.npz", a=np.eye(2))
    (folder / "broken.npz").write_bytes(b"PK nonsense")
    (folder / "folder").mkdir()
    spec = TensorSpec("<f8", (2, 2))
    at = f"file://{folder}/"
    return {
        "unknown-operation": Call("b1", "explode", {}, (good,)),
        "not-finite": Call("b2", "lu", {}, (Tensor.of(nan),)),
        "not-positive-definite": Call("b3", "cholesky", {}, (Tensor.of(indefinite),)),
        "wrong-length": Call("b4", "lu", {}, (Reference(at + "short", spec),)),
        "forbidden-uri": Call("b5", "lu", {}, (Reference("file:///etc/passwd"),)),
        "forbidden-uri ": Call("b6", "lu", {}, (Reference(at + "../../etc/passwd"),)),
        "forbidden-uri  ": Call("b7", "lu", {}, (good,), "file:///etc/cron.d/x"),
        "forbidden-uri   ": Call("b8", "lu", {}, (Reference("http://localhost/x"),)),
        "bad-npz": Call("b9", "echo", {}, (Reference(at + "packed.npz"),)),
        "bad-npz ": Call("b10", "echo", {}, (Reference(at + "broken.npz"),)),
        "cannot-be-sent": Call("", "lu", {}, (good,)),
        "cannot-be-sent ": Call("b11", "lu", {}, (Tensor(spec, b"short"),)),
        "request-too-large": Call("b12", "echo", {}, (Reference(at + "large"),)),
        "storage": Call("b13", "lu", {}, (Reference(at + "missing", spec),)),
        "storage ": Call("b14", "lu", {}, (Reference(at + "folder", spec),)),
    }


def test_a_bad_record_is_named_and_hurts_nobody(server, credential, tmp_path):
    """Bad and good requests mixed in one window: every bad one gets its reason, every good one its result."""
    with (tmp_path / "large").open("wb") as file:
        file.truncate(300 * 1024 * 1024)
    bad = bad_calls(tmp_path)
    good = [Call(f"g{n}", "cholesky", {}, (Tensor.of(positive_definite(20)),)) for n in range(len(bad))]
    mixed = [call for pair in zip(good, bad.values(), strict=True) for call in pair]
    with Client(server.endpoint, credential) as client:
        outcomes = {id(call): outcome for call, outcome in client.map(mixed, window=6)}
    assert all(isinstance(outcomes[id(call)], Reply) for call in good)
    for code, call in bad.items():
        error = outcomes[id(call)]
        if code.startswith("storage"):
            assert isinstance(error, StorageError), error
            assert "file://" in str(error)
            assert not error.transient
        else:
            assert isinstance(error, RejectedError), (code, error)
            assert error.code == code.strip(), error
    stats = server.stats()
    assert stats["done"] == len(good)
    assert stats["requests"] == stats["done"] + stats["rejected"] + stats["failed"]
    assert stats["broken"] == 0


def test_values_in_messages_name_the_place(start_server, credential):
    bad = np.eye(5)
    bad[3, 3] = -1
    with Client(start_server().endpoint, credential) as client:
        with pytest.raises(RejectedError, match="order 4"):
            client.call(Call("k", "cholesky", {}, (Tensor.of(bad),)))
        bad[3, 3] = np.inf
        with pytest.raises(RejectedError, match="3, 3"):
            client.call(Call("k2", "lu", {}, (Tensor.of(bad),)))


class Gate:
    """Operations a test can hold: ``wait`` computes once the gate is opened; the others are broken."""

    def __init__(self):
        self.opened = threading.Event()
        self.n_started = 0
        self.n_bytes = 0

    def find(self, name):
        runs = {"wait": self.wait, "boom": self.boom, "odd": self.odd, "oom": self.oom}
        if name not in runs:
            raise RejectedError("unknown-operation", f"unknown operation {name!r}")
        return Operation(name, "", None, lambda specs, params: None, runs[name], lambda specs, params: 0)

    def wait(self, arrays, params):
        self.n_started += 1
        assert self.opened.wait(30)
        return Outcome(dict(enumerate_names(arrays)), {"n": self.n_started})

    def boom(self, arrays, params):
        raise ZeroDivisionError("by design")

    def oom(self, arrays, params):
        raise MemoryError

    def odd(self, arrays, params):
        return Outcome({"no spaces allowed": np.zeros(3)}, {})


def enumerate_names(arrays):
    return [(f"a{index}", array) for index, array in enumerate(arrays)]


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.opened.set()


def test_a_broken_operation_fails_its_own_request_only(start_server, credential, gate):
    server = start_server(gate.find)
    gate.opened.set()
    calls = [
        Call(f"{name}{n}", name, {}, (Tensor.of(np.ones(4)),))
        for n in range(3)
        for name in ("boom", "odd", "wait")
    ]
    with Client(server.endpoint, credential) as client:
        outcomes = {call.key: outcome for call, outcome in client.map(calls)}
    assert all(isinstance(outcomes[f"wait{n}"], Reply) for n in range(3))
    assert "ZeroDivisionError: by design" in str(outcomes["boom0"])
    assert outcomes["boom0"].code == "internal-error"
    assert outcomes["odd0"].code == "unsendable-result"


def test_out_of_memory_may_be_tried_again(start_server, credential, gate):
    with Client(start_server(gate.find).endpoint, credential) as client, pytest.raises(AccelError) as caught:
        client.call(Call("k", "oom", {}, ()))
    assert caught.value.transient


def test_equal_requests_are_computed_once(start_server, credential, gate, wait_until):
    server = start_server(gate.find)
    call = Call("same", "wait", {"x": 1}, (Tensor.of(np.arange(10.0)),))
    with Client(server.endpoint, credential) as first, Client(server.endpoint, credential) as second:
        first.submit(call)
        second.submit(call)
        wait_until(lambda: server.stats()["requests"] == 2, "both requests arrived")
        gate.opened.set()
        replies = [first.next_outcome()[1], second.next_outcome()[1], first.call(call)]
    assert gate.n_started == 1
    assert [reply.info["n"] for reply in replies] == [1, 1, 1]
    assert all(np.array_equal(reply.tensors["a0"].array(), np.arange(10.0)) for reply in replies)
    assert server.stats()["duplicates"] == 2
    assert server.stats()["done"] == 3


def test_a_key_belongs_to_one_request_of_one_tenant(start_server, credential, issue_to, gate):
    server = start_server(gate.find)
    gate.opened.set()
    with Client(server.endpoint, credential) as alice, Client(server.endpoint, issue_to("bob")) as bob:
        assert alice.call(Call("k", "wait", {"x": 1})).info["n"] == 1
        with pytest.raises(RejectedError, match="used for another request"):
            alice.call(Call("k", "wait", {"x": 2}))
        assert bob.call(Call("k", "wait", {"x": 2})).info["n"] == 2


def test_a_request_nobody_waits_for_is_not_computed(start_server, credential, gate, wait_until):
    server = start_server(gate.find, threads=1)
    with Client(server.endpoint, credential) as held:
        held.submit(Call("first", "wait"))
        wait_until(lambda: gate.n_started == 1, "the worker is busy")
        with Client(server.endpoint, credential) as leaving:
            leaving.submit(Call("second", "wait"))
            wait_until(lambda: server.stats()["requests"] == 2, "the second request arrived")
        wait_until(lambda: server.stats()["abandoned"] == 1, "the loss of the connection was noticed")
        gate.opened.set()
        held.next_outcome()
        held.call(Call("third", "wait"))
    assert gate.n_started == 2


def test_a_deadline_that_passed_is_not_computed(start_server, credential, gate, wait_until):
    server = start_server(gate.find, threads=1)
    with Client(server.endpoint, credential) as client:
        client.submit(Call("first", "wait"))
        wait_until(lambda: gate.n_started == 1, "the worker is busy")
        client.submit(Call("second", "wait", deadline_s=0.001))
        stages = ["compute", "queue"]
        wait_until(lambda: [entry.stage for entry, _ in server._ledger.waiters()] == stages, "it is queued")
        time.sleep(0.002)
        gate.opened.set()
        outcomes = {call.key: outcome for call, outcome in (client.next_outcome(), client.next_outcome())}
    assert outcomes["second"].code == "deadline-exceeded"
    assert gate.n_started == 1


def test_both_queues_are_bounded_in_bytes_and_hold_the_client_back(
    start_server, credential, gate, wait_until
):
    """Sixteen requests of 256 KiB against queues of 1 MiB: memory stays within, nothing is lost."""
    bound = 1024 * 1024
    server = start_server(gate.find, threads=1, queue_bytes=bound, max_request_bytes=bound)
    data = Tensor.of(np.zeros(256 * 1024, "u1"))
    done = []

    def work():
        with Client(server.endpoint, credential) as client:
            done.extend(client.map((Call(f"k{n}", "wait", {}, (data,)) for n in range(16)), window=16))

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: server.stats()["queues"]["read"]["bytes"] == bound, "the read queue is full")
    wait_until(
        lambda: server.stats()["requests"] == 6, "one computes, four wait in the queue, one at the gate"
    )
    gate.opened.set()
    thread.join(30)
    assert [type(outcome) for _, outcome in done] == [Reply] * 16
    queues = server.stats()["queues"]
    assert queues["read"]["peak_bytes"] == bound
    assert 0 < queues["write"]["peak_bytes"] <= bound


def test_progress_is_reported_while_it_takes_long(start_server, credential, gate):
    server = start_server(gate.find, progress_interval_s=0.05)
    seen = []

    def note(call, stage, seconds):
        seen.append((call.key, stage))
        gate.opened.set()

    with Client(server.endpoint, credential, on_progress=note) as client:
        client.call(Call("k", "wait"))
    assert seen[0] == ("k", "compute")


def test_a_drain_finishes_what_is_under_way(start_server, credential, gate, wait_until):
    server = start_server(gate.find)
    drained = []
    with Client(server.endpoint, credential) as client:
        client.submit(Call("k", "wait"))
        wait_until(lambda: gate.n_started == 1, "the request is being computed")
        thread = threading.Thread(target=lambda: drained.append(server.drain(30)))
        thread.start()
        wait_until(lambda: server.stats()["is_draining"], "the drain began")
        client.submit(Call("late", "wait"))
        first = client.next_outcome()
        assert first[0].key == "late"
        assert "shutting down" in str(first[1])
        assert first[1].retry_after_s > 0
        gate.opened.set()
        assert isinstance(client.next_outcome()[1], Reply)
        thread.join(30)
        client.ping()
        assert client.is_draining
    assert drained == [True]


def test_too_many_requests_of_one_connection_are_sent_back(start_server, credential, gate, wait_until):
    server = start_server(gate.find, max_in_flight=2)
    with Client(server.endpoint, credential) as client:
        for n in range(3):
            client.submit(Call(f"k{n}", "wait"))
        call, outcome = client.next_outcome()
        assert call.key == "k2"
        assert outcome.retry_after_s > 0
        gate.opened.set()
        assert {client.next_outcome()[0].key for _ in range(2)} == {"k0", "k1"}
    assert server.stats()["busy"] == 1


def test_a_failed_write_names_the_uri(start_server, credential, tmp_path):
    (tmp_path / "file").write_text("in the way")
    call = Call("k", "lu", {}, (Tensor.of(np.eye(3)),), f"file://{tmp_path}/file/out.npz")
    with (
        Client(start_server().endpoint, credential) as client,
        pytest.raises(StorageError, match=r"file/out\.npz"),
    ):
        client.call(call)


def test_a_very_large_request_costs_the_server_nothing(start_server, credential):
    """The client checks first; one that does not is answered while its payload passes by."""
    server = start_server(max_request_bytes=1024 * 1024, queue_bytes=1024 * 1024)
    with Client(server.endpoint, credential) as client:
        client._transport.connection.welcome = None
        with pytest.raises(RejectedError, match=r"1048576"):
            client.call(Call("k", "echo", {}, (Tensor.of(np.zeros(8 << 20, "u1")),)))
        assert client.call(Call("k2", "echo")).info == {"params": {}}
    assert server.stats()["queues"]["read"]["peak_bytes"] == 0

"""A real server over real sockets with the real operations."""

import threading

import numpy as np
import pytest

from yarn_accel.client.calls import Call, Reference, Reply, Tensor
from yarn_accel.client.client import Client
from yarn_accel.client.dispatch import Dispatcher
from yarn_accel.client.fallback import LocalExecutor
from yarn_accel.errors import RejectedError, StorageError
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
    assert [path.name for path in (tmp_path / "factors").iterdir()] == ["a.npz"]


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
    """Calls by the code of their error."""
    good, at, spec = Tensor.of(np.eye(3)), f"file://{folder}/", TensorSpec("<f8", (2, 2))
    nan = np.eye(3)
    nan[1, 2] = np.nan
    (folder / "short").write_bytes(b"1234567")
    np.savez(folder / "objects.npz", a=np.array([{}], dtype=object))
    np.savez_compressed(folder / "packed.npz", a=np.eye(2))
    (folder / "broken.npz").write_bytes(b"PK nonsense")
    (folder / "folder").mkdir()
    calls = [
        ("unknown-operation", "explode", good),
        ("not-finite", "lu", Tensor.of(nan)),
        ("not-positive-definite", "cholesky", Tensor.of(np.diag([1.0, 1.0, -1.0, 1.0]))),
        ("wrong-length", "lu", Reference(at + "short", spec)),
        ("forbidden-uri", "lu", Reference("file:///etc/passwd")),
        ("forbidden-uri", "lu", Reference(at + "../../etc/passwd")),
        ("forbidden-uri", "lu", good, "file:///etc/cron.d/x"),
        ("forbidden-uri", "lu", Reference("http://localhost/x")),
        ("bad-npy", "echo", Reference(at + "objects.npz")),
        ("no-such-array", "echo", Reference(at + "packed.npz#b")),
        ("bad-npz", "echo", Reference(at + "broken.npz")),
        ("cannot-be-sent", "lu", Tensor(spec, b"short")),
        ("request-too-large", "echo", Reference(at + "large")),
        ("storage", "lu", Reference(at + "missing", spec)),
        ("storage", "lu", Reference(at + "folder", spec)),
        ("storage", "lu", good, f"{at}short/out.npz"),
    ]
    return [
        (code, Call(f"b{number}", operation, {}, (given,), *output))
        for number, (code, operation, given, *output) in enumerate(calls)
    ]


def test_a_bad_record_is_named_and_hurts_nobody(server, credential, tmp_path):
    """Bad and good requests mixed in one window: every bad one gets its reason, every good one its result."""
    with (tmp_path / "large").open("wb") as file:
        file.truncate(300 * 1024 * 1024)
    bad = bad_calls(tmp_path)
    good = [Call(f"g{n}", "cholesky", {}, (Tensor.of(positive_definite(20)),)) for n in range(len(bad))]
    mixed = [call for pair in zip(good, (call for _, call in bad), strict=True) for call in pair]
    with Client(server.endpoint, credential) as client:
        outcomes = {call.key: outcome for call, outcome in client.map(mixed, window=6)}
    assert all(isinstance(outcomes[call.key], Reply) for call in good)
    for code, call in bad:
        error = outcomes[call.key]
        assert isinstance(error, StorageError if code == "storage" else RejectedError), (code, error)
        assert error.code == code, error
        assert code != "storage" or ("file://" in str(error) and not error.transient)
    stats = server.stats()
    assert stats["done"] == len(good)
    assert stats["requests"] == stats["done"] + stats["rejected"] + stats["failed"]
    assert stats["broken"] == 0


def files_of_arrays(folder):
    """Files that a foreign job may come with: good ones, and bad ones."""
    matrix = np.random.default_rng(4).standard_normal((6, 6))
    np.savez_compressed(folder / "compressed.npz", a=matrix, b=np.arange(3))
    np.savez(folder / "stored.npz", a=matrix)
    np.save(folder / "big.npy", matrix.astype(">f8"))
    np.save(folder / "half.npy", matrix.astype("<f2"))
    np.save(folder / "whole.npy", np.arange(16).reshape(4, 4) % 7)
    np.save(folder / "text.npy", np.array(["a"]))
    good = (folder / "stored.npz").read_bytes()
    (folder / "trailing.npz").write_bytes(good + b"x")
    (folder / "cut.npz").write_bytes(good[:-30])
    (folder / "long.npy").write_bytes((folder / "big.npy").read_bytes() + b"x")
    names = [path.name for path in folder.iterdir() if path.suffix in (".npz", ".npy")]
    return [f"file://{folder}/{name}" for name in [*names, "compressed.npz#a", "compressed.npz#c"]]


def test_a_server_and_a_mapper_by_itself_judge_a_file_alike(server, credential, tmp_path):
    calls = [Call(uri, "lu", {}, (Reference(uri),)) for uri in files_of_arrays(tmp_path)]
    with Dispatcher((server.endpoint,), credential) as dispatcher:
        for call, by_server in dispatcher.map(calls):
            try:
                by_mapper = LocalExecutor().call(call)
            except RejectedError as error:
                assert (by_server.code, by_server.message) == (error.code, error.message)
                continue
            assert by_server.info == by_mapper.info, call.key
            for name, array in by_mapper.arrays().items():
                np.testing.assert_allclose(by_server.arrays()[name], array)


def test_a_file_is_refused_before_it_is_read(start_server, credential, tmp_path):
    """By the bytes that its header promises; nothing of the kind is in the file."""
    with (tmp_path / "large.npy").open("wb") as file:
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (5000, 5000), }".ljust(117) + b"\n"
        file.write(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header)
        file.truncate(10 + len(header) + 8 * 5000 * 5000)
    server = start_server(max_request_bytes=100 << 20)
    call = Call("k", "lu", {}, (Reference(f"file://{tmp_path}/large.npy"),))
    with Client(server.endpoint, credential) as client, pytest.raises(RejectedError) as caught:
        client.call(call)
    assert caught.value.message == "200000000 bytes of inputs (5000x5000 <f8), at most 104857600 are taken"
    assert caught.value.cure == "raise max_request_bytes of the server to 200000000 or more"


def test_equal_requests_are_computed_once(start_gated, credential, barrier, wait_until):
    server = start_gated()
    call = barrier.call("same", (Tensor.of(np.arange(10.0)),), {"x": 1})
    with Client(server.endpoint, credential) as first, Client(server.endpoint, credential) as second:
        first.submit(call)
        second.submit(call)
        wait_until(lambda: server.stats()["requests"] == 2, "both requests arrived")
        barrier.open()
        replies = [first.next_outcome()[1], second.next_outcome()[1], first.call(call)]
    assert barrier.n_started == 1
    assert [reply.info["n"] for reply in replies] == [1, 1, 1]
    assert all(np.array_equal(reply.tensors["a0"].array(), np.arange(10.0)) for reply in replies)
    assert server.stats()["duplicates"] == 2
    assert server.stats()["done"] == 3


def hold(client, barrier, wait_until):
    """Keep a single worker busy: one request computes, one is with the worker already."""
    client.submit(barrier.call("first"))
    wait_until(lambda: barrier.n_started == 1, "the worker is busy")
    client.submit(barrier.call("next"))
    # A connection is read in order: with this answer the server has taken both, before those of others.
    client.ping()


def test_a_request_nobody_waits_for_is_not_computed(start_gated, credential, barrier, wait_until):
    server = start_gated(workers=1)
    with Client(server.endpoint, credential) as held:
        hold(held, barrier, wait_until)
        with Client(server.endpoint, credential) as leaving:
            leaving.submit(barrier.call("second"))
            wait_until(lambda: server.stats()["requests"] == 3, "the request arrived")
        wait_until(lambda: server.stats()["abandoned"] == 1, "the loss of the connection was noticed")
        barrier.open()
        for _ in range(2):
            held.next_outcome()
        held.call(barrier.call("third"))
    assert barrier.n_started == 3


def test_both_queues_are_bounded_in_bytes_and_hold_the_clients_back(
    start_gated, credential, barrier, wait_until
):
    """Four times eight requests of 256 KiB against queues of 1 MiB: memory stays within, nothing is lost."""
    bound = 1024 * 1024
    server = start_gated(workers=1, queue_bytes=bound, max_request_bytes=bound, max_batch_size=1)
    data = Tensor.of(np.zeros(256 * 1024, "u1"))
    done = []

    def work(name):
        with Client(server.endpoint, credential) as client:
            done.extend(client.map((barrier.call(f"{name}{n}", (data,)) for n in range(8)), window=8))

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    wait_until(lambda: barrier.n_started == 1, "the worker is busy")
    wait_until(lambda: server.stats()["queues"]["read"]["bytes"] == bound, "the read queue is full")
    assert server.stats()["pool"]["used_bytes"] < 4 * bound
    barrier.open()
    for thread in threads:
        thread.join(300)
    assert [type(outcome) for _, outcome in done] == [Reply] * 32
    queues = server.stats()["queues"]
    assert queues["read"]["peak_bytes"] == bound
    # What computes counts, too: nothing is started while it is full, and these fill it without a remainder.
    assert queues["write"]["peak_bytes"] <= bound


def test_progress_is_reported_while_it_takes_long(start_gated, credential, barrier):
    server = start_gated(progress_interval_s=0.05)
    seen = []

    def note(call, stage, seconds):
        seen.append((call.key, stage))
        if stage == "compute":
            barrier.open()

    with Client(server.endpoint, credential, on_progress=note) as client:
        client.call(barrier.call("k"))
    assert ("k", "compute") in seen


def test_small_calls_of_a_sites_own_operation_travel_together(spawn_server, credential):
    """The client does not know the operation: the server says that it takes stacks."""
    path = "tests.integration.pipeline.stacked_operations:OPERATION"
    server = spawn_server("w1", workers=1, extra_operations=[path]).wait_ready()
    calls = [Call(f"k{n}", "sums-of-a-site", {}, (Tensor.of(np.full((2, 3), float(n))),)) for n in range(20)]
    with (
        Client(server.endpoint, credential) as client,
        Dispatcher((server.endpoint,), credential) as dispatcher,
    ):
        outcomes = {
            call.key: reply.tensors["sums"].array().tolist()
            for call, reply in dispatcher.map(calls, pack="auto")
        }
        n_requests = client.stats()["requests"]
    assert outcomes == {f"k{n}": [3.0 * n, 3.0 * n] for n in range(20)}
    assert n_requests == 2, "the first one alone: until then no server has said so"


def test_a_very_large_request_costs_the_server_nothing(start_server, credential):
    """The client checks first; one that does not is answered while its payload passes by."""
    server = start_server(max_request_bytes=1024 * 1024, queue_bytes=1024 * 1024)
    call = Call("k", "echo", {}, (Tensor.of(np.zeros(8 << 20, "u1")),))
    with Client(server.endpoint, credential) as client:
        for _ in range(2):
            with pytest.raises(RejectedError, match=r"8388608 bytes .* at most 1048576") as caught:
                client.call(call)
            assert caught.value.code == "request-too-large"
            assert caught.value.cure == "raise max_request_bytes of the server to 8388608 or more"
            client._max_request_bytes = 1 << 40
        assert client.call(Call("k2", "echo")).info == {"params": {}}
    assert server.stats()["queues"]["read"]["peak_bytes"] == 0

"""The client against a scripted server: a thread that uses the protocol and does what the test says."""

import itertools
import socket
import threading
import time

import pytest

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call, Reference, Reply, Tensor
from yarn_accel.client.client import Client
from yarn_accel.errors import (
    AuthenticationError,
    LocalProtocolError,
    RejectedError,
    RemoteProtocolError,
    StorageError,
    UnavailableError,
)
from yarn_accel.wire import (
    Busy,
    Cancel,
    Cancelled,
    Drain,
    Failed,
    Goodbye,
    Ping,
    Pong,
    Progress,
    Stats,
    TensorSpec,
    available_checksums,
)
from yarn_accel.wire.credential import issue

CREDENTIAL = issue(bytes(range(32)), "alice", 2**40, "k1")
SPEC = TensorSpec("|u1", (3,))
THREE = Tensor(SPEC, b"abc")


def test_a_call_and_its_reply(serve):
    def script(peer):
        request = peer.next_event()
        assert (request.operation, request.inputs, request.output_uri) == ("lu", (SPEC,), "")
        assert (request.priority, request.deadline_s, peer.payload) == (5, 2.5, b"abc")
        peer.answer(request, info={"n": 1}, seconds={"total": 0.5})

    with Client(serve(script), CREDENTIAL) as client:
        reply = client.call(Call("k", "lu", {"a": 1}, (THREE,), deadline_s=2.5, priority=5))
    assert bytes(reply.tensors["out"].data) == b"xyz"
    assert (reply.info, reply.server, reply.device, reply.seconds) == ({"n": 1}, "w1", "cpu", {"total": 0.5})


@pytest.mark.parametrize("n_bytes", [0, 3, 5000, 100_000])
@pytest.mark.parametrize("is_torn", [False, True])
def test_a_lone_call_and_a_submitted_one_get_the_same(serve, n_bytes, is_torn):
    data = bytes(range(250)) * (n_bytes // 250) + bytes(n_bytes % 250)

    def script(peer):
        for _ in range(2):
            request = peer.next_event()
            peer.sock.keeps = is_torn
            peer.answer(request, data)
            peer.sock.flush(*((10, len(peer.sock.kept) - 2) if is_torn else ()))

    with Client(serve(script, wrap=Socket), CREDENTIAL) as client:
        call = Call("k", "lu", {"a": 1}, (THREE,))
        alone = client.call(call)
        client.submit(call)
        answered, submitted = client.next_outcome()
        assert answered is call
    assert bytes(alone.tensors["out"].data) == bytes(submitted.tensors["out"].data) == data
    for reply in (alone, submitted):
        assert not memoryview(reply.tensors["out"].data).readonly
    assert (alone.info, alone.seconds, alone.bytes_out) == ({}, {}, n_bytes)


class Socket:
    """A socket that keeps what is sent until `flush`, where a test says so."""

    def __init__(self, sock):
        self._sock, self.kept, self.keeps = sock, b"", False

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._sock.close()

    def __getattr__(self, name):
        return getattr(self._sock, name)

    def sendall(self, data):
        if self.keeps:
            self.kept += data
        else:
            self._sock.sendall(data)

    def flush(self, *cuts):
        """Send what was kept, in pieces that end at these places."""
        kept, self.kept, self.keeps = self.kept, b"", False
        for start, end in itertools.pairwise((0, *cuts, len(kept))):
            self._sock.sendall(kept[start:end])
            time.sleep(0.01)


def test_what_came_behind_a_reply_counts_at_the_next_call(serve):
    def script(peer):
        request = peer.next_event()
        peer.sock.keeps = True
        peer.answer(request)
        peer.send(Drain("over"))
        peer.sock.flush()
        peer.answer(peer.next_event())

    with Client(serve(script, wrap=Socket), CREDENTIAL) as client:
        client.call(Call("k1", "lu", {}, (THREE,)))
        client.call(Call("k2", "lu", {}, (THREE,)))
        assert client.is_draining
        assert client.n_in_flight == 0


def test_a_lone_call_leaves_the_others_in_flight(serve):
    def script(peer):
        for request in [peer.next_event() for _ in range(2)]:
            peer.answer(request, request.key.encode())

    with Client(serve(script), CREDENTIAL) as client:
        first = Call("first", "lu", {}, (THREE,))
        client.submit(first)
        assert bytes(client.call(Call("second", "lu", {}, (THREE,))).tensors["out"].data) == b"second"
        answered, reply = client.next_outcome()
        assert answered is first
        assert bytes(reply.tensors["out"].data) == b"first"


def test_replies_come_in_the_order_in_which_they_complete(serve):
    def script(peer):
        requests = [peer.next_event() for _ in range(3)]
        for request in reversed(requests):
            peer.answer(request, request.key.encode())
        peer.answer(peer.next_event())

    with Client(serve(script), CREDENTIAL) as client:
        keys = [call.key for call, _ in client.map((Call(f"k{n}", "echo") for n in range(4)), window=3)]
    assert keys == ["k2", "k1", "k0", "k3"]


def test_no_more_than_the_window_is_in_flight(serve):
    pulled = []

    def script(peer):
        for _ in range(5):
            request = peer.next_event()
            assert len(pulled) <= int(request.key) + 2
            peer.answer(request)

    def source():
        for n in range(5):
            pulled.append(n)
            yield Call(str(n), "echo")

    with Client(serve(script), CREDENTIAL) as client:
        assert len(list(client.map(source(), window=2))) == 5


@pytest.mark.parametrize(
    ("failed", "kind"),
    [
        (Failed(0, "rejected", "not-finite", "NaN at [1, 2]", "look at it"), RejectedError),
        (Failed(0, "internal", "internal-error", "it broke"), RejectedError),
        (Failed(0, "storage", "storage", "hdfs:///x: no such file"), StorageError),
        (Failed(0, "storage", "storage", "DataNode gone", transient=True), StorageError),
        (Failed(0, "unavailable", "out-of-memory", "no memory", transient=True), UnavailableError),
        (Busy(0, 0.5, "full"), UnavailableError),
    ],
)
def test_errors_keep_their_kind_and_text(serve, failed, kind):
    def script(peer):
        request = peer.next_event()
        peer.send(type(failed)(**{**vars(failed), "id": request.id}))

    with Client(serve(script), CREDENTIAL) as client, pytest.raises(kind) as caught:
        client.call(Call("k", "lu"))
    assert getattr(failed, "message", getattr(failed, "reason", "")) in str(caught.value)
    assert getattr(caught.value, "code", "") == getattr(failed, "code", "") or kind is not RejectedError
    assert getattr(caught.value, "retry_after_s", 0) == getattr(failed, "retry_after_s", 0)
    assert caught.value.transient == getattr(failed, "transient", True)


def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnavailableError) as caught:
        Client(Endpoint("w9", "127.0.0.1", port), CREDENTIAL).connect()
    text = str(caught.value)
    assert "no pipeline server answers as w9" in text
    assert f"127.0.0.1:{port}: connection refused" in text
    assert "yarn-accel pipeline serve" in text


def test_a_socket_file_that_is_gone_falls_back_to_tcp(serve, tmp_path):
    tcp = serve(lambda peer: peer.answer(peer.next_event()))
    with Client(Endpoint("w1", tcp.host, tcp.port, str(tmp_path / "gone")), CREDENTIAL) as client:
        assert client.carrier == "tcp"
        assert isinstance(client.call(Call("k", "echo")), Reply)


def test_a_unix_socket_is_used_on_its_own_node_only(serve, tmp_path):
    path = str(tmp_path / "socket")
    tcp = serve(lambda peer: None)
    endpoint = Endpoint("w1", tcp.host, tcp.port, path, node="w1")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with Client(endpoint, CREDENTIAL, node="w2") as client:
            assert client.carrier == "tcp"


def test_the_wrong_secret(serve):
    endpoint = serve(lambda peer: None, master=b"another master secret of 32 bytes")
    with pytest.raises(AuthenticationError, match=r"w1 \(127.*\): server 'w1' does not know the secret"):
        Client(endpoint, CREDENTIAL).connect()


def test_a_server_of_another_protocol():
    def speak(listener):
        sock, _ = listener.accept()
        with sock:
            sock.recv(10)
            sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=speak, args=(listener,))
        thread.start()
        with pytest.raises((RemoteProtocolError, UnavailableError)) as caught:
            Client(Endpoint("w1", "127.0.0.1", listener.getsockname()[1]), CREDENTIAL).connect()
        thread.join(300)
    assert "w1 (127.0.0.1:" in str(caught.value)


def test_a_server_that_never_answers_the_handshake():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint("w1", "127.0.0.1", listener.getsockname()[1])
        with pytest.raises(UnavailableError, match="did not finish the handshake in time"):
            Client(endpoint, CREDENTIAL, connect_timeout_s=0.1).connect()


def test_a_server_that_vanishes_says_how_many_calls_are_open(serve):
    def script(peer):
        peer.answer(peer.next_event())
        peer.next_event()
        peer.next_event()

    calls = [Call(f"k{n}", "echo", {}, (THREE,)) for n in range(3)]
    lost = pytest.raises(UnavailableError, match=r"w1 \(127.* closed the connection.*2 call\(s\) unanswered")
    with Client(serve(script), CREDENTIAL) as client, lost:
        list(client.map(calls, window=3))
    assert client.unanswered() == calls[1:]


@pytest.mark.parametrize(
    ("says", "options", "text"),
    [
        (lambda peer, request: peer.sock.recv(1), {"timeout_s": 0.1}, r"silent for 0\.1 s"),
        (lambda peer, request: peer.send(Goodbye("x", "Request.key: missing")), {}, r"Request\.key: missing"),
        (lambda peer, request: peer.send(Failed(request.id + 1, "rejected", "x", "y")), {}, "not open"),
        (lambda peer, request: peer.answer(request, bytes(2000)), {"max_reply_bytes": 1000}, "2000 bytes"),
    ],
    ids=["falls silent", "says goodbye", "answers what nobody asked", "answers beyond the limit"],
)
def test_a_server_that_breaks_off_says_why(serve, says, options, text):
    endpoint = serve(lambda peer: says(peer, peer.next_event()))
    with Client(endpoint, CREDENTIAL, **options) as client, pytest.raises(UnavailableError, match=text):
        client.call(Call("k", "echo"))


def test_progress_keeps_a_long_call_alive(serve):
    def script(peer):
        request = peer.next_event()
        for n in range(12):
            time.sleep(0.2)
            peer.send(Progress(request.id, "compute", float(n)))
        peer.answer(request)

    seen, endpoint = [], serve(script)
    with Client(endpoint, CREDENTIAL, timeout_s=2.0, on_progress=lambda *said: seen.append(said)) as client:
        client.call(call := Call("k", "echo"))
    assert seen == [(call, "compute", float(n)) for n in range(12)]


def test_pings_both_ways_and_a_drain(serve):
    def script(peer):
        ping = peer.next_event()
        peer.send(Ping(77))
        peer.send(Drain("bye"))
        peer.send(Pong(ping.token))
        assert peer.next_event() == Pong(77)

    with Client(serve(script), CREDENTIAL) as client:
        assert client.ping() > 0
        assert client.is_draining
        while client.has_outgoing:
            assert client.arrived() is None


def test_both_sides_may_send_much_at_once(serve):
    """Neither reads before it has sent: with blocking sends on both sides this would hang for ever."""
    large = bytes(4 << 20)

    def script(peer):
        first = peer.next_event()
        for _ in range(3):
            peer.answer(first, large)
            first = peer.next_event()
        peer.answer(first, large)

    calls = [Call(f"k{n}", "echo", {}, (Tensor(TensorSpec("|u1", (len(large),)), large),)) for n in range(4)]
    with Client(serve(script), CREDENTIAL) as client:
        assert len(list(client.map(calls, window=4))) == 4


def test_a_call_that_cannot_be_said_fails_alone(serve):
    calls = [
        Call("x" * 300, "echo"),
        Call("k1", "echo", {"x": float("nan")}),
        Call("k2", "echo", {}, (Tensor(SPEC, b"too long"),)),
        Call("k3", "echo", {}, (Reference(""),)),
        Call("good", "echo"),
    ]
    with Client(serve(lambda peer: peer.answer(peer.next_event())), CREDENTIAL) as client:
        outcomes = {call.key: outcome for call, outcome in client.map(calls, window=2)}
    assert isinstance(outcomes.pop("good"), Reply)
    assert [outcome.code for outcome in outcomes.values()] == ["cannot-be-sent"] * 4


def test_tensor_data_is_flat():
    assert THREE.flat() == b"abc"
    assert bytes(Tensor(TensorSpec("<u2", (2,)), bytearray(4)).flat()) == bytes(4)
    with pytest.raises(LocalProtocolError, match="3 bytes, its data 4"):
        Tensor(SPEC, b"abcd").flat()
    with pytest.raises(LocalProtocolError, match="not a flat buffer"):
        Tensor(SPEC, memoryview(b"abcdef")[::2]).flat()


def test_leaving_a_map_early_cancels_the_rest_and_ignores_its_answers(serve):
    def script(peer):
        requests = [peer.next_event() for _ in range(3)]
        peer.answer(requests[0], b"first")
        assert [peer.next_event() for _ in range(2)] == [Cancel(request.id) for request in requests[1:]]
        peer.send(Cancelled(requests[1].id))
        peer.answer(requests[2], b"late")
        peer.answer(peer.next_event(), b"other")

    with Client(serve(script), CREDENTIAL) as client:
        for call, _ in client.map((Call(f"k{n}", "echo") for n in range(9)), window=3):
            assert call.key == "k0"
            break
        assert client.n_in_flight == 0
        assert bytes(client.call(Call("next", "echo")).tensors["out"].data) == b"other"


def test_a_cancelled_call_has_its_own_outcome(serve):
    def script(peer):
        request = peer.next_event()
        assert peer.next_event() == Cancel(request.id)
        peer.send(Cancelled(request.id))

    with Client(serve(script), CREDENTIAL) as client:
        call = Call("k", "echo")
        client.submit(call)
        client.cancel(call)
        assert client.next_outcome()[1].code == "cancelled"


def test_after_a_loss_the_client_can_connect_again(serve):
    endpoint = serve(lambda peer: peer.next_event(), lambda peer: peer.answer(peer.next_event()))
    client = Client(endpoint, CREDENTIAL)
    with pytest.raises(UnavailableError, match=r"1 call\(s\) unanswered"):
        client.call(Call("k", "echo"))
    assert [call.key for call in client.unanswered()] == ["k"]
    with client:
        assert isinstance(next(client.map([Call("k", "echo")], window=1))[1], Reply)


@pytest.mark.parametrize("checksum", ["xxh3", "crc32", "none"])
def test_every_checksum_carries_large_payloads_both_ways(serve, checksum):
    if checksum not in (*available_checksums(), "none"):
        pytest.skip(f"{checksum} is not installed")
    payload = bytes(range(256)) * (9 << 12)  # above the length from which it leaves in pieces

    def script(peer):
        for _ in range(2):
            request = peer.next_event()
            assert peer.connection.checksum == checksum
            assert peer.payload == payload
            peer.answer(request, peer.payload)

    tensor = Tensor(TensorSpec("|u1", (len(payload),)), payload)
    with Client(serve(script), CREDENTIAL, checksums=(checksum,)) as client:
        for _, reply in client.map([Call("a", "echo", {}, (tensor,)), Call("b", "echo", {}, (tensor,))]):
            assert bytes(reply.tensors["out"].data) == payload


def test_stats_say_how_the_bytes_travel(serve):
    endpoint = serve(lambda peer: peer.send(Stats(peer.next_event().id, {"requests": 3})))
    how = {"carrier": "tcp", "checksum": "crc32", "shared_bytes": 0}
    with Client(endpoint, CREDENTIAL, checksums=("crc32",)) as client:
        assert client.stats() == {"requests": 3, "connection": how}


def test_the_last_words_of_a_server_that_stops_reading_are_heard(serve):
    """It closes while the client is still sending: the reason must not be lost to the broken pipe."""
    ready = threading.Event()

    def script(peer):
        peer.send(Goodbye("too-slow", "the payload arrives too slowly"))
        peer.sock.shutdown(socket.SHUT_WR)
        ready.set()
        time.sleep(0.2)

    with Client(serve(script, unix=True), CREDENTIAL) as client:
        ready.wait(60)
        with pytest.raises(UnavailableError, match="too slowly"):
            client.call(Call("k", "echo", {}, (Tensor(TensorSpec("|u1", (9 << 20,)), bytes(9 << 20)),)))

"""The client against a scripted server: a thread that speaks the protocol and does what the test says."""

import contextlib
import socket
import threading
import time

import pytest

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.client import Call, Client, Reference, Reply, Tensor
from yarn_accel.errors import (
    AuthenticationError,
    LocalProtocolError,
    RejectedError,
    RemoteProtocolError,
    StorageError,
    UnavailableError,
)
from yarn_accel.wire import (
    NEED_DATA,
    Busy,
    Drain,
    Failed,
    Goodbye,
    NamedTensor,
    PayloadComplete,
    Ping,
    Pong,
    Progress,
    Request,
    Result,
    ServerConnection,
    TensorSpec,
)
from yarn_accel.wire.credential import issue

MASTER = bytes(range(32))
CREDENTIAL = issue(MASTER, "alice", 2**40, "k1")
SPEC = TensorSpec("|u1", (3,))
THREE = Tensor(SPEC, b"abc")


class Peer:
    """The server's end of one accepted connection."""

    def __init__(self, sock, master=MASTER):
        self.sock = sock
        self.connection = ServerConnection(master, b"s" * 32, time.time(), "w1")
        self.payload = b""

    def next_event(self):
        while True:
            try:
                event = self.connection.next_event()
            finally:
                for part in self.connection.data_to_send():
                    self.sock.sendall(part)
            if self.connection.payload_left and isinstance(event, Request):
                buffer = bytearray(self.connection.payload_left)
                self.connection.take_payload([memoryview(buffer)])
                while not isinstance(self.connection.next_event(), PayloadComplete):
                    self.connection.receive_data(self.sock.recv(65536))
                self.payload = bytes(buffer)
            if event is not NEED_DATA:
                return event
            self.connection.receive_data(self.sock.recv(65536))

    def send(self, message, payload=()):
        self.sock.sendall(b"".join(bytes(part) for part in self.connection.send(message, payload)))

    def answer(self, request, data=b"xyz", **changes):
        tensors = (NamedTensor("out", TensorSpec("|u1", (len(data),))),)
        fields = {
            "info": {},
            "tensors": tensors,
            "server": "w1",
            "device": "cpu",
            "seconds": {},
            "bytes_in": 3,
        }
        self.send(Result(request.id, bytes_out=len(data), **{**fields, **changes}), [data])


@pytest.fixture
def serve():
    """A function that runs a script for each connection in turn and returns the endpoint."""
    threads, listeners, failures = [], [], []

    def run(listener, scripts, master):
        try:
            for script in scripts:
                sock, _ = listener.accept()
                sock.settimeout(20)
                with sock:
                    peer = Peer(sock, master)
                    with contextlib.suppress(AuthenticationError, RemoteProtocolError):
                        peer.next_event()
                        script(peer)
        except Exception as error:  # noqa: BLE001 -- shown at the end of the test
            failures.append(error)

    def serve(*scripts, master=MASTER):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(20)
        listeners.append(listener)
        thread = threading.Thread(target=run, args=(listener, scripts, master))
        thread.start()
        threads.append(thread)
        return Endpoint("w1", "127.0.0.1", listener.getsockname()[1])

    yield serve
    for thread in threads:
        thread.join(30)
    for listener in listeners:
        listener.close()
    assert not failures


def test_a_call_and_its_reply(serve):
    def script(peer):
        request = peer.next_event()
        assert (request.operation, request.inputs, request.output_uri) == ("lu", (SPEC,), "")
        assert peer.payload == b"abc"
        peer.answer(request, info={"n": 1}, seconds={"total": 0.5})

    with Client(serve(script), CREDENTIAL) as client:
        reply = client.call(Call("k", "lu", {"a": 1}, (THREE,)))
    assert bytes(reply.tensors["out"].data) == b"xyz"
    assert (reply.info, reply.server, reply.device, reply.seconds) == ({"n": 1}, "w1", "cpu", {"total": 0.5})


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


def test_a_storage_error_keeps_whether_to_try_again(serve):
    def script(peer):
        for is_transient in (True, False):
            peer.send(Failed(peer.next_event().id, "storage", "storage", "x", transient=is_transient))

    with Client(serve(script), CREDENTIAL) as client:
        outcomes = [outcome for _, outcome in client.map([Call("a", "lu"), Call("b", "lu")], window=1)]
    assert [outcome.transient for outcome in outcomes] == [True, False]


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
    with pytest.raises(
        AuthenticationError, match=r"w1 \(127\.0\.0\.1:\d+\): server 'w1' does not know the secret"
    ):
        Client(endpoint, CREDENTIAL).connect()


def test_another_version(serve, monkeypatch):
    monkeypatch.setattr("yarn_accel.wire.handshake.VERSION", 1)

    def script(peer):
        raise AssertionError("never opened")

    endpoint = serve(script)
    client = Client(endpoint, CREDENTIAL)
    original = ServerConnection._challenge

    def other_version(self, hello, header):
        monkeypatch.setattr("yarn_accel.wire.handshake.VERSION", 2)
        try:
            original(self, hello, header)
        finally:
            monkeypatch.setattr("yarn_accel.wire.handshake.VERSION", 1)

    monkeypatch.setattr(ServerConnection, "_challenge", other_version)
    with pytest.raises(
        RemoteProtocolError, match="speaks protocol version 2, the client 1: install the same release"
    ):
        client.connect()


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
        thread.join(20)
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

    client = Client(serve(script), CREDENTIAL)
    calls = [Call(f"k{n}", "echo", {}, (THREE,)) for n in range(3)]
    outcomes = []
    with (
        client,
        pytest.raises(UnavailableError, match=r"w1 \(127.* closed the connection.*2 call\(s\) unanswered"),
    ):
        outcomes.extend(client.map(calls, window=3))
    assert client.unanswered() == calls[1:]


def test_a_server_that_falls_silent(serve):
    release = threading.Event()

    def script(peer):
        peer.next_event()
        release.wait(20)

    with Client(serve(script), CREDENTIAL, timeout_s=0.1) as client:
        with pytest.raises(UnavailableError, match=r"silent for 0\.1 s"):
            client.call(Call("k", "echo"))
        release.set()


def test_progress_keeps_a_long_call_alive(serve):
    def script(peer):
        request = peer.next_event()
        for n in range(6):
            time.sleep(0.1)
            peer.send(Progress(request.id, "compute", float(n)))
        peer.answer(request)

    seen = []
    with Client(
        serve(script), CREDENTIAL, timeout_s=0.5, on_progress=lambda *args: seen.append(args)
    ) as client:
        client.call(Call("k", "echo"))
    assert [(call.key, stage, seconds) for call, stage, seconds in seen] == [
        ("k", "compute", float(n)) for n in range(6)
    ]


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
        while client._transport.has_outgoing:
            client._transport.pump()


def test_a_goodbye_is_shown(serve):
    def script(peer):
        peer.next_event()
        peer.send(Goodbye("protocol-error", "Request.key: missing"))

    with (
        Client(serve(script), CREDENTIAL) as client,
        pytest.raises(UnavailableError, match=r"Request\.key: missing"),
    ):
        client.call(Call("k", "echo"))


def test_an_answer_nobody_asked_for_ends_the_connection(serve):
    def script(peer):
        request = peer.next_event()
        peer.send(Failed(request.id + 1, "rejected", "x", "y"))

    with Client(serve(script), CREDENTIAL) as client, pytest.raises(UnavailableError, match="not open"):
        client.call(Call("k", "echo"))


def test_an_answer_beyond_the_limit_ends_the_connection(serve):
    def script(peer):
        peer.answer(peer.next_event(), bytes(2000))

    client = Client(serve(script), CREDENTIAL, max_reply_bytes=1000)
    with client, pytest.raises(UnavailableError, match="payload of 2000 bytes"):
        client.call(Call("k", "echo"))


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
    def script(peer):
        peer.answer(peer.next_event())

    bad = [
        Call("x" * 300, "echo"),
        Call("k1", "echo", {"x": float("nan")}),
        Call("k2", "echo", {}, (Tensor(SPEC, b"too long"),)),
        Call("k3", "echo", {}, (Reference(""),)),
    ]
    with Client(serve(script), CREDENTIAL) as client:
        outcomes = dict(
            (call.key, outcome) for call, outcome in client.map([*bad, Call("good", "echo")], window=2)
        )
    assert isinstance(outcomes.pop("good"), Reply)
    assert [outcome.code for outcome in outcomes.values()] == ["cannot-be-sent"] * 4


def test_tensor_data_is_flat():
    assert THREE.flat() == b"abc"
    assert bytes(Tensor(TensorSpec("<u2", (2,)), bytearray(4)).flat()) == bytes(4)
    with pytest.raises(LocalProtocolError, match="3 bytes, its data 4"):
        Tensor(SPEC, b"abcd").flat()
    with pytest.raises(LocalProtocolError, match="not a flat buffer"):
        Tensor(SPEC, memoryview(b"abcdef")[::2]).flat()


def test_numpy_arrays_travel_without_a_copy():
    np = pytest.importorskip("numpy")
    for order in "CF":
        array = np.asarray(np.arange(6.0).reshape(2, 3), order=order)
        tensor = Tensor.of(array)
        assert np.shares_memory(tensor.array(), array)
        assert np.array_equal(tensor.array(), array)
    assert Tensor.of(np.zeros((0, 3))).array().shape == (0, 3)
    strided = np.arange(12.0).reshape(3, 4)[:, ::2]
    assert np.array_equal(Tensor.of(strided).array(), strided)

"""TLS between the client and a scripted server: whom it trusts, and that all works over it."""

import shutil
import ssl
import subprocess

import pytest

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.client import Client
from yarn_accel.errors import AuthenticationError, UnavailableError
from yarn_accel.wire import TensorSpec
from yarn_accel.wire.credential import issue

CREDENTIAL = issue(bytes(range(32)), "alice", 2**40, "k1")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1 and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on this machine")
    folder = tmp_path_factory.mktemp("tls")
    files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    what = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=w1"
    subprocess.run(
        [openssl, *what.split(), "-addext", "subjectAltName=IP:127.0.0.1", *files],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return folder


@pytest.fixture
def serve_tls(serve, certificate):
    """As `serve`, over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")

    def start(*scripts):
        plain = serve(*scripts, wrap=lambda sock: context.wrap_socket(sock, server_side=True))
        return Endpoint(plain.name, plain.host, plain.port, "", "", True, str(certificate / "cert.pem"))

    return start


def test_large_and_small_calls_over_tls(serve_tls):
    def script(peer):
        for _ in range(4):
            request = peer.next_event()
            assert peer.connection.checksum == "none"
            peer.answer(request, peer.payload)

    sizes = (10, 3_000_000, 70_000, 1)
    calls = [
        Call(f"k{n}", "echo", {}, (Tensor(TensorSpec("|u1", (n,)), bytes([n % 251]) * n),)) for n in sizes
    ]
    with Client(serve_tls(script), CREDENTIAL) as client:
        assert client.carrier == "tls"
        for call, reply in client.map(calls, window=2):
            assert isinstance(reply, Reply)
            assert bytes(reply.tensors["out"].data) == bytes(call.inputs[0].data)


def test_a_silent_server_over_tls(serve_tls):
    def script(peer):
        peer.next_event()
        assert peer.sock.recv(1) == b""

    with (
        Client(serve_tls(script), CREDENTIAL, timeout_s=0.2) as client,
        pytest.raises(UnavailableError, match=r"silent for 0\.2 s"),
    ):
        client.call(Call("k", "echo"))


def test_a_server_that_goes_over_tls(serve_tls):
    with (
        Client(serve_tls(lambda peer: peer.next_event()), CREDENTIAL) as client,
        pytest.raises(UnavailableError, match=r"closed the connection|is gone"),
    ):
        client.call(Call("k", "echo"))


def test_a_certificate_nobody_vouches_for_is_refused(certificate):
    import socket
    import threading

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")

    def shake(listener):
        sock, _ = listener.accept()
        with sock, pytest.raises(OSError):  # noqa: PT011 -- ssl.SSLError or a reset
            context.wrap_socket(sock, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=shake, args=(listener,))
        thread.start()
        endpoint = Endpoint("w1", "127.0.0.1", listener.getsockname()[1], tls=True)
        with pytest.raises(AuthenticationError, match="certificate is not accepted"):
            Client(endpoint, CREDENTIAL).connect()
        thread.join(300)


def test_plain_tcp_is_not_used_when_tls_is_asked_for(serve):
    endpoint = Endpoint("w1", "127.0.0.1", 1, tls=True)
    with pytest.raises(UnavailableError, match="no address that this node can use"):
        Client(endpoint, CREDENTIAL, carriers=("tcp",)).connect()

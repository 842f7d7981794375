"""TLS between the client and a scripted server: whom it trusts, and that all works over it."""

import socket
import ssl
import threading

import pytest

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call
from yarn_accel.client.client import Client
from yarn_accel.errors import AuthenticationError, UnavailableError
from yarn_accel.wire.credential import issue

CREDENTIAL = issue(bytes(range(32)), "alice", 2**40, "k1")


@pytest.fixture
def serve_tls(serve, certificate):
    """As `serve`, over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")

    def start(*scripts):
        plain = serve(*scripts, wrap=lambda sock: context.wrap_socket(sock, server_side=True))
        return Endpoint(plain.name, plain.host, plain.port, "", "", True, str(certificate / "cert.pem"))

    return start


@pytest.mark.parametrize(
    ("waits", "text"),
    [(True, r"silent for 0\.2 s"), (False, r"closed the connection|is gone")],
    ids=["is silent", "goes"],
)
def test_a_server_that_is_silent_or_goes_over_tls(serve_tls, waits, text):
    endpoint = serve_tls(lambda peer: peer.next_event() and waits and peer.sock.recv(1))
    lost = pytest.raises(UnavailableError, match=text)
    with Client(endpoint, CREDENTIAL, timeout_s=0.2 if waits else 60.0) as client, lost:
        client.call(Call("k", "echo"))


def test_a_certificate_nobody_vouches_for_is_refused(certificate):
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

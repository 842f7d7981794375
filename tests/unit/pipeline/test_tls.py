"""The server's TLS never waits: what the record layer says goes when the socket takes it."""

import contextlib
import itertools
import os
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from yarn_accel.errors import StartupError
from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.tls import TlsCarrier, server_context

MIB = 1 << 20


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1 and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on this machine")
    folder = tmp_path_factory.mktemp("tls")
    files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    what = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=w1"
    argv = [openssl, *what.split(), "-addext", "subjectAltName=IP:127.0.0.1", *files]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    return folder


def config(folder, **settings):
    return PipelineConfig(master_secret_file=folder / "secret", **settings)


@pytest.fixture
def ends(certificate):
    """The carrier, and the plain socket at its other end."""
    files = {"tls_cert_file": str(certificate / "cert.pem"), "tls_key_file": str(certificate / "key.pem")}
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    carrier = TlsCarrier(ours, server_context(config(certificate, **files)))
    theirs.settimeout(120)
    yield carrier, theirs
    carrier.close()
    theirs.close()


@contextlib.contextmanager
def client(theirs, certificate, work):
    """Do something with the client's TLS socket in a thread."""
    context = ssl.create_default_context(cafile=str(certificate / "cert.pem"))

    def run():
        with context.wrap_socket(theirs, server_hostname="127.0.0.1") as sock:
            work(sock)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join(120)
    assert not thread.is_alive()


def take_tickets(sock):
    """Receive what the server says after the handshake: closing with unread bytes resets the connection."""
    sock.settimeout(0.0)
    with contextlib.suppress(ssl.SSLWantReadError):
        sock.recv(1)


def received(carrier, n_bytes):
    """So many bytes, or those until the peer's end."""
    data = bytearray()
    scratch = memoryview(bytearray(1000))
    while len(data) < n_bytes:
        try:
            n = carrier.receive_into(scratch)
        except BlockingIOError:
            continue
        if not n:
            break
        data += scratch[:n]
    return bytes(data)


def taken(carrier):
    """How much of 1 MiB is taken at once; 0: nothing goes now."""
    try:
        return carrier.send([bytes(MIB)])
    except BlockingIOError:
        return 0


def sent(carrier, data):
    left = memoryview(data)
    while len(left) or carrier.has_unsent:
        with contextlib.suppress(BlockingIOError):
            left = left[carrier.send([left]) :]
            carrier.flush()


def test_large_payloads_in_both_directions(ends, certificate):
    carrier, theirs = ends
    data, echo = os.urandom(3 * MIB), bytearray()

    def work(sock):
        sock.sendall(data)
        while len(echo) < len(data):
            echo.extend(sock.recv(65536))

    with client(theirs, certificate, work):
        there = received(carrier, len(data))
        sent(carrier, there)
    assert there == data
    assert echo == data


def test_what_was_decrypted_and_not_taken_is_at_hand(ends, certificate):
    """No descriptor tells of it: who waits for one would wait for ever."""
    carrier, theirs = ends
    release = threading.Event()

    def work(sock):
        sock.sendall(bytes(5000))
        assert release.wait(120)
        take_tickets(sock)

    with client(theirs, certificate, work):
        assert len(received(carrier, 1000)) == 1000
        assert carrier.has_received
        assert len(received(carrier, 4000)) == 4000
        release.set()
        assert received(carrier, 1) == b""


def test_a_peer_that_does_not_read_holds_no_more_than_a_bound(ends, certificate):
    carrier, theirs = ends
    release = threading.Event()

    def work(sock):
        sock.sendall(b"!")
        release.wait(120)

    with client(theirs, certificate, work):
        assert received(carrier, 1) == b"!"
        n_taken = sum(itertools.takewhile(bool, (taken(carrier) for _ in range(64))))
        assert carrier.has_unsent
        assert n_taken < 2 * MIB
        release.set()


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\x16\x03\x01\xff\xff" + bytes(600)]
)
def test_bytes_that_are_no_tls_are_an_error_of_the_connection(ends, noise):
    carrier, theirs = ends
    theirs.sendall(noise)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(OSError, match=r"(?i)ssl|closed"):
        received(carrier, 1)


def test_an_end_within_the_handshake_is_an_error(ends):
    carrier, theirs = ends
    theirs.close()
    with pytest.raises(ConnectionResetError):
        received(carrier, 1)


def test_an_end_without_goodbye_is_an_end(ends, certificate):
    carrier, theirs = ends
    release = threading.Event()

    def work(sock):
        sock.sendall(b"last")
        assert release.wait(120)
        take_tickets(sock)
        # Without close_notify.
        socket.socket(fileno=sock.detach()).close()

    with client(theirs, certificate, work):
        assert received(carrier, 4) == b"last"
        release.set()
        assert received(carrier, 1) == b""


def test_a_certificate_that_cannot_be_used_is_named(certificate, tmp_path):
    assert server_context(config(tmp_path)) is None
    (tmp_path / "cert.pem").write_text("nonsense")
    files = {"tls_cert_file": str(tmp_path / "cert.pem"), "tls_key_file": str(certificate / "key.pem")}
    with pytest.raises(StartupError, match="TLS cannot be used"):
        server_context(config(tmp_path, **files))

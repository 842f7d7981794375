"""A job's tokens leave its mapper only to a server that the job knows by more than its credential."""

import json
import os
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from tests.fixtures.hdfs_tokens import in_format_1
from yarn_accel.adapters.hadoop_rpc import Token, TokenFile, write_token_file
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.client import Client
from yarn_accel.client.job_user import JobUser, hdfs_tokens
from yarn_accel.client.token_file import read_tokens
from yarn_accel.errors import AuthenticationError, ConfigError, StartupError, UnavailableError
from yarn_accel.wire import (
    MAX_HDFS_TOKENS,
    USER_TOKENS,
    Failed,
    HdfsToken,
    Ping,
    Pong,
    UserAccepted,
    UserTokens,
)
from yarn_accel.wire.connection import PREFIX_BYTES
from yarn_accel.wire.credential import issue

CREDENTIAL = issue(bytes(range(32)), "alice", 2**40, "k1")
TOKEN = HdfsToken(b"\0\x0ealice@KRB.TEST", b"SECRET", "ha-hdfs:ns1")
ME = os.geteuid()
TAKES_TOKENS = {"capabilities": (USER_TOKENS,)}
HDFS = "HDFS_DELEGATION_TOKEN"
STORED = {
    "a": Token(b"id1", b"pw1", HDFS, "10.0.0.1:8020"),
    "b": Token(b"id1", b"pw1", HDFS, "10.0.0.2:8020"),
    "c": Token(b"id2", b"pw2", HDFS, "ha-hdfs:ns2"),
    "d": Token(b"id3", b"pw3", "RM_DELEGATION_TOKEN", "10.0.0.1:8032"),
}
READ = (HdfsToken(b"id1", b"pw1", "10.0.0.1:8020"), HdfsToken(b"id2", b"pw2", "ha-hdfs:ns2"))


def accept(peer):
    message = peer.next_event()
    assert message == UserTokens(0, (TOKEN,), "application_1_0002")
    peer.send(UserAccepted(0, "alice@KRB.TEST"))
    peer.send(Pong(peer.next_event().token))


def hears_no_tokens(peer):
    assert not peer.connection.capabilities & {USER_TOKENS}
    message = peer.next_event()
    assert isinstance(message, Ping)
    peer.send(Pong(message.token))


def job_user(**changes):
    return JobUser((TOKEN,), "application_1_0002")._replace(**changes)


def test_the_service_at_its_unix_socket_gets_them(serve):
    endpoint = serve(accept, unix=True, **TAKES_TOKENS)
    with Client(endpoint, CREDENTIAL, job_user=job_user(service_uid=ME)) as client:
        assert client.principal == "alice@KRB.TEST"
        assert client.ping() > 0


def test_who_poses_as_a_server_at_a_unix_socket_hears_nothing_at_all(tmp_path):
    """He has a credential of the same tenant, and is no user that servers run as."""
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        client = Client(Endpoint("w1", "", 0, path), CREDENTIAL, job_user=job_user(service_uid=ME + 1))
        with pytest.raises(AuthenticationError, match=f"user {ME} listens at .* run as user {ME + 1}"):
            client.connect()
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(60)
            assert sock.recv(65536) == b""


@pytest.mark.parametrize(
    "options",
    [{"service_uid": ME, "tokens": ()}, {"ca_file": "x"}],
    ids=["without tokens", "without the user of the service"],
)
def test_nothing_is_handed_over_at_a_unix_socket(serve, options):
    endpoint = serve(hears_no_tokens, unix=True, **TAKES_TOKENS)
    with Client(endpoint, CREDENTIAL, job_user=job_user(**options)) as client:
        client.ping()
        assert client.principal == ""


def test_nothing_is_handed_over_on_plain_tcp(serve):
    """Whoever has the team's credential can answer there."""
    endpoint = serve(hears_no_tokens, **TAKES_TOKENS)
    with Client(endpoint, CREDENTIAL, job_user=job_user(service_uid=ME)) as client:
        client.ping()


def test_the_hello_on_plain_tcp_does_not_say_that_there_are_tokens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        endpoint = Endpoint("w1", "127.0.0.1", listener.getsockname()[1])
        client = Client(endpoint, CREDENTIAL, connect_timeout_s=0.1, job_user=job_user(service_uid=ME))
        with pytest.raises(UnavailableError):
            client.connect()
        sock, _ = listener.accept()
        with sock:
            hello = json.loads(sock.recv(65536)[PREFIX_BYTES:])
    assert USER_TOKENS not in hello["capabilities"]


@pytest.fixture
def serve_tls(serve, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")

    def start(*scripts):
        plain = serve(*scripts, wrap=lambda sock: context.wrap_socket(sock, server_side=True), **TAKES_TOKENS)
        return Endpoint(plain.name, plain.host, plain.port, "", "", True, str(certificate / "cert.pem"))

    return start


def test_over_tls_the_authority_of_the_job_counts(serve_tls, certificate):
    endpoint = serve_tls(accept, hears_no_tokens, accept, hears_no_tokens)
    ca_file = str(certificate / "cert.pem")
    with Client(endpoint, CREDENTIAL, job_user=job_user(ca_file=ca_file)) as client:
        client.ping()
    with Client(endpoint, CREDENTIAL, job_user=job_user(service_uid=ME)) as client:
        client.ping()
    own = ssl.create_default_context(cafile=ca_file)
    with Client(endpoint, CREDENTIAL, tls=own, job_user=job_user()) as client:
        client.ping()
    believes_all = ssl.create_default_context()
    believes_all.check_hostname, believes_all.verify_mode = False, ssl.CERT_NONE
    with Client(endpoint, CREDENTIAL, tls=believes_all, job_user=job_user(service_uid=ME)) as client:
        client.ping()


def test_over_tls_another_authority_than_the_jobs_is_none(certificate, tmp_path):
    """The certificate is good for the authority that the node's agent names."""
    other = _another_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        endpoint = Endpoint("w1", "127.0.0.1", port, "", "", True, str(certificate / "cert.pem"))
        client = Client(endpoint, CREDENTIAL, job_user=job_user(ca_file=str(other)))

        def shake():
            sock, _ = listener.accept()
            with sock, pytest.raises(OSError):  # noqa: PT011 -- ssl.SSLError or a reset
                context.wrap_socket(sock, server_side=True)

        thread = threading.Thread(target=shake)
        thread.start()
        with pytest.raises(AuthenticationError, match="certificate is not accepted"):
            client.connect()
        thread.join(120)


@pytest.mark.parametrize(
    ("failed", "error"),
    [
        (Failed(0, "rejected", "other-user", "the tokens are bob's", "get your own"), AuthenticationError),
        (Failed(0, "storage", "storage", "the NameNode is away", "", True), UnavailableError),
        (Failed(0, "internal", "internal-error", "broke", ""), UnavailableError),
        (Pong(3), UnavailableError),
    ],
)
def test_a_refusal_is_an_error_with_its_cure(serve, failed, error):
    def refuse(peer):
        peer.next_event()
        peer.send(failed)

    endpoint = serve(refuse, unix=True, **TAKES_TOKENS)
    with pytest.raises(error) as caught:
        Client(endpoint, CREDENTIAL, job_user=job_user(service_uid=ME)).connect()
    assert getattr(failed, "cure", "") in caught.value.cure
    assert "SECRET" not in str(caught.value)


# What the environment of a task says


def written(form):
    content = TokenFile(STORED, {"x": b"y"})
    return write_token_file(content) if form == 0 else in_format_1(content)


@pytest.mark.parametrize("form", [0, 1])
def test_the_tokens_of_hdfs_are_read_once_each(form):
    assert hdfs_tokens(read_tokens(written(form))) == READ


def test_of_many_tokens_as_many_are_taken_as_a_server_takes():
    many = {str(n): Token(b"%d" % n, b"pw", HDFS, f"10.0.0.{n}:8020") for n in range(MAX_HDFS_TOKENS + 5)}
    assert len(hdfs_tokens(read_tokens(write_token_file(TokenFile(many))))) == MAX_HDFS_TOKENS


def test_a_task_says_by_what_its_servers_are_known(tmp_path):
    (tmp_path / "tokens").write_bytes(written(0))
    (tmp_path / "ca.pem").write_text("")
    environ = {
        "HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "tokens"),
        "CONTAINER_ID": "container_e17_1410901177871_0007_01_000005",
        "ACCEL_SERVICE_USER": str(ME),
        "ACCEL_SERVER_CA_FILE": str(tmp_path / "ca.pem"),
    }
    found = JobUser.of(environ)
    assert found == JobUser(READ, "application_1410901177871_0007", ME, str(tmp_path / "ca.pem"))
    assert "pw1" not in repr(found)
    assert JobUser.of({**environ, "ACCEL_SERVICE_USER": "root", "CONTAINER_ID": ""})[1:3] == ("", 0)
    assert (
        JobUser.of({**environ, "ACCEL_SERVICE_USER": "no-such-user", "CONTAINER_ID": ""}).service_uid is None
    )
    shared = {
        **environ,
        "ACCEL_SERVICE_USER": "root",
        "LOCAL_DIRS": str(tmp_path / "usercache/alice/appcache/a"),
    }
    (tmp_path / "usercache").mkdir()
    assert JobUser.of(shared).service_uid == ME, "the servers run as the NodeManager does, too"
    del environ["ACCEL_SERVICE_USER"], environ["ACCEL_SERVER_CA_FILE"]
    assert JobUser.of(environ) is None


@pytest.mark.parametrize(
    ("environ", "error"),
    [
        ({"ACCEL_SERVICE_USER": "65534"}, ConfigError),
        ({"ACCEL_SERVER_CA_FILE": "/nonexistent/ca.pem"}, ConfigError),
        ({"ACCEL_SERVICE_USER": "0", "HADOOP_TOKEN_FILE_LOCATION": "/nonexistent"}, StartupError),
        ({"ACCEL_SERVICE_USER": "0", "HADOOP_TOKEN_FILE_LOCATION": "/dev/null"}, StartupError),
    ],
)
def test_what_cannot_be_meant_is_named(environ, error):
    with pytest.raises(error):
        JobUser.of(environ)


def _another_certificate(folder: Path) -> Path:
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=other"
    subprocess.run(
        ["openssl", *words.split(), "-keyout", "key", "-out", "other.pem"],
        cwd=folder,
        check=True,
        capture_output=True,
        timeout=300,
    )
    return folder / "other.pem"

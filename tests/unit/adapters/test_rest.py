import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.fixtures.kdc import REALM
from tests.unit.adapters.hadoop_rpc.gss_acceptor import Acceptor
from yarn_accel.adapters.hadoop_rpc import Kerberos
from yarn_accel.adapters.hadoop_rpc.gssapi import GssError
from yarn_accel.adapters.rest import WebAccess, as_list, get_json, get_text, request_json
from yarn_accel.errors import (
    AccelError,
    AuthenticationError,
    ConfigError,
    RejectedError,
    RemoteProtocolError,
    UnavailableError,
)
from yarn_accel.testbed.single_node import free_ports

REMOTE = json.dumps({"RemoteException": {"message": "File does not exist: /x", "exception": "FileNotFound"}})
ANSWERS = {
    "/good": (200, '{"a": [1]}'),
    "/empty": (200, ""),
    "/html": (200, "<html>"),
    "/refused": (404, REMOTE),
    "/plain": (403, "no"),
    "/broken": (503, "later"),
}


class Service(BaseHTTPRequestHandler):
    def do_GET(self):
        status, text = ANSWERS[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(
            json.dumps({"type": self.headers["Content-Type"], "body": json.loads(body)}).encode()
        )

    def log_message(self, *args):
        """Stay quiet."""


@pytest.fixture(scope="module")
def web():
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_json_comes_and_goes(web):
    assert get_json(f"{web}/good") == {"a": [1]}
    assert get_json(f"{web}/empty") is None
    sent = request_json("PUT", f"{web}/any", {"state": "KILLED"})
    assert sent == {"type": "application/json", "body": {"state": "KILLED"}}


def test_a_refusal_carries_hadoops_own_words(web):
    with pytest.raises(RejectedError, match="File does not exist: /x") as caught:
        get_json(f"{web}/refused")
    assert caught.value.code == "http-404"
    with pytest.raises(RejectedError) as caught:
        get_json(f"{web}/plain")
    assert caught.value.code == "http-403"


def test_trouble_that_passes_is_transient(web):
    with pytest.raises(UnavailableError, match="503"):
        get_json(f"{web}/broken")
    with pytest.raises(UnavailableError, match="no answer from"):
        get_json(f"http://127.0.0.1:{free_ports(1)[0]}/")


def test_what_is_not_json_is_a_protocol_error(web):
    with pytest.raises(RemoteProtocolError, match="did not send JSON"):
        get_json(f"{web}/html")


def test_text_is_cut_at_the_limit(web):
    assert get_text(f"{web}/html", max_bytes=3) == "<ht"


def test_a_proxy_of_the_environment_is_not_used(web, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert get_json(f"{web}/good") == {"a": [1]}


@pytest.mark.parametrize(("sent", "meant"), [(None, []), ({"a": 1}, [{"a": 1}]), ([1, 2], [1, 2]), ([], [])])
def test_one_object_or_a_list_or_null(sent, meant):
    assert as_list(sent) == meant


# ---- with Kerberos


class Guarded(BaseHTTPRequestHandler):
    """Wants a ticket or its cookie from everybody, and says who came."""

    def do_GET(self):
        server = self.server
        proof, user = "", server.cookies.get(self.headers["Cookie"])
        scheme, _, token = (self.headers["Authorization"] or "").partition(" ")
        if scheme == "Negotiate":
            server.n_logins += 1
            try:
                answer, user = Acceptor(server.keytab).step(base64.b64decode(token))
            except GssError:
                user = None
            else:
                proof = f" {base64.b64encode(answer).decode()}"
        if self.path == "/away" and user:
            self.send_response(302)
            self.send_header("Location", server.elsewhere)
            self.end_headers()
            return
        self.send_response(200 if user else 401)
        if user:
            cookie = f'hadoop.auth="u={user}&s=x="'
            server.cookies[cookie] = user
            self.send_header("Set-Cookie", f"{cookie};Path=/; HttpOnly")
        if not user or proof:
            self.send_header("WWW-Authenticate", f"Negotiate{server.proves(proof)}")
        self.end_headers()
        self.wfile.write(json.dumps({"user": user}).encode())

    def log_message(self, *args):
        """Stay quiet."""


@contextmanager
def guarded(keytab):
    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        server.keytab, server.cookies, server.n_logins, server.elsewhere = keytab, {}, 0, ""
        server.proves = lambda proof: proof
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def web_keytab(kdc):
    return kdc.add("HTTP/m.test", keytab="web.keytab")


@pytest.fixture
def service(web_keytab):
    with guarded(web_keytab) as server:
        yield server


HOSTS = {"m.test": "127.0.0.1", "alias.test": "127.0.0.1"}


def test_a_ticket_opens_a_service_and_its_cookie_stands_for_it(ticket, service):
    access = WebAccess(Kerberos(), HOSTS)
    for _ in range(3):
        assert get_json(f"{service.url}/x", access=access) == {"user": f"alice@{REALM}"}
    assert service.n_logins == 1
    service.cookies.clear()  # As when it has expired.
    assert get_json(f"{service.url}/x", access=access) == {"user": f"alice@{REALM}"}
    assert service.n_logins == 2
    assert f"alice@{REALM}" in get_text(f"{service.url}/x", access=WebAccess(Kerberos(), HOSTS))


def test_where_a_redirect_leads_another_ticket_is_shown(ticket, service, web_keytab):
    """And neither the first one nor its cookie, which that service would have to be trusted with."""
    with guarded(web_keytab) as other:
        service.elsewhere = f"{other.url}/there"
        access = WebAccess(Kerberos(), HOSTS)
        for _ in range(2):
            assert get_json(f"{service.url}/away", access=access) == {"user": f"alice@{REALM}"}
        assert (service.n_logins, other.n_logins) == (2, 2)


@pytest.mark.parametrize("proof", ["", " AAAA", " %%%"])
def test_a_service_that_does_not_prove_who_it_is_is_not_believed(ticket, service, proof):
    service.proves = lambda _: proof
    with pytest.raises(AuthenticationError, match=r"HTTP@m\.test"):
        get_json(f"{service.url}/x", access=WebAccess(Kerberos(), HOSTS))


def test_troubles_of_a_login_are_named(ticket, service, keytabs, kdc, monkeypatch):
    with pytest.raises(RejectedError, match="answers 401"):
        get_json(f"{service.url}/x")
    service.keytab = keytabs["rm"]
    with pytest.raises(RejectedError, match="answers 401"):
        get_json(f"{service.url}/x", access=WebAccess(Kerberos(), HOSTS))
    assert service.n_logins == 1
    with pytest.raises(AccelError, match=r"the realm knows no HTTP@unknown\.test"):
        get_json(f"{service.url}/x", access=WebAccess(Kerberos(), {"unknown.test": "127.0.0.1"}))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{kdc.folder / 'none'}")
    with pytest.raises(AccelError, match="no Kerberos ticket in FILE"):
        get_json(f"{service.url}/x", access=WebAccess(Kerberos(), HOSTS))


def test_certificates_that_cannot_be_read(tmp_path):
    (tmp_path / "ca.pem").write_text("none")
    for name in ("ca.pem", "missing.pem"):
        with pytest.raises(ConfigError, match=f"{name}: no certificates"):
            WebAccess(ca_file=tmp_path / name)

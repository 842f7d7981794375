import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from yarn_accel.adapters.rest import as_list, get_json, get_text, request_json
from yarn_accel.errors import RejectedError, RemoteProtocolError, UnavailableError
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
    def do_GET(self) -> None:
        status, text = ANSWERS[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(
            json.dumps({"type": self.headers["Content-Type"], "body": json.loads(body)}).encode()
        )

    def log_message(self, *args: object) -> None:
        """Stay quiet."""


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_json_comes_and_goes(web: str):
    assert get_json(f"{web}/good") == {"a": [1]}
    assert get_json(f"{web}/empty") is None
    sent = request_json("PUT", f"{web}/any", {"state": "KILLED"})
    assert sent == {"type": "application/json", "body": {"state": "KILLED"}}


def test_a_refusal_carries_hadoops_own_words(web: str):
    with pytest.raises(RejectedError, match="File does not exist: /x") as caught:
        get_json(f"{web}/refused")
    assert caught.value.code == "http-404"
    with pytest.raises(RejectedError) as caught:
        get_json(f"{web}/plain")
    assert caught.value.code == "http-403"


def test_trouble_that_passes_is_transient(web: str):
    with pytest.raises(UnavailableError, match="503"):
        get_json(f"{web}/broken")
    with pytest.raises(UnavailableError, match="no answer from"):
        get_json(f"http://127.0.0.1:{free_ports(1)[0]}/")


def test_what_is_not_json_is_a_protocol_error(web: str):
    with pytest.raises(RemoteProtocolError, match="did not send JSON"):
        get_json(f"{web}/html")


def test_text_is_cut_at_the_limit(web: str):
    assert get_text(f"{web}/html", max_bytes=3) == "<ht"


def test_a_proxy_of_the_environment_is_not_used(web: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert get_json(f"{web}/good") == {"a": [1]}


@pytest.mark.parametrize(("sent", "meant"), [(None, []), ({"a": 1}, [{"a": 1}]), ([1, 2], [1, 2]), ([], [])])
def test_one_object_or_a_list_or_null(sent: object, meant: list[object]):
    assert as_list(sent) == meant

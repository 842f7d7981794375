import asyncio
import json
import socket
import threading

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tests.unit.master.scenes import ABOUT, four_nodes
from yarn_accel.errors import RejectedError
from yarn_accel.master import tracking_page
from yarn_accel.master.tracking_page import PageAccess, add_routes
from yarn_accel.report.pages import POLICY

PATHS = ("/", "/v1/state", "/metrics", "/healthz")
STRANGER = "192.0.2.7"


@web.middleware
async def from_where(request, handler):
    """Lets a test come from any address."""
    remote = request.headers.get("X-Remote", request.remote)
    return await handler(request.clone(remote=remote))


class Made:
    """Makes the same state whatever is asked for."""

    def __init__(self, make):
        self.make = make

    async def whole(self):
        return self.make()

    async def part(self, node, rack):
        return self.make()


def visit(path="/", method="GET", remote=None, hosts=(), state=None, explain=None):
    """Status, headers and text of one request."""
    return visit_all([(path, method, remote)], hosts, state, explain)[0]


def visit_all(requests, hosts=(), state=None, explain=None):
    scene = four_nodes()
    app = web.Application(middlewares=[from_where])
    add_routes(app, Made(state or scene.state), PageAccess(hosts), explain or scene.app.explain)

    async def ask():
        found = []
        async with TestClient(TestServer(app)) as client:
            for path, method, remote in requests:
                headers = {"X-Remote": remote} if remote else {}
                async with client.request(method, path, headers=headers) as answer:
                    found.append((answer.status, answer.headers, await answer.text()))
        return found

    return asyncio.run(ask())


def test_the_page():
    status, headers, text = visit("/")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "w2 is bound to w1" in text


def test_the_state_is_json():
    status, headers, text = visit("/v1/state")
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert json.loads(text) == four_nodes().state()


def test_metrics():
    status, headers, text = visit("/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert "yarn_accel_master_serving_servers 2.0\n" in text


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_kept_guessed_or_run(path):
    _, headers, _ = visit(path)
    assert (headers["Content-Security-Policy"], headers["Cache-Control"]) == (POLICY, "no-store")
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD"])
def test_it_is_read_only(path, method):
    assert visit(path, method)[0] == 405


# Health.


def test_healthy():
    status, _, text = visit("/healthz")
    assert (status, json.loads(text)) == (200, {"ok": True, "problems": [], "attempt": 1})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"is_registered": False}, "the resource manager does not know us"),
        ({"service": {"problems": ["no slots"]}}, "no slots"),
    ],
)
def test_unhealthy(change, problem):
    state = {**four_nodes().state(), **change}
    status, _, text = visit("/healthz", state=lambda: state)
    assert (status, json.loads(text)["problems"]) == (503, [problem])


# One node.


def test_a_node_is_explained():
    assert "w2 is bound to w1 with 1 node" in visit("/?node=w2")[2]


def test_a_node_that_cannot_be_explained_is_no_failure():
    def explain(node):
        raise RejectedError("unknown-node", f"no node <{node}>")

    status, _, text = visit("/?node=x%00y", explain=explain)
    assert status == 200
    assert "no node &lt;x\ufffdy&gt;" in text


# Visitors.


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("remote", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "10.0.0.1"])
def test_the_proxy_and_this_machine_may_look(path, remote):
    assert visit(path, remote=remote, hosts=["10.0.0.1"])[0] == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("remote", [STRANGER, "2001:db8::1", "::ffff:192.0.2.7", "nonsense"])
def test_others_learn_where_to_look(path, remote):
    status, _, text = visit(path, remote=remote, hosts=["10.0.0.1"])
    assert status == 403
    assert ABOUT["proxy_url"] in text
    assert "w2" not in text


def test_hosts_may_be_urls():
    requests = [("/", "GET", remote) for remote in ("10.0.0.1", "2001:db8::1", STRANGER)]
    found = visit_all(requests, hosts=["http://10.0.0.1:8088", "http://[2001:db8::1]:8088/x"])
    assert [status for status, _, _ in found] == [200, 200, 403]


class Names:
    """A name service whose answers a test changes."""

    def __init__(self, monkeypatch):
        self.addresses = {}
        self.n_asked = 0
        monkeypatch.setattr(socket, "getaddrinfo", self.look_up)

    def look_up(self, host, port, *args, **more):
        self.n_asked += 1
        if host not in self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.addresses[host], 0))]


async def test_a_name_is_resolved_once_and_after_a_while_again(monkeypatch):
    names = Names(monkeypatch)
    names.addresses["rm"] = "10.0.0.1"

    visitors = PageAccess(["rm", "unknown"])
    found = [await visitors.admits("10.0.0.1"), await visitors.admits("10.0.0.2")]
    assert names.n_asked == 2
    names.addresses["rm"] = "10.0.0.2"
    found.append(await visitors.admits("10.0.0.2"))
    monkeypatch.setattr(visitors, "_until_s", 0.0)
    found += [await visitors.admits("10.0.0.2"), await visitors.admits("10.0.0.1")]
    del names.addresses["rm"]
    monkeypatch.setattr(visitors, "_until_s", 0.0)
    found.append(await visitors.admits("10.0.0.2"))
    assert found == [True, False, False, True, False, True]


def test_this_machine_may_look_whatever_the_names_do(monkeypatch):
    names = Names(monkeypatch)
    assert asyncio.run(PageAccess(["unknown"]).admits("127.0.0.1"))
    assert names.n_asked == 0


# What it costs.


def test_the_state_is_made_once_for_many():
    state, n_made = four_nodes().state(), []

    def make():
        n_made.append(threading.current_thread())
        return state

    found = visit_all([(path, "GET", None) for path in PATHS * 5], state=make)
    assert {status for status, _, _ in found} == {200}
    # One more where the machine is so slow that all this takes longer than it is kept.
    assert len(n_made) < len(found)
    assert set(n_made) == {threading.main_thread()}


def test_the_state_is_made_anew_after_a_while(monkeypatch):
    monkeypatch.setattr(tracking_page, "CACHE_S", 0.0)
    monkeypatch.setattr(tracking_page, "_REST", 0.0)
    ages = iter(range(1000))
    state = four_nodes().state()
    found = visit_all([("/v1/state", "GET", None)] * 3, state=lambda: {**state, "at": next(ages)})
    assert [json.loads(text)["at"] for _, _, text in found] == [0, 1, 2]


def test_pages_are_written_outside_the_event_loop_and_once_for_equal_questions(monkeypatch):
    written = []

    def page(state, query, explanation, sections):
        written.append((query.node, threading.current_thread() is threading.main_thread()))
        return "page"

    monkeypatch.setattr(tracking_page, "page", page)
    monkeypatch.setattr(tracking_page, "CACHE_S", 60.0)
    visit_all([("/", "GET", None), ("/?node=w1", "GET", None), ("/", "GET", None)])
    assert written == [("", False), ("w1", False)]

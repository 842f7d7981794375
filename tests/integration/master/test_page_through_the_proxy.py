"""The tracking page by way of the real web proxy of YARN."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.integration.master.conftest import Site
from yarn_accel.launch.gateway import find_running
from yarn_accel.master.look import POLICY

pytestmark = [pytest.mark.hadoop, pytest.mark.slow]

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def url(site: Site) -> str:
    """The page's address at the proxy; another test may have stopped the application."""
    if not site.ask(lambda manager: find_running(manager, "yarn-accel")):
        site.start()
    site.until("all serve", site.is_whole)
    (report,) = site.ask(lambda manager: find_running(manager, "yarn-accel"))
    return site.gateway.page_of(report)


def get(url: str) -> tuple[Any, str]:
    with _OPENER.open(url, timeout=10) as answer:
        return answer.headers, answer.read().decode()


def test_people_see_it_through_the_proxy(site: Site, url: str) -> None:
    headers, text = get(url)
    assert headers["Content-Security-Policy"] == POLICY
    assert "charset=utf-8" in headers["Content-Type"]
    for host in (*site.servers, *site.others):
        assert f'data-node="{host}"' in text
    for host in site.others:
        assert f"<title>{host} is bound to " in text


def test_so_do_programs(site: Site, url: str) -> None:
    state = json.loads(get(f"{url}v1/state")[1])
    assert {host for host, node in state["nodes"].items() if node["is_serving"]} == set(site.servers)
    assert json.loads(get(f"{url}healthz")[1])["ok"]
    assert "yarn_accel_master_serving_servers 2.0" in get(f"{url}metrics")[1]


def test_a_node_is_explained_there(site: Site, url: str) -> None:
    host = site.others[0]
    assert f"{host} is bound to {site.state()['nodes'][host]['bound']}" in get(f"{url}?node={host}")[1]


def test_who_does_not_come_from_the_proxy_is_sent_there(site: Site, url: str) -> None:
    if site.cluster.plan.mode != "netns":
        pytest.skip("in loopback mode everybody comes from this machine")
    state = json.loads(get(f"{url}v1/state")[1])
    (report,) = site.ask(lambda manager: find_running(manager, "yarn-accel"))
    direct = f"{site.gateway.url_of(report)}/v1/state"
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(direct)
    with caught.value as answer:
        assert answer.code == 403
        assert state["about"]["proxy_url"] in answer.read().decode()
    own = next(host for host in site.names if report.host == host)
    argv = site.cluster.exec_argv(
        site.names[own], ["curl", "-s", f"http://127.0.0.1:{report.rpc_port}/healthz"]
    )
    assert json.loads(subprocess.run(argv, capture_output=True, check=True, text=True).stdout)["ok"]

"""The tracking page by way of the real web proxy of YARN."""

import asyncio
import json
import subprocess
import urllib.error
import urllib.request

import pytest
from PIL import Image

from tests.conftest import NO_BROWSER
from tests.integration.master.browser import CHROMIUM, Chromium
from yarn_accel.hadoop.rm_client import find_running
from yarn_accel.report.pages import POLICY

pytestmark = [pytest.mark.hadoop]

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def url(site):
    """The page's address at the proxy."""
    site.until("all serve", site.is_whole)
    (report,) = site.ask(lambda manager: find_running(manager, "yarn-accel"))
    return site.rm_client.page_of(report)


def get(url):
    with _OPENER.open(url, timeout=300) as answer:
        return answer.headers, answer.read().decode()


def test_people_see_it_through_the_proxy(site, url):
    headers, text = get(url)
    assert headers["Content-Security-Policy"] == POLICY
    assert "charset=utf-8" in headers["Content-Type"]
    for host in (*site.servers, *site.others):
        assert f'data-node="{host}"' in text
    for host in site.others:
        assert f"<title>{host} is bound to " in text


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)
async def test_a_browser_shows_it_through_the_proxy_and_follows(site, url, tmp_path):
    """What the proxy does to headers, cookies and links is its own: only a browser tells what comes of it."""
    server, client = site.servers[0], site.others[0]
    n_nodes = len(site.servers) + len(site.others)
    lines = "document.querySelectorAll('.binding').length"

    with Chromium(tmp_path / "profile") as browser:
        async with browser.tab() as tab:
            await tab.open(url)
            await tab.screenshot(tmp_path / "page.png")
            assert await tab.value("document.querySelectorAll('.node').length") == n_nodes
            assert await tab.value(lines) == len(site.others)
            before = await tab.value("document.querySelector('footer').textContent")
            await tab.until(f"document.querySelector('footer').textContent !== {json.dumps(before)}")
            await asyncio.to_thread(site.run, "drain", server)
            await tab.until(f"document.querySelector('[data-node={server}]').classList.contains('warn')")
            await asyncio.to_thread(site.run, "undrain", server)
            await tab.until(f"{lines} === {len(site.others)}")
            await tab.open(f"{url}?node={client}")
            assert f"{client} is bound to " in await tab.value("document.querySelector('pre').textContent")
            assert tab.complaints == []
            assert {each.startswith(url) for each in tab.requested} == {True}
    with Image.open(tmp_path / "page.png") as image:
        assert image.width == 1280
        assert len(image.convert("RGB").getcolors(1 << 24)) > 50


def test_so_do_programs(site, url):
    state = json.loads(get(f"{url}v1/state")[1])
    assert {host for host, node in state["nodes"].items() if node["is_serving"]} == set(site.servers)
    assert json.loads(get(f"{url}healthz")[1])["ok"]
    assert f"yarn_accel_master_serving_servers {len(site.servers)}.0" in get(f"{url}metrics")[1]


def test_a_node_is_explained_there(site, url):
    host = site.others[0]
    assert f"{host} is bound to {site.state()['nodes'][host]['bound']}" in get(f"{url}?node={host}")[1]


def test_who_does_not_come_from_the_proxy_is_sent_there(site, url):
    if not site.cluster.plan.mode.has_links:
        pytest.skip("in loopback mode everybody comes from this machine")
    state = json.loads(get(f"{url}v1/state")[1])
    (report,) = site.ask(lambda manager: find_running(manager, "yarn-accel"))
    direct = f"{site.rm_client.url_of(report)}/v1/state"
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

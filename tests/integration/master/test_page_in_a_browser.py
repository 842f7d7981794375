"""The tracking page as people see it: below a path as behind YARN's proxy, in a real browser."""

import contextlib

import pytest
from aiohttp import web
from PIL import Image

from tests.conftest import NO_BROWSER
from tests.integration.master.browser import CHROMIUM, Chromium
from tests.unit.master.scenes import Scene, four_nodes
from yarn_accel.core.application import events as ev
from yarn_accel.master import tracking_page
from yarn_accel.master.tracking_page import PageAccess, add_routes

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)

BELOW = "/proxy/application_1795000000000_0001/"
EVIL = "<img src=x onerror=window.hacked=1>"
#: Texts that stick out of their node, their rack, or the picture; widths as this browser's fonts give them.
STICKING_OUT = """(() => {
  const found = [];
  const inside = (text, frame) => {
    const a = text.getBoundingClientRect(), b = frame.getBoundingClientRect();
    if (a.left < b.left || a.right > b.right + 0.5 || a.top < b.top || a.bottom > b.bottom + 0.5)
      found.push(text.textContent);
  };
  for (const node of document.querySelectorAll(".node"))
    for (const text of node.querySelectorAll("text")) inside(text, node.querySelector(".body"));
  for (const name of document.querySelectorAll(".rack-name"))
    inside(name, name.parentNode.querySelector(".rack"));
  return found;
})()"""
#: Texts of one node that lie on each other.
OVERLAPPING = """(() => {
  const found = [];
  for (const node of document.querySelectorAll(".node")) {
    const texts = [...node.querySelectorAll("text")].filter((text) => text.textContent);
    const boxes = texts.map((text) => text.getBoundingClientRect());
    boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b, j) => {
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5
          && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
        found.push([texts[i].textContent, texts[i + 1 + j].textContent]);
    }));
  }
  return found;
})()"""


@contextlib.asynccontextmanager
async def seen(scene, browser, path=""):
    """The page of a scene in a tab of a browser."""
    inner = web.Application()
    add_routes(inner, scene.documents(), PageAccess(()), scene.app.explain)
    outer = web.Application()
    outer.add_subapp(BELOW.rstrip("/"), inner)
    runner = web.AppRunner(outer, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with browser.tab() as tab:
            tab.address = address
            await tab.open(f"{address}{BELOW}{path}")
            yield tab
    finally:
        await runner.cleanup()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Every look shows the scene as it is."""
    monkeypatch.setattr(tracking_page, "CACHE_S", 0.0)
    monkeypatch.setattr(tracking_page, "_REST", 0.0)


def many_nodes():
    """Three racks with all kinds of trouble."""
    nodes = [(f"r{r}a{i}", f"/dc1/rack{r}", True) for r in (1, 2, 3) for i in range(1, (3, 4, 2)[r - 1])]
    nodes += [(f"r{r}n{i}", f"/dc1/rack{r}", False) for r in (1, 2, 3) for i in range(1, (8, 12, 4)[r - 1])]
    scene = Scene(nodes, "weighted")
    for second in range(40):
        scene.heartbeat(
            rates={"r1a2": 10.0 + 5 * (second % 9), "r2a1": 4000.0}, silent=("r1n3",) if second > 30 else ()
        )
    scene.report(r2n4="gone")
    scene.tell(ev.DrainRequested, "r3a1")
    return scene


def long_names():
    """As sites name their nodes: those of one rack by one domain, and nothing short about them."""
    nodes = [
        (f"accelerator-{i:03d}.rack{r}.cluster.example.org", f"/dc1/rack{r}", i == 1)
        for r in (1, 2)
        for i in range(1, 7)
    ]
    scene = Scene(nodes, "weighted")
    for _ in range(4):
        scene.heartbeat()
    scene.tell(ev.DrainRequested, nodes[0][0])
    return scene


@pytest.mark.parametrize("narrow", [False, True])
async def test_long_names_are_cut_to_their_space(browser, narrow):
    scene = long_names() if narrow else Scene([("gpu1.cluster.example.org", "/default-rack", True)])
    scene.heartbeat()

    async with seen(scene, browser) as tab:
        assert await tab.value(STICKING_OUT) == []
        assert await tab.value(OVERLAPPING) == []
        assert tab.complaints == []


async def test_a_picture_of_the_cluster(browser, tmp_path):
    async with seen(many_nodes(), browser) as tab:
        await tab.screenshot(tmp_path / "page.png")
        assert await tab.value(STICKING_OUT) == []
        assert await tab.value(OVERLAPPING) == []
        assert await tab.value("document.querySelectorAll('.node').length") == 27
        assert await tab.value("document.documentElement.scrollWidth <= innerWidth")
        assert tab.complaints == []
        assert {url.startswith(tab.address + BELOW) for url in tab.requested} == {True}
    with Image.open(tmp_path / "page.png") as image:
        assert image.width == 1280
        assert image.height > 1000
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    # The colours of the first two servers, in the light or the dark style: the style was not refused.
    assert {(0x25, 0x63, 0xC9), (0xC2, 0x57, 0x0C)} <= colours or {
        (0x6E, 0xA8, 0xFF),
        (0xFF, 0x9D, 0x5C),
    } <= colours


async def test_it_follows_what_happens(browser):
    scene = four_nodes()
    lines = "document.querySelectorAll('.binding').length"

    async with seen(scene, browser) as tab:
        assert await tab.value(lines) == 2
        await tab.value("window.kept = document.querySelector('[data-node=w1]')")
        container = next(c for c, place in scene.containers.items() if place == ("w1", "server"))
        scene.enact = lambda command: None
        scene.tell(ev.ContainerCompleted, container, 137, "")
        await tab.until(f"{lines} === 1")
        await tab.until("document.querySelector('[data-node=w2]').classList.contains('idle')")
        assert await tab.value("window.kept === document.querySelector('[data-node=w1]')")
        assert tab.complaints == []


async def test_it_says_when_the_master_is_away_and_when_it_is_back(browser):
    stale = "getComputedStyle(document.getElementById('stale')).display === 'block'"
    scene = four_nodes()
    documents = scene.documents()
    make = documents.part
    is_away = False

    async def part(node, rack):
        if is_away:
            raise web.HTTPBadGateway
        return await make(node, rack)

    documents.part = part
    scene.documents = lambda: documents

    async with seen(scene, browser) as tab:
        assert not await tab.value(stale)
        is_away = True
        await tab.until(stale)
        assert await tab.value("document.querySelectorAll('.node').length") == 4
        is_away = False
        await tab.until(f"!({stale})")


async def test_what_agents_say_does_not_run(browser):
    scene = Scene([(EVIL, EVIL, True), ("w2", EVIL, False)])
    for _ in range(3):
        scene.heartbeat(
            **{EVIL: {"problems": [EVIL], "devices": [{"name": EVIL, "device": EVIL, "health": EVIL}]}}
        )

    async with seen(scene, browser, "?node=" + EVIL) as tab:
        await tab.until("performance.getEntriesByType('resource').length >= 2")
        assert await tab.value("window.hacked") is None
        assert await tab.value("document.querySelectorAll('img').length") == 0
        assert tab.complaints == []


async def test_even_what_got_into_the_page_does_not_run(browser, monkeypatch):
    page = tracking_page.page
    monkeypatch.setattr(
        tracking_page,
        "page",
        lambda *args: page(*args).replace("<main", f"{EVIL}<script>hacked=2</script><main", 1),
    )

    async with seen(four_nodes(), browser) as tab:
        assert await tab.value("document.querySelectorAll('img').length") == 1
        assert await tab.value("window.hacked") is None
        assert any("Content Security Policy" in text for text in tab.complaints)


async def test_links_lead_to_nodes_and_to_the_json(browser):
    async with seen(four_nodes(), browser) as tab:
        links = await tab.value("[...document.querySelectorAll('footer a')].map((a) => a.href)")
        assert links == [f"{tab.address}{BELOW}{path}" for path in ("v1/state", "metrics")]
        await tab.value(
            "document.querySelector('[data-node=w2]').closest('a').dispatchEvent("
            "new MouseEvent('click', {bubbles: true, cancelable: true}))"
        )
        await tab.until("document.querySelector('#explanation pre') !== null")
        assert "w2 is bound to w1" in await tab.value(
            "document.querySelector('#explanation pre').textContent"
        )
        assert await tab.value("location.search") == "?node=w2"

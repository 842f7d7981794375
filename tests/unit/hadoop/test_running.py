from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from yarn_accel.errors import UnavailableError
from yarn_accel.hadoop import running
from yarn_accel.hadoop.running import tracking_pages
from yarn_accel.hadoop.site import SiteSettings

TWO = {
    "yarn.resourcemanager.ha.rm-ids": "a,b",
    "yarn.resourcemanager.hostname.a": "rm1",
    "yarn.resourcemanager.hostname.b": "rm2",
}


def app(number: int, started: int, url: str = "") -> dict[str, Any]:
    return {
        "id": f"application_1_{number}",
        "startedTime": started,
        "trackingUrl": url or f"http://rm/{number}",
    }


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is found when the first ResourceManager is away and the second answers this."""

    def act(answer: Any) -> tuple[str, ...]:
        def get(url: str, **_: object) -> Any:
            assert url.endswith("/ws/v1/cluster/apps?states=RUNNING&applicationTypes=yarn-accel")
            if "rm1" in url:
                raise UnavailableError("away")
            return answer

        monkeypatch.setattr(running, "get_json", get)
        return tracking_pages(SiteSettings(tmp_path, TWO), "yarn-accel")

    return act


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"apps": {"app": [app(1, 5), app(2, 9)]}}, ("http://rm/2", "http://rm/1")),
        ({"apps": {"app": [app(1, 5, "UNASSIGNED")]}}, ()),
        ({"apps": {}}, ()),
        ({"apps": None}, ()),
        (None, ()),
        ("<html>", ()),
    ],
)
def test_the_pages_of_what_runs_newest_first(pages: Any, answer: Any, found: tuple[str, ...]) -> None:
    assert pages(answer) == found


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def get(url: str, **_: object) -> Any:
        raise UnavailableError("away")

    monkeypatch.setattr(running, "get_json", get)
    assert tracking_pages(SiteSettings(tmp_path, TWO), "yarn-accel") == ()

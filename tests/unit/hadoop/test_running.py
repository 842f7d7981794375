from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from yarn_accel.errors import UnavailableError
from yarn_accel.hadoop import running
from yarn_accel.hadoop.running import mapper_environment, tracking_pages
from yarn_accel.hadoop.site import SiteSettings

TWO = {
    "yarn.resourcemanager.ha.enabled": "true",
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


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SiteSettings:
    listed = [
        {**app(1, 5), "name": "of-ann", "user": "ann"},
        {**app(2, 9), "name": "of bob", "user": "bob"},
        {**app(3, 7), "name": "second", "user": "bob"},
    ]
    monkeypatch.setattr(running, "get_json", lambda url, **_: {"apps": {"app": listed}})
    return SiteSettings(tmp_path, TWO)


@pytest.mark.parametrize(
    ("user", "wanted", "pages", "named"),
    [
        ("ann", "", "http://rm/1", "of-ann"),
        ("bob", "", "http://rm/2,http://rm/3", "application_1_2"),
        ("carl", "", "http://rm/2,http://rm/3,http://rm/1", None),
        ("ann", "second", "http://rm/3", "second"),
        ("ann", "application_1_2", "http://rm/2", "application_1_2"),
    ],
)
def test_a_job_uses_the_application_of_its_user_or_the_one_that_is_named(
    several: SiteSettings,
    monkeypatch: pytest.MonkeyPatch,
    user: str,
    wanted: str,
    pages: str,
    named: str | None,
) -> None:
    """A name that Hadoop's options would split is replaced by the id."""
    monkeypatch.setenv("HADOOP_USER_NAME", user)
    found = mapper_environment(several, wanted)
    assert found == {"ACCEL_MASTER": pages, **({"ACCEL_APPLICATION": named} if named else {})}


def test_one_that_does_not_run_is_refused_with_those_that_do(several: SiteSettings) -> None:
    with pytest.raises(UnavailableError, match=r"no application third runs; running: of bob .*of-ann"):
        mapper_environment(several, "third")

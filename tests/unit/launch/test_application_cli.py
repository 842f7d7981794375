"""The verbs as commands: the ResourceManager is a list, the master a function."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.unit.launch import yarn as fake
from tests.unit.launch.yarn import FakeRmClient, Yarn, app, node, report
from yarn_accel.adapters.hadoop_rpc.records import ApplicationState, NodeAttribute, YarnResource
from yarn_accel.cli import root
from yarn_accel.errors import AuthenticationError, ConfigError, RejectedError, UnavailableError
from yarn_accel.hadoop.control import RetainedApplication
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.launch import application_cli, tasks_cli
from yarn_accel.launch.start import StartedApplication


class Desk:
    """An admin's desk: runs commands, and notes what the master was asked."""

    def __init__(self, folder: Path) -> None:
        self.yarn = Yarn()
        self.rm_client: FakeRmClient = fake.rm_client(folder, self.yarn)
        self.asked: list[tuple[str, Any]] = []
        self.answer: dict[str, Any] = {}

    async def ask(self, _: object, verb: str, document: object = None) -> dict[str, Any]:
        self.asked.append((verb, document))
        return self.answer

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(root, words)


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Desk:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Desk(tmp_path)
    monkeypatch.setattr(RmClient, "load", staticmethod(lambda: made.rm_client))

    async def ask(control: object, verb: str, document: object = None) -> dict[str, Any]:
        return await made.ask(control, verb, document)

    monkeypatch.setattr(application_cli.Control, "ask", ask)
    return made


@pytest.fixture
def running(desk) -> Desk:
    desk.yarn.add(report(1))
    RetainedApplication.of(str(app(1))).create("")
    return desk


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["explain", "w2"], ("explain", {"node": "w2"})),
        (["drain", "w1"], ("drain", {"node": "w1"})),
        (["undrain", "w1"], ("undrain", {"node": "w1"})),
        (["rebind"], ("rebind", None)),
        (["rebind", "--application", str(app(1))], ("rebind", None)),
    ],
)
def test_a_verb_reaches_the_master_and_its_words_are_shown(running, words, asked) -> None:
    running.answer = {"text": "the master's words"}
    result = running.run(*words)
    assert (result.exit_code, result.output) == (0, "the master's words\n")
    assert running.asked == [asked]


@pytest.mark.parametrize("verb", ["status", "explain", "drain", "undrain", "rebind"])
def test_without_an_application_there_is_nobody_to_ask(desk, verb) -> None:
    words = [verb, "w1"] if verb in ("explain", "drain", "undrain") else [verb]
    result = desk.run(*words)
    assert isinstance(result.exception, UnavailableError)
    assert "yarn-accel start" in str(result.exception)


def test_without_the_secret_nobody_is_asked(desk) -> None:
    desk.yarn.add(report(1))
    result = desk.run("rebind")
    assert isinstance(result.exception, AuthenticationError)
    assert not desk.asked


def test_status_is_a_table_or_everything(running) -> None:
    running.answer = {"attempt": 1, "state": {"nodes": {"w1": {"rack": "/r1"}}}}
    assert "w1    /r1" in running.run("status").output
    reported = json.loads(running.run("status", "--json").output)
    assert reported == {**running.answer, "page": f"http://10.0.0.1:8088/proxy/{app(1)}/"}


NOTHING_RUNS = "nothing runs; slots that a killed one left on nodes: yarn-accel stop --force\n"


def test_stop_without_an_application_is_fine(desk) -> None:
    result = desk.run("stop")
    assert (result.exit_code, result.output) == (0, NOTHING_RUNS)


def test_stop_by_force_restores_nodes_that_nobody_looks_after(desk) -> None:
    """As after `yarn application -kill`: the master had no time to restore them."""
    mark = NodeAttribute.of("accel-slots", "9", "rm.yarn.io")
    left = replace(node("w1"), capability=YarnResource.of(4096, 8, {"acct/slot": 2}), attributes=(mark,))
    desk.yarn.node_reports = (left, node("w2"))
    assert desk.run("stop").output == NOTHING_RUNS
    assert desk.yarn.node_reports[0] is left
    assert desk.run("stop", "--force").output == "nothing runs; the nodes are as configured\n"
    restored = desk.yarn.node_reports[0]
    assert restored.capability == YarnResource.of(4096, 8, {"acct/slot": 9})
    assert restored.attributes == ()


def test_stop_by_force_asks_no_master(running) -> None:
    result = running.run("stop", "--force")
    assert result.exit_code == 0, result.exception
    assert f"{app(1)} has ended: KILLED (KILLED)" in result.output
    assert not running.asked


def test_start_says_which_one_runs(desk, monkeypatch) -> None:
    async def found(*_: object) -> StartedApplication:
        return StartedApplication(report(1), is_new=False)

    monkeypatch.setattr(application_cli, "start_application", found)
    result = desk.run("start")
    assert result.exit_code == 0
    assert f"{app(1)} runs already (yarn-accel, submitted by alice)" in result.output
    assert "keeps the settings" not in result.output


def test_start_does_not_say_that_one_runs_which_waits(desk, monkeypatch) -> None:
    async def found(*_: object) -> StartedApplication:
        return StartedApplication(report(1, ApplicationState.ACCEPTED), is_new=False)

    monkeypatch.setattr(application_cli, "start_application", found)
    assert f"{app(1)} was submitted already and is ACCEPTED" in desk.run("start").output


def test_a_start_with_settings_that_finds_another_says_that_they_are_not_used(
    desk, monkeypatch, tmp_path
) -> None:
    async def found(*_: object) -> StartedApplication:
        return StartedApplication(report(1), is_new=False)

    monkeypatch.setattr(application_cli, "start_application", found)
    (tmp_path / "accel.yaml").write_text("app: {queue: accel}")
    result = desk.run("start", "--config", str(tmp_path / "accel.yaml"))
    assert result.exit_code == 0
    assert "it keeps the settings it was started with" in result.output


def test_tasks_start_asks_the_one_that_runs_whether_it_has_a_task_service(running, monkeypatch) -> None:
    async def found(*_: object) -> StartedApplication:
        return StartedApplication(report(1), is_new=False)

    async def refused(*_: object) -> dict[str, Any]:
        raise RejectedError("no-task-service", "it has none")

    monkeypatch.setattr(tasks_cli, "start_application", found)
    result = running.run("tasks", "start")
    assert f"{app(1)} runs already" in result.output
    assert running.asked == [("tasks-status", None)]
    monkeypatch.setattr(running, "ask", refused)
    result = running.run("tasks", "start")
    assert isinstance(result.exception, RejectedError)
    assert "runs already" not in result.output


def serving(*flags: bool) -> dict[str, Any]:
    nodes = {f"w{n}": {"is_accelerator": True, "is_serving": flag} for n, flag in enumerate(flags)}
    return {"attempt": 1, "state": {"nodes": nodes}}


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [(serving(True, False), "1 of 2 accelerator nodes serve"), (serving(), "no node is known to have")],
)
def test_start_waits_for_every_accelerator_node(running, monkeypatch, answer, complaint) -> None:
    async def found(*_: object) -> StartedApplication:
        return StartedApplication(report(1), is_new=True, took_s=1.0)

    monkeypatch.setattr(application_cli, "start_application", found)
    running.answer = serving(True, True)
    assert "every accelerator node serves" in running.run("start", "--wait").output
    running.answer = answer
    result = running.run("start", "--wait", "--wait-s", "1")
    assert isinstance(result.exception, UnavailableError)
    assert complaint in str(result.exception)


def test_top_ends_with_an_interrupt(running, monkeypatch) -> None:
    def interrupted(*_: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(application_cli.Control, "ask", interrupted)
    assert running.run("top").exit_code == 0


def test_top_into_a_pipe_writes_what_status_writes_each_time(running, monkeypatch) -> None:
    once = running.run("status").output
    n_asked = 0
    ask = application_cli.Control.ask

    async def twice(*arguments: Any) -> dict[str, Any]:
        nonlocal n_asked
        n_asked += 1
        if n_asked > 2:
            raise KeyboardInterrupt
        return await ask(*arguments)

    monkeypatch.setattr(application_cli.Control, "ask", twice)
    result = running.run("top", "--interval", "0.2")
    assert result.exit_code == 0
    assert result.output == f"{once}\n{once}"


def test_a_rehearsal_without_a_place_for_uploads_names_the_setting(desk) -> None:
    result = desk.run("start", "--dry-run")
    assert isinstance(result.exception, ConfigError)
    assert "staging_uri" in str(result.exception)

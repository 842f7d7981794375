"""The verbs as commands: the ResourceManager is a list, the master a function."""

import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tests.unit.launch import yarn as fake
from tests.unit.launch.yarn import Yarn, app, node, report
from yarn_accel.adapters.hadoop_rpc.records import ApplicationState, NodeAttribute, YarnResource
from yarn_accel.cli import root
from yarn_accel.errors import AuthenticationError, ConfigError, RejectedError, UnavailableError
from yarn_accel.hadoop.control import RetainedApplication
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.launch import application_cli, tasks_cli
from yarn_accel.launch.start import StartedApplication


class Desk:
    """An admin's desk: runs commands, and notes what the master was asked."""

    def __init__(self, folder):
        self.yarn = Yarn()
        self.rm_client = fake.rm_client(folder, self.yarn)
        self.asked = []
        self.answer = {}

    async def ask(self, _, verb, document=None):
        self.asked.append((verb, document))
        return self.answer

    def run(self, *words):
        return CliRunner().invoke(root, words)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Desk(tmp_path)
    monkeypatch.setattr(RmClient, "load", staticmethod(lambda: made.rm_client))

    async def ask(control, verb, document=None):
        return await made.ask(control, verb, document)

    monkeypatch.setattr(application_cli.Control, "ask", ask)
    return made


@pytest.fixture
def running(desk):
    desk.yarn.add(report(1))
    RetainedApplication.of(str(app(1))).create("")
    return desk


@pytest.fixture
def starts(monkeypatch):
    """What `start` submits or finds, instead of a submission."""

    def set_(module=application_cli, state=ApplicationState.RUNNING, **facts):
        async def found(*_):
            return StartedApplication(report(1, state), **{"is_new": False, **facts})

        monkeypatch.setattr(module, "start_application", found)

    return set_


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
def test_a_verb_reaches_the_master_and_its_words_are_shown(running, words, asked):
    running.answer = {"text": "the master's words"}
    result = running.run(*words)
    assert (result.exit_code, result.output) == (0, "the master's words\n")
    assert running.asked == [asked]


@pytest.mark.parametrize("verb", ["status", "explain", "drain", "undrain", "rebind"])
def test_without_an_application_there_is_nobody_to_ask(desk, verb):
    words = [verb, "w1"] if verb in ("explain", "drain", "undrain") else [verb]
    result = desk.run(*words)
    assert isinstance(result.exception, UnavailableError)
    assert "yarn-accel start" in str(result.exception)


def test_without_the_secret_nobody_is_asked(desk):
    desk.yarn.add(report(1))
    result = desk.run("rebind")
    assert isinstance(result.exception, AuthenticationError)
    assert not desk.asked


def test_status_is_a_table_or_everything(running):
    running.answer = {"attempt": 1, "state": {"nodes": {"w1": {"rack": "/r1"}}}}
    assert "w1    /r1" in running.run("status").output
    reported = json.loads(running.run("status", "--json").output)
    assert reported == {**running.answer, "page": f"http://10.0.0.1:8088/proxy/{app(1)}/"}


def test_status_says_until_when_an_application_with_tokens_lives(running):
    retained = RetainedApplication.of(str(app(1)))
    retained.remove()
    retained.create("", 1_800_000_000.0)
    running.answer = {"attempt": 1, "state": {}}
    lines = running.run("status").output.splitlines()
    assert re.fullmatch(rf"{app(1)} lives until 2027-01-1\d .* at most: its HDFS token ends then", lines[-1])
    assert json.loads(running.run("status", "--json").output)["ends_s"] == 1_800_000_000.0


NOTHING_RUNS = "nothing runs; slots that a killed one left on nodes: yarn-accel stop --force\n"


def test_stop_without_an_application_is_fine(desk):
    result = desk.run("stop")
    assert (result.exit_code, result.output) == (0, NOTHING_RUNS)


def test_stop_by_force_restores_nodes_that_nobody_looks_after(desk):
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


def test_stop_by_force_asks_no_master(running):
    result = running.run("stop", "--force")
    assert result.exit_code == 0, result.exception
    assert f"{app(1)} has ended: KILLED (KILLED)" in result.output
    assert not running.asked


@pytest.mark.parametrize(
    ("state", "settings", "words"),
    [
        ("RUNNING", "", f"{app(1)} runs already (yarn-accel, submitted by alice)"),
        ("ACCEPTED", "", f"{app(1)} was submitted already and is ACCEPTED"),
        ("RUNNING", "app: {queue: accel}", "it keeps the settings it was started with"),
    ],
    ids=["runs", "waits", "keeps its settings"],
)
def test_start_says_which_one_there_is(desk, starts, tmp_path, state, settings, words):
    starts(state=ApplicationState[state])
    (tmp_path / "accel.yaml").write_text(settings)
    result = desk.run("start", *(["--config", str(tmp_path / "accel.yaml")] if settings else []))
    assert result.exit_code == 0
    assert words in result.output
    assert ("keeps the settings" in result.output) == bool(settings)


def test_tasks_start_asks_the_one_that_runs_whether_it_has_a_task_service(running, starts, monkeypatch):
    async def refused(*_):
        raise RejectedError("no-task-service", "it has none")

    starts(tasks_cli)
    assert f"{app(1)} runs already" in running.run("tasks", "start").output
    assert running.asked == [("tasks-status", None)]
    monkeypatch.setattr(running, "ask", refused)
    result = running.run("tasks", "start")
    assert isinstance(result.exception, RejectedError)
    assert "runs already" not in result.output


def serving(*flags):
    nodes = {f"w{n}": {"is_accelerator": True, "is_serving": flag} for n, flag in enumerate(flags)}
    return {"attempt": 1, "state": {"nodes": nodes}}


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [(serving(True, False), "1 of 2 accelerator nodes serve"), (serving(), "no node is known to have")],
)
def test_start_waits_for_every_accelerator_node(running, starts, answer, complaint):
    starts(is_new=True, took_s=1.0)
    running.answer = serving(True, True)
    assert "every accelerator node serves" in running.run("start", "--wait").output
    running.answer = answer
    result = running.run("start", "--wait", "--wait-s", "1")
    assert isinstance(result.exception, UnavailableError)
    assert complaint in str(result.exception)


def test_top_into_a_pipe_writes_what_status_writes_each_time_until_an_interrupt(running, monkeypatch):
    once = running.run("status").output
    left = [running.answer, running.answer]

    def ask(*_):
        if not left:
            raise KeyboardInterrupt
        return running.ask("control", "status", left.pop())

    monkeypatch.setattr(application_cli.Control, "ask", ask)
    result = running.run("top", "--interval", "0.2")
    assert (result.exit_code, result.output) == (0, f"{once}\n{once}")


def test_a_rehearsal_without_a_place_for_uploads_names_the_setting(desk):
    result = desk.run("start", "--dry-run")
    assert isinstance(result.exception, ConfigError)
    assert "staging_uri" in str(result.exception)

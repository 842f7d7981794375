"""What became of live tasks and DAGs: the master's answers become the JSON that a simulation writes."""

import json
import math

import pytest
from click.testing import CliRunner

from tests.unit.launch import yarn as fake
from tests.unit.launch.task_master import T, answer, row
from tests.unit.master.tasks.test_views import BELIEF
from yarn_accel.cli import root
from yarn_accel.core.tasks.history import EndedTask
from yarn_accel.core.tasks.use_over_time import NodePlace
from yarn_accel.errors import ConfigError, RejectedError, UnavailableError
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.launch.outcomes import live_dag_outcome, live_outcome, live_report, what_is_missing
from yarn_accel.report.runs import RunReport, report_page, write_report


def test_seconds_begin_with_the_first_submission():
    outcome = live_outcome(
        {"a": answer([row("0", 2, 12), row("1", 3, 8)]), "b": answer([row("0", 7, 14)], begun_at=T + 5)}
    )
    assert outcome.as_json() == {
        "policy": "hdas",
        "makespan_s": 14.0,
        "mean_delay": pytest.approx((2 + 1 + 1.4) / 3),
        "apps": {
            "a": {"start_s": 0.0, "end_s": 12.0, "delay": pytest.approx(1.5)},
            "b": {"start_s": 5.0, "end_s": 14.0, "delay": pytest.approx(1.4)},
        },
        "tasks": [
            {
                "app": name,
                "task": f"{name}/{task}",
                "node": "n1",
                "form": "gpu",
                "start_s": start_s,
                "end_s": end_s,
                "reason": "(a) least delay 1",
            }
            for name, task, start_s, end_s in (("a", "0", 2, 12), ("a", "1", 3, 8), ("b", "0", 7, 14))
        ],
    }


def test_what_nobody_knows_is_null_and_is_said():
    answers = {
        "a": answer([row("0", 2, 12, None), row("1", 3, 8)], ended_at=None, state="running"),
        "b": answer([], state="cancelled", ended_at=T + 3),
        "c": answer([], tasks={"done": 7}),
    }
    found = live_outcome(answers).as_json()
    assert found["makespan_s"] is None
    assert found["apps"]["a"] == {"start_s": 0.0, "end_s": None, "delay": 1.0}
    assert found["apps"]["b"] == {"start_s": 0.0, "end_s": 3.0, "delay": None}
    assert found["apps"]["c"]["end_s"] == 100.0
    json.dumps(found, allow_nan=False)
    assert list(what_is_missing(answers)) == [
        "a runs: 2 of its 2 tasks are done so far",
        "a: tasks whose delay is not known: 1 of 2, "
        "for nobody knew how long it takes alone, or it was not measured",
        "b cancelled: its owner ended it",
        "c: its 7 tasks are not kept any more, as others ended since",
    ]


def test_the_command_asks_for_all_and_writes_them(master, tmp_path):
    out = tmp_path / "out.json"
    result = CliRunner().invoke(root, ["tasks", "report", "--json", str(out)])
    assert result.exit_code == 0, result.exception
    found = json.loads(out.read_text())
    assert set(found["apps"]) == {"a", "b"}
    assert [task["start_s"] for task in found["tasks"]] == [0, 1, 2, 3, 4]
    assert [document["first"] for verb, document in master.asked if verb == "tasks-outcome"] == [0, 2, 4, 0]


def test_the_command_asks_for_those_that_are_named(master, tmp_path):
    out = tmp_path / "out.json"
    assert CliRunner().invoke(root, ["tasks", "report", "a", "--json", str(out)]).exit_code == 0
    assert set(json.loads(out.read_text())["apps"]) == {"a"}
    wrong = CliRunner().invoke(root, ["tasks", "report", "nobody", "--json", str(out)])
    assert isinstance(wrong.exception, RejectedError)
    master.apps.clear()
    nothing = CliRunner().invoke(root, ["tasks", "report", "--json", str(out)])
    assert isinstance(nothing.exception, ConfigError)


def test_the_logs_of_all_attempts_are_printed_as_text(master, monkeypatch):
    framed = "Container: c\nLogType:a.log\nLogContents:\nfirst\nsecond \x1b[2J\nEnd of LogType:a.log\n"
    monkeypatch.setattr("yarn_accel.launch.logs_cli.get_text", lambda url, max_bytes, access: framed)
    result = CliRunner().invoke(root, ["logs", "a/0"])
    assert result.exit_code == 0, result.exception
    assert ("tasks-logs", {"task": "a/0"}) in master.asked
    first, *lines, second = result.stdout.splitlines()
    assert (first, second) == ("==> attempt_n1 on n1 <==", "==> attempt_n2 on n2 <==")
    assert lines[0] == "first"
    assert "\x1b" not in lines[1]
    assert result.stderr == "note: the web address of its node is not known\n"


KEY = "task_1_0001_m_000003/17/lu"


def framed_log(*lines):
    return "\n".join(["Container: c", "LogType:stderr", "LogContents:", *lines, "End of LogType:stderr"])


def show_logs(monkeypatch, logs):
    """NodeManagers that show these logs, by address."""

    def get(url, max_bytes, access):
        if url not in logs:
            raise RejectedError("http-404", f"{url} answers 404")
        return logs[url]

    monkeypatch.setattr("yarn_accel.launch.logs_cli.get_text", get)


def test_what_servers_say_of_a_request_is_printed_with_container_and_node(master, monkeypatch):
    failed, other = f"request {KEY} (lu, tenant ann) failed: singular \x1b[2J", f"request {KEY}0 (lu) failed"
    lost = f"request {KEY} (lu, tenant ann) lost its worker process"
    there = {
        "http://n1:8042/container_1/stderr": framed_log("nothing of it"),
        "http://n2:8042/container_2/stderr": framed_log("begin", failed, other),
        "http://n2:8042/container_2/stderr.1": framed_log(lost),
    }
    show_logs(monkeypatch, there)
    result = CliRunner().invoke(root, ["logs", KEY])
    assert result.exit_code == 0, result.exception
    head, *lines = result.stdout.splitlines()
    assert head == "==> container_2 on n2 <=="
    assert lines == [lost, failed.replace("\x1b", "?")]
    assert result.stderr == "", "older logs that are not there are no news"


def test_of_an_application_that_has_ended_the_aggregated_logs_are_searched(tmp_path, monkeypatch):
    (tmp_path / "accounting").mkdir()
    containers = ("container_e3_1_0001_01_000002", "container_e3_1_0002_01_000003")
    for name in (*containers, "application_1_0001-01"):
        (tmp_path / "accounting" / f"{name}-0000.jsonl").touch()
    settings = tmp_path / "launch.yaml"
    settings.write_text(f"environment: {{staging_uri: 'file://{tmp_path}'}}")
    monkeypatch.setattr(RmClient, "load", staticmethod(lambda: fake.rm_client(tmp_path)))
    line = f"request {KEY} (lu, tenant ann) failed: singular"
    web = "http://localhost:19888/ws/v1/history/containerlogs"
    framed = framed_log(line).replace("Container: c", f"Container: {containers[0]} on w1_8041", 1)
    show_logs(monkeypatch, {f"{web}/{containers[0]}/stderr": framed})
    result = CliRunner().invoke(root, ["logs", KEY, "--config", str(settings)])
    assert result.exit_code == 0, result.exception
    assert result.stdout.splitlines() == [f"==> {containers[0]} on w1 <==", line]
    assert result.stderr == ""
    other = CliRunner().invoke(
        root, ["logs", KEY, "--config", str(settings), "--application", "application_1_0002"]
    )
    assert isinstance(other.exception, UnavailableError)
    assert "application_1_0002 does not run" in str(other.exception)


def test_an_id_that_nobody_knows_is_one_error(master, monkeypatch):
    show_logs(monkeypatch, {"http://n1:8042/container_1/stderr": framed_log()})
    result = CliRunner().invoke(root, ["logs", "b/0"])
    assert isinstance(result.exception, ConfigError)
    assert "'b/0': no task of this name is known, and the logs of 2 pipeline servers" in str(result.exception)
    assert result.stderr == "note: http://n2:8042/container_2/stderr answers 404\n"


def test_the_command_writes_a_folder(master, tmp_path):
    result = CliRunner().invoke(root, ["tasks", "report", "a", "--out", str(tmp_path / "report")])
    assert result.exit_code == 0, result.exception
    assert result.stdout == f"{tmp_path}/report/index.html\n"
    assert set(json.loads((tmp_path / "report" / "outcome.json").read_text())["apps"]) == {"a"}
    assert ("tasks-use", {"nodes": ["n1"]}) in master.asked
    assert CliRunner().invoke(root, ["tasks", "report", "a"]).exit_code == 2


# The use of nodes.


def use_document():
    """I/O of node n1 from 10 s before the first submission on, with a gap."""
    about = {"node": "n1", "n_cores": 4, "n_gpus": 2, "bandwidth_bytes_per_s": 1e8}
    series = {"cores": [], "gpus": [], "bytes_per_s": [1.0, 2.0, 3.0, None, 5.0]}
    return {"step_s": 5.0, "workers": {"n1": {**about, **series, "from_at": T - 10}}}


def test_the_use_of_nodes_comes_from_tasks_and_samples():
    answers = {"a": answer([row("0", 1, 9), row("1", 2, 12)])}
    report = live_report(answers, use_document(), {"knn": [BELIEF], "other": []})
    assert report.places == {"n1": NodePlace(4, 2, 1e8)}
    assert list(report.figures) == ["knn"]
    found = [
        (each.at_s, each.n_cores_held, each.n_gpus_held, each.n_gpus_computing, each.io_bytes_per_s)
        for each in report.outcome.use["n1"]
    ]
    # Each task computes in its last two seconds.
    assert found[:4] == [
        (0.0, 0, 0, 0, 3.0),
        (1.0, 1, 1, 0, 3.0),
        (2.0, 2, 2, 0, 3.0),
        (5.0, 2, 2, 0, pytest.approx(math.nan, nan_ok=True)),
    ]
    assert found[4:8] == [
        (7.0, 2, 2, 1, pytest.approx(math.nan, nan_ok=True)),
        (9.0, 1, 1, 0, pytest.approx(math.nan, nan_ok=True)),
        (10.0, 1, 1, 1, 5.0),
        (12.0, 0, 0, 0, 5.0),
    ]
    assert report_page(report)


def test_a_master_that_has_no_samples_any_more_is_no_obstacle(tmp_path):
    report = live_report({"a": answer([row("0", 1, 9)])}, {"step_s": 5.0, "workers": {}}, {})
    assert math.isnan(report.outcome.use["n1"][0].io_bytes_per_s)
    assert write_report(report, tmp_path) == []


# DAGs.


def dag_task(name, start, end, node="n1"):
    """A task that is done, as the master gives it."""
    values = dict.fromkeys(EndedTask._fields)
    values |= {"name": name, "node": node, "form": "cpu", "started_at": start, "ended_at": end, "reason": "r"}
    return list(values.values())


def dag_answer(begun_at, rows, **more):
    """What the master says of one DAG."""
    dag = {"class": "high", "sd": 0.5, "own_makespan_s": 2.0, "n_moved": 2, "n_interrupted": 1, "lost_s": 0.5}
    return {"policy": "mps", "state": "done", "begun_at": begun_at, "rows": rows, "dag": dag, **more}


ANSWERS = {
    "a": dag_answer(
        100.0,
        [dag_task("x", 100, 102), dag_task("y", 101, 104)],
        slowdowns=[(99.0, 9.0), (100.5, 1.0), (102.5, 0.75), (104.5, 0.1)],
    ),
    "b": dag_answer(101.0, [dag_task("x", 102, 105, "n2")], slowdowns=[]),
    "c": dag_answer(101.0, [dag_task("x", 102, 105)], state="running"),
}


def test_slowdowns_are_those_that_were_noted_and_end_exactly():
    outcome = live_dag_outcome(ANSWERS)
    assert outcome.slowdowns == {"a": [(0.5, 1.0), (2.5, 0.75), (4.0, 0.5)], "b": [(5.0, 0.5)]}
    assert {each.node for each in outcome.tasks} == {"n1#0", "n1#1", "n2#0"}
    assert (outcome.moved, outcome.fairness.unfairness) == (4, 0)


def test_a_live_report_is_that_of_a_simulation(tmp_path):
    assert write_report(RunReport(live_dag_outcome(ANSWERS)), tmp_path) == []
    document = json.loads((tmp_path / "outcome.json").read_text())
    assert document["dags"]["b"] == {
        "arrival": 1.0,
        "end": 5.0,
        "makespan": 4.0,
        "own_makespan": 2.0,
        "sd": 0.5,
    }
    page = (tmp_path / "index.html").read_text()
    assert page.count("a/y on n1#1: 1 to 4 s; r") == 2
    assert "a: SD 0.500 at 4 s" in page
    assert (tmp_path / "gantt.png").stat().st_size
    assert (tmp_path / "slowdowns.png").stat().st_size


def test_without_a_dag_that_is_done():
    with pytest.raises(ConfigError, match="none of these is a DAG that is done"):
        live_dag_outcome({"c": ANSWERS["c"]})


def test_utilisation_is_that_of_the_machines_that_were_there():
    there = {"a": (10.0, 42.0), "b": (14.0, 50.0)}
    answers = {
        name: {
            **ANSWERS[name],
            "dag": {**ANSWERS[name]["dag"], "core_s_before": before, "core_s_after": after},
        }
        for name, (before, after) in there.items()
    }
    # Tasks ran for 8 s on three cores of eight, which were there for five seconds.
    assert live_dag_outcome(answers).utilisation == 8 / 40
    assert live_dag_outcome(ANSWERS).utilisation == 8 / 15

"""Functions as tasks of a real worker: in processes that stay, and whatever they do."""

from __future__ import annotations

import json
import os
import signal
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.conftest import WorkerSite
from tests.integration.worker.test_attempts import is_running, pid_in, until_gone
from yarn_accel.core.tasks.attempt_orders import AttemptOrder, FunctionCall
from yarn_accel.core.tasks.values import FormDemand
from yarn_accel.core.tasks.worker_messages import AttemptEnd, AttemptOutcome, Counter

pytestmark = pytest.mark.usefixtures("w1")

ROOT = Path(__file__).resolve().parents[3]
MODULE = "tests.integration.worker.task_functions"


def call(site: WorkerSite, name: str, arguments: Any = None, app: str = "", **more: Any) -> AttemptOrder:
    """An attempt that calls a function of `task_functions`, of its own application unless one is named."""
    function = FunctionCall(f"{MODULE}:{name}", json.dumps(arguments or {}))
    more.setdefault("environment", (("PYTHONPATH", str(ROOT)),))
    return site.task(output=False, function=function, app=app, **more)


def result(end: AttemptEnd) -> Any:
    assert end.outcome is AttemptOutcome.DONE, end
    return json.loads(end.result)


def run(site: WorkerSite, name: str, arguments: Any = None, app: str = "", **more: Any) -> Any:
    return result(site.master.run(call(site, name, arguments, app, **more)))


def failed(site: WorkerSite, name: str, arguments: Any = None, app: str = "", **more: Any) -> str:
    end = site.master.run(call(site, name, arguments, app, **more))
    assert end.outcome is AttemptOutcome.FAILED, end
    assert end.result == ""
    return end.error


def test_arguments_come_by_name_or_in_order_and_the_result_is_json(site: WorkerSite) -> None:
    assert run(site, "echo", {"k": [1, "ä", None]}, "app") == {"k": [1, "ä", None]}
    assert run(site, "add", [1, 2, 3], "app") == 6
    assert run(site, "set_variable", app="app") is None


def test_a_process_serves_its_application_call_after_call(site: WorkerSite) -> None:
    orders = [call(site, "who", {"name": name}, "warm", environment=_own("1")) for name in "ab"]
    ends = [site.master.run(order) for order in orders]
    first, second = map(result, ends)
    assert first["pid"] == second["pid"]
    assert second["calls"] == ["a", "b"]
    assert [each["cwd"] for each in (first, second)] == [order.attempt for order in orders]
    assert [each["environ"]["mapreduce_task_attempt_id"] for each in (first, second)] == [
        order.attempt for order in orders
    ]
    assert first["files"] == ["tmp"]
    assert first["environ"]["CUDA_VISIBLE_DEVICES"] == ""
    assert first["environ"]["OMP_NUM_THREADS"] == "1"
    assert first["secrets"] == []
    assert [each.counters for each in ends] == [(Counter("g", "calls", 1),)] * 2
    assert [site.log(order) for order in orders] == ["here is a\nprinted\n", "here is b\nprinted\n"]


def _own(value: str) -> tuple[tuple[str, str], ...]:
    return (("MINE", value), ("PYTHONPATH", str(ROOT)))


def test_another_application_environment_demand_or_gpu_has_another_process(site: WorkerSite) -> None:
    same = {"app": "apart", "environment": _own("1")}
    pids = [
        run(site, "pid", **same),
        run(site, "pid", **{**same, "app": "other"}),
        run(site, "pid", **{**same, "environment": _own("2")}),
        run(site, "pid", **same, demand=FormDemand(2)),
        run(site, "pid", **same, demand=FormDemand(1, 1)),
    ]
    assert len(set(pids)) == len(pids)
    assert run(site, "who", **same, demand=FormDemand(1, 1))["environ"]["CUDA_VISIBLE_DEVICES"] == "0"


def test_what_a_call_changes_is_not_there_in_the_next_one(site: WorkerSite) -> None:
    before = run(site, "pid", app="clean")
    assert run(site, "set_variable", app="clean") is None
    after = run(site, "who", app="clean")
    assert (after["pid"], after["environ"]["LEFT"]) == (before, None)


def test_a_function_that_fails_says_why_and_its_process_goes_on(site: WorkerSite) -> None:
    before = run(site, "pid", app="fails")
    order = call(site, "fail", app="fails")
    end = site.master.run(order)
    assert (end.outcome, end.exit_status) == (AttemptOutcome.FAILED, None)
    assert end.error == f"{MODULE}:fail: ValueError: no such tile at all [31m"
    assert "Traceback" in site.log(order)
    assert failed(site, "leave", app="fails").endswith("leave: SystemExit: 3")
    assert failed(site, "no_such", app="fails").endswith("has no attribute 'no_such'")
    assert failed(site, "add", {"x": 1}, "fails").endswith("unexpected keyword argument 'x'")
    assert run(site, "pid", app="fails") == before


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nothing_json", "its result cannot be given as JSON: Object of type set is not JSON serializable"),
        ("not_a_number", "its result cannot be given as JSON: Out of range float values"),
        ("nested", "its result cannot be given as JSON: maximum recursion depth"),
        ("long_result", "its result is longer than 16384 characters of JSON: use files"),
    ],
)
def test_a_result_that_is_too_long_or_no_json_fails_the_attempt(
    site: WorkerSite, name: str, error: str
) -> None:
    assert error in failed(site, name, app="results")


def test_a_process_that_dies_ends_its_attempt_alone(site: WorkerSite) -> None:
    before = run(site, "pid", app="dies")
    assert (
        failed(site, "die", app="dies") == "the function's process ended (exit status 9) before it returned"
    )
    after = run(site, "pid", app="dies")
    assert before != after
    assert "ended (signal 11) before it returned" in failed(site, "crash", app="dies")
    assert "before it returned" in failed(site, "close_all", app="dies")
    assert run(site, "add", [1], "dies") == 1


def test_what_is_killed_while_it_is_idle_is_replaced(site: WorkerSite) -> None:
    before = run(site, "pid", app="idle")
    os.kill(before, signal.SIGKILL)
    assert run(site, "pid", app="idle") != before


def test_limits_hold_for_functions(site: WorkerSite) -> None:
    end = site.master.run(call(site, "hang", app="limits", time_limit_s=0.5))
    assert (end.outcome, end.error) == (AttemptOutcome.TIMED_OUT, "it did not end within its 0.5 s")
    end = site.master.run(call(site, "hang", app="limits", silence_limit_s=0.5))
    assert end.outcome is AttemptOutcome.TIMED_OUT
    end = site.master.run(call(site, "stop_itself", app="limits", time_limit_s=0.5))
    assert end.outcome is AttemptOutcome.TIMED_OUT
    end = site.master.run(call(site, "print_always", app="limits", time_limit_s=0.5))
    assert end.outcome is AttemptOutcome.TIMED_OUT
    end = site.master.run(call(site, "huge_result", app="limits", demand=FormDemand(1, 0, 200_000_000)))
    assert end.outcome is AttemptOutcome.OUT_OF_MEMORY
    assert run(site, "add", [1], "limits") == 1


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"\xff\xff\xff\xff", "answered with 4294967295 bytes"),
        (b"\0\0\0\x02[]", "answered with what is no object in JSON"),
        (b"\0\0\0\x04" + b"[[[[", "answered with what is no object in JSON"),
        (b"\0\0\0\x1a" + b'{"call": 1, "result": 5.5}', "the result is no text"),
        (b"\0\0\0\x1a" + b'{"call": 1, "result": "{"}', "the result is no JSON"),
    ],
)
def test_a_false_answer_fails_the_attempt_alone(site: WorkerSite, sent: bytes, error: str) -> None:
    app = f"false-{sent.hex()[:60]}"
    assert error in failed(site, "lie", {"text": sent.hex()}, app, time_limit_s=60.0)
    assert run(site, "add", [1], app) == 1


def test_what_a_function_leaves_is_ended_with_its_call(site: WorkerSite, tmp_path: Path) -> None:
    child = run(site, "fork_and_return", {"path": str(tmp_path / "daemon")}, "forks")
    until_gone(child, pid_in(tmp_path / "daemon"))
    assert "exit status 0" in failed(site, "fork_and_exit", {"path": str(tmp_path / "other")}, "forks")
    assert not is_running(pid_in(tmp_path / "other"))
    assert run(site, "return_twice", app="forks") == "parent"
    first = run(site, "leave_thread", app="forks")
    assert run(site, "pid", app="forks") != first


def test_a_module_comes_from_an_archive_that_is_never_extracted(site: WorkerSite, tmp_path: Path) -> None:
    archive = tmp_path / "code.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("inner/__init__.py", "")
        file.writestr("inner/tiles.py", "def where():\n    return __file__\n")
        file.writestr("../../escaped", "x")
        file.writestr("/tmp/escaped", "x")
    function = FunctionCall("inner.tiles:where", "{}", ("code.zip",))
    order = site.task(output=False, function=function, files=(("code.zip", f"file://{archive}"),))
    where = result(site.master.run(order))
    assert where.endswith("code.zip/inner/tiles.py")
    assert not [path for path in site.folder.rglob("escaped")]
    bad = tmp_path / "bad.zip"
    bad.write_text("no zip")
    function = FunctionCall("inner.tiles:where", "{}", ("bad.zip",))
    order = site.task(output=False, function=function, files=(("bad.zip", f"file://{bad}"),))
    assert "bad.zip is no zip file to import from" in site.master.run(order).error

"""A report runs what is left, notes what fails, and goes on where it was killed, with a fake benchmark."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks import ROOT
from benchmarks.papers.report import command, running
from benchmarks.papers.report.running import (
    Experiment,
    Outcome,
    Result,
    Runner,
    State,
    check_logs,
    left_of,
    locked,
    plan_of,
)
from benchmarks.registry import RECORDINGS, Recording
from benchmarks.result import current_commit
from yarn_accel.errors import ConfigError, StartupError

LIMIT_S = 120.0
FAKE = """
import json, os, signal, sys, time
from pathlib import Path
target, how, commit = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
begun = target.with_suffix(".begun")
begun.write_text(begun.read_text() + " ".join(sys.argv[4:]) + "|" if begun.exists() else "|")
def write(state):
    document = {"name": target.stem, "commit": commit, "machine": {}, "started_at": "2026-01-02T03:04:05",
                "wall_s": 0.1, "is_quick": False, "state": state, "rows": []}
    target.write_text(json.dumps(document))
def down(*_):
    target.with_suffix(".down").write_text("taken down")
    sys.exit(130)
signal.signal(signal.SIGTERM, down)
write("running")
if how == "hang":
    target.with_suffix(".pid").write_text(str(os.getpid()))
    time.sleep(600)
if how == "step":
    print("earlier")
    print("  mixes 3 of 8", flush=True)
    while not target.with_suffix(".heard").exists():
        time.sleep(0.02)
if how == "fail":
    print("benchmarks: no disk is left; free some")
    sys.exit(3)
write("complete")
"""
DRIVER = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from tests.unit.benchmarks.test_report_run import go
go(Path(sys.argv[1]), sys.argv[2:])
"""


def experiment(stem: str, benchmark: str = "soak", estimate_s: float = 1.0) -> Experiment:
    return Experiment(stem, Recording(benchmark), None, estimate_s)


def fake(hows: dict[str, str]) -> Callable[[Experiment, Path], list[str]]:
    def words(each: Experiment, target: Path) -> list[str]:
        return [sys.executable, "-c", FAKE, str(target), hows.get(each.stem, "end"), current_commit()]

    return words


def go(folder: Path, hanging: list[str], limit_s: float = LIMIT_S) -> State:
    """One report of two experiments."""
    todo = [experiment("first"), experiment("second", "grid")]
    with locked(folder / "lock", LIMIT_S) as lock:
        state = State.read(folder / "state.json")
        runner = Runner(folder, state, lock, fake(dict.fromkeys(hanging, "hang")), limit_s)
        runner.run(left_of(todo, runner.result, is_quick=False, mode=""), Console(quiet=True))
    return state


def wait_for(path: Path) -> str:
    until_s = time.monotonic() + LIMIT_S
    while not path.exists() or not path.read_text():
        assert time.monotonic() < until_s, f"{path} never appeared"
        time.sleep(0.02)
    return path.read_text()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """The folder of a report that was killed while its second experiment ran."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path), "second"])
    try:
        wait_for(tmp_path / "results" / "second.pid")
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait(LIMIT_S)
    return tmp_path


def test_what_was_killed_is_taken_down_and_the_next_report_goes_on(killed: Path) -> None:
    results = killed / "results"
    assert State.read(killed / "state.json").running == "second"
    state = go(killed, [])
    assert (results / "second.down").read_text() == "taken down"
    assert state.running == ""
    assert {name: each.why for name, each in state.outcomes.items()} == {"first": "", "second": ""}
    # The first was not run again; the second was, and goes on from its file, as its benchmark can.
    assert (results / "first.begun").read_text() == "|"
    assert (results / "second.begun").read_text() == "|--resume|"
    go(killed, [])
    assert (results / "second.begun").read_text() == "|--resume|"


def test_what_fails_is_noted_and_the_rest_goes_on(tmp_path: Path) -> None:
    todo = [experiment("first"), experiment("second")]
    with locked(tmp_path / "lock", 0) as lock:
        state = State(tmp_path / "state.json")
        Runner(tmp_path, state, lock, fake({"first": "fail"}), LIMIT_S).run(todo, Console(quiet=True))
    assert state.outcomes["first"].why == "exit code 3: no disk is left; free some (logs/first.txt)"
    assert state.outcomes["second"].why == ""
    assert State.read(tmp_path / "state.json").outcomes == state.outcomes


@pytest.mark.parametrize(
    ("benchmark", "changed", "begun"),
    [
        ("grid", {}, "|--resume|"),
        ("grid", {"commit": "0123456789ab"}, "||"),
        ("grid", {"is_quick": True}, "||"),
        ("soak", {}, "||"),
    ],
)
def test_what_failed_goes_on_from_its_file_where_it_can(
    tmp_path: Path, benchmark: str, changed: dict[str, object], begun: str
) -> None:
    """Such as one whose time was over; what another version or form left is no part of it."""
    todo = [experiment("first", benchmark)]
    for how in ("fail", "end"):
        with locked(tmp_path / "lock", 0) as lock:
            runner = Runner(
                tmp_path, State.read(tmp_path / "state.json"), lock, fake({"first": how}), LIMIT_S
            )
            runner.run(todo, Console(quiet=True))
        path = runner.result("first")
        path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    assert (tmp_path / "results" / "first.begun").read_text() == begun


def test_nothing_is_begun_that_would_not_end_in_time(tmp_path: Path) -> None:
    todo = [experiment("first", estimate_s=1000.0), experiment("second")]
    with locked(tmp_path / "lock", 0) as lock:
        state = State(tmp_path / "state.json")
        Runner(tmp_path, state, lock, fake({}), 900.0).run(todo, Console(quiet=True))
    assert state.outcomes["first"] == Outcome(0.0, "15 min were over; the same command runs what is left")
    assert state.outcomes["second"].why == ""


@pytest.mark.parametrize(
    ("is_terminal", "shown"),
    [
        (False, "\\nfirst: \\d+ s of about 3 min: mixes 3 of 8\\n"),
        (True, r"first \(1 of 1\): mixes 3 of 8 .* left"),
    ],
)
def test_an_experiment_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, shown: str
) -> None:
    monkeypatch.setattr(running, "_SAY_S", 0.0)

    class Heard(io.StringIO):
        def write(self, text: str) -> int:
            if "mixes 3 of 8" in text:
                (tmp_path / "results" / "first.heard").touch()
            return super().write(text)

    console = Console(file=Heard(), width=160, force_terminal=is_terminal)
    with locked(tmp_path / "lock", 0) as lock:
        runner = Runner(tmp_path, State(tmp_path / "state.json"), lock, fake({"first": "step"}), 900.0)
        runner.run([experiment("first", estimate_s=200.0)], console)
    assert re.search(shown, console.file.getvalue())
    assert runner.state.outcomes["first"].why == ""


def test_a_stopped_report_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stopped(options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_made", stopped)
    found = CliRunner().invoke(command.report, ["--quick", "--fresh", "--out", str(tmp_path)])
    assert found.exit_code == 130
    assert f"what was measured is kept in {tmp_path}/results" in found.output
    assert "the same command goes on there: python -m benchmarks report --quick --fresh" in found.output


def test_two_reports_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "lock", 0),
        pytest.raises(StartupError, match="another report writes to"),
        locked(tmp_path / "lock", 0),
    ):
        pass


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"running": "", "outcomes": {"a": {"wall_s": "x"}}}'])
def test_a_state_that_is_none_is_an_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    assert State.read(tmp_path / "state.json").outcomes == {}


def recorded(why_stale: str, **more: Any) -> Result:
    return Result({"rows": [], **more}, why_stale, is_taken=True)


def test_what_is_current_is_taken_and_what_is_stale_is_run() -> None:
    stems = ["mps_paper", "hdas_paper", "torque-real", "grid", "images"]
    known = {"mps_paper": recorded(""), "hdas_paper": recorded("old")}
    plan = plan_of(stems, known, [], is_quick=False)
    assert [(each.stem, each.estimate_s) for each in plan.todo] == [
        ("images", RECORDINGS["images"].full_s),
        ("hdas_paper", RECORDINGS["hdas_paper"].full_s),
    ]
    assert plan.lacks["torque-real"].startswith("needs a real Torque")
    assert plan.lacks["grid"].endswith("--log CTC-SP2-1996-3.1-cln.swf.gz")


def test_first_is_what_has_no_figures_and_then_what_takes_longest() -> None:
    stems = ["hdas_paper", "pipeline-small", "images", "hdas_live", "mps_live"]
    known = {stem: recorded("") for stem in ("hdas_paper", "images", "hdas_live")}
    plan = plan_of(stems, known, [], is_quick=False, is_fresh=True)
    assert [each.stem for each in plan.todo] == [
        "mps_live", "pipeline-small", "hdas_live", "images", "hdas_paper"
    ]  # fmt: skip


def test_the_quick_form_leaves_out_what_has_none_and_takes_a_log_that_is_given() -> None:
    log = Path("CTC-SP2-1996-3.1-cln.swf.gz")
    plan = plan_of(["images", "grid", "yarn_paper"], {}, [log], is_quick=True)
    assert plan.lacks == {"images": "left out of the quick form"}
    yarn, grid = plan.todo
    assert grid.words(Path("r.json"), is_quick=True, mode="docker") == [
        "grid", "--only", "scan", "--only", "experiment", "--quick", "--json", "r.json", "--log", str(log)
    ]  # fmt: skip
    assert yarn.words(Path("r.json"), is_quick=True, mode="docker")[-2:] == ["--mode", "docker"]


def test_a_log_that_nothing_reads_is_refused() -> None:
    check_logs([Path("LANL-CM5-1994-4.1-cln.swf")])
    with pytest.raises(ConfigError, match="no experiment of the report reads it"):
        check_logs([Path("other.swf")])


def test_the_whole_takes_no_longer_than_it_may() -> None:
    logs = [Path(f"{each.log}.gz") for each in RECORDINGS.values() if each.log]
    stems = command.names(command.PAPERS)
    for is_quick, limit_min in ((True, 15), (False, 155)):
        plan = plan_of(stems, {}, logs, is_quick=is_quick)
        assert sum(each.estimate_s for each in plan.todo) <= 60 * limit_min


def test_a_result_of_another_form_or_mode_or_version_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    document = {
        "commit": current_commit(),
        "state": "complete",
        "is_quick": False,
        "machine": {"cluster_mode": ""},
    }
    todo = [experiment("r", "yarn_paper")]

    def is_left(is_quick: bool = False, mode: str = "", **changed: Any) -> bool:
        path.write_text(json.dumps({**document, **changed}))
        return bool(left_of(todo, lambda _: path, is_quick=is_quick, mode=mode))

    assert not is_left()
    assert is_left(is_quick=True)
    assert is_left(mode="docker")
    assert is_left(commit="0123456789ab")
    assert is_left(state="failed")
    assert is_left(machine=None)


def test_a_mode_that_no_cluster_has_is_one_error_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "NetworkMode", [command.NetworkMode.NETNS])
    found = CliRunner().invoke(command.report, ["--mode", "docker", "--no-run"])
    assert found.exit_code == 2
    assert "--mode docker: a cluster of this version cannot be started so" in found.output
    assert "netns" in found.output

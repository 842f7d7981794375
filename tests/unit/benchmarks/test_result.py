"""A benchmark row states the median, the spread and an honest verdict; the JSON has the agreed shape."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.docker_overhead import compared
from benchmarks.registry import BENCHMARKS, module_of
from benchmarks.result import Report, earlier_wall_s, measured, not_measured, observed, ratio
from yarn_accel.errors import JobError


def test_a_row_is_the_median_with_its_spread_and_its_verdict() -> None:
    row = measured("start", [3.0, 1.0, 2.0], "s", goal="<= 2")
    assert (row.value, row.n, row.spread, row.ok) == (2.0, 3, (1.0, 3.0), True)
    assert measured("rate", [1.0, 2.0, 3.0], "x", goal=">= 2.5").ok is False
    assert observed("peak", 7.0, "GiB").ok is None
    row = ratio("rate", [1.0, 2.0, 9.0], [2.0, 2.0, 1.0], goal=">= 0.9")
    assert (row.value, row.n, row.spread, row.ok) == (1.0, 3, (0.5, 9.0), True)
    row = not_measured("GPU", "no device")
    assert (row.n, row.goal, row.ok, row.note) == (0, "", None, "not measured: no device")


def test_rows_are_in_the_file_as_soon_as_they_are_taken_and_the_json_has_the_agreed_shape(
    tmp_path: Path,
) -> None:
    path = tmp_path / "deep" / "r.json"
    report = Report("demo", path=path)
    report.setting["cores_awake"] = True
    report.add([observed("peak", 7.0, "GiB")])
    document = json.loads(path.read_text())
    names = "name", "commit", "machine", "started_at", "wall_s", "is_quick", "state", "rows"
    assert tuple(document) == names
    assert (document["wall_s"] >= 0, document["state"]) == (True, "running")
    names = "what", "value", "unit", "n", "spread", "goal", "ok", "note"
    assert [tuple(row) for row in document["rows"]] == [names]
    assert document["machine"]["cores_awake"] is True
    assert document["machine"]["cores"] >= 1
    report.series = {"at_s": [1.0]}
    report.end("complete")
    document = json.loads(path.read_text())
    assert (document["state"], document["series"]) == ("complete", {"at_s": [1.0]})


class _Benchmark:
    """Takes one row, then ends with the given error."""

    def __init__(self, ending: Callable[[], None]) -> None:
        self._ending = ending
        self.is_down = False

    def run(self, quick: bool, say: Callable[[str], None], report: Report) -> None:
        try:
            report.add([observed("first", 1.0, "s")])
            self._ending()
            report.add([observed("second", 1.0, "s")])
        finally:
            self.is_down = True


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("ending", "state", "n_rows", "exit_code"),
    [
        (lambda: None, "complete", 2, 0),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "interrupted", 1, 130),
        (lambda: os.kill(os.getpid(), signal.SIGINT), "interrupted", 1, 130),
        (lambda: _raise(JobError("broken")), "failed", 1, JobError("").exit_code),
    ],
    ids=["to the end", "SIGTERM", "SIGINT", "failure"],
)
def test_what_was_measured_is_kept_however_a_run_ends(
    ending: Callable[[], None],
    state: str,
    n_rows: int,
    exit_code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    benchmark = _Benchmark(ending)
    monkeypatch.setattr("benchmarks.__main__.load", lambda name: benchmark)
    before = signal.getsignal(signal.SIGTERM)
    # A shell has its background jobs ignore SIGINT, and they all inherit that.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = CliRunner().invoke(main, ["images", "--json", str(tmp_path / "r.json")])
    finally:
        signal.signal(signal.SIGINT, inherited)
    document = json.loads((tmp_path / "r.json").read_text())
    assert (document["state"], len(document["rows"])) == (state, n_rows)
    assert result.exit_code == exit_code
    assert "first" in result.output
    assert benchmark.is_down
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["images", "--cores-may-sleep"], "only for pipeline"),
        (["images", "--minutes", "3"], "only for gpu, hdas_live, mps_live"),
        (["pipeline", "--resume", "--json", "x.json"], "only for grid, hdas_live, mps_live, yarn_paper, and"),
        (["yarn_paper", "--resume"], "and with --json"),
    ],
)
def test_an_option_that_a_benchmark_does_not_take_is_refused(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, said in " ".join(result.output.split())) == (2, True), result.output


def test_without_a_name_they_are_listed_and_each_is_there() -> None:
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 0
    assert all(name in result.output and find_spec(module_of(name)) for name in BENCHMARKS)


def test_a_resumed_run_adds_to_what_those_before_it_took(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert earlier_wall_s(path) == 0
    path.write_text('{"wall_s": 100.0}')
    Report("demo", path=path, earlier_s=earlier_wall_s(path)).save()
    assert earlier_wall_s(path) >= 100
    for text in ("", "[]", "{}", '{"wall_s": null}'):
        path.write_text(text)
        assert earlier_wall_s(path) == 0


# ---- a result beside another


def test_each_figure_of_both_is_divided() -> None:
    base = [
        measured("start", [10.0, 12.0], "s"),
        measured("rate", [400.0], "MB/s"),
        measured("none", [0.0], "s"),
    ]
    other = [measured("start", [22.0], "s"), not_measured("rate", "no"), measured("none", [1.0], "s")]
    (row,) = compared(base, other)
    assert (row.what, row.value, row.unit) == ("start, docker / netns", 2.0, "x")

"""The command ``python -m benchmarks report``."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks import RESULTS, ROOT, tables
from benchmarks.papers.report.claims import PAPERS, Verdict
from benchmarks.papers.report.page import (
    JudgedClaim,
    counts,
    document_of,
    draw_beside,
    judged_claims,
    library_versions,
    page_of,
    small_png,
)
from benchmarks.papers.report.running import (
    Experiment,
    Plan,
    Result,
    Runner,
    State,
    check_logs,
    left_of,
    locked,
    names,
    plan_of,
    read_result,
    recorded_results,
    time_text,
)
from benchmarks.registry import draw_result
from benchmarks.result import current_commit, machine_facts
from yarn_accel.errors import ConfigError
from yarn_accel.extras import errors_as_lines
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.testbed.plan import NetworkMode

_QUICK_LIMIT_S = 14 * 60.0
_LIMIT_S = 165 * 60.0
_WAIT_S = 200.0
"""For the benchmark of a killed report."""
_MODES = ("docker", "netns", "loopback")


@dataclass(frozen=True, slots=True)
class _Options:
    """What was asked for, as the command's options are named."""

    quick: bool
    only: tuple[str, ...]
    mode: str
    logs: tuple[Path, ...]
    fresh: bool
    no_run: bool
    out: Path

    @property
    def keys(self) -> list[str]:
        """Of the papers, in their order."""
        return [key for key in PAPERS if not self.only or key in self.only]

    @property
    def command(self) -> str:
        """The command without the folders of this machine."""
        flags = {"--quick": self.quick, "--fresh": self.fresh, "--no-run": self.no_run}
        words = ["python -m benchmarks report", *(name for name, is_given in flags.items() if is_given)]
        words += [f"--only {key}" for key in self.only] + ([f"--mode {self.mode}"] if self.mode else [])
        return " ".join(words + [f"--log {path.name}" for path in self.logs])


def check_mode(mode: str) -> None:
    """Refuse a mode that no cluster of this version has.

    Raises:
        ConfigError: it has not.
    """
    known = [each.value for each in NetworkMode]
    if mode and mode not in known:
        raise ConfigError(
            f"--mode {mode}: a cluster of this version cannot be started so",
            cure=f"give one of {', '.join(known)}, or none",
        )


def _results(
    stems: Sequence[str], plan: Plan, folder: Path, recorded: Mapping[str, Result]
) -> dict[str, Result]:
    """Those that this report measured; else the recorded ones, stale or not."""
    run = {each.stem for each in plan.todo}
    found: dict[str, Result] = {}
    for stem in stems:
        path = folder / "results" / f"{stem}.json"
        own = read_result(ROOT, path, is_taken=False) if stem in run else None
        if own is not None and own.document["rows"]:
            # A whole result of this version is what was asked for, in whichever form.
            is_whole = own.document.get("state") == "complete" and own.document["commit"] == current_commit()
            why = "" if is_whole else own.why_stale
            found[stem] = Result(own.document, why, is_taken=False)
        elif stem in recorded:
            found[stem] = recorded[stem]
    return found


def _reasons(plan: Plan, state: State) -> dict[str, str]:
    failed = {
        each.stem: state.outcomes[each.stem].why
        for each in plan.todo
        if each.stem in state.outcomes and state.outcomes[each.stem].why
    }
    return {**plan.lacks, **failed}


def _pictures(
    keys: Sequence[str], claims: Sequence[JudgedClaim], results: Mapping[str, Result], folder: Path
) -> dict[str, bytes]:
    drawn = [path for stem, result in results.items() for path in draw_result(stem, result.document, folder)]
    for key in keys:
        if key != "peers":
            own = draw_beside([each for each in claims if each.claim.paper == key], folder / f"{key}.png")
            drawn += [own] if own else []
    return {path.stem: small_png(path) for path in drawn}


def _tables(keys: Sequence[str], results: Mapping[str, Result]) -> dict[str, list[str]]:
    documents = {stem: each.document for stem, each in results.items()}
    found = {}
    for name in (name for key in keys for name in PAPERS[key].tables):
        # A quick or broken result lacks rows of a table; its claims stand in the table of claims.
        try:
            found[name] = tables.TABLES[name](documents)
        except (KeyError, IndexError, ValueError):
            continue
    return found


def _write(
    options: _Options, plan: Plan, state: State, recorded: Mapping[str, Result]
) -> tuple[Path, list[JudgedClaim]]:
    now = datetime.now(timezone.utc)
    facts = {
        "command": options.command,
        "commit": current_commit(),
        "machine": machine_facts(),
        "versions": library_versions(),
        "is_quick": options.quick,
        "mode": options.mode,
    }
    keys, folder = options.keys, options.out
    results = _results(names(keys), plan, folder, recorded)
    reasons = _reasons(plan, state)
    claims = judged_claims(keys, results, reasons)
    document = document_of(keys, claims, results, reasons, facts, now)
    pictures = _pictures(keys, claims, results, folder)
    page = page_of(document, claims, results, pictures, _tables(keys, results), now)
    write_atomic(folder / "report.json", json.dumps(document, indent=1) + "\n")
    write_atomic(folder / "report.html", page)
    return folder / "report.html", claims


def _summary(keys: Sequence[str], claims: Sequence[JudgedClaim]) -> Table:
    table = Table("paper", *(verdict.value for verdict in Verdict))
    for key in keys:
        table.add_row(key, *map(str, counts(claims, key)))
    return table


@click.command()
@click.option("--quick", is_flag=True, help="At most 15 minutes on two cores; the page says so.")
@click.option("--only", multiple=True, type=click.Choice(list(PAPERS)), help="Only this; may be repeated.")
@click.option(
    "--mode", default="", type=click.Choice(["", *_MODES]), help="Of the clusters that are started."
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A log of the Parallel Workloads Archive, under its name there; may be repeated.",
)
@click.option("--fresh", is_flag=True, help="Run also what is recorded and current.")
@click.option("--no-run", is_flag=True, help="Run nothing: a page of what is recorded, stale or not.")
@click.option(
    "--out", default="out/report", type=click.Path(path_type=Path, file_okay=False), show_default=True
)
def report(out: Path, **given: Any) -> None:
    """Repeat the experiments of five papers and the peers, on one page: claim, paper, ours, verdict.

    Results that are current are taken from benchmarks/results; the others are run. Stopped (Ctrl-C) or
    killed, it goes on where it was when it is given again, with --fresh, too. Writes report.html, report.json
    and the pictures.
    """
    options = _Options(out=out.resolve(), **given)
    try:
        with errors_as_lines("benchmarks"):
            page, claims = _made(options)
    except KeyboardInterrupt:
        kept = f"what was measured is kept in {options.out / 'results'}"
        click.echo(f"stopped: {kept}, and the same command goes on there: {options.command}", err=True)
        sys.exit(128 + signal.SIGINT)
    Console().print(_summary(options.keys, claims))
    click.echo(page)


def _made(options: _Options) -> tuple[Path, list[JudgedClaim]]:
    """Run what is to be run, and write the page."""
    check_mode(options.mode)
    check_logs(options.logs)
    stems = names(options.keys)
    recorded = recorded_results(RESULTS, stems)
    plan = plan_of(stems, recorded, options.logs, is_quick=options.quick, is_fresh=options.fresh)
    if options.no_run:
        plan = Plan((), {each.stem: "not run: --no-run" for each in plan.todo} | dict(plan.lacks))
    with locked(options.out / "lock", _WAIT_S) as lock:
        state = State.read(options.out / "state.json")
        limit_s = _QUICK_LIMIT_S if options.quick else _LIMIT_S

        def command(each: Experiment, target: Path) -> list[str]:
            words = each.words(target, is_quick=options.quick, mode=options.mode)
            return [sys.executable, "-m", "benchmarks", *words]

        _run(plan, Runner(options.out, state, lock, command, limit_s), options, Console(stderr=True))
        return _write(options, plan, state, {} if options.fresh else recorded)


def _run(plan: Plan, runner: Runner, options: _Options, console: Console) -> None:
    left = left_of(plan.todo, runner.result, is_quick=options.quick, mode=options.mode)
    n_done = len(plan.todo) - len(left)
    if n_done:
        said = f"{n_done} of {len(plan.todo)} experiments are measured already in {runner.folder}"
        console.print(said, highlight=False)
    if left:
        whole_s = sum(each.estimate_s for each in left)
        console.print(f"{len(left)} experiments, about {time_text(whole_s)}", highlight=False)
        runner.run(left, console)

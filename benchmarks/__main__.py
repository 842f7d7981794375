"""``python -m benchmarks NAME [--quick] [--only SECTION] [--json FILE]``; without a name it lists them.

The JSON is written anew whenever there are more rows, so a run that is killed leaves what it had measured.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import RESULTS, ROOT
from benchmarks.registry import BENCHMARKS, RECORDINGS, draw_result, load, takers
from benchmarks.result import Report, Row, earlier_wall_s
from benchmarks.stale import shown, verdicts
from torque_sched.errors import TorqueSchedError
from yarn_accel.errors import AccelError
from yarn_accel.extras import errors_as_lines

_INTERRUPTED = 130
"""Exit code, as a shell has it for Ctrl-C."""


def _listing() -> Table:
    table = Table("benchmark", "measures")
    for name, summary in BENCHMARKS.items():
        table.add_row(name, summary)
    return table


def _stale() -> int:
    found = list(verdicts(ROOT))
    Console(width=None if sys.stdout.isatty() else 220).print(shown(found, RECORDINGS))
    return int(any(each.why and not each.needs for each in found))


def _pictures() -> int:
    for path in sorted(RESULTS.glob("*.json")):
        for picture in draw_result(path.stem, json.loads(path.read_bytes()), ROOT / "out" / "pictures"):
            click.echo(picture.relative_to(ROOT))
    return 0


def _first(name: str) -> int:
    raise click.UsageError(f"write `{name}` first: python -m benchmarks {name} --help")


_OTHERS: Mapping[str, Callable[[], int]] = {
    "stale": _stale,
    "pictures": _pictures,
    **{name: partial(_first, name) for name in ("record-stale", "report")},
}
"""What NAME may be beside a benchmark, and what gives its exit code."""


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _verdict(row: Row) -> str:
    return "" if row.ok is None else ("yes" if row.ok else "NO")


def _results(report: Report) -> Table:
    table = Table(title=f"benchmark {report.name}")
    for heading in ("what", "median", "unit", "n", "spread", "goal", "reached", "note"):
        table.add_column(heading, justify="right" if heading in {"median", "n"} else "left")
    for row in report.rows:
        spread = f"{_number(row.spread[0])} .. {_number(row.spread[1])}" if row.spread else ""
        value = _number(row.value) if row.n else ""
        what, note = escape(row.what), escape(row.note)
        table.add_row(what, value, row.unit, str(row.n), spread, row.goal, _verdict(row), note)
    return table


def _run(name: str, json_file: Path | None, quick: bool, options: Mapping[str, Any]) -> None:
    """Run one benchmark; what was measured when it ends early is shown and written, too."""
    progress = Console(stderr=True)
    report = Report(name, path=json_file, is_quick=quick)
    if options.get("resume") and json_file is not None:
        report.earlier_s = earlier_wall_s(json_file)
    if options.get("mode"):
        report.setting["cluster_mode"] = options["mode"]
    benchmark = load(name)
    state = "failed"
    try:
        with _interruptible():
            benchmark.run(quick, lambda line: _show(progress, line), report, **options)
        state = "complete"
    except KeyboardInterrupt:
        state = "interrupted"
        sys.exit(_INTERRUPTED)
    finally:
        report.end(state)
        out = Console(width=None if sys.stdout.isatty() else 160)  # a table in a file is not folded
        out.print(_results(report))
        if json_file is not None and hasattr(benchmark, "draw"):
            for picture in benchmark.draw(report, str(json_file.with_suffix(""))):
                _show(progress, f"drawn: {picture}")


def _can_run(name: str, path: Path | None, *, is_one_of_all: bool) -> bool:
    """Whether this machine has what it needs; one of `all` that lacks something is left out in one line.

    Raises:
        AccelError: it is the only one, and lacks something.
    """
    try:
        getattr(load(name), "require", lambda path: None)(path)
    except AccelError as error:
        if not is_one_of_all:
            raise
        click.echo(f"{name} is left out: {error}", err=True)
        return False
    return True


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends what is inside as Ctrl-C does, so that all is taken down; a second one is ignored."""

    def interrupt(signum: int, _: object) -> None:
        signal.signal(signum, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(progress: Console, line: str) -> None:
    progress.print(f"  {line}", style="dim", highlight=False, markup=False)


def _check_sections(name: str, only: Sequence[str]) -> None:
    known = getattr(load(name), "SECTIONS", ()) if name in BENCHMARKS else ()
    for section in only:
        if section not in known:
            listed = ", ".join(known) or "it has none"
            raise click.BadParameter(
                f"{name} has no section {section!r}; known: {listed}", param_hint="--only"
            )


def _special(name: str, json_file: Path | None, only: Sequence[str], **given: Any) -> dict[str, Any]:
    """The options that only some benchmarks know.

    Raises:
        BadParameter: this one does not know an option that is given.
    """
    options: dict[str, Any] = {"only": only} if only else {}
    for key, value in given.items():
        if not value:
            continue
        names = takers(key)
        if name not in names or (key == "resume" and json_file is None):
            with_json = ", and with --json" if key == "resume" else ""
            why = f"only for {', '.join(names)}{with_json}"
            raise click.BadParameter(why, param_hint=f"--{key.replace('_', '-')}")
        options[key] = value
    return options


@click.command()
@click.argument("name", required=False, type=click.Choice([*BENCHMARKS, "all", *_OTHERS]))
@click.option("--quick", is_flag=True, help="Under a minute, fewer repetitions; the rows say so.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here, too.")
@click.option("--only", multiple=True, metavar="SECTION", help="Run only this part; may be repeated.")
@click.option(
    "--cores-may-sleep", is_flag=True, help="`pipeline`: do not keep the cores awake for latency and echo."
)
@click.option(
    "--resume",
    is_flag=True,
    help="`yarn_paper`, `grid`, `hdas_live`, `mps_live`: keep what the JSON file has, run the rest.",
)
@click.option(
    "--mode", help="How the nodes of a cluster are kept apart: netns, docker, loopback (hadoop, images, ...)."
)
@click.option("--rounds", type=click.IntRange(min=1), help="`yarn_faults`: how often each fault happens.")
@click.option("--log", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="An SWF log.")
@click.option("--target", type=click.Choice(["cpu", "memory", "runtime"]), help="`predictor`: only this.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0.1),
    help="`gpu`: for its sections together (4.5); `hdas_live`, `mps_live`: begin no run later (56, 13.5).",
)
@click.option("--install-triton", is_flag=True, help="Install PyTriton for `pipeline` and do nothing else.")
def main(
    name: str | None,
    quick: bool,
    json_file: Path | None,
    only: tuple[str, ...],
    install_triton: bool,
    **special: Any,
) -> None:
    """Run one benchmark and print its figures; without NAME list them all.

    NAME `stale` runs nothing: it says which files of results are older than the code they measure, and ends
    with 1 if one of them could be recorded again on any machine. NAME `pictures` draws what is recorded, into
    out/pictures. NAMES `report` and `record-stale` stand first and have options of their own:
    `python -m benchmarks report --help`.
    """
    if name is None:
        Console().print(_listing())
        return
    if name in _OTHERS:
        sys.exit(_OTHERS[name]())
    _check_sections(name, only)
    if name == "predictor" and special["log"] is None:
        raise click.BadParameter(
            "give a log of the Parallel Workloads Archive, FILE.swf or FILE.swf.gz", param_hint="--log"
        )
    options = _special(name, json_file, only, **special)
    with errors_as_lines("benchmarks", TorqueSchedError):
        if install_triton:
            load("pipeline").install_triton(click.echo)
            return
        for each in BENCHMARKS if name == "all" else [name]:
            several = json_file and name == "all"
            path = (
                json_file.with_name(f"{json_file.stem}-{each}.json") if several and json_file else json_file
            )
            if _can_run(each, path, is_one_of_all=name == "all"):
                _run(each, path, quick, options)


if __name__ == "__main__":
    with errors_as_lines("benchmarks"):
        if sys.argv[1:2] == ["report"]:
            from benchmarks.papers.report.command import report

            report(sys.argv[2:], prog_name="python -m benchmarks report")
        if sys.argv[1:2] == ["record-stale"]:
            from benchmarks.record import record_stale

            record_stale(sys.argv[2:], prog_name="python -m benchmarks record-stale")
        main()

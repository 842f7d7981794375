"""``python -m benchmarks NAME [--quick] [--only SECTION] [--json FILE]``; without a name it lists them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.registry import BENCHMARKS, load
from benchmarks.result import Report, Row
from yarn_accel.errors import AccelError


def _listing() -> Table:
    table = Table("benchmark", "measures")
    for name, summary in BENCHMARKS.items():
        table.add_row(name, summary)
    return table


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
        table.add_row(row.what, value, row.unit, str(row.n), spread, row.goal, _verdict(row), row.note)
    return table


def _run(name: str, quick: bool, json_file: Path | None, only: Sequence[str]) -> None:
    progress = Console(stderr=True)
    out = Console(width=None if sys.stdout.isatty() else 160)  # a table in a file is not folded
    report = Report(name)
    benchmark = load(name)
    options = {"only": only} if only else {}
    report.rows.extend(benchmark.run(quick, lambda line: _show(progress, line), **options))
    out.print(_results(report))
    if json_file is not None:
        report.write(json_file)
        if hasattr(benchmark, "draw"):
            for picture in benchmark.draw(report, str(json_file.with_suffix(""))):
                _show(progress, f"drawn: {picture}")


def _show(progress: Console, line: str) -> None:
    progress.print(f"  {line}", style="dim", highlight=False)


def _check_sections(name: str, only: Sequence[str]) -> None:
    known = getattr(load(name), "SECTIONS", ()) if name in BENCHMARKS else ()
    for section in only:
        if section not in known:
            listed = ", ".join(known) or "it has none"
            raise click.BadParameter(
                f"{name} has no section {section!r}; known: {listed}", param_hint="--only"
            )


@click.command()
@click.argument("name", required=False, type=click.Choice([*BENCHMARKS, "all"]))
@click.option("--quick", is_flag=True, help="Under a minute, fewer repetitions; the rows say so.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here, too.")
@click.option("--only", multiple=True, metavar="SECTION", help="Run only this part; may be repeated.")
@click.option("--install-triton", is_flag=True, help="Install PyTriton for `pipeline` and do nothing else.")
def main(
    name: str | None, quick: bool, json_file: Path | None, only: tuple[str, ...], install_triton: bool
) -> None:
    """Run one benchmark and print its figures; without NAME list them all."""
    if name is None:
        Console().print(_listing())
        return
    _check_sections(name, only)
    try:
        if install_triton:
            load("pipeline").install_triton(click.echo)
            return
        for each in BENCHMARKS if name == "all" else [name]:
            several = json_file and name == "all"
            target = (
                json_file.with_name(f"{json_file.stem}-{each}.json") if several and json_file else json_file
            )
            _run(each, quick, target, only)
    except AccelError as error:
        click.echo(f"benchmarks: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

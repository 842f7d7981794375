"""``python -m benchmarks NAME [--quick] [--json FILE]``; without a name it lists them."""

from __future__ import annotations

import sys
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
        table.add_row(
            row.what, _number(row.value), row.unit, str(row.n), spread, row.goal, _verdict(row), row.note
        )
    return table


def _run(name: str, quick: bool, json_file: Path | None) -> None:
    progress = Console(stderr=True)
    out = Console(width=None if sys.stdout.isatty() else 160)  # a table in a file is not folded
    report = Report(name)
    report.rows.extend(
        load(name)(quick, lambda line: progress.print(f"  {line}", style="dim", highlight=False))
    )
    out.print(_results(report))
    if json_file is not None:
        report.write(json_file)


@click.command()
@click.argument("name", required=False, type=click.Choice([*BENCHMARKS, "all"]))
@click.option("--quick", is_flag=True, help="Under a minute, fewer repetitions; the rows say so.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here, too.")
def main(name: str | None, quick: bool, json_file: Path | None) -> None:
    """Run one benchmark and print its figures; without NAME list them all."""
    if name is None:
        Console().print(_listing())
        return
    try:
        for each in BENCHMARKS if name == "all" else [name]:
            several = json_file and name == "all"
            target = (
                json_file.with_name(f"{json_file.stem}-{each}.json") if several and json_file else json_file
            )
            _run(each, quick, target)
    except AccelError as error:
        click.echo(f"benchmarks: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

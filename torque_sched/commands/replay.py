"""``torque-sched replay``: decide every cycle of a journal again, and show what is decided otherwise."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from torque_sched.errors import TorqueSchedError


@click.command()
@click.argument("journal", type=click.Path(exists=True, path_type=Path))
@click.option("--cycle", "number", type=int, help="Only this cycle.")
@click.option("--keep", type=click.Path(path_type=Path), metavar="FILE",
              help="Write cycles that differ: a small journal for a test or a bug report.")  # fmt: skip
def replay(journal: Path, number: int | None, keep: Path | None) -> None:
    """Decide every cycle of JOURNAL (a file, or a folder of them) again.

    Exit code 1: some differ or are damaged.
    """
    import json

    from torque_sched.daemon.journal_form import read_journal
    from torque_sched.report.replay import replayed, words

    n_cycles = n_decisions = 0
    kept: list[str] = []
    damaged: list[TorqueSchedError] = []
    try:
        cycles = read_journal(journal, damaged.append)
        chosen = (each for each in cycles if number is None or each.number == number)
        for each in replayed(chosen):
            n_cycles += 1
            n_decisions += len(each.cycle.decisions)
            if each.is_same:
                continue
            kept.append(json.dumps(each.cycle.line, separators=(",", ":")) + "\n")
            click.echo(f"cycle {each.cycle.number}: {len(each.differences)} jobs are decided otherwise")
            for difference in each.differences:
                click.echo(f"  {difference.job}: was {words(difference.was)}; now {words(difference.now)}")
    except (TorqueSchedError, OSError) as error:
        click.echo(f"torque-sched replay: {error}", err=True)
        sys.exit(1)
    for damage in damaged:
        click.echo(f"torque-sched replay: {damage}", err=True)
    left_out = f", {len(damaged)} damaged and left out" if damaged else ""
    click.echo(f"{n_cycles} cycles with {n_decisions} decisions, {len(kept)} cycles differ{left_out}")
    if keep is not None and kept:
        keep.write_text("".join(kept), encoding="utf-8")
    if kept or damaged:
        sys.exit(1)

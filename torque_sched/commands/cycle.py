"""``torque-sched cycle``: one scheduling cycle in the foreground, for looking and for cron."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click

from torque_sched.commands._console import notes, options_of
from torque_sched.commands.serve import with_options
from torque_sched.errors import TorqueSchedError


@click.command()
@with_options
@click.option("--dry-run", is_flag=True, help="Query and decide; start no job and write no comment.")
@click.option("--json", "as_json", is_flag=True, help="Print the decisions as JSON.")
def cycle(home: Path | None, config_file: Path | None, dry_run: bool, as_json: bool) -> None:
    """Run one cycle and print every decision. Without --dry-run it acts, and needs the scheduler's lock."""
    from torque_sched.daemon.startup import run_once
    from torque_sched.model.decisions import Start

    try:
        options = options_of(home, config_file)
        report = asyncio.run(run_once(options, dry=dry_run, note=notes("cycle")))
    except TorqueSchedError as error:
        click.echo(f"torque-sched cycle: {error}", err=True)
        sys.exit(error.exit_code)
    if as_json:
        click.echo(json.dumps(_document(report), indent=1))
        return
    for decision in report.reported:
        result = report.results.get(decision.job)
        click.echo(_line(decision, result.kind.value if result else ""))
    n_starts = sum(isinstance(each, Start) for each in report.decisions)
    verb = "would be started" if dry_run else f"to start, {len(report.started_s)} started"
    click.echo(f"{len(report.decisions)} jobs considered, {n_starts} {verb}, {report.total_s * 1000:.0f} ms")


def _line(decision: Any, result: str) -> str:
    from torque_sched.batch.documents import hosts_text
    from torque_sched.model.decisions import Start

    if isinstance(decision, Start):
        hosts = hosts_text(decision.allocation)
        return f"{decision.job}: start on {hosts}" + (f" ({result})" if result else "")
    return f"{decision.job}: {decision.comment}"


def _document(report: Any) -> dict[str, Any]:
    from torque_sched.batch.documents import plain

    return {
        "now_s": report.at_s,
        "decisions": [{"is": type(each).__name__.lower(), **plain(each)} for each in report.reported],
        "results": {job: [result.kind.value, result.text] for job, result in report.results.items()},
        "decide_s": report.decide_s,
        "total_s": report.total_s,
    }

"""``torque-sched report``: balance, waits, guaranteed starts, predictions, idle GPUs, the shadow."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from torque_sched.commands._console import options_of
from torque_sched.commands.serve import with_options
from torque_sched.errors import TorqueSchedError

_DAY_S = 86400.0


@click.command()
@with_options
@click.option("--days", type=click.FloatRange(min=0, min_open=True), default=7.0, show_default=True)
@click.option("--shadow", is_flag=True, help="Of what the shadow has seen.")
@click.option("--history", type=click.Path(path_type=Path), metavar="FILE", help="[the daemon's]")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a page with plots."
)
def report(
    home: Path | None, config_file: Path | None, days: float, shadow: bool, history: Path | None,
    html: Path | None,
) -> None:  # fmt: skip
    """Tell of the last DAYS, or write a page that needs no other file and names no other address."""
    from torque_sched.batch.connect import server_host
    from torque_sched.daemon.config import read_config
    from torque_sched.daemon.shadow import read_report, words_of
    from torque_sched.learn.store import Store
    from torque_sched.report.page import page
    from torque_sched.report.picture import history_file
    from torque_sched.report.summary import lines_of, summarise

    options = options_of(home, config_file, shadow=shadow)
    now_s = time.time()
    try:
        path = history or history_file(options, read_config(options.config))
        with Store.looked_at(path) as store:
            summary = summarise(store, now_s - days * _DAY_S, now_s)
    except TorqueSchedError as error:
        click.echo(f"torque-sched report: {error}", err=True)
        sys.exit(error.exit_code)
    beside = words_of(read_report(options.own / "report.json")) if shadow else []
    try:
        if html is not None:
            html.write_text(page(summary, f"Torque of {server_host(options.home)}", beside), encoding="utf-8")
    except OSError as error:
        click.echo(f"torque-sched report: {html}: {error.strerror}", err=True)
        sys.exit(1)
    promises = f", {len(summary.outcomes)} guaranteed starts" if summary.outcomes else ""
    what = f"{days:g} days" if html is None else str(html)
    click.echo(f"{what}: {len(summary.jobs)} jobs, {len(summary.balance)} moments{promises}")
    for line in (*(lines_of(summary) if html is None else ()), *beside):
        click.echo(f"  {line}")

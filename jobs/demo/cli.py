"""``python -m jobs demo``: what ``make demo`` runs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import click

from jobs.console import Progress, results_console
from jobs.demo.cluster import ClusterOptions
from jobs.demo.record import DemoCheck, DemoRecord, as_json, run_checks
from jobs.demo.report import check_table, phase_table, report_page
from jobs.demo.run import DemoOptions, Images, InputSize, Phases, demo_cluster, run_demo
from jobs.demo.secure import LEFT_OUT, run_secure_demo
from jobs.factorize.cli import result_table
from jobs.factorize.job import write_outcome as write_factorize
from jobs.images.job import write_outcome as write_images
from jobs.options import shown, with_options


@click.command()
@with_options(
    shown("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out/demo"),
          help="Folder for report.html, demo.png, demo.json and the tables."),
    shown("--nodes", type=click.IntRange(2, 16), default=4, help="Worker nodes."),
    shown("--racks", type=click.IntRange(1, 8), default=2, help="Racks."),
    shown("--accel-nodes", type=click.IntRange(1, 16), default=2, help="Nodes with a pipeline server."),
    shown("--mode", type=click.Choice(("auto", "netns", "docker", "loopback")), default="auto",
          help="Network namespaces (root), containers, or one network."),
    click.option("--hadoop-version", default="", metavar="V", help="Another Hadoop, such as 3.3.6."),
    click.option("--secure", is_flag=True,
                 help="A cluster with Kerberos, and the first job alone, by ticket (root)."),
    click.option("--small", is_flag=True, help="Little input: a look at the machinery in a minute."),
    click.option("--keep", is_flag=True, help="Leave the cluster up (yarn-accel cluster down demo ends it)."),
)  # fmt: skip
def demo(out: Path, **values: Any) -> None:
    """Start a real Hadoop cluster here, run both jobs on it, check everything, write a report, take it down.

    Fails (exit code 1) when a record was computed on a mapper's own CPU, a server's own counter is 0, a
    residual is 30 or more, records are lost, or a node ran no mapper.
    """
    up = ClusterOptions("demo", values["nodes"], values["racks"], values["accel_nodes"], values["mode"])
    size = (
        InputSize(n_matrices=12, n_max=400, n_images=200, n_image_files=2) if values["small"] else InputSize()
    )
    up = replace(up, is_secure=values["secure"], hadoop_version=values["hadoop_version"])
    options = DemoOptions(
        up=up, size=size, n_tasks=2 * values["nodes"], is_kept=values["keep"], logs_dir=out / "logs"
    )
    if values["secure"]:
        _run_secure(options)
    with Progress() as progress:
        phases = Phases(progress.milestone)
        with demo_cluster(options, progress.report):
            record, images = run_demo(options, phases, progress.report)
        progress.report("drawing the pictures")
        checks = run_checks(record, is_full=not values["small"])
        with phases.phase("draw and write the report"):
            written = _write(out, record, checks, images)
    console = results_console()
    for table in (result_table(record.factorize), phase_table(record), check_table(checks)):
        console.print(table)
    for path in written:
        console.print(path, soft_wrap=True)
    _end(checks, is_kept=values["keep"])


def _run_secure(options: DemoOptions) -> NoReturn:
    """Run the job that runs with Kerberos, and end."""
    with Progress() as progress, demo_cluster(options, progress.report):
        record = run_secure_demo(options, Phases(progress.milestone), progress.report)
    checks = tuple(record.checks())
    console = results_console()
    for table in (result_table(record.factorize), check_table(checks)):
        console.print(table)
    console.print(LEFT_OUT, soft_wrap=True)
    _end(checks, is_kept=options.is_kept)


def _end(checks: tuple[DemoCheck, ...], *, is_kept: bool) -> NoReturn:
    if is_kept:
        results_console().print("the cluster stays up; end it with: yarn-accel cluster down demo")
    failed = [check for check in checks if not check.ok]
    for check in failed:
        click.echo(f"demo: failed: {check.what} ({check.seen})", err=True)
    sys.exit(1 if failed else 0)


def _write(out: Path, record: DemoRecord, checks: tuple[DemoCheck, ...], images: Images) -> list[Path]:
    from jobs.demo.pictures import overview, pictures

    out.mkdir(parents=True, exist_ok=True)
    report, picture, facts = out / "report.html", out / "demo.png", out / "demo.json"
    report.write_text(report_page(record, checks, pictures(record, images)), encoding="utf-8")
    picture.write_bytes(overview(record, images))
    facts.write_text(json.dumps(as_json(record, [asdict(check) for check in checks]), indent=1) + "\n")
    tables = [
        *write_factorize(record.factorize, out / "factorize"),
        *write_images(record.images, out / "images"),
    ]
    return [report, picture, facts, *tables]

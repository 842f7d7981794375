"""``yarn-accel dag submit | status | top | report | cancel | pause | resume``: DAGs in a task service."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from functools import partial
from pathlib import Path

import click

from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport
from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.core.dags.outcome import DagRunOutcome
from yarn_accel.errors import ConfigError
from yarn_accel.hadoop.control import Control, asked, with_control
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.launch.application_cli import application_option, console, interval_option
from yarn_accel.launch.dag_outcomes import live_dag_outcome
from yarn_accel.launch.dag_report import write_dag_report
from yarn_accel.launch.dag_view import dags_of, dags_table
from yarn_accel.launch.task_outcomes import ask_outcomes
from yarn_accel.launch.tasks_cli import follow_status, wait_until_ended
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.tasks.dag_planning import load_dag_file, plan_dag
from yarn_accel.tasks.submission import submit_definition

_CLASSES = [each.word for each in PriorityClass]


@click.command("submit")
@click.argument("dag_file", metavar="DAG.yaml", type=click.Path(path_type=Path))
@application_option
@click.option(
    "--class", "class_name", type=click.Choice(_CLASSES), default="basic", show_default=True,
    help="Whom it goes before.",
)  # fmt: skip
@click.option("--name", "dag_id", default="", help="Name of this run; default: a new one.")
@click.option("--wait", "is_waiting", is_flag=True, help="Wait for the end; 1 is the exit code of a failure.")
@click.option(
    "--json", "json_file", metavar="OUT", type=click.Path(path_type=Path),
    help="Wait, and write what became of it here, as `dag simulate` does.",
)  # fmt: skip
@click.option("--dry-run", "is_dry", is_flag=True, help="Check everything and submit nothing.")
def dag_submit(
    dag_file: Path,
    application: str,
    class_name: str,
    dag_id: str,
    is_waiting: bool,
    json_file: Path | None,
    is_dry: bool,
) -> None:
    """Submit a DAG to the task service."""
    file = load_dag_file(dag_file)
    name = dag_id or f"{file.name or dag_file.stem}-{uuid.uuid4().hex[:8]}"
    rm_client = RmClient.load()
    store = rm_client.store()
    definition = plan_dag(file, PriorityClass[class_name.upper()], store, name)
    click.echo(f"{name}: {len(definition.tasks)} tasks, class {class_name}", err=True)
    if is_dry:
        return

    async def work(_: ApplicationReport, control: Control) -> None:
        await submit_definition(control.ask, store, definition)
        click.echo(name)
        if is_waiting or json_file is not None:
            await wait_until_ended(control, name)
        if json_file is not None:
            outcome = live_dag_outcome(await ask_outcomes(control, [name]))
            write_atomic(json_file, json.dumps(outcome.as_json(), indent=1) + "\n")

    asyncio.run(with_control(rm_client, application, work))


@click.command("report")
@click.argument("dags", nargs=-1, metavar="[DAG]...")
@application_option
@click.option(
    "--out", "folder", metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False),
    help="Write JSON, a page and pictures here.",
)  # fmt: skip
@click.option(
    "--json", "json_file", metavar="OUT", type=click.Path(path_type=Path),
    help="Write the JSON alone here, as `dag simulate` does.",
)  # fmt: skip
def dag_report(dags: tuple[str, ...], application: str, folder: Path | None, json_file: Path | None) -> None:
    """Report what became of DAGs that are done: of those named, or of all."""
    if folder is None and json_file is None:
        raise click.UsageError("give --out FOLDER, --json OUT, or both")

    async def ask(_: ApplicationReport, control: Control) -> DagRunOutcome:
        return live_dag_outcome(await ask_outcomes(control, dags))

    outcome: DagRunOutcome = asyncio.run(with_control(RmClient.load(), application, ask))
    if json_file is not None:
        write_atomic(json_file, json.dumps(outcome.as_json(), indent=1) + "\n")
    if folder is not None:
        for note in write_dag_report(outcome, folder):
            click.echo(f"note: {note}", err=True)
        click.echo(f"{folder / 'index.html'}")


@click.command("status")
@click.argument("dags", metavar="[DAG]...", nargs=-1)
@application_option
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def dag_status(dags: tuple[str, ...], application: str, as_json: bool) -> None:
    """Show the DAGs of the task service: those named, or all."""
    _, answer = asyncio.run(asked(RmClient.load(), application, "tasks-status"))
    rows = dags_of(answer)
    for name in dags:
        if name not in rows:
            known = ", ".join(list(rows)[-5:]) or "none"
            raise ConfigError(
                f"{name}: the task service knows no DAG of this name", cure=f"the last: {known}"
            )
    if as_json:
        shown = {name: rows[name] for name in dags or rows}
        click.echo(json.dumps({"policy": answer["policy"], "dags": shown}, indent=1))
        return
    for key in ("apps", "ended"):
        answer[key] = {name: row for name, row in answer[key].items() if not dags or name in dags}
    console().print(dags_table(answer))


@click.command("top")
@application_option
@interval_option
def dag_top(application: str, interval_s: float) -> None:
    """Show the DAGs again and again, until ^C; once where it goes to no terminal."""
    with contextlib.suppress(KeyboardInterrupt):
        follow = partial(follow_status, interval_s=interval_s, view=dags_table)
        asyncio.run(with_control(RmClient.load(), application, follow))


@click.command("cancel")
@click.argument("dag")
@application_option
def dag_cancel(dag: str, application: str) -> None:
    """End DAG early; what is done of it stays."""
    asyncio.run(asked(RmClient.load(), application, "tasks-cancel", {"app": dag}))
    click.echo(f"{dag} ends")


@click.command("pause")
@click.argument("dag")
@application_option
def dag_pause(dag: str, application: str) -> None:
    """Start nothing of DAG from now on; what runs goes on."""
    asyncio.run(asked(RmClient.load(), application, "tasks-pause", {"app": dag, "is_paused": True}))
    click.echo(f"{dag} pauses")


@click.command("resume")
@click.argument("dag")
@application_option
def dag_resume(dag: str, application: str) -> None:
    """Let DAG go on."""
    asyncio.run(asked(RmClient.load(), application, "tasks-pause", {"app": dag, "is_paused": False}))
    click.echo(f"{dag} goes on")

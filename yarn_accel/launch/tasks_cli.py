"""``yarn-accel tasks ...`` and ``yarn-accel dag ...``: applications of tasks, and DAGs, in a task service.

The service is a part of the application that `yarn-accel start` submits; `tasks start` has it switched on.
Both groups have ``submit | status | top | report | cancel``; DAGs can pause, too. ``dag explain`` and the
simulations are in `yarn_accel.sim`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport
from yarn_accel.adapters.repeated_output import repeated_output
from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.core.dags.outcome import DagRunOutcome
from yarn_accel.core.tasks.outcome import RunOutcome
from yarn_accel.errors import ConfigError, JobError, UnavailableError
from yarn_accel.hadoop.control import WAIT_PATIENCE_S, Control, asked, with_control
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.launch.application_cli import (
    FILE_WIDTH,
    application_option,
    config_option,
    console,
    interval_option,
    launch_config,
    progress,
    start_wait_option,
)
from yarn_accel.launch.outcomes import ask_outcomes, live_dag_outcome, live_report, nodes_of
from yarn_accel.launch.start import start as start_application
from yarn_accel.launch.task_view import app_progress, dags_of, dags_table, tasks_table
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.report.runs import MAX_DRAWN_NODES, RunReport, write_dag_report, write_report
from yarn_accel.tasks import load_app, plan_app
from yarn_accel.tasks.dag_planning import load_dag_file, plan_dag
from yarn_accel.tasks.submission import submit_definition

_POLL_S = 0.5
_name_option = partial(click.option, "--name", default="", help="Name of this run; default: a new one.")
_wait_option = click.option(
    "--wait", "is_waiting", is_flag=True, help="Wait for the end; 1 is the exit code of a failure."
)
_dry_option = click.option("--dry-run", "is_dry", is_flag=True, help="Check everything and submit nothing.")
_json_option = click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
_folder_option = click.option(
    "--out",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write JSON, a page and pictures here.",
)
_json_file_option = partial(
    click.option, "--json", "json_file", metavar="OUT", type=click.Path(path_type=Path)
)


@click.command("start")
@config_option
@start_wait_option
def start(config_file: Path | None, wait_s: float) -> None:
    """Start the task service, or find it."""
    config = launch_config(config_file)
    config = config.model_copy(update={"worker": config.worker.model_copy(update={"enabled": True})})
    rm_client = RmClient.load()
    with progress() as report:
        started = asyncio.run(start_application(rm_client, config, report, wait_s))
    if not started.is_new:
        # It may have been started without a task service, which it then says.
        asyncio.run(asked(rm_client, str(started.report.id), "tasks-status"))
    how = f"runs after {started.took_s:.2f} s" if started.is_new else "runs already"
    click.echo(f"{started.report.id} {how}")
    click.echo(f"page: {rm_client.page_of(started.report)}")


@click.command("submit")
@click.argument("app_file", metavar="APP.yaml", type=click.Path(path_type=Path))
@application_option
@_name_option("app_id")
@_wait_option
@_dry_option
def submit(app_file: Path, application: str, app_id: str, is_waiting: bool, is_dry: bool) -> None:
    """Submit an application of tasks."""
    app = load_app(app_file)
    rm_client = RmClient.load()
    store = rm_client.store()
    definition = plan_app(app, store, app_id or f"{app.name}-{uuid.uuid4().hex[:8]}")
    forms = " and ".join(form.value for form in definition.spec.demands)
    click.echo(f"{definition.spec.app}: {len(definition.tasks)} tasks, on {forms}", err=True)
    if is_dry:
        return

    async def work(_: ApplicationReport, control: Control) -> None:
        await submit_definition(control.ask, store, definition)
        click.echo(definition.spec.app)
        if is_waiting:
            await wait_until_ended(control, definition.spec.app)

    asyncio.run(with_control(rm_client, application, work))


@click.command("status")
@application_option
@_json_option
def status(application: str, as_json: bool) -> None:
    """Show the applications of tasks, and the workers."""
    _, answer = asyncio.run(asked(RmClient.load(), application, "tasks-status"))
    if as_json:
        click.echo(json.dumps(answer, indent=1))
    else:
        console().print(tasks_table(answer))


@click.command("top")
@application_option
@interval_option
def top(application: str, interval_s: float) -> None:
    """Show the same again and again, until ^C; once where it goes to no terminal."""
    with contextlib.suppress(KeyboardInterrupt):
        follow = partial(_follow_status, interval_s=interval_s, view=tasks_table)
        asyncio.run(with_control(RmClient.load(), application, follow))


@click.command("explain")
@click.argument("task")
@application_option
def explain(task: str, application: str) -> None:
    """Say where TASK (APP/NUMBER) is, and why there."""
    _, answer = asyncio.run(asked(RmClient.load(), application, "tasks-explain", {"task": task}))
    click.echo(answer.get("text", ""))


@click.command("cancel")
@click.argument("app")
@application_option
def cancel(app: str, application: str) -> None:
    """End the application APP early."""
    asyncio.run(asked(RmClient.load(), application, "tasks-cancel", {"app": app}))
    click.echo(f"{app} ends")


@click.command("report")
@click.argument("apps", nargs=-1, metavar="[APP]...")
@application_option
@_folder_option
@_json_file_option(help="Write the JSON alone here, as `tasks simulate` does.")
def report(apps: tuple[str, ...], application: str, folder: Path | None, json_file: Path | None) -> None:
    """Report what became of applications: of those named, or of all."""
    _check_given(folder, json_file)
    made = asyncio.run(with_control(RmClient.load(), application, partial(_ask_report, apps=apps)))
    missing = list(made.notes)
    if json_file is not None:
        _write_json(json_file, made.outcome)
    if folder is not None:
        missing += write_report(made, folder)
        click.echo(f"{folder / 'index.html'}")
    for note in missing:
        click.echo(f"note: {note}", err=True)


async def _ask_report(_: ApplicationReport, control: Control, *, apps: tuple[str, ...]) -> RunReport:
    answers = await ask_outcomes(control, apps)
    use = await control.ask("tasks-use", {"nodes": nodes_of(answers)[:MAX_DRAWN_NODES]})
    return live_report(answers, use, (await control.ask("tasks-status"))["figures"])


# DAGs.


@click.command("submit")
@click.argument("dag_file", metavar="DAG.yaml", type=click.Path(path_type=Path))
@application_option
@click.option(
    "--class",
    "class_name",
    type=click.Choice([each.word for each in PriorityClass]),
    default="basic",
    show_default=True,
    help="Whom it goes before.",
)
@_name_option("dag_id")
@_wait_option
@_json_file_option(help="Wait, and write what became of it here, as `dag simulate` does.")
@_dry_option
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
            _write_json(json_file, live_dag_outcome(await ask_outcomes(control, [name])))

    asyncio.run(with_control(rm_client, application, work))


@click.command("report")
@click.argument("dags", nargs=-1, metavar="[DAG]...")
@application_option
@_folder_option
@_json_file_option(help="Write the JSON alone here, as `dag simulate` does.")
def dag_report(dags: tuple[str, ...], application: str, folder: Path | None, json_file: Path | None) -> None:
    """Report what became of DAGs that are done: of those named, or of all."""
    _check_given(folder, json_file)

    async def ask(_: ApplicationReport, control: Control) -> DagRunOutcome:
        return live_dag_outcome(await ask_outcomes(control, dags))

    outcome: DagRunOutcome = asyncio.run(with_control(RmClient.load(), application, ask))
    if json_file is not None:
        _write_json(json_file, outcome)
    if folder is not None:
        for note in write_dag_report(outcome, folder):
            click.echo(f"note: {note}", err=True)
        click.echo(f"{folder / 'index.html'}")


@click.command("status")
@click.argument("dags", metavar="[DAG]...", nargs=-1)
@application_option
@_json_option
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
        follow = partial(_follow_status, interval_s=interval_s, view=dags_table)
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


# Both groups.


def _check_given(folder: Path | None, json_file: Path | None) -> None:
    if folder is None and json_file is None:
        raise click.UsageError("give --out FOLDER, --json OUT, or both")


def _write_json(file: Path, outcome: RunOutcome | DagRunOutcome) -> None:
    write_atomic(file, json.dumps(outcome.as_json(), indent=1, allow_nan=False) + "\n")


async def _follow_status(
    _: ApplicationReport,
    control: Control,
    *,
    interval_s: float,
    view: Callable[[Mapping[str, Any]], RenderableType],
) -> None:
    """Show the service's status again and again, once where it goes to no terminal."""
    if not _is_terminal():
        console().print(view(await control.ask("tasks-status")))
        return
    with repeated_output(FILE_WIDTH) as show:
        while True:
            try:
                shown = view(await control.ask("tasks-status"))
            except UnavailableError as error:
                shown = Text(f"{error}\nasking again; end with ^C")
            show(shown)
            await asyncio.sleep(interval_s)


def _is_terminal() -> bool:
    return sys.stdout.isatty()


async def wait_until_ended(control: Control, app: str) -> None:
    """Wait for the end of an application; a master or a ResourceManager that is away may come back.

    Raises:
        JobError: it failed or was cancelled.
        UnavailableError: they are away for too long, or the service is over.
    """
    with app_progress(app) as show:
        while app in (answer := await control.ask("tasks-status", patience_s=WAIT_PATIENCE_S))["apps"]:
            show(answer["apps"][app])
            await asyncio.sleep(_POLL_S)
    ended = answer["ended"].get(app)
    if ended is None:
        raise JobError(f"{app}: the task service knows nothing of it any more")
    click.echo(f"{app}: {ended['state']}", err=True)
    if ended["state"] != "done":
        raise JobError(f"{app}: {ended['state']}: {ended['error']}")

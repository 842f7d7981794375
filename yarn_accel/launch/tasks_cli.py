"""``yarn-accel tasks ...`` and ``yarn-accel dag ...``: applications of tasks, and DAGs, in a task service.

The service is a part of the application that `yarn-accel start` submits; `tasks start` has it switched on.
Both groups have ``submit | status | top | report | cancel``; DAGs can pause, too. ``dag explain`` and the
simulations are in `yarn_accel.sim`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport
from yarn_accel.adapters.repeated_output import repeated_output
from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.core.fairness import fairness
from yarn_accel.core.tasks.applications import AppDefinition
from yarn_accel.core.tasks.outcome import RunOutcome
from yarn_accel.core.tasks.service.submission import app_document
from yarn_accel.errors import ConfigError, JobError, UnavailableError
from yarn_accel.hadoop.control import WAIT_PATIENCE_S, Control, RetainedApplication, asked, with_control
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
from yarn_accel.launch.keytab import log_in
from yarn_accel.launch.outcomes import accounted, ask_outcomes, live_dag_outcome, live_report, nodes_of
from yarn_accel.launch.staging import ACCOUNTING_FOLDER
from yarn_accel.launch.start import start as start_application
from yarn_accel.launch.task_view import app_progress, dags_table, tasks_table
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.report.runs import MAX_DRAWN_NODES, RunReport, write_report
from yarn_accel.report.task_tables import dags_of, known_apps, slowdowns
from yarn_accel.tasks import load_app, plan_app
from yarn_accel.tasks.dag_planning import load_dag_file, plan_dag
from yarn_accel.tasks.submission import resume_definition, submit_definition

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
    log_in(config.kerberos, os.environ)
    rm_client = RmClient.load()
    with progress() as report:
        started = asyncio.run(start_application(rm_client, config, report, wait_s))
    if not started.is_new:
        # It may have been started without a task service, which it then says.
        asyncio.run(asked(rm_client, str(started.report.id), "tasks-status"))
    how = f"runs after {started.took_s:.2f} s" if started.is_new else "runs already"
    click.echo(f"{started.report.id} {how}")
    click.echo(f"page: {rm_client.page_of(started.report)}")


# Submitting.


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
    definition = plan_app(app, store, app_id or _new_name(app.name))
    forms = " and ".join(form.value for form in definition.spec.demands)
    click.echo(f"{definition.spec.app}: {len(definition.tasks)} tasks, on {forms}", err=True)
    if not is_dry:
        _submit(rm_client, application, definition, is_waiting=is_waiting)


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
@click.option(
    "--resume", "is_resumed", is_flag=True, help="Leave out the tasks that are done in its `output` already."
)
@_dry_option
def dag_submit(
    dag_file: Path,
    application: str,
    class_name: str,
    dag_id: str,
    is_waiting: bool,
    json_file: Path | None,
    is_resumed: bool,
    is_dry: bool,
) -> None:
    """Submit a DAG to the task service."""
    file = load_dag_file(dag_file)
    name = dag_id or _new_name(file.name or dag_file.stem)
    rm_client = RmClient.load()
    store = rm_client.store()
    definition = plan_dag(file, PriorityClass[class_name.upper()], store, name, is_resumed=is_resumed)
    click.echo(f"{name}: {len(definition.tasks)} tasks, class {class_name}", err=True)
    hand_in = partial(resume_definition, is_dry=is_dry) if is_resumed else submit_definition
    if is_resumed or not is_dry:
        _submit(
            rm_client,
            application,
            definition,
            hand_in,
            is_waiting=is_waiting and not is_dry,
            json_file=None if is_dry else json_file,
        )


def _new_name(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:8]}"


def _submit(
    rm_client: RmClient,
    application: str,
    definition: AppDefinition,
    hand_in: Callable[..., Awaitable[AppDefinition | None]] = submit_definition,
    *,
    is_waiting: bool,
    json_file: Path | None = None,
) -> None:
    """Hand it in, print its name, and do what the options say.

    Args:
        hand_in: returns what of it is submitted, if not all.
    """
    name = definition.spec.app

    async def work(found: ApplicationReport, control: Control) -> None:
        RetainedApplication.of(str(found.id)).check_hdfs(app_document(definition))
        left = await hand_in(control.ask, rm_client.store(), definition)
        if left is not None:
            n_done = len(definition.tasks) - len(left.tasks)
            click.echo(f"{n_done} of {len(definition.tasks)} tasks are done already", err=True)
            if not left.tasks:
                return
        click.echo(name)
        if is_waiting or json_file is not None:
            await wait_until_ended(control, name)
        if json_file is not None:
            _write_json(json_file, live_dag_outcome(await ask_outcomes(control, [name])))

    asyncio.run(with_control(rm_client, application, work))


# Looking.


@click.command("status")
@application_option
@_json_option
def status(application: str, as_json: bool) -> None:
    """Show the applications of tasks, and the workers."""
    answer = _asked(application, "tasks-status")
    if as_json:
        click.echo(json.dumps(answer, indent=1))
    else:
        console().print(tasks_table(answer))


@click.command("status")
@click.argument("dags", metavar="[DAG]...", nargs=-1)
@application_option
@_json_option
def dag_status(dags: tuple[str, ...], application: str, as_json: bool) -> None:
    """Show the DAGs of the task service: those named, or all."""
    answer = _asked(application, "tasks-status")
    known = dags_of(known_apps(answer))
    rows = dict(reversed(known))
    for name in dags:
        if name not in rows:
            last = ", ".join([each for each, _ in known][:5]) or "none"
            raise ConfigError(f"{name}: the task service knows no DAG of this name", cure=f"the last: {last}")
    if as_json:
        shown = {name: rows[name] for name in dags or rows}
        fair = fairness(slowdowns(list(shown.items()))).as_json()
        click.echo(json.dumps({"policy": answer["policy"], **fair, "dags": shown}, indent=1))
    else:
        console().print(dags_table(answer, dags))


def _top(view: Callable[[Mapping[str, Any]], RenderableType], text: str) -> click.Command:
    @click.command("top", help=text)
    @application_option
    @interval_option
    def command(application: str, interval_s: float) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            follow = partial(_follow_status, interval_s=interval_s, view=view)
            asyncio.run(with_control(RmClient.load(), application, follow))

    return command


top = _top(tasks_table, "Show the same again and again, until ^C; once where it goes to no terminal.")
dag_top = _top(dags_table, "Show the DAGs again and again, until ^C; once where it goes to no terminal.")


@click.command("explain")
@click.argument("task")
@application_option
def explain(task: str, application: str) -> None:
    """Say where TASK (APP/NUMBER) is, and why there."""
    click.echo(_asked(application, "tasks-explain", {"task": task}).get("text", ""))


def _report(
    names: str, ask: Callable[[Control, Sequence[str]], Awaitable[RunReport]], text: str, as_in: str
) -> click.Command:
    @click.command("report", help=text)
    @click.argument("apps", nargs=-1, metavar=f"[{names}]...")
    @application_option
    @_folder_option
    @_json_file_option(help=f"Write the JSON alone here, as `{as_in}` does.")
    def command(apps: tuple[str, ...], application: str, folder: Path | None, json_file: Path | None) -> None:
        if folder is None and json_file is None:
            raise click.UsageError("give --out FOLDER, --json OUT, or both")

        async def work(_: ApplicationReport, control: Control) -> RunReport:
            return await ask(control, apps)

        made: RunReport = asyncio.run(with_control(RmClient.load(), application, work))
        missing = list(made.notes)
        if json_file is not None:
            _write_json(json_file, made.outcome)
        if folder is not None:
            missing += write_report(made, folder)
            click.echo(f"{folder / 'index.html'}")
        for note in missing:
            click.echo(f"note: {note}", err=True)

    return command


async def _ask_tasks(control: Control, apps: Sequence[str]) -> RunReport:
    answers = await ask_outcomes(control, apps)
    use = await control.ask("tasks-use", {"nodes": nodes_of(answers)[:MAX_DRAWN_NODES]})
    return live_report(answers, use, (await control.ask("tasks-status"))["figures"])


async def _ask_dags(control: Control, dags: Sequence[str]) -> RunReport:
    return RunReport(live_dag_outcome(await ask_outcomes(control, dags)))


report = _report(
    "APP", _ask_tasks, "Report what became of applications: of those named, or of all.", "tasks simulate"
)
dag_report = _report(
    "DAG", _ask_dags, "Report what became of DAGs that are done: of those named, or of all.", "dag simulate"
)


@click.command("accounting")
@config_option
@click.option("--all", "is_whole", is_flag=True, help="Each line as it was written, not sums by job.")
def accounting(config_file: Path | None, is_whole: bool) -> None:
    """Print what jobs used, as JSON lines: core-seconds, GPU-seconds, bytes."""
    rm_client = RmClient.load()
    folder = (
        f"{rm_client.staging_uri(launch_config(config_file).environment.staging_uri)}/{ACCOUNTING_FOLDER}"
    )
    for line in accounted(rm_client.store(), folder, is_whole=is_whole):
        click.echo(json.dumps(line))


# Steering.


def _steering(
    name: str, noun: str, verb: str, document: Mapping[str, Any], done: str, text: str
) -> click.Command:
    """A command that asks the service for something about one application or DAG."""

    @click.command(name, help=text)
    @click.argument("app", metavar=noun)
    @application_option
    def command(app: str, application: str) -> None:
        _asked(application, verb, {"app": app, **document})
        click.echo(f"{app} {done}")

    return command


cancel = _steering("cancel", "APP", "tasks-cancel", {}, "ends", "End the application APP early.")
dag_cancel = _steering(
    "cancel", "DAG", "tasks-cancel", {}, "ends", "End DAG early; what is done of it stays."
)
dag_pause = _steering(
    "pause",
    "DAG",
    "tasks-pause",
    {"is_paused": True},
    "pauses",
    "Start nothing of DAG from now on; what runs goes on.",
)
dag_resume = _steering("resume", "DAG", "tasks-pause", {"is_paused": False}, "goes on", "Let DAG go on.")


def _asked(application: str, verb: str, document: dict[str, Any] | None = None) -> dict[str, Any]:
    """The service's answer to one question."""
    _, answer = asyncio.run(asked(RmClient.load(), application, verb, document))
    return answer


def _write_json(file: Path, outcome: RunOutcome) -> None:
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

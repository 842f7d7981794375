"""The ``yarn-accel`` command: a group per package, one place where errors become a line and an exit code.

A package is imported when one of its commands is called: ``--help`` stays quick, and ApplicationMaster and
agents, which are started through here too, do not carry what they never use.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from yarn_accel import __version__
from yarn_accel.extras import errors_as_lines


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command that is not imported yet.

    Attributes:
        module: where it is.
        attribute: its name there.
        help: its line in the list of commands; the first sentence of its own help.
    """

    module: str
    attribute: str
    help: str


def _verb(name: str, text: str) -> LazyCommand:
    return LazyCommand("yarn_accel.launch.application_cli", name, text)


def _of_tasks(name: str, text: str) -> LazyCommand:
    return LazyCommand("yarn_accel.launch.tasks_cli", name, text)


#: Every command, in the order in which they are listed.
COMMANDS: Mapping[str, LazyCommand] = {
    "start": _verb("start", "Give the cluster's nodes accelerators: submit the application, or find it."),
    "status": _verb("status", "Show the application, its servers and bindings."),
    "top": _verb("top", "Show the same again and again, until ^C."),
    "explain": _verb("explain", "Say why NODE is bound to its server, and what was refused."),
    "rebind": _verb("rebind", "Compute all bindings anew, as if all nodes had just joined."),
    "drain": _verb("drain", "Take the server of NODE out of use; it finishes what it has."),
    "undrain": _verb("undrain", "Take the server of NODE back into use."),
    "stop": _verb("stop", "End the application and restore the cluster."),
    "doctor": LazyCommand(
        "yarn_accel.launch.doctor",
        "doctor",
        "Find what keeps you out of the cluster: login, clocks, names, tokens, high availability.",
    ),
    "tasks": LazyCommand("yarn_accel.cli", "tasks", "Several applications' tasks on CPUs and GPUs."),
    "dag": LazyCommand("yarn_accel.cli", "dag", "Workflows: tasks that wait for each other."),
    "logs": LazyCommand(
        "yarn_accel.launch.logs_cli",
        "logs",
        "Print the logs of a task (APP/NUMBER or DAG/TASK), or what servers' logs say of a request (KEY).",
    ),
    "streaming": LazyCommand(
        "yarn_accel.launch.streaming_cli",
        "command",
        "Run Hadoop Streaming with a mapper that uses pipeline servers.",
    ),
    "cluster": LazyCommand(
        "yarn_accel.testbed.cluster_cli",
        "group",
        "A real Hadoop cluster of several nodes on this one machine.",
    ),
    "credential": LazyCommand(
        "yarn_accel.pipeline.credential_cli",
        "group",
        "The site's secret, and the credentials of users' jobs.",
    ),
    "hadoop": LazyCommand(
        "yarn_accel.testbed.hadoop_cli", "group", "Hadoop's jars and configuration templates."
    ),
    "bundle": LazyCommand(
        "yarn_accel.launch.bundle",
        "bundle",
        "Make one archive from which a site without internet installs and starts.",
    ),
    "launch": LazyCommand(
        "yarn_accel.launch.application_cli",
        "launch_group",
        "Show and prepare what `start` brings to the cluster.",
    ),
    "master": LazyCommand("yarn_accel.master.cli", "group", "The ApplicationMaster, as YARN starts it."),
    "node": LazyCommand("yarn_accel.node.cli", "group", "The services of every node."),
    "worker": LazyCommand(
        "yarn_accel.worker.__main__", "command", "Run the tasks that the task service gives to this node."
    ),
    "pipeline": LazyCommand(
        "yarn_accel.pipeline.cli", "group", "The pipeline server of an accelerator node."
    ),
}

#: The commands of `tasks`; those of other groups come with their package.
TASKS_COMMANDS: Mapping[str, LazyCommand] = {
    "start": _of_tasks("start", "Start the task service, or find it."),
    "submit": _of_tasks("submit", "Submit an application of tasks."),
    "status": _of_tasks("status", "Show the applications of tasks, and the workers."),
    "top": _of_tasks("top", "Show the same again and again, until ^C; once where it goes to no terminal."),
    "report": _of_tasks("report", "Report what became of applications: of those named, or of all."),
    "accounting": _of_tasks(
        "accounting", "Print what jobs used, as JSON lines: core-seconds, GPU-seconds, bytes."
    ),
    "explain": _of_tasks("explain", "Say where TASK (APP/NUMBER) is, and why there."),
    "cancel": _of_tasks("cancel", "End the application APP early."),
    "stop": _verb("stop", "End the application and restore the cluster."),
    "simulate": LazyCommand("yarn_accel.sim.cli", "simulate", "Run the world of a file in virtual time."),
}

#: The commands of `dag`.
DAG_COMMANDS: Mapping[str, LazyCommand] = {
    "submit": _of_tasks("dag_submit", "Submit a DAG to the task service."),
    "status": _of_tasks("dag_status", "Show the DAGs of the task service: those named, or all."),
    "top": _of_tasks(
        "dag_top", "Show the DAGs again and again, until ^C; once where it goes to no terminal."
    ),
    "report": _of_tasks("dag_report", "Report what became of DAGs that are done: of those named, or of all."),
    "cancel": _of_tasks("dag_cancel", "End DAG early; what is done of it stays."),
    "pause": _of_tasks("dag_pause", "Start nothing of DAG from now on; what runs goes on."),
    "resume": _of_tasks("dag_resume", "Let DAG go on."),
    "simulate": LazyCommand("yarn_accel.sim.cli", "dag_simulate", "Run DAGs on machines in virtual time."),
    "explain": LazyCommand(
        "yarn_accel.sim.dag_explain", "dag_explain", "Say when, where and why a DAG or a task runs or ran."
    ),
}


class _LazyGroup(click.Group):
    """Imports a command when it is called."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self._lazy.get(cmd_name)
        if lazy is None:
            return None
        command: click.Command = getattr(importlib.import_module(lazy.module), lazy.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self._lazy.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click would import every package to guess what a wrong name should have been.
        if args and not args[0].startswith("-") and args[0] not in self._lazy:
            ctx.fail(f"No such command {args[0]!r}; there are {', '.join(self._lazy)}.")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=lazy.help)
            for name, lazy in self._lazy.items()
            if name.startswith(incomplete)
        ]


@click.group(cls=_LazyGroup, lazy=COMMANDS, invoke_without_command=True)
@click.version_option(__version__, prog_name="yarn-accel")
@click.pass_context
def root(context: click.Context) -> None:
    """Accelerators on stock Hadoop YARN.

    Exit codes: 0 fine, 1 failed, 2 wrong usage or configuration, 3 could not start.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@click.group(cls=_LazyGroup, lazy=TASKS_COMMANDS)
def tasks() -> None:
    """Several applications' tasks on CPUs and GPUs."""


@click.group(cls=_LazyGroup, lazy=DAG_COMMANDS)
def dag() -> None:
    """Workflows: tasks that wait for each other."""


def main() -> None:
    """Run the command; an expected error becomes one line on stderr and its exit code."""
    with errors_as_lines("yarn-accel"):
        root(standalone_mode=True)

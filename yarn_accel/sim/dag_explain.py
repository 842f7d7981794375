"""``yarn-accel dag explain``: why a DAG or a task goes as it does, by a run's JSON or the service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

import click

from yarn_accel.core.tasks.outcome import RunOutcome, TaskOutcome, parse_dag_run
from yarn_accel.errors import ConfigError, RemoteProtocolError
from yarn_accel.hadoop.control import asked
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.launch.application_cli import application_option
from yarn_accel.sim.dag_inputs import InputArrival, inputs_of

#: Larger files are refused before they are read.
_MOST_BYTES = 1 << 30
_MOST_SHOWN = 20
_MOST_NEAREST = 3


class SimulatedDags:
    """The outcome of DAGs, as `dag simulate --json` wrote it, by the names of tasks; see docs/mps.md."""

    def __init__(self, outcome: RunOutcome) -> None:
        self.dags, self.tasks = outcome.apps, outcome.tasks
        #: Tasks as DAG/TASK.
        self.by_name = {_name(task): task for task in outcome.tasks}

    def ready_s(self, task: TaskOutcome) -> float:
        """When it could have started there: its DAG had arrived, and its inputs had come."""
        return max([self.dags[task.app].start_s, *(each.ready_s for each in _inputs(task))])


def _name(task: TaskOutcome) -> str:
    return f"{task.app}/{task.task}"


def _inputs(task: TaskOutcome) -> list[InputArrival]:
    return inputs_of(task.reason)[1]


def read_outcome(path: Path) -> SimulatedDags:
    """Read the JSON of a simulation.

    Raises:
        ConfigError: it cannot be read, or is no such JSON.
    """
    cure = "name what `yarn-accel dag simulate --json` wrote"
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path}: has {path.stat().st_size} bytes, more than {_MOST_BYTES}")
        return SimulatedDags(parse_dag_run(json.loads(path.read_bytes())))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", cure=cure) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is no JSON of a simulation of DAGs: {error}", cure=cure) from None
    except RemoteProtocolError as error:
        words = error.message.removeprefix("outcome: ").removeprefix("outcome.")
        raise ConfigError(f"{path}: is no JSON of a simulation of DAGs: {words}", cure=cure) from None


def explain_name(outcome: SimulatedDags, name: str) -> list[str]:
    """Lines about a DAG or DAG/TASK.

    Raises:
        ConfigError: there is none of that name; names the nearest.
    """
    if name in outcome.dags:
        return list(_explain_dag(outcome, name))
    if name in outcome.by_name:
        return list(_explain_task(outcome, outcome.by_name[name]))
    dag, _, of_dag = name.partition("/")
    same = [_name(task) for task in outcome.tasks if task.task in (name, of_dag)]
    if dag in outcome.dags:
        what = f"DAG {dag} has no task {of_dag!r}"
        known = [_name(task) for task in outcome.tasks if task.app == dag]
    else:
        what, known = f"no DAG or task is called {name!r}", [*outcome.dags, *outcome.by_name]
    near = same or get_close_matches(name, known, _MOST_NEAREST, 0.0)
    raise ConfigError(what, cure=f"the nearest: {', '.join(near[:_MOST_NEAREST]) or 'none'}")


def _explain_task(outcome: SimulatedDags, task: TaskOutcome) -> Iterator[str]:
    ready_s = outcome.ready_s(task)
    yield f"{_name(task)}: on {task.node} from {task.start_s:.6g} to {task.end_s:.6g} s"
    yield f"why there: {inputs_of(task.reason)[0]}"
    if inputs := _inputs(task):
        for each in inputs:
            parent = outcome.by_name.get(f"{task.app}/{each.parent}")
            ended = f", which ended at {parent.end_s:.6g} s" if parent else ""
            yield f"input: from {each.parent} on {each.machine}{ended}; here at {each.ready_s:.6g} s"
    else:
        yield f"inputs: from no other task; its DAG arrived at {ready_s:.6g} s"
    yield f"waited: {_waited(outcome, task)}"


def _waited(outcome: SimulatedDags, task: TaskOutcome) -> str:
    """The reason why a task did not start as soon as its inputs were there."""
    ready_s = outcome.ready_s(task)
    if task.start_s <= ready_s:
        return "for no machine: it started when all it needs was there"
    before = sorted(
        (other for other in outcome.tasks if other.node == task.node and _is_between(other, ready_s, task)),
        key=lambda other: other.start_s,
    )
    busy_s = sum(other.end_s - max(other.start_s, ready_s) for other in before)
    others = [f"{_name(other)} ({other.start_s:.6g} to {other.end_s:.6g} s)" for other in before]
    words = [f"{task.start_s - ready_s:.6g} s, from {ready_s:.6g} s on"]
    if others:
        more = f" and {len(others) - _MOST_SHOWN} before" if len(others) > _MOST_SHOWN else ""
        words.append(f"{task.node} ran {', '.join(others[-_MOST_SHOWN:])}{more}")
    if busy_s < task.start_s - ready_s - 1e-6:
        words.append(
            f"for {task.start_s - ready_s - busy_s:.6g} s nothing that ended there ran on {task.node}: "
            "it joined later, what stood before waited for its inputs, or this task was planned elsewhere"
        )
    return "; ".join(words)


def _is_between(other: TaskOutcome, ready_s: float, task: TaskOutcome) -> bool:
    return other is not task and ready_s < other.end_s <= task.start_s and other.end_s > other.start_s


def _explain_dag(outcome: SimulatedDags, name: str) -> Iterator[str]:
    dag = outcome.dags[name]
    yield f"{name}: arrived at {dag.start_s:.6g} s, ended at {dag.end_s:.6g} s"
    yield f"makespan {dag.makespan_s:.6g} s, alone {dag.own_makespan_s:.6g} s, SD {dag.slowdown:.3f}"
    path = _longest_path(outcome, name)
    if not path:
        return
    runs_s = sum(task.end_s - task.start_s for task in path)
    waits_s = sum(max(0.0, task.start_s - outcome.ready_s(task)) for task in path)
    yield (
        f"its longest path as it ran: {len(path)} tasks, {runs_s:.6g} s of running, {waits_s:.6g} s of "
        f"waiting for machines, {max(0.0, dag.makespan_s - runs_s - waits_s):.6g} s of transfers"
    )
    for task in path:
        waited_s = max(0.0, task.start_s - outcome.ready_s(task))
        waited = f", after {waited_s:.6g} s of waiting for {task.node}" if waited_s else ""
        yield f"  {task.task}: on {task.node} from {task.start_s:.6g} to {task.end_s:.6g} s{waited}"


def _longest_path(outcome: SimulatedDags, name: str) -> Sequence[TaskOutcome]:
    """From a task without parents to the DAG's last end, by the parents whose outputs came last."""
    last = max(
        (task for task in outcome.tasks if task.app == name), key=lambda each: each.end_s, default=None
    )
    path: list[TaskOutcome] = []
    while last is not None and last not in path[-1:]:
        path.append(last)
        latest = next(iter(_inputs(last)), None)
        last = outcome.by_name.get(f"{name}/{latest.parent}") if latest else None
        if last is not None and last.end_s > path[-1].start_s:
            # A file that somebody wrote by hand.
            break
    return path[::-1]


@click.command()
@click.argument("names", metavar="[OUT.json] DAG|DAG/TASK", nargs=-1, required=True)
@application_option
def dag_explain(names: tuple[str, ...], application: str) -> None:
    """Say when, where and why a DAG or a task runs or ran, and what it waited for.

    OUT.json is what `--json` of `dag simulate` or `dag submit` wrote; without it the task service is asked.
    """
    if len(names) > 2:
        raise click.UsageError("give OUT.json and one name, or one name alone")
    if len(names) == 1:
        _, answer = asyncio.run(asked(RmClient.load(), application, "tasks-explain", {"task": names[0]}))
        click.echo(answer.get("text", ""))
        return
    for line in explain_name(read_outcome(Path(names[0])), names[1]):
        click.echo(line)

"""``yarn-accel dag explain``: why a DAG or a task goes as it does, by a run's JSON or the service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated

import click
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from yarn_accel.errors import ConfigError
from yarn_accel.hadoop.control import asked
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.launch.application_cli import application_option
from yarn_accel.sim.dag_inputs import InputArrival, inputs_of

#: Larger files are refused before they are read.
_MOST_BYTES = 1 << 30
_MOST_SHOWN = 20
_MOST_NEAREST = 3
_FORM = ConfigDict(frozen=True, allow_inf_nan=False)
_Seconds = Annotated[float, Field(ge=0)]


class _Task(BaseModel):
    model_config = _FORM

    dag: str
    task: str
    machine: str
    start: _Seconds
    end: _Seconds
    reason: str

    @property
    def name(self) -> str:
        return f"{self.dag}/{self.task}"

    @cached_property
    def inputs(self) -> list[InputArrival]:
        return inputs_of(self.reason)[1]


class _Dag(BaseModel):
    model_config = _FORM

    arrival: _Seconds
    end: _Seconds
    makespan: _Seconds
    own_makespan: _Seconds
    sd: float


class SimulatedDags(BaseModel):
    """The outcome of DAGs, read from the JSON of `dag simulate --json`; see docs/mps.md."""

    model_config = _FORM

    dags: dict[str, _Dag]
    tasks: tuple[_Task, ...]

    @cached_property
    def by_name(self) -> dict[str, _Task]:
        """Tasks as DAG/TASK."""
        return {task.name: task for task in self.tasks}

    def ready_s(self, task: _Task) -> float:
        """When it could have started there: its DAG had arrived, and its inputs had come."""
        return max([self.dags[task.dag].arrival, *(each.ready_s for each in task.inputs)])


def read_outcome(path: Path) -> SimulatedDags:
    """Read the JSON of a simulation.

    Raises:
        ConfigError: it cannot be read, or is no such JSON.
    """
    cure = "name what `yarn-accel dag simulate --json` wrote"
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path}: has {path.stat().st_size} bytes, more than {_MOST_BYTES}")
        found = SimulatedDags.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", cure=cure) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        words = f"{place}: {first['msg']}" if place else first["msg"]
        raise ConfigError(f"{path}: is no JSON of a simulation of DAGs: {words}", cure=cure) from None
    unknown = next((task.dag for task in found.tasks if task.dag not in found.dags), None)
    if unknown is not None:
        raise ConfigError(f"{path}: has tasks of DAG {unknown!r}, which is not among its dags", cure=cure)
    return found


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
    same = [task.name for task in outcome.tasks if task.task in (name, of_dag)]
    if dag in outcome.dags:
        what = f"DAG {dag} has no task {of_dag!r}"
        known = [task.name for task in outcome.tasks if task.dag == dag]
    else:
        what, known = f"no DAG or task is called {name!r}", [*outcome.dags, *outcome.by_name]
    near = same or get_close_matches(name, known, _MOST_NEAREST, 0.0)
    raise ConfigError(what, cure=f"the nearest: {', '.join(near[:_MOST_NEAREST]) or 'none'}")


def _explain_task(outcome: SimulatedDags, task: _Task) -> Iterator[str]:
    ready_s = outcome.ready_s(task)
    yield f"{task.name}: on {task.machine} from {task.start:.6g} to {task.end:.6g} s"
    yield f"why there: {inputs_of(task.reason)[0]}"
    if task.inputs:
        for each in task.inputs:
            parent = outcome.by_name.get(f"{task.dag}/{each.parent}")
            ended = f", which ended at {parent.end:.6g} s" if parent else ""
            yield f"input: from {each.parent} on {each.machine}{ended}; here at {each.ready_s:.6g} s"
    else:
        yield f"inputs: from no other task; its DAG arrived at {ready_s:.6g} s"
    yield f"waited: {_waited(outcome, task)}"


def _waited(outcome: SimulatedDags, task: _Task) -> str:
    """The reason why a task did not start as soon as its inputs were there."""
    ready_s = outcome.ready_s(task)
    if task.start <= ready_s:
        return "for no machine: it started when all it needs was there"
    before = sorted(
        (
            other
            for other in outcome.tasks
            if other.machine == task.machine and _is_between(other, ready_s, task)
        ),
        key=lambda other: other.start,
    )
    busy_s = sum(other.end - max(other.start, ready_s) for other in before)
    others = [f"{other.name} ({other.start:.6g} to {other.end:.6g} s)" for other in before]
    words = [f"{task.start - ready_s:.6g} s, from {ready_s:.6g} s on"]
    if others:
        more = f" and {len(others) - _MOST_SHOWN} before" if len(others) > _MOST_SHOWN else ""
        words.append(f"{task.machine} ran {', '.join(others[-_MOST_SHOWN:])}{more}")
    if busy_s < task.start - ready_s - 1e-6:
        words.append(
            f"for {task.start - ready_s - busy_s:.6g} s nothing that ended there ran on {task.machine}: "
            "it joined later, what stood before waited for its inputs, or this task was planned elsewhere"
        )
    return "; ".join(words)


def _is_between(other: _Task, ready_s: float, task: _Task) -> bool:
    return other is not task and other.end > ready_s and other.end <= task.start and other.end > other.start


def _explain_dag(outcome: SimulatedDags, name: str) -> Iterator[str]:
    dag = outcome.dags[name]
    yield f"{name}: arrived at {dag.arrival:.6g} s, ended at {dag.end:.6g} s"
    yield f"makespan {dag.makespan:.6g} s, alone {dag.own_makespan:.6g} s, SD {dag.sd:.3f}"
    path = _longest_path(outcome, name)
    if not path:
        return
    runs_s = sum(task.end - task.start for task in path)
    waits_s = sum(max(0.0, task.start - outcome.ready_s(task)) for task in path)
    yield (
        f"its longest path as it ran: {len(path)} tasks, {runs_s:.6g} s of running, {waits_s:.6g} s of "
        f"waiting for machines, {max(0.0, dag.makespan - runs_s - waits_s):.6g} s of transfers"
    )
    for task in path:
        waited_s = max(0.0, task.start - outcome.ready_s(task))
        waited = f", after {waited_s:.6g} s of waiting for {task.machine}" if waited_s else ""
        yield f"  {task.task}: on {task.machine} from {task.start:.6g} to {task.end:.6g} s{waited}"


def _longest_path(outcome: SimulatedDags, name: str) -> Sequence[_Task]:
    """From a task without parents to the DAG's last end, by the parents whose outputs came last."""
    last = max((task for task in outcome.tasks if task.dag == name), key=lambda each: each.end, default=None)
    path: list[_Task] = []
    while last is not None and last not in path[-1:]:
        path.append(last)
        latest = last.inputs[0] if last.inputs else None
        last = outcome.by_name.get(f"{name}/{latest.parent}") if latest else None
        if last is not None and last.end > path[-1].start:
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

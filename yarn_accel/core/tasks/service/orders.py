"""Makes the order of a worker of what it is to have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

from yarn_accel.core.tasks.applications import OPERATION_PROGRAM, AppDefinition, TaskDefinition
from yarn_accel.core.tasks.attempt_orders import AttemptId, AttemptOrder, FunctionCall, OutputFile, TaskFolder
from yarn_accel.core.tasks.records import Assignment, Drop, TaskWorker
from yarn_accel.core.tasks.service.settings import ServiceSettings
from yarn_accel.core.tasks.values import Form, FormDemand
from yarn_accel.core.tasks.worker_messages import MAX_LISTED, OrderNumber, WorkerOrder

#: To start at once on one worker; the rest of an order is for its queue.
MAX_STARTS = MAX_LISTED - 16


def has_news(worker: TaskWorker) -> bool:
    """Whether a worker's next order lists something new, or lists something no more that has not ended."""
    return any(each.listed_in is None for each in (*worker.starts.values(), *worker.queue)) or any(
        each.dropped_in is None for each in worker.dropped.values()
    )


def next_order(worker: TaskWorker, sequence: int, settings: ServiceSettings) -> WorkerOrder:
    """The next order of a worker; notes in what it lists, and lists no more, that this one does.

    Of a long queue only the first ones are listed. What was listed once stays so until it is dropped, since
    leaving it out would drop it.
    """
    listed = tuple(_listed(worker, settings))
    for assignment in listed:
        assignment.listed_in = assignment.listed_in or sequence
    for assignment in worker.dropped.values():
        if assignment.dropped_in is None:
            assignment.dropped_in = sequence
    return WorkerOrder(
        OrderNumber(settings.master_attempt, sequence),
        worker.incarnation,
        max(worker.report_sequence, 0),
        tuple(_attempt_order(assignment, settings.environments) for assignment in listed),
    )


def _listed(worker: TaskWorker, settings: ServiceSettings) -> Iterator[Assignment]:
    taken_back = [each for each in worker.dropped.values() if each.drop is Drop.TAKE_BACK]
    yield from worker.starts.values()
    yield from taken_back
    n_known = sum(each.listed_in is not None for each in worker.queue)
    n_new = MAX_LISTED - len(worker.starts) - len(taken_back) - n_known
    for position, each in enumerate(worker.queue):
        if each.listed_in is not None:
            yield each
        elif position < settings.listed_per_core * worker.spec.cores and n_new > 0:
            n_new -= 1
            yield each


def _demand_here(demand: FormDemand) -> FormDemand:
    """What the worker itself has to give: not the GPUs of a pipeline server."""
    return FormDemand(demand.cores, 0, demand.memory_bytes) if demand.is_served else demand


def attempt_order(
    app: AppDefinition,
    task: TaskDefinition,
    form: Form,
    attempt: AttemptId,
    environments: Mapping[str, str],
) -> AttemptOrder:
    """What a worker is to know of an attempt.

    Args:
        environments: name of a Python environment -> where it is.
    """
    program = task.program or app.programs[form]
    argv = program.command
    call = FunctionCall(program.function, program.arguments, program.archives) if program.function else None
    if program.operation:
        params = json.dumps(dict(program.params), separators=(",", ":"))
        argv = (OPERATION_PROGRAM, program.operation, params)
    return AttemptOrder(
        attempt=attempt,
        app=app.spec.app,
        task=task.task,
        form=form,
        argv=argv,
        demand=_demand_here(app.spec.demands[form]),
        input=task.input,
        output=OutputFile(app.output, task.output) if task.output else None,
        files=app.files,
        environment=tuple((dict(app.environment) | dict(task.environment)).items()),
        time_limit_s=app.time_limit_s if task.time_limit_s is None else task.time_limit_s,
        silence_limit_s=app.silence_limit_s,
        inputs=task.inputs,
        output_folder=TaskFolder(app.output, task.own_name, task.outputs) if task.outputs else None,
        function=call,
        python=environments.get(task.python_environment, ""),
    )


def _attempt_order(assignment: Assignment, environments: Mapping[str, str]) -> AttemptOrder:
    task, form = assignment.task, assignment.form
    order = attempt_order(task.app.definition, task.definition, form, assignment.attempt, environments)
    return replace(order, take_back=True) if assignment.drop is Drop.TAKE_BACK else order

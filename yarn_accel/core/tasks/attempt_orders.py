"""One attempt as the master orders it of a worker, and that as a document; a part of `worker_messages`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple, NewType

from yarn_accel.core.tasks.checked_document import CheckedObject
from yarn_accel.core.tasks.values import AppId, Form, FormDemand, TaskId

#: Characters of a function's arguments as JSON.
MAX_ARGUMENTS = 32 * 1024
#: Files that one task takes, and that it leaves.
MAX_TASK_FILES = 512
MAX_URI = 4096
_MAX_NAME = 200
_MAX_WORDS, _MAX_WORD = 1024, 32 * 1024
_MAX_VARIABLES = 256
_MAX_FILES = 64
_MAX_COUNT = 2**53
_MAX_S = 1e9
_MAX_CORES, _MAX_GPUS = 4096, 64

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_FUNCTION = re.compile(
    r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII
)
_ATTEMPT = re.compile(r"attempt_([0-9]{1,20}_[0-9]{1,10})_m_([0-9]{6,9})_([0-9]{1,6})\Z")
#: What is in a working folder already.
_TEMPORARY_FOLDER = "tmp"

#: Hadoop's form, ``attempt_1700000000000_0001_m_000003_0``: mappers read job, task and number from it.
AttemptId = NewType("AttemptId", str)


class AttemptNames(NamedTuple):
    """What Hadoop calls an attempt's job, task, partition and number."""

    job: str
    task: str
    partition: int
    number: int


def attempt_id(started_ms: int, job: int, partition: int, number: int) -> AttemptId:
    """The id of an attempt.

    Args:
        started_ms: when the service first started, as in YARN's ids.
        job: number of the application within the service.
        partition: number of the task within its application, from 0.
        number: of this attempt of the task, from 0.
    """
    return AttemptId(f"attempt_{started_ms}_{job:04d}_m_{partition:06d}_{number}")


def attempt_names(attempt: AttemptId) -> AttemptNames:
    """The parts of an attempt's id.

    Raises:
        ValueError: it is none.
    """
    match = _ATTEMPT.match(attempt)
    if match is None:
        raise ValueError(f"{attempt!r} is not like attempt_1700000000000_0001_m_000003_0")
    job, partition, number = match.groups()
    return AttemptNames(f"job_{job}", f"task_{job}_m_{partition}", int(partition), int(number))


@dataclass(frozen=True, slots=True)
class InputSplit:
    """A part of a file, cut into lines as TextInputFormat does.

    A split that does not begin the file skips its first line, whole or not; each goes on to the end of the
    line at, or after, its last byte. So splits side by side have every line once, wherever they meet.

    Attributes:
        with_keys: give mappers ``offset<TAB>line``, as any input format but TextInputFormat does.
    """

    uri: str
    start: int
    length: int
    with_keys: bool = False


@dataclass(frozen=True, slots=True)
class OutputFile:
    """Where the output goes: first to ``folder/_temporary/ATTEMPT``, when done to ``folder/name``."""

    folder: str
    name: str


def is_file_name(name: str) -> bool:
    """Whether a file of a working folder may be called so: no path, nothing hidden."""
    return len(name) <= _MAX_NAME and _FILE.match(name) is not None


def unfinished_uri(output_folder: str) -> str:
    """The folder below an output's own in which attempts write until they are done."""
    return f"{output_folder.rstrip('/')}/_temporary"


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """Where the files go that a task leaves: all at once to ``folder/name``, by the rename of one folder.

    Attributes:
        files: their names in the working folder of the command, plain ones; each must be there at its end.
    """

    folder: str
    name: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function that is called in place of a command.

    Attributes:
        function: ``module:name``; the module is one of the archives, or installed at the worker.
        arguments: JSON: an object of arguments by name, or a list of them.
        archives: those of the order's `files` that are put on ``sys.path``: zip files.
    """

    function: str
    arguments: str = "{}"
    archives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptOrder:
    """One attempt that a worker is to hold.

    Attributes:
        argv: the command; no shell interprets it. Empty where `function` is given.
        input: None: standard input is empty.
        output: None: standard output goes to the attempt's log.
        files: name in the working folder -> URI, as ``-files`` gives them.
        environment: more variables, as ``-cmdenv`` gives them.
        demand: its GPUs become its own devices; above its memory it is ended. 0 bytes: not watched.
        time_limit_s: 0: none.
        silence_limit_s: so long it may read nothing, write nothing and report nothing; 0: for ever.
        take_back: do not start it any more; if it runs already, it goes on.
        inputs: name in the working folder -> URI; fetched whole before the start, in the read phase.
        output_folder: None: what it leaves in its working folder is dropped. Not beside `output`: an attempt
            commits once.
        function: None: `argv` is run. It has no standard input, and its standard output goes to the log.
        python: the interpreter of a named environment, or the archive that has it; empty: the worker's own.
    """

    attempt: AttemptId
    app: AppId
    task: TaskId
    form: Form
    argv: tuple[str, ...]
    demand: FormDemand
    input: InputSplit | None = None
    output: OutputFile | None = None
    files: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    time_limit_s: float = 0.0
    silence_limit_s: float = 0.0
    take_back: bool = False
    inputs: tuple[tuple[str, str], ...] = ()
    output_folder: TaskFolder | None = None
    function: FunctionCall | None = None
    python: str = ""


def parse_attempt_id(source: CheckedObject) -> AttemptId:
    """The id under the key `attempt`."""
    return AttemptId(source.text("attempt", _MAX_NAME, _ATTEMPT))


def attempt_document(order: AttemptOrder) -> dict[str, Any]:
    """An attempt as `parse_attempt` reads it."""
    split, output, demand = order.input, order.output, order.demand
    folder, call = order.output_folder, order.function
    return {
        "attempt": order.attempt,
        "app": order.app,
        "task": order.task,
        "form": order.form.value,
        "argv": list(order.argv),
        "demand": {"cores": demand.cores, "gpus": demand.gpus, "memory_bytes": demand.memory_bytes},
        "input": split
        and {
            "uri": split.uri,
            "start": split.start,
            "length": split.length,
            "with_keys": split.with_keys,
        },
        "output": output and {"folder": output.folder, "name": output.name},
        "files": dict(order.files),
        "environment": dict(order.environment),
        "time_limit_s": order.time_limit_s,
        "silence_limit_s": order.silence_limit_s,
        "take_back": order.take_back,
        "inputs": dict(order.inputs),
        "output_folder": folder
        and {"folder": folder.folder, "name": folder.name, "files": list(folder.files)},
        "function": call
        and {
            "function": call.function,
            "arguments": call.arguments,
            "archives": list(call.archives),
        },
        "python": order.python,
    }


def parse_attempt(source: CheckedObject) -> AttemptOrder:
    """Read an attempt.

    Raises:
        RemoteProtocolError: names the place.
    """
    order = AttemptOrder(
        attempt=parse_attempt_id(source),
        app=AppId(source.text("app", _MAX_NAME, _NAME)),
        task=TaskId(source.text("task", _MAX_NAME, _NAME)),
        form=source.choice("form", Form),
        argv=source.texts("argv", _MAX_WORDS, _MAX_WORD),
        demand=_demand(source.below("demand")),
        input=None if source.is_null("input") else _input_split(source.below("input")),
        output=None if source.is_null("output") else _output_file(source.below("output")),
        files=source.text_pairs("files", _MAX_FILES, _FILE, MAX_URI),
        environment=source.text_pairs("environment", _MAX_VARIABLES, _VARIABLE, _MAX_WORD),
        time_limit_s=source.number("time_limit_s", _MAX_S),
        silence_limit_s=source.number("silence_limit_s", _MAX_S),
        take_back=source.flag("take_back"),
        inputs=source.text_pairs("inputs", MAX_TASK_FILES, _FILE, MAX_URI),
        output_folder=None
        if source.is_null("output_folder")
        else _task_folder(source.below("output_folder")),
        function=None if source.is_null("function") else _function_call(source.below("function")),
        python=source.text("python", MAX_URI),
    )
    source.close()
    _check_program(source, order)
    _check_names(source, order)
    return order


def _check_program(source: CheckedObject, order: AttemptOrder) -> None:
    if order.output is not None and order.output_folder is not None:
        raise source.error("output", "and output_folder exclude each other: an attempt commits once")
    if order.function is None:
        if not order.argv or not order.argv[0]:
            raise source.error("argv", "names no program")
    elif order.argv or order.input is not None or order.output is not None:
        raise source.error("function", "excludes argv, input and output: it has no standard input or output")


def _check_names(source: CheckedObject, order: AttemptOrder) -> None:
    """Each file of the working folder has a name of its own; what a task leaves was not put there."""
    given = [name for name, _ in (*order.files, *order.inputs)]
    left = order.output_folder.files if order.output_folder is not None else ()
    seen = {_TEMPORARY_FOLDER}
    for key, names in (("inputs", given), ("output_folder", left)):
        for name in names:
            if name in seen:
                raise source.error(key, f"has {name}, which is another file of the working folder")
            seen.add(name)
    shipped = {name for name, _ in order.files}
    for name in order.function.archives if order.function is not None else ():
        if name not in shipped:
            raise source.error("function", f"has the archive {name}, which is none of files")


def _task_folder(source: CheckedObject) -> TaskFolder:
    folder = TaskFolder(
        folder=source.text("folder", MAX_URI),
        name=source.text("name", _MAX_NAME, _FILE),
        files=source.texts("files", MAX_TASK_FILES, _MAX_NAME),
    )
    source.close()
    for name in folder.files:
        if not is_file_name(name):
            raise source.error("files", f"has {name!r}, which is no plain name of a file")
    return folder


def _function_call(source: CheckedObject) -> FunctionCall:
    call = FunctionCall(
        function=source.text("function", _MAX_NAME, _FUNCTION),
        arguments=source.text("arguments", MAX_ARGUMENTS),
        archives=source.texts("archives", _MAX_FILES, _MAX_NAME),
    )
    source.close()
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        raise source.error("arguments", "is no JSON") from None
    if not isinstance(arguments, dict | list):
        raise source.error("arguments", "is neither an object nor a list in JSON")
    return call


def _demand(source: CheckedObject) -> FormDemand:
    demand = FormDemand(
        cores=source.count("cores", _MAX_CORES),
        gpus=source.count("gpus", _MAX_GPUS),
        memory_bytes=source.count("memory_bytes", _MAX_COUNT),
    )
    source.close()
    return demand


def _input_split(source: CheckedObject) -> InputSplit:
    split = InputSplit(
        uri=source.text("uri", MAX_URI),
        start=source.count("start", _MAX_COUNT),
        length=source.count("length", _MAX_COUNT),
        with_keys=source.flag("with_keys"),
    )
    source.close()
    return split


def _output_file(source: CheckedObject) -> OutputFile:
    output = OutputFile(
        folder=source.text("folder", MAX_URI),
        name=source.text("name", _MAX_NAME, _FILE),
    )
    source.close()
    return output

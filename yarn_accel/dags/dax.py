"""DAX, the XML of Pegasus, versions 2 and 3: jobs, the files they use, and which job follows which.

Names of files are opaque. The parser is expat, with handlers for what a workflow needs: a document type, and
so any entity, is refused.
"""

from __future__ import annotations

from pathlib import Path
from xml.parsers import expat

from yarn_accel.core.dags.model import MOST_EDGES, MOST_TASKS, Dag
from yarn_accel.core.units import MAX_BYTES, MAX_SECONDS
from yarn_accel.dags.file_edges import FileTask, check_file_id, dag_of_file_tasks
from yarn_accel.errors import ConfigError

_MOST_DEPTH = 64
_LONGEST_VALUE = 65536


def read_dax(path: Path) -> Dag:
    """Read a workflow.

    Raises:
        ConfigError: names the file, the line, and what is wrong there.
    """
    try:
        return dag_of_dax(path.read_bytes(), path.stem, str(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def dag_of_dax(document: bytes, name: str, place: str) -> Dag:
    """A workflow from what a file says; see `read_dax`."""
    reader = _DaxReader()
    try:
        reader.parse(document)
    except expat.ExpatError as error:
        raise ConfigError(f"{place}: line {error.lineno}: not XML: {expat.ErrorString(error.code)}") from None
    except ConfigError as error:
        line = reader.parser.CurrentLineNumber
        raise ConfigError(f"{place}: line {line}: {error.message}", cure=error.cure) from None
    try:
        return reader.dag(name)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.message}", cure=error.cure) from None


class _DaxReader:
    """Follows the elements; everything it does not know is passed over."""

    def __init__(self) -> None:
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = _refuse
        self.parser.EntityDeclHandler = _refuse
        self.parser.ExternalEntityRefHandler = _refuse
        self._path: list[str] = []
        self._tasks: dict[str, FileTask] = {}
        self._job: FileTask | None = None
        self._runtime_text: str | None = None
        self._child = ""
        self._sizes: dict[str, float] = {}
        self._made: set[str] = set()
        self._given: set[str] = set()
        self._n_edges = 0

    def parse(self, document: bytes) -> None:
        """Go through it."""
        self.parser.Parse(document, True)

    def dag(self, name: str) -> Dag:
        """What was read."""
        if not self._tasks:
            raise ConfigError("has no jobs")
        for task in self._tasks.values():
            for parent in task.after:
                if parent not in self._tasks:
                    raise ConfigError(f"job {task.task}: its parent {parent} is no job of this workflow")
            if task.runtime_s is None:
                raise ConfigError(f"job {task.task}: has no runtime")
        return dag_of_file_tasks(name, self._tasks.values(), self._sizes, self._given - self._made)

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if len(self._path) >= _MOST_DEPTH:
            raise ConfigError(f"elements are nested more than {_MOST_DEPTH} deep")
        kind = tag.rpartition(":")[2]
        if not self._path and kind != "adag":
            raise ConfigError(f"the outermost element is <{tag[:60]}>, not <adag>: no DAX")
        self._path.append(kind)
        if kind in ("job", "dag", "dax") and len(self._path) == 2:
            self._start_job(attributes)
        elif kind == "uses" and self._job is not None:
            self._use(self._job, attributes)
        elif kind == "file" and len(self._path) == 2:
            self._given.add(check_file_id(_needed(attributes, "name", "file")))
        elif kind == "profile" and self._job is not None and attributes.get("key") == "runtime":
            self._runtime_text = ""
        elif kind == "child":
            self._child = _needed(attributes, "ref", "child")
            if self._child not in self._tasks:
                raise ConfigError(f"child {self._child} is no job of this workflow")
        elif kind == "parent":
            self._follow(_needed(attributes, "ref", "parent"))

    def _end(self, tag: str) -> None:
        kind = self._path.pop()
        if kind == "profile" and self._runtime_text is not None and self._job is not None:
            self._job.runtime_s = _number(
                self._runtime_text.strip(), f"job {self._job.task}: runtime", MAX_SECONDS
            )
            self._runtime_text = None
        elif len(self._path) == 1:
            self._job = None

    def _text(self, text: str) -> None:
        if self._runtime_text is not None and len(self._runtime_text) < _LONGEST_VALUE:
            self._runtime_text += text

    def _start_job(self, attributes: dict[str, str]) -> None:
        task = _needed(attributes, "id", "job")
        if task in self._tasks:
            raise ConfigError(f"job {task} is given twice")
        if len(self._tasks) >= MOST_TASKS:
            raise ConfigError(f"more than {MOST_TASKS} jobs")
        runtime = attributes.get("runtime")
        seconds = None if runtime is None else _number(runtime, f"job {task}: runtime", MAX_SECONDS)
        self._job = self._tasks[task] = FileTask(task, seconds)

    def _use(self, job: FileTask, attributes: dict[str, str]) -> None:
        file = check_file_id(attributes.get("file") or _needed(attributes, "name", "uses"))
        link = attributes.get("link", "input")
        if "size" in attributes:
            size = _number(attributes["size"], f"job {job.task}: size of {file}", MAX_BYTES)
            # What its maker says of a file's size counts.
            if link == "output" or file not in self._made:
                self._sizes[file] = size
            if link == "input":
                self._given.add(file)
        if link in ("output", "inout"):
            job.outputs.append(file)
            self._made.add(file)
        if link in ("input", "inout"):
            job.inputs.append(file)

    def _follow(self, parent: str) -> None:
        if not self._child:
            raise ConfigError("a <parent> stands outside of a <child>")
        self._n_edges += 1
        if self._n_edges > MOST_EDGES:
            raise ConfigError(f"more than {MOST_EDGES} edges")
        self._tasks[self._child].after[parent] = 0.0


def _refuse(*_: object) -> int:
    raise ConfigError("has a document type or an entity, which a workflow does not need", cure="remove it")


def _needed(attributes: dict[str, str], key: str, tag: str) -> str:
    value = attributes.get(key, "")
    if not value or len(value) > _LONGEST_VALUE:
        raise ConfigError(f"a <{tag}> has no {key}")
    return value


def _number(text: str, what: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{what}: {text[:60]!r} is no number") from None
    if not 0 <= value <= most:
        raise ConfigError(f"{what}: expected a number from 0 to {most:g}, found {text[:60]!r}")
    return value

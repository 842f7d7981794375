"""Builds a DAG in Python: functions of importable modules and commands as tasks, and submits it."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from yarn_accel.adapters.settings_file import complaints
from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.core.tasks.applications import AppDefinition
from yarn_accel.dags.own_file import DagFile
from yarn_accel.errors import ConfigError
from yarn_accel.storage import Store
from yarn_accel.tasks.archives import package_archive
from yarn_accel.tasks.dag_handle import DagHandle
from yarn_accel.tasks.dag_planning import plan_dag, with_uris
from yarn_accel.tasks.inline_dag import run_inline
from yarn_accel.tasks.service_link import ClusterLink, ServiceLink
from yarn_accel.tasks.submission import submit_definition

_PACKAGES = "packages.zip"


class DagBuilder:
    """A DAG that grows task by task.

    >>> from yarn_accel.tasks import DagBuilder
    >>> dag = DagBuilder("sums")
    >>> half = dag.call("half", "operator:truediv", [10, 2])
    >>> dag.run_inline()["half"]
    5.0

    Args:
        name: under which is learned how long its tasks take; a run of it has a name of its own.
        output: folder, not there yet, that gets a folder of each task that makes files.
        packages: packages and modules of this interpreter that travel as a zip file.
        archives: zip files that travel, of this machine or in HDFS; `FILE#NAME` gives another name.
        files: further files that are put into each task's folder.
        settings: more keys of DAG.yaml: `memory_mib`, `max_attempts`, `may_interrupt`, `environment`,
            `python_environment`, `time_limit_s`, `silence_limit_s`.

    Without packages and archives workers import from the environment that they run in: `environment` of
    launch.yaml names it.
    """

    def __init__(
        self,
        name: str,
        *,
        output: str = "",
        packages: Iterable[str] = (),
        archives: Iterable[str] = (),
        files: Iterable[str] = (),
        **settings: Any,
    ) -> None:
        self._packages = tuple(packages)
        self._document: dict[str, Any] = {
            **settings,
            "name": name,
            "output": output,
            "archives": tuple(archives),
            "files": tuple(files),
        }
        self._inputs: dict[str, dict[str, Any]] = {}
        self._tasks: list[dict[str, Any]] = []

    def give(self, file: str, uri: str, n_bytes: float = 0) -> str:
        """Name a file that is there before the first task; returns its name.

        Args:
            file: what tasks call it.
            uri: where it lies, or a file of this machine that all nodes see.
            n_bytes: its length, as planning believes it.
        """
        self._inputs[file] = {"uri": uri, "bytes": n_bytes}
        return file

    def call(
        self,
        task: str,
        function: Callable[..., Any] | str,
        arguments: Mapping[str, Any] | Iterable[Any] = (),
        **keys: Any,
    ) -> str:
        """Add a task that calls a function; returns the task's name.

        The function runs in a folder of its own that has the task's inputs, and leaves its outputs there.

        Args:
            task: its name in the DAG.
            function: of an importable module, itself or as text: MODULE:NAME.
            arguments: by name or in order, of what JSON has.
            keys: more keys of a task in DAG.yaml: `after`, `inputs`, `outputs` (names, or names with bytes),
                `kind`, `runtime_s`, `environment`, `python_environment`, `time_limit_s`.

        Raises:
            ConfigError: nobody else could import the function, or JSON does not have the arguments.
        """
        given = dict(arguments) if isinstance(arguments, Mapping) else list(arguments)
        try:
            given = json.loads(json.dumps(given, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"task {task}: arguments: {error}",
                cure="give what JSON has; arrays as files",
            ) from None
        return self._add(task, {"function": function_name(function), "arguments": given}, keys)

    def run(self, task: str, command: Iterable[str], **keys: Any) -> str:
        """Add a task that runs a command, which no shell reads; returns the task's name.

        Args:
            command: program and arguments; `./NAME` is one of the DAG's files, or of the task's inputs.
            keys: as of `call`.
        """
        return self._add(task, {"command": tuple(command)}, keys)

    def _add(self, task: str, program: dict[str, Any], keys: Mapping[str, Any]) -> str:
        outputs = keys.get("outputs", ())
        made = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs, 0)
        after = keys.get("after", ())
        after = dict(after) if isinstance(after, Mapping) else list(after)
        inputs = list(keys.get("inputs", ()))
        self._tasks.append(
            {**keys, **program, "id": task, "outputs": dict(made), "inputs": inputs, "after": after}
        )
        return task

    def plan(self, store: Store, priority_class: str = "basic", dag_id: str = "") -> AppDefinition:
        """All of it, checked, with the archive of its packages left out; what `submit` would submit.

        Raises:
            ConfigError: what is wrong, where, and the cure.
        """
        return self._planned(store, priority_class, dag_id, ())

    def submit(
        self,
        application: str = "",
        *,
        priority_class: str = "basic",
        dag_id: str = "",
        link: ServiceLink | None = None,
    ) -> DagHandle:
        """Submit it to the task service of the cluster that ``HADOOP_CONF_DIR`` names.

        Args:
            application: id of the application that has the service; default: the only one that runs.
            priority_class: preemptive, high or basic.
            dag_id: name of this run; default: a new one.
            link: another way to a service.

        Raises:
            ConfigError: what is wrong with the DAG, where, and the cure.
            RejectedError: the service refuses it; says why.
            UnavailableError: there is no service, or it does not answer.
        """
        reached = link or ClusterLink(application)
        store = reached.store()
        run_id = dag_id or f"{self._document['name']}-{uuid.uuid4().hex[:8]}"
        with self._archive() as archives:
            definition = self._planned(store, priority_class, run_id, archives)
            reached.run(lambda ask: submit_definition(ask, store, definition))
        return DagHandle(reached, definition)

    def run_inline(self, store: Store | None = None) -> dict[str, Any]:
        """Run it in this process, task by task; what functions returned, by task.

        Raises:
            ConfigError: what is wrong with the DAG.
            JobError: a task failed.
        """
        files = Store() if store is None else store
        return run_inline(self._planned(files, "basic", "", ()), files)

    @contextlib.contextmanager
    def _archive(self) -> Iterator[tuple[str, ...]]:
        if not self._packages:
            yield ()
            return
        with tempfile.TemporaryDirectory(prefix="accel-dag-") as folder:
            yield (str(package_archive(self._packages, Path(folder) / _PACKAGES)),)

    def _planned(
        self, store: Store, priority_class: str, dag_id: str, archives: tuple[str, ...]
    ) -> AppDefinition:
        classes = {each.word: each for each in PriorityClass}
        if priority_class not in classes:
            raise ConfigError(
                f"no class is called {priority_class!r}", cure=f"give one of {', '.join(classes)}"
            )
        document = {**self._document, "inputs": self._inputs, "tasks": self._tasks}
        document["archives"] = (*document["archives"], *archives)
        try:
            file = DagFile.model_validate(document)
        except ValidationError as error:
            raise ConfigError(f"DAG {document['name']}: {complaints(error, DagFile)}") from None
        named = with_uris(file, Path.cwd(), f"DAG {document['name']}")
        return plan_dag(named, classes[priority_class], store, dag_id)


_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*\Z", re.ASCII)


def function_name(function: Callable[..., Any] | str) -> str:
    """A function as MODULE:NAME, by which a worker finds it.

    >>> from posixpath import join
    >>> function_name(join), function_name("mypackage.steps:clean")
    ('posixpath:join', 'mypackage.steps:clean')

    Raises:
        ConfigError: nobody else could import it: a lambda, a function within another one, a method, one of
            the program itself; says what to do.
    """
    if isinstance(function, str):
        if not _NAME.match(function):
            raise ConfigError(f"function {function[:200]!r}: expected MODULE:NAME")
        return function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name:
        raise ConfigError(
            f"{type(function).__name__} {str(function)[:100]}: is no function of a module",
            cure="write a function with `def` in a module, and give what differs as arguments",
        )
    if "<lambda>" in name or "<locals>" in name or "." in name:
        what = "a lambda" if "<lambda>" in name else "a method" if "<locals>" not in name else "a closure"
        raise ConfigError(
            f"{module}:{name} is {what}, which nobody can import",
            cure="write a function at the top of a module, and give what differs as arguments",
        )
    if module == "__main__":
        raise ConfigError(
            f"{name} is a function of the program itself, which workers do not have",
            cure="move it to a module of a package, and name that package in `packages`",
        )
    if getattr(sys.modules.get(module), name, None) is not function:
        raise ConfigError(
            f"{module}:{name} is another object than this function",
            cure="give the name under which the module has it, as text: MODULE:NAME",
        )
    return f"{module}:{name}"

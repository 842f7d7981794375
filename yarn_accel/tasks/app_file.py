"""APP.yaml: what the owner of an application writes, with every default."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from yarn_accel.adapters.settings_file import complaints, read_settings
from yarn_accel.core.tasks.values import Form
from yarn_accel.core.units import MAX_BYTES, MAX_SECONDS
from yarn_accel.errors import AccelError, ConfigError, RejectedError
from yarn_accel.operations import OPERATIONS, get
from yarn_accel.operations.operation import Operation
from yarn_accel.uris import is_uri, split_uri
from yarn_accel.wire import TensorSpec

_FORBID = ConfigDict(frozen=True, extra="forbid")
_MIB = 1024 * 1024
_MAX_BYTES = 2**50
_MAX_ENVIRONMENT = 100
_MAX_FILES = 60
_MAX_WORD = 32 * 1024
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")


class TaskProgram(BaseModel):
    """What a task runs: a command, or an operation."""

    model_config = _FORBID

    command: tuple[str, ...] = Field(
        (), max_length=1000, description="program and arguments; no shell reads them"
    )
    operation: str = Field("", description="an operation on files that lines name, in place of a command")
    params: dict[str, Any] = Field(default_factory=dict, description="the operation's parameters")

    @field_validator("command")
    @classmethod
    def _check_command(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if command:
            check_command(command)
        return command

    @model_validator(mode="after")
    def _check_program(self) -> TaskProgram:
        if bool(self.command) == bool(self.operation):
            raise ValueError("give either a command or an operation")
        if self.params and not self.operation:
            raise ValueError("params belong to an operation; a command has its own arguments")
        if self.operation:
            _check_operation(self.operation, self.params)
        return self


class CpuProgram(TaskProgram):
    """How a task computes on cores; an operation computes in the task's own process."""

    cores: int = Field(1, ge=1, le=1024, description="cores that it occupies")


class GpuProgram(TaskProgram):
    """How a task computes on a GPU; an operation computes on that of a pipeline server."""

    gpus: int = Field(1, ge=1, le=64, description="GPUs that it occupies")
    cores: int = Field(1, ge=1, le=1024, description="cores that it occupies beside them")

    @model_validator(mode="after")
    def _check_device(self) -> GpuProgram:
        if self.operation and "cuda" not in get(self.operation).forms:
            able = ", ".join(sorted(each.name for each in OPERATIONS.values() if "cuda" in each.forms))
            raise ValueError(
                f"operation {self.operation!r} has no form for GPUs; those that have one: {able}"
            )
        return self


class FormTimes(BaseModel):
    """How long one task takes that nobody disturbs."""

    model_config = _FORBID

    read_s: float = Field(
        0.0, ge=0, le=MAX_SECONDS, description="seconds in which it reads its split, before it computes"
    )
    compute_s: float = Field(
        0.0,
        ge=0,
        le=MAX_SECONDS,
        description="seconds after that; 0 for a form that reads all along, as a streaming mapper does",
    )

    @model_validator(mode="after")
    def _check_sum(self) -> FormTimes:
        if self.read_s + self.compute_s <= 0:
            raise ValueError("read_s and compute_s are both 0; a task takes time: give one of them")
        return self


class DeclaredFigures(BaseModel):
    """What the owner knows of the tasks; what is not declared is learned from the first ones."""

    model_config = _FORBID

    split_bytes: float | None = Field(
        None,
        gt=0,
        le=MAX_BYTES,
        description="bytes that one task reads; default: the application's split_bytes",
    )
    cpu: FormTimes | None = Field(None, description="read_s and compute_s of the CPU form")
    gpu: FormTimes | None = Field(None, description="read_s and compute_s of the GPU form")
    accelerators: dict[str, FormTimes] = Field(
        default_factory=dict, description="the same by kind of GPU, where it differs from gpu"
    )


class AppConfig(BaseModel):
    """One application: its input, and what each task of it runs."""

    model_config = _FORBID

    name: str = Field(pattern=_NAME, description="its name, under which is learned how long its tasks take")
    input: tuple[str, ...] = Field(
        (), max_length=10_000, description="files, or folders of files, of HDFS or of this machine, to be cut"
    )
    split_bytes: int = Field(
        128 * _MIB,
        ge=1,
        le=_MAX_BYTES,
        description="about so many bytes of input are one task's; lines stay whole",
    )
    manifest: str = Field("", description="in place of input: a file of which each line is one task's input")
    with_keys: bool = Field(
        False, description="give commands `offset<TAB>line`, as Hadoop does but for TextInputFormat"
    )
    output: str = Field(
        min_length=1, description="folder, not there yet, that gets one file of output of each task"
    )
    priority: int = Field(0, ge=-1000, le=1000, description="higher ones are served first")
    max_attempts: int = Field(4, ge=1, le=100, description="a task that fails so often fails the application")
    timeout_s: float = Field(
        0.0, ge=0, le=MAX_SECONDS, description="an attempt that runs longer has failed; 0: no limit"
    )
    silence_timeout_s: float = Field(
        600.0,
        ge=0,
        le=MAX_SECONDS,
        description="so has one that reads, writes and reports nothing for so long; 0: no limit",
    )
    memory_mib: int = Field(512, ge=1, le=2**24, description="an attempt that occupies more has failed")
    cpu: CpuProgram | None = Field(None, description="the CPU form")
    gpu: GpuProgram | None = Field(None, description="the GPU form")
    figures: DeclaredFigures | None = Field(None, description="how long its tasks take")
    environment: dict[str, str] = Field(
        default_factory=dict, description="further environment variables of the commands"
    )
    files: tuple[str, ...] = Field(
        (),
        max_length=_MAX_FILES,
        description="files put into the folder in which each task runs; `FILE#NAME` gives another name",
    )

    @field_validator("input", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("environment")
    @classmethod
    def _check_environment(cls, values: dict[str, str]) -> dict[str, str]:
        check_environment(values)
        return values

    @field_validator("files")
    @classmethod
    def _check_files(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        shipped_files(values)
        return values

    @model_validator(mode="after")
    def _check_input(self) -> AppConfig:
        if bool(self.input) == bool(self.manifest):
            raise ValueError("give either input or manifest")
        if self.manifest and "split_bytes" in self.model_fields_set:
            raise ValueError("split_bytes: a manifest is not cut, each of its lines is one task")
        return self

    @model_validator(mode="after")
    def _check_forms(self) -> AppConfig:
        if self.cpu is None and self.gpu is None:
            raise ValueError("give at least one form, cpu or gpu")
        if self.figures is None:
            return self
        has_gpu = self.figures.gpu is not None or self.figures.accelerators
        if (self.figures.cpu is not None and self.cpu is None) or (has_gpu and self.gpu is None):
            raise ValueError("figures: of a form that the application does not have")
        if self.manifest and self.figures.split_bytes is None:
            raise ValueError("figures.split_bytes: say how many bytes a task reads, as there is a manifest")
        return self

    def forms(self) -> Mapping[Form, CpuProgram | GpuProgram]:
        """The forms that it has."""
        both = {Form.CPU: self.cpu, Form.GPU: self.gpu}
        return {form: each for form, each in both.items() if each is not None}


def load_app(path: Path) -> AppConfig:
    """Read an APP.yaml. Local files in it are named relative to its folder.

    Raises:
        ConfigError: names the file and the key, and for an unknown key the known ones.
    """
    try:
        return parse_app(read_settings(path), path.resolve().parent)
    except ConfigError as error:
        if error.message.startswith(str(path)):
            raise
        raise ConfigError(f"{path}: {error.message}", cure=error.cure) from None


def parse_app(values: Mapping[str, Any], folder: Path) -> AppConfig:
    """An application from the values of an APP.yaml; its files become URIs.

    Args:
        folder: what local files are relative to.

    Raises:
        ConfigError: names the key, and for an unknown key the known ones.
    """
    try:
        app = AppConfig.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(complaints(error, AppConfig)) from None
    return app.model_copy(
        update={
            "input": tuple(uri_of("input", each, folder) for each in app.input),
            "manifest": app.manifest and uri_of("manifest", app.manifest, folder),
            "output": uri_of("output", app.output, folder),
            "files": tuple(
                f"{uri_of('files', place, folder)}#{name}" for name, place in shipped_files(app.files)
            ),
        }
    )


def file_name(file: str) -> str:
    """What a file of `files` is called in the folder of a task.

    >>> file_name("lib/mapper.py"), file_name("hdfs:///lib/model-7.bin#model.bin")
    ('mapper.py', 'model.bin')
    """
    place, name = _place_and_name(file)
    return name or place.rpartition("/")[2]


def _place_and_name(file: str) -> tuple[str, str]:
    """FILE#NAME in parts; names have no ``#``, so the last one divides."""
    place, mark, name = file.rpartition("#")
    return (place, name) if mark else (file, "")


def shipped_files(values: Sequence[str]) -> list[tuple[str, str]]:
    """Files that travel, as a file of settings names them: name in the working folder, place.

    Raises:
        ValueError: a name that is none, or that two of them have; says which.
    """
    files = [(file_name(each), _place_and_name(each)[0]) for each in values]
    names = [name for name, _ in files]
    for name in names:
        if not _FILE.match(name):
            raise ValueError(f"{name!r} is no name of a file: of letters, digits and . _ -")
        if names.count(name) > 1:
            raise ValueError(f"two files are called {name}; give one another name, as FILE#NAME")
    if len(files) > _MAX_FILES:
        raise ValueError(f"{len(files)} files; at most {_MAX_FILES} are taken")
    return files


def check_environment(values: Mapping[str, str]) -> None:
    """Refuse variables that no process could have.

    Raises:
        ValueError: says which.
    """
    if len(values) > _MAX_ENVIRONMENT:
        raise ValueError(f"{len(values)} variables; at most {_MAX_ENVIRONMENT} are taken")
    for name, value in values.items():
        if not _VARIABLE.match(name):
            raise ValueError(f"{name!r} is no name of a variable")
        if "\0" in value or len(value) > _MAX_WORD:
            raise ValueError(f"{name}: a value has no NUL and at most {_MAX_WORD} characters")


def uri_of(key: str, place: str, folder: Path) -> str:
    """A place as a URI without anything to resolve.

    Args:
        key: where it stands, for the error.
        folder: what a local file is relative to.

    Raises:
        ConfigError: it is of an unknown scheme, has `..`, or names nothing.
    """
    if not is_uri(place):
        # `..` is refused below and not resolved here: an output must lie where it seems to.
        place = f"file://{folder / place}"
    try:
        scheme, authority, path = split_uri(place)
    except AccelError as error:
        raise ConfigError(f"{key}: {error.message}", cure=error.cure) from None
    if path == "/":
        raise ConfigError(f"{key}: {place}: names no file and no folder")
    return f"{scheme}://{authority}{path}"


def check_command(command: Sequence[str]) -> None:
    """Refuse a command that no process could have.

    Raises:
        ValueError: says why.
    """
    if not command[0].strip():
        raise ValueError("names no program")
    for word in command:
        if "\0" in word or len(word) > _MAX_WORD:
            raise ValueError(f"an argument has no NUL and at most {_MAX_WORD} characters")


def _check_operation(name: str, params: Mapping[str, Any]) -> None:
    try:
        operation = get(name)
        json.dumps(params, allow_nan=False)
        check_params(operation, params)
    except RejectedError as error:
        raise ValueError(error.message) from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"params: {error}") from None


_ORDER = 1 << 20
_SQUARE = TensorSpec("<f8", (_ORDER, _ORDER))
_PIVOTS = TensorSpec("<i4", (_ORDER,))
#: Inputs, so large that no parameter is too large for them; an operation takes some of these.
_INPUTS = (
    (_SQUARE,),
    (_SQUARE, _SQUARE),
    (_SQUARE, _PIVOTS, _SQUARE),
    (_SQUARE, _SQUARE, _PIVOTS),
    (TensorSpec("|u1", (_ORDER,)), TensorSpec("<i8", (1,))),
)


def check_params(operation: Operation, params: Mapping[str, Any]) -> None:
    """Refuse parameters that the operation refuses whatever its inputs are.

    An operation checks parameters and inputs together, so it is asked with inputs of several kinds. One that
    takes none of them judges its parameters when a task runs.

    Raises:
        RejectedError: ``bad-parameter``, as the operation says it.
    """
    refusals = []
    for specs in _INPUTS:
        try:
            operation.check(operation.computed_specs(specs, params), params)
        except RejectedError as error:
            refusals.append(error)
        else:
            return
    bad = [error for error in refusals if error.code == "bad-parameter"]
    if bad:
        raise bad[0]

"""Makes of an APP.yaml what a task service takes: looks at its files, and cuts its input into tasks."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator

from yarn_accel.core.tasks.applications import AppDefinition, FormProgram, TaskDefinition, check_definition
from yarn_accel.core.tasks.attempt_orders import InputSplit
from yarn_accel.core.tasks.values import AppFigures, AppId, AppSpec, Form, FormDemand, FormFigures, TaskId
from yarn_accel.errors import ConfigError
from yarn_accel.storage import Store
from yarn_accel.tasks.app_file import AppConfig, CpuProgram, FormTimes, GpuProgram
from yarn_accel.tasks.place_checks import (
    check_output_place,
    check_program,
    check_shipped,
    n_bytes_of,
)
from yarn_accel.tasks.split import SizedFile, cut, cut_lines

_MIB = 1024 * 1024
_MAX_MANIFEST_BYTES = 256 * _MIB
_MAX_FILES = 100_000
_N_THREADS = 8
_COMPRESSED = (".bz2", ".deflate", ".gz", ".lz4", ".snappy", ".xz", ".zst")


def plan_app(app: AppConfig, storage: Store, app_id: str = "") -> AppDefinition:
    """All tasks of an application.

    Args:
        app_id: its name in the service, where several with one `name` may run; default: the name.

    Raises:
        ConfigError: something is missing, empty, too much, or in the way; names the key, the place and the
            cure.
        StorageError: HDFS did not answer.
    """
    files = tuple((name, uri) for uri, _, name in (each.rpartition("#") for each in app.files))
    _check_places(app, files, storage)
    splits = _splits(app, storage)
    check_output_place(app.output, (*app.input, app.manifest), storage)
    name = AppId(app_id or app.name)
    demands = {form: _demand(each, app.memory_mib * _MIB) for form, each in app.forms().items()}
    tasks = tuple(
        TaskDefinition(TaskId(f"{name}/{number:06d}"), input=split, output=f"part-{number:05d}")
        for number, split in enumerate(splits)
    )
    definition = AppDefinition(
        AppSpec(name, app.name, app.priority, len(tasks), demands, _figures(app)),
        _programs(app),
        tasks,
        app.output,
        app.max_attempts,
        app.timeout_s,
        app.silence_timeout_s,
        tuple(sorted(app.environment.items())),
        files,
    )
    check_definition(definition)
    return definition


def _demand(program: CpuProgram | GpuProgram, memory_bytes: int) -> FormDemand:
    if isinstance(program, GpuProgram):
        return FormDemand(program.cores, program.gpus, memory_bytes, is_served=bool(program.operation))
    return FormDemand(program.cores, 0, memory_bytes)


def _programs(app: AppConfig) -> dict[Form, FormProgram]:
    return {
        form: FormProgram(each.command, each.operation, each.params) for form, each in app.forms().items()
    }


def _figures(app: AppConfig) -> AppFigures | None:
    declared = app.figures
    if declared is None:
        return None
    forms = {Form.CPU: declared.cpu, Form.GPU: declared.gpu}
    return AppFigures(
        declared.split_bytes or float(app.split_bytes),
        {form: _form_figures(times) for form, times in forms.items() if times is not None},
        {kind: _form_figures(times) for kind, times in declared.accelerators.items()},
    )


def _form_figures(times: FormTimes) -> FormFigures:
    return FormFigures(times.read_s, times.compute_s)


def _check_places(app: AppConfig, files: tuple[tuple[str, str], ...], storage: Store) -> None:
    shipped = [name for name, _ in files]
    for form, each in app.forms().items():
        if each.command:
            check_program(f"{form.value}.command", each.command[0], shipped)
    programs = [each.command[0] for each in app.forms().values() if each.command]
    check_shipped("files", files, programs, storage)


# ---- input


def _splits(app: AppConfig, storage: Store) -> tuple[InputSplit, ...]:
    if app.manifest:
        if n_bytes_of("manifest", app.manifest, storage) is None:
            raise ConfigError(f"manifest: {app.manifest} is a folder", cure="name one file")
        content = storage.read_bytes(app.manifest, _MAX_MANIFEST_BYTES)
        splits = cut_lines(app.manifest, content, app.with_keys)
        place = f"manifest: {app.manifest}"
    else:
        splits = cut(_sized_files(app, storage), app.split_bytes, app.with_keys)
        place = f"input: {', '.join(app.input[:5])}"
    if not splits:
        raise ConfigError(f"{place}: is empty, so there are no tasks", cure="name files with content")
    return splits


def _sized_files(app: AppConfig, storage: Store) -> list[SizedFile]:
    """The files of the input with their sizes, each once."""
    uris: dict[str, int | None] = {}
    for place in app.input:
        n_bytes = n_bytes_of("input", place, storage)
        if n_bytes is None:
            uris.update((each, None) for each in _files_of(place, storage) if each not in uris)
        else:
            uris[place] = n_bytes
    if len(uris) > _MAX_FILES:
        raise ConfigError(f"input: {len(uris)} files; at most {_MAX_FILES} are taken", cure="join files")
    for uri in uris:
        if uri.endswith(_COMPRESSED):
            raise ConfigError(f"input: {uri} is compressed, which is not read", cure="decompress it first")
    unknown = [uri for uri, n_bytes in uris.items() if n_bytes is None]
    with concurrent.futures.ThreadPoolExecutor(_N_THREADS) as pool:
        sizes = pool.map(lambda uri: n_bytes_of("input", uri, storage), unknown)
        for uri, n_bytes in zip(unknown, sizes, strict=True):
            if n_bytes is None:
                raise ConfigError(
                    f"input: {uri} is a folder in a folder, which is not searched",
                    cure="name it in `input` by itself, or move it away",
                )
            uris[uri] = n_bytes
    return [SizedFile(uri, n_bytes or 0) for uri, n_bytes in uris.items()]


def _files_of(folder: str, storage: Store) -> Iterator[str]:
    """What a folder has, without the names that Hadoop leaves out."""
    for uri in storage.list(folder):
        if not uri.rpartition("/")[2].startswith((".", "_")):
            yield uri

"""Gives an application to a task service: its files go to the cluster's storage first."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from yarn_accel.core.tasks.applications import AppDefinition
from yarn_accel.core.tasks.service.submission import app_document
from yarn_accel.errors import ConfigError, JobError
from yarn_accel.local_filesystem import pieces
from yarn_accel.storage import Store
from yarn_accel.tasks.resuming import (
    delete_stale,
    done_tasks,
    read_record,
    record_of,
    without_done,
)
from yarn_accel.uris import split_uri

#: Asks a master, as `yarn_accel.hadoop.control.Control.ask` does.
Ask = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


async def submit_definition(ask: Ask, store: Store, definition: AppDefinition) -> None:
    """Submit an application; its files of this machine are in the cluster's storage then.

    Raises:
        RejectedError: the service refuses it; says why.
        UnavailableError: no master answers, or it has no task service.
        StorageError: the storage takes no files.
    """
    record = record_of(definition, store) if definition.dag is not None and definition.output else None
    await _hand_in(ask, store, definition)
    if record is not None:
        # Not before: the output folder of a DAG that is refused is not there.
        record.write(definition.output, store)


async def _hand_in(ask: Ask, store: Store, definition: AppDefinition) -> None:
    app = definition.spec.app
    folder = (await ask("tasks-status", {}))["submit_to"]
    shipped = _with_files_uploaded(definition, store, f"{folder}-files/{app}")
    document = json.dumps(app_document(shipped)).encode()
    uri = f"{folder}/{app}.json"
    store.write_atomic(uri, lambda: [document])
    try:
        await ask("tasks-submit", {"uri": uri})
    finally:
        store.delete(uri)


async def resume_definition(
    ask: Ask, store: Store, definition: AppDefinition, *, is_dry: bool = False
) -> AppDefinition:
    """Submit what of a DAG is not done yet, and return that; nothing is submitted where all is done.

    Args:
        definition: all of it, planned with `is_resumed`.
        is_dry: submit and delete nothing.

    Raises:
        ConfigError: it has no output folder, or that is none of a DAG.
        JobError: its last run is not over.
        AccelError: as `submit_definition`.
    """
    if not definition.output:
        raise ConfigError("--resume: the DAG has no `output`, in which its last run could have left anything")
    before, now = read_record(definition.output, store), record_of(definition, store)
    left = definition
    if before is not None:
        if before.run in (await ask("tasks-status", {}))["apps"]:
            raise JobError(
                f"{before.run}, its last run, is not over", cure=f"yarn-accel dag cancel {before.run}"
            )
        left = without_done(definition, done_tasks(definition, before, now, store))
    if is_dry or not left.tasks:
        return left
    if before is None:
        await submit_definition(ask, store, left)
        return left
    # In this order: whenever this process dies, no folder stands beside a key that it was not made by.
    delete_stale(left, store)
    now.write(definition.output, store)
    await _hand_in(ask, store, left)
    return left


def _with_files_uploaded(definition: AppDefinition, store: Store, folder_uri: str) -> AppDefinition:
    """The application with the files of this machine in the cluster's storage, where all nodes find them."""
    files = []
    for name, uri in definition.files:
        if uri.startswith("file:"):
            target = f"{folder_uri}/{name}"
            store.write_atomic(target, partial(pieces, Path(split_uri(uri)[2])))
            files.append((name, target))
        else:
            files.append((name, uri))
    return replace(definition, files=tuple(files))

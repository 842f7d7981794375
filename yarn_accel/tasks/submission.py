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
from yarn_accel.local_filesystem import pieces
from yarn_accel.storage import Store
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

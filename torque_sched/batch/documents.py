"""Values of the model in documents: the journal, ``--json``, logs.

They have the words that users of PBS know. A slot of a node is ``np`` there, a slot that a job gets of each
node ``ppn``. Journals of every release have these names: `OUTER` is the one place where they and the names of
the model meet.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any

from torque_sched.model.cluster import Job, Node
from torque_sched.model.decisions import NodeShare
from torque_sched.model.request import Chunk

OUTER: dict[type[Any], dict[str, str]] = {
    Chunk: {"slots": "ppn"},
    Job: {"allocated_slots": "exec_host", "allocated_gpus": "exec_gpus"},
    Node: {"slots": "np"},
    NodeShare: {"slots": "ppn"},
}
"""By class of the model: fields that have another name in documents."""
_SHARE = frozenset({"node", "ppn", "gpus"})


def plain(value: Any) -> Any:
    """A value as JSON has it: enums by value, sets as sorted lists, classes as objects."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = OUTER.get(type(value), {})
        return {
            names.get(entry.name, entry.name): plain(getattr(value, entry.name))
            for entry in dataclasses.fields(value)
        }
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(plain(each) for each in value)
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value


def with_model_names(document: Any) -> Any:
    """A document of decisions or of their context whose shares of nodes have the fields of `NodeShare`."""
    if isinstance(document, Mapping):
        names = OUTER[NodeShare] if document.keys() == _SHARE else {}
        inner = {outer: name for name, outer in names.items()}
        return {inner.get(key, key): with_model_names(each) for key, each in document.items()}
    if isinstance(document, list):
        return [with_model_names(each) for each in document]
    return document


def hosts_text(allocation: Iterable[NodeShare]) -> str:
    """An allocation in words.

    >>> hosts_text([NodeShare("n1", 2, 1), NodeShare("n2", 2)])
    'n1:ppn=2:gpus=1+n2:ppn=2'
    """
    return "+".join(
        f"{share.node}:ppn={share.slots}" + (f":gpus={share.gpus}" if share.gpus else "")
        for share in allocation
    )

"""What mappers, agents and the master write to each other about claims: JSON documents, checked and bounded.

A mapper connects to its agent's second socket and gets a line of JSON first::

    {"v": 1, "node": "w1", "lease_s": 3.0, "renew_s": 1.0, "max_wait_s": 30.0}

It asks, and from then on gives a sign of life every `renew_s`, each in a line; the agent answers each with
``{"ok": true}``::

    {"v": 1, "job": "job_1_0001", "name": "knn", "attempt": "attempt_1_0001_m_000000_0",
     "forms": ["cpu", "gpu"], "gpus": 1, "credential": {"identifier": "...", "token": "..."}}
    {"reading": true}

The agent's decision is one of the first two lines, in between; a mapper that connects again shows the
``proof`` of the first as ``resume``. The mapper's last line is the third::

    {"granted": "gpu", "gpus": [0], "reason": "...", "proof": "..."}
    {"refused": "too-many-claims", "message": "..."}
    {"end": "done", "read_bytes": 1e9, "read_s": 12.5}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from yarn_accel.core.tasks.late_binding.values import ClaimRequest, ClusterCount
from yarn_accel.core.tasks.values import AppId, Form
from yarn_accel.errors import RemoteProtocolError

#: Applications, and identifiers of credentials, in one heartbeat.
MAX_APPS = 256
MAX_IDENTIFIERS = 64
_MAX_GPUS = 16
_MAX_NAME = 128
_MAX_APP = 400
_MAX_NUMBER = 1e18
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_FORMS = {form.value: form for form in Form}


def parse_claim(document: Mapping[str, Any]) -> ClaimRequest:
    """A mapper's question.

    Raises:
        RemoteProtocolError: names the key.
    """
    if document.get("v") != 1:
        raise RemoteProtocolError("claim: version 1 is expected")
    ids = [document.get(key) for key in ("job", "attempt")]
    for key, value in zip(("job", "attempt"), ids, strict=True):
        if not isinstance(value, str) or not _ID.match(value):
            raise RemoteProtocolError(f"claim: {key} is not an id of letters, digits and . _ -")
    forms, gpus, name = document.get("forms"), document.get("gpus", 1), document.get("name")
    if not isinstance(forms, list) or not forms or not all(each in _FORMS for each in map(str, forms)):
        raise RemoteProtocolError("claim: forms is not a list of cpu and gpu")
    if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= _MAX_GPUS:
        raise RemoteProtocolError(f"claim: gpus is not a number from 1 to {_MAX_GPUS}")
    if not isinstance(name, str):
        raise RemoteProtocolError("claim: name is not a text")
    given = tuple(form for form in Form if form.value in forms)
    return ClaimRequest(str(ids[0]), _plain(name) or str(ids[0]), str(ids[1]), given, gpus)


def parse_end(document: Mapping[str, Any]) -> tuple[bool, float, float]:
    """Whether a mapper ended well, the bytes that it read, and in how many seconds; nonsense counts as 0."""
    return document.get("end") == "done", _number(document.get("read_bytes")), _number(document.get("read_s"))


def counts_document(counts: Mapping[AppId, tuple[int, int, float]]) -> dict[str, list[float]]:
    """#Alloc, those on GPUs and age in seconds by application, for a heartbeat or its answer."""
    latest = sorted(counts.items(), key=lambda item: item[1][2])[:MAX_APPS]
    return {app: [n_alloc, n_gpu, round(age_s, 3)] for app, (n_alloc, n_gpu, age_s) in latest}


def parse_counts(value: Any) -> dict[AppId, ClusterCount]:
    """What `counts_document` made; what is none of it is left out."""
    found = {}
    for app, row in list(value.items())[:MAX_APPS] if isinstance(value, Mapping) else ():
        if not isinstance(row, list) or len(row) != 3 or len(str(app)) > _MAX_APP:
            continue
        n_alloc, n_gpu, age_s = map(_number, row)
        found[AppId(str(app))] = ClusterCount(int(n_alloc), min(int(n_gpu), int(n_alloc)), age_s)
    return found


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_NUMBER:
        return 0.0
    return float(value)


def _plain(text: str) -> str:
    """In one line, of printable characters, and not too long."""
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))[:_MAX_NAME]

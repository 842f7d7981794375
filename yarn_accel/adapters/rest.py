"""JSON over HTTP to Hadoop's web services: ResourceManager, NodeManager, history server, NameNode.

A proxy named in the environment is not used: these addresses are inside the cluster.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from yarn_accel.errors import RejectedError, RemoteProtocolError, UnavailableError

MAX_BYTES = 64 * 1024 * 1024
_TIMEOUT_S = 10.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get_json(url: str, *, timeout_s: float = _TIMEOUT_S) -> Any:
    """The JSON document at ``url``; see :func:`request_json` for the errors."""
    return request_json("GET", url, timeout_s=timeout_s)


def request_json(method: str, url: str, body: object = None, *, timeout_s: float = _TIMEOUT_S) -> Any:
    """Send a request, with ``body`` as JSON when given, and decode the answer (None when it is empty).

    Raises:
        UnavailableError: no answer, or the service fails for now (status 5xx).
        RejectedError: the service refuses (status 4xx); the code is ``http-404`` and the like, the message
            is Hadoop's own when it sends one.
        RemoteProtocolError: the answer is not HTTP or not JSON, or larger than :data:`MAX_BYTES`.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Accept": "application/json"}
    if data is not None:
        headers["Content-Type"] = "application/json"
    raw = _send(urllib.request.Request(url, data, headers, method=method), timeout_s, MAX_BYTES)
    if len(raw) > MAX_BYTES:
        raise RemoteProtocolError(f"{url} sent more than {MAX_BYTES} bytes")
    if not raw.strip():
        return None
    try:
        return json.loads(raw)
    except ValueError as error:
        raise RemoteProtocolError(f"{url} did not send JSON: {error}") from error


def get_text(
    url: str,
    *,
    max_bytes: int = 1 << 20,
    timeout_s: float = _TIMEOUT_S,
    headers: Mapping[str, str] | None = None,
) -> str:
    """At most the first ``max_bytes`` of the text at ``url``; errors as in :func:`request_json`."""
    raw = _send(urllib.request.Request(url, headers=dict(headers or {})), timeout_s, max_bytes)
    return raw[:max_bytes].decode("utf-8", "replace")


def as_list(value: Any) -> list[Any]:
    """A list from what Hadoop's REST sends for one: a list, a single object instead of it, or null."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def running_path(application_type: str) -> str:
    """Where a ResourceManager lists the running applications of a type."""
    wanted = urllib.parse.quote(application_type, safe="")
    return f"/ws/v1/cluster/apps?states=RUNNING&applicationTypes={wanted}"


def listed_applications(document: Any) -> list[Any]:
    """The entries of a ResourceManager's list of applications; none where it is no such list."""
    apps = document.get("apps") if isinstance(document, dict) else None
    return [each for each in as_list(apps.get("app") if isinstance(apps, dict) else None) if each]


def newest_first(reports: list[Any]) -> list[dict[str, Any]]:
    """Those of the entries that are reports, by when the application was started."""
    found = [report for report in reports if isinstance(report, dict)]
    return sorted(found, key=_started, reverse=True)


def _started(report: dict[str, Any]) -> int:
    started = report.get("startedTime", 0)
    return started if isinstance(started, int) else 0


def _send(request: urllib.request.Request, timeout_s: float, max_bytes: int) -> bytes:
    url = request.full_url
    try:
        with _OPENER.open(request, timeout=timeout_s) as response:
            return bytes(response.read(max_bytes + 1))
    except urllib.error.HTTPError as error:
        with error:
            reason = _reason(error)
        message = f"{url} answers {error.code}: {reason}"
        if error.code >= 500:
            raise UnavailableError(message) from None
        raise RejectedError(f"http-{error.code}", message) from None
    except http.client.HTTPException as error:
        raise RemoteProtocolError(
            f"{url} does not answer in HTTP: {type(error).__name__}: {error}"
        ) from error
    except (urllib.error.URLError, OSError) as error:
        reason = str(getattr(error, "reason", error))
        raise UnavailableError(f"no answer from {url}: {reason}") from error


def _reason(error: urllib.error.HTTPError) -> str:
    raw = error.read(1 << 16).decode("utf-8", "replace")
    try:
        remote = json.loads(raw)["RemoteException"]
        return str(remote.get("message") or remote.get("exception"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return str(error.reason)

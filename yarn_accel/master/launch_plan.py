"""What to start in the containers of each role: the JSON that `yarn-accel start` made, as values.

`launch` writes it, and this package may not import `launch`; a test compares both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yarn_accel.adapters.hadoop_rpc.records import (
    LaunchContext,
    LocalResource,
    LocalResourceVisibility,
    RetryContext,
    RetryPolicy,
)
from yarn_accel.core.application import ContainerRole, NodeSelector, RoleResource, RoleTable
from yarn_accel.errors import ConfigError

SERVER_ROLE = "server"
#: Exit codes that another start may cure: a fault of the program, abort, bus error, arithmetic, segmentation.
_PASSING = (1, 134, 135, 136, 139)
_RETRY_PAUSE_MS = 1000
_RETRY_WINDOW_MS = 60_000


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What a container of one role is started with; everything is quoted for a NodeManager already."""

    command: str
    environment: Mapping[str, str]
    files: Mapping[str, LocalResource]

    def context(self, credentials: bytes | None, retries: int) -> LaunchContext:
        """The launch context for the NodeManager.

        Args:
            credentials: content of the container's token file.
            retries: starts in place after a fault, a second apart: for the time in which no master is there.
        """
        retry = None
        if retries:
            policy = RetryPolicy.RETRY_ON_SPECIFIC_ERROR_CODES
            retry = RetryContext(policy, _PASSING, retries, _RETRY_PAUSE_MS, _RETRY_WINDOW_MS)
        return LaunchContext.of([self.command], self.environment, self.files, credentials, retry)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """All roles of the application.

    Attributes:
        roles: the rows for the core.
        launches: by name of the role.
        exit_reasons: what exit codes of our containers mean.
    """

    roles: RoleTable
    launches: Mapping[str, LaunchSpec]
    exit_reasons: Mapping[int, str]


def load_plan(path: Path) -> LaunchPlan:
    """Read the file.

    Raises:
        ConfigError: it is not such a file; names the place.
    """
    try:
        return parse_plan(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from None


def parse_plan(text: str) -> LaunchPlan:
    """Read the JSON; the role that runs on ``one`` node is the master itself, and passed over.

    Raises:
        ConfigError: something else; names the role.
    """
    role = "roles"
    rows, launches = [], {}
    try:
        document = json.loads(text)
        for role, values in document["roles"].items():
            if values["nodes"] == "one":
                continue
            launches[role] = _launch(values)
            rows.append(_row(role, values))
        role = "exit_reasons"
        reasons = {int(code): str(reason) for code, reason in document["exit_reasons"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"plan: {role}: {type(error).__name__}: {error}") from None
    if SERVER_ROLE not in launches:
        raise ConfigError(f"plan: no role {SERVER_ROLE}")
    return LaunchPlan(RoleTable(rows), launches, reasons)


def _launch(values: Mapping[str, Any]) -> LaunchSpec:
    files = {
        each["name"]: LocalResource.of(
            each["uri"],
            each["n_bytes"],
            each["modified_ms"],
            visibility=LocalResourceVisibility[each["visibility"]],
        )
        for each in values["resources"]
    }
    return LaunchSpec(str(values["command"]), dict(values["environment"]), files)


def _row(name: str, values: Mapping[str, Any]) -> ContainerRole:
    resource = RoleResource(
        int(values["memory_mib"]),
        int(values["vcores"]),
        tuple(sorted((str(key), int(amount)) for key, amount in values["other"].items())),
        tuple(str(name) for name in values.get("whole", ())),
    )
    where = NodeSelector(values["nodes"])
    return ContainerRole(name, where, resource, int(values["priority"]), is_server=name == SERVER_ROLE)

"""The part of the master that an application may lack: its task service.

`MasterPlugin` is all that the master knows of it: events that it takes in, what it adds to the control API,
the state document, the page and the metrics, and a main loop. The class itself adds nothing: it is the plugin
of an application of accelerators alone, which loads no module of `yarn_accel.core.tasks`, `core.dags`,
`tasks` and `dags`. `yarn_accel.master.tasks.service.LiveTaskService` is the other one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from yarn_accel.core.application import RoleTable
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev
from yarn_accel.errors import RejectedError
from yarn_accel.master.config import MasterConfig
from yarn_accel.master.inventory import Inventory

if TYPE_CHECKING:
    from markupsafe import Markup
    from prometheus_client.core import Metric

Answer = dict[str, Any] | Awaitable[dict[str, Any]]
#: An admin's or owner's command: gets its document.
Verb = Callable[[Any], Answer]
#: Title, note and content of a part of the page.
Section = tuple[str, str, Sequence["Markup"]]
#: Server's node -> GPUs, and node -> the server's node that it asks first.
Serving = tuple[Mapping[str, int], Mapping[str, str]]


class Post(NamedTuple):
    """A signed request that processes in containers send: its handler gets the sender and the document."""

    handler: Callable[[str, Any], Awaitable[Any]]
    max_bytes: int


@dataclass(frozen=True, slots=True)
class PluginContext:
    """The master's side.

    Attributes:
        application: ours, as YARN writes it.
        roles: of the containers that the launch plan has.
        attempt: number of this master.
        tell: takes events of the application, such as `NodesChosen`.
        clock: of events.
        serving: the pipeline servers that serve now.
        want_servers: keeps idle ones from being given back, and brings them back.
    """

    config: MasterConfig
    application: str
    roles: RoleTable
    inventory: Inventory
    attempt: int
    tell: Callable[[ev.Event], None]
    clock: Callable[[], float]
    serving: Callable[[], Serving]
    want_servers: Callable[[], None]


class MasterPlugin:
    """Adds nothing."""

    def verbs(self) -> Mapping[str, Verb]:
        """Commands of the control API, by the last part of their path."""
        return {"tasks-{verb}": _refuse}

    def posts(self) -> Mapping[str, Post]:
        """Further requests of the HTTP API, by their paths."""
        return {}

    def observe(self, event: ev.Event, commands: Iterable[cmd.Command]) -> None:
        """Take in an event of the application, and the commands that its core returned."""

    async def work(self) -> None:
        """Main loop, until it is cancelled; the master ends with it."""
        await asyncio.Event().wait()

    def document(self) -> dict[str, Any] | None:
        """The part ``tasks`` of the state document."""
        return None

    def sections(self, document: Mapping[str, Any] | None, at: float) -> Iterable[Section]:
        """The parts of the page.

        Args:
            document: as `document` made it.
            at: Unix time of the state document.
        """
        return ()

    def families(self, document: Mapping[str, Any] | None) -> Iterable[Metric]:
        """The metrics.

        Args:
            document: as `document` made it.
        """
        return ()


def _refuse(_: Any) -> dict[str, Any]:
    raise RejectedError(
        "no-task-service",
        "this application runs without a task service",
        cure="`yarn-accel stop`, then `yarn-accel tasks start`",
    )

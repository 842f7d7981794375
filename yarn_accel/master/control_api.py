"""The master's HTTP API: heartbeats of agents, look-ups of mappers, an admin's commands.

Heartbeats and commands are signed (`signed_http`); a look-up only reads.  `tracking_page` adds the pages.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from aiohttp import web

from yarn_accel.adapters.signed_http import RequestVerifier, guarded
from yarn_accel.client.binding import format_binding
from yarn_accel.core.application import Application
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev
from yarn_accel.errors import RejectedError
from yarn_accel.master.agents import Agents, binding_of
from yarn_accel.master.environment import SERVER_ROLE
from yarn_accel.master.inventory import Inventory, container_logs
from yarn_accel.master.operator_commands import OFF, OperatorCommands
from yarn_accel.master.plugin import MasterPlugin, Verb
from yarn_accel.master.registration import BACKLOG
from yarn_accel.master.status_documents import AgentStatistics, StatusDocuments

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")
_CONTROL = "control:"
#: A connection that sends no whole request for so long is closed; agents and workers send one a second.
_IDLE_S = 20.0
_MAX_SHOWN = 100
_N_NAMED = 8
#: Whose containers are remembered.
_MAX_SERVERS = 2000


class Admin:
    """An admin's commands.

    Args:
        tell: takes events.
        clock: of events.
        about: which master this is: application, attempt and node.
    """

    def __init__(
        self,
        core: Application,
        operator: OperatorCommands,
        statistics: AgentStatistics,
        inventory: Inventory,
        documents: StatusDocuments,
        tell: Callable[[ev.Event], None],
        clock: Callable[[], float],
        about: Mapping[str, Any],
    ) -> None:
        self.documents = documents
        self._core = core
        self._operator = operator
        self._statistics = statistics
        self._inventory = inventory
        self._tell = tell
        self._clock = clock
        self._about = about
        self._server_containers: dict[str, str] = {}

    def explain(self, node: str) -> str:
        """Why a node is bound as it is, or that it is not known; and the claims of its late binding."""
        lines = [self._core.explain(node)]
        why = self._operator.refusals["attributes"]
        if why not in ("", OFF):
            lines.append(f"Its binding is not published as a node attribute: {why}.")
        return "\n".join(filter(None, (*lines, self._statistics.explain_claims(node, self._clock()))))

    def drain(self, node: str, *, is_drained: bool) -> str:
        """Take a node's server out of use, or back; what comes of it, in words."""
        now_s = self._clock()
        before = self._core.node_snapshots(now_s, (node,)).get(node, {})
        self._operator.drain(node, is_drained=is_drained)
        self._tell(ev.DrainRequested(node, now_s) if is_drained else ev.UndrainRequested(node, now_s))
        if not is_drained:
            was_not = f"{node} was not drained; what failed there is tried again now"
            return f"{node} is drained no more" if before.get("is_drained") else was_not
        if before.get("is_drained"):
            return f"{node} is drained already"
        if not before.get("is_accelerator"):
            return f"{node} is drained; it has no accelerator now, so nothing changes yet"
        return f"{node} is drained; yarn-accel undrain {node} brings it back"

    def rebind(self) -> None:
        """Make all bindings anew."""
        self._tell(ev.RebindRequested(self._clock()))

    def observe(self, commands: Iterable[cmd.Command]) -> None:
        """Note which containers pipeline servers get."""
        for command in commands:
            if isinstance(command, cmd.LaunchContainer) and command.role == SERVER_ROLE:
                self._server_containers[command.container.id] = command.container.node
                if len(self._server_containers) > _MAX_SERVERS:
                    del self._server_containers[next(iter(self._server_containers))]

    def server_logs(self) -> list[dict[str, str]]:
        """The containers of pipeline servers, ended ones too: node, and the address of the logs."""
        found = dict(self._server_containers)
        hosts = [report.node.host for report in self._inventory.reports()]
        for node, row in self._core.node_snapshots(self._clock(), hosts).items():
            held = row["places"].get(SERVER_ROLE, {}).get("containers", ())
            found |= {each["id"]: node for each in held}  # those that an earlier master launched
        return [
            {"container": container, "node": node, "url": container_logs(self._inventory, node, container)}
            for container, node in found.items()
        ]

    def stop(self) -> None:
        """End everything."""
        self._tell(ev.StopRequested(self._clock()))

    async def status(self) -> dict[str, Any]:
        """Which master this is, and the whole state."""
        return {**self._about, "state": await self.documents.whole()}

    def check_known(self, node: str) -> None:
        """Raises RejectedError when there is no such node."""
        if node not in self._inventory:
            known = sorted(report.node.host for report in self._inventory.reports())
            more = f" and {len(known) - _N_NAMED} more" if len(known) > _N_NAMED else ""
            listed = ", ".join(known[:_N_NAMED]) or "none"
            raise RejectedError(
                "unknown-node", f"the resource manager has no node {node}; there are {listed}{more}"
            )


class ControlApi:
    """The HTTP server.

    Args:
        verifier: checks signatures.
        listener: the listening socket; closed with the server.
        allowed_hosts: names or addresses of hosts that may see the page, beside this one.
        idle_s: a connection that sends no whole request for so long is closed.
        plugin: adds commands, requests, and parts of page and metrics.
    """

    def __init__(
        self,
        agents: Agents,
        admin: Admin,
        verifier: RequestVerifier,
        listener: socket.socket,
        allowed_hosts: Iterable[str] = (),
        idle_s: float = _IDLE_S,
        plugin: MasterPlugin | None = None,
    ) -> None:
        self._agents = agents
        self._admin = admin
        self._verifier = verifier
        self._listener = listener
        self._allowed_hosts = tuple(allowed_hosts)
        self._idle_s = idle_s
        self._runner: web.AppRunner | None = None
        self._plugin = plugin or MasterPlugin()

    async def open(self) -> None:
        """Accept connections, also those in the backlog."""
        # AppRunner keeps no log of its own: one line per heartbeat of 10,000 nodes is no log.
        # A body is not decompressed: its length would say nothing of the memory that it takes.
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            shutdown_timeout=1.0,
            keepalive_timeout=self._idle_s,
            auto_decompress=False,
        )
        await self._runner.setup()
        await web.SockSite(self._runner, self._listener, backlog=BACKLOG).start()

    async def close(self) -> None:
        """Stop the server."""
        if self._runner is not None:
            await self._runner.cleanup()
        self._listener.close()

    def _application(self) -> web.Application:
        # Imported here: `tracking_page` brings what only people's page needs.
        from yarn_accel.master.tracking_page import PageAccess, add_routes

        application = web.Application(client_max_size=1 << 20, middlewares=[_client_disconnected])
        router = application.router
        router.add_post("/v1/heartbeat", guarded(self._verifier, self._agents.heartbeat))
        router.add_get("/v1/servers", self._servers, allow_head=False)
        for path, post in self._plugin.posts().items():
            router.add_post(path, guarded(self._verifier, post.handler, max_bytes=post.max_bytes))
        for verb, handler in {**self._verbs(), **self._plugin.verbs()}.items():
            router.add_post(f"/v1/control/{verb}", guarded(self._verifier, _for_admins(handler)))
        add_routes(
            application,
            self._admin.documents,
            PageAccess(self._allowed_hosts),
            self._admin.explain,
            self._plugin,
        )
        return application

    def _verbs(self) -> dict[str, Verb]:
        admin = self._admin

        def known(document: Any) -> str:
            node = node_of(document)
            admin.check_known(node)
            return node

        def drained(document: Any, *, is_drained: bool) -> dict[str, Any]:
            return {"text": admin.drain(known(document), is_drained=is_drained)}

        def done(action: Callable[[], None]) -> dict[str, Any]:
            action()
            return {}

        return {
            "status": lambda _: admin.status(),
            "explain": lambda document: {"text": admin.explain(known(document))},
            "drain": lambda document: drained(document, is_drained=True),
            "undrain": lambda document: drained(document, is_drained=False),
            "server-logs": lambda _: {"servers": admin.server_logs()},
            "rebind": lambda _: done(admin.rebind),
            "stop": lambda _: done(admin.stop),
        }

    async def _servers(self, request: web.Request) -> web.Response:
        """The servers of a node, in the agent's format, for mappers without an agent."""
        node = request.query.get("node", "")
        if not _NODE.match(node):
            return web.Response(status=400, text="which node? ?node=NAME\n")
        self._agents.wanted()
        assignment = self._agents.assignment(node)
        if assignment is None:
            return web.Response(status=503, text="nothing is bound yet\n")
        binding = binding_of(assignment, node, self._agents.rack)
        document = {
            "v": 1,
            "node": node,
            "binding": json.loads(format_binding(binding)),
            "age_s": 0.0,
            "reason": "" if binding.servers else "the master has bound no server to this node",
            "slots": assignment.slots,
        }
        return web.json_response(document)


@web.middleware
async def _client_disconnected(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """A client that disconnects in the middle of a request is no server error."""
    try:
        return await handler(request)
    except ConnectionResetError:
        return web.Response(status=400)


def _for_admins(handler: Verb) -> Callable[[str, Any], Awaitable[Any]]:
    """A handler for senders with the key of an admin's command."""

    async def handle(sender: str, document: Any) -> Any:
        if not sender.startswith(_CONTROL):
            raise RejectedError("not-allowed", f"{sender} may not control the application")
        answer = handler(document)
        return answer if isinstance(answer, dict) else await answer

    return handle


def node_of(document: Any) -> str:
    """The node that a command is for.

    Raises:
        RejectedError: that is no node's name.
    """
    node = document.get("node") if isinstance(document, dict) else None
    if not isinstance(node, str) or not node:
        raise RejectedError("no-node", "which node?")
    if not _NODE.match(node):
        raise RejectedError("no-node", f"{node[:_MAX_SHOWN]!r} is no node's name")
    return node

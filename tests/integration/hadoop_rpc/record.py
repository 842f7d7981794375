"""Record exchanges with real daemons for the unit tests.

``python -m tests.integration.hadoop_rpc.record CLUSTER FILE`` runs an unmanaged application master in this
process against a pseudo-cluster that is up, and writes every byte in both directions, with the random numbers
that were used, as JSON. The tokens in it are those of that cluster only.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import secrets
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from yarn_accel.adapters.hadoop_rpc import (
    ApplicationId,
    ApplicationMaster,
    ApplicationSubmission,
    AttributeOperation,
    NodeManager,
    ResourceManager,
    ResourceManagerAddresses,
    RpcSettings,
    Token,
    User,
    transport,
)
from yarn_accel.adapters.hadoop_rpc.framing import Identity, RpcClientProtocol
from yarn_accel.adapters.hadoop_rpc.records import (
    ApplicationState,
    FinalStatus,
    LaunchContext,
    NodeReport,
    YarnResource,
    pinned,
)
from yarn_accel.errors import AccelError
from yarn_accel.hadoop.site import HadoopSite
from yarn_accel.testbed import Cluster

POLL_S = 0.05
SMALL = YarnResource.of(256, 1)


class Recording(RpcClientProtocol):
    """Writes down what passes; one entry of `all` for each connection."""

    all: list[dict[str, Any]] = []  # noqa: RUF012 - the recorder's one list

    def __init__(self, protocol: str, identity: Identity, *args: Any) -> None:
        shown = {"user": identity.name} if isinstance(identity, User) else _token(identity)
        self._entry: dict[str, Any] = {"protocol": protocol, "identity": shown, "random": [], "bytes": []}
        self.all.append(self._entry)
        super().__init__(protocol, identity, *args, self._random)

    def data_to_send(self) -> bytes:
        data = super().data_to_send()
        if data:
            self._entry["bytes"].append(["sent", data.hex()])
        return data

    def receive_data(self, data: bytes) -> None:
        self._entry["bytes"].append(["received", data.hex()])
        super().receive_data(data)

    def _random(self, n_bytes: int) -> bytes:
        value = secrets.token_bytes(n_bytes)
        self._entry["random"].append(value.hex())
        return value


def _token(token: Token) -> dict[str, str]:
    return {
        "identifier": token.identifier.hex(),
        "password": token.password.hex(),
        "kind": token.kind,
        "service": token.service,
    }


async def _refused(what: Any) -> None:
    try:
        await what
    except AccelError:
        return
    raise AssertionError("not refused")


async def _until(ask: Callable[[], Awaitable[Any]], is_good: Callable[[Any], bool]) -> Any:
    while True:
        answer = await ask()
        if is_good(answer):
            return answer
        await asyncio.sleep(POLL_S)


async def _as_client(rm: ResourceManager) -> tuple[Token, NodeReport]:
    """An unmanaged application's token, and the node that serves for the rest."""
    application = (await rm.new_application()).application
    target = (await rm.nodes())[0]
    await _refused(rm.report(ApplicationId(application.cluster_timestamp, 9999)))
    submission = ApplicationSubmission(
        application, "recorded", launch=LaunchContext(), resource=SMALL, is_unmanaged=True
    )
    await rm.submit(submission)
    report = await _until(lambda: rm.report(application), lambda found: found.am_rm_token is not None)
    await rm.applications(states=[ApplicationState.ACCEPTED])
    return report.am_rm_token, target


async def _as_operator(rm: ResourceManager, target: NodeReport) -> None:
    assert target.capability is not None
    await rm.update_node_resource(target.node, target.capability.with_amount("acct/slot", 1))
    await rm.update_node_resource(target.node, target.capability)
    await rm.map_attributes(AttributeOperation.ADD, {target.node.host: {"accel-bind": "w1"}})
    await rm.map_attributes(AttributeOperation.REMOVE, {target.node.host: {"accel-bind": ""}})


async def _as_master(master: ApplicationMaster, nodes: NodeManager, target: NodeReport) -> None:
    await _refused(master.allocate())  # not registered
    await master.register("recorder", -1, "http://recorder:1/")
    response = await master.allocate(pinned(target.node.host, target.rack, 3, SMALL))
    if not response.allocated:
        response = await _until(master.allocate, lambda found: bool(found.allocated))
    container = response.allocated[0]
    nodes.learn(response.node_tokens)
    launch = LaunchContext.of(["exec", "sleep", "100"], {"A": "b"})
    assert (await nodes.start(container.node, [(container, launch)])).succeeded
    assert (await nodes.start(container.node, [(container, launch)])).failed
    await nodes.statuses(container.node, [container.id])
    await nodes.stop(container.node, [container.id])
    await _until(master.allocate, lambda found: bool(found.completed))
    await _until(lambda: master.finish(FinalStatus.SUCCEEDED, "recorded"), bool)


async def record(cluster: Cluster) -> None:
    """The whole play, in the order that the tests know."""
    site = HadoopSite.load({"HADOOP_CONF_DIR": str(cluster.conf_dir)})
    addresses = ResourceManagerAddresses.from_properties(site.properties)
    settings = RpcSettings(hosts=site.client_hosts)
    rm = ResourceManager(addresses, User(getpass.getuser()), settings)
    token, target = await _as_client(rm)
    await _as_operator(rm, target)
    wrong = ApplicationMaster(addresses, Token(token.identifier, b"wrong", token.kind, ""), settings)
    await _refused(wrong.register("h", -1, ""))
    master, nodes = ApplicationMaster(addresses, token, settings), NodeManager(settings)
    await _as_master(master, nodes, target)
    for client in (rm, master, wrong, nodes):
        await client.close()


def main(name: str, file: str) -> None:
    transport.RpcClientProtocol = Recording  # type: ignore[misc]
    asyncio.run(record(Cluster.open(name)))
    Path(file).write_text(json.dumps(Recording.all, indent=0), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Record exchanges with real daemons for the unit tests.

``python -m tests.integration.hadoop_rpc.record CLUSTER FILE`` runs an unmanaged application master in this
process against a pseudo-cluster that is up, and writes every byte in both directions, with the random numbers
that were used, as JSON. The tokens in it are those of that cluster only.

``... record --kerberos FILE`` records logins to a ResourceManager and a NameNode by ticket and by token, with
each protection, on the cluster of HADOOP_CONF_DIR and as the owner of the ticket cache. What the Kerberos
library was given and gave is written down, too, as nobody can make it again.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import secrets
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from yarn_accel.adapters import hadoop_rpc
from yarn_accel.adapters.hadoop_rpc import records
from yarn_accel.adapters.hadoop_rpc.clients import NameNode, hdfs_service
from yarn_accel.adapters.hadoop_rpc.framing import Identity, RpcClientProtocol
from yarn_accel.adapters.hadoop_rpc.gssapi import Credentials, SecurityContext
from yarn_accel.adapters.hadoop_rpc.kerberos import KerberosLogin
from yarn_accel.adapters.hadoop_rpc.sasl import Protection
from yarn_accel.errors import AccelError
from yarn_accel.hadoop.site import HadoopSite, SiteSettings
from yarn_accel.testbed import Cluster

POLL_S = 0.05
SMALL = records.YarnResource.of(256, 1)


class RecordedContext:
    """Writes down what the Kerberos library is given and gives."""

    def __init__(self, context: SecurityContext, notes: list[Any]) -> None:
        self._context, self._notes = context, notes

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._context, name)
        if not callable(found):
            return found

        def called(*given: Any, **how: Any) -> Any:
            gave = found(*given, **how)
            plain = [each.hex() if isinstance(each, bytes) else each for each in (*given, gave)]
            self._notes.append([name, plain[:-1], how, plain[-1], self._context.is_complete])
            return gave

        return called


class Recording(RpcClientProtocol):
    """Writes down what passes; one entry of `all` for each connection."""

    all: list[dict[str, Any]] = []  # noqa: RUF012 - the recorder's one list

    def __init__(
        self, protocol: str, identity: Identity, address: str, *args: Any, security: hadoop_rpc.Security
    ) -> None:
        self._entry: dict[str, Any] = {"protocol": protocol, "random": [], "bytes": []}
        self.all.append(self._entry)
        login = None
        if isinstance(identity, hadoop_rpc.Kerberos):
            self._entry["library"] = []
            login = KerberosLogin(identity, security, protocol, address, self._open_context)
        else:
            is_user = isinstance(identity, hadoop_rpc.User)
            self._entry["identity"] = {"user": identity.name} if is_user else _token(identity)
        if security.is_kerberos:
            self._entry["site"] = {
                "address": address,
                "principals": dict(security.principals),
                "protections": [each.name for each in security.protections],
            }
        super().__init__(protocol, identity, address, *args, self._random, security, login)

    def data_to_send(self) -> bytes:
        data = super().data_to_send()
        if data:
            self._entry["bytes"].append(["sent", data.hex()])
        return data

    def receive_data(self, data: bytes) -> None:
        self._entry["bytes"].append(["received", data.hex()])
        super().receive_data(data)

    def _open_context(self, identity: hadoop_rpc.Kerberos, service: str) -> Any:
        context = SecurityContext(Credentials(identity.principal, identity.keytab, identity.cache), service)
        return RecordedContext(context, self._entry["library"])

    def _random(self, n_bytes: int) -> bytes:
        value = secrets.token_bytes(n_bytes)
        self._entry["random"].append(value.hex())
        return value


def _token(token: hadoop_rpc.Token) -> dict[str, str]:
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


async def _as_client(rm: hadoop_rpc.ResourceManager) -> tuple[hadoop_rpc.Token, records.NodeReport]:
    """An unmanaged application's token, and the node that serves for the rest."""
    application = (await rm.new_application()).application
    target = (await rm.nodes())[0]
    await _refused(rm.report(hadoop_rpc.ApplicationId(application.cluster_timestamp, 9999)))
    submission = hadoop_rpc.ApplicationSubmission(
        application, "recorded", launch=records.LaunchContext(), resource=SMALL, is_unmanaged=True
    )
    await rm.submit(submission)
    report = await _until(lambda: rm.report(application), lambda found: found.am_rm_token is not None)
    await rm.applications(states=[records.ApplicationState.ACCEPTED])
    return report.am_rm_token, target


async def _as_operator(rm: hadoop_rpc.ResourceManager, target: records.NodeReport) -> None:
    assert target.capability is not None
    await rm.update_node_resource(target.node, target.capability.with_amount("acct/slot", 1))
    await rm.update_node_resource(target.node, target.capability)
    await rm.map_attributes(hadoop_rpc.AttributeOperation.ADD, {target.node.host: {"accel-bind": "w1"}})
    await rm.map_attributes(hadoop_rpc.AttributeOperation.REMOVE, {target.node.host: {"accel-bind": ""}})


async def _as_master(
    master: hadoop_rpc.ApplicationMaster, nodes: hadoop_rpc.NodeManager, target: records.NodeReport
) -> None:
    await _refused(master.allocate())  # not registered
    await master.register("recorder", -1, "http://recorder:1/")
    response = await master.allocate(records.pinned(target.node.host, target.rack, 3, SMALL))
    if not response.allocated:
        response = await _until(master.allocate, lambda found: bool(found.allocated))
    container = response.allocated[0]
    nodes.learn(response.node_tokens)
    launch = records.LaunchContext.of(["exec", "sleep", "100"], {"A": "b"})
    assert (await nodes.start(container.node, [(container, launch)])).succeeded
    assert (await nodes.start(container.node, [(container, launch)])).failed
    await nodes.statuses(container.node, [container.id])
    await nodes.stop(container.node, [container.id])
    await _until(master.allocate, lambda found: bool(found.completed))
    await _until(lambda: master.finish(records.FinalStatus.SUCCEEDED, "recorded"), bool)


async def record(cluster: Cluster) -> None:
    """The whole play, in the order that the tests know."""
    site = HadoopSite.load({"HADOOP_CONF_DIR": str(cluster.conf_dir)})
    addresses = hadoop_rpc.ResourceManagerAddresses.from_properties(site.properties)
    settings = hadoop_rpc.RpcSettings(hosts=site.client_hosts)
    rm = hadoop_rpc.ResourceManager(addresses, hadoop_rpc.User(getpass.getuser()), settings)
    token, target = await _as_client(rm)
    await _as_operator(rm, target)
    wrong = hadoop_rpc.ApplicationMaster(
        addresses, hadoop_rpc.Token(token.identifier, b"wrong", token.kind, ""), settings
    )
    await _refused(wrong.register("h", -1, ""))
    master, nodes = hadoop_rpc.ApplicationMaster(addresses, token, settings), hadoop_rpc.NodeManager(settings)
    await _as_master(master, nodes, target)
    for client in (rm, master, wrong, nodes):
        await client.close()


async def record_kerberos() -> None:
    """Each login with each protection, and one call after it."""
    site = SiteSettings.read()
    hdfs = hdfs_service(site.properties, site.properties["fs.defaultFS"])
    for protection in Protection:
        security = replace(site.security(), protections=(protection,))
        settings = hadoop_rpc.RpcSettings(hosts=site.client_hosts, security=security)
        identities: list[Identity] = [hadoop_rpc.Kerberos(), hadoop_rpc.Kerberos()]
        for step in range(2):
            rm = hadoop_rpc.ResourceManager(site.resourcemanagers(), identities[0], settings)
            nn = NameNode(hdfs.addresses, identities[1], settings)
            await rm.nodes()
            if step:
                await _refused(nn.delegation_token("yarn"))
            else:
                identities = [await rm.delegation_token("yarn"), await nn.delegation_token("yarn")]
            await rm.close()
            await nn.close()


def main(name: str, file: str) -> None:
    hadoop_rpc.transport.RpcClientProtocol = Recording  # type: ignore[misc]
    asyncio.run(record_kerberos() if name == "--kerberos" else record(Cluster.open(name)))
    Path(file).write_text(json.dumps(Recording.all, indent=0), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A ResourceManager that lives in a list, and a rm_client to it whose storage is a local folder."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from yarn_accel.adapters import hadoop_rpc
from yarn_accel.adapters.hadoop_rpc.clients import ResourceManager
from yarn_accel.adapters.hadoop_rpc.methods import GetNewApplicationResponse
from yarn_accel.adapters.hadoop_rpc.records import (
    ApplicationReport,
    ApplicationState,
    FinalStatus,
    NodeAttribute,
    NodeReport,
    NodeState,
    YarnResource,
)
from yarn_accel.hadoop.rm_client import APPLICATION_TYPE, RmClient
from yarn_accel.hadoop.site import SiteSettings

TIMESTAMP = 1700000000000


def app(number: int) -> hadoop_rpc.ApplicationId:
    return hadoop_rpc.ApplicationId(TIMESTAMP, number)


def report(number: int, state: ApplicationState = ApplicationState.RUNNING, **more: Any) -> ApplicationReport:
    values = {"user": "alice", "name": "yarn-accel", "host": "w1", "rpc_port": 4000, "type": APPLICATION_TYPE}
    values["tracking_url"] = f"http://rm:8088/proxy/{app(number)}/"
    return ApplicationReport(app(number), state=state, **{**values, **more})  # type: ignore[arg-type]


def node(host: str, **attributes: str) -> NodeReport:
    return NodeReport(
        hadoop_rpc.NodeId(host, 8041),
        rack="/r1",
        capability=YarnResource.of(4096, 8),
        state=NodeState.RUNNING,
        attributes=tuple(
            NodeAttribute.of(name.replace("_", "-"), value, "nm.yarn.io")
            for name, value in attributes.items()
        ),
    )


class Yarn:
    """A ResourceManager in memory, as far as `launch` calls it.

    Attributes:
        reports: every application by number.
        story: states through which a submitted application goes, one per report that is asked for.
        submitted: what was submitted.
    """

    def __init__(self) -> None:
        self.reports: dict[hadoop_rpc.ApplicationId, ApplicationReport] = {}
        self.node_reports: tuple[NodeReport, ...] = (node("w1"), node("w2"))
        self.maximum = YarnResource.of(8192, 16)
        self.story: list[ApplicationReport] = []
        self.submitted: list[hadoop_rpc.ApplicationSubmission] = []
        self.killed: list[hadoop_rpc.ApplicationId] = []
        self.next_number = 1
        self.knows_attributes = True

    def add(self, each: ApplicationReport) -> ApplicationReport:
        self.reports[each.id] = each
        self.next_number = max(self.next_number, each.id.number + 1)
        return each

    async def new_application(self) -> GetNewApplicationResponse:
        self.next_number += 1
        return GetNewApplicationResponse(app(self.next_number - 1), self.maximum)

    async def submit(self, submission: hadoop_rpc.ApplicationSubmission) -> None:
        self.submitted.append(submission)
        self.add(
            report(submission.application.number, ApplicationState.NEW, name=submission.name, rpc_port=-1)
        )

    async def report(self, application: hadoop_rpc.ApplicationId) -> ApplicationReport:
        if application not in self.reports:
            raise hadoop_rpc.ApplicationGoneError("x.ApplicationNotFoundException", f"no {application}")
        if self.story:
            self.reports[application] = replace(self.story.pop(0), id=application)
        return self.reports[application]

    async def kill(self, application: hadoop_rpc.ApplicationId, diagnostics: str = "") -> bool:
        is_first = application not in self.killed
        self.killed.append(application)
        if not is_first:
            ended = {"state": ApplicationState.KILLED, "final_status": FinalStatus.KILLED}
            self.reports[application] = replace(self.reports[application], **ended)  # type: ignore[arg-type]
        return not is_first

    async def nodes(self, states: Sequence[NodeState] = ()) -> tuple[NodeReport, ...]:
        return self.node_reports

    async def has_node_attributes(self) -> bool:
        return self.knows_attributes

    async def applications(
        self, *, types: Sequence[str] = (), states: Sequence[ApplicationState] = (), tags: Sequence[str] = ()
    ) -> tuple[ApplicationReport, ...]:
        return tuple(
            each
            for each in self.reports.values()
            if each.type in types and (not states or each.state in states)
        )

    async def update_node_resource(
        self, node: hadoop_rpc.NodeId, resource: YarnResource, over_commit_timeout_ms: int = -1
    ) -> None:
        self.node_reports = tuple(
            replace(each, capability=resource) if each.node == node else each for each in self.node_reports
        )

    async def map_attributes(
        self, operation: hadoop_rpc.AttributeOperation, attributes: Mapping[str, Mapping[str, str]]
    ) -> None:
        assert operation is hadoop_rpc.AttributeOperation.REMOVE

        def kept(each: NodeReport) -> tuple[NodeAttribute, ...]:
            removed = attributes.get(each.node.host, {})
            return tuple(one for one in each.attributes if one.key.name not in removed)

        self.node_reports = tuple(replace(each, attributes=kept(each)) for each in self.node_reports)

    async def close(self) -> None:
        pass


class FakeRmClient(RmClient):
    """A rm_client whose connections all end at one `Yarn`."""

    __slots__ = ("yarn",)
    yarn: Yarn

    @contextlib.asynccontextmanager
    async def manager(self) -> AsyncIterator[ResourceManager]:
        yield cast(ResourceManager, self.yarn)


def rm_client(folder: Path, yarn: Yarn | None = None, **properties: str) -> FakeRmClient:
    secret = folder / "site-secret"
    if not secret.exists():
        secret.write_text("ab" * 32)
        secret.chmod(0o600)
    site = SiteSettings(
        folder,
        {"yarn.resourcemanager.hostname": "rm", **properties},
        client_hosts={"rm": "10.0.0.1", "w1": "10.0.0.2"},
        master_secret_file=secret,
    )
    address = (hadoop_rpc.Address("rm", 8032),)
    made = FakeRmClient(site, "alice", hadoop_rpc.ResourceManagerAddresses(address, address, address))
    object.__setattr__(made, "yarn", yarn or Yarn())
    return made

"""A small YARN that uses the real protocol on real sockets: a ResourceManager, nodes, and their agents."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from tests.unit.adapters.hadoop_rpc.fake_hadoop import NOT_REGISTERED, FakeHadoop, Refusal
from tests.unit.master.scenes import at_once
from yarn_accel.adapters import hadoop_rpc
from yarn_accel.adapters.hadoop_rpc import methods, records
from yarn_accel.adapters.signed_http import Signer, exchange
from yarn_accel.client.token_file import read_secrets
from yarn_accel.core.application import Settings
from yarn_accel.errors import AccelError
from yarn_accel.master.config import MasterConfig, parse_config
from yarn_accel.master.environment import container_environment
from yarn_accel.master.registration import RegistrationSettings, register
from yarn_accel.master.service import Master

CONTROL = b"the control secret of this test"
SERVER = b"the servers' secret of this test"
NM_TOKEN = hadoop_rpc.Token(b"nm", b"nm password", "NMToken", "")
AM_TOKEN = hadoop_rpc.Token(b"am", b"am password", "YARN_AM_RM_TOKEN", "")
DENIED = "org.apache.hadoop.yarn.exceptions.YarnException"
INVALID_REQUEST = "org.apache.hadoop.yarn.exceptions.InvalidApplicationMasterRequestException"
PATIENCE_S = 60.0
SLOTS = 2
RACKS_OF_TWO = {"a1": "/r1", "w1": "/r1"}
PLAN = """{"roles": {
 "master": {"name": "master", "nodes": "one"},
 "server": {"name": "server", "nodes": "accelerator", "command": "exec serve", "environment": {"A": "b"},
    "resources": [{"name": "x.zip", "uri": "hdfs://nn:8020/x.zip", "n_bytes": 5, "modified_ms": 7,
    "visibility": "PRIVATE"}],
    "memory_mib": 512, "vcores": 2, "other": {}, "priority": 10, "whole": ["yarn.io/gpu"]},
 "agent": {"name": "agent", "nodes": "every", "command": "exec agent", "environment": {},
    "resources": [],
    "memory_mib": 128, "vcores": 1, "other": {}, "priority": 20}},
 "exit_reasons": {"112": "its glibc is too old"}}"""


@dataclass
class Run:
    """One container and what runs in it."""

    container: records.YarnContainer
    launch: records.LaunchContext | None = None
    is_over: bool = False

    @property
    def secrets(self) -> dict[str, bytes]:
        assert self.launch is not None
        return dict(read_secrets(self.launch.credentials or b""))


@dataclass
class FakeNode:
    """A NodeManager and what the ResourceManager knows of it."""

    host: str
    rack: str
    yarn: FakeYarn
    other: dict[str, int] = field(default_factory=dict)
    state: records.NodeState = records.NodeState.RUNNING
    attributes: dict[str, str] = field(default_factory=dict)
    refuses: str = ""
    hadoop: FakeHadoop = field(default_factory=FakeHadoop)
    #: What the node's agent says beside the usual.
    says: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.capability = records.YarnResource.of(4096, 4, {"acct/slot": SLOTS, **self.other})
        self.hadoop.handlers = {
            "startContainers": self._start,
            "stopContainers": self._stop,
            "getContainerStatuses": self._statuses,
        }
        self.hadoop.tokens = [NM_TOKEN]

    @property
    def id(self) -> hadoop_rpc.NodeId:
        return hadoop_rpc.NodeId(self.host, self.hadoop.port)

    @property
    def slots(self) -> int:
        return self.capability.other["acct/slot"]

    def report(self) -> records.NodeReport:
        attributes = tuple(
            records.NodeAttribute(records.NodeAttributeKey("rm.yarn.io", k), value=v)
            for k, v in self.attributes.items()
        )
        return records.NodeReport(
            self.id, rack=self.rack, capability=self.capability, state=self.state, attributes=attributes
        )

    def runs(self, role: str) -> list[Run]:
        """What runs there in a role."""
        return [
            run
            for run in self.yarn.runs.values()
            if run.container.node.host == self.host
            and run.launch
            and not run.is_over
            and role in run.launch.command[0]
        ]

    def _start(self, request: methods.StartContainersRequest) -> methods.StartContainersResponse:
        succeeded = []
        for each in request.requests:
            key = str(int(each.token.identifier))
            run = self.yarn.runs[key]
            if self.refuses:
                failed = methods.ContainerException(
                    run.container.id, methods.SerializedException(self.refuses, DENIED)
                )
                return methods.StartContainersResponse(failed=(failed,))
            run.launch = each.launch
            succeeded.append(run.container.id)
        return methods.StartContainersResponse(succeeded=tuple(succeeded))

    def _stop(self, request: methods.StopContainersRequest) -> methods.StopContainersResponse:
        for each in request.ids:
            self.yarn.end(str(each.number), -105)
        return methods.StopContainersResponse(succeeded=request.ids)

    def _statuses(self, request: Any) -> methods.GetContainerStatusesResponse:
        documents = {False: records.ContainerState.RUNNING, True: records.ContainerState.COMPLETE}
        known = [
            self.yarn.runs[str(each.number)] for each in request.ids if str(each.number) in self.yarn.runs
        ]
        return methods.GetContainerStatusesResponse(
            tuple(records.ContainerStatus(run.container.id, documents[run.is_over]) for run in known)
        )


class FakeYarn:
    """All of it. ``async with FakeYarn({"w1": "/r1"}) as yarn``."""

    def __init__(self, racks: dict[str, str]) -> None:
        self.attempt = hadoop_rpc.AttemptId(hadoop_rpc.ApplicationId(1763700000000, 1), 1)
        self.nodes = {host: FakeNode(host, rack, self) for host, rack in racks.items()}
        self.runs: dict[str, Run] = {}
        self.is_operator = True
        self.resource_types = ("memory-mb", "vcores", "acct/slot")
        self.is_registered = False
        #: What a report says of the application.
        self.state = records.ApplicationState.RUNNING
        self.final: methods.FinishRequest | None = None
        #: Tokens of the application beside that of its master.
        self.delegated: dict[str, hadoop_rpc.Token] = {}
        self.n_refused = 0
        self._granted: list[records.YarnContainer] = []
        self._completed: list[records.ContainerStatus] = []
        self._updated: list[records.NodeReport] = []
        self._response_id = 0
        self.rm = FakeHadoop(
            {
                "registerApplicationMaster": self._register,
                "allocate": self._allocate,
                "finishApplicationMaster": self._finish,
            },
            tokens=[AM_TOKEN],
        )
        self.clients = FakeHadoop(
            {
                "getClusterNodes": lambda _: methods.GetClusterNodesResponse(
                    tuple(
                        node.report()
                        for node in self.nodes.values()
                        if node.state is records.NodeState.RUNNING
                    )
                ),
                "getApplicationReport": lambda request: methods.GetApplicationReportResponse(
                    records.ApplicationReport(request.application, state=self.state)
                ),
                "updateNodeResource": self._update,
                "mapAttributesToNodes": self._map,
            }
        )

    async def __aenter__(self) -> FakeYarn:
        self._stack = contextlib.AsyncExitStack()
        await self._stack.enter_async_context(self.rm)
        await self._stack.enter_async_context(self.clients)
        for node in self.nodes.values():
            await self._stack.enter_async_context(node.hadoop)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # ---- what happens to it

    def end(self, number: str, exit_status: int) -> None:
        run = self.runs[number]
        if not run.is_over:
            run.is_over = True
            self._completed.append(
                records.ContainerStatus(run.container.id, records.ContainerState.COMPLETE, "", exit_status)
            )

    def kill(self, run: Run, exit_status: int = 137) -> None:
        self.end(str(run.container.id.number), exit_status)

    async def add(self, host: str, rack: str) -> FakeNode:
        node = FakeNode(host, rack, self)
        await self._stack.enter_async_context(node.hadoop)
        self.nodes[host] = node
        self._updated.append(node.report())
        return node

    def lose(self, host: str) -> None:
        """The ResourceManager has not heard of the node for too long."""
        node = self.nodes[host]
        node.state = records.NodeState.LOST
        self._updated.append(node.report())
        for number, run in self.runs.items():
            if run.container.node.host == host:
                self.end(number, -100)

    def forget(self) -> None:
        """The ResourceManager was restarted."""
        self.is_registered = False

    def next_attempt(self) -> None:
        self.attempt = replace(self.attempt, number=self.attempt.number + 1)
        self.is_registered = False

    # ---- the protocols

    def _running(self) -> tuple[records.YarnContainer, ...]:
        return tuple(
            replace(run.container, token=None)
            for run in self.runs.values()
            if run.launch is not None and not run.is_over
        )

    def _tokens(self) -> tuple[records.NodeToken, ...]:
        return tuple(records.NodeToken(node.id, NM_TOKEN) for node in self.nodes.values())

    def _register(self, request: Any) -> methods.RegisterResponse:
        if self.is_registered:
            text = f"Application Master is already registered : {self.attempt.application}"
            raise Refusal(INVALID_REQUEST, text)
        self.address = (request.host, request.rpc_port, request.tracking_url)
        self.is_registered = True
        self._response_id = 0
        types = tuple(records.ResourceType(name) for name in self.resource_types)
        return methods.RegisterResponse(
            previous_containers=self._running(), node_tokens=self._tokens(), resource_types=types
        )

    def _allocate(self, request: methods.AllocateRequest) -> methods.AllocateResponse:
        if not self.is_registered:
            raise Refusal(NOT_REGISTERED)
        assert request.response_id == self._response_id
        self._response_id += 1
        for each in request.ask:
            node = self.nodes.get(each.place)
            if node is not None and each.n_containers:
                self._grant(node, each.priority.value, each.capability, each.allocation_request_id)
        for released in request.release:
            self.end(str(released.number), -100)
        granted, self._granted = self._granted, []
        completed, self._completed = self._completed, []
        updated, self._updated = self._updated, []
        return methods.AllocateResponse(
            response_id=self._response_id,
            allocated=tuple(granted),
            completed=tuple(completed),
            updated_nodes=tuple(updated),
            node_tokens=self._tokens() if granted else (),
        )

    def _grant(
        self, node: FakeNode, priority: int, size: records.YarnResource, request_id: int | None
    ) -> None:
        number = len(self.runs) + 2
        token = hadoop_rpc.Token(str(number).encode(), b"-", "ContainerToken", "")
        container = records.YarnContainer(
            hadoop_rpc.ContainerId(self.attempt, number),
            node.id,
            resource=size,
            priority=records.Priority(priority),
            token=token,
            allocation_request_id=-1 if request_id is None else request_id,
        )
        self.runs[str(number)] = Run(container)
        self._granted.append(container)

    def _finish(self, request: methods.FinishRequest) -> methods.FinishResponse:
        is_stored, self.final = self.final is not None, request
        return methods.FinishResponse(is_stored)

    def _check_operator(self) -> None:
        if not self.is_operator:
            self.n_refused += 1
            raise Refusal(DENIED, "org.apache.hadoop.security.AccessControlException: User has no permission")

    def _update(self, request: methods.UpdateNodeResourceRequest) -> methods.UpdateNodeResourceResponse:
        self._check_operator()
        for each in request.nodes:
            self.nodes[each.node.host].capability = each.option.resource
        return methods.UpdateNodeResourceResponse()

    def _map(self, request: methods.MapAttributesRequest) -> methods.MapAttributesResponse:
        self._check_operator()
        for each in request.nodes:
            attributes = self.nodes[each.host].attributes
            for attribute in each.attributes:
                if request.operation is hadoop_rpc.AttributeOperation.REMOVE:
                    attributes.pop(attribute.key.name, None)
                else:
                    assert request.operation is hadoop_rpc.AttributeOperation.ADD, (
                        "others' attributes must survive"
                    )
                    # As YARN does: a value that is there stays.
                    attributes.setdefault(attribute.key.name, attribute.value or "")
        return methods.MapAttributesResponse()


# ---- agents


def heartbeat(node: FakeNode, run: Run | None, **server: Any) -> dict[str, Any]:
    """A heartbeat as an agent sends it; with a server when one runs."""
    reported = None
    if run is not None:
        reported = {
            "endpoint": {
                "name": node.host,
                "host": "10.0.0.1",
                "port": 7000 + run.container.id.number,
                "node": node.host,
            },
            "container": str(run.container.id),
            "is_local_only": False,
            "pid": 1,
            "health": "ok",
            "workers": 2.0,
            "in_flight": 0.0,
            **server,
        }
    return {"version": 1, "node": node.host, "devices": [], "server": reported, **node.says}


class Agents:
    """The agents of all nodes that run one; each signs with the key it was started with."""

    def __init__(self, yarn: FakeYarn, port: Callable[[], int]) -> None:
        self._yarn = yarn
        self._port = port
        self.answers: dict[str, dict[str, Any]] = {}
        self.errors: dict[str, str] = {}
        self.silent: set[str] = set()

    async def run(self) -> None:
        signers: dict[bytes, Signer] = {}
        async with aiohttp.ClientSession() as session:
            while True:
                for node in list(self._yarn.nodes.values()):
                    agents, servers = node.runs("agent"), node.runs("serve")
                    if not agents or node.host in self.silent:
                        continue
                    key = agents[0].secrets["yarn-accel.node"]
                    signer = signers.setdefault(key, Signer(key, f"agent:{node.host}"))
                    document = heartbeat(node, servers[0] if servers else None)
                    try:
                        self.answers[node.host] = await exchange(
                            session,
                            signer,
                            "POST",
                            f"http://127.0.0.1:{self._port()}",
                            "/v1/heartbeat",
                            document,
                        )
                    except AccelError as error:
                        self.errors[node.host] = str(error)
                await asyncio.sleep(0.03)


@dataclass
class Rig:
    """A master at work."""

    yarn: FakeYarn
    master: Master
    agents: Agents
    work: asyncio.Task[None]

    async def until(self, what: str, ask: Callable[[], object]) -> None:
        """Wait until something is true; ends at once when the master has ended."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not ask():
            if self.work.done() and self.work.exception():
                raise AssertionError(f"the master broke while waiting for: {what}") from self.work.exception()
            assert time.monotonic() < deadline_s, f"not within {PATIENCE_S:g} s: {what}"
            await asyncio.sleep(0.01)

    async def control(self, verb: str, document: Any = None, sender: str = "control:test") -> Any:
        """An admin's order."""
        from yarn_accel.adapters.signed_http import sender_key

        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{self.master.port}"
            signer = Signer(sender_key(CONTROL, sender), sender)
            return await exchange(session, signer, "POST", url, f"/v1/control/{verb}", document or {})

    async def get(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.master.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = at_once(self.master.documents.whole())
        return found

    def problems(self) -> list[str]:
        problems: list[str] = self.state()["service"]["problems"]
        return problems

    def bound(self) -> dict[str, str]:
        """Node -> server's node, as published."""
        return {
            host: node.attributes["accel-bind"]
            for host, node in self.yarn.nodes.items()
            if "accel-bind" in node.attributes
        }


def config_for(yarn: FakeYarn, folder: Any, **settings: Any) -> MasterConfig:
    """Settings for this YARN, all of it quick."""
    (folder / "plan.json").write_text(PLAN)
    tokens = hadoop_rpc.TokenFile(
        {"": AM_TOKEN, **yarn.delegated}, {"yarn-accel.control": CONTROL, "yarn_accel.master": SERVER}
    )
    (folder / "tokens").write_bytes(hadoop_rpc.write_token_file(tokens))
    timing = {
        "silence_s": 5.0,
        "settle_s": 0.3,
        "restore_after_s": 0.3,
        "drain_grace_s": 0.1,
        "guest_after_s": 0.3,
    }
    assert set(timing) <= set(Settings.__dataclass_fields__)
    return parse_config(
        {
            "plan_file": str(folder / "plan.json"),
            "rm_client": [str(yarn.clients.address)],
            "rm_scheduler": [str(yarn.rm.address)],
            "rm_admin": [str(yarn.clients.address)],
            "user": "ann",
            "hosts": {host: "127.0.0.1" for host in [*yarn.nodes, "a3"]},
            "accelerator_nodes": ["a*"],
            "heartbeat_interval_s": 0.05,
            "busy_interval_s": 0.05,
            "report_interval_s": 0.5,
            "http_host": "127.0.0.1",
            "timing": {**timing, **settings.pop("timing", {})},
            **settings,
        }
    )


def environ_for(yarn: FakeYarn, folder: Any) -> dict[str, str]:
    """What YARN tells the master of its current attempt; after `config_for`."""
    return {
        "CONTAINER_ID": str(hadoop_rpc.ContainerId(yarn.attempt, 1)),
        "NM_HOST": "127.0.0.1",
        "HADOOP_TOKEN_FILE_LOCATION": str(folder / "tokens"),
    }


@contextlib.asynccontextmanager
async def rig(
    yarn: FakeYarn, folder: Any, clock: Callable[[], float] = time.monotonic, **settings: Any
) -> AsyncIterator[Rig]:
    """A master of this YARN's current attempt with its agents; both of its clocks are `clock`."""
    config = config_for(yarn, folder, **settings)
    environ = environ_for(yarn, folder)
    words = RegistrationSettings(config.rm_scheduler, config.hosts, config.http_host, config.http_port)
    registration = await register(words, environ)
    environment = container_environment(config, registration, environ)
    master = Master(config, environment, registration, clock, clock)
    await master.open()
    agents = Agents(yarn, lambda: master.port)
    work = asyncio.create_task(master.work())
    beating = asyncio.create_task(agents.run())
    try:
        yield Rig(yarn, master, agents, work)
    finally:
        for task in (beating, work):
            task.cancel()
        await asyncio.gather(beating, work, return_exceptions=True)
        await master.close()
        for each in (environment.am, environment.nm, environment.rm):
            await each.close()

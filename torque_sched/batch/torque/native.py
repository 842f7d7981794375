"""Torque by its own batch protocol: what the commands do, without spawning them.

A look asks for the attributes that jobs are made of and no others, and reads no record again whose bytes are
those of the look before. Requests go one after the other over one connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from torque_sched.batch.system import BatchSystem, OrderKind, OrderResult
from torque_sched.batch.torque.batch_client import BatchClient
from torque_sched.batch.torque.parse.jobs import job_from_record
from torque_sched.batch.torque.parse.pbsnodes import node_from_record
from torque_sched.batch.torque.parse.qrun import classify_qrun, hosts_argument, order_result, refusal_words
from torque_sched.batch.torque.parse.qstat import one_server, queue_from_record, server_from_record
from torque_sched.batch.torque.parse.records import Parsed, Record
from torque_sched.batch.torque.parse.status_objects import JOB_ATTRIBUTES, builder, parsed
from torque_sched.batch.torque.pbs import Asked, Parts, QueriedServer
from torque_sched.batch.torque.protocol import (
    Attribute,
    DeleteJob,
    ErrorCode,
    KnownObjects,
    ModifyJob,
    Reply,
    ReplyDecoder,
    Request,
    RequestType,
    RunJob,
    Status,
    StatusObject,
    as_they_are,
    wanted,
)
from torque_sched.errors import AnswerLostError, BatchError, DocumentError, RecordError
from torque_sched.model.cluster import Job, JobId, Node, NodeName
from torque_sched.model.decisions import NodeShare

T = TypeVar("T")
LOOK_S = 30.0
ORDER_S = 10.0
_COUNTS = ("state_count",)
_STATUS = {
    "nodes": RequestType.STATUS_NODE,
    "jobs": RequestType.STATUS_JOB,
    "queues": RequestType.STATUS_QUEUE,
    "server": RequestType.STATUS_SERVER,
}


class NativePbs(QueriedServer):
    """One Torque server by its batch protocol.

    Looks raise `BatchError` where the connection or the server fails, and orders where nothing was sent, so
    that whoever chose this way can take the other.

    Args:
        client: the connection.
        others: what this protocol is not used for: setting a node offline.
        clock: as `QueriedServer` has it.
        query_timeout_s: for each question, at most `LOOK_S`.
        order_timeout_s: for each order, at most `ORDER_S`.
        note: as `QueriedServer` has it.
    """

    def __init__(
        self,
        client: BatchClient,
        others: BatchSystem,
        clock: Callable[[], float],
        *,
        query_timeout_s: float = LOOK_S,
        order_timeout_s: float = ORDER_S,
        note: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(clock, min(query_timeout_s, LOOK_S), note)
        self._client = client
        self._others = others
        self._order_timeout_s = min(order_timeout_s, ORDER_S)
        self._known_jobs: KnownObjects[Job | RecordError] = KnownObjects()
        self._known_nodes: KnownObjects[Node | RecordError] = KnownObjects()
        self._attributes = list(JOB_ATTRIBUTES)
        self._read_s = 0.0
        """Of the look that is taken: reading what the server had answered."""

    @property
    def one_order_at_a_time(self) -> bool:
        """As `BatchSystem` has it."""
        return True

    def forget(self) -> None:
        """Read every job and node anew next time."""
        self._known_jobs.clear()
        self._known_nodes.clear()

    async def close(self) -> None:
        """Leave the server."""
        await self._client.close()

    # -- looks

    async def _ask_all(self) -> Asked:
        began_s, self._read_s = time.monotonic(), 0.0
        server, queues = builder("Server", server_from_record), builder("Queue", queue_from_record)
        outputs: dict[str, bytes] = {}
        servers, outputs["server"] = await self._status("server", server)
        found, outputs["queues"] = await self._status("queues", queues)
        jobs, outputs["jobs"] = await self._jobs()
        # After the jobs: a slot of a job that has ended meanwhile is free in both.
        nodes, outputs["nodes"], _ = await self._ask_nodes()
        try:
            parts = Parts(nodes, jobs, found, one_server(servers, "pbs_server"))
        except DocumentError as error:
            raise BatchError(error.message, cure=error.cure) from error
        return Asked(parts, outputs, time.monotonic() - began_s - self._read_s, self._read_s)

    async def n_holding(self) -> int | None:
        """As `BatchSystem` has it: one attribute of the server, which costs it a tenth of a millisecond.

        Raises:
            BatchError: the server does not answer, or not with this.
        """
        servers, _ = await self._status("server", builder("Server", server_from_record), None, _COUNTS)
        return servers.items[0].n_holding if servers.items else None

    async def _ask_nodes(self) -> tuple[Parsed[Node], bytes, float]:
        began_s = time.monotonic()
        nodes, data = await self._status("nodes", _NODE, self._known_nodes)
        return nodes, data, time.monotonic() - began_s

    async def _jobs(self) -> tuple[Parsed[Job], bytes]:
        while True:
            try:
                return await self._status("jobs", _JOB, self._known_jobs, self._attributes[0])
            except _UnknownAttributeError:
                if len(self._attributes) == 1:
                    raise
                self._attributes.pop(0)

    async def _status(
        self,
        name: str,
        build: Callable[[StatusObject], T | RecordError],
        known: KnownObjects[T | RecordError] | None = None,
        attributes: Sequence[str] = (),
    ) -> tuple[Parsed[T], bytes]:
        def decoder() -> ReplyDecoder[T | RecordError]:
            return ReplyDecoder(build, known)

        request = Status(_STATUS[name], self._client.user, attributes=wanted(attributes))
        self._unanswered.add(name)
        try:
            answer = await self._client.ask(request, decoder, self._query_timeout_s, repeats=True)
        finally:
            self._unanswered.discard(name)
        self._read_s += answer.read_s
        reply = answer.reply
        if reply.code:
            kind = _UnknownAttributeError if reply.code == ErrorCode.UNKNOWN_ATTRIBUTE else BatchError
            raise kind(
                f"pbs_server does not show its {name}: {reply.text.strip()} ({reply.code})",
                cure="does qstat work for this user?",
            )
        return parsed(reply.objects), answer.data

    # -- orders

    async def start(self, job: Job, allocation: Sequence[NodeShare], lock: int | None = None) -> OrderResult:
        """AsyncRunJob, which is what ``qrun -a -H HOSTS JOB`` sends.

        Nothing of it outlives this process, so the lock is not kept.

        Raises:
            ServerConnectionError: nothing was sent.
        """
        hosts = hosts_argument(allocation, job.request)
        return await self._order(RunJob(self._client.user, job.id, hosts), job.id, hosts)

    async def comment(self, jobs: Sequence[JobId], text: str) -> OrderResult:
        """ModifyJob for each, one after the other; one that is lost ends the call.

        Raises:
            ServerConnectionError: at some job; nothing was sent for it.
        """
        attributes = (Attribute("comment", None, text),)
        refusals = []
        for job in jobs:
            reply = await self._ask(ModifyJob(self._client.user, job, attributes))
            if isinstance(reply, OrderResult):
                return reply
            if reply.code:
                refusals.append(f"qrun: {refusal_words(reply.code, reply.text, job)}")
        return classify_qrun(1 if refusals else 0, "\n".join(refusals))

    async def delete(self, job: JobId, why: str) -> OrderResult:
        """DeleteJob with a message, as ``qdel -m`` sends it.

        Raises:
            ServerConnectionError: nothing was sent.
        """
        return await self._order(DeleteJob(self._client.user, job, extension=why), job)

    async def set_offline(self, node: NodeName, note: str) -> OrderResult:
        """By ``pbsnodes``."""
        return await self._others.set_offline(node, note)

    async def _order(self, request: Request, job: JobId, hosts: str | None = None) -> OrderResult:
        reply = await self._ask(request)
        if isinstance(reply, OrderResult):
            return reply
        return order_result(reply.code, reply.text, job, hosts)

    async def _ask(self, request: Request) -> Reply[object] | OrderResult:
        """The reply, or what is known where it was lost."""
        try:
            return (await self._client.ask(request, _plain, self._order_timeout_s)).reply
        except AnswerLostError as error:
            return OrderResult(OrderKind.OTHER, error.message)


class _UnknownAttributeError(BatchError):
    """An attribute that was asked for is unknown to this server."""


def _plain() -> ReplyDecoder[object]:
    return ReplyDecoder(as_they_are)


def _job(record: Record) -> Job:
    return job_from_record(record)


_JOB = builder("Job", _job)
_NODE = builder("Node", node_from_record)

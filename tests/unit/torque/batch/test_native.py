"""Torque by its own protocol: the same as by its commands, and nothing twice where an answer is lost."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fixtures.batch_server import Fault, ScriptedServer, objects, refusal
from tests.fixtures.torque_printing import format_qstat_text, format_xml
from tests.unit.torque.conftest import Enter, closing
from torque_sched.adapters.commands import Commands, Completed
from torque_sched.batch.system import OrderKind
from torque_sched.batch.torque import batch_client
from torque_sched.batch.torque import protocol as wire
from torque_sched.batch.torque.batch_client import BatchClient, ServerPlace
from torque_sched.batch.torque.native import NativePbs
from torque_sched.batch.torque.parse.qrun import classify_qrun
from torque_sched.batch.torque.parse.records import Record
from torque_sched.batch.torque.parse.text import read_text
from torque_sched.batch.torque.parse.xml import read_xml
from torque_sched.batch.torque.pbs import QUERIES, Pbs, read_snapshot
from torque_sched.batch.torque.transport import ChosenTransport
from torque_sched.emulation import EmulatedTorque
from torque_sched.errors import AnswerLostError, BatchError, ServerConnectionError, SnapshotError
from torque_sched.model.cluster import Job, JobId, NodeName, QueueName
from torque_sched.model.decisions import NodeShare
from torque_sched.model.states import JobState

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "torque"
NOW_S = 1_795_195_700.0


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.txt").read_bytes()


OUTPUTS = {
    "nodes": golden("running-pbsnodes-x"),
    "jobs": golden("running-qstat-f-t-x"),
    "queues": golden("running-qstat-Q-f-1"),
    "server": golden("idle-qstat-B-f"),
}


class Cluster:
    """What a server knows, as records; it starts jobs and writes comments."""

    def __init__(self, outputs: dict[str, bytes] = OUTPUTS) -> None:
        self.records: dict[wire.RequestType, list[Record]] = {
            wire.RequestType.STATUS_NODE: list(read_xml(outputs["nodes"], "Node", "pbsnodes").items),
            wire.RequestType.STATUS_JOB: list(read_xml(outputs["jobs"], "Job", "qstat").items),
            wire.RequestType.STATUS_QUEUE: list(read_text(outputs["queues"], "Queue", "qstat").items),
            wire.RequestType.STATUS_SERVER: list(read_text(outputs["server"], "Server", "qstat").items),
        }
        self.records[wire.RequestType.STATUS_SERVER][0].attributes["state_count"] = "Queued:0 "
        self.n_starts: dict[str, int] = {}
        self.unknown: set[str] = set()

    @property
    def jobs(self) -> dict[str, Record]:
        return {record.name: record for record in self.records[wire.RequestType.STATUS_JOB]}

    @property
    def queued(self) -> list[JobId]:
        return [JobId(n) for n, job in self.jobs.items() if job.attributes["job_state"] == "Q"]

    def answer(self, request: wire.Request) -> wire.Reply[wire.StatusObject]:
        match request:
            case wire.Status():
                names = {each.name for each in request.attributes}
                if names & self.unknown:
                    return refusal(15002, "Undefined attribute ")
                return objects(_only(each, names) for each in self.records[request.type])
            case wire.RunJob():
                return self._run(request.job)
            case wire.ModifyJob() if request.job in self.jobs:
                self.jobs[request.job].attributes["comment"] = request.attributes[0].value
                return wire.Reply()
            case wire.DeleteJob() if request.job in self.jobs:
                self.jobs[request.job].attributes["job_state"] = "C"
                return wire.Reply()
        return refusal(15001, f"Unknown Job Id Error MSG=cannot locate job {request.job}")  # type: ignore[union-attr]

    def _run(self, name: str) -> wire.Reply[wire.StatusObject]:
        job = self.jobs[name].attributes
        if job["job_state"] != "Q":
            return refusal(15018, "Request invalid for state of job MSG=job already running")
        self.n_starts[name] = self.n_starts.get(name, 0) + 1
        job |= {"job_state": "R", "exec_host": "node3/4"}
        return wire.Reply()

    def outputs(self) -> dict[str, bytes]:
        """What the commands print of it."""
        texts = {
            "nodes": format_xml(self.records[wire.RequestType.STATUS_NODE]),
            "jobs": format_xml(self.records[wire.RequestType.STATUS_JOB], header=True),
            "queues": format_qstat_text(self.records[wire.RequestType.STATUS_QUEUE], fold=False),
            "server": format_qstat_text(self.records[wire.RequestType.STATUS_SERVER], fold=False),
        }
        return {name: text.encode() for name, text in texts.items()}


def _only(record: Record, names: set[str]) -> Record:
    """The record with the wanted attributes, and what comes unasked."""
    if not names or record.kind == "Node":
        return record
    kept = {
        name: value
        for name, value in record.attributes.items()
        if name.partition(".")[0] in names | {"Walltime"}
    }
    return replace(record, attributes=kept)


class PrintedOutputs(Commands):
    """The commands of the same cluster."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__({})
        self.cluster = cluster
        self.n_runs = 0

    async def run(self, argv: Sequence[str], timeout_s: float, *, keeps: int | None = None) -> Completed:
        self.n_runs += 1
        if argv[0] == "qrun":
            reply = self.cluster.answer(wire.RunJob("torquesched", argv[4], argv[3]))
            return Completed(tuple(argv), 2 if reply.code else 0, b"", reply.text.encode(), 0.0)
        name = next(name for name, query in QUERIES.items() if query == tuple(argv))
        return Completed(tuple(argv), 0, self.cluster.outputs()[name], b"", 0.0)


def plain() -> wire.ReplyDecoder[wire.StatusObject]:
    return wire.ReplyDecoder(wire.as_they_are)


def now_s() -> float:
    return NOW_S


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def job(cluster: Cluster) -> JobId:
    """One that waits."""
    return cluster.queued[0]


@pytest.fixture
def printed(cluster: Cluster) -> PrintedOutputs:
    return PrintedOutputs(cluster)


@pytest.fixture
def server(tmp_path: Path, cluster: Cluster, enter: Enter[ScriptedServer]) -> ScriptedServer:
    """A server of the cluster."""
    return enter(ScriptedServer(tmp_path, cluster.answer))


@pytest.fixture
def native(server: ScriptedServer, printed: PrintedOutputs, enter: Enter[NativePbs]) -> NativePbs:
    """The way by its protocol."""
    return enter(closing(NativePbs(server.client(), Pbs(printed, now_s), now_s)))


# -- looks


async def test_a_look_is_that_of_the_commands(native: NativePbs, printed: PrintedOutputs) -> None:
    by_protocol, by_commands = await native.look(), await Pbs(printed, now_s).look()
    assert by_protocol.snapshot == by_commands.snapshot
    assert by_protocol.problems == by_commands.problems == ()
    assert len(by_protocol.snapshot.jobs) > 5
    assert by_protocol.read_s > 0 < by_commands.read_s, "which is no load on the server"
    assert read_snapshot(by_protocol.outputs, NOW_S)[0] == by_commands.snapshot, "as a replay reads it"


async def test_the_server_counts_the_jobs_that_hold_nodes(
    cluster: Cluster, server: ScriptedServer, printed: PrintedOutputs, native: NativePbs
) -> None:
    attributes = cluster.records[wire.RequestType.STATUS_SERVER][0].attributes
    attributes["state_count"] = "Transit:0 Queued:3 Held:1 Waiting:0 Running:4 Exiting:2 Complete:9 "
    assert await native.n_holding() == 6
    (request,) = server.requests
    assert isinstance(request, wire.Status)
    assert [each.name for each in request.attributes] == ["state_count"]
    assert await Pbs(printed, now_s).n_holding() is None
    assert printed.n_runs == 0


async def test_unchanged_jobs_are_the_same_objects(cluster: Cluster, job: JobId, native: NativePbs) -> None:
    first = (await native.look()).snapshot
    cluster.jobs[job].attributes["comment"] = "changed"
    second = (await native.look()).snapshot
    assert [one is other for one, other in zip(first.jobs, second.jobs, strict=True)].count(False) == 1
    assert all(a is b for a, b in zip(first.nodes, second.nodes, strict=True))


@pytest.mark.parametrize("unknown", [{"req_information"}, {"req_information", "queue_rank"}])
async def test_an_attribute_that_a_server_does_not_know_is_not_asked_for_again(
    cluster: Cluster, server: ScriptedServer, native: NativePbs, unknown: set[str]
) -> None:
    cluster.unknown = unknown
    await native.look()
    server.requests.clear()
    assert (await native.look()).snapshot == read_snapshot(cluster.outputs(), NOW_S)[0]
    assert len(server.requests) == 4


async def test_a_damaged_job_is_a_problem_and_the_others_are_read(
    cluster: Cluster, job: JobId, native: NativePbs
) -> None:
    del cluster.jobs[job].attributes["queue"]
    await native.look()
    found = await native.look()
    assert [each.message for each in found.problems] == [f"job {job}: no queue"]
    assert len(found.snapshot.jobs) == len(cluster.jobs) - 1


async def test_one_connection_serves_everything(
    cluster: Cluster, server: ScriptedServer, native: NativePbs
) -> None:
    await asyncio.gather(native.look(), *(native.comment([job], "hi") for job in cluster.queued * 20))
    await native.look()
    assert (server.n_connections, server.most_open) == (1, 1)


async def test_a_connection_the_server_closed_while_idle_costs_nothing(
    job: JobId, server: ScriptedServer, native: NativePbs
) -> None:
    for _ in range(2):
        await native.look()
        await server.hang_up()
    assert (await native.start(*order(job))).kind is OrderKind.STARTED


# -- orders


def order(job: JobId, node: str = "node3", ppn: int = 1) -> tuple[Job, tuple[NodeShare, ...]]:
    return Job(job, JobState.QUEUED, QueueName("batch")), (NodeShare(NodeName(node), ppn),)


@pytest.mark.parametrize(
    ("code", "text", "qrun"),
    [
        (15064, "Unknown node ", golden("err-qrun-never-fits.stderr")),
        (15046, "Resource temporarily unavailable MSG=job allocation request exceeds currently available "
         "cluster nodes, 1 requested, 0 available", golden("err-qrun-async-not-enough.stderr")),
        (15018, "Request invalid for state of job MSG=job already running",
         golden("err-qrun-already-running.stderr")),
        (15018, "Request invalid for state of job MSG=job 47[].head state RUNNING",
         golden("err-qrun-array-parent.stderr")),
    ],
)  # fmt: skip
async def test_a_refusal_has_the_words_and_the_kind_of_qrun(
    server: ScriptedServer, native: NativePbs, code: int, text: str, qrun: bytes
) -> None:
    expected = classify_qrun(2, qrun)
    server.answer = lambda request: refusal(code, text)
    assert await native.start(*order(JobId(expected.text.split()[-1]), "node1", 3)) == expected


async def test_comments_of_jobs_that_are_gone_do_not_hinder_the_others(
    cluster: Cluster, job: JobId, native: NativePbs
) -> None:
    done = await native.comment([JobId("99999.head"), job], "a=b, 'c' \"d\"")
    assert done.kind is OrderKind.UNKNOWN_JOB
    assert cluster.jobs[job].attributes["comment"] == "a=b, 'c' \"d\""


async def test_a_deletion_has_its_reason(job: JobId, server: ScriptedServer, native: NativePbs) -> None:
    assert (await native.delete(job, "Job could never run")).kind is OrderKind.STARTED
    sent = server.requests[-1]
    assert isinstance(sent, wire.DeleteJob)
    assert (sent.job, sent.extension) == (job, "Job could never run")


# -- what may go wrong


async def test_a_look_is_asked_again_where_the_connection_ends_without_a_byte(
    server: ScriptedServer, native: NativePbs
) -> None:
    server.faults = [Fault(cut_reply=0)]
    await native.look()
    assert server.n_connections == 2


@pytest.mark.parametrize("fault", [Fault(cut_reply=9), Fault(n_replies=2), Fault(cut_reply=300)])
async def test_a_look_that_breaks_off_fails_and_the_next_one_is_over_a_new_connection(
    server: ScriptedServer, native: NativePbs, fault: Fault
) -> None:
    server.faults = [None, fault]
    with pytest.raises(AnswerLostError):
        await native.look()
    await native.look()
    assert server.n_connections == 2


async def test_a_silent_server_is_left_after_the_time_limit(
    job: JobId, server: ScriptedServer, printed: PrintedOutputs
) -> None:
    server.faults = [Fault(is_silent=True)] * 2
    limits = {"query_timeout_s": 0.05, "order_timeout_s": 0.05}
    async with closing(NativePbs(server.client(), Pbs(printed, now_s), now_s, **limits)) as native:
        with pytest.raises(AnswerLostError, match=r"within 0\.05 s"):
            await native.look()
        assert (await native.start(*order(job))).kind is OrderKind.OTHER
    assert server.n_connections == 2


async def test_a_cancelled_request_leaves_no_connection_in_doubt(
    server: ScriptedServer, native: NativePbs
) -> None:
    server.faults = [Fault(is_silent=True)]
    task = asyncio.ensure_future(native.look())
    await server.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await native.look()
    assert server.n_connections == 2


async def test_a_look_that_is_cancelled_while_it_connects_does_not_go_on(native: NativePbs) -> None:
    for turns in range(40):
        task = asyncio.ensure_future(native.look())
        for _ in range(turns):
            await asyncio.sleep(0)
        was_over = task.done()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() is not was_over, turns
        await native.close()
    await native.look()


async def test_the_event_loop_has_its_turn_while_every_order_is_answered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that is there soon is taken without a turn of the loop; signals and events still come in."""
    n_orders, n_turns = 200, 0
    passing_s = itertools.count(0.0, batch_client._TURN_S / 4)
    monkeypatch.setattr(batch_client, "time", SimpleNamespace(monotonic=lambda: next(passing_s)))

    async def other() -> None:
        nonlocal n_turns
        while True:
            await asyncio.sleep(0)
            n_turns += 1

    with EmulatedTorque.create(tmp_path, shape="1xnp=1") as torque:
        job = JobId(torque.submit("-l", "nodes=1"))
        client = BatchClient(ServerPlace(torque.trqauthd))
        async with closing(NativePbs(client, Pbs(Commands(), now_s), now_s)) as native:
            await native.look()
            beside = asyncio.ensure_future(other())
            for number in range(n_orders):
                assert (await native.comment([job], f"{number}")).kind is OrderKind.STARTED
            beside.cancel()
    assert n_turns >= n_orders // 5


async def test_a_late_second_reply_is_not_taken_for_the_next(
    job: JobId, server: ScriptedServer, native: NativePbs
) -> None:
    await native.look()
    server.faults = [Fault(n_replies=2)]
    assert (await native.comment([job], "one")).kind in {OrderKind.STARTED, OrderKind.OTHER}
    assert (await native.start(*order(job))).kind is OrderKind.STARTED
    assert server.n_connections == 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (wire.encode_answer(wire.AuthorisationAnswer(15008, "User or PID does not match")), "15008"),
        (b"", None), (b"nonsense|", None), (b"0|5|", None), (None, "did not answer"),
    ],
    ids=["refuses", "closes", "another protocol", "broken off", "silent"],
)  # fmt: skip
async def test_where_trqauthd_does_not_authorise_nothing_was_sent(
    server: ScriptedServer,
    native: NativePbs,
    answer: bytes | None,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    server.trqauthd = answer
    if answer is None:
        monkeypatch.setattr(batch_client, "CONNECT_S", 0.05)
    with pytest.raises(ServerConnectionError, match=words):
        await native.look()
    with pytest.raises(ServerConnectionError):
        await native.start(*order(JobId("1.head"), "node1"))
    assert server.requests == []


async def test_a_connection_that_is_no_longer_authorised_is_made_anew(
    server: ScriptedServer, native: NativePbs
) -> None:
    await native.look()
    server.forget()
    with pytest.raises(ServerConnectionError, match="15021"):
        await native.look()
    await native.look()
    assert server.n_connections == 2


async def test_a_socket_of_another_user_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = os.geteuid()
    monkeypatch.setattr(batch_client, "_TRUSTED", frozenset({uid + 1}))
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    client = BatchClient(ServerPlace(tmp_path / "trqauthd-unix"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "trqauthd-unix"))
        listener.listen()
        with pytest.raises(ServerConnectionError, match=f"served by user {uid}"):
            await client.ask(wire.Status(wire.RequestType.STATUS_SERVER, "x"), plain, 60.0)


async def test_without_trqauthd_only_root_has_a_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = BatchClient(ServerPlace(tmp_path / "nowhere", "127.0.0.1", 1))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ServerConnectionError, match="no trqauthd"):
        await client.ask(wire.Status(wire.RequestType.STATUS_SERVER, "x"), plain, 1.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may use a port below 1024")
async def test_root_without_trqauthd_comes_from_a_privileged_port(tmp_path: Path) -> None:
    ports: list[int] = []
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports.append(writer.get_extra_info("peername")[1])
        await reader.read(1000)
        writer.write(wire.encode_reply(wire.Reply()))
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with closing(BatchClient(ServerPlace(tmp_path / "nowhere", "127.0.0.1", port))) as client:
            asked = wire.Status(wire.RequestType.STATUS_SERVER, client.user)
            assert (await client.ask(asked, plain, 60.0)).reply == wire.Reply()
        await ended.wait()
    assert 512 <= ports[0] < 1024


async def test_200_cuts_anywhere_start_no_job_twice_and_forget_none(
    cluster: Cluster, server: ScriptedServer, native: NativePbs
) -> None:
    """After a lost answer the next look tells; a job is asked for again only where it shows as queued."""
    draw = random.Random(200)
    queued = {"job_state": "Q", "queue": "batch", "Job_Owner": "ann@head", "Resource_List.nodes": "1"}
    jobs = [Record("Job", f"{n}.head", dict(queued)) for n in range(1000, 1100)]
    cluster.records[wire.RequestType.STATUS_JOB] = jobs
    n_cuts = 0
    while n_cuts < 200 or cluster.queued:
        if n_cuts < 200:
            cuts = (Fault(cut_request=draw.randint(1, 60)), Fault(cut_reply=draw.randint(0, 40)))
            server.faults = [*[None] * draw.randrange(4), draw.choice(cuts)]
            n_cuts += 1
        try:
            look = await native.look()
        except BatchError:
            continue
        for waiting in look.snapshot.queued[:3]:
            result = await native.start(*order(waiting.id))
            assert result.kind in {OrderKind.STARTED, OrderKind.OTHER}, result
    assert cluster.n_starts == {job.name: 1 for job in jobs}


# -- which way


@dataclass
class Choosing:
    """A transport that may go either way, with what it does by the commands and when."""

    server: ScriptedServer
    printed: PrintedOutputs
    way: str = "auto"
    now_s: float = 0.0

    def __post_init__(self) -> None:
        pbs = Pbs(self.printed, now_s)
        native = NativePbs(self.server.client(), pbs, now_s)
        self.transport = ChosenTransport(native, pbs, self.way, lambda: self.now_s)  # type: ignore[arg-type]

    async def close(self) -> None:
        await self.transport.close()

    async def goes(self, way: str) -> bool:
        """Whether its next look is by this way."""
        return (await self.transport.look()).transport.startswith(way)


@pytest.fixture
def auto(server: ScriptedServer, printed: PrintedOutputs, enter: Enter[Choosing]) -> Choosing:
    return enter(closing(Choosing(server, printed)))


async def test_auto_uses_the_protocol_after_a_look_that_agrees(auto: Choosing, job: JobId) -> None:
    first = await auto.transport.look()
    assert first.transport.startswith("native (auto: trqauthd answers")
    second = await auto.transport.look()
    assert second.snapshot == first.snapshot
    assert (await auto.transport.start(*order(job))).kind is OrderKind.STARTED
    assert auto.printed.n_runs == 4
    assert await auto.transport.n_holding() == 0
    auto.server.faults = [Fault(cut_reply=12)]
    assert await auto.transport.n_holding() is None
    assert await auto.goes("native"), "the next look tells what is wrong"


async def test_auto_stays_with_the_commands_where_the_looks_differ(
    auto: Choosing, cluster: Cluster, job: JobId
) -> None:
    auto.printed.cluster = other = Cluster()
    other.jobs[job].attributes["Priority"] = "7"
    look = await auto.transport.look()
    what = f"commands (auto: its look differs from the commands': job {job}: priority; cure: "
    assert look.transport.startswith(what)
    assert "set transport: native" in look.transport
    assert look.snapshot == read_snapshot(other.outputs(), NOW_S)[0]
    n_requests = len(auto.server.requests)
    await auto.transport.look()
    assert len(auto.server.requests) == n_requests, "it is left alone for a while"
    auto.now_s += 31
    cluster.jobs[job].attributes["Priority"] = "7"
    assert await auto.goes("native")


async def test_auto_falls_back_at_once_and_returns_later(
    auto: Choosing, cluster: Cluster, job: JobId
) -> None:
    await auto.transport.look()
    auto.server.faults = [Fault(cut_reply=12)]
    look = await auto.transport.look()
    assert look.transport.startswith("commands (auto: pbs_server's reply breaks off; cure: ")
    assert look.snapshot == read_snapshot(cluster.outputs(), NOW_S)[0]
    assert (await auto.transport.start(*order(job))).kind is OrderKind.STARTED
    assert not any(isinstance(each, wire.RunJob) for each in auto.server.requests)
    auto.now_s += 29
    assert await auto.goes("commands")
    auto.now_s += 2
    assert await auto.goes("native")


async def test_pauses_double_and_an_order_that_was_not_sent_goes_by_command(
    auto: Choosing, job: JobId
) -> None:
    await auto.transport.look()
    await auto.server.hang_up()
    auto.server.trqauthd = wire.encode_answer(wire.AuthorisationAnswer(15135, "no such connection"))
    assert (await auto.transport.start(*order(job))).kind is OrderKind.STARTED
    assert auto.transport.words.startswith("commands (auto: trqauthd refused")
    n_connections = auto.server.n_connections
    for passed_s, tried in ((31, 1), (31, 1), (31, 2), (120, 3)):
        auto.now_s += passed_s
        await auto.transport.look()
        assert auto.server.n_connections - n_connections == tried
    auto.server.trqauthd = wire.encode_answer(wire.AuthorisationAnswer(0))
    auto.now_s += 600
    assert await auto.goes("native")


async def test_native_has_no_other_way(server: ScriptedServer, printed: PrintedOutputs, job: JobId) -> None:
    async with closing(Choosing(server, printed, "native")) as only:
        assert (await only.transport.look()).transport == "native (transport: native)"
        assert printed.n_runs == 0
        server.faults = [Fault(cut_reply=12)]
        with pytest.raises(SnapshotError, match="breaks off"):
            await only.transport.look()
        server.trqauthd = wire.encode_answer(wire.AuthorisationAnswer(15135, "no such connection"))
        assert (await only.transport.start(*order(job))).kind is OrderKind.SERVER_GONE

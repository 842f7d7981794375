"""Torque by its own protocol: the same as by its commands, and nothing twice where an answer is lost."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest

from tests.fixtures.batch_server import Fault, ScriptedServer, objects, refusal
from tests.fixtures.torque_printing import format_qstat_text, format_xml
from torque_sched.adapters import batch_client
from torque_sched.adapters.batch_client import BatchClient, ServerPlace
from torque_sched.adapters.commands import Commands, Completed
from torque_sched.adapters.native import NativePbs
from torque_sched.adapters.pbs import QUERIES, Look, Pbs, read_snapshot
from torque_sched.adapters.transport import ChosenTransport
from torque_sched.core.batch_protocol import (
    AuthorisationAnswer,
    DeleteJob,
    ModifyJob,
    Reply,
    ReplyDecoder,
    Request,
    RequestType,
    RunJob,
    Status,
    StatusObject,
    as_they_are,
    encode_answer,
    encode_reply,
)
from torque_sched.core.model import JobId
from torque_sched.emulation import EmulatedTorque
from torque_sched.errors import (
    AnswerLostError,
    BatchError,
    ServerConnectionError,
    SnapshotError,
)
from torque_sched.parse.qrun import RunKind, classify_qrun
from torque_sched.parse.records import Record
from torque_sched.parse.text import read_text
from torque_sched.parse.xml import read_xml

T = TypeVar("T")
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
        self.records: dict[RequestType, list[Record]] = {
            RequestType.STATUS_NODE: list(read_xml(outputs["nodes"], "Node", "pbsnodes").items),
            RequestType.STATUS_JOB: list(read_xml(outputs["jobs"], "Job", "qstat").items),
            RequestType.STATUS_QUEUE: list(read_text(outputs["queues"], "Queue", "qstat").items),
            RequestType.STATUS_SERVER: list(read_text(outputs["server"], "Server", "qstat").items),
        }
        self.records[RequestType.STATUS_SERVER][0].attributes["state_count"] = "Queued:0 "
        self.n_starts: dict[str, int] = {}
        self.unknown: set[str] = set()

    @property
    def jobs(self) -> dict[str, Record]:
        return {record.name: record for record in self.records[RequestType.STATUS_JOB]}

    @property
    def queued(self) -> list[JobId]:
        return [JobId(n) for n, job in self.jobs.items() if job.attributes["job_state"] == "Q"]

    def answer(self, request: Request) -> Reply[StatusObject]:
        match request:
            case Status():
                names = {each.name for each in request.attributes}
                if names & self.unknown:
                    return refusal(15002, "Undefined attribute ")
                return objects(_only(each, names) for each in self.records[request.type])
            case RunJob():
                return self._run(request.job)
            case ModifyJob() if request.job in self.jobs:
                self.jobs[request.job].attributes["comment"] = request.attributes[0].value
                return Reply()
            case DeleteJob() if request.job in self.jobs:
                self.jobs[request.job].attributes["job_state"] = "C"
                return Reply()
        return refusal(15001, f"Unknown Job Id Error MSG=cannot locate job {request.job}")  # type: ignore[union-attr]

    def _run(self, name: str) -> Reply[StatusObject]:
        job = self.jobs[name].attributes
        if job["job_state"] != "Q":
            return refusal(15018, "Request invalid for state of job MSG=job already running")
        self.n_starts[name] = self.n_starts.get(name, 0) + 1
        job |= {"job_state": "R", "exec_host": "node3/4"}
        return Reply()

    def outputs(self) -> dict[str, bytes]:
        """What the commands print of it."""
        texts = {
            "nodes": format_xml(self.records[RequestType.STATUS_NODE]),
            "jobs": format_xml(self.records[RequestType.STATUS_JOB], header=True),
            "queues": format_qstat_text(self.records[RequestType.STATUS_QUEUE], fold=False),
            "server": format_qstat_text(self.records[RequestType.STATUS_SERVER], fold=False),
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
            reply = self.cluster.answer(RunJob("torquesched", argv[4], argv[3]))
            return Completed(tuple(argv), 2 if reply.code else 0, b"", reply.text.encode(), 0.0)
        name = next(name for name, query in QUERIES.items() if query == tuple(argv))
        return Completed(tuple(argv), 0, self.cluster.outputs()[name], b"", 0.0)


def plain() -> ReplyDecoder[StatusObject]:
    return ReplyDecoder(as_they_are)


def with_server(
    folder: Path,
    cluster: Cluster,
    do: Callable[[ScriptedServer, NativePbs], Awaitable[T]],
    **settings: object,
) -> T:
    """Run something beside a server of this cluster."""

    async def run() -> T:
        async with ScriptedServer(folder, cluster.answer) as server:
            pbs = Pbs(PrintedOutputs(cluster), lambda: NOW_S)
            native = NativePbs(server.client(), pbs, lambda: NOW_S)
            try:
                return await do(server, native)
            finally:
                await native.close()

    return asyncio.run(run())


# -- looks


def test_a_look_is_that_of_the_commands(tmp_path: Path) -> None:
    cluster = Cluster()

    async def both(server: ScriptedServer, native: NativePbs) -> tuple[Look, Look]:
        return await native.look(), await Pbs(PrintedOutputs(cluster), lambda: NOW_S).look()

    by_protocol, by_commands = with_server(tmp_path, cluster, both)
    assert by_protocol.snapshot == by_commands.snapshot
    assert by_protocol.problems == by_commands.problems == ()
    assert len(by_protocol.snapshot.jobs) > 5
    assert by_protocol.read_s > 0 < by_commands.read_s, "which is no load on the server"
    assert read_snapshot(by_protocol.outputs, NOW_S)[0] == by_commands.snapshot, "as a replay reads it"


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDEN.glob("*qstat-f-t-x.txt")))
def test_jobs_of_every_recording_are_the_same_both_ways(tmp_path: Path, name: str) -> None:
    cluster = Cluster({**OUTPUTS, "jobs": golden(name)})

    async def look(server: ScriptedServer, native: NativePbs) -> Look:
        return await native.look()

    expected, _ = read_snapshot({**OUTPUTS, **cluster.outputs()}, NOW_S)
    assert with_server(tmp_path, cluster, look).snapshot == expected


def test_text_that_is_not_utf_8_is_the_same_both_ways(tmp_path: Path) -> None:
    cluster = Cluster()
    job = cluster.queued[0]
    cluster.jobs[job].attributes["comment"] = "sp\udce4ter <&> später"

    async def look(server: ScriptedServer, native: NativePbs) -> Look:
        return await native.look()

    found = with_server(tmp_path, cluster, look).snapshot
    assert next(each for each in found.jobs if each.id == job).comment == "sp\ufffdter <&> später"


def test_unchanged_jobs_are_the_same_objects(tmp_path: Path) -> None:
    cluster = Cluster()

    async def twice(server: ScriptedServer, native: NativePbs) -> tuple[Look, Look]:
        first = await native.look()
        cluster.jobs[cluster.queued[0]].attributes["comment"] = "changed"
        return first, await native.look()

    first, second = with_server(tmp_path, cluster, twice)
    same = [one is other for one, other in zip(first.snapshot.jobs, second.snapshot.jobs, strict=True)]
    assert same.count(False) == 1
    assert all(a is b for a, b in zip(first.snapshot.nodes, second.snapshot.nodes, strict=True))


def test_an_attribute_that_a_server_does_not_know_is_not_asked_for_again(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.unknown = {"req_information"}

    async def twice(server: ScriptedServer, native: NativePbs) -> tuple[Look, int]:
        await native.look()
        server.requests.clear()
        return await native.look(), len(server.requests)

    look, n_requests = with_server(tmp_path, cluster, twice)
    assert look.snapshot == read_snapshot(cluster.outputs(), NOW_S)[0]
    assert n_requests == 4
    cluster.unknown = {"req_information", "queue_rank"}
    assert with_server(tmp_path, cluster, twice)[0].snapshot == look.snapshot


def test_a_damaged_job_is_a_problem_and_the_others_are_read(tmp_path: Path) -> None:
    cluster = Cluster()
    job = cluster.queued[0]
    del cluster.jobs[job].attributes["queue"]

    async def look(server: ScriptedServer, native: NativePbs) -> Look:
        await native.look()
        return await native.look()

    found = with_server(tmp_path, cluster, look)
    assert [each.message for each in found.problems] == [f"job {job}: no queue"]
    assert len(found.snapshot.jobs) == len(cluster.jobs) - 1


def test_one_connection_serves_everything(tmp_path: Path) -> None:
    cluster = Cluster()

    async def much(server: ScriptedServer, native: NativePbs) -> tuple[int, int]:
        await asyncio.gather(native.look(), *(native.comment([job], "hi") for job in cluster.queued * 20))
        await native.look()
        return server.n_connections, server.most_open

    assert with_server(tmp_path, cluster, much) == (1, 1)


def test_a_connection_the_server_closed_while_idle_costs_nothing(tmp_path: Path) -> None:
    cluster = Cluster()

    async def again(server: ScriptedServer, native: NativePbs) -> RunKind:
        await native.look()
        await server.hang_up()
        await native.look()
        await server.hang_up()
        return (await native.start(cluster.queued[0], "node3:ppn=1")).kind

    assert with_server(tmp_path, cluster, again) is RunKind.STARTED


# -- orders


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
def test_a_refusal_has_the_words_and_the_kind_of_qrun(
    tmp_path: Path, code: int, text: str, qrun: bytes
) -> None:
    expected = classify_qrun(2, qrun)
    job = JobId(expected.text.split()[-1])

    async def start(server: ScriptedServer, native: NativePbs) -> object:
        server.answer = lambda request: refusal(code, text)
        return await native.start(job, "node1:ppn=3")

    assert with_server(tmp_path, Cluster(), start) == expected


def test_comments_of_jobs_that_are_gone_do_not_hinder_the_others(tmp_path: Path) -> None:
    cluster = Cluster()
    job = cluster.queued[0]

    async def comment(server: ScriptedServer, native: NativePbs) -> RunKind:
        return (await native.comment([JobId("99999.head"), job], "a=b, 'c' \"d\"")).kind

    assert with_server(tmp_path, cluster, comment) is RunKind.UNKNOWN_JOB
    assert cluster.jobs[job].attributes["comment"] == "a=b, 'c' \"d\""


def test_a_deletion_has_its_reason(tmp_path: Path) -> None:
    cluster = Cluster()
    job = cluster.queued[0]

    async def delete(server: ScriptedServer, native: NativePbs) -> list[Request]:
        assert (await native.delete(job, "Job could never run")).kind is RunKind.STARTED
        return server.requests

    sent = with_server(tmp_path, cluster, delete)[-1]
    assert isinstance(sent, DeleteJob)
    assert (sent.job, sent.extension) == (job, "Job could never run")


# -- what may go wrong


def test_a_look_is_asked_again_where_the_connection_ends_without_a_byte(tmp_path: Path) -> None:
    async def look(server: ScriptedServer, native: NativePbs) -> int:
        server.faults = [Fault(cut_reply=0)]
        await native.look()
        return server.n_connections

    assert with_server(tmp_path, Cluster(), look) == 2


@pytest.mark.parametrize("fault", [Fault(cut_reply=9), Fault(n_replies=2), Fault(cut_reply=300)])
def test_a_look_that_breaks_off_fails_and_the_next_one_is_over_a_new_connection(
    tmp_path: Path, fault: Fault
) -> None:
    async def look(server: ScriptedServer, native: NativePbs) -> int:
        server.faults = [None, fault]
        with pytest.raises(AnswerLostError):
            await native.look()
        await native.look()
        return server.n_connections

    assert with_server(tmp_path, Cluster(), look) == 2


def test_a_silent_server_is_left_after_the_time_limit(tmp_path: Path) -> None:
    cluster = Cluster()

    async def look(server: ScriptedServer, _: NativePbs) -> int:
        server.faults = [Fault(is_silent=True), Fault(is_silent=True)]
        commands = Pbs(PrintedOutputs(cluster), lambda: NOW_S)
        native = NativePbs(
            server.client(), commands, lambda: NOW_S, query_timeout_s=0.05, order_timeout_s=0.05
        )
        with pytest.raises(AnswerLostError, match=r"within 0\.05 s"):
            await native.look()
        assert (await native.start(cluster.queued[0], "node3:ppn=1")).kind is RunKind.OTHER
        await native.close()
        return server.n_connections

    assert with_server(tmp_path, cluster, look) == 2


def test_a_cancelled_request_leaves_no_connection_in_doubt(tmp_path: Path) -> None:
    cluster = Cluster()

    async def look(server: ScriptedServer, native: NativePbs) -> int:
        server.faults = [Fault(is_silent=True)]
        task = asyncio.ensure_future(native.look())
        await server.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await native.look()
        return server.n_connections

    assert with_server(tmp_path, cluster, look) == 2


def test_a_look_that_is_cancelled_while_it_connects_does_not_go_on(tmp_path: Path) -> None:
    async def look(server: ScriptedServer, native: NativePbs) -> None:
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

    with_server(tmp_path, Cluster(), look)


def test_the_event_loop_has_its_turn_while_every_order_is_answered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that is there soon is taken without a turn of the loop; signals and events still come in."""
    n_orders = 200
    passing_s = itertools.count(0.0, batch_client._TURN_S / 4)
    monkeypatch.setattr(batch_client, "time", SimpleNamespace(monotonic=lambda: next(passing_s)))

    async def order(torque: EmulatedTorque, job: JobId) -> int:
        native = NativePbs(
            BatchClient(ServerPlace(torque.trqauthd)), Pbs(Commands(), lambda: NOW_S), lambda: NOW_S
        )
        n_turns, is_over = 0, False

        async def other() -> None:
            nonlocal n_turns
            while not is_over:
                await asyncio.sleep(0)
                n_turns += 1

        await native.look()
        beside = asyncio.ensure_future(other())
        for number in range(n_orders):
            assert (await native.comment([job], f"{number}")).kind is RunKind.STARTED
        is_over = True
        await beside
        await native.close()
        return n_turns

    with EmulatedTorque.create(tmp_path, shape="1xnp=1") as torque:
        assert asyncio.run(order(torque, JobId(torque.submit("-l", "nodes=1")))) >= n_orders // 5


def test_a_late_second_reply_is_not_taken_for_the_next(tmp_path: Path) -> None:
    cluster = Cluster()
    job = cluster.queued[0]

    async def order(server: ScriptedServer, native: NativePbs) -> tuple[RunKind, RunKind, int]:
        await native.look()
        server.faults = [Fault(n_replies=2)]
        first = await native.comment([job], "one")
        second = await native.start(job, "node3")
        return first.kind, second.kind, server.n_connections

    first, second, n_connections = with_server(tmp_path, cluster, order)
    assert first in {RunKind.STARTED, RunKind.OTHER}
    assert second is RunKind.STARTED
    assert n_connections == 2


def test_trqauthd_that_refuses_means_nothing_was_sent(tmp_path: Path) -> None:
    async def look(server: ScriptedServer, native: NativePbs) -> None:
        server.trqauthd = encode_answer(AuthorisationAnswer(15008, "User or PID does not match"))
        with pytest.raises(ServerConnectionError, match="15008"):
            await native.look()
        with pytest.raises(ServerConnectionError):
            await native.start(JobId("1.head"), "node1")
        assert server.requests == []

    with_server(tmp_path, Cluster(), look)


@pytest.mark.parametrize("answer", [b"", b"nonsense|", b"0|5|"])
def test_trqauthd_that_is_not_one_means_nothing_was_sent(tmp_path: Path, answer: bytes) -> None:
    async def look(server: ScriptedServer, native: NativePbs) -> None:
        server.trqauthd = answer
        with pytest.raises(ServerConnectionError):
            await native.look()

    with_server(tmp_path, Cluster(), look)


def test_a_silent_trqauthd_is_left_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_client, "CONNECT_S", 0.05)

    async def look(server: ScriptedServer, native: NativePbs) -> None:
        server.trqauthd = None
        with pytest.raises(ServerConnectionError, match="did not answer"):
            await native.look()

    with_server(tmp_path, Cluster(), look)


def test_a_connection_that_is_no_longer_authorised_is_made_anew(tmp_path: Path) -> None:
    async def look(server: ScriptedServer, native: NativePbs) -> int:
        await native.look()
        server._authorised.clear()
        with pytest.raises(ServerConnectionError, match="15021"):
            await native.look()
        await native.look()
        return server.n_connections

    assert with_server(tmp_path, Cluster(), look) == 2


def test_a_socket_of_another_user_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    monkeypatch.setattr(batch_client, "_TRUSTED", frozenset({uid + 1}))
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    client = BatchClient(ServerPlace(tmp_path / "trqauthd-unix"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "trqauthd-unix"))
        listener.listen()
        with pytest.raises(ServerConnectionError, match=f"served by user {uid}"):
            asyncio.run(client.ask(Status(RequestType.STATUS_SERVER, "x"), plain, 60.0))


def test_without_trqauthd_only_root_has_a_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = BatchClient(ServerPlace(tmp_path / "nowhere", "127.0.0.1", 1))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ServerConnectionError, match="no trqauthd"):
        asyncio.run(client.ask(Status(RequestType.STATUS_SERVER, "x"), plain, 1.0))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may use a port below 1024")
def test_root_without_trqauthd_comes_from_a_privileged_port(tmp_path: Path) -> None:
    ports: list[int] = []
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ports.append(writer.get_extra_info("peername")[1])
        await reader.read(1000)
        writer.write(encode_reply(Reply()))
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    async def run() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        server = await asyncio.start_server(serve, sock=listener)
        client = BatchClient(ServerPlace(tmp_path / "nowhere", "127.0.0.1", port))
        asked = Status(RequestType.STATUS_SERVER, client.user)
        assert (await client.ask(asked, plain, 60.0)).reply == Reply()
        await client.close()
        await ended.wait()
        server.close()
        await server.wait_closed()

    asyncio.run(run())
    assert 512 <= ports[0] < 1024


def test_200_cuts_anywhere_start_no_job_twice_and_forget_none(tmp_path: Path) -> None:
    """After a lost answer the next look tells; a job is asked for again only where it shows as queued."""
    draw = random.Random(200)
    cluster = Cluster()
    queued = {"job_state": "Q", "queue": "batch", "Job_Owner": "ann@head", "Resource_List.nodes": "1"}
    jobs = [Record("Job", f"{n}.head", dict(queued)) for n in range(1000, 1100)]
    cluster.records[RequestType.STATUS_JOB] = jobs

    async def run(server: ScriptedServer, native: NativePbs) -> int:
        n_cuts = 0
        while n_cuts < 200 or cluster.queued:
            if n_cuts < 200:
                faults = [None] * draw.randrange(4)
                server.faults = [*faults, _a_cut(draw)]
                n_cuts += 1
            try:
                look = await native.look()
            except BatchError:
                continue
            waiting = [job.id for job in look.snapshot.jobs if job.state.value == "Q"]
            for job in waiting[:3]:
                result = await native.start(job, "node3:ppn=1")
                assert result.kind in {RunKind.STARTED, RunKind.OTHER}, result
        return n_cuts

    assert with_server(tmp_path, cluster, run) == 200
    assert cluster.n_starts == {job.name: 1 for job in jobs}


def _a_cut(draw: random.Random) -> Fault:
    if draw.random() < 0.5:
        return Fault(cut_request=draw.randint(1, 60))
    return Fault(cut_reply=draw.randint(0, 40))


# -- which way


class Moments:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def chosen(
    server: ScriptedServer, cluster: Cluster, way: str
) -> tuple[ChosenTransport, PrintedOutputs, Moments]:
    commands, clock = PrintedOutputs(cluster), Moments()
    pbs = Pbs(commands, lambda: NOW_S)
    native = NativePbs(server.client(), pbs, lambda: NOW_S)
    return ChosenTransport(native, pbs, way, clock), commands, clock  # type: ignore[arg-type]


def test_auto_uses_the_protocol_after_a_look_that_agrees(tmp_path: Path) -> None:
    cluster = Cluster()

    async def run(server: ScriptedServer, _: NativePbs) -> None:
        transport, commands, _clock = chosen(server, cluster, "auto")
        first = await transport.look()
        assert first.transport.startswith("native (auto: trqauthd answers")
        assert commands.n_runs == 4
        second = await transport.look()
        assert commands.n_runs == 4
        assert second.snapshot == first.snapshot
        assert (await transport.start(cluster.queued[0], "node3:ppn=1")).kind is RunKind.STARTED
        assert commands.n_runs == 4
        await transport.close()

    with_server(tmp_path, cluster, run)


def test_auto_stays_with_the_commands_where_the_looks_differ(tmp_path: Path) -> None:
    cluster, other = Cluster(), Cluster()
    job = other.queued[0]
    other.jobs[job].attributes["Priority"] = "7"

    async def run(server: ScriptedServer, _: NativePbs) -> None:
        transport, _commands, clock = chosen(server, other, "auto")
        look = await transport.look()
        what = f"commands (auto: its look differs from the commands': job {job}: priority; cure: "
        assert look.transport.startswith(what)
        assert "set transport: native" in look.transport
        assert look.snapshot == read_snapshot(other.outputs(), NOW_S)[0]
        n_requests = len(server.requests)
        await transport.look()
        assert len(server.requests) == n_requests, "it is left alone for a while"
        clock.now_s += 31
        cluster.jobs[job].attributes["Priority"] = "7"
        assert (await transport.look()).transport.startswith("native")
        await transport.close()

    with_server(tmp_path, cluster, run)


def test_what_happens_between_two_looks_is_no_difference(tmp_path: Path) -> None:
    cluster = Cluster()

    async def run(server: ScriptedServer, _: NativePbs) -> None:
        transport, _commands, _clock = chosen(server, cluster, "auto")

        def change_once(request: Request) -> Reply[StatusObject]:
            reply = cluster.answer(request)
            if len(server.requests) == 4:
                cluster.jobs[cluster.queued[0]].attributes["comment"] = "just now"
            return reply

        server.answer = change_once
        assert (await transport.look()).transport.startswith("native")
        await transport.close()

    with_server(tmp_path, cluster, run)


def test_auto_falls_back_at_once_and_returns_later(tmp_path: Path) -> None:
    cluster = Cluster()

    async def run(server: ScriptedServer, _: NativePbs) -> None:
        transport, _commands, clock = chosen(server, cluster, "auto")
        await transport.look()
        server.faults = [Fault(cut_reply=12)]
        look = await transport.look()
        assert look.transport.startswith("commands (auto: pbs_server's reply breaks off; cure: ")
        assert look.snapshot == read_snapshot(cluster.outputs(), NOW_S)[0]
        assert (await transport.start(cluster.queued[0], "node3:ppn=1")).kind is RunKind.STARTED
        assert not any(isinstance(each, RunJob) for each in server.requests)
        clock.now_s += 29
        assert (await transport.look()).transport.startswith("commands")
        clock.now_s += 2
        assert (await transport.look()).transport.startswith("native")
        await transport.close()

    with_server(tmp_path, cluster, run)


def test_pauses_double_and_an_order_that_was_not_sent_goes_by_command(tmp_path: Path) -> None:
    cluster = Cluster()

    async def run(server: ScriptedServer, _: NativePbs) -> None:
        transport, _commands, clock = chosen(server, cluster, "auto")
        await transport.look()
        await server.hang_up()
        server.trqauthd = encode_answer(AuthorisationAnswer(15135, "no such connection"))
        assert (await transport.start(cluster.queued[0], "node3:ppn=1")).kind is RunKind.STARTED
        assert transport.words.startswith("commands (auto: trqauthd refused")
        n_connections = server.n_connections
        for passed_s, tried in ((31, 1), (31, 1), (31, 2), (120, 3)):
            clock.now_s += passed_s
            await transport.look()
            assert server.n_connections - n_connections == tried
        server.trqauthd = encode_answer(AuthorisationAnswer(0))
        clock.now_s += 600
        assert (await transport.look()).transport.startswith("native")
        await transport.close()

    with_server(tmp_path, cluster, run)


def test_native_has_no_other_way(tmp_path: Path) -> None:
    cluster = Cluster()

    async def run(server: ScriptedServer, _: NativePbs) -> None:
        transport, commands, _clock = chosen(server, cluster, "native")
        look = await transport.look()
        assert look.transport == "native (transport: native)"
        assert commands.n_runs == 0
        server.faults = [Fault(cut_reply=12)]
        with pytest.raises(SnapshotError, match="breaks off"):
            await transport.look()
        server.trqauthd = encode_answer(AuthorisationAnswer(15135, "no such connection"))
        assert (await transport.start(cluster.queued[0], "node3:ppn=1")).kind is RunKind.SERVER_GONE
        await transport.close()

    with_server(tmp_path, cluster, run)

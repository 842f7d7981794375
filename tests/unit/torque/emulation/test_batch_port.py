"""The emulated server's side of the batch protocol, held to recordings of a real Torque byte by byte."""

from __future__ import annotations

import asyncio
import json
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.torque_captures import recorded
from torque_sched.core.batch_protocol import (
    Attribute,
    AuthenticateUser,
    DeleteJob,
    Disconnect,
    ModifyJob,
    Operator,
    Reply,
    ReplyDecoder,
    Request,
    RequestType,
    RunJob,
    SelectJobs,
    SelectStatus,
    Status,
    StatusObject,
    as_they_are,
    encode_reply,
    encode_request,
    wanted,
)
from torque_sched.emulation import Fault
from torque_sched.emulation.batch_port import BatchPort
from torque_sched.emulation.batch_requests import Answered, Requests
from torque_sched.emulation.call import Call
from torque_sched.emulation.faults import Faults
from torque_sched.emulation.lifecycle import advance
from torque_sched.emulation.model import Refused
from torque_sched.emulation.run import run_job
from torque_sched.emulation.trqauthd import _as_it_counts

from .in_memory import Bench, running_bench

OPERATOR = "torquesched"
STATUS_JOB = RequestType.STATUS_JOB
NODES = "node1 np=4\nnode2 np=4\n"
QUEUES = {"batch": {"resources_default.nodes": "1", "resources_default.walltime": "01:00:00"}}
QUEUE_MADE_S, SUBMITTED_S = 1795361162, 1795361289
"""When the recorded cluster's queue was made and its jobs were submitted."""
ENVIRONMENT = {"EMULATED_GROUP": "alice"}


def recorded_bench(version: str = "6.1.3", **settings: object) -> Bench:
    """The cluster of the recordings: jobs 4 and 5, and an array of three."""
    bench = Bench(NODES, version=version, next_job=4, queues=QUEUES, **settings)
    world = bench.world
    world.server["operators"] = f"root@head,{OPERATOR}@head"
    world.queues["batch"].mtime_s = QUEUE_MADE_S
    world.queues["batch"].assigned = ["mem", "nodect"]  # jobs had run before
    advance(world, SUBMITTED_S)
    plain = ("-o", "/dev/null", "-e", "/dev/null")
    for words in (
        ("-l", "nodes=2:ppn=1,mem=100mb", "-N", "alpha"),
        ("-l", "nodes=1:ppn=1", "-N", "beta"),
        ("-t", "0-2", "-N", "gamma"),
    ):
        call = Call("qsub", (*plain, *words), "/", ENVIRONMENT, "alice", b"sleep 60\n")
        assert bench.verbs["qsub"](world, call).code == 0
    # What a submitting shell has differs from shell to shell.
    world.job("4").attributes["Variable_List"] = (
        "PBS_O_QUEUE=batch,PBS_O_HOME=/,PBS_O_PATH=/opt/torque/sbin:/opt/torque/bin:/usr/sbin:/usr/bin:/sbin:/bin,"
        "PBS_O_WORKDIR=/,PBS_O_HOST=head,PBS_O_SERVER=head"
    )
    return bench


class Client:
    """A connection to a port in this process."""

    def __init__(self, port: BatchPort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.port = port
        self.reader = reader
        self.writer = writer
        self.own_port: int = writer.get_extra_info("sockname")[1]

    async def authorise(self, user: str = OPERATOR) -> None:
        """As trqauthd does it."""
        await self.ask(Status(RequestType.STATUS_SERVER, "nobody"))  # so the port knows the connection
        connection = self.port.connections[self.own_port]
        connection.user = connection.acts_as = user

    async def exchange(self, data: bytes, n_bytes: int) -> bytes:
        """Send a request, read as much of an answer."""
        self.writer.write(data)
        return await asyncio.wait_for(self.reader.readexactly(n_bytes), 60)

    async def ask(self, request: Request) -> Reply[StatusObject]:
        """Send a request, read its reply."""
        self.writer.write(encode_request(request))
        return await self.reply()

    async def reply(self, decoder: ReplyDecoder[StatusObject] | None = None) -> Reply[StatusObject]:
        """Read a reply; of several that come together each by the same decoder."""
        decoder = decoder or ReplyDecoder(as_they_are)
        while (reply := decoder.next()) is None:
            data = await asyncio.wait_for(self.reader.read(1 << 16), 60)
            if not data:
                raise ConnectionResetError
            decoder.receive(data)
        return reply

    async def rest(self) -> bytes:
        """What comes until the server closes."""
        return await asyncio.wait_for(self.reader.read(), 60)


Play = Callable[[Client], Coroutine[Any, Any, None]]


class Stage:
    """A port over a world in memory."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        self.bench = bench
        self.folder = folder
        self.clients: list[Client] = []
        requests = Requests()

        def perform(request: Request, user: str) -> Answered:
            self.on_request()
            return requests.answer(bench.world, request, user)

        self.on_request: Callable[[], None] = lambda: None
        faults = Faults(folder / "faults.json")
        self.port = BatchPort(folder, bench.world, perform, bench.world.do_granted, faults)

    def play(self, act: Play, *, user: str = OPERATOR) -> None:
        """Run one client's part."""

        async def run() -> None:
            await self.port.start()
            try:
                client = await self.connect()
                if user:
                    await client.authorise(user)
                await act(client)
            finally:
                self.port.stop()
                for each in self.clients:
                    each.writer.close()
                    with suppress(ConnectionError):
                        await each.writer.wait_closed()
                self.clients.clear()

        asyncio.run(run())

    async def connect(self) -> Client:
        """One more connection."""
        client = Client(self.port, *await asyncio.open_connection("127.0.0.1", self.port.port))
        self.clients.append(client)
        return client


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, recorded_bench())


def exchange_of(name: str) -> tuple[bytes, bytes]:
    """What the client sent, and all that the server answered."""
    parts = recorded(name)
    request = next(part.data for part in parts if part.receiver == "server")
    return request, b"".join(part.data for part in parts if part.sender == "server")


def prepare(bench: Bench, name: str) -> None:
    """Bring the cluster to where the recording was made."""
    if name in ("13", "17"):
        # Somebody else had the first slot of node1.
        bench.good("qrun", "-H", "node1", "6[0].head")
        bench.good("qrun", "-H", "node1:ppn=2+node2", "4")
    if name in ("19", "20", "21"):
        number = {"19": 418, "20": 3, "21": 421}[name]
        bench.world.next_job = number
        bench.submit()
    if name == "19":
        bench.good("pbsnodes", "-o", "node2")


@pytest.mark.parametrize(
    "name",
    ["03", "04", "06", "07", "08", "09", "10", "11", "12", "13", "14", "16", "17", "18", "19", "20", "21"],
)
def test_the_recorded_bytes(stage: Stage, name: str) -> None:
    request, answer = exchange_of(name)
    prepare(stage.bench, name)

    async def act(client: Client) -> None:
        assert await client.exchange(request, len(answer)) == answer

    stage.play(act)


def without_status(reply: Reply[StatusObject]) -> list[tuple[str, list[tuple[str, object]]]]:
    """Nodes with their attributes; of what their moms measured the names alone."""
    return [
        (
            node.name,
            [
                (each.name, re.findall(r"(?:^|,)(\w+)=", each.value) if each.name == "status" else each.value)
                for each in node.attributes
            ],
        )
        for node in reply.objects
    ]


def test_the_recorded_nodes_but_for_what_their_moms_measured(stage: Stage) -> None:
    request, answer = exchange_of("05")
    decoder = ReplyDecoder(as_they_are)
    decoder.receive(answer)
    real = decoder.next()
    assert real is not None
    # The moms of the recording list sessions of jobs that are over.
    for node, job in (("node1", "6[0].head"), ("node2", "6[1].head")):
        stage.bench.good("qrun", "-H", node, job)
    stage.bench.advance(60)
    for job in ("6[0].head", "6[1].head"):
        stage.bench.good("qdel", job)

    async def act(client: Client) -> None:
        client.writer.write(request)
        assert without_status(await client.reply()) == without_status(real)

    stage.play(act)


def dotted(found: StatusObject) -> list[tuple[str, str]]:
    """Attributes with the names that qstat prints."""
    return [
        (f"{one.name}.{one.resource}" if one.resource else one.name, one.value) for one in found.attributes
    ]


def of_text(text: str) -> list[list[tuple[str, str]]]:
    """The attributes of each block of ``name = value`` lines."""
    return [
        [(name, value) for name, _, value in (line[4:].partition(" = ") for line in block.split("\n")[1:])]
        for block in text.split("\n\n")[:-1]
    ]


@pytest.mark.parametrize("user", ["root", "alice", "bob"])
@pytest.mark.parametrize("version", ["6.1.3", "4.2.10"])
def test_commands_and_protocol_show_the_same(tmp_path: Path, user: str, version: str) -> None:
    bench = running_bench(version)
    xml = ElementTree.fromstring(bench.good("qstat", "-f", "-t", "-x", user=user))
    jobs = []
    for job in xml:
        leaves = []
        for leaf in job:
            leaves += [(f"{leaf.tag}.{each.tag}", each.text or "") for each in leaf]
            if not len(leaf):
                leaves.append((leaf.tag, leaf.text or ""))
        jobs.append([("Job_Id", leaves[0][1]), *leaves[1:]])
    nodes = [
        [(leaf.tag, leaf.text or "") for leaf in node][1:]
        for node in ElementTree.fromstring(bench.good("pbsnodes", "-x", user=user))
    ]

    async def act(client: Client) -> None:
        shown = [
            (await client.ask(Status(kind, user))).objects
            for kind in (RequestType.STATUS_JOB, RequestType.STATUS_NODE)
        ]
        assert [[("Job_Id", each.name), *dotted(each)] for each in shown[0]] == jobs
        assert [dotted(each) for each in shown[1]] == nodes
        for kind, letter in ((RequestType.STATUS_QUEUE, "-Q"), (RequestType.STATUS_SERVER, "-B")):
            text = bench.good("qstat", letter, "-f", "-1", user=user)
            assert [dotted(each) for each in (await client.ask(Status(kind, user))).objects] == of_text(text)

    Stage(tmp_path, bench).play(act, user=user)


def test_what_trqauthd_says_to_the_server() -> None:
    said = [part.data for part in recorded("01") if part.receiver == "server"]
    assert [_as_it_counts(AuthenticateUser("alice", 57642)), _as_it_counts(Disconnect("alice"))] == said


def test_a_comment_reaches_the_job(stage: Stage) -> None:
    async def act(client: Client) -> None:
        for text in (
            "Not Running: später, Grüße & <x>",
            "two\nlines\tand \"quotes\" 'too' = , :",
            "x" * 5000,
        ):
            await client.ask(ModifyJob(OPERATOR, "4.head", (Attribute("comment", None, text),)))
            reply = await client.ask(Status(RequestType.STATUS_JOB, OPERATOR, "4.head", wanted(["comment"])))
            assert reply.objects[0].attributes == (Attribute("comment", None, text),)
        await client.ask(ModifyJob(OPERATOR, "4.head", (Attribute("comment"),)))
        reply = await client.ask(Status(RequestType.STATUS_JOB, OPERATOR, "4.head", wanted(["comment"])))
        assert reply.objects[0].attributes == ()

    stage.play(act)


def test_async_modify_changes_nothing_on_6_1(tmp_path: Path) -> None:
    request, _ = exchange_of("20")
    for version, n_replies, comment in (("6.1.3", 2, None), ("4.2.10", 1, "hello AsyModify")):
        stage = Stage(tmp_path, recorded_bench(version))
        prepare(stage.bench, "20")

        async def act(client: Client, n_replies: int = n_replies) -> None:
            assert await client.exchange(request, 10 * n_replies) == b"+2+2+0+0+1" * n_replies
            client.writer.write(encode_request(Disconnect(OPERATOR)))
            assert await client.rest() == b""

        stage.play(act)
        assert stage.bench.world.job("3").attributes.get("comment") == comment


def test_what_is_behind_a_request_is_thrown_away(stage: Stage) -> None:
    request, answer = exchange_of("03")

    async def act(client: Client) -> None:
        assert await client.exchange(request * 2, len(answer)) == answer
        client.writer.write(encode_request(Disconnect(OPERATOR)))
        assert await client.rest() == b""

    stage.play(act)


def test_a_request_that_comes_while_another_is_done_is_answered(stage: Stage) -> None:
    async def act(client: Client) -> None:
        sock = client.writer.get_extra_info("socket")
        further = [
            encode_request(RunJob(OPERATOR, "4.head", "node1:ppn=1")),
            encode_request(Status(STATUS_JOB, OPERATOR, "4")),
        ]

        def send_another() -> None:
            if further:
                os.write(sock.fileno(), further.pop(0))

        stage.on_request = send_another
        client.writer.write(encode_request(RunJob(OPERATOR, "5.head", "node1:ppn=1")))
        decoder = ReplyDecoder(as_they_are)
        replies = [await client.reply(decoder) for _ in range(3)]
        assert [each.code for each in replies] == [0, 0, 0]
        # What was acknowledged before is seen by whatever is asked behind it.
        assert ("job_state", "R") in dotted(replies[2].objects[0])

    stage.play(act)


def test_a_start_in_the_background_is_answered_before_it_is_done(stage: Stage) -> None:
    world = stage.bench.world
    order = RunJob(OPERATOR, "5.head", "node1:ppn=4")
    assert Requests().answer(world, order, OPERATOR).data == encode_reply(Reply())
    assert world.job("5").state == "Q"
    # Whatever starts behind it finds the nodes taken.
    with pytest.raises(Refused, match="exceeds currently available"):
        run_job(world, OPERATOR, "4.head", "node1:ppn=1", in_background=True)
    assert world.job("5").state == "R"


def test_a_request_byte_by_byte(stage: Stage) -> None:
    request, answer = exchange_of("06")

    async def act(client: Client) -> None:
        for at in range(len(request)):
            client.writer.write(request[at : at + 1])
            await client.writer.drain()
            await asyncio.sleep(0)
        assert await asyncio.wait_for(client.reader.readexactly(len(answer)), 60) == answer

    stage.play(act)


GARBAGE = [
    b"+2+32+192+11torquesched+0+0+0",
    b"+2+22+772+11torquesched+0",
    b"+2+22+192+11torquesched210+9999999999",
    b"+2+22+192+40" + b"u" * 40 + b"+0+0+0",
    b"+2+22+19x",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_6_1_is_silent_about_what_it_does_not_understand(stage: Stage, garbage: bytes) -> None:
    request, answer = exchange_of("03")

    async def act(client: Client) -> None:
        client.writer.write(garbage)
        await client.writer.drain()
        other = await stage.connect()
        await other.authorise()
        # As long as this takes, the garbage has been read.
        assert await other.exchange(request, len(answer)) == answer
        assert await client.exchange(request, len(answer)) == answer

    stage.play(act)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_4_2_says_that_it_does_not_understand(tmp_path: Path, garbage: bytes) -> None:
    async def act(client: Client) -> None:
        client.writer.write(garbage)
        reply = await client.reply()
        assert reply.code == (15005 if garbage == GARBAGE[1] else 15058)
        assert reply.text.endswith("MSG=cannot decode message")

    Stage(tmp_path, recorded_bench("4.2.10")).play(act)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\0", b"+9+2", b"2+12"])
def test_another_protocol_is_closed_at_once(stage: Stage, data: bytes) -> None:
    async def act(client: Client) -> None:
        client.writer.write(data)
        assert await client.rest() == b""

    stage.play(act)


def test_who_may_ask_what(stage: Stage) -> None:
    async def nobody(client: Client) -> None:
        assert (await client.ask(Status(RequestType.STATUS_JOB, OPERATOR))).code == 15021
        await client.authorise("bob")
        assert (await client.ask(Status(RequestType.STATUS_JOB, OPERATOR))).code == 15021
        assert (await client.ask(Status(RequestType.STATUS_JOB, "bob"))).objects == ()
        hidden = await client.ask(Status(RequestType.STATUS_JOB, "bob", "4.head"))
        assert (hidden.code, hidden.text) == (15007, "Unauthorized Request ")
        for order in (RunJob("bob", "4.head"), DeleteJob("bob", "4.head")):
            assert (await client.ask(order)).code == 15007
        assert (await client.ask(AuthenticateUser("bob", client.own_port))).code == 15021

    stage.play(nobody, user="")

    async def owner(client: Client) -> None:
        own = await client.ask(Status(RequestType.STATUS_JOB, "alice"))
        assert [each.name for each in own.objects][:2] == ["4.head", "5.head"]
        assert "substate" not in {each.name for each in own.objects[0].attributes}
        comment = ModifyJob("alice", "4.head", (Attribute("comment", None, "x"),))
        assert (await client.ask(comment)).code == 15003
        assert (await client.ask(DeleteJob("alice", "4.head"))).code == 0

    stage.play(owner, user="alice")


def test_deleted_twice_is_acknowledged_twice(stage: Stage) -> None:
    async def act(client: Client) -> None:
        await client.ask(RunJob(OPERATOR, "4.head", "node1:ppn=1"))
        for _ in range(2):
            assert (await client.ask(DeleteJob(OPERATOR, "4.head"))).code == 0
        gone = await client.ask(DeleteJob(OPERATOR, "99.head"))
        assert (gone.code, gone.text) == (15001, "Unknown Job Id Error MSG=cannot locate job")

    stage.play(act)


def test_selecting(stage: Stage) -> None:
    async def chosen(client: Client, *criteria: Attribute) -> list[str]:
        ids = (await client.ask(SelectJobs(OPERATOR, criteria))).job_ids
        shown = await client.ask(SelectStatus(OPERATOR, criteria, wanted(["queue"])))
        assert tuple(each.name for each in shown.objects) == ids
        return list(ids)

    async def act(client: Client) -> None:
        await client.ask(RunJob(OPERATOR, "4.head", "node1:ppn=1"))
        state = "job_state"
        assert await chosen(client, Attribute(state, None, "R", Operator.EQUAL)) == ["4.head"]
        assert len(await chosen(client, Attribute(state, None, "QR", Operator.EQUAL))) == 5
        assert len(await chosen(client, Attribute(state, None, "R", Operator.NOT_EQUAL))) == 4
        mem = Attribute("Resource_List", "mem", "50mb", Operator.MORE)
        assert await chosen(client, mem) == ["4.head"]
        assert await chosen(client, Attribute("Job_Owner", None, "bob", Operator.EQUAL)) == []
        refused = await client.ask(SelectJobs(OPERATOR, (Attribute("nosuch", None, "1", 4),)))
        assert refused.code == 15002

    stage.play(act)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (RequestType.STATUS_QUEUE, "nosuch", 15020),
        (RequestType.STATUS_NODE, "nosuch", 15064),
        (RequestType.STATUS_JOB, "77.head", 15001),
        (RequestType.STATUS_JOB, "nosuch", 15020),
    ],
)
def test_what_is_not_there(stage: Stage, kind: RequestType, name: str, code: int) -> None:
    async def act(client: Client) -> None:
        assert (await client.ask(Status(kind, OPERATOR, name))).code == code

    stage.play(act)


def test_an_unknown_attribute_of_server_and_queue(stage: Stage) -> None:
    async def act(client: Client) -> None:
        for kind in (RequestType.STATUS_SERVER, RequestType.STATUS_QUEUE):
            assert (await client.ask(Status(kind, OPERATOR, "", wanted(["nosuch"])))).code == 15002
        node = await client.ask(Status(RequestType.STATUS_NODE, OPERATOR, "node2", wanted(["nosuch"])))
        assert node.objects[0].name == "node2"

    stage.play(act)


def test_extensions(stage: Stage) -> None:
    async def names(client: Client, name: str, extension: str | None) -> list[str]:
        reply = await client.ask(Status(RequestType.STATUS_JOB, OPERATOR, name, (), extension))
        return [each.name for each in reply.objects]

    async def act(client: Client) -> None:
        members = [f"6[{n}].head" for n in range(3)]
        assert await names(client, "6[].head", None) == members
        assert await names(client, "6[].head", "summarize_arrays") == ["6[].head"]
        assert await names(client, "batch", "exec_queue_only") == ["4.head", "5.head", *members]
        stage.bench.advance(60)
        reply = await client.ask(Status(RequestType.STATUS_JOB, OPERATOR, "4.head", (), "C"))
        assert [each.name for each in reply.objects[0].attributes] == [
            "Job_Name", "Job_Owner", "job_state", "queue",
        ]  # fmt: skip

    stage.play(act)


def test_too_many_connections(tmp_path: Path) -> None:
    stage = Stage(tmp_path, recorded_bench(most_connections=2))
    request = Status(RequestType.STATUS_SERVER, OPERATOR)

    async def act(client: Client) -> None:
        others = [await stage.connect() for _ in range(2)]
        await others[-1].authorise()
        assert [(await each.ask(request)).code for each in (client, others[-1])] == [15134, 15134]
        others[0].writer.close()
        while (await client.ask(request)).code:
            pass

    stage.play(act)


def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    bench = recorded_bench()
    bench.good("qmgr", "-c", "set server tcp_incoming_timeout = 1")

    async def act(client: Client) -> None:
        assert await client.rest() == b""

    Stage(tmp_path, bench).play(act)


def order(stage: Stage, *faults: Fault) -> None:
    path = stage.folder / "faults.json"
    path.write_text(json.dumps([asdict(fault) for fault in faults]), encoding="utf-8")


def test_every_cut_of_a_start(tmp_path: Path) -> None:
    """Cut after so many bytes: not started before the request is whole, started from then on."""
    request, answer = exchange_of("14")
    for after in range(len(request) + len(answer)):
        stage = Stage(tmp_path, recorded_bench())
        order(stage, Fault("qrun", "cut", after=after))

        async def act(client: Client, after: int = after) -> None:
            client.writer.write(request)
            assert await client.rest() == answer[: max(0, after - len(request))]

        stage.play(act)
        assert stage.bench.state("5") == ("R" if after >= len(request) else "Q")


@pytest.mark.parametrize(
    ("fault", "replies", "state"),
    [
        (Fault("AsyncRunJob", "gone"), 0, "Q"),
        (Fault("qrun", "gone", performs=True), 0, "R"),
        (Fault("qrun", "twice"), 2, "R"),
        (Fault("qrun", "slow", seconds=0.01), 1, "R"),
        (Fault("qrun", "slow", seconds=0.01, performs=True), 1, "R"),
        (Fault("qrun", "partial", fraction=0.5), 0.5, "R"),
    ],
)
def test_faults(stage: Stage, fault: Fault, replies: float, state: str) -> None:
    request, answer = exchange_of("14")
    order(stage, fault)

    async def act(client: Client) -> None:
        expected = (answer * 2)[: int(len(answer) * replies)]
        assert await client.exchange(request, len(expected)) == expected
        if fault.kind in ("gone", "partial"):
            assert await client.rest() == b""

    stage.play(act)
    assert stage.bench.state("5") == state


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("qrun: Unknown node in hostlist 'node1...' for job 5.head", 15064),
        ("qrun: Resource temporarily unavailable MSG=x", 15046),
        ("something nobody has seen", 15013),
    ],
)
def test_a_refusal_by_order(stage: Stage, text: str, code: int) -> None:
    order(stage, Fault("qrun", "exit", code=2, text=text))

    async def act(client: Client) -> None:
        reply = await client.ask(RunJob(OPERATOR, "5.head", "node1:ppn=1"))
        assert (reply.code, reply.text) == (code, text)

    stage.play(act)
    assert stage.bench.state("5") == "Q"


def test_a_start_waits_for_the_mom(tmp_path: Path) -> None:
    stage = Stage(tmp_path, recorded_bench())
    stage.bench.world.nodes["node1"].is_failing = True

    async def act(client: Client) -> None:
        assert (await client.ask(RunJob(OPERATOR, "5.head", "node1:ppn=1"))).code == 0
        late = await client.ask(RunJob(OPERATOR, "4.head", "node1:ppn=1", is_async=False))
        assert late.code == 15043

    stage.play(act)

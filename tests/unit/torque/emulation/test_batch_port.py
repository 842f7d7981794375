"""The emulated server's side of the batch protocol, held to recordings of a real Torque byte by byte."""

from __future__ import annotations

import asyncio
import json
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.fixtures.torque_captures import recorded
from tests.unit.torque.conftest import Enter
from torque_sched.batch.torque import protocol as wire
from torque_sched.emulation import Fault
from torque_sched.emulation.batch_port import BatchPort
from torque_sched.emulation.batch_requests import Answered, Requests
from torque_sched.emulation.call import Call
from torque_sched.emulation.faults import Faults
from torque_sched.emulation.lifecycle import fire
from torque_sched.emulation.model import Refused
from torque_sched.emulation.run import run_job
from torque_sched.emulation.trqauthd import _as_it_counts

from .in_memory import Bench, leaves_of, running_bench

OPERATOR = "torquesched"
STATUS_JOB = wire.RequestType.STATUS_JOB
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
    world.advance(SUBMITTED_S, fire)
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
        self.port, self.reader, self.writer = port, reader, writer
        self.own_port: int = writer.get_extra_info("sockname")[1]

    async def authorise(self, user: str) -> None:
        """As trqauthd does it."""
        await self.ask(
            wire.Status(wire.RequestType.STATUS_SERVER, "nobody")
        )  # so the port knows the connection
        connection = self.port.connections[self.own_port]
        connection.user = connection.acts_as = user

    async def exchange(self, data: bytes, n_bytes: int) -> bytes:
        """Send a request, read as much of an answer."""
        self.writer.write(data)
        return await self.reader.readexactly(n_bytes)

    async def ask(self, request: wire.Request) -> wire.Reply[wire.StatusObject]:
        """Send a request, read its reply."""
        self.writer.write(wire.encode_request(request))
        return await self.reply()

    async def reply(
        self, decoder: wire.ReplyDecoder[wire.StatusObject] | None = None
    ) -> wire.Reply[wire.StatusObject]:
        """Read a reply; of several that come together each by the same decoder."""
        decoder = decoder or wire.ReplyDecoder(wire.as_they_are)
        while (reply := decoder.next()) is None:
            data = await self.reader.read(1 << 16)
            if not data:
                raise ConnectionResetError
            decoder.receive(data)
        return reply

    async def rest(self, data: bytes = b"") -> bytes:
        """Send this; what comes until the server closes."""
        self.writer.write(data)
        return await self.reader.read()


class Stage:
    """A port over a world in memory, listening."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        self.bench, self.folder = bench, folder
        self.clients: list[Client] = []
        self.on_request: Callable[[], None] = lambda: None
        requests = Requests()

        def perform(request: wire.Request, user: str) -> Answered:
            self.on_request()
            return requests.answer(bench.world, request, user)

        faults = Faults(folder / "faults.json")
        self.port = BatchPort(folder, bench.world, perform, bench.world.do_granted, faults)

    async def __aenter__(self) -> Stage:
        await self.port.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.port.stop()
        for each in self.clients:
            each.writer.close()
            with suppress(ConnectionError):
                await each.writer.wait_closed()

    async def connect(self, user: str = OPERATOR) -> Client:
        """One more connection, by a user unless he is empty."""
        made = Client(self.port, *await asyncio.open_connection("127.0.0.1", self.port.port))
        self.clients.append(made)
        if user:
            await made.authorise(user)
        return made

    def order(self, *faults: Fault) -> None:
        """Faults from now on."""
        text = json.dumps([asdict(fault) for fault in faults])
        (self.folder / "faults.json").write_text(text, encoding="utf-8")


@pytest.fixture
def stage(tmp_path: Path, enter: Enter[Stage]) -> Stage:
    return enter(Stage(tmp_path, recorded_bench()))


@pytest.fixture
def client(stage: Stage, loop: asyncio.AbstractEventLoop) -> Client:
    """An operator's."""
    return loop.run_until_complete(stage.connect())


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
async def test_the_recorded_bytes(stage: Stage, client: Client, name: str) -> None:
    request, answer = exchange_of(name)
    prepare(stage.bench, name)
    assert await client.exchange(request, len(answer)) == answer


def dotted(found: wire.StatusObject) -> list[tuple[str, str]]:
    """Attributes with the names that qstat prints."""
    return [
        (f"{one.name}.{one.resource}" if one.resource else one.name, one.value) for one in found.attributes
    ]


def of_xml(text: str) -> list[list[object]]:
    """Name and attributes of each object."""
    return [[leaves[0][1], *leaves[1:]] for leaves in map(leaves_of, ElementTree.fromstring(text))]


def of_text(text: str) -> list[list[tuple[str, str]]]:
    """The attributes of each block of ``name = value`` lines."""
    return [
        [(name, value) for name, _, value in (line[4:].partition(" = ") for line in block.split("\n")[1:])]
        for block in text.split("\n\n")[:-1]
    ]


@pytest.mark.parametrize("user", ["root", "alice", "bob"])
@pytest.mark.parametrize("version", ["6.1.3", "4.2.10"])
async def test_commands_and_protocol_show_the_same(tmp_path: Path, user: str, version: str) -> None:
    bench = running_bench(version)
    async with Stage(tmp_path, bench) as stage:
        client = await stage.connect(user)
        for kind, words in ((STATUS_JOB, "qstat -f -t -x"), (wire.RequestType.STATUS_NODE, "pbsnodes -x")):
            shown = [
                [each.name, *dotted(each)] for each in (await client.ask(wire.Status(kind, user))).objects
            ]
            assert shown == of_xml(bench.good(*words.split(), user=user))
        for kind, letter in ((wire.RequestType.STATUS_QUEUE, "-Q"), (wire.RequestType.STATUS_SERVER, "-B")):
            text = bench.good("qstat", letter, "-f", "-1", user=user)
            assert [dotted(each) for each in (await client.ask(wire.Status(kind, user))).objects] == of_text(
                text
            )


def test_what_trqauthd_says_to_the_server() -> None:
    said = [part.data for part in recorded("01") if part.receiver == "server"]
    assert [
        _as_it_counts(wire.AuthenticateUser("alice", 57642)),
        _as_it_counts(wire.Disconnect("alice")),
    ] == said


async def test_a_comment_reaches_the_job(client: Client) -> None:
    comments = ("Not Running: später, Grüße & <x>", "two\nlines\tand \"quotes\" 'too' = , :", "x" * 5000)
    for shown in (*((wire.Attribute("comment", None, text),) for text in comments), ()):
        await client.ask(wire.ModifyJob(OPERATOR, "4.head", shown or (wire.Attribute("comment"),)))
        reply = await client.ask(wire.Status(STATUS_JOB, OPERATOR, "4.head", wire.wanted(["comment"])))
        assert reply.objects[0].attributes == shown


@pytest.mark.parametrize(
    ("version", "n_replies", "comment"), [("6.1.3", 2, None), ("4.2.10", 1, "hello AsyModify")]
)
async def test_async_modify_changes_nothing_on_6_1(
    tmp_path: Path, version: str, n_replies: int, comment: str | None
) -> None:
    bench = recorded_bench(version)
    prepare(bench, "20")
    async with Stage(tmp_path, bench) as stage:
        client = await stage.connect()
        assert await client.exchange(exchange_of("20")[0], 10 * n_replies) == b"+2+2+0+0+1" * n_replies
        assert await client.rest(wire.encode_request(wire.Disconnect(OPERATOR))) == b""
    assert bench.world.job("3").attributes.get("comment") == comment


async def test_what_is_behind_a_request_is_thrown_away(client: Client) -> None:
    request, answer = exchange_of("03")
    assert await client.exchange(request * 2, len(answer)) == answer
    assert await client.rest(wire.encode_request(wire.Disconnect(OPERATOR))) == b""


async def test_a_request_that_comes_while_another_is_done_is_answered(stage: Stage, client: Client) -> None:
    sock = client.writer.get_extra_info("socket")
    requests = (wire.RunJob(OPERATOR, "4.head", "node1:ppn=1"), wire.Status(STATUS_JOB, OPERATOR, "4"))
    further = [wire.encode_request(each) for each in requests]

    def send_another() -> None:
        if further:
            os.write(sock.fileno(), further.pop(0))

    stage.on_request = send_another
    client.writer.write(wire.encode_request(wire.RunJob(OPERATOR, "5.head", "node1:ppn=1")))
    decoder = wire.ReplyDecoder(wire.as_they_are)
    replies = [await client.reply(decoder) for _ in range(3)]
    assert [each.code for each in replies] == [0, 0, 0]
    # What was acknowledged before is seen by whatever is asked behind it.
    assert ("job_state", "R") in dotted(replies[2].objects[0])


def test_a_start_in_the_background_is_answered_before_it_is_done(stage: Stage) -> None:
    world = stage.bench.world
    order = wire.RunJob(OPERATOR, "5.head", "node1:ppn=4")
    assert Requests().answer(world, order, OPERATOR).data == wire.encode_reply(wire.Reply())
    assert world.job("5").state == "Q"
    # Whatever starts behind it finds the nodes taken.
    with pytest.raises(Refused, match="exceeds currently available"):
        run_job(world, OPERATOR, "4.head", "node1:ppn=1", in_background=True)
    assert world.job("5").state == "R"


async def test_a_request_byte_by_byte(client: Client) -> None:
    request, answer = exchange_of("06")
    for at in range(len(request)):
        client.writer.write(request[at : at + 1])
        await client.writer.drain()
        await asyncio.sleep(0)
    assert await client.reader.readexactly(len(answer)) == answer


GARBAGE = [
    b"+2+32+192+11torquesched+0+0+0",
    b"+2+22+772+11torquesched+0",
    b"+2+22+192+11torquesched210+9999999999",
    b"+2+22+192+40" + b"u" * 40 + b"+0+0+0",
    b"+2+22+19x",
]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_6_1_is_silent_about_what_it_does_not_understand(
    stage: Stage, client: Client, garbage: bytes
) -> None:
    request, answer = exchange_of("03")
    client.writer.write(garbage)
    await client.writer.drain()
    other = await stage.connect()
    # As long as this takes, the garbage has been read.
    assert await other.exchange(request, len(answer)) == answer
    assert await client.exchange(request, len(answer)) == answer


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_4_2_says_that_it_does_not_understand(tmp_path: Path, garbage: bytes) -> None:
    async with Stage(tmp_path, recorded_bench("4.2.10")) as stage:
        client = await stage.connect()
        client.writer.write(garbage)
        reply = await client.reply()
    assert reply.code == (15005 if garbage == GARBAGE[1] else 15058)
    assert reply.text.endswith("MSG=cannot decode message")


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\0", b"+9+2", b"2+12"])
async def test_another_protocol_is_closed_at_once(client: Client, data: bytes) -> None:
    assert await client.rest(data) == b""


async def test_who_may_ask_what(stage: Stage) -> None:
    bob = await stage.connect("")
    assert (await bob.ask(wire.Status(STATUS_JOB, OPERATOR))).code == 15021
    await bob.authorise("bob")
    assert (await bob.ask(wire.Status(STATUS_JOB, OPERATOR))).code == 15021
    assert (await bob.ask(wire.Status(STATUS_JOB, "bob"))).objects == ()
    for request in (
        wire.Status(STATUS_JOB, "bob", "4.head"),
        wire.RunJob("bob", "4.head"),
        wire.DeleteJob("bob", "4.head"),
    ):
        assert (await bob.ask(request)).code == 15007
    assert (await bob.ask(wire.AuthenticateUser("bob", bob.own_port))).code == 15021
    owner = await stage.connect("alice")
    own = (await owner.ask(wire.Status(STATUS_JOB, "alice"))).objects
    assert [each.name for each in own][:2] == ["4.head", "5.head"]
    assert "substate" not in {each.name for each in own[0].attributes}
    comment = wire.ModifyJob("alice", "4.head", (wire.Attribute("comment", None, "x"),))
    assert (await owner.ask(comment)).code == 15003
    assert (await owner.ask(wire.DeleteJob("alice", "4.head"))).code == 0


async def test_deleted_twice_is_acknowledged_twice(client: Client) -> None:
    await client.ask(wire.RunJob(OPERATOR, "4.head", "node1:ppn=1"))
    for _ in range(2):
        assert (await client.ask(wire.DeleteJob(OPERATOR, "4.head"))).code == 0
    gone = await client.ask(wire.DeleteJob(OPERATOR, "99.head"))
    assert (gone.code, gone.text) == (15001, "Unknown Job Id Error MSG=cannot locate job")


async def test_selecting(client: Client) -> None:
    await client.ask(wire.RunJob(OPERATOR, "4.head", "node1:ppn=1"))
    for criterion, n_found in (
        (wire.Attribute("job_state", None, "R", wire.Operator.EQUAL), 1),
        (wire.Attribute("job_state", None, "QR", wire.Operator.EQUAL), 5),
        (wire.Attribute("job_state", None, "R", wire.Operator.NOT_EQUAL), 4),
        (wire.Attribute("Resource_List", "mem", "50mb", wire.Operator.MORE), 1),
        (wire.Attribute("Job_Owner", None, "bob", wire.Operator.EQUAL), 0),
    ):
        ids = (await client.ask(wire.SelectJobs(OPERATOR, (criterion,)))).job_ids
        shown = await client.ask(wire.SelectStatus(OPERATOR, (criterion,), wire.wanted(["queue"])))
        assert tuple(each.name for each in shown.objects) == ids
        assert (len(ids), ids[:1] == ("4.head",)) == (n_found, n_found in {1, 5})
    refused = await client.ask(wire.SelectJobs(OPERATOR, (wire.Attribute("nosuch", None, "1", 4),)))
    assert refused.code == 15002


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (wire.RequestType.STATUS_QUEUE, "nosuch", 15020),
        (wire.RequestType.STATUS_NODE, "nosuch", 15064),
        (STATUS_JOB, "77.head", 15001),
        (STATUS_JOB, "nosuch", 15020),
    ],
)
async def test_what_is_not_there(client: Client, kind: wire.RequestType, name: str, code: int) -> None:
    assert (await client.ask(wire.Status(kind, OPERATOR, name))).code == code


async def test_an_unknown_attribute_of_server_and_queue(client: Client) -> None:
    for kind in (wire.RequestType.STATUS_SERVER, wire.RequestType.STATUS_QUEUE):
        assert (await client.ask(wire.Status(kind, OPERATOR, "", wire.wanted(["nosuch"])))).code == 15002
    node = await client.ask(
        wire.Status(wire.RequestType.STATUS_NODE, OPERATOR, "node2", wire.wanted(["nosuch"]))
    )
    assert node.objects[0].name == "node2"


async def test_extensions(stage: Stage, client: Client) -> None:
    members = [f"6[{n}].head" for n in range(3)]
    for name, extension, names in (
        ("6[].head", None, members),
        ("6[].head", "summarize_arrays", ["6[].head"]),
        ("batch", "exec_queue_only", ["4.head", "5.head", *members]),
    ):
        reply = await client.ask(wire.Status(STATUS_JOB, OPERATOR, name, (), extension))
        assert [each.name for each in reply.objects] == names
    stage.bench.advance(60)
    (shown,) = (await client.ask(wire.Status(STATUS_JOB, OPERATOR, "4.head", (), "C"))).objects
    assert [each.name for each in shown.attributes] == ["Job_Name", "Job_Owner", "job_state", "queue"]


async def test_too_many_connections(tmp_path: Path) -> None:
    request = wire.Status(wire.RequestType.STATUS_SERVER, OPERATOR)
    async with Stage(tmp_path, recorded_bench(most_connections=2)) as stage:
        first, other, last = await stage.connect(), await stage.connect(""), await stage.connect()
        assert [(await each.ask(request)).code for each in (first, last)] == [15134, 15134]
        other.writer.close()
        while (await first.ask(request)).code:
            pass


async def test_an_idle_connection_is_closed(stage: Stage) -> None:
    stage.bench.good("qmgr", "-c", "set server tcp_incoming_timeout = 1")
    assert await (await stage.connect()).rest() == b""


async def test_every_cut_of_a_start(tmp_path: Path) -> None:
    """Cut after so many bytes: not started before the request is whole, started from then on."""
    request, answer = exchange_of("14")
    for after in range(len(request) + len(answer)):
        async with Stage(tmp_path, recorded_bench()) as stage:
            stage.order(Fault("qrun", "cut", after=after))
            client = await stage.connect()
            assert await client.rest(request) == answer[: max(0, after - len(request))]
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
async def test_faults(stage: Stage, client: Client, fault: Fault, replies: float, state: str) -> None:
    request, answer = exchange_of("14")
    stage.order(fault)
    expected = (answer * 2)[: int(len(answer) * replies)]
    assert await client.exchange(request, len(expected)) == expected
    if fault.kind in ("gone", "partial"):
        assert await client.rest() == b""
    assert stage.bench.state("5") == state


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("qrun: Unknown node in hostlist 'node1...' for job 5.head", 15064),
        ("qrun: Resource temporarily unavailable MSG=x", 15046),
        ("something nobody has seen", 15013),
    ],
)
async def test_a_refusal_by_order(stage: Stage, client: Client, text: str, code: int) -> None:
    stage.order(Fault("qrun", "exit", code=2, text=text))
    reply = await client.ask(wire.RunJob(OPERATOR, "5.head", "node1:ppn=1"))
    assert (reply.code, reply.text) == (code, text)
    assert stage.bench.state("5") == "Q"


async def test_a_start_waits_for_the_mom(stage: Stage, client: Client) -> None:
    stage.bench.world.nodes["node1"].is_failing = True
    assert (await client.ask(wire.RunJob(OPERATOR, "5.head", "node1:ppn=1"))).code == 0
    late = await client.ask(wire.RunJob(OPERATOR, "4.head", "node1:ppn=1", is_async=False))
    assert late.code == 15043

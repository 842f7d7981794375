"""Texts that users choose (names, accounts, resources, variables) take nothing from others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from torque_sched.adapters.journal import Journal, read_journal
from torque_sched.adapters.log_file import Event, LogFile
from torque_sched.core.batch_protocol import (
    Attribute,
    ObjectType,
    Reply,
    ReplyKind,
    StatusObject,
    encode_reply,
)
from torque_sched.core.model import Job
from torque_sched.core.reasons import COMMENT_LIMIT, Reason, comment_for, run_failure_comment
from torque_sched.core.texts import one_line
from torque_sched.parse.accounting import AccountingRecord, job_from_accounting, parse_accounting
from torque_sched.parse.gpus import parse_gpu_status
from torque_sched.parse.openpbs import parse_openpbs_jobs
from torque_sched.parse.pbsnodes import parse_pbsnodes, parse_status
from torque_sched.parse.qmgr import parse_qmgr
from torque_sched.parse.qrun import classify_qrun
from torque_sched.parse.qstat import parse_jobs
from torque_sched.parse.records import Parsed, Record
from torque_sched.parse.text import format_qstat_text
from torque_sched.parse.xml import escaped, format_xml

HEAD = "11/27/2026 10:11:12;E;70.head;"
TIMES = "ctime=1795000000 qtime=1795000001 etime=1795000002 start=1795000010"
RUN = f"queue=batch {TIMES} owner=alice@h exec_host=n1/0-7"
WANT = "Resource_List.nodes=1:ppn=8 Resource_List.walltime=01:00:00"
SLOTS = "total_execution_slots=8 unique_node_count=1"
END = "end=1795003600 Exit_status=0 resources_used.cput=1 resources_used.walltime=00:59:50"
FORGED = (
    "user=bob group=staff jobname=b queue=gold ctime=1 qtime=1 etime=1 start=1 owner=bob@h exec_host=n9/0"
    " Resource_List.nodes=9 session=1 total_execution_slots=1 unique_node_count=1 end=2 Exit_status=1"
    " resources_used.cput=0 resources_used.walltime=99:00:00"
)
TEXTS = [
    "x", "", "x user=bob group=staff", "a=b;c", "x jobname=y", FORGED, f'"{FORGED}"',
    FORGED.replace(" ", "\t"),
    "caf\u00e9 \u2028user=bob", "\x00\x1b[2J", "x" * 1_000_000, "x queue=gold " * 20_000,
    f"x\n11/27/2026 10:11:13;E;99.head;{FORGED}", f"x\n\n11/27/2026 10:11:13;S;99.head;{FORGED}\ny",
    f"x\n11/27/2026 10:11:13;E;99.head;{FORGED}\n11/27/2026 10:11:13;E;98.head;{FORGED}\n",
    f"x\n11/27/2026 10:11:13;E;99.head;{FORGED}\n11/27/2026 10:11:13;E;98.head;user=bob group=g account=y",
    "x\nuser=bob", "x session=1 end=2 Exit_status=0",
]  # fmt: skip


def line(account: str = "", name: str = "j", software: str = "", slots: str = SLOTS) -> str:
    paid = f"account={account} " if account else ""
    wanted = f"Resource_List.software={software} {WANT}" if software else WANT
    session = f"session=12 {slots} {END}" if slots else f"session=12 {END}"
    return f"{HEAD}user=alice group=users {paid}jobname={name} {RUN} {wanted} {session}\n"


def read(text: str) -> AccountingRecord:
    parsed = parse_accounting(text)
    assert all("which are not used" in problem.message for problem in parsed.problems)
    (record,) = parsed.items
    return record


@pytest.mark.parametrize("slots", [SLOTS, ""], ids=["6.x", "2.5"])
@pytest.mark.parametrize("field", ["account", "name", "software"])
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_text_of_a_record_takes_no_key_of_the_server(text: str, field: str, slots: str) -> None:
    record = read(line(**{field: text}, slots=slots))
    job = job_from_accounting(record)
    assert (job.user, job.group, job.queue, job.id) == ("alice", "users", "batch", "70.head")
    assert (job.ctime_s, job.start_s, job.comp_s, job.exit_status) == (1795000000, 1795000010, 1795003600, 0)
    assert (job.used.walltime_s, sum(part.last - part.first + 1 for part in job.exec_host)) == (3590, 8)
    if field == "account" and "jobname=" not in text:
        assert record.attributes.get("account", "") == one_line(text.strip())


def test_a_started_job_is_read_likewise() -> None:
    text = f"{HEAD.replace(';E;', ';S;')}user=alice group=users account=x {FORGED} jobname=j {RUN} {WANT}\n"
    job = job_from_accounting(read(text))
    assert (job.user, job.queue, job.start_s, job.name) == ("alice", "batch", 1795000010, "j")


def test_a_forged_line_is_no_record_and_the_next_one_is_read() -> None:
    forged = f"x\n11/27/2026 10:11:13;E;99.head;{FORGED}"
    text = line(account=forged) + line().replace("70.head", "71.head")
    assert [(each.job, each.attributes["user"]) for each in parse_accounting(text).items] == [
        ("70.head", "alice"),
        ("71.head", "alice"),
    ]


def test_a_record_that_never_becomes_complete_takes_no_other() -> None:
    text = f"{HEAD}user=alice group=users account=x\n" + line() * 3
    assert [each.job for each in parse_accounting(text).items][-2:] == ["70.head", "70.head"]


JOB = "Job Id: 1.head\n    job_state = R\n    queue = batch\n    Variable_List = A={}\n    euser = alice\n"


@pytest.mark.parametrize(
    "text", ["x\nJob Id: 9.head\n    job_state = Q\n    queue = q", "\nJob Id: 1.head", "a\tb\x00\n"]
)
def test_a_line_of_a_variable_is_no_title_of_a_job(text: str) -> None:
    (job,) = parse_jobs(JOB.format(text) + "\n").items
    assert (job.id, job.user, job.queue) == ("1.head", "alice", "batch")


def test_a_variable_that_looks_like_the_user_makes_the_job_doubtful_and_says_so() -> None:
    parsed = parse_jobs(
        JOB.format("x\n    euser = bob") + "\n" + JOB.format("y").replace("1.head", "2.head") + "\n"
    )
    assert [job.id for job in parsed.items] == ["2.head"]
    assert "has two lines euser" in parsed.problems[0].message


def test_a_job_that_is_listed_twice_is_named() -> None:
    parsed = parse_jobs((JOB.format("x") + "\n") * 2)
    assert (len(parsed.items), "a second time" in parsed.problems[0].message) == (1, True)


@pytest.mark.parametrize(
    "text",
    ["</Variable_List></Job><Job>", "<Job>", "&lt;", "<!-- -->", "]]>", "\x00\n\t\u2028", "x" * 1_000_000],
)
def test_markup_in_a_variable_stays_there(text: str) -> None:
    attributes = {
        "job_state": "Q",
        "queue": "batch",
        "Variable_List": text,
        "Job_Name": text,
        "euser": "alice",
    }
    records = [Record("Job", f"{number}.head", attributes) for number in (1, 2)]
    parsed = parse_jobs(format_xml(records, header=True).encode())
    assert [(job.id, job.name, job.user) for job in parsed.items] == [
        ("1.head", one_line(text), "alice"),
        ("2.head", one_line(text), "alice"),
    ]


NODES = "n1\n     state = free\n     np = 8\n{}n2\n     state = free\n     np = 4\n\n"


@pytest.mark.parametrize("between", ["\n", "", "\n\n", "     note = a\n", "     note = a\nb\n"])
def test_no_node_is_lost_in_the_one_before(between: str) -> None:
    parsed = parse_pbsnodes(NODES.format(between))
    assert [(node.name, node.np) for node in parsed.items] == [("n1", 8), ("n2", 4)]
    assert not parsed.problems


@pytest.mark.parametrize(
    ("name", "words"), [("-n2", "no node has"), ("n 2", "no node has"), ("n1", "a second time")]
)
def test_a_node_that_is_not_taken_is_named(name: str, words: str) -> None:
    parsed = parse_pbsnodes(NODES.format("\n").replace("n2", name))
    assert [(node.name, node.np) for node in parsed.items] == [("n1", 8)]
    assert [words in problem.message for problem in parsed.problems] == [True]


def test_a_byte_order_mark_is_no_text() -> None:
    xml = "<Data><Node><name>n1</name><state>free</state><np>8</np></Node></Data>"
    for text in (xml, NODES.format("\n"), JOB.format("x") + "\n", line()):
        read_it = parse_pbsnodes if "np" in text else parse_jobs if "Job Id" in text else parse_accounting
        marked = read_it(b"\xef\xbb\xbf" + text.encode())
        assert marked == read_it(text.encode())
        assert not marked.problems
    assert parse_qmgr("\ufeffset server scheduling = True\n") == parse_qmgr("set server scheduling = True\n")


SHOWN = [
    "x\ny\r\nz\ta", "\x1b]0;root\x07\x1b[2J", "\x9b31m", "a\x00b", "\u2028job_state=Q", "\u202etxt.exe\u2066",
    "\udfffx\ud800", 'a"b\'c`$(id)', "caf\u00e9 \u65e5\u672c\u3000\u00a0", "k=v;k", "\x7f\x85\x0b\x0c\x1c",
    "\x1b[31m" * 40_000, "x" * 1_000_000,
]  # fmt: skip
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def from_xml(attributes: dict[str, str]) -> Parsed[Job]:
    document = format_xml([Record("Job", "1.head", attributes)], header=True)
    return parse_jobs(document.encode("utf-8", "surrogateescape" if "\udc80" in document else "replace"))


def from_characters(attributes: dict[str, str]) -> Parsed[Job]:
    written = "".join(f"<{key}>{escaped(text)}</{key}>" for key, text in attributes.items())
    numbered = CONTROLS.sub(lambda found: f"&#{ord(found.group())};", written)
    return parse_jobs(f"<Data><Job><Job_Id>1.head</Job_Id>{numbered}</Job></Data>")


def from_reply(attributes: dict[str, str]) -> Parsed[Job]:
    pairs = tuple(
        Attribute(key, None, text.encode("utf-8", "replace").decode()) for key, text in attributes.items()
    )
    reply = Reply(0, 0, ReplyKind.OBJECTS, objects=(StatusObject(ObjectType.JOB, "1.head", pairs),))
    return parse_jobs(encode_reply(reply))


def from_text(attributes: dict[str, str]) -> Parsed[Job]:
    return parse_jobs(format_qstat_text([Record("Job", "1.head", attributes)], fold=False))


def from_openpbs(attributes: dict[str, str]) -> Parsed[Job]:
    return parse_openpbs_jobs(json.dumps({"Jobs": {"1.head": attributes}}))


@pytest.mark.parametrize("read_jobs", [from_xml, from_characters, from_reply, from_text, from_openpbs])
@pytest.mark.parametrize("text", SHOWN, ids=range(len(SHOWN)))
def test_every_reader_makes_one_line_of_a_text(
    text: str, read_jobs: Callable[[dict[str, str]], Parsed[Job]]
) -> None:
    texts = {"Job_Name": text, "Job_Owner": f"alice{text}@h", "Account_Name": text, "comment": text}
    parsed = read_jobs({**texts, "job_state": "Q", "queue": "batch", "euser": "alice", "submit_args": text})
    (job,) = parsed.items
    assert (job.id, job.state.value, job.queue, job.user) == ("1.head", "Q", "batch", "alice")
    for shown in (job.name, job.owner, job.account, job.comment, job.submit_args):
        assert not CONTROLS.search(shown)
        shown.encode()
    if not CONTROLS.search(text):
        assert job.name == text


def test_what_is_there_twice_is_told_in_every_form() -> None:
    attributes = {"job_state": "Q", "queue": "batch", "euser": "alice"}
    other = {**attributes, "euser": "bob"}
    xml = format_xml([Record("Job", "1.head", attributes), Record("Job", "1.head", other)], header=True)
    pairs = tuple(Attribute(key, None, text) for key, text in attributes.items())
    objects = tuple(StatusObject(ObjectType.JOB, "1.head", pairs) for _ in range(2))
    for data in (xml, encode_reply(Reply(0, 0, ReplyKind.OBJECTS, objects=objects))):
        parsed = parse_jobs(data)
        assert [(job.id, job.user) for job in parsed.items] == [("1.head", "alice")]
        assert ["1.head is there a second time" in each.message for each in parsed.problems] == [True]
    known: dict[str, Job] = {}
    for _ in range(2):  # the second time from what is known
        assert [each.message for each in parse_jobs(xml, seen=known).problems] == [
            "qstat: 1.head is there a second time"
        ]
    nodes = [Record("Node", "n1", {"state": "free", "np": str(np)}) for np in (8, 64)]
    found = parse_pbsnodes(format_xml(nodes))
    assert ([node.np for node in found.items], len(found.problems)) == ([8], 1)


BEFORE = {"opsys": "linux", "physmem": "8kb", "ncpus": "8", "loadave": "1.00"}
AFTER = {"gres": "", "state": "free", "cpuclock": "Fixed", "rectime": "1795195696", "jobs": "1.head 2.head"}


@pytest.mark.parametrize("order", [1, -1], ids=["6.x", "4.x"])
@pytest.mark.parametrize("key", ["message", "varattr"])
@pytest.mark.parametrize(
    "text",
    [
        "x,physmem=9999gb,ncpus=512,loadave=0.00,rectime=9,jobs=,state=down", "a=b;c:d,e", "ERROR x, y=z,,=",
        "loadave=0,loadave=0", "\n,rectime=1", ",".join(["jobs=7.head,rectime=1"] * 50_000),
    ],
    ids=range(6),
)  # fmt: skip
def test_a_text_in_a_status_takes_no_reading(text: str, key: str, order: int) -> None:
    pairs = [*BEFORE.items(), (key, text), *AFTER.items()][::order]
    status = parse_status(",".join(f"{name}={value}" for name, value in pairs))
    assert (status.ncpus, status.loadave, status.rectime_s) == (8, 1.0, 1795195696.0)
    assert (status.physmem_bytes, status.jobs, status.state) == (8192, ("1.head", "2.head"), "free")


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100, PCIe",
        "A;B=C",
        "A;gpu_memory_total=1 MB;gpu_id=9",
        "A, B;gpu_mode=Default",
        "A=1,B",
        "\x1b[",
    ],
)
def test_a_name_of_a_gpu_takes_no_reading(name: str) -> None:
    gpus = ",".join(
        f"gpu[{index}]=gpu_id=0000:{index};gpu_product_name={name};gpu_memory_total=40960 MB;"
        "gpu_mode=Exclusive_Thread;gpu_utilization=5%"
        for index in (1, 0)
    )
    report = parse_gpu_status(
        f"{gpus},gpu_display=Disabled,driver_ver=535.1,timestamp=Fri Nov 20 17:32:24 2026"
    )
    assert [(each.index, each.gpu_id, each.mode, each.utilization) for each in report.devices] == [
        (0, "0000:0", "Exclusive_Thread", 0.05), (1, "0000:1", "Exclusive_Thread", 0.05),
    ]  # fmt: skip
    assert {each.memory_total_bytes for each in report.devices} == {40960 * 1024**2}
    assert (report.driver, report.timestamp) == ("535.1", "Fri Nov 20 17:32:24 2026")


@pytest.mark.parametrize("between", ["\u2028", "\x0b", "\x0c", "\x85", "\x1e", "\u2029"])
def test_no_line_of_qmgr_is_made_of_part_of_another(between: str) -> None:
    text = f"create node n1\nset node n1 note = x{between}set server scheduling = False\nset node n1 np = 8\n"
    (node,) = parse_qmgr(text).items
    assert (node.name, node.attributes["np"]) == ("n1", "8")
    assert not CONTROLS.search(node.attributes["note"])


def test_what_qmgr_sets_twice_is_told() -> None:
    parsed = parse_qmgr(
        "set server scheduling = True\nset server comment = x\nset server scheduling = False\n"
    )
    assert parsed.items[0].attributes["scheduling"] == "True"
    assert ["line 3 sets an attribute a second time" in each.message for each in parsed.problems] == [True]


@pytest.mark.parametrize("text", SHOWN, ids=range(len(SHOWN)))
def test_what_the_scheduler_writes_is_one_line(text: str, tmp_path: Path) -> None:
    for comment in (run_failure_comment(text), comment_for(Reason.NOT_ENOUGH_RESOURCE, {"resource": text})):
        assert len(comment) <= COMMENT_LIMIT
        assert not CONTROLS.search(comment)
    answer = classify_qrun(2, text.encode("utf-8", "replace"))
    assert not CONTROLS.search(answer.text)
    log = LogFile(tmp_path / "logs", clock=lambda: 1795195600.0)
    log.record(Event.SCHED, "Job", f"1.head{text}", text)
    log.close()
    (file,) = (tmp_path / "logs").iterdir()
    lines = file.read_text(encoding="utf-8").split("\n")
    assert [line.split(";")[3] for line in lines[:-1]].count("Job") == 1
    assert (len(lines), lines[-1]) == (4, "")  # opened, the record, closed
    assert not any(CONTROLS.search(line) or len(line) > 80_000 for line in lines)
    journal = Journal(tmp_path / "journal", file_bytes=1 << 30, n_files=2)
    journal.append({"job": text, text: 1})
    journal.close()
    assert list(read_journal(tmp_path / "journal")) == [{"job": text, text: 1}]

"""Texts that users choose (names, accounts, resources, variables) take nothing from others."""

from __future__ import annotations

import pytest

from torque_sched.parse.accounting import AccountingRecord, job_from_accounting, parse_accounting
from torque_sched.parse.pbsnodes import parse_pbsnodes
from torque_sched.parse.qmgr import parse_qmgr
from torque_sched.parse.qstat import parse_jobs
from torque_sched.parse.records import Record
from torque_sched.parse.xml import format_xml

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
        assert record.attributes.get("account", "") == text.strip()


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
        ("1.head", text, "alice"),
        ("2.head", text, "alice"),
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

"""Damaged and hostile outputs: one record lost is one problem, a cut output is no output."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.torque_printing import format_qstat_text, format_xml
from torque_sched.adapters.journal import Journal, read_journal
from torque_sched.adapters.log_file import Event, LogFile
from torque_sched.batch.openpbs.parse.jobs import parse_jobs as parse_openpbs_jobs
from torque_sched.batch.openpbs.parse.select import Kinds
from torque_sched.batch.system import OrderKind
from torque_sched.batch.torque.parse.accounting import AccountingRecord, job_from_accounting, parse_accounting
from torque_sched.batch.torque.parse.gpus import parse_gpu_status
from torque_sched.batch.torque.parse.pbsnodes import parse_pbsnodes, parse_status
from torque_sched.batch.torque.parse.qmgr import parse_qmgr
from torque_sched.batch.torque.parse.qrun import classify_qrun
from torque_sched.batch.torque.parse.qstat import parse_jobs, parse_queues, parse_server
from torque_sched.batch.torque.parse.records import Parsed, Record
from torque_sched.batch.torque.parse.xml import escaped, unescaped
from torque_sched.batch.torque.protocol import (
    Attribute,
    ObjectType,
    Reply,
    ReplyKind,
    StatusObject,
    encode_reply,
)
from torque_sched.errors import DocumentError, RecordError
from torque_sched.model.cluster import Job, JobSlots
from torque_sched.model.reasons import COMMENT_LIMIT, Reason, comment_for, run_failure_comment
from torque_sched.model.request import AccessPolicy
from torque_sched.model.states import HoldType
from torque_sched.model.texts import one_line


def job_xml(number: int, inside: str = "") -> str:
    return (
        f"<Job><Job_Id>{number}.h</Job_Id><job_state>Q</job_state><queue>batch</queue>{inside}"
        "<Resource_List><nodes>1</nodes></Resource_List></Job>"
    )


def jobs_xml(*records: str) -> str:
    return '<?xml version="1.0"?>\n<Data>' + "".join(records) + "</Data>\n"


@pytest.mark.parametrize(
    "damaged",
    [
        "<Job><Job_Id>2.h</Job_Id><job_state>Q</job_state></Job>",
        "<Job><job_state>Q</job_state><queue>batch</queue></Job>",
        "<Job><Job_Id>two</Job_Id><job_state>Q</job_state><queue>batch</queue></Job>",
        "<Job><Job_Id>2.h</Job_Id><job_state>?</job_state><queue>batch</queue></Job>",
        "<Job><Job_Id>2.h</Job_Id><job_state>Q</queue></Job>",
        "<Job><Job_Id>2.h</Job_Id>text<job_state>Q</job_state><queue>batch</queue></Job>",
        "<Job><Job_Id>2.h</Job_Id><job_state x='1'>Q</job_state><queue>b</queue></Job>",
        "<Job><Job_Id>2.h</Job_Id><a><b><c>1</c></b></a><job_state>Q</job_state><queue>b</queue></Job>",
        "<Job><Job_Id>2.h</Job_Id><Resource_List><nodes>1</nodes><job_state>Q</job_state></Job>",
        job_xml(2, "<qtime>yesterday</qtime>"),
        job_xml(2, "<exec_host>node1</exec_host>").replace(">Q<", ">R<"),
        "<Job><Job_Id>2.h</Job_Id><job_state>Q</job_state>",
        "something in between",
    ],
)
def test_a_damaged_job_is_one_problem_and_the_others_are_read(damaged: str) -> None:
    parsed = parse_jobs(jobs_xml(job_xml(1), damaged, job_xml(3)))
    assert [job.id for job in parsed.items] == ["1.h", "3.h"]
    assert parsed.n_records == 3
    (problem,) = parsed.problems
    assert problem.cure
    if "yesterday" in damaged:
        assert "2.h" in str(problem)
        assert "yesterday" in str(problem)


@pytest.mark.parametrize("read_it", [parse_jobs, parse_pbsnodes])
@pytest.mark.parametrize("data", ["<", "<Data>", "qstat: error"])
def test_xml_that_is_none_is_no_output(data: str, read_it: Callable[[str], object]) -> None:
    with pytest.raises(DocumentError):
        read_it(data)


@pytest.mark.parametrize(
    "hostile",
    ['<!DOCTYPE d [<!ENTITY a "ha">]>', "<!-- comment -->", "<![CDATA[x]]>", '<?xml-stylesheet href="x"?>'],
)
def test_what_torque_never_prints_refuses_the_document(hostile: str) -> None:
    for data in (hostile + jobs_xml(), jobs_xml(hostile), jobs_xml(job_xml(1, hostile))):
        with pytest.raises(DocumentError):
            parse_jobs(data)


def test_no_entity_is_expanded_but_the_predefined_ones() -> None:
    text = "&lt;&amp;&quot;&#65;&#x42;&lol;&#xD800;"
    (job,) = parse_jobs(jobs_xml(job_xml(1, f"<comment>{text}</comment>"))).items
    assert job.comment == '<&"AB&lol;&#xD800;'
    assert unescaped("&amp;lt;") == "&lt;"


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    data = jobs_xml(job_xml(1, "<Job_Name>caf\xe9</Job_Name>")).encode("latin-1")
    assert parse_jobs(data).items[0].name == "caf�"


def test_an_oversized_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torque_sched.batch.torque.parse.records.MAX_DOCUMENT_BYTES", 10)
    with pytest.raises(DocumentError, match="more than 10"):
        parse_jobs(jobs_xml())


def test_an_oversized_record_is_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torque_sched.batch.torque.parse.xml.MAX_RECORD_CHARACTERS", 300)
    parsed = parse_jobs(jobs_xml(job_xml(1), job_xml(2, f"<comment>{'x' * 300}</comment>")))
    assert (len(parsed.items), len(parsed.problems)) == (1, 1)


def test_unchanged_records_are_not_read_again_and_gone_ones_are_forgotten() -> None:
    seen: dict[str, Job] = {}
    before = parse_jobs(jobs_xml(job_xml(1), job_xml(2), job_xml(3)), seen=seen).items
    changed = job_xml(2, "<comment>now</comment>")
    after = parse_jobs(jobs_xml(job_xml(1), changed, "<Job><Job_Id>9.h</Job_Id></Job>"), seen=seen)
    assert after.items[0] is before[0]
    assert (after.items[1].id, after.items[1].comment) == ("2.h", "now")
    assert (len(after.problems), len(seen)) == (1, 2)


NODE = "n1\n     state = free\n     np = 4\n     ntype = cluster\n\n"


@pytest.mark.parametrize(
    "line", ["np = four", "np = -1", "gpus = two", "jobs = 0-1", "jobs = x/1.h", "np = 9999999"]
)
def test_a_node_with_unknown_slots_is_not_used(line: str) -> None:
    key = line.split()[0]
    kept = "".join(part + "\n" for part in NODE.split("\n")[:-2] if f" {key} " not in part)
    parsed = parse_pbsnodes(kept + f"     {line}\n\n" + NODE.replace("n1", "n2"))
    assert [node.name for node in parsed.items] == ["n2"]
    assert "node n1" in str(parsed.problems[0])


@pytest.mark.parametrize(
    ("whole", "read_it", "end"),
    [(jobs_xml(job_xml(1), job_xml(2)).strip(), parse_jobs, ""), (NODE[:-1], parse_pbsnodes, "\n")],
    ids=["XML", "text"],
)
def test_every_cut_of_an_output_is_refused(whole: str, read_it: Callable[[str], object], end: str) -> None:
    for length in range(1, len(whole)):
        with pytest.raises(DocumentError):
            read_it(whole[:length].rstrip("\n") + end)


def test_readings_of_the_mom_may_be_missing_or_garbled() -> None:
    status = "     status = loadave=nan,physmem=-1kb,ncpus=,message=ERROR a, b=c,rectime=12\n\n"
    (node,) = parse_pbsnodes(NODE[:-1] + status).items
    assert node.status is not None
    assert (node.status.loadave, node.status.physmem_bytes, node.status.ncpus) == (None, None, None)
    assert (node.status.message, node.status.rectime_s) == ("ERROR a, b=c", 12.0)


def test_nvidia_smi_readings_of_older_moms() -> None:
    gpu = "gpu[0]=gpu_utilization=7 %;gpu_temperature=N/A;gpu_memory_used=1 GB;gpu_mode=Default,timestamp=x"
    (node,) = parse_pbsnodes(NODE[:-1] + f"     gpu_status = {gpu}\n\n").items
    assert node.gpu_report is not None
    (device,) = node.gpu_report.devices
    assert (device.utilization, device.temperature_c, device.memory_used_bytes) == (0.07, None, 2**30)


def test_slots_in_several_ranges_of_one_job() -> None:
    (node,) = parse_pbsnodes(NODE[:-1] + "     jobs = 0-1,3/1.h, 2/2.h\n\n").items
    assert node.jobs == (JobSlots("1.h", 0, 1), JobSlots("1.h", 3, 3), JobSlots("2.h", 2, 2))


JOB = "Job Id: 1.h\n    job_state = Q\n    queue = batch\n"


def test_a_value_with_newlines_keeps_them_and_cannot_change_other_attributes() -> None:
    text = JOB + "    Variable_List = F=() {\n  echo\n    queue = evil\n}\n    comment = c\n\n"
    (job,) = parse_jobs(text).items
    assert (job.queue, job.comment) == ("batch", "c")


def test_slurm_wrappers_indent_by_a_tab() -> None:
    (job,) = parse_jobs("Job Id:\t7\n\tjob_state = R\n\tqueue = debug\n\n").items
    assert (job.id, job.queue) == ("7", "debug")


def test_requests_that_cannot_be_understood_are_kept_and_say_why() -> None:
    bad = {"nodes": "2:ppn=x", "mem": "lots", "walltime": "soon", "procs": "-1", "gres": "a:b"}
    text = JOB + "".join(f"    Resource_List.{name} = {value}\n" for name, value in bad.items()) + "\n"
    (job,) = parse_jobs(text).items
    assert all(f"{name}" in job.request.trouble for name in bad)


@pytest.mark.parametrize(
    ("lines", "qos"),
    [
        ({"x": "QOS:high"}, "high"),
        ({"x": "FLAGS:X;qos=high;NACCESSPOLICY:SINGLEJOB"}, "high"),
        ({"Resource_List.qos": "high", "x": "QOS:low"}, "high"),
        ({"x": "NOQOS:high"}, ""),
        ({}, ""),
    ],
)
def test_the_qos_of_a_request(lines: dict[str, str], qos: str) -> None:
    told = "".join(f"    {name} = {value}\n" for name, value in lines.items())
    (job,) = parse_jobs(JOB + told + "\n").items
    assert job.request.qos == qos


TOKENS_OF_SERVER = "Server: head\n    server_state = Active\n    scheduling = True\n    tokens = {}\n\n"
TOKENS_OF_JOB = JOB + "    Resource_List.tokens = {}\n\n"


def test_tokens_of_the_server_and_of_a_job() -> None:
    server = parse_server(TOKENS_OF_SERVER.format("matlab:2.0,ansys:1.5"))
    assert server.tokens == (("matlab", 2.0), ("ansys", 1.5))
    assert parse_jobs(TOKENS_OF_JOB.format("matlab:2")).items[0].request.tokens == (("matlab", 2.0),)


@pytest.mark.parametrize("text", ["matlab", "matlab:", ":2", "matlab:-1", "matlab:nan", "matlab:x,a:1"])
def test_garbled_tokens_of_the_server_cost_no_snapshot_and_of_a_job_no_guess(text: str) -> None:
    assert parse_server(TOKENS_OF_SERVER.format(text)).tokens == ()
    assert "is not NAME:NUMBER" in parse_jobs(TOKENS_OF_JOB.format(text)).items[0].request.trouble


def test_every_form_of_a_request() -> None:
    lines = {
        "Resource_List.gres": "gpus:2+matlab:1", "Resource_List.host": "n3", "Resource_List.feature": "a:b",
        "node_exclusive": "True", "x": "FLAGS:X;NACCESSPOLICY:SINGLEJOB", "Hold_Types": "uo",
        "req_information.task_count.0": "2", "req_information.lprocs.0": "4", "req_information.gpus.0": "1",
        "req_information.memory.0": "1024",
    }  # fmt: skip
    (job,) = parse_jobs(
        JOB + "".join(f"    {name} = {value}\n" for name, value in lines.items()) + "\n"
    ).items
    request = job.request
    assert (request.gpus_anywhere, request.host, request.features) == (2, "n3", ("a", "b"))
    assert (request.node_exclusive, request.access) == (True, AccessPolicy.SINGLE_JOB)
    assert (request.n_procs, request.tasks[0].mem_bytes) == (8, 2**20)
    assert job.hold_types == {HoldType.USER, HoldType.OPERATOR}


def test_an_empty_cluster_prints_nothing() -> None:
    assert parse_jobs("").items == ()
    assert parse_jobs(jobs_xml()).items == ()
    assert parse_queues("").items == ()
    with pytest.raises(DocumentError, match="0 servers"):
        parse_server("")


def test_a_queue_with_a_garbled_limit_is_not_used() -> None:
    parsed = parse_queues("Queue: a\n    max_running = few\n\nQueue: b\n    started = True\n\n")
    (queue,) = parsed.items
    assert (queue.name, queue.is_started, queue.is_enabled) == ("b", True, False)
    assert "queue a: max_running" in str(parsed.problems[0])
    with pytest.raises(DocumentError, match="server h: scheduling"):
        parse_server("Server: h\n    scheduling = perhaps\n\n")


def test_qmgr_lines_that_are_no_commands() -> None:
    parsed = parse_qmgr("create queue a\nset queue a started = True\nnonsense\nset queue started = True\n")
    assert (len(parsed.items), len(parsed.problems)) == (1, 2)
    assert "line 3" in str(parsed.problems[0])
    with pytest.raises(DocumentError):
        parse_qmgr("# nothing\n")


def test_accounting_lines_that_are_damaged_or_unfinished() -> None:
    good = "11/20/2026 17:21:01;Q;0.head;queue=batch\n"
    parsed = parse_accounting(good + "11/20/2026;Q\n" + "99/99/2026 17:21:01;Q;1.h;\n" + good + good[:-1])
    assert (len(parsed.items), len(parsed.problems), parsed.n_records) == (2, 3, 5)
    assert "read it again" in str(parsed.problems[-1])
    with pytest.raises(RecordError, match="type Q"):
        job_from_accounting(parsed.items[0])


def test_accounting_values_with_blanks() -> None:
    said = "user=al jobname=my odd=name queue=b exec_host=n/0 new=1 end=5 Exit_status=0"
    job = job_from_accounting(parse_accounting(f"11/20/2026 17:21:01;E;1.h;{said}\n").items[0])
    assert (job.name, job.user, job.exit_status, job.comp_s) == ("my odd=name", "al", 0, 5.0)
    assert job.slots_by_node() == {"n": 1}


def test_unknown_words_of_qrun_are_other_and_silence_has_a_text() -> None:
    assert classify_qrun(0, b"").kind is OrderKind.STARTED
    assert classify_qrun(2, "qrun: something new 1.h").kind is OrderKind.OTHER
    assert classify_qrun(2, b"").text == "exit code 2 without a word"
    assert len(classify_qrun(2, "x" * 10**6).text) == 300


# Texts that users choose (names, accounts, resources, variables) take nothing from others.


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
    assert (job.used.walltime_s, sum(part.last - part.first + 1 for part in job.allocated_slots)) == (3590, 8)
    if field == "account" and "jobname=" not in text:
        assert record.attributes.get("account", "") == one_line(text.strip())


def test_a_started_job_is_read_likewise() -> None:
    text = f"{HEAD.replace(';E;', ';S;')}user=alice group=users account=x {FORGED} jobname=j {RUN} {WANT}\n"
    job = job_from_accounting(read(text))
    assert (job.user, job.queue, job.start_s, job.name) == ("alice", "batch", 1795000010, "j")


def test_a_forged_line_is_no_record_and_the_next_one_is_read() -> None:
    forged = f"x\n11/27/2026 10:11:13;E;99.head;{FORGED}"
    text = line(account=forged) + line().replace("70.head", "71.head")
    found = [(each.job, each.attributes["user"]) for each in parse_accounting(text).items]
    assert found == [("70.head", "alice"), ("71.head", "alice")]


@pytest.mark.parametrize(
    "half", [f"queue=q session=1 {END.replace('1795003600', '1795004200')}",
             f"USER=alice {RUN} session=1 {END.replace('1795003600', '1795004200')}"]
)  # fmt: skip
def test_a_record_that_looks_like_a_half_of_a_damaged_one_keeps_its_own(half: str) -> None:
    """As OpenPBS writes it, or damaged as well: its time is that of its own stamp."""
    cut = "11/18/2026 12:03:20;E;69.head;user=alice group=users jobname=j\n"
    good = line().replace("11/27/2026 10:11:12", "11/18/2026 12:06:40")
    text = f"{cut}{good}11/18/2026 13:16:40;E;71.head;{half}\n"
    assert "70.head" in {each.job for each in parse_accounting(text).items}


@pytest.mark.parametrize("stamp", ["##/##/2026 ??;", "", "99/99"])
def test_records_between_a_cut_one_and_one_without_its_stamp_are_read(stamp: str) -> None:
    cut = "11/18/2026 12:03:20;E;69.head;user=alice group=users jobname=j\n"
    good = [line().replace(HEAD, f"11/18/2026 12:06:40;E;{number}.head;") for number in (70, 71, 72, 74)]
    lost = line().replace(HEAD, f"{stamp}E;73.head;")
    parsed = parse_accounting(cut + "".join(good[:3]) + lost + good[3])
    ends = {each.job: each.attributes.get("end") for each in parsed.items}
    assert ends == {
        "69.head": None,
        **dict.fromkeys(("70.head", "71.head", "72.head", "74.head"), "1795003600"),
    }
    assert len(parsed.problems) == 1
    half = f"{RUN} {WANT} session=12 {SLOTS} {END.replace('1795003600', '1795003400')}\n"
    parsed = parse_accounting(cut + good[0] + half + good[1])
    assert [each.job for each in parsed.items] == ["69.head", "71.head"], "a text of the user holds the one"


def test_a_record_that_never_becomes_complete_takes_no_other() -> None:
    text = f"{HEAD}user=alice group=users account=x\n" + line() * 3
    assert [each.job for each in parse_accounting(text).items][-2:] == ["70.head", "70.head"]


QUEUED = {"job_state": "Q", "queue": "batch", "euser": "alice"}
HOSTILE_JOB = (
    "Job Id: 1.head\n    job_state = R\n    queue = batch\n    Variable_List = A={}\n    euser = alice\n"
)


@pytest.mark.parametrize(
    "text", ["x\nJob Id: 9.head\n    job_state = Q\n    queue = q", "\nJob Id: 1.head", "a\tb\x00\n"]
)
def test_a_line_of_a_variable_is_no_title_of_a_job(text: str) -> None:
    (job,) = parse_jobs(HOSTILE_JOB.format(text) + "\n").items
    assert (job.id, job.user, job.queue) == ("1.head", "alice", "batch")


def test_a_variable_that_looks_like_the_user_makes_the_job_doubtful_and_says_so() -> None:
    other = HOSTILE_JOB.format("y").replace("1.head", "2.head")
    parsed = parse_jobs(HOSTILE_JOB.format("x\n    euser = bob") + f"\n{other}\n")
    assert [job.id for job in parsed.items] == ["2.head"]
    assert "has two lines euser" in parsed.problems[0].message


@pytest.mark.parametrize(
    "text",
    ["</Variable_List></Job><Job>", "<Job>", "&lt;", "<!-- -->", "]]>", "\x00\n\t\u2028", "x" * 1_000_000],
)
def test_markup_in_a_variable_stays_there(text: str) -> None:
    attributes = QUEUED | {"Variable_List": text, "Job_Name": text}
    records = [Record("Job", f"{number}.head", attributes) for number in (1, 2)]
    parsed = parse_jobs(format_xml(records, header=True).encode())
    found = [(job.id, job.name, job.user) for job in parsed.items]
    assert found == [(f"{number}.head", one_line(text), "alice") for number in (1, 2)]


NODES = "n1\n     state = free\n     np = 8\n{}n2\n     state = free\n     np = 4\n\n"


@pytest.mark.parametrize("between", ["\n", "", "\n\n", "     note = a\n", "     note = a\nb\n"])
def test_no_node_is_lost_in_the_one_before(between: str) -> None:
    parsed = parse_pbsnodes(NODES.format(between))
    assert [(node.name, node.slots) for node in parsed.items] == [("n1", 8), ("n2", 4)]
    assert not parsed.problems


@pytest.mark.parametrize(
    ("name", "words"), [("-n2", "no node has"), ("n 2", "no node has"), ("n1", "a second time")]
)
def test_a_node_that_is_not_taken_is_named(name: str, words: str) -> None:
    parsed = parse_pbsnodes(NODES.format("\n").replace("n2", name))
    assert [(node.name, node.slots) for node in parsed.items] == [("n1", 8)]
    assert [words in problem.message for problem in parsed.problems] == [True]


def test_a_byte_order_mark_is_no_text() -> None:
    xml = "<Data><Node><name>n1</name><state>free</state><np>8</np></Node></Data>"
    for text in (xml, NODES.format("\n"), HOSTILE_JOB.format("x") + "\n", line()):
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
    sent = {key: text.encode("utf-8", "replace").decode() for key, text in attributes.items()}
    pairs = tuple(Attribute(key, None, text) for key, text in sent.items())
    reply = Reply(0, 0, ReplyKind.OBJECTS, objects=(StatusObject(ObjectType.JOB, "1.head", pairs),))
    return parse_jobs(encode_reply(reply))


def from_text(attributes: dict[str, str]) -> Parsed[Job]:
    return parse_jobs(format_qstat_text([Record("Job", "1.head", attributes)], fold=False))


def from_openpbs(attributes: dict[str, str]) -> Parsed[Job]:
    named = {"submit_args": "Submit_arguments"}
    # With -w a newline in a value is written as two characters.
    lines = [f"    {named.get(k, k)} = {text}".replace("\n", "\\n") for k, text in attributes.items()]
    return parse_openpbs_jobs("\n".join(["Job Id: 1.head", *lines]) + "\n\n", Kinds())


@pytest.mark.parametrize("read_jobs", [from_xml, from_characters, from_reply, from_text, from_openpbs])
@pytest.mark.parametrize("text", SHOWN, ids=range(len(SHOWN)))
def test_every_reader_makes_one_line_of_a_text(
    text: str, read_jobs: Callable[[dict[str, str]], Parsed[Job]]
) -> None:
    texts = {"Job_Name": text, "Job_Owner": f"alice{text}@h", "Account_Name": text, "comment": text}
    parsed = read_jobs(QUEUED | texts | {"submit_args": text})
    (job,) = parsed.items
    assert (job.id, job.state.value, job.queue, job.user) == ("1.head", "Q", "batch", "alice")
    for shown in (job.name, job.owner, job.account, job.comment, job.submit_args):
        assert not CONTROLS.search(shown)
        shown.encode()
    if not CONTROLS.search(text):
        assert job.name == text


def test_what_is_there_twice_is_told_in_every_form() -> None:
    other = QUEUED | {"euser": "bob"}
    xml = format_xml([Record("Job", "1.head", QUEUED), Record("Job", "1.head", other)], header=True)
    pairs = tuple(Attribute(key, None, text) for key, text in QUEUED.items())
    objects = tuple(StatusObject(ObjectType.JOB, "1.head", pairs) for _ in range(2))
    for data in (xml, encode_reply(Reply(0, 0, ReplyKind.OBJECTS, objects=objects))):
        parsed = parse_jobs(data)
        assert [(job.id, job.user) for job in parsed.items] == [("1.head", "alice")]
        assert ["1.head is there a second time" in each.message for each in parsed.problems] == [True]
    known: dict[str, Job] = {}
    for _ in range(2):  # the second time from what is known
        (problem,) = parse_jobs(xml, seen=known).problems
        assert problem.message == "qstat: 1.head is there a second time"
    nodes = [Record("Node", "n1", {"state": "free", "np": str(np)}) for np in (8, 64)]
    found = parse_pbsnodes(format_xml(nodes))
    assert ([node.slots for node in found.items], len(found.problems)) == ([8], 1)


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
    rest = "gpu_display=Disabled,driver_ver=535.1,timestamp=Fri Nov 20 17:32:24 2026"
    report = parse_gpu_status(f"{gpus},{rest}")
    assert [(each.index, each.gpu_id) for each in report.devices] == [(0, "0000:0"), (1, "0000:1")]
    read = {(each.mode, each.utilization, each.memory_total_bytes) for each in report.devices}
    assert read == {("Exclusive_Thread", 0.05, 40960 * 1024**2)}
    assert (report.driver, report.timestamp) == ("535.1", "Fri Nov 20 17:32:24 2026")


@pytest.mark.parametrize("between", ["\u2028", "\x0b", "\x0c", "\x85", "\x1e", "\u2029"])
def test_no_line_of_qmgr_is_made_of_part_of_another(between: str) -> None:
    text = f"create node n1\nset node n1 note = x{between}set server scheduling = False\nset node n1 np = 8\n"
    (node,) = parse_qmgr(text).items
    assert (node.name, node.attributes["np"]) == ("n1", "8")
    assert not CONTROLS.search(node.attributes["note"])


def test_what_qmgr_sets_twice_is_told() -> None:
    lines = ("scheduling = True", "comment = x", "scheduling = False")
    parsed = parse_qmgr("".join(f"set server {line}\n" for line in lines))
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

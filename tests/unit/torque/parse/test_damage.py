"""Damaged and hostile outputs: one record lost is one problem, a cut output is no output."""

from __future__ import annotations

import pytest

from torque_sched.core.model import Job
from torque_sched.core.request import AccessPolicy
from torque_sched.core.states import HoldType, NodeState
from torque_sched.errors import DocumentError, RecordError
from torque_sched.parse.accounting import job_from_accounting, parse_accounting
from torque_sched.parse.pbsnodes import parse_pbsnodes
from torque_sched.parse.qmgr import parse_qmgr
from torque_sched.parse.qrun import RunKind, classify_qrun
from torque_sched.parse.qstat import parse_jobs, parse_queues, parse_server
from torque_sched.parse.xml import unescaped


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


def test_the_last_record_may_be_the_damaged_one() -> None:
    parsed = parse_jobs(jobs_xml(job_xml(1), "<Job><Job_Id>2.h</Job_Id>"))
    assert (len(parsed.items), len(parsed.problems)) == (1, 1)


def test_a_problem_names_the_job_and_the_value() -> None:
    (problem,) = parse_jobs(jobs_xml(job_xml(77, "<qtime>yesterday</qtime>"))).problems
    assert "77.h" in str(problem)
    assert "yesterday" in str(problem)


@pytest.mark.parametrize("data", ["", "  \n", "<Data>", "qstat: error", jobs_xml(job_xml(1))[:-8]])
def test_xml_that_is_not_whole_is_no_output(data: str) -> None:
    with pytest.raises(DocumentError):
        parse_pbsnodes("<" if not data.strip() else data)
    if data.strip():
        with pytest.raises(DocumentError):
            parse_jobs(data)


def test_every_cut_of_an_output_is_refused_or_the_whole() -> None:
    whole = jobs_xml(job_xml(1), job_xml(2)).strip()
    for length in range(1, len(whole)):
        with pytest.raises(DocumentError):
            parse_jobs(whole[:length])


@pytest.mark.parametrize(
    "hostile",
    [
        '<!DOCTYPE d [<!ENTITY a "ha">]>',
        "<!-- comment -->",
        "<![CDATA[x]]>",
        '<?xml-stylesheet href="x"?>',
    ],
)
def test_what_torque_never_prints_refuses_the_document(hostile: str) -> None:
    for data in (hostile + jobs_xml(), jobs_xml(hostile), jobs_xml(job_xml(1, hostile))):
        with pytest.raises(DocumentError):
            parse_jobs(data)


def test_no_entity_is_expanded_but_the_predefined_ones() -> None:
    (job,) = parse_jobs(
        jobs_xml(job_xml(1, "<comment>&lt;&amp;&quot;&#65;&#x42;&lol;&#xD800;</comment>"))
    ).items
    assert job.comment == '<&"AB&lol;&#xD800;'
    assert unescaped("&amp;lt;") == "&lt;"


def test_bytes_that_are_no_utf_8_are_replaced() -> None:
    data = jobs_xml(job_xml(1, "<Job_Name>caf\xe9</Job_Name>")).encode("latin-1")
    assert parse_jobs(data).items[0].name == "caf�"


def test_an_oversized_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torque_sched.parse.records.MAX_DOCUMENT_BYTES", 10)
    with pytest.raises(DocumentError, match="more than 10"):
        parse_jobs(jobs_xml())


def test_an_oversized_record_is_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torque_sched.parse.xml.MAX_RECORD_CHARACTERS", 300)
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


def test_pretty_printed_xml_is_read_as_well() -> None:
    pretty = jobs_xml(job_xml(1)).replace("><", ">\n  <")
    assert parse_jobs(pretty).items == parse_jobs(jobs_xml(job_xml(1))).items


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


def test_text_that_is_cut_is_no_output() -> None:
    for length in range(1, len(NODE) - 1):
        with pytest.raises(DocumentError):
            parse_pbsnodes(NODE[:length].rstrip("\n") + "\n")


def test_an_unknown_node_state_is_not_free() -> None:
    (node,) = parse_pbsnodes(NODE.replace("free", "sulking")).items
    assert node.states == {NodeState.OTHER}
    assert not node.is_up


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
    assert [(part.job, part.first, part.last) for part in node.jobs] == [
        ("1.h", 0, 1),
        ("1.h", 3, 3),
        ("2.h", 2, 2),
    ]


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
    assert [(queue.name, queue.is_started, queue.is_enabled) for queue in parsed.items] == [
        ("b", True, False)
    ]
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
    line = (
        "11/20/2026 17:21:01;E;1.h;"
        "user=al jobname=my odd=name queue=b exec_host=n/0 new=1 end=5 Exit_status=0\n"
    )
    job = job_from_accounting(parse_accounting(line).items[0])
    assert (job.name, job.user, job.exit_status, job.comp_s) == ("my odd=name", "al", 0, 5.0)
    assert job.slots_by_node() == {"n": 1}


def test_unknown_words_of_qrun_are_other_and_silence_has_a_text() -> None:
    assert classify_qrun(0, b"").kind is RunKind.STARTED
    assert classify_qrun(2, "qrun: something new 1.h").kind is RunKind.OTHER
    assert classify_qrun(2, b"").text == "exit code 2 without a word"
    assert len(classify_qrun(2, "x" * 10**6).text) == 300


def test_which_refusals_may_pass_by_themselves() -> None:
    assert RunKind.NOT_NOW.is_transient
    assert not RunKind.UNAUTHORISED.is_transient
    assert {kind for kind in RunKind if kind.is_about_nodes} == {RunKind.NOT_NOW, RunKind.NEVER}

"""Whatever the model can hold is printed and read back: nodes, jobs, queues, requests, accounting."""

from __future__ import annotations

import dataclasses
import string
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fixtures import torque_printing as printed
from torque_sched.batch.torque.parse.accounting import AccountingRecord, parse_accounting
from torque_sched.batch.torque.parse.jobs import job_number
from torque_sched.batch.torque.parse.pbsnodes import parse_pbsnodes, parse_status
from torque_sched.batch.torque.parse.qstat import parse_jobs, parse_queues
from torque_sched.batch.torque.parse.records import Record
from torque_sched.batch.torque.parse.request import parse_nodes_spec, parse_request
from torque_sched.batch.torque.parse.slots import parse_exec_host
from torque_sched.batch.torque.parse.text import read_text
from torque_sched.batch.torque.parse.times import epoch_s, stamp_s
from torque_sched.emulation.placing import parse_spec
from torque_sched.errors import RecordError
from torque_sched.model import cluster as model
from torque_sched.model.request import AccessPolicy, Chunk, GenericResource, Request
from torque_sched.model.states import HoldType, JobState, NodeState, StartProgress
from torque_sched.model.units import duration_s, format_duration, size_bytes

words = st.text(string.ascii_letters + string.digits + "_-.", min_size=1, max_size=12).filter(
    lambda word: word[0].isalpha() and "-gpu" not in word
)
sentences = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp", "Zs")), min_size=1
)
sizes = st.none() | st.integers(0, 2**50)
seconds = st.none() | st.integers(0, 10**7).map(float)
moments = st.none() | st.integers(0, 4 * 10**9).map(float)
small = st.integers(0, 200)
job_ids = st.builds(
    lambda number, index, server: f"{number}{'' if index is None else f'[{index}]'}.{server}",
    st.integers(0, 10**6), st.none() | small, words,
).map(model.JobId)  # fmt: skip
chunks = st.one_of(
    st.builds(Chunk, st.integers(1, 99), st.integers(1, 64), small, st.lists(words, max_size=3).map(tuple)),
    st.builds(
        Chunk, st.just(1), st.integers(1, 64), st.integers(1, 8), name=words,
        properties=st.sampled_from([(), ("shared",), ("big", "Default", "reseterr")]),
        gpu_mode=st.sampled_from(["", "shared", "exclusive_process"]), resets_gpu_errors=st.booleans(),
    ),
)  # fmt: skip
tasks = st.builds(Chunk, st.integers(1, 99), st.integers(1, 64), small, mem_bytes=st.integers(0, 2**40))
requests = st.builds(
    Request,
    chunks=st.lists(chunks, min_size=1, max_size=3).map(tuple),
    tasks=st.lists(tasks, max_size=2).map(tuple),
    procs=small, ncpus=small, walltime_s=seconds, cput_s=seconds, mem_bytes=sizes, pmem_bytes=sizes,
    vmem_bytes=sizes, pvmem_bytes=sizes,
    gres=st.lists(st.builds(GenericResource, words, small), max_size=2).map(tuple),
    host=st.none() | words, features=st.lists(words, max_size=2).map(tuple),
    node_exclusive=st.booleans(), access=st.none() | st.sampled_from(AccessPolicy),
    software=st.just("") | words,
)  # fmt: skip


def ranges(owner: st.SearchStrategy[str], build: type) -> st.SearchStrategy[tuple[object, ...]]:
    """Slots with a gap between ranges, so that none can be joined with its neighbour."""
    lengths = st.lists(st.tuples(owner, st.integers(1, 5)), max_size=4)

    def placed(parts: list[tuple[str, int]]) -> tuple[object, ...]:
        at, found = 0, []
        for name, length in parts:
            found.append(build(name, at, at + length - 1))
            at += length + 1
        return tuple(found)

    return lengths.map(placed)


gpu_slots = st.builds(model.GpuSlot, words.map(model.NodeName), st.integers(0, 15))
dependencies = st.builds(model.Dependency, words, st.lists(job_ids, max_size=2).map(tuple))
jobs = st.builds(
    model.Job,
    id=job_ids, state=st.sampled_from(JobState), queue=words.map(model.QueueName),
    request=requests.map(lambda request: parse_request(printed.format_request(request))),
    name=sentences, owner=words, user=words, group=words, priority=st.integers(-1024, 1023),
    ctime_s=moments, qtime_s=moments, etime_s=moments, start_s=moments, comp_s=moments,
    execution_time_s=moments,
    start_count=small, exit_status=st.none() | st.integers(-20, 300), walltime_remaining_s=seconds,
    hold_types=st.frozensets(st.sampled_from(HoldType)), progress=st.sampled_from(StartProgress),
    depend=st.lists(dependencies, max_size=2).map(tuple),
    allocated_slots=ranges(words, model.HostSlots),
    allocated_gpus=st.lists(gpu_slots, max_size=3).map(tuple),
    comment=st.just("") | sentences, account=st.just("") | words, interactive=st.booleans(),
    rerunnable=st.booleans(), queue_rank=small,
).map(lambda job: with_used(job))  # fmt: skip
nodes = st.builds(
    model.Node,
    name=words.map(model.NodeName), slots=small, states=st.frozensets(st.sampled_from(NodeState)),
    properties=st.lists(words, max_size=3).map(tuple), gpus=small, jobs=ranges(job_ids, model.JobSlots),
    power_saving=st.sampled_from(["", "Standby"]), ntype=words, note=st.just("") | sentences,
    status=st.none() | st.dictionaries(words.map(lambda word: word.replace("-", "_")), words, min_size=1).map(
        lambda pairs: parse_status(",".join(f"{key}={value}" for key, value in pairs.items()))
    ),
)  # fmt: skip
queues = st.builds(
    model.Queue,
    name=words.map(model.QueueName), is_enabled=st.booleans(), is_started=st.booleans(),
    priority=st.integers(-9, 99),
    max_running=st.none() | small, max_user_run=st.none() | small, max_group_run=st.none() | small,
    resources_max=st.dictionaries(words, words, max_size=3).map(model.Resources),
    keep_completed_s=seconds, features_required=st.lists(words, max_size=2).map(tuple),
)  # fmt: skip


def with_used(job: model.Job) -> model.Job:
    """The same job with its numbers as its id says, and with something used when it has run."""
    sequence, index = job_number(job.id)
    job = as_far_as_its_state_goes(job)
    used = model.UsedResources(1.0, 2.0, 1024, 2048, 0.5) if job.allocated_slots else model.UsedResources()
    return dataclasses.replace(job, sequence=sequence, array_index=index, used=used)


def as_far_as_its_state_goes(job: model.Job) -> model.Job:
    """The same job without what only one that runs, or one that ended, can have."""
    no_run = {"allocated_slots": (), "allocated_gpus": (), "start_s": None, "walltime_remaining_s": None}
    no_end = {"exit_status": None, "comp_s": None, "total_runtime_s": None}
    changes: dict[str, Any] = {}
    if job.state in {JobState.TRANSIT, JobState.QUEUED, JobState.HELD, JobState.WAITING}:
        changes = {**no_run, **no_end}
    elif job.state in {JobState.RUNNING, JobState.SUSPENDED}:
        changes = no_end
    elif job.state is JobState.COMPLETED and job.comp_s is None:
        changes = {**no_run, **no_end, "exit_status": job.exit_status}
    return dataclasses.replace(job, **changes)


@given(st.lists(jobs, max_size=3, unique_by=lambda job: job.id))
def test_jobs_as_xml(found: list[model.Job]) -> None:
    parsed = parse_jobs(
        printed.format_xml([printed.record_from_job(job) for job in found], header=True).encode()
    )
    assert (list(parsed.items), parsed.problems) == (found, ())


@given(st.lists(jobs, max_size=3, unique_by=lambda job: job.id), st.booleans())
def test_jobs_as_text(found: list[model.Job], fold: bool) -> None:
    parsed = parse_jobs(printed.format_qstat_text([printed.record_from_job(job) for job in found], fold=fold))
    assert (list(parsed.items), parsed.problems) == (found, ())


@given(st.lists(nodes, min_size=1, max_size=3, unique_by=lambda node: node.name))
def test_nodes_as_xml_and_text(found: list[model.Node]) -> None:
    records = [printed.record_from_node(node) for node in found]
    assert list(parse_pbsnodes(printed.format_xml(records)).items) == found
    assert list(parse_pbsnodes(printed.format_pbsnodes_text(records)).items) == found


@given(st.lists(queues, max_size=3, unique_by=lambda queue: queue.name), st.booleans())
def test_queues_as_text(found: list[model.Queue], fold: bool) -> None:
    parsed = parse_queues(
        printed.format_qstat_text([printed.record_from_queue(queue) for queue in found], fold=fold)
    )
    assert (list(parsed.items), parsed.problems) == (found, ())


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")), max_size=400))
def test_folding_loses_nothing(value: str) -> None:
    text = printed.format_qstat_text([Record("Job", "1.h", {"Variable_List": value})], fold=True)
    (record,) = read_text(text, "Job", "qstat").items
    assert record.attributes == {"Variable_List": value}


@given(st.lists(chunks, min_size=1, max_size=4).map(tuple))
def test_nodes_specs(found: tuple[Chunk, ...]) -> None:
    assert parse_nodes_spec(printed.format_nodes_spec(found)) == found


def proplist(words: list[str]) -> tuple[int, int, tuple[str, ...], str, bool] | None:
    """Torque's rule for the words of one chunk: ppn, gpus, properties, mode, reset; None: an error."""
    ppn, gpus, have_gpus, mode, reset, properties = 1, 0, False, "", False, []
    for word in words:
        if word.startswith("ppn="):
            ppn = int(word[4:])
        elif word.startswith("gpus="):
            gpus, have_gpus, mode, reset = int(word[5:]), True, "", False
        elif have_gpus and word.casefold() == "prohibited":
            return None
        elif have_gpus and word.casefold() == "reseterr":
            reset = True
        elif have_gpus and word.casefold() in (
            "exclusive_thread", "exclusive", "exclusive_process", "default", "shared"
        ):  # fmt: skip
            mode = word.casefold()
        else:
            properties.append(word)
    return ppn, gpus, tuple(properties), mode, reset


mode_words = st.sampled_from(
    ["exclusive_thread", "exclusive", "exclusive_process", "default", "shared", "reseterr", "prohibited"]
).flatmap(lambda word: st.sampled_from([word, word.upper(), word.title(), word.swapcase()[:1] + word[1:]]))
amounts = st.builds(
    lambda key, number: f"{key}={number}", st.sampled_from(["ppn", "gpus"]), st.integers(1, 9)
)
some_words = st.lists(st.one_of(amounts, mode_words, st.sampled_from(["big", "excl", "gpunode"])), max_size=7)


@given(some_words, some_words.filter(lambda words: not {"shared", "excl"} & set(words)))
@example(["ppn=2", "gpus=1", "exclusive_process", "reseterr"], [])
@example(["ppn=2", "gpus=1", "reseterr", "exclusive_thread"], [])
@example(["gpus=1", "ppn=2", "shared"], [])
@example(["ppn=2", "gpus=1", "Exclusive_Process"], [])
@example(["shared", "gpus=2", "exclusive_process", "shared"], [])
@example(["gpus=1", "shared", "reseterr", "gpus=2"], [])
@example(["gpus=1"], ["EXCLUSIVE"])
@example(["gpus=1", "prohibited"], [])
def test_the_words_of_a_chunk_follow_the_servers_rule(own: list[str], everywhere: list[str]) -> None:
    text = ":".join(["2", *own]) + ("#" + ":".join(everywhere) if everywhere else "")
    expected = proplist([*own, *everywhere])
    if expected is None:
        with pytest.raises(RecordError, match="refuses the mode"):
            parse_nodes_spec(text)
        assert any(word.lower() == "prohibited" for word in parse_spec(text)[0].properties)
        return
    (ours,) = parse_nodes_spec(text)
    (emulated,) = parse_spec(text)
    assert (ours.slots, ours.gpus, ours.properties, ours.gpu_mode, ours.resets_gpu_errors) == expected
    found = (emulated.ppn, emulated.gpus, emulated.properties, emulated.mode, emulated.resets_errors)
    assert found == expected


@pytest.mark.parametrize("word", ["shared", "excl"])
def test_shared_and_excl_are_no_properties_of_nodes(word: str) -> None:
    assert parse_nodes_spec(f"2+n3#big:{word}") == parse_nodes_spec("2:big+n3:big")


@given(requests)
def test_requests(request: Request) -> None:
    again = parse_request(printed.format_request(request))
    assert again.trouble == ""
    assert printed.format_request(again) == printed.format_request(request)
    assert (again.n_procs, again.n_gpus, again.mem_bytes) == (
        request.n_procs,
        request.n_gpus,
        request.mem_bytes,
    )


@given(ranges(words, model.HostSlots))
def test_exec_host_in_both_dialects(parts: tuple[model.HostSlots, ...]) -> None:
    if parts:
        assert parse_exec_host(printed.format_exec_host(parts)) == parts
        assert parse_exec_host(printed.format_exec_host(parts, dialect=4)) == parts


@given(st.integers(0, 2**60), st.integers(0, 10**8), st.integers(0, 4 * 10**9))
def test_sizes_durations_and_times(n_bytes: int, duration: int, at: int) -> None:
    assert size_bytes(printed.format_size(n_bytes)) == n_bytes
    assert duration_s(format_duration(duration)) == duration
    assert epoch_s(printed.format_ctime(at)) == epoch_s(str(at)) == at
    assert stamp_s(printed.format_stamp(at)) == at


def test_a_leap_second_counts_as_the_second_after() -> None:
    assert stamp_s("12/31/2016 23:59:60") == stamp_s("01/01/2017 00:00:00") == 1_483_228_800


ACCOUNTING_NAMES = ("user", "queue", "jobname", "Resource_List.nodes", "resources_used.mem")


@given(
    st.integers(0, 4 * 10**9).map(float),
    st.sampled_from("QSEDRA"),
    job_ids,
    st.dictionaries(st.sampled_from(ACCOUNTING_NAMES), words),
)
def test_accounting(at_s: float, kind: str, job: str, attributes: dict[str, str]) -> None:
    record = AccountingRecord(at_s, kind, job, attributes)
    assert parse_accounting(printed.format_accounting(record)).items == (record,)

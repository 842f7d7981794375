"""A sample survives the file, mom's joining by semicolons and Torque's status; damage is no sample."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from torque_sched.core.model import Node, NodeName
from torque_sched.parse.pbsnodes import parse_pbsnodes
from torque_sched.parse.records import Record
from torque_sched.parse.xml import format_xml
from torque_sched.sampler.form import (
    MAX_BYTES,
    GpuSample,
    JobSample,
    NodeSample,
    format_sample,
    parse_sample,
    sample_from_varattr,
)

hundredths = st.integers(0, 100_000).map(lambda n: n / 100)
whole = st.integers(0, 2**50).map(float)
shares = st.integers(0, 100).map(lambda n: n / 100)
job_ids = st.from_regex(
    re.compile(r"[1-9][0-9]{0,6}(\[[0-9]{1,3}\])?\.[a-z][a-z0-9.-]{0,20}", re.ASCII), fullmatch=True
)
gpu_samples = st.builds(GpuSample, st.integers(0, 63), shares, whole)
job_samples = st.builds(JobSample, job_ids, hundredths, whole, hundredths, whole)


@st.composite
def samples(draw: st.DrawFn) -> NodeSample:
    gpus = draw(st.lists(gpu_samples, unique_by=lambda gpu: gpu.index, max_size=8))
    jobs = draw(st.lists(job_samples, unique_by=lambda job: job.job, max_size=6))
    ordered = tuple(sorted(gpus, key=lambda gpu: gpu.index))
    return NodeSample(draw(whole), draw(hundredths), draw(whole), ordered, tuple(jobs))


def through_torque(text: str) -> Node:
    """What arrives in ``pbsnodes -x`` when the script printed this."""
    status = f"opsys=linux,ncpus=8,varattr={';'.join(text.splitlines())},rectime=1795195600,jobs="
    record = Record("Node", "n1", {"state": "free", "np": "8", "ntype": "cluster", "status": status})
    return parse_pbsnodes(format_xml([record])).items[0]


@given(samples())
def test_a_sample_survives_file_mom_and_server(sample: NodeSample) -> None:
    text = format_sample(sample)
    read = parse_sample(text)
    assert read is not None
    assert read == NodeSample(
        sample.at_s, sample.cpu_cores, sample.mem_bytes, sample.gpus,
        tuple(sorted(sample.jobs, key=lambda job: (-job.gpus, -job.cpu_cores, job.job))),
    )  # fmt: skip
    node = through_torque(text)
    assert node.name == NodeName("n1")
    assert node.status is not None
    assert node.status.rectime_s == 1795195600
    assert sample_from_varattr(node.status.varattr) == read


@given(samples())
def test_no_character_that_torque_joins_by_is_printed(sample: NodeSample) -> None:
    assert not set(format_sample(sample)) & set(",;= \t")


def test_a_sample_never_overflows_moms_buffer_and_tells_the_busiest_jobs() -> None:
    jobs = tuple(JobSample(f"{n}.head.of.a.large.cluster", n / 10, 1e9) for n in range(1, 400))
    text = format_sample(NodeSample(1.0, 1.0, 1.0, tuple(GpuSample(n, 0.5, 8e10) for n in range(16)), jobs))
    assert MAX_BYTES - 100 < len(text) <= MAX_BYTES
    read = parse_sample(text)
    assert read is not None
    assert len(read.gpus) == 16
    told = [job.cpu_cores for job in read.jobs]
    assert told == [n / 10 for n in range(399, 399 - len(told), -1)]


def test_a_job_id_that_would_break_the_line_is_left_out() -> None:
    text = format_sample(NodeSample(1.0, 1.0, 1.0, (), (JobSample("1.head\nts.cpu:99", 1.0, 1.0),)))
    assert "99" not in text


@given(
    st.dictionaries(
        st.sampled_from(["ts.at", "ts.cpu", "ts.mem", "ts.gpu0", "ts.gpu-1", "ts.job.1.head", "x"]),
        st.text(max_size=20),
    )
)
def test_damage_is_no_sample_and_no_crash(values: dict[str, str]) -> None:
    found = sample_from_varattr(values)
    if found is not None:
        assert found.cpu_cores >= 0
        assert found.mem_bytes >= 0


def test_other_scripts_keys_are_not_ours() -> None:
    assert sample_from_varattr({"gputype": "a100+a40", "rack": "r12"}) is None
    assert sample_from_varattr({"ts.at": "nan", "ts.cpu": "1", "ts.mem": "1"}) is None
    assert sample_from_varattr({"ts.at": "1", "ts.cpu": "-1", "ts.mem": "1"}) is None
    part = sample_from_varattr(
        {"ts.at": "1", "ts.cpu": "1", "ts.mem": "1", "ts.gpu0": "much/1", "ts.job.1.h": "1/2"}
    )
    assert part == NodeSample(1.0, 1.0, 1.0)

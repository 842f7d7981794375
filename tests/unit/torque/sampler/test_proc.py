"""CPU time and memory of jobs, from a made-up /proc and from a real one."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import examples
from tests.fixtures.torque_printing import format_xml
from torque_sched.batch.torque.parse.pbsnodes import parse_pbsnodes
from torque_sched.batch.torque.parse.records import Record
from torque_sched.model.cluster import Node, NodeName
from torque_sched.sampler import gpus
from torque_sched.sampler.daemon import Sampler
from torque_sched.sampler.form import (
    MAX_BYTES,
    GpuSample,
    JobSample,
    NodeSample,
    format_sample,
    sample_from_varattr,
)
from torque_sched.sampler.gpus import GpuReader, GpuUse, load_nvml
from torque_sched.sampler.proc import JobTimes, Process, ProcReader, cpu_ticks_used

MEMINFO = (
    "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    6000 kB\nHugePages_Total:       0\n"
)


class FakeProc:
    """A /proc of text files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "meminfo").write_text(MEMINFO)
        self.up(100.0)
        self.cpu(busy=0, idle=0)

    def up(self, seconds: float) -> None:
        (self.root / "uptime").write_text(f"{seconds:.2f} 7.00\n")

    def cpu(self, busy: int, idle: int) -> None:
        lines = [f"cpu  {busy} 0 0 {idle} 5 0 0 0 9 9", "cpu0 1 1", "cpu1 1 1", "intr 5"]
        (self.root / "stat").write_text("\n".join(lines) + "\n")

    def process(
        self, pid: int, *, parent: int = 1, session: int | None = None, ticks: int = 0, waited: int = 0,
        pages: int = 10, environ: str = "", cgroup: str = "0::/user.slice", start: int = 77,
    ) -> None:  # fmt: skip
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        rest = [0] * 50
        rest[1], rest[2], rest[3] = parent, pid, session if session is not None else pid
        rest[11], rest[13], rest[19], rest[21] = ticks, waited, start, pages
        words = " ".join(["S", *map(str, rest[1:])])
        (folder / "stat").write_text(f"{pid} (a) b (c) {words}\n")
        (folder / "environ").write_bytes(environ.replace("|", "\0").encode())
        (folder / "cgroup").write_text(cgroup + "\n")

    def end(self, pid: int) -> None:
        for path in (self.root / str(pid)).iterdir():
            path.unlink()
        (self.root / str(pid)).rmdir()


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_the_node_is_busy_by_what_its_counters_gained(proc: FakeProc) -> None:
    reader = ProcReader(proc.root)
    proc.cpu(busy=100, idle=900)
    before = reader.node()
    proc.cpu(busy=250, idle=950)
    after = reader.node()
    assert after.busy_ticks - before.busy_ticks == 150
    assert after.total_ticks - before.total_ticks == 200
    assert (after.n_cpus, after.mem_used_bytes) == (2, 10000 * 1024)


def test_a_process_belongs_to_the_job_of_its_group_its_environment_or_its_session(proc: FakeProc) -> None:
    proc.process(10, environ="HOME=/|PBS_JOBID=1.head|X=1")
    proc.process(11, session=10)  # its own environment tells nothing
    proc.process(12, session=9)  # somebody else's session
    proc.process(20, cgroup="4:cpu,cpuacct:/torque/2[3].head\n0::/")
    proc.process(30, environ="PBS_JOBIDS=9.head|XPBS_JOBID=8.head")
    found = {job: {pid for pid, _ in each.processes} for job, each in ProcReader(proc.root).jobs().items()}
    assert found == {"1.head": {10, 11}, "2[3].head": {20}}


def test_a_child_of_mom_is_looked_at_again_after_its_exec(proc: FakeProc) -> None:
    proc.process(10)
    reader = ProcReader(proc.root)
    assert not reader.jobs()
    proc.process(10, environ="PBS_JOBID=1.head")
    assert list(reader.jobs()) == ["1.head"]
    proc.process(10, environ="")  # what it says later does not count
    assert list(reader.jobs()) == ["1.head"]
    assert reader.job_of_pid == {10: "1.head"}


def test_a_number_used_again_is_another_process(proc: FakeProc) -> None:
    proc.process(10, environ="PBS_JOBID=1.head", start=5)
    reader = ProcReader(proc.root)
    reader.jobs()
    proc.process(10, environ="PBS_JOBID=2.head", start=6)
    assert list(reader.jobs()) == ["2.head"]


def test_a_sample_has_cores_memory_and_the_gpus_of_each_job(proc: FakeProc) -> None:
    class Gpus(GpuReader):
        def read(self) -> tuple[GpuUse, ...]:
            mine = GpuUse(GpuSample(0, 0.75, 900.0), {10: 800})
            return mine, GpuUse(GpuSample(1, 0.5, 70.0), {99: 70})

    hertz = os.sysconf("SC_CLK_TCK")
    sampler = Sampler(ProcReader(proc.root), Gpus(None), clock=lambda: 5000.0)
    proc.process(10, environ="PBS_JOBID=1.head", ticks=50 * hertz)
    assert sampler.sample() is None
    proc.up(110.0)
    proc.cpu(busy=300, idle=100)
    proc.process(10, environ="PBS_JOBID=1.head", ticks=65 * hertz, pages=3)
    found = sampler.sample()
    assert found is not None
    assert (found.at_s, found.cpu_cores) == (5000.0, 1.5)
    (job,) = found.jobs
    assert (job.cpu_cores, job.gpus, job.gpu_mem_bytes) == (1.5, 0.75, 800.0)
    assert job.mem_bytes == 3 * os.sysconf("SC_PAGE_SIZE")
    assert [gpu.busy for gpu in found.gpus] == [0.75, 0.5]


class ProcessTree(RuleBasedStateMachine):
    """Processes work, fork and end in any order; no tick of a job is lost, and none counted twice.

    Between two looks a process that both began and ended is waited for by its parent, as shells do.
    """

    @initialize()
    def begin(self) -> None:
        self.own: dict[int, int] = {1: 0}
        self.waited: dict[int, int] = {1: 0}
        self.parent: dict[int, int] = {1: 0}
        self.next = 2
        self.before = self.look()
        self.worked = 0

    def look(self) -> JobTimes:
        used = {pid: self.own[pid] + self.waited[pid] for pid in self.own}
        return JobTimes({(pid, 0): Process(pid, self.parent[pid], used[pid], 0) for pid in used})

    @rule(choice=st.integers(0, 100), ticks=st.integers(1, 50))
    def work(self, choice: int, ticks: int) -> None:
        pid = sorted(self.own)[choice % len(self.own)]
        self.own[pid] += ticks
        self.worked += ticks

    @rule(choice=st.integers(0, 100))
    def fork(self, choice: int) -> None:
        pid = sorted(self.own)[choice % len(self.own)]
        self.own[self.next], self.waited[self.next], self.parent[self.next] = 0, 0, pid
        self.next += 1

    @precondition(lambda self: len(getattr(self, "own", ())) > 1)
    @rule(choice=st.integers(0, 100))
    def end_a_leaf(self, choice: int) -> None:
        leaves = sorted(pid for pid in self.own if pid != 1 and pid not in self.parent.values())
        pid = leaves[choice % len(leaves)]
        self.waited[self.parent[pid]] += self.own.pop(pid) + self.waited.pop(pid)
        del self.parent[pid]

    @rule()
    def sample(self) -> None:
        now = self.look()
        assert cpu_ticks_used(self.before, now) == self.worked
        self.before, self.worked = now, 0

    @invariant()
    def never_negative(self) -> None:
        if hasattr(self, "before"):
            assert cpu_ticks_used(self.before, self.look()) >= 0


TestProcessTree = ProcessTree.TestCase
TestProcessTree.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def test_a_process_that_leaves_without_heir_takes_nothing_from_the_others() -> None:
    before = JobTimes({(5, 0): Process(5, 1, 1000, 0), (6, 0): Process(6, 1, 10, 0)})
    now = JobTimes({(6, 0): Process(6, 1, 30, 0)})
    assert cpu_ticks_used(before, now) == 20


def test_work_from_before_a_process_was_the_jobs_is_not_the_jobs() -> None:
    old, new = Process(6, 1, 90_000, 0), Process(7, 1, 30, 0)
    now = JobTimes({(6, 400): old, (7, 1100): new})
    assert cpu_ticks_used(JobTimes(), now, since_ticks=1000) == 30
    later = JobTimes({(6, 400): Process(6, 1, 90_050, 0), (7, 1100): new})
    assert cpu_ticks_used(now, later, since_ticks=2000) == 50


# NVML by a stand-in: minor numbers, missing functions, a driver that fails in the middle.


class NVMLError(Exception):
    pass


class Nvml:
    """Two GPUs whose PCI order is the reverse of their minor numbers."""

    NVMLError = NVMLError

    def __init__(self, *broken: str) -> None:
        self.broken = broken

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "broken"):

            def fail(*_: object) -> None:
                raise NVMLError("Not Supported")

            return fail
        return object.__getattribute__(self, name)

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, place: int) -> int:
        return place

    def nvmlDeviceGetMinorNumber(self, device: int) -> int:
        return 1 - device

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:
        return SimpleNamespace(gpu=30 + device)

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:
        return SimpleNamespace(used=1000 + device)

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> Any:
        return [SimpleNamespace(pid=40 + device, usedGpuMemory=None if device else 500)]


def test_gpus_are_numbered_as_torque_numbers_them() -> None:
    uses = GpuReader(Nvml()).read()
    assert [use.gpu for use in uses] == [GpuSample(0, 0.31, 1001), GpuSample(1, 0.3, 1000)]
    assert [dict(use.processes) for use in uses] == [{41: 0}, {40: 500}]


@pytest.mark.parametrize(
    ("broken", "n_gpus"),
    [
        ("nvmlDeviceGetCount", 0),
        ("nvmlDeviceGetUtilizationRates", 0),
        ("nvmlDeviceGetMinorNumber", 2),
        ("nvmlDeviceGetComputeRunningProcesses", 2),
    ],
)
def test_what_the_driver_refuses_is_left_out(broken: str, n_gpus: int) -> None:
    assert len(GpuReader(Nvml(broken)).read()) == n_gpus


def test_a_node_without_binding_or_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_module(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(gpus.importlib, "import_module", no_module)
    assert load_nvml() is None
    assert GpuReader(None).read() == ()
    broken = Nvml("nvmlInit")
    monkeypatch.setattr(gpus.importlib, "import_module", lambda name: broken)
    assert load_nvml() is None


# A sample survives the file, mom's joining by semicolons and Torque's status; damage is no sample.


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


def parse_sample(text: str) -> NodeSample | None:
    """The sample in the lines of a file."""
    return sample_from_varattr(dict(line.split(":", 1) for line in text.splitlines()))


def through_torque(text: str) -> Node:
    """What arrives in ``pbsnodes -x`` when the script printed this."""
    status = f"opsys=linux,ncpus=8,varattr={';'.join(text.splitlines())},rectime=1795195600,jobs="
    record = Record("Node", "n1", {"state": "free", "np": "8", "ntype": "cluster", "status": status})
    return parse_pbsnodes(format_xml([record])).items[0]


@given(samples())
def test_a_sample_survives_file_mom_and_server(sample: NodeSample) -> None:
    text = format_sample(sample)
    assert not set(text) & set(",;= \t"), "by which Torque joins"
    read = parse_sample(text)
    assert read is not None
    jobs = sorted(sample.jobs, key=lambda job: (-job.gpus, -job.cpu_cores, job.job))
    assert read == replace(sample, jobs=tuple(jobs))
    node = through_torque(text)
    assert node.name == NodeName("n1")
    assert node.status is not None
    assert node.status.rectime_s == 1795195600
    assert sample_from_varattr(node.status.varattr) == read


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


KEYS = st.sampled_from(["ts.at", "ts.cpu", "ts.mem", "ts.gpu0", "ts.gpu-1", "ts.job.1.head", "x"])


@given(st.dictionaries(KEYS, st.text(max_size=20)))
def test_damage_is_no_sample_and_no_crash(values: dict[str, str]) -> None:
    found = sample_from_varattr(values)
    if found is not None:
        assert found.cpu_cores >= 0
        assert found.mem_bytes >= 0


def test_other_scripts_keys_are_not_ours() -> None:
    well = {"ts.at": "1", "ts.cpu": "1", "ts.mem": "1"}
    for other in ({"gputype": "a100+a40", "rack": "r12"}, well | {"ts.at": "nan"}, well | {"ts.cpu": "-1"}):
        assert sample_from_varattr(other) is None
    part = sample_from_varattr(well | {"ts.gpu0": "much/1", "ts.job.1.h": "1/2"})
    assert part == NodeSample(1.0, 1.0, 1.0)

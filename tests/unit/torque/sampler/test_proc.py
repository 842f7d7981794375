"""CPU time and memory of jobs, from a made-up /proc and from a real one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import examples
from torque_sched.sampler.daemon import Sampler
from torque_sched.sampler.form import GpuSample
from torque_sched.sampler.gpus import GpuReader, GpuUse
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
    jobs = ProcReader(proc.root).jobs()
    assert {job: sorted(pid for pid, _ in times.processes) for job, times in jobs.items()} == {
        "1.head": [10, 11],
        "2[3].head": [20],
    }


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
            mine, stray = (
                GpuUse(GpuSample(0, 0.75, 900.0), {10: 800}),
                GpuUse(GpuSample(1, 0.5, 70.0), {99: 70}),
            )
            return mine, stray

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
        return JobTimes(
            {
                (pid, 0): Process(pid, self.parent[pid], self.own[pid] + self.waited[pid], 0)
                for pid in self.own
            }
        )

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


def test_a_real_job_that_burns_one_core_is_seen_burning() -> None:
    """A process of ours with PBS_JOBID in its environment; its child inherits it and does the work."""
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    child = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PBS_JOBID": "7.head"}, start_new_session=True
    )
    try:
        sampler = Sampler(ProcReader(), GpuReader(None))
        deadline = time.monotonic() + 120
        job = None
        while time.monotonic() < deadline and (job is None or job.cpu_cores < 0.1):
            sample = sampler.sample()
            job = next((each for each in sample.jobs if each.job == "7.head"), None) if sample else None
            time.sleep(0.2)
        assert job is not None
        assert 0.1 <= job.cpu_cores < 2.5
        assert job.mem_bytes > 1 << 20
    finally:
        os.killpg(child.pid, 9)
        child.wait()

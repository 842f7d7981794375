"""The measured profiles: what was committed, and that the watching counts processes and their children."""

from __future__ import annotations

import sys

import pytest

from benchmarks.papers.torque_profiles import profiles
from benchmarks.papers.torque_profiles.workloads import WORKLOADS, watched

CHILDREN = """
import subprocess, sys
work = "import time; x = bytearray(40_000_000)\\nwhile time.process_time() < 0.7: pass"
children = [subprocess.Popen([sys.executable, "-c", work]) for _ in range(3)]
sys.exit(sum(child.wait() for child in children))
"""


def test_the_committed_profiles_say_what_they_are() -> None:
    found = profiles()
    names = {workload.name for workload in WORKLOADS}
    measured = [each for each in found if each.origin == "measured"]
    assert {each.name for each in measured} <= names
    assert measured
    for each in measured:
        assert each.n >= 1
        assert 0.2 < each.cpu_cores <= each.ppn * 1.1
        assert each.mem_bytes > 10e6
        assert each.gpus == 0
    # Nobody may take an assumed GPU job for a measured one.
    assert all(each.origin == "synthetic" and "no GPU here" in each.how for each in found if each.gpus)


def test_watching_sums_a_job_and_its_children() -> None:
    run = watched([sys.executable, "-c", CHILDREN])
    # Children of which each burns 0.6 s; the sampler may begin late, never count twice.
    assert 0.5 < run.cpu_cores * run.runtime_s < 3.5
    assert run.mem_bytes > 40e6


def test_a_program_that_fails_gives_no_profile() -> None:
    with pytest.raises(RuntimeError, match="ended with 3"):
        watched([sys.executable, "-c", "import time; time.sleep(1.2); raise SystemExit(3)"])
    with pytest.raises(RuntimeError, match="too soon"):
        watched(["true"])

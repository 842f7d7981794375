"""Amounts belong to the job; shares and times depend on the node."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.torque.learning.build import job, node
from torque_sched.core.model import UsedResources
from torque_sched.learning.figures import (
    Amounts,
    Figure,
    amounts_of,
    cpu_rate,
    figures_of,
    runtime_at,
    share,
)
from torque_sched.policies.rules import Rates


def test_busy_cores_are_the_same_everywhere_and_their_share_is_not() -> None:
    used = amounts_of(job(1, "C", cores=3.0))
    assert used is not None
    assert used.cpu_cores is not None
    assert share(used.cpu_cores, 12) == 0.25
    assert share(used.cpu_cores, 4) == 0.75
    assert share(used.cpu_cores, 2) == 1.0
    assert share(1.0, 0) == 0.0


@given(st.floats(1, 1e6), st.floats(0.1, 10), st.floats(0.1, 10))
def test_cpu_time_is_constant_over_clocks(runtime_s: float, here: float, there: float) -> None:
    moved = runtime_at(runtime_s, here, there)
    assert moved * there == pytest.approx(runtime_s * here)
    assert runtime_at(moved, there, here) == pytest.approx(runtime_s)


def test_the_same_job_on_a_slow_and_a_fast_node_is_learned_as_the_same() -> None:
    slow = figures_of(Amounts(runtime_s=200.0, cpu_cores=2.0, mem_bytes=2**30, rate=1.0), 2, 0, 0)
    fast = figures_of(Amounts(runtime_s=100.0, cpu_cores=2.0, mem_bytes=2**30, rate=2.0), 2, 0, 0)
    assert slow == pytest.approx(fast)


def test_figures_return_to_amounts() -> None:
    used = Amounts(100.0, 3.0, 2.0**31, 1.5, 2.0**33)
    figures = figures_of(used, 4, 2, 0)
    back = {figure: figure.amount(value, 4, 2) for figure, value in figures.items()}
    expected = {
        Figure.CPU: 3.0, Figure.MEMORY: 2.0**31, Figure.GPU: 1.5, Figure.GPU_MEMORY: 2.0**33,
        Figure.RUNTIME: 100.0,
    }  # fmt: skip
    assert back == pytest.approx(expected)


@pytest.mark.parametrize(("status", "counts"), [(0, True), (1, True), (-11, True), (-1, False), (-3, False)])
def test_a_job_that_never_ran_teaches_nothing(status: int, counts: bool) -> None:
    assert (amounts_of(job(1, "C", exit_status=status)) is not None) == counts


def test_the_run_time_of_a_deleted_job_says_nothing_but_its_memory_does() -> None:
    used = Amounts(10.0, 1.0, 2.0**30)
    assert set(figures_of(used, 1, 0, 271)) == {Figure.CPU, Figure.MEMORY}
    assert Figure.RUNTIME in figures_of(used, 1, 0, 1)


def test_a_job_gone_before_mom_looked_shows_zeros_that_are_no_measurement() -> None:
    unseen = amounts_of(replace(job(1, "C", runtime_s=3.0), used=UsedResources(0.0, 3.0, 0)))
    assert unseen is not None
    assert unseen.cpu_cores is None
    assert unseen.mem_bytes is None
    assert unseen.runtime_s == 3.0


@given(
    st.builds(
        Amounts, runtime_s=st.none() | st.floats(0, 1e9), cpu_cores=st.none() | st.floats(0, 1e6),
        mem_bytes=st.none() | st.floats(0, 1e18), gpus=st.none() | st.floats(0, 64),
        gpu_mem_bytes=st.none() | st.floats(0, 1e15), rate=st.floats(0.01, 1e5),
    ),
    st.integers(0, 4096), st.integers(0, 64), st.none() | st.integers(-20, 512),
)  # fmt: skip
def test_whatever_is_learned_is_a_finite_number(
    used: Amounts, procs: int, gpus: int, status: int | None
) -> None:
    figures = figures_of(used, procs, gpus, status)
    assert all(math.isfinite(value) for value in figures.values())
    assert gpus or not figures.keys() & {Figure.GPU, Figure.GPU_MEMORY}


def test_a_rate_is_found_by_name_then_by_property() -> None:
    rates = {"n1": Rates(3.0), "slow": Rates(0.5)}
    assert cpu_rate(node("n1", properties=("slow",)), rates) == 3.0
    assert cpu_rate(node("n2", properties=("big", "slow")), rates) == 0.5
    assert cpu_rate(node("n3"), rates) == 1.0

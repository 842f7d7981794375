"""GPUs that compute and bytes on the links over time: a mix under each policy, live and simulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.hdas_live.runs import RunTable, rows_of
from benchmarks.hdas_live.setting import GPUS, LINK, N_COMPUTE, POLICIES
from yarn_accel.testbed.plan import rate_bits_per_s

_GPU, _LINK = "#222222", "#bb5566"


def draw_mix(mix: str, runs: RunTable, simulated: Mapping[str, Any], file: str) -> str:
    """Draw one mix: a row for each policy, its first run live on the left, simulated on the right."""
    from matplotlib.figure import Figure

    policies = [policy for policy in POLICIES if runs.of(mix, policy)]
    figure = Figure(figsize=(12, 2.6 * len(policies)), layout="constrained")
    table = figure.subplots(len(policies), 2, squeeze=False)
    for (left, right), policy in zip(table, policies, strict=True):
        live = runs.of(mix, policy)[0]
        expected = simulated[f"{mix} {policy}"]
        end_s = 1.02 * max(live.makespan_s, expected["makespan_s"])
        _draw(left, live.use, f"{policy}, live: {live.makespan_s:.0f} s", end_s)
        _draw(right, rows_of(expected["use"]), f"{policy}, simulated: {expected['makespan_s']:.0f} s", end_s)
    figure.suptitle(f"mix {mix}: GPUs that compute (black), MB/s of all links (red); kernels are emulated")
    figure.savefig(file, dpi=70)
    return file


def _draw(axes: Any, use: Any, title: str, end_s: float) -> None:
    at_s, gpus, rates = zip(*use, strict=True)
    axes.step(at_s, gpus, where="mid", color=_GPU, linewidth=0.9)
    axes.set_ylim(0, N_COMPUTE * GPUS + 0.3)
    axes.set_xlim(0, end_s)
    other = axes.twinx()
    other.plot(at_s, [rate / 1e6 for rate in rates], color=_LINK, linewidth=0.8)
    other.set_ylim(0, 1.05 * N_COMPUTE * rate_bits_per_s(LINK) / 8e6)
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel("s", fontsize="small")

"""What must hold of every schedule of the grid, checked from the schedule alone."""

from __future__ import annotations

from collections import defaultdict

from torque_sched.core.grid.model import Mode
from torque_sched.sim.grid.layout import Layout
from torque_sched.sim.grid.outcome import GridRun, Ran
from torque_sched.sim.grid.simulator import GridSettings, cap_of

_MOST_NAMED = 20


def problems(run: GridRun, settings: GridSettings) -> list[str]:
    """Return one sentence per violation, the first twenty; none: the schedule is possible and as asked."""
    found = [fault for ran in run.jobs for fault in _faults(ran, settings)]
    names = [(ran.home, ran.job.number) for ran in run.jobs]
    if len(set(names)) < len(names):
        found.append("a job ran twice")
    return (found + _overbooked(run, settings.layout))[:_MOST_NAMED]


def _faults(ran: Ran, settings: GridSettings) -> list[str]:
    name = f"job {ran.job.number} of site {ran.home}"
    found = []
    if ran.plan.start_s < ran.job.submit_s:
        found.append(f"{name} starts before it was submitted")
    if sum(block.procs for block in ran.plan.blocks) != ran.job.procs:
        found.append(f"{name} has not the processors it needs")
    if any(block.procs < 1 for block in ran.plan.blocks):
        found.append(f"{name} has an empty block")
    sites = {block.site for block in ran.plan.blocks}
    if settings.mode is not Mode.COALLOCATE and len(sites) > 1:
        found.append(f"{name} runs at several sites")
    if settings.mode is Mode.HOME and sites != {ran.home}:
        found.append(f"{name} runs at another site")
    if len({block[:2] for block in ran.plan.blocks}) < ran.n_blocks:
        found.append(f"{name} has two blocks on one cluster")
    if ran.plan.length_s != settings.cost.length_s(ran.job.run_s, ran.n_blocks):
        found.append(f"{name} runs {ran.plan.length_s} s in {ran.n_blocks} blocks")
    if ran.n_blocks > cap_of(settings, ran.home)(ran.job.procs):
        found.append(f"{name} is split into {ran.n_blocks} blocks, more than allowed")
    return found


def _overbooked(run: GridRun, layout: Layout) -> list[str]:
    """Half-open intervals: what ends at an instant is free at it."""
    edges: dict[tuple[int, int], list[tuple[float, int]]] = defaultdict(list)
    for ran in run.jobs:
        for site, cluster, procs in ran.plan.blocks:
            edges[site, cluster] += ((ran.plan.start_s, procs), (ran.plan.end_s, -procs))
    found = []
    for (site, cluster), changes in sorted(edges.items()):
        used = 0
        for at_s, change in sorted(changes):
            used += change
            if used > layout[site][cluster]:
                found.append(f"cluster {cluster} of site {site} has {used} processors in use at {at_s:g}")
                break
    return found

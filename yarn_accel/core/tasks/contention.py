"""How long tasks take where several read at once: equations (1) to (6) of HDAS, reconstructed.

The paper's text has lost them: these follow what it says of them, and the fixed point in (4) is ours.

V is the split of a task in bytes, B the bandwidth of a node, TotalIO what is requested there, #IOtask how
many request it. A *profile* is what is believed of one form of an application on one kind of node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from yarn_accel.core.tasks.values import FormFigures

#: The options for the mean of equation (4).
AFFINITY_MEANS = ("arithmetic", "at-g")

#: Time that counts as passed since an application's start, at least: so equation (6) is defined then, too.
_LEAST_ELAPSED_S = 1e-6


class Profile(NamedTuple):
    """One form of an application on one kind of node, as numbers to compute with.

    Attributes:
        read_s: t_d0, seconds of reading undisturbed.
        compute_s: t_p0, the seconds after that.
        alone_s: T_base, their sum.
        request_bytes_per_s: V / t_d0; 0 for a form that reads nothing.
    """

    read_s: float
    compute_s: float
    alone_s: float
    request_bytes_per_s: float


def profile_of(figures: FormFigures, split_bytes: float) -> Profile:
    """The profile of a form whose tasks read `split_bytes` each."""
    request = split_bytes / figures.read_s if figures.read_s else 0.0
    return Profile(figures.read_s, figures.compute_s, figures.alone_s, request)


def data_rate(split_bytes: float, task_s: float) -> float:
    """Equation (1): dps = V / T, bytes per second that a task works through."""
    return split_bytes / task_s


def _equal_share(profile: Profile, io: float, readers: int, bandwidth: float) -> float:
    """Equation (3), equal share: above B each of n' = #IOtask + 1 readers gets B / n'."""
    request = profile.request_bytes_per_s
    if io + request <= bandwidth:
        return profile.read_s
    return profile.read_s * max(1.0, request * (readers + 1) / bandwidth)


def _proportional(profile: Profile, io: float, readers: int, bandwidth: float) -> float:
    """Equation (3), proportional: above B each reader gets B in proportion to its request."""
    wanted = io + profile.request_bytes_per_s
    return profile.read_s if wanted <= bandwidth else profile.read_s * wanted / bandwidth


def _max_min(profile: Profile, io: float, readers: int, bandwidth: float) -> float:
    """Equation (3), max-min: above B a reader gets what others leave, and its equal share at least."""
    request = profile.request_bytes_per_s
    if io + request <= bandwidth:
        return profile.read_s
    return profile.read_s * max(1.0, request / max(bandwidth - io, bandwidth / (readers + 1)))


#: `above_saturation` -> t_d of the next task by equation (3), from its profile, TotalIO, #IOtask and B.
#: All say: no delay while TotalIO + request <= B.
READ_SECONDS: dict[str, Callable[[Profile, float, int, float], float]] = {
    "equal-share": _equal_share,
    "proportional": _proportional,
    "max-min": _max_min,
}


def closed_loop_seconds(profile: Profile, n_tasks: int, bandwidth: float) -> float:
    """T_k of equation (4): seconds of a task where k = `n_tasks` equal ones run, each followed by the next.

    A reader meets each of the others in its read phase with probability t_d / (t_d + t_p), and they share B
    equally: t_d = max(t_d0, V / B * (1 + (k - 1) * t_d / (t_d + t_p))). The fixed point is the root of a
    quadratic equation.
    """
    shared_s = profile.read_s * profile.request_bytes_per_s / bandwidth
    excess = shared_s * n_tasks - profile.compute_s
    read_s = (excess + math.sqrt(excess * excess + 4.0 * shared_s * profile.compute_s)) / 2.0
    return max(profile.read_s, read_s) + profile.compute_s


def affinity(cpu: Profile, gpu: Profile, gpus: int, bandwidth: float, mean: str = "arithmetic") -> float:
    """Equation (4): how much faster a task is on a GPU of a node whose GPUs all run this application.

    Args:
        cpu: the form on a core.
        gpu: the form on a GPU.
        gpus: g, above 0.
        bandwidth: B of the node.
        mean: ``arithmetic``, the mean of T_CPU / T_k over k = 1..g; or ``at-g``, the value at k = g alone.
    """
    counts = range(1, gpus + 1) if mean == "arithmetic" else (gpus,)
    return sum(cpu.alone_s / closed_loop_seconds(gpu, k, bandwidth) for k in counts) / len(counts)


def mean_delay(tasks: Iterable[tuple[float, float]]) -> float:
    """Equation (5): the mean of T / T_base over tasks of either form, given as (T, T_base); 1 for none."""
    delays = [task_s / alone_s for task_s, alone_s in tasks]
    return sum(delays) / len(delays) if delays else 1.0


def _rate(n_alloc: int, cpu_s: float, now_s: float, start_s: float) -> float:
    """Equation (6): RP = #Alloc * T_CPU_base / (now - start), without unit."""
    return n_alloc * cpu_s / max(now_s - start_s, _LEAST_ELAPSED_S)


def _virtual_time(n_alloc: int, cpu_s: float, now_s: float, start_s: float) -> float:
    """Equation (6) as a virtual time: RP = start + #Alloc * T_CPU_base, in seconds."""
    return start_s + n_alloc * cpu_s


#: `progress` -> RP by equation (6), from #Alloc (tasks dispatched in either form), T_CPU_base, now, start.
PROGRESS: dict[str, Callable[[int, float, float, float], float]] = {
    "rate": _rate,
    "virtual-time": _virtual_time,
}

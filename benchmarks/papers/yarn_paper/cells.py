"""The experiments of the paper (Li, Zhu, Liu, Qian: accelerators in YARN), and the cells that repeat them.

Pure. A cell says what was run and what came of it; the JSON keeps cells as mappings. Cells that need the same
application are run together, so that it is started only a few times. The paper's Figures 5 and 6 are
pictures: of their curves only what the text says of them is known here.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from benchmarks.papers.yarn_paper.shipped.entry import TaskRow

N_NODES = 4
N_TASKS = 100
INTENSITIES = (1, 2, 4, 8)
PAYLOADS_MB = (1, 5, 10, 20, 50)
#: Nodes with an accelerator, of four.
CLUSTERS: Mapping[str, int] = {"4-0": 0, "4-2": 2, "4-3": 3, "4-4": 4}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A row of Table 2: one task of intensity 1 on one node.

    Attributes:
        cpu_s, device_s: seconds on the CPU and on the GPU.
    """

    name: str
    cpu_s: float
    device_s: float

    @property
    def speedup(self) -> float:
        """Of one node with its GPU over the same without."""
        return self.cpu_s / self.device_s


KERNELS: Mapping[str, Kernel] = {
    "lu": Kernel("lu", 55.0, 6.2),
    "qr": Kernel("qr", 384.1, 23.2),
    "cholesky": Kernel("cholesky", 60.5, 7.6),
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much smaller an operation's tasks are here than in the paper; the same for time and payload.

    Attributes:
        cpu_s: seconds that a task of intensity 1 takes here on a CPU.
    """

    kernel: Kernel
    cpu_s: float

    @property
    def factor(self) -> float:
        """Seconds here for a second of the paper, and bytes for a byte."""
        return self.cpu_s / self.kernel.cpu_s

    def seconds(self, intensity: int) -> tuple[float, float]:
        """Of one task here: on a CPU, on a device."""
        return self.cpu_s * intensity, self.kernel.device_s * self.factor * intensity

    def payload_bytes(self, payload_mb: int) -> int:
        """Bytes that travel here for so many megabytes of the paper."""
        return max(1, round(payload_mb * 1e6 * self.factor))

    def __str__(self) -> str:
        kernel, (cpu_s, device_s) = self.kernel, self.seconds(1)
        return (
            f"emulated {kernel.name}: factor {self.factor:.3g} = 1/{1 / self.factor:.0f} "
            f"(CPU {kernel.cpu_s:g} s -> {cpu_s * 1e3:.1f} ms, device {kernel.device_s:g} s -> "
            f"{device_s * 1e3:.1f} ms, 1 MB -> {self.payload_bytes(1) / 1e3:.1f} kB)"
        )


def expected_speedup(kernel: Kernel, n_accelerators: int, *, is_per_node: bool = True) -> float:
    """Over 4-0, were there nothing but kernels: every node has a quarter of the tasks.

    Args:
        kernel: which.
        n_accelerators: of the four nodes.
        is_per_node: a node's tasks stay together, as the paper binds them; else each goes where it is best.
    """
    share = -(-N_NODES // n_accelerators) if is_per_node else N_NODES / n_accelerators
    return kernel.speedup / share


# ---- a cell

EMULATED, REAL = "emulated", "real"


@dataclass(frozen=True, slots=True)
class Key:
    """What was run.

    Attributes:
        instrument: `EMULATED` (the kernel is a timed wait) or `REAL` (computed on the machine's own CPUs);
            figures of one are never set against the other's.
        cluster: ``4-2``: four nodes, two of them with an accelerator.
        policy: of the binding; ``none`` without the application, ``weighted`` with the table of weights,
            ``unweighted`` the same policy without one.
        operation: ``lu``, ``qr``, ``cholesky`` or ``features`` (the image job).
        payload_mb: of a task in the paper; 0 where the operation says itself what travels.
        repeat: from 0.
        layout: empty: four mappers of 25 tasks, one on each node; else another one.
    """

    instrument: str
    cluster: str
    policy: str
    operation: str
    intensity: int = 1
    payload_mb: int = 0
    repeat: int = 0
    layout: str = ""

    def __str__(self) -> str:
        parts = [f"{self.instrument} {self.operation} {self.cluster} {self.policy}"]
        parts.append(f"intensity {self.intensity}")
        parts += [f"{self.payload_mb} MB"] if self.payload_mb else []
        parts += [self.layout] if self.layout else []
        return ", ".join(parts) + (f" (run {self.repeat + 1})" if self.repeat else "")


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of it.

    Attributes:
        phase_s: the task phase: from the first task sent to the last one done.
        job_s: the whole job: from the start of Hadoop's client to its end.
        n_done: tasks (for images: images).
        n_fallback: of these, computed by a mapper's own CPU.
        per_node: tasks by the node of their mapper.
        per_server: tasks by who answered.
        kernel_s: seconds of all kernels together.
        n_attempts: attempts of mappers that Hadoop started.
        n_maps: mappers.
        commit, at: which version ran, and when.
    """

    key: Key
    phase_s: float
    job_s: float
    n_done: int
    n_fallback: int
    per_node: Mapping[str, int] = field(default_factory=dict)
    per_server: Mapping[str, int] = field(default_factory=dict)
    kernel_s: float = 0.0
    n_attempts: int = 0
    n_maps: int = 0
    commit: str = ""
    at: str = ""

    @property
    def n_surplus_attempts(self) -> int:
        """Attempts more than mappers: speculative ones, and those after a failure."""
        return self.n_attempts - self.n_maps

    @property
    def is_even(self) -> bool:
        """Whether every mapper had a node of its own, and each equally many tasks."""
        return len(set(self.per_node.values())) == 1 and len(self.per_node) == self.n_maps

    def to_mapping(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {**asdict(self.key), **{k: v for k, v in asdict(self).items() if k != "key"}}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Cell:
        """What `to_mapping` gave.

        Raises:
            TypeError, KeyError: it is none.
        """
        names = [each.name for each in fields(Key)]
        key = Key(**{name: values[name] for name in names})
        return cls(key=key, **{name: value for name, value in values.items() if name not in names})


def cell_of(
    key: Key, rows: Sequence[TaskRow], job_s: float, n_attempts: int, n_maps: int, commit: str, at: str
) -> Cell:
    """Put the rows of all mappers together.

    Raises:
        ValueError: a task is missing, or is there twice.
    """
    counted = Counter(row.task for row in rows)
    doubled = sorted(task for task, times in counted.items() if times > 1)
    missing = sorted(set(range(max(counted, default=0))) - set(counted))
    if doubled or missing or not rows:
        raise ValueError(f"{key}: tasks {doubled[:5]} are there twice, {missing[:5]} are missing")
    return Cell(
        key=key,
        phase_s=max(row.done_s for row in rows) - min(row.sent_s for row in rows),
        job_s=job_s,
        n_done=len(rows),
        n_fallback=sum(row.is_fallback for row in rows),
        per_node=dict(sorted(Counter(row.node for row in rows).items())),
        per_server=dict(sorted(Counter(row.server for row in rows).items())),
        kernel_s=sum(row.compute_s for row in rows),
        n_attempts=n_attempts,
        n_maps=n_maps,
        commit=commit,
        at=at,
    )


class Cells:
    """All cells there are, by key."""

    def __init__(self, cells: Iterable[Cell] = ()) -> None:
        self._cells = {cell.key: cell for cell in cells}

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, key: Key) -> bool:
        return key in self._cells

    def all(self) -> list[Cell]:
        """In the order in which they were run."""
        return list(self._cells.values())

    def add(self, cell: Cell) -> None:
        """Take one more; a key that is there is replaced."""
        self._cells[cell.key] = cell

    def find(self, **facts: Any) -> list[Cell]:
        """Those whose keys have these facts."""
        wanted = facts.items()
        return [
            cell for key, cell in self._cells.items() if all(getattr(key, name) == v for name, v in wanted)
        ]

    def phase_s(self, **facts: Any) -> float | None:
        """Median task phase of the runs with these facts; None: there is none."""
        found = self.find(**facts)
        return statistics.median(cell.phase_s for cell in found) if found else None

    def job_s(self, **facts: Any) -> float | None:
        """The same for the whole job."""
        found = self.find(**facts)
        return statistics.median(cell.job_s for cell in found) if found else None


# ---- which cells are run, in which order, and about how long that takes

SECTIONS = ("emulated", "payload", "real", "images", "container", "weighted", "speculation")

#: Of a CPU task of intensity 1 here; large against what a request costs, small against an hour.
_CPU_TASK_S = 0.18
SCALES: Mapping[str, Scale] = {name: Scale(kernel, _CPU_TASK_S) for name, kernel in KERNELS.items()}

#: All intensities are run with this payload, and all payloads with that intensity.
PAYLOAD_MB, PAYLOAD_INTENSITY = 10, 2
#: Matrices of real compute: an intensity of 8 has about eight times the work.
MATRIX_ORDERS: Mapping[int, int] = {1: 400, 2: 504, 4: 635, 8: 800}
_REAL_INTENSITIES = (1, 8)
#: Images of the image job here, emulated and real, for the paper's 50,000.
N_IMAGES: Mapping[str, int] = {EMULATED: 5_000, REAL: 2_000}
#: One image; the paper does not say, so the smallest speed-up of its Table 2 is taken.
IMAGE_CPU_S, IMAGE_DEVICE_S = 0.024, 0.003
#: Of the accelerators w1, w2 and w3 of the cluster for `weighted`.
SPEEDS = (1.0, 2.0, 4.0)
WEIGHTED_CLUSTER = "6-3"
_N_REPEATS = 3
#: Hadoop has a reason to speculate only if mappers differ: one node's CPU is so much slower here.
SPECULATION_LAYOUT = "10 mappers of 10, w4's CPU 5 times slower, speculation "
SLOW_CPUS: Mapping[str, float] = {"w4": 0.2}
#: Seconds: a cluster up and down, an application, a streaming job without its tasks, the image job's.
_CLUSTER_S, _APPLICATION_S, _JOB_S, _IMAGES_S = 45.0, 15.0, 12.0, 16.0
_POLICIES = ("none", "paper", "container", "unweighted", "weighted")
"""In the order in which a cluster has them."""


class Stop(NamedTuple):
    """What the cells of one application have in common."""

    cluster: str
    policy: str


def _axes(*, is_quick: bool) -> Mapping[str, Mapping[str, Sequence[Any]]]:
    """Section -> what its cells are, by the fields of `Key`; the first ones vary slowest."""
    clusters = ("4-0", "4-2", "4-4") if is_quick else tuple(CLUSTERS)
    kernels = {"cluster": clusters, "operation": ("lu",) if is_quick else tuple(KERNELS)}
    longest = {"operation": ("lu",), "intensity": (8,), "payload_mb": (PAYLOAD_MB,)}
    repeats = range(1 if is_quick else _N_REPEATS)
    states = ("on",) if is_quick else ("off", "on")
    return {
        "emulated": {
            **kernels,
            "intensity": (1, 8) if is_quick else INTENSITIES,
            "payload_mb": (PAYLOAD_MB,),
        },
        "payload": {
            **kernels,
            "intensity": (PAYLOAD_INTENSITY,),
            "payload_mb": (1, 50) if is_quick else PAYLOADS_MB,
        },
        "real": {**kernels, "intensity": (1,) if is_quick else _REAL_INTENSITIES, "instrument": (REAL,)},
        "images": {
            "cluster": clusters,
            "operation": ("features",),
            "instrument": (EMULATED,) if is_quick else (EMULATED, REAL),
        },
        "container": {"cluster": ("4-3",), "policy": ("paper", "container"), **longest, "repeat": repeats},
        "weighted": {
            "cluster": (WEIGHTED_CLUSTER,),
            "policy": ("unweighted", "weighted"),
            **longest,
            "repeat": repeats,
        },
        "speculation": {
            "cluster": ("4-0", "4-4"),
            **longest,
            "layout": [SPECULATION_LAYOUT + state for state in states],
        },
    }


def plan(only: Iterable[str] = (), *, is_quick: bool = False) -> list[Key]:
    """The cells of these sections (none: all), each once."""
    wanted = tuple(only) or SECTIONS
    all_axes = _axes(is_quick=is_quick)
    keys = (
        _key(**dict(zip(axes, values, strict=True)))
        for axes in (all_axes[section] for section in SECTIONS if section in wanted)
        for values in itertools.product(*axes.values())
    )
    return list(dict.fromkeys(keys))


def _key(cluster: str, **facts: Any) -> Key:
    """The cell. In 4-0 every mapper computes by itself and nothing travels: one payload is enough there."""
    is_alone = CLUSTERS.get(cluster) == 0
    if is_alone and "payload_mb" in facts:
        facts["payload_mb"] = PAYLOAD_MB
    defaults = {"instrument": EMULATED, "policy": "none" if is_alone else "paper"}
    return Key(cluster=cluster, **{**defaults, **facts})


def stops(keys: Iterable[Key], cells: Cells) -> list[tuple[Stop, list[Key]]]:
    """The keys without a cell, by application; first the clusters of four nodes with ever more servers."""
    found: dict[Stop, list[Key]] = {}
    for key in keys:
        if key not in cells:
            found.setdefault(Stop(key.cluster, key.policy), []).append(key)
    return sorted(found.items(), key=lambda one: (one[0].cluster, _POLICIES.index(one[0].policy)))


def estimate_s(keys: Sequence[Key]) -> float:
    """About how long they take on two cores."""
    grouped = stops(keys, Cells())
    n_clusters = len({stop.cluster.split("-")[0] for stop, _ in grouped})
    total_s = n_clusters * _CLUSTER_S + sum(_APPLICATION_S for stop, _ in grouped if stop.policy != "none")
    return total_s + sum(
        (_IMAGES_S if key.operation == "features" else _JOB_S) + _phase_s(key) for key in keys
    )


def device_factor(key: Key) -> float:
    """How many times the device seconds of one node's tasks the slowest server works."""
    if key.cluster == WEIGHTED_CLUSTER:
        return 2.0 if key.policy == "unweighted" else 1.0
    return 4 / 3 if key.policy == "container" else -(-4 // CLUSTERS[key.cluster])


def _phase_s(key: Key) -> float:
    if key.instrument == REAL:
        return 3.0
    share = N_TASKS // 4
    if key.operation == "features":
        share = N_IMAGES[EMULATED] // 4
        cpu_s, device_s = IMAGE_CPU_S, IMAGE_DEVICE_S
    else:
        cpu_s, device_s = SCALES[key.operation].seconds(key.intensity)
        cpu_s *= 2 if key.layout else 1
    return share * cpu_s if key.policy == "none" else share * device_s * device_factor(key)

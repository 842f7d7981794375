"""Which cells are run, in which order, and about how long that takes. Pure.

Cells that need the same application are run together, so that it is started only a few times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.papers.yarn_paper.cells import EMULATED, REAL, Cells, Key
from benchmarks.papers.yarn_paper.paper import CLUSTERS, INTENSITIES, KERNELS, N_TASKS, PAYLOADS_MB, Scale

SECTIONS = ("emulated", "payload", "real", "images", "container", "weighted", "speculation")

#: Of a CPU task of intensity 1 here; large against what a request costs, small against an hour.
_CPU_TASK_S = 0.18
SCALES: Mapping[str, Scale] = {name: Scale(kernel, _CPU_TASK_S) for name, kernel in KERNELS.items()}

#: All intensities are run with this payload, and all payloads with that intensity.
PAYLOAD_MB = 10
PAYLOAD_INTENSITY = 2
#: Matrices of real compute: an intensity of 8 has about eight times the work.
MATRIX_ORDERS: Mapping[int, int] = {1: 400, 2: 504, 4: 635, 8: 800}
REAL_INTENSITIES = (1, 8)
#: Images of the image job here, emulated and real, for the paper's 50,000.
N_IMAGES: Mapping[str, int] = {EMULATED: 5_000, REAL: 2_000}
#: One image; the paper does not say, so the smallest speed-up of its Table 2 is taken.
IMAGE_CPU_S, IMAGE_DEVICE_S = 0.024, 0.003
#: Of the accelerators w1, w2 and w3 of the cluster for `weighted`.
SPEEDS = (1.0, 2.0, 4.0)
WEIGHTED_CLUSTER = "6-3"
N_REPEATS = 3
#: Hadoop has a reason to speculate only if mappers differ: one node's CPU is so much slower here.
SPECULATION_LAYOUT = "10 mappers of 10, w4's CPU 5 times slower, speculation "
SLOW_CPUS: Mapping[str, float] = {"w4": 0.2}


@dataclass(frozen=True, slots=True)
class Stop:
    """What the cells of one application have in common."""

    cluster: str
    policy: str


#: Seconds: a cluster up and down, an application, a streaming job without its tasks, the image job's.
ESTIMATES: Mapping[str, float] = {"cluster": 45.0, "application": 15.0, "job": 12.0, "images": 16.0}


def plan(only: Iterable[str] = (), *, is_quick: bool = False) -> list[Key]:
    """The cells of these sections (none: all), each once."""
    wanted = tuple(only) or SECTIONS
    makers = {
        "emulated": _emulated,
        "payload": _payload,
        "real": _real,
        "images": _images,
        "container": _container,
        "weighted": _weighted,
        "speculation": _speculation,
    }
    keys = [key for section in SECTIONS if section in wanted for key in makers[section](is_quick)]
    return list(dict.fromkeys(keys))


def stops(keys: Iterable[Key], cells: Cells) -> list[tuple[Stop, list[Key]]]:
    """The keys without a cell, by application; first the clusters of four nodes with ever more servers."""
    found: dict[Stop, list[Key]] = {}
    for key in keys:
        if key not in cells:
            found.setdefault(Stop(key.cluster, key.policy), []).append(key)
    order = {"none": 0, "paper": 1, "container": 2, "unweighted": 3, "weighted": 4}
    return sorted(found.items(), key=lambda one: (one[0].cluster, order[one[0].policy]))


def estimate_s(keys: Sequence[Key]) -> float:
    """About how long they take on two cores."""
    grouped = stops(keys, Cells())
    n_clusters = len({stop.cluster.split("-")[0] for stop, _ in grouped})
    total_s = n_clusters * ESTIMATES["cluster"]
    total_s += sum(ESTIMATES["application"] for stop, _ in grouped if stop.policy != "none")
    for key in keys:
        overhead = "images" if key.operation == "features" else "job"
        total_s += ESTIMATES[overhead] + _phase_s(key)
    return total_s


def device_factor(key: Key) -> float:
    """How many times the device seconds of one node's tasks the slowest server works."""
    if key.cluster == WEIGHTED_CLUSTER:
        return 2.0 if key.policy == "unweighted" else 1.0
    n_accelerators = CLUSTERS[key.cluster]
    return 4 / 3 if key.policy == "container" else -(-4 // n_accelerators)


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


def _clusters(is_quick: bool) -> tuple[str, ...]:
    return ("4-0", "4-2", "4-4") if is_quick else tuple(CLUSTERS)


def _policy(cluster: str) -> str:
    return "none" if CLUSTERS[cluster] == 0 else "paper"


def _emulated(is_quick: bool) -> list[Key]:
    operations = ("lu",) if is_quick else tuple(KERNELS)
    intensities = (1, 8) if is_quick else INTENSITIES
    return [
        Key(EMULATED, cluster, _policy(cluster), operation, intensity, PAYLOAD_MB)
        for cluster in _clusters(is_quick)
        for operation in operations
        for intensity in intensities
    ]


def _payload(is_quick: bool) -> list[Key]:
    """Nothing travels in 4-0, where every mapper computes by itself: one payload is enough there."""
    operations = ("lu",) if is_quick else tuple(KERNELS)
    payloads = (1, 50) if is_quick else PAYLOADS_MB
    return [
        Key(EMULATED, cluster, _policy(cluster), operation, PAYLOAD_INTENSITY, payload_mb)
        for cluster in _clusters(is_quick)
        for operation in operations
        for payload_mb in ((PAYLOAD_MB,) if CLUSTERS[cluster] == 0 else payloads)
    ]


def _real(is_quick: bool) -> list[Key]:
    operations = ("lu",) if is_quick else tuple(KERNELS)
    return [
        Key(REAL, cluster, _policy(cluster), operation, intensity)
        for cluster in _clusters(is_quick)
        for operation in operations
        for intensity in ((1,) if is_quick else REAL_INTENSITIES)
    ]


def _images(is_quick: bool) -> list[Key]:
    instruments = (EMULATED,) if is_quick else (EMULATED, REAL)
    return [
        Key(instrument, cluster, _policy(cluster), "features")
        for cluster in _clusters(is_quick)
        for instrument in instruments
    ]


def _container(is_quick: bool) -> list[Key]:
    return [
        Key(EMULATED, "4-3", policy, "lu", 8, PAYLOAD_MB, repeat)
        for policy in ("paper", "container")
        for repeat in range(1 if is_quick else N_REPEATS)
    ]


def _weighted(is_quick: bool) -> list[Key]:
    return [
        Key(EMULATED, WEIGHTED_CLUSTER, policy, "lu", 8, PAYLOAD_MB, repeat)
        for policy in ("unweighted", "weighted")
        for repeat in range(1 if is_quick else N_REPEATS)
    ]


def _speculation(is_quick: bool) -> list[Key]:
    return [
        Key(EMULATED, cluster, _policy(cluster), "lu", 8, PAYLOAD_MB, layout=SPECULATION_LAYOUT + state)
        for cluster in ("4-0", "4-4")
        for state in (("on",) if is_quick else ("off", "on"))
    ]

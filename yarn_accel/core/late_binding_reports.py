"""Late binding between agents and the master: claims in a few numbers, counts of jobs, measured figures.

Claims: a document has ``waiting``, ``cpu`` and ``gpu`` (claims that wait, hold a core or hold a GPU now);
``decided`` (claims that got a place), ``undecided`` (refused) and ``lost`` (the mapper died, or its lease
ended), these three since the agent started; and ``counts_age_s``, the age of the cluster's counts that the
master sent last.

Counts: each agent reports how many tasks of each job it started (#Alloc) and since when; the master answers
with the sums of the others.

Figures: each agent reports what it measured, and gets what all others did. A name is ``USER/JOB``, and the
user is whom a credential names, so nobody's measurements are believed of another one's jobs. Nodes count
alike, however much each has measured: a median over them, so that one that measures wrongly does not matter
where others measure, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, TypeVar

CLAIM_STATES = ("waiting", "cpu", "gpu")
CLAIM_RESULTS = ("decided", "undecided", "lost")
#: Jobs, and identifiers of credentials, in one heartbeat.
MAX_APPS = 256
MAX_IDENTIFIERS = 64
#: Rows in one heartbeat, or in one answer.
MAX_FIGURES = 128
#: What nobody measured again for so long is forgotten.
MAX_FIGURES_AGE_S = 86_400.0
_MAX_COUNT = 2**53
_MAX_AGE_S = 1e9
_KEEP_S = 3600.0
_MOST_APPS = 10_000
_MOST_ROWS = 10_000
_MOST_OF_USER = 256
_MOST_NODES = 64
_MAX_NAME = 400
_MAX_KIND = 128
_MAX_NUMBER = 1e18
_N_COLUMNS = 9
_FORMS = ("cpu", "gpu")
_AgentKey = tuple[str, int]
_FigureKey = tuple[str, str, str]
_Job = TypeVar("_Job", bound=str)


# Claims.


def claim_counts(
    claims: Mapping[str, int], outcomes: Mapping[str, int], counts_age_s: float | None
) -> dict[str, float]:
    """The document.

    Args:
        claims: how many there are by state.
        outcomes: see `LateBinder.outcomes`.
        counts_age_s: None: the master has not said anything of the cluster yet.
    """
    results = {
        "decided": outcomes.get("gpu", 0) + outcomes.get("cpu", 0),
        "undecided": outcomes.get("refused", 0),
        "lost": outcomes.get("lost", 0) + outcomes.get("expired", 0),
    }
    age = {} if counts_age_s is None else {"counts_age_s": round(counts_age_s, 3)}
    return {**{state: claims.get(state, 0) for state in CLAIM_STATES}, **results, **age}


def parse_claim_counts(value: Any) -> dict[str, float] | None:
    """What an agent reports, without keys whose value is none; None: it reports nothing."""
    if not isinstance(value, Mapping):
        return None
    found = {key: value[key] for key in (*CLAIM_STATES, *CLAIM_RESULTS) if _is_count(value.get(key))}
    age_s = value.get("counts_age_s")
    if isinstance(age_s, int | float) and not isinstance(age_s, bool) and 0 <= age_s <= _MAX_AGE_S:
        found["counts_age_s"] = age_s
    return found or None


def sum_claim_counts(found: Iterable[Mapping[str, float]]) -> dict[str, float] | None:
    """Of several nodes: the sums, how many ``nodes`` these are, and the largest age; None: of no node."""
    documents = list(found)
    if not documents:
        return None
    keys = (*CLAIM_STATES, *CLAIM_RESULTS)
    ages_s = [each["counts_age_s"] for each in documents if "counts_age_s" in each]
    return {
        "nodes": len(documents),
        **{key: sum(each.get(key, 0) for each in documents) for key in keys},
        **({"counts_age_s": max(ages_s)} if ages_s else {}),
    }


def claims_text(counts: Mapping[str, Any]) -> str:
    """Who holds and who waits, in words."""
    gpu, cpu, waiting = (_shown(counts.get(key)) for key in ("gpu", "cpu", "waiting"))
    return f"{gpu} GPU, {cpu} core, {waiting} wait"


def results_text(counts: Mapping[str, Any]) -> str:
    """What became of claims, and by how old counts, in words."""
    words = ", ".join(f"{_shown(counts.get(key))} {key}" for key in CLAIM_RESULTS)
    age_s = counts.get("counts_age_s")
    is_known = isinstance(age_s, int | float) and math.isfinite(age_s)
    return f"{words}; counts of the cluster {f'{age_s:.1f} s old' if is_known else 'not known'}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def _shown(value: Any) -> str:
    return f"{value:,}" if _is_count(value) else "-"


# Counts of jobs.


@dataclass(frozen=True, slots=True)
class ClusterCount:
    """What other nodes dispatched of a job, and how long ago it started anywhere."""

    n_alloc: int
    n_gpu: int
    age_s: float


@dataclass(slots=True)
class _CountedApp:
    """Attributes: start_s; used_s, when it was last reported; by node and agent what each dispatched."""

    start_s: float
    used_s: float
    by_agent: dict[_AgentKey, tuple[int, int]] = field(default_factory=dict)
    n_alloc: int = 0
    n_gpu: int = 0


class ClusterCounts:
    """Of all nodes; an agent that was replaced counts from 0 again, and what it had counted stays."""

    def __init__(self) -> None:
        self._apps: dict[str, _CountedApp] = {}

    def report(
        self, node: str, epoch: int, counts: Mapping[str, ClusterCount], now_s: float
    ) -> dict[str, tuple[int, int, float]]:
        """Take an agent's counts in; what others dispatched of the same applications, and their ages.

        Args:
            epoch: of the agent: another one for each process.
            now_s: of the master alone, so that the clocks of nodes do not matter.
        """
        for app, count in counts.items():
            known = self._apps.get(app)
            if known is None:
                self._make_space(now_s)
                known = self._apps[app] = _CountedApp(now_s - count.age_s, now_s)
            known.start_s = min(known.start_s, now_s - count.age_s)
            known.used_s = now_s
            before = known.by_agent.get((node, epoch), (0, 0))
            known.by_agent[node, epoch] = (count.n_alloc, count.n_gpu)
            known.n_alloc += count.n_alloc - before[0]
            known.n_gpu += count.n_gpu - before[1]
        return {app: self._elsewhere(app, (node, epoch), now_s) for app in counts}

    def _elsewhere(self, app: str, own: _AgentKey, now_s: float) -> tuple[int, int, float]:
        known = self._apps[app]
        n_alloc, n_gpu = known.by_agent[own]
        return known.n_alloc - n_alloc, known.n_gpu - n_gpu, now_s - known.start_s

    def _make_space(self, now_s: float) -> None:
        if len(self._apps) < _MOST_APPS:
            return
        old = [app for app, known in self._apps.items() if now_s - known.used_s > _KEEP_S]
        for app in old or [min(self._apps, key=lambda each: self._apps[each].used_s)]:
            del self._apps[app]


def counts_document(counts: Mapping[_Job, tuple[int, int, float]]) -> dict[str, list[float]]:
    """#Alloc, those on GPUs and age in seconds by job, for a heartbeat or its answer."""
    latest = sorted(counts.items(), key=lambda item: item[1][2])[:MAX_APPS]
    return {app: [n_alloc, n_gpu, round(age_s, 3)] for app, (n_alloc, n_gpu, age_s) in latest}


def parse_counts(value: Any) -> dict[str, ClusterCount]:
    """What `counts_document` made; what is none of it is left out."""
    found: dict[str, ClusterCount] = {}
    for app, row in list(value.items())[:MAX_APPS] if isinstance(value, Mapping) else ():
        if not isinstance(row, list) or len(row) != 3 or len(str(app)) > _MAX_NAME:
            continue
        n_alloc, n_gpu, age_s = map(_number, row)
        found[str(app)] = ClusterCount(int(n_alloc), min(int(n_gpu), int(n_alloc)), age_s)
    return found


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_NUMBER:
        return 0.0
    return float(value)


# Figures.


@dataclass(frozen=True, slots=True)
class SharedFigure:
    """What one node, or several together, measured of one form of a name.

    Attributes:
        form: ``cpu`` or ``gpu``.
        n_measured: tasks in all; `n_nodes` nodes that ran them.
        age_s: since the last of them was reported.
    """

    name: str
    form: str
    accelerator: str
    split_bytes: float
    read_s: float
    compute_s: float
    n_measured: int
    n_nodes: int = 1
    age_s: float = 0.0


@dataclass(slots=True)
class _Known:
    """One form of one name: what each node reported and when, those that reported last are the last."""

    by_node: dict[str, tuple[SharedFigure, float]] = field(default_factory=dict)
    sequence: int = 0


class ClusterFigures:
    """Of all nodes; those that changed last are the last, and are kept: so many in all and of one user."""

    def __init__(self) -> None:
        self._known: dict[_FigureKey, _Known] = {}
        self._of_user: dict[str, dict[_FigureKey, None]] = {}
        self.sequence = 0

    def report(self, node: str, rows: Iterable[SharedFigure], now_s: float) -> None:
        """Take in what a node measured, in place of what it said before of the same names.

        Args:
            now_s: of the master alone.
        """
        for row in rows:
            key = (row.name, row.form, row.accelerator)
            known = self._known.get(key) or _Known()
            before = known.by_node.pop(node, None)
            known.by_node[node] = (row, now_s)
            if before is not None and before[0] == row:
                continue
            self.sequence += 1
            known.sequence = self.sequence
            while len(known.by_node) > _MOST_NODES:
                del known.by_node[next(iter(known.by_node))]
            self._known.pop(key, None)
            self._known[key] = known
            mine = self._of_user.setdefault(_user(row.name), {})
            mine.pop(key, None)
            mine[key] = None
            self._forget(mine)

    def since(self, sequence: int, node: str, now_s: float) -> tuple[SharedFigure, ...]:
        """What other nodes measured that changed after `sequence`, what changed last first."""
        found: list[SharedFigure] = []
        for key in reversed(self._known):
            known = self._known[key]
            if known.sequence <= sequence or len(found) >= MAX_FIGURES:
                break
            if (row := _merged(known, node, now_s)) is not None:
                found.append(row)
        return tuple(found)

    def _forget(self, mine: dict[_FigureKey, None]) -> None:
        """Keep to the limits: what changed longest ago goes."""
        while len(mine) > _MOST_OF_USER:
            key = next(iter(mine))
            del mine[key], self._known[key]
        while len(self._known) > _MOST_ROWS:
            key = next(iter(self._known))
            others = self._of_user[_user(key[0])]
            del self._known[key], others[key]
            if not others:
                del self._of_user[_user(key[0])]


def _merged(known: _Known, node: str, now_s: float) -> SharedFigure | None:
    """The nodes but this one together; None: none of them has measured in time."""
    said = [
        (row, said_s)
        for name, (row, said_s) in known.by_node.items()
        if name != node and now_s - said_s <= MAX_FIGURES_AGE_S
    ]
    if not said:
        return None
    rows = [row for row, _ in said]
    return replace(
        rows[0],
        split_bytes=median(row.split_bytes for row in rows),
        read_s=median(row.read_s for row in rows),
        compute_s=median(row.compute_s for row in rows),
        n_measured=sum(row.n_measured for row in rows),
        n_nodes=len(rows),
        age_s=now_s - max(said_s for _, said_s in said),
    )


def figures_document(rows: Iterable[SharedFigure]) -> list[list[Any]]:
    """Rows for a heartbeat or its answer."""
    return [
        [
            row.name,
            row.form,
            row.accelerator,
            row.split_bytes,
            round(row.read_s, 6),
            round(row.compute_s, 6),
            row.n_measured,
            row.n_nodes,
            round(row.age_s, 3),
        ]
        for row in list(rows)[:MAX_FIGURES]
    ]


def parse_figures(value: Any) -> tuple[SharedFigure, ...]:
    """What `figures_document` made; what is none of it, or would be no figure of a task, is left out."""
    rows = value[:MAX_FIGURES] if isinstance(value, list) else ()
    return tuple(row for each in rows if (row := _parsed(each)) is not None)


def _parsed(row: Any) -> SharedFigure | None:
    if not isinstance(row, list) or len(row) != _N_COLUMNS:
        return None
    name, form, accelerator = row[0], str(row[1]), row[2]
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or form not in _FORMS:
        return None
    if not isinstance(accelerator, str) or len(accelerator) > _MAX_KIND or (accelerator and form == "cpu"):
        return None
    numbers = row[3:]
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in numbers):
        return None
    if not all(0 <= each <= _MAX_NUMBER for each in numbers):
        return None
    split_bytes, read_s, compute_s, n_measured, n_nodes, age_s = numbers
    if read_s + compute_s <= 0 or n_measured < 1 or n_nodes < 1 or (read_s and not split_bytes):
        return None
    return SharedFigure(
        name, form, accelerator, split_bytes, read_s, compute_s, int(n_measured), int(n_nodes), float(age_s)
    )


def _user(name: str) -> str:
    return name.partition("/")[0]

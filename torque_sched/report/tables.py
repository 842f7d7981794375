"""Tables for the terminal, and what is free now in rows of nodes that are alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from torque_sched.decide.explain import FreeNode, NodeVerdict
from torque_sched.learn.figures import share
from torque_sched.learn.predictions import Evidence
from torque_sched.learn.samples import reading_of, unused_gpus
from torque_sched.model.cluster import Job, Node
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState, format_states
from torque_sched.model.texts import one_line
from torque_sched.report.past import PastDecision
from torque_sched.report.picture import Picture, State
from torque_sched.report.words import ago, amount, moment, percent, size, span


def table(*heads: str, title: str = "") -> Table:
    """A plain table; numbers stand in columns that begin with ``>``."""
    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for head in heads:
        made.add_column(head.removeprefix(">"), justify="right" if head.startswith(">") else "left")
    return made


def daemon_line(state: State, now_s: float) -> str:
    """Whether the daemon runs, and what its last cycle did."""
    other = "another scheduler, or one of ours that cannot write its state (is the disk full?)"
    if not state.values:
        held = f", and process {state.holder} has the lock: {other}" if state.holder else ""
        return f"no scheduler of ours has run here{held}"
    mode = state.values.get("mode", "?")
    pid = state.values.get("pid")
    alive = f"runs (process {pid})" if state.is_alive else f"process {pid} is gone"
    if state.holder and not state.is_alive:
        alive += f", process {state.holder} has its lock: {other}"
    last = state.values.get("last_cycle") or {}
    when = ago(now_s - state.now_s)
    if not last:
        return f"{mode}: {alive}; it could not see the cluster {when}"
    wall = last.get("wall_ms") or {}
    took = " + ".join(f"{wall.get(part, 0):.0f} ms {part}" for part in ("snapshot", "decide", "enact"))
    did = f"{last.get('n_jobs')} jobs considered, {last.get('n_started')} started, {took}"
    return f"{mode}: {alive}; last cycle {when}: {did}"


def nodes_line(snapshot: Snapshot) -> str:
    """Nodes, slots and GPUs in one line."""
    # What runs in a reservation uses slots of its node.
    used = sum(node.slots_used for node in snapshot.nodes if node.is_up)
    whole = [node for node in snapshot.nodes if not node.only_for]
    up = [node for node in whole if node.is_up]
    line = f"{len(up)} of {len(whole)} nodes up, {used} of {sum(node.slots for node in up)} slots used"
    gpus = sum(node.gpus for node in up)
    if gpus:
        held = sum(len(job.allocated_gpus) for job in snapshot.running)
        line += f", {held} of {gpus} GPUs held, {len(unused_gpus(snapshot))} of these not used"
    return line


def jobs_line(snapshot: Snapshot) -> str:
    """Jobs by state."""
    counts = Counter(job.state for job in snapshot.jobs if not job.is_array_parent)
    in_words = ", ".join(
        f"{n} {state.name.lower()}" for state, n in sorted(counts.items(), key=lambda each: each[0].name)
    )
    return f"jobs: {in_words or 'none'}" + (
        "" if snapshot.server.scheduling else "; scheduling is switched off"
    )


def reasons_table(state: State) -> Table:
    """Why jobs wait, by the last cycle; a shadow's starts wait for the real scheduler."""
    counts: Counter[str] = Counter()
    for job in state.jobs.values():
        if job.get("decision") != "start":
            counts[str(job.get("comment") or job.get("reason") or "?")] += 1
        elif state.values.get("mode") == "shadow":
            counts["nothing: the shadow would start them"] += 1
    made = table(">jobs", "why they wait", title="waiting")
    for words, n in counts.most_common(12):
        made.add_row(str(n), Text(words))
    return made


def nodes_table(picture: Picture, limit: int = 0) -> Table:
    """Every node: slots, load, memory, GPUs; the busiest first when there is a limit."""
    snapshot = picture.snapshot
    heads = ("node", "state", ">slots", ">cpu", ">memory", ">gpus held", ">gpu busy", ">age", "from")
    made = table(*heads, title="nodes")
    held = Counter(slot.node for job in snapshot.running for slot in job.allocated_gpus)
    nodes: Iterable[Node] = snapshot.nodes
    if limit:
        nodes = sorted(snapshot.nodes, key=lambda node: (node.is_up, -node.slots_used))[:limit]
    for node in nodes:
        state = Text(format_states(node.states), style="" if node.is_up else "red")
        gpus = f"{held[node.name]}/{node.gpus}" if node.gpus else ""
        cpu, memory, busy, age, source = _measured(picture, node)
        made.add_row(
            node.name, state, f"{node.slots_used}/{node.slots}", cpu, memory, gpus, busy, age, source
        )
    return made


def _measured(picture: Picture, node: Node) -> tuple[str, str, str, str, str]:
    """Shares of CPU, memory and GPUs, the age of these figures, and whose they are."""
    reading = reading_of(node)
    if reading is None:
        return "-", "-", "-" if node.gpus else "", "-", ""
    measured = picture.context.measured.get(node.name, reading.measured)
    load = measured.load
    return (
        percent(share(load.cpu_cores, _cores(node))),
        percent(share(load.mem_bytes, node.mem_bytes)),
        percent(share(load.gpus, node.gpus)) if node.gpus else "",
        f"{picture.snapshot.now_s - measured.sample_s:.0f} s",
        "sampler" if reading.is_sampled else "mom",
    )


def _cores(node: Node) -> int:
    return (node.status.ncpus if node.status is not None else None) or node.slots


def evidence_table(evidence: Iterable[Evidence]) -> Table:
    """What a job is expected to use, and why this is believed."""
    made = table(
        "figure",
        ">expected",
        ">hardly above",
        "by",
        ">jobs",
        "of the same",
        ">usual error",
        title="prediction",
    )
    for each in evidence:
        name = each.figure.value
        made.add_row(
            name, amount(name, each.amount), amount(name, each.upper), each.predictor, str(each.n_similar),
            each.kind.replace("+", ", "), each.error_words,
        )  # fmt: skip
    return made


def verdict_table(verdicts: Iterable[NodeVerdict], n_pieces: int) -> Table:
    """Every node: does it fit, why not, its score; those that fit first, the best at the top."""
    ordered = sorted(
        verdicts, key=lambda each: (each.piece, not each.fits, each.score is None, each.score or 0.0)
    )
    made = table(*(("piece",) if n_pieces > 1 else ()), "node", "fits", ">score", "terms", title="nodes")
    for each in ordered:
        terms = ", ".join(f"{name} {value:.3f}" for name, value in each.terms)
        score = "" if each.score is None else f"{each.score:.3f}"
        piece = (str(each.piece + 1),) if n_pieces > 1 else ()
        made.add_row(
            *piece, each.node, Text(each.words, style="green" if each.words == "yes" else ""), score, terms
        )
    return made


def past_table(past: Iterable[PastDecision]) -> Table:
    """What was decided about a job before."""
    made = table("from", "until", "decision", "why", "nodes", title="history")
    for each in past:
        start = f"from {clock(each.reserved_s)} on" if each.reserved_s is not None else ""
        words = "; ".join(part for part in (each.words, start) if part)
        made.add_row(clock(each.at_s), clock(each.last_s), each.kind, Text(words), "+".join(each.nodes))
    return made


def clock(at_s: float | None) -> str:
    """A moment in this host's time."""
    return moment(at_s, "%m-%d %H:%M:%S")


def job_line(job: Job) -> str:
    """One job in a line."""
    words = [
        f"{job.id} {one_line(job.name, 200)}",
        f"of {job.user}",
        f"in {job.queue}",
        f"asks {one_line(job.request.nodes_text, 1000) or _asks(job)}",
    ]
    if job.state is JobState.RUNNING:
        words.append("runs on " + "+".join(f"{node}:{n}" for node, n in job.slots_by_node().items()))
    else:
        words.append(job.state.name.lower())
    if job.used.mem_bytes is not None:
        words.append(f"has used {size(job.used.mem_bytes)}")
    return ", ".join(words)


def _asks(job: Job) -> str:
    gpus = f" and {job.request.n_gpus} GPUs" if job.request.n_gpus else ""
    return f"{job.request.n_procs} processors{gpus}"


_NAMED = 4


@dataclass(frozen=True, slots=True)
class Opening:
    """Nodes with the same free amounts, for the same time."""

    slots: int
    gpus: int
    until_s: float
    properties: tuple[str, ...]
    mem_bytes: float
    """Free on each of them at least."""
    nodes: tuple[str, ...]


def openings(free: Iterable[FreeNode]) -> tuple[Opening, ...]:
    """The rows: what is free longest first, then by size."""
    groups: dict[tuple[int, int, float, tuple[str, ...]], list[FreeNode]] = {}
    for each in free:
        if each.slots or each.gpus:
            groups.setdefault((each.slots, each.gpus, each.until_s, each.properties), []).append(each)
    rows = (
        Opening(*key, min(each.mem_bytes for each in nodes), tuple(str(each.node) for each in nodes))
        for key, nodes in groups.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.until_s, -row.gpus, -row.slots, row.nodes)))


def openings_table(rows: Sequence[Opening], now_s: float, *, shows_names: bool = False) -> Table:
    """For the terminal."""
    made = table(">nodes", ">slots each", ">gpus each", ">memory", ">for", "until", "properties", "which")
    for row in rows:
        is_endless = math.isinf(row.until_s)
        shown = row.nodes if shows_names or len(row.nodes) <= _NAMED else (*row.nodes[: _NAMED - 1], "...")
        made.add_row(
            str(len(row.nodes)), str(row.slots), str(row.gpus) if row.gpus else "",
            size(row.mem_bytes) if math.isfinite(row.mem_bytes) else "-",
            "no end" if is_endless else span(row.until_s - now_s), "" if is_endless else clock(row.until_s),
            ",".join(row.properties), ",".join(shown),
        )  # fmt: skip
    return made


def document(free: Iterable[FreeNode], now_s: float) -> dict[str, Any]:
    """For programs; ``until_s`` None: no end is known."""
    return {
        "now_s": now_s,
        "nodes": [
            {
                "node": str(each.node), "slots": each.slots, "gpus": each.gpus,
                "mem_bytes": each.mem_bytes if math.isfinite(each.mem_bytes) else None,
                "until_s": each.until_s if math.isfinite(each.until_s) else None,
                "properties": list(each.properties),
            }
            for each in free
        ],
    }  # fmt: skip

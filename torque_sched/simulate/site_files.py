"""A site from its own files: accounting, the nodes file, ``pbsnodes`` and ``qmgr -c 'print server'``.

A record that cannot be used is left out, named once and counted; the others go on. Of a job the record of its
end (E) counts. It waits from the time at which it could run (``etime``) on, so what held it back before that
(its user, another job) holds it back in the simulation too.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torque_sched.batch.accounting import job_of_record
from torque_sched.batch.openpbs.parse.cluster import idle_nodes, run_limits
from torque_sched.batch.torque.parse.accounting import parse_accounting
from torque_sched.batch.torque.parse.pbsnodes import parse_pbsnodes
from torque_sched.batch.torque.parse.qmgr import parse_qmgr
from torque_sched.batch.torque.parse.qstat import queue_from_record, server_from_record
from torque_sched.batch.torque.parse.records import Record, decoded
from torque_sched.errors import ConfigError, DocumentError, ModelError, RecordError
from torque_sched.model.cluster import Job, Node, NodeName, Queue, RunLimit, Server, UsedResources
from torque_sched.model.states import JobState, StartProgress
from torque_sched.simulate.site import Outage, SimulatedJob, Site, with_status
from torque_sched.simulate.workload import Rejected, TraceJob, Workload

_DAY = re.compile(r"[0-9]{8}(?:\.gz)?")
_NAME = re.compile(r"[A-Za-z0-9][\w.\-]{0,254}", re.ASCII)
_PROPERTY = re.compile(r"[A-Za-z][\w.\-]{0,254}", re.ASCII)
_NODE_CURE = "a line is NAME np=N [gpus=N] [property ...]"
_MOST_SLOTS = 100_000
_MOST_FILE_BYTES = 1 << 30
_PART_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Ended:
    """Jobs that ended, by accounting: ``n_records == len(jobs) + sum(rejected) + n_repeated``."""

    jobs: tuple[Job, ...]
    n_records: int
    n_repeated: int
    """Ends of a run that was repeated: the job's last one counts."""
    rejected: Counter[Rejected]
    problems: tuple[str, ...]


def read_accounting(folder: Path, from_s: float | None = None, to_s: float | None = None) -> Ended:
    """The jobs of all daily files (``YYYYMMDD``, or ``.gz`` of one) of a folder.

    Args:
        folder: ``server_priv/accounting``, or a copy of it.
        from_s: jobs that could run before are left out; None: from the first on.
        to_s: jobs that could run from then on are left out; None: up to the last.

    Raises:
        DocumentError: the folder cannot be read, or holds no job.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if _DAY.fullmatch(path.name))
    except OSError as error:
        raise DocumentError(f"{folder}: {error.strerror}", cure="give the server's PBS home") from None
    found: dict[tuple[str, float | None], Job] = {}
    rejected: Counter[Rejected] = Counter()
    problems: list[str] = []
    n_records = 0
    for path in paths:
        jobs, troubles = _one_day(path)
        n_records += len(jobs) + len(troubles)
        rejected[Rejected.DAMAGED] += len(troubles)
        problems += troubles
        for job in jobs:
            trouble = _trouble(job)
            if trouble is not None:
                rejected[trouble] += 1
                if trouble is Rejected.DAMAGED:
                    problems.append(
                        f"accounting {path.name}: job {job.id} has no queue or no times: "
                        "the other records are used"
                    )
            else:
                found[job.id, job.ctime_s] = job
    n_repeated = n_records - sum(rejected.values()) - len(found)
    chosen = [
        job for job in found.values()
        if (from_s is None or job.queued_s >= from_s) and (to_s is None or job.queued_s < to_s)
    ]  # fmt: skip
    if len(found) > len(chosen):
        rejected[Rejected.OTHER_TIME] = len(found) - len(chosen)
    if not chosen:
        first = f"; {problems[0]}" if problems else ""
        raise DocumentError(f"{folder} holds no job that ended{first}", cure="its files are named YYYYMMDD")
    chosen.sort(key=lambda job: (job.queued_s, job.key))
    return Ended(tuple(chosen), n_records, n_repeated, +rejected, tuple(problems))


def _one_day(path: Path) -> tuple[list[Job], list[str]]:
    """The jobs that ended, and what is wrong with the other records."""
    name = f"accounting {path.name}"
    data, trouble = _bytes_of(path)
    if trouble:
        # What is whole of a damaged file counts, and its last line is no second trouble.
        data = data[: data.rfind(b"\n") + 1]
    try:
        parsed = parse_accounting(data, name)
    except DocumentError as error:
        return [], [str(error)]
    troubles = [f"{name}: {trouble}"] if trouble else []
    troubles += map(str, parsed.problems)
    jobs: list[Job] = []
    for record in parsed.items:
        if record.type != "E":
            continue
        try:
            jobs.append(job_of_record(record))
        except RecordError as error:
            troubles.append(f"{name}: {error.message}: {error.cure or 'the other records are used'}")
    return jobs, troubles


def _bytes_of(path: Path) -> tuple[bytes, str]:
    """What can be read of a file, and why the rest cannot."""
    parts: list[bytes] = []
    n_bytes = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as opened:
            while n_bytes < _MOST_FILE_BYTES and (part := opened.read(_PART_BYTES)):
                parts.append(part)
                n_bytes += len(part)
    except (OSError, EOFError, zlib.error) as error:
        return b"".join(parts), getattr(error, "strerror", None) or str(error)
    return b"".join(parts), ""


def _trouble(job: Job) -> Rejected | None:
    if not job.queue or not job.queued_s or job.comp_s is None:
        return Rejected.DAMAGED
    return Rejected.NEVER_RAN if job.start_s is None or job.comp_s <= job.start_s else None


def waiting(job: Job) -> Job:
    """A job that ended as it was when it waited."""
    return replace(
        job, state=JobState.QUEUED, progress=StartProgress.NONE, start_s=None, comp_s=None, exit_status=None,
        start_count=0, total_runtime_s=None, walltime_remaining_s=None, allocated_slots=(), allocated_gpus=(),
        used=UsedResources(), comment="",
    )  # fmt: skip


def _simulated(number: int, job: Job) -> SimulatedJob:
    run_s = (job.comp_s or 0.0) - (job.start_s or 0.0)
    return SimulatedJob(
        waiting(job), number, run_s, job.used.cput_s or None, job.used.mem_bytes or None,
        job.exit_status or 0,
    )  # fmt: skip


def site_of_files(
    name: str,
    ended: Ended,
    nodes: tuple[Node, ...],
    limits: tuple[Server, tuple[Queue, ...]] | None = None,
    *,
    max_jobs: int | None = None,
    outages: tuple[Outage, ...] = (),
    problems: Iterable[str] = (),
) -> Site:
    """The site, with a queue without limits for each that jobs name and ``limits`` does not.

    Args:
        name: for the results.
        ended: its jobs.
        nodes: all of them.
        limits: of the server and its queues; None: none are known.
        max_jobs: only the first so many jobs; None: all.
        outages: nodes that fail.
        problems: of the other files.
    """
    jobs = tuple(_simulated(at, job) for at, job in enumerate(ended.jobs[:max_jobs], 1))
    rejected = ended.rejected.copy()
    if len(jobs) < len(ended.jobs):
        rejected[Rejected.NOT_CHOSEN] = len(ended.jobs) - len(jobs)
    server, queues = limits if limits is not None else (Server(name="site"), ())
    known = {queue.name for queue in queues}
    added = [each for each in dict.fromkeys(job.job.queue for job in jobs) if each not in known]
    notes = [f"queue {each}: no limits are known" for each in added] if limits is not None else []
    zero_s = jobs[0].submit_s if jobs else 0.0
    workload = Workload(
        sum(node.slots for node in nodes), tuple(_plain(job, zero_s) for job in jobs), ended.n_records,
        dict(rejected), n_without_limit=sum(job.job.walltime_s is None for job in jobs),
        n_ignored=ended.n_repeated,
    )  # fmt: skip
    return Site(
        name, server, (*queues, *(Queue(name=each) for each in added)), nodes, jobs, workload, zero_s,
        outages, tuple(notes), (*ended.problems, *problems),
    )  # fmt: skip


def _plain(job: SimulatedJob, zero_s: float) -> TraceJob:
    submit_s, length_s = job.submit_s - zero_s, job.length_s
    limit_s = job.job.walltime_s
    return TraceJob(
        job.number, submit_s, job.job.request.n_procs, length_s, length_s if limit_s is None else limit_s,
        -1, -1, -1, -1,
    )  # fmt: skip


# -- nodes, limits, outages


def read_nodes(path: Path, mem_bytes: int | None = None) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """Nodes of the server's nodes file, or of what ``pbsnodes`` printed, and what is wrong with the others.

    Args:
        path: ``server_priv/nodes``, or the output of ``pbsnodes -a`` or ``pbsnodes -x``, of OpenPBS
            ``pbsnodes -av``.
        mem_bytes: memory of each; None: what its mom reported, else unlimited.

    Raises:
        DocumentError: it cannot be read. ConfigError: it names no node.
    """
    text = _text(path)
    nodes, problems = _printed(path, text) if _is_printed(text) else _listed(path, text)
    if not nodes:
        first = f"; {problems[0]}" if problems else ""
        raise ConfigError(f"{path} names no node{first}", cure=_NODE_CURE)
    names = Counter(node.name for node in nodes)
    problems += [
        f"{path.name}: node {name} is named {n} times: the first one is used"
        for name, n in names.items() if n > 1
    ]  # fmt: skip
    once = {node.name: node for node in reversed(nodes)}
    chosen = [once.pop(node.name) for node in nodes if node.name in once]
    return tuple(with_status(node, mem_bytes) for node in chosen), tuple(problems)


def _is_printed(text: str) -> bool:
    return text.lstrip()[:1] == "<" or re.search(r"^\s+(?:state|np) = ", text, re.MULTILINE) is not None


def _printed(path: Path, text: str) -> tuple[list[Node], list[str]]:
    is_openpbs = "\n     resources_available." in text
    parsed = idle_nodes(text, path.name) if is_openpbs else parse_pbsnodes(text, path.name, may_be_cut=True)
    return list(parsed.items), [str(problem) for problem in parsed.problems]


def _listed(path: Path, text: str) -> tuple[list[Node], list[str]]:
    nodes: list[Node] = []
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            nodes.append(_node(words))
        except (ValueError, ModelError) as error:
            problems.append(
                f"{path.name}: line {number} is no node ({error}): {line.strip()[:60]!r}: {_NODE_CURE}"
            )
    return nodes, problems


def _node(words: list[str]) -> Node:
    name = words[0].partition(":")[0]
    if not _NAME.fullmatch(name):
        raise ValueError("no name of a host")
    numbers = {"np": 1, "gpus": 0}
    properties: list[str] = []
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if equals and key in numbers:
            if not (value.isascii() and value.isdigit() and int(value) <= _MOST_SLOTS):
                raise ValueError(f"{key} is no number")
            numbers[key] = int(value)
        elif not equals:
            if not _PROPERTY.fullmatch(word):
                raise ValueError(f"{word[:20]!r} is no property")
            properties.append(word)
    return Node(NodeName(name), numbers["np"], properties=tuple(properties), gpus=numbers["gpus"])


def read_limits(path: Path) -> tuple[tuple[Server, tuple[Queue, ...]], tuple[str, ...]]:
    """Server and queues of what ``qmgr -c 'print server'`` printed, and what is wrong with the rest.

    Raises:
        DocumentError: it cannot be read, or holds no command.
    """
    parsed = parse_qmgr(_text(path), path.name)
    problems = [str(problem) for problem in parsed.problems]
    server, queues = Server(name="site"), []
    for record in parsed.items:
        try:
            if record.kind == "Queue":
                queues.append(replace(queue_from_record(record), run_limits=_run_limits(record)))
            elif record.kind == "Server":
                server = replace(server_from_record(record), name="site", run_limits=_run_limits(record))
        except RecordError as error:
            problems.append(f"{path.name}: {error}")
    return (server, tuple(queues)), tuple(problems)


def _run_limits(record: Record) -> tuple[RunLimit, ...]:
    """Limits that OpenPBS calls ``max_run``; of Torque there are none."""
    return run_limits(f"{record.kind.lower()} {record.name}".rstrip(), record.attributes.items())


def read_outages(path: Path, nodes: Iterable[Node]) -> tuple[tuple[Outage, ...], tuple[str, ...]]:
    """Nodes that fail, a line ``NODE FROM TO`` in seconds since the epoch each, and what is wrong.

    Raises:
        DocumentError: it cannot be read.
    """
    known = {node.name for node in nodes}
    outages: list[Outage] = []
    problems: list[str] = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            name, from_text, to_text = words
            outage = Outage(NodeName(name), float(from_text), float(to_text))
            if outage.node not in known or not 0 <= outage.start_s < outage.end_s < 1e12:
                raise ValueError("no such node, or no such time")
            outages.append(outage)
        except ValueError as error:
            problems.append(
                f"{path.name}: line {number} is no outage ({error}): {line.strip()[:60]!r}: "
                "a line is NODE FROM TO, in seconds since 1970"
            )
    return tuple(_joined(outages)), tuple(problems)


def _joined(outages: list[Outage]) -> Iterator[Outage]:
    """One outage where several of a node meet."""
    last: Outage | None = None
    for each in sorted(outages, key=lambda outage: (outage.node, outage.start_s)):
        if last is not None and each.node == last.node and each.start_s <= last.end_s:
            last = replace(last, end_s=max(last.end_s, each.end_s))
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


def _text(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            return decoded(opened.read(_MOST_FILE_BYTES), path.name)
    except OSError as error:
        raise DocumentError(f"{path}: {error.strerror}", cure="name a file that can be read") from None

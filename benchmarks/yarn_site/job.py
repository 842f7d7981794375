"""A real streaming job on a site, run again and again: what came of it, record by record.

The job is `jobs.factorize`: its mappers find their servers by themselves, through the agents of their nodes.
Equal input gives equal factors, so a disturbed run is compared with an undisturbed one bit by bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.yarn_site.site import Site
from jobs.factorize.job import FactorizeJob, run_factorize
from jobs.factorize.make_input import deal, make_bytes, manifest_of, plan_matrices
from jobs.factorize.rows import Done
from jobs.factorize.verify import LIMIT
from jobs.outcome import Outcome
from jobs.rungs.cluster import ClusterRung
from jobs.rungs.step import Report, Step, StepResult
from yarn_accel.adapters.hdfs import Store
from yarn_accel.errors import AccelError, JobError, StorageError
from yarn_accel.hadoop.site import Site as Hadoop

__all__ = ["Batch", "Compared", "Result", "RunningJob", "SiteRung", "compare"]

_MAX_BYTES = 1 << 28
_JOB_ID = re.compile(r"job_(\d+_\d+)")
_ATTEMPT = re.compile(rb"mapreduce_task_attempt_id=(attempt_\d+_\d+_m_\d+_\d+)")
_NODE = re.compile(rb"(?:^|\0)NM_HOST=([^\0]+)")
_PLACES = ("server", "device", "node", "attempt", "seconds")
#: Requests that a mapper has in flight: enough that some are whenever something happens to a server.
_WINDOW = 4
#: So often is looked for mappers that began while all shall stand still.
_LOOK_S = 0.1


class SiteRung(ClusterRung):
    """Runs steps on a site whose mappers ask the agents of their nodes, wherever these listen.

    Args:
        site: the cluster with the application.
        properties: further ones of every job.
    """

    def __init__(self, site: Site, properties: Mapping[str, str] | None = None) -> None:
        # The launcher's own binding file is of its own pipeline servers, which do not run here.
        hadoop = replace(Hadoop.load(site.environ), binding_file=None)
        super().__init__(hadoop, scratch=site.folder)
        # YARN puts the node's value in the place of {{NM_HOST}}.
        agent = site.agent_socket("{{NM_HOST}}")
        self._properties = {"mapreduce.map.env": f"ACCEL_AGENT={agent}", **(properties or {})}

    def run(self, step: Step, report: Report) -> StepResult:
        """As `ClusterRung.run`."""
        return super().run(replace(step, properties={**self._properties, **step.properties}), report)


@dataclass(frozen=True)
class Result:
    """What a job left.

    Attributes:
        outcome: as the job reports it.
        factors: record -> digest of its factors on the store; every file there is.
    """

    outcome: Outcome[Done]
    factors: Mapping[str, str]

    @property
    def counters(self) -> Mapping[str, int]:
        """The job's own counters."""
        return self.outcome.counters

    @property
    def wall_s(self) -> float:
        """From submission to the end."""
        return self.outcome.wall_s

    @property
    def n_by_server(self) -> Mapping[str, int]:
        """Records by the server that did them: the id of its container."""
        return Counter(row.server for row in self.outcome.results)

    @property
    def way(self) -> str:
        """Where the records were done, and what became of requests on their way, for people."""
        servers = self.n_by_server
        done = ", ".join(f"{n} by {server}" for server, n in sorted(servers.items()))
        names = ("resubmitted", "lost_servers", "moved", "cpu_fallback")
        return ", ".join(
            [done, *(f"{name} {self.counters[name]}" for name in names if name in self.counters)]
        )

    @property
    def n_attempts(self) -> int:
        """Attempts of map tasks."""
        return sum(task.kind == "map" for task in self.outcome.tasks)


@dataclass(frozen=True)
class Compared:
    """A disturbed run against an undisturbed one; all keys of records.

    Attributes:
        n_records: of the undisturbed run.
        lost: in its output but not in the disturbed one's, or without factors on the store.
        doubled: more than once in the disturbed one's output.
        changed: with other contents; the factors of records computed by a mapper itself are judged by their
            residuals alone.
        strange: in the disturbed run's output only, rejected, or files that no record has written.
    """

    n_records: int
    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    changed: tuple[str, ...]
    strange: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """Nothing lost, nothing doubled, nothing else."""
        return not (self.lost or self.doubled or self.changed or self.strange)

    def words(self) -> str:
        """The counts, and the first key of each kind."""
        kinds = {"lost": self.lost, "doubled": self.doubled, "changed": self.changed, "strange": self.strange}
        told = [f"{len(keys)} {kind} ({keys[0]})" for kind, keys in kinds.items() if keys]
        return ", ".join(told) or f"all {self.n_records} as undisturbed"


def compare(undisturbed: Result, disturbed: Result) -> Compared:
    """Hold a run against an undisturbed one, record by record. Pure."""
    wanted = {row.key: row for row in undisturbed.outcome.results}
    counted = Counter(row.key for row in disturbed.outcome.results)
    factors = disturbed.factors
    lost = wanted.keys() - (counted.keys() & factors.keys())
    strange = (counted.keys() | factors.keys()) - wanted.keys()
    strange |= {reject.key for reject in disturbed.outcome.rejects}
    changed = {
        row.key
        for row in disturbed.outcome.results
        if row.key in wanted
        and row.key in factors
        and not _is_same(wanted[row.key], row, undisturbed, factors)
    }
    doubled = (key for key, n in counted.items() if n > 1)
    return Compared(len(wanted), *(tuple(sorted(some)) for some in (lost, doubled, changed, strange)))


def _is_same(first: Done, row: Done, undisturbed: Result, factors: Mapping[str, str]) -> bool:
    blank = {"residual": 0.0, **dict.fromkeys(_PLACES, "")}
    if replace(first, **blank) != replace(row, **blank) or not row.residual < LIMIT:  # type: ignore[arg-type]
        return False
    return row.device != first.device or factors[row.key] == undisturbed.factors[row.key]


class Batch:
    """Matrices in HDFS; each `begin` factorizes all of them into a folder of its own.

    Args:
        site: where.
        n_records: how many matrices.
        n_tasks: map tasks they are dealt to.
        sides: smallest and largest side of a matrix.
        properties: of every job.
    """

    def __init__(
        self,
        site: Site,
        n_records: int = 160,
        n_tasks: int = 4,
        sides: tuple[int, int] = (32, 160),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.n_records = n_records
        self.n_tasks = n_tasks
        self.rung = SiteRung(site, properties)
        self.store = Store(self.rung.site.conf_dir)
        self._matrices = deal(plan_matrices(n_records, *sides), n_tasks)
        self._n_begun = 0
        for matrix in self._matrices:
            self.store.write_atomic(f"{self._inputs}/{matrix.key}.bin", [make_bytes(matrix)])

    @property
    def _inputs(self) -> str:
        return self.rung.home("input")

    def begin(self, name: str = "job") -> RunningJob:
        """Submit a job over all records and return at once."""
        self._n_begun += 1
        name = f"{name}-{self._n_begun}"
        folder = self.rung.home(f"factors-{name}")
        manifest = manifest_of(self._matrices, self._inputs, folder)
        job = FactorizeJob(n_tasks=self.n_tasks, window=_WINDOW)
        store = Store(self.rung.site.conf_dir)
        return RunningJob(
            self, folder, lambda report: run_factorize(self.rung, store, manifest, job, report, name)
        )

    def run(self, name: str = "job") -> Result:
        """Run one job to its end.

        Raises:
            JobError: it failed.
        """
        return self.begin(name).result()


class RunningJob:
    """A job on its way.

    Args:
        batch: its records.
        folder: URI of the folder that its factors go to.
        run: runs it to its end.
    """

    def __init__(self, batch: Batch, folder: str, run: Callable[[Report], Outcome[Done]]) -> None:
        self.n_records, self.n_tasks = batch.n_records, batch.n_tasks
        self.id = ""
        self._folder = folder
        self._store = batch.store
        self._run = run
        self._outcome: Outcome[Done] | None = None
        self._error: AccelError | None = None
        self._held: dict[int, str] = {}
        self._holding = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="job", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._outcome = self._run(self._note)
        except AccelError as error:
            self._error = error

    def _note(self, line: str) -> None:
        found = _JOB_ID.search(line)
        if found and not self.id:
            self.id = found[1]

    def wait(self) -> None:
        """Wait for its end, well or not."""
        self._thread.join()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    def n_done(self) -> int:
        """How many records have their factors on the store."""
        return len(self._files())

    def _files(self) -> list[str]:
        try:
            return [uri for uri in self._store.list(self._folder) if uri.endswith(".npz")]
        except StorageError:
            return []  # the folder is made with the first file

    def is_under_way(self, n_records: int) -> bool:
        """Whether it was accepted and so many records are done.

        Raises:
            JobError: the job has ended already, so nothing can happen to it any more.
        """
        if self.is_over:
            self.result()
            raise JobError("the job ended before it could be disturbed", cure="give it more records")
        return bool(self.id) and self.n_done() >= n_records

    def mappers(self) -> dict[str, int]:
        """The mappers that run now: attempt -> pid of the Python process."""
        return {attempt: pid for attempt, (pid, _) in self._mappers().items()}

    def _mappers(self) -> dict[str, tuple[int, str]]:
        """As `mappers`, with the node of each."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environ = (path / "environ").read_bytes()
                words = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            attempt, node = _ATTEMPT.search(environ), _NODE.search(environ)
            is_python = b"python" in words[0] and b"factorize-map" in words
            if attempt and is_python and self.id and f"attempt_{self.id}_".encode() in attempt[1]:
                found[attempt[1].decode()] = int(path.name), node[1].decode() if node else ""
        return found

    def hold(self) -> set[str]:
        """Have the mappers that run now stand still until `go_on`; the nodes of all that do."""
        with self._holding:
            for pid, node in self._mappers().values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    self._held[pid] = node
            return set(self._held.values())

    def go_on(self) -> None:
        """Undo `hold`."""
        with self._holding:
            while self._held:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._held.popitem()[0], signal.SIGCONT)

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """All mappers stand still until the end of the block, those that begin meanwhile from their start on.

        Mappers begin one after the other, on a busy machine over many seconds.
        """
        is_over = threading.Event()

        def keep() -> None:
            while not is_over.wait(_LOOK_S):
                self.hold()

        self.hold()
        keeper = threading.Thread(target=keep, name="hold", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            is_over.set()
            keeper.join()
            self.go_on()

    @property
    def n_in_flight(self) -> int:
        """How many requests its mappers can have in flight, all together."""
        return self.n_tasks * _WINDOW

    def kill_mapper(self, signum: int) -> str:
        """Send a signal to the mapper with the smallest attempt id; which.

        Raises:
            JobError: none runs.
        """
        mappers = self.mappers()
        if not mappers:
            raise JobError(f"no mapper of job {self.id or '(not submitted)'} runs")
        attempt = min(mappers)
        os.kill(mappers[attempt], signum)
        return attempt

    def result(self) -> Result:
        """Wait for the end.

        Raises:
            JobError: it failed, or could not do a record.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        for reject in self._outcome.rejects[:1]:
            raise JobError(f"record {reject.key} ({reject.code}): {reject.message}")
        factors = {uri.rsplit("/", 1)[1].removesuffix(".npz"): self._digest(uri) for uri in self._files()}
        return Result(self._outcome, factors)

    def _digest(self, uri: str) -> str:
        found = hashlib.sha256()
        with np.load(io.BytesIO(self._store.read_bytes(uri, _MAX_BYTES)), allow_pickle=False) as arrays:
            for name in sorted(arrays.files):
                array = arrays[name]
                found.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
        return found.hexdigest()

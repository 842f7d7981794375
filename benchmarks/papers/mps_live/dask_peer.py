"""Dask beside the task service: the same DAGs, as many workers of the same size, the same machine and HDFS.

A task is a function in a warm process; where it has files, it reads and writes them in HDFS by itself. A
class is a priority, the only measure that Dask has.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.papers.mps_live.runs import (
    DagRun,
    OverheadKey,
    OverheadRun,
    RunKey,
    TaskSpan,
    gaps_s,
    own_makespans,
    read_notes,
    run_of_spans,
    tasks_per_s,
)
from benchmarks.papers.mps_live.setting import (
    N_MACHINES,
    WORKER_MIB,
    Costs,
    EmulatedDag,
    OverheadPlan,
    chain_dag,
    single_dag,
    together_dag,
)
from benchmarks.papers.mps_live.steps import file_name, note_step
from yarn_accel.core.dags.model import PriorityClass
from yarn_accel.storage import Store

_PRIORITIES = {PriorityClass.PREEMPTIVE: 20, PriorityClass.HIGH: 10, PriorityClass.BASIC: 0}
_LIMIT_S = 300.0


def is_installed() -> bool:
    """Whether there is a Dask to compare with."""
    return importlib.util.find_spec("distributed") is not None


@functools.cache
def _store(conf_dir: str) -> Store:
    return Store(Path(conf_dir))


def dask_step(
    place: Mapping[str, str],
    dag: str,
    task: str,
    wait_s: float,
    file_bytes: int,
    after: Sequence[str],
    *parents: None,
) -> None:
    """What a worker does: reads the parents' files, waits, writes its own; without files it waits.

    Args:
        place: ``notes``, ``folder`` in HDFS, ``conf_dir``.
        parents: by which Dask knows what comes first.
    """
    folder = f"{place['folder']}/{dag}"
    for parent in after if file_bytes else ():
        found = len(_store(place["conf_dir"]).read_bytes(f"{folder}/{file_name(parent)}", file_bytes))
        if found != file_bytes:
            raise ValueError(f"{dag}/{task}: read {found} bytes of {parent}, not {file_bytes}")
    started_s = time.monotonic()
    time.sleep(wait_s)
    note_step(place["notes"], dag, task, started_s)
    if file_bytes:
        _store(place["conf_dir"]).write_atomic(f"{folder}/{file_name(task)}", [bytes(file_bytes)])


@contextmanager
def dask_up(folder: Path, conf_dir: Path) -> Iterator[DaskPeer]:
    """Dask's scheduler and workers for as long as the block lasts.

    Args:
        folder: for its spilled data and the notes of tasks, which go into a new folder in it.
        conf_dir: of the Hadoop whose HDFS the tasks use.
    """
    dask: Any = importlib.import_module("dask")
    distributed: Any = importlib.import_module("distributed")
    with (
        dask.config.set({"temporary-directory": str(folder)}),
        distributed.LocalCluster(
            n_workers=N_MACHINES,
            threads_per_worker=1,
            processes=True,
            memory_limit=f"{WORKER_MIB}MiB",
            dashboard_address=None,
            silence_logs=logging.ERROR,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(N_MACHINES)
        own = Path(tempfile.mkdtemp(prefix="dask-", dir=folder))
        yield DaskPeer(distributed, client, own, conf_dir)


class DaskPeer:
    """Dask's workers, which wait.

    Args:
        folder: which no other one has, as notes are added to what is there.
    """

    def __init__(self, distributed: Any, client: Any, folder: Path, conf_dir: Path) -> None:
        self._distributed = distributed
        self._client = client
        self._folder = folder
        self._conf_dir = conf_dir
        self._store = Store(conf_dir)
        self._n_runs = 0

    def run(self, key: RunKey, dags: Sequence[EmulatedDag], costs: Costs) -> DagRun:
        """Run DAGs, each submitted when it is to arrive.

        Raises:
            ValueError: a task is missing, or ran twice.
        """
        load_average = os.getloadavg()[0]
        spans, times = self._run(dags)
        return run_of_spans(key, dags, spans, times, own_makespans(dags, costs), load_average)

    def measure(self, key: OverheadKey, plan: OverheadPlan) -> OverheadRun:
        """Measure what a task costs beside its work."""
        load_average = os.getloadavg()[0]
        self._run([single_dag(plan)])  # modules are imported, connections open
        first_s = []
        for _ in range(plan.n_first):
            [span], times = self._run([single_dag(plan)])
            first_s.append(span.start_s - times["single"][0])
        chain, _ = self._run([chain_dag(plan)])
        together, _ = self._run([together_dag(plan)])
        return OverheadRun(key, first_s, gaps_s(chain), tasks_per_s(together), plan.n_together, load_average)

    def _run(self, dags: Sequence[EmulatedDag]) -> tuple[list[TaskSpan], dict[str, tuple[float, float]]]:
        self._n_runs += 1
        notes = self._folder / f"{self._n_runs}.notes"
        place = {
            "notes": str(notes),
            "folder": f"hdfs:///live/{self._folder.name}-{self._n_runs}",
            "conf_dir": str(self._conf_dir),
        }
        begun_s = time.monotonic()
        arrivals_s, ends = {}, {}
        futures: list[Any] = []
        pool = ThreadPoolExecutor(len(dags))
        try:
            for dag in sorted(dags, key=lambda each: each.arrival_s):
                time.sleep(max(0.0, begun_s + dag.arrival_s - time.monotonic()))
                arrivals_s[dag.name] = time.monotonic()
                of_dag = self._submit(dag, place)
                ends[dag.name] = pool.submit(self._wait, of_dag)
                futures += of_dag
            times = {name: (arrivals_s[name], end.result()) for name, end in ends.items()}
        finally:  # whoever interrupts this does not wait for DAGs
            pool.shutdown(wait=False, cancel_futures=True)
        self._client.gather(futures)  # raises what a task raised
        if any(dag.file_bytes for dag in dags):
            self._store.delete(place["folder"])
        return read_notes(notes.read_text(encoding="utf-8")), times

    def _submit(self, dag: EmulatedDag, place: Mapping[str, str]) -> list[Any]:
        futures: dict[str, Any] = {}
        for task in dag.tasks:
            futures[task.task] = self._client.submit(
                dask_step,
                place,
                dag.name,
                task.task,
                task.wait_s,
                dag.file_bytes,
                task.after,
                *(futures[parent] for parent in task.after),
                key=f"{self._n_runs}-{dag.name}-{task.task}",
                priority=_PRIORITIES[dag.priority_class],
                pure=False,
            )
        return list(futures.values())

    def _wait(self, futures: Sequence[Any]) -> float:
        with self._client.as_current():
            self._distributed.wait(futures, timeout=_LIMIT_S)
        return time.monotonic()

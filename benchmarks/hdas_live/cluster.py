"""Runs mixes on a real cluster: storage nodes, compute nodes with limited links, and the task service."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from benchmarks.hdas_live.late import N_MAPPERS, LateKey, LateRun, late_apps, late_run
from benchmarks.hdas_live.late_jobs import agent_settings, late_output, run_jobs, write_inputs
from benchmarks.hdas_live.runs import LinkSample, LiveRun, LiveTask, RunKey, live_run
from benchmarks.hdas_live.setting import (
    APP_INTERVAL_S,
    CORES,
    GPUS,
    LINK,
    N_COMPUTE,
    N_STORAGE,
    Overheads,
    ScaledApp,
    app_document,
)
from tests.fixtures.yarn_site import Site, SiteOptions, site_up
from yarn_accel.adapters.hadoop_rpc.clients import ResourceManager
from yarn_accel.core.tasks.outcome import RunOutcome
from yarn_accel.core.tasks.service.submission import app_document as submitted_document
from yarn_accel.errors import JobError
from yarn_accel.hadoop.control import Control, RetainedApplication
from yarn_accel.launch.outcomes import ask_outcomes, live_outcome
from yarn_accel.storage import Store
from yarn_accel.tasks import load_app, plan_app

Say = Callable[[str], None]
_NAME = "hdas-live"
_POLL_S = 0.5
_FAST_LINK = "10gbit"
_SAMPLE_S = 0.5
_MAX_PART_BYTES = 65536
_LINE = b"." * 99 + b"\n"
_LIMIT_S = 900.0
_MIB = 1024 * 1024
#: Alone, to measure what a task costs beside its own time, and what a link gives.
_SHORT = ScaledApp("short", 12, 1000, (0.1, 0.4), (0.1, 0.4))
_READING = ScaledApp("reading", 3, 24_000_000, (0.1, 0.01), (0.1, 0.01))


class _Observed(NamedTuple):
    """What the service, the tasks themselves and the kernel say of a run."""

    outcome: RunOutcome
    tasks: list[LiveTask]
    links: list[LinkSample]


@contextmanager
def cluster_up(folder: Path, say: Say, mode: str = "") -> Iterator[LiveCluster]:
    """A cluster of storage and compute nodes for as long as the block lasts, in this mode."""
    options = SiteOptions(
        _NAME,
        workers=N_STORAGE + N_COMPUTE,
        storage_nodes=N_STORAGE,
        accelerators=0,
        link=LINK,
        mode=mode,
        sections={"environment": {"cache_dir": str(folder / "environments")}},
    )
    with site_up(options, folder, say) as site:
        found = LiveCluster(site, options, folder, say)
        found.unpack_environment()
        yield found


class LiveCluster:
    """A cluster on which mixes can be run, one after the other."""

    def __init__(self, site: Site, options: SiteOptions, folder: Path, say: Say) -> None:
        self.site = site
        self._options = options
        self._folder = folder
        self._say = say
        self._store = Store(site.cluster.conf_dir)
        self._inputs: set[str] = set()
        self._n_runs = 0
        self._has_service = False
        #: Policy and bytes per second of the service that runs, if mixes may run on it.
        self._serving: tuple[str, float] | None = None
        self._n_mappers = N_MAPPERS
        self._learned: set[int] = set()

    # ---- the service

    def unpack_environment(self) -> None:
        """Start a service once over links of full speed: the first one unpacks the environment."""
        cluster = self.site.cluster
        for name in self.site.others:
            cluster.slow(name, _FAST_LINK)
        self.start("fifo", 1e9)
        for name in self.site.others:
            cluster.slow(name, "")

    def start(self, policy: str, bandwidth_bytes_per_s: float, *, is_alone: bool = False) -> None:
        """Have a new service of this policy, its workers waiting.

        Args:
            is_alone: one worker that runs one task at a time.
        """
        self.stop()
        cores, gpus, n_workers = (1, 0, 1) if is_alone else (CORES, GPUS, N_COMPUTE)
        worker = {
            "enabled": True,
            "memory_mib": 768,
            "vcores": cores,
            # Emulated: no NodeManager of this cluster knows yarn.io/gpu.
            "settings": {"gpus": [str(n) for n in range(gpus)], "io": "link", "network_interfaces": ["eth0"]},
        }
        tasks = {
            "gpus": gpus,
            "policy": policy,
            "policy_settings": {"learns": False},
            "min_workers": n_workers,
            "max_workers": n_workers,
            "figures_uri": f"hdfs:///live/figures-{self._n_runs}.json",
            "bandwidth_bytes_per_s": bandwidth_bytes_per_s,
        }
        sections = {**self._options.sections, "worker": worker, "tasks": tasks}
        self.site.write_settings(replace(self._options, sections=sections))
        began_s = time.monotonic()
        self.site.run("tasks", "start", "--config", str(self.site.settings))
        self._has_service = True
        self.site.until("all workers wait", lambda: self._n_workers() == n_workers, _POLL_S)
        self._say(f"{policy}: {n_workers} workers wait after {time.monotonic() - began_s:.1f} s")

    def stop(self) -> None:
        """End the service, if there is one."""
        if self._has_service:
            self._has_service, self._serving = False, None
            self.site.stop()

    def _n_workers(self) -> int:
        workers = self.site.control("tasks-status", patience_s=60.0)["workers"]
        return sum(not worker["is_expected"] for worker in workers.values())

    # ---- runs

    def measure_overheads(self) -> Overheads:
        """What one task costs alone, and what one reader gets of a link."""
        self.start("fifo", 1e9, is_alone=True)
        short = sorted(self._run([_SHORT]).outcome.tasks, key=lambda task: task.start_s)
        base_s = sum(_SHORT.cpu)
        task_s = statistics.median(b.start_s - a.start_s for a, b in itertools.pairwise(short)) - base_s
        attempt_s = statistics.median(task.end_s - task.start_s for task in short) - base_s
        reading = self._run([_READING]).tasks
        rate = statistics.median(
            _READING.split_bytes / (task.has_read_s - task.started_s) for task in reading
        )
        return Overheads(task_s, attempt_s, rate)

    def prepare_late_binding(self, link_bytes_per_s: float, n_mappers: int = N_MAPPERS) -> None:
        """Have an application whose agents answer mappers, and no task service.

        Args:
            n_mappers: of each job.
        """
        self.stop()
        self._n_mappers = n_mappers
        sockets = [Path(self.site.agent_socket(host)).with_name("claims.sock") for host in self.site.others]
        for socket in sockets:
            socket.unlink(missing_ok=True)
        self.site.write_settings(replace(self._options, agent=agent_settings(link_bytes_per_s)))
        self.site.run("start", "--config", str(self.site.settings))
        self._has_service = True
        self.site.until("all agents answer claims", lambda: all(map(Path.exists, sockets)), _POLL_S)
        write_inputs(self._store, late_apps(), n_mappers)

    def run_late(self, key: LateKey) -> LateRun:
        """Run both streaming jobs once.

        Raises:
            JobError: one failed.
            ValueError: a mapper is missing.
        """
        if key.mode == "learned" and key.repeat not in self._learned:
            self.run_late(LateKey("agent", key.repeat))  # of another cluster, so these agents know nothing
            self._store.delete(late_output(LateKey("agent", key.repeat)))
        if key.mode == "agent":
            self._learned.add(key.repeat)
        load_average = os.getloadavg()[0]
        mappers = run_jobs(self.site, self._store, key, late_apps(), self._folder)
        return late_run(key, late_apps(), mappers, load_average, self._n_mappers)

    def run(self, key: RunKey, apps: Sequence[ScaledApp], overheads: Overheads) -> LiveRun:
        """Run a mix under a policy, on the service of the run before it where that has the same one.

        Raises:
            JobError: an application failed.
            ValueError: a task is missing or doubled.
        """
        serving = key.policy, overheads.link_bytes_per_s
        if self._serving != serving:
            self.start(*serving)
            self._serving = serving
        load_average = os.getloadavg()[0]
        found = self._run(apps)
        return live_run(key, apps, found.outcome, overheads.attempt_s, found.tasks, found.links, load_average)

    def _run(self, apps: Sequence[ScaledApp]) -> _Observed:
        self._n_runs += 1
        folder = f"hdfs:///live/run-{self._n_runs}"
        # A service remembers the applications that have ended, so those of each run have names of their own.
        ids = {app.name: f"{app.name}-{self._n_runs}" for app in apps}
        documents = {ids[app.name]: self._document(app, ids[app.name], folder) for app in apps}
        with self._sampled_links() as links:
            first_s, answers = self._submit_and_wait(documents)
        outcome = live_outcome({name: answers[app] for name, app in ids.items()})
        tasks = [task for app in apps for task in self._tasks(f"{folder}/{app.name}", app.name, first_s)]
        self._store.delete(folder)
        return _Observed(outcome, tasks, [LinkSample(at_s - first_s, n_bytes) for at_s, n_bytes in links])

    def _document(self, app: ScaledApp, name: str, folder: str) -> dict[str, Any]:
        """The application as the service takes it."""
        path = self._folder / "app.yaml"
        path.write_text(yaml.safe_dump(app_document(app, self._input(app), f"{folder}/{app.name}")))
        definition = plan_app(load_app(path), self._store, name)
        if len(definition.tasks) != app.n_tasks:
            raise JobError(f"{app.name} has {len(definition.tasks)} tasks, {app.n_tasks} are expected")
        return submitted_document(definition)

    def _input(self, app: ScaledApp) -> str:
        """A folder in HDFS with a file for each task."""
        uri = f"hdfs:///live/input/{app.name}-{app.n_tasks}"
        if uri not in self._inputs:
            self._say(f"{app.name}: {app.n_tasks} files of {app.split_bytes / 1e6:.2f} MB")
            n_lines, rest = divmod(app.split_bytes, len(_LINE))
            text = _LINE * n_lines + (b"." * (rest - 1) + b"\n" if rest else b"")
            for number in range(app.n_tasks):
                self._store.write_atomic(f"{uri}/{number:05}", [text])
            self._inputs.add(uri)
        return uri

    def _submit_and_wait(
        self, documents: Mapping[str, dict[str, Any]]
    ) -> tuple[float, dict[str, dict[str, Any]]]:
        """When the first was submitted, by the clock of this machine, and what the master knows of all."""
        site = self.site
        application = site.application
        secret = RetainedApplication.of(str(application), site.environ).secret()

        async def work(manager: ResourceManager) -> tuple[float, dict[str, dict[str, Any]]]:
            async with Control(site.rm_client, manager, application, secret, 30.0) as control:
                first_s = await _submit(control, self._store, documents)
                await _wait(control, documents)
                return first_s, await ask_outcomes(control, list(documents))

        return site.ask(work)

    def _tasks(self, folder: str, app: str, first_s: float) -> Iterator[LiveTask]:
        for uri in self._store.list(folder):
            if uri.rpartition("/")[2].startswith("part-"):
                row = json.loads(self._store.read_bytes(uri, _MAX_PART_BYTES))
                times = (row[name] - first_s for name in ("started_s", "has_read_s", "ended_s"))
                yield LiveTask(app, row["task"], row["node"], row["form"], *times)

    @contextmanager
    def _sampled_links(self) -> Iterator[list[LinkSample]]:
        """What the kernel counts on the hosts' ends of the compute nodes' links, over time."""
        plan = self.site.cluster.plan
        names = [node.interface for node in plan.workers if node not in plan.data_nodes]
        paths = [Path("/sys/class/net") / name / "statistics/tx_bytes" for name in names]
        samples: list[LinkSample] = []
        is_over = threading.Event()

        def sample() -> None:
            while True:
                n_bytes = sum(int(path.read_text()) for path in paths)
                samples.append(LinkSample(time.monotonic(), n_bytes))
                if is_over.wait(_SAMPLE_S):
                    return

        thread = threading.Thread(target=sample, name="links")
        thread.start()
        try:
            yield samples
        finally:
            is_over.set()
            thread.join()


async def _submit(control: Control, store: Store, documents: Mapping[str, dict[str, Any]]) -> float:
    """Submit one application after the other; when the first was."""
    folder = (await control.ask("tasks-status"))["submit_to"]
    first_s = 0.0
    for number, (app, document) in enumerate(documents.items()):
        uri = f"{folder}/{app}.json"
        store.write_atomic(uri, [json.dumps(document).encode()])
        first_s = first_s or time.monotonic()
        await asyncio.sleep(max(0.0, first_s + number * APP_INTERVAL_S - time.monotonic()))
        await control.ask("tasks-submit", {"uri": uri})
    return first_s


async def _wait(control: Control, documents: Mapping[str, dict[str, Any]]) -> None:
    """Wait for the end of all.

    Raises:
        JobError: one failed.
    """
    until_s = time.monotonic() + _LIMIT_S
    while (answer := await control.ask("tasks-status"))["apps"].keys() & documents.keys():
        if time.monotonic() > until_s:
            raise JobError(f"{', '.join(documents)}: not done after {_LIMIT_S:.0f} s: {answer['apps']}")
        await asyncio.sleep(_POLL_S)
    for app in documents:
        ended = answer["ended"].get(app, {"state": "forgotten", "error": ""})
        if ended["state"] != "done":
            raise JobError(f"{app}: {ended['state']}: {ended['error']}")

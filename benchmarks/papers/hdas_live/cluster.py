"""Runs mixes on a real cluster: storage nodes, compute nodes with limited links, and the task service.

Late binding needs no service there, but an application whose agents answer the mappers of streaming jobs.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from benchmarks.papers.hdas_live.runs import (
    N_MAPPERS,
    LateApp,
    LateKey,
    LateRun,
    LinkSample,
    LiveRun,
    LiveTask,
    RunKey,
    late_apps,
    late_run,
    live_run,
)
from benchmarks.papers.hdas_live.setting import (
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
from benchmarks.papers.live import FOLDER, Say, Submission, run_applications, start_tasks
from tests.fixtures.hadoop_conf import conf_without
from tests.fixtures.yarn_site import ROOT, Site, SiteOptions, site_up
from yarn_accel.core.tasks.outcome import RunOutcome
from yarn_accel.core.tasks.service.submission import app_document as submitted_document
from yarn_accel.errors import JobError
from yarn_accel.launch.outcomes import live_outcome
from yarn_accel.storage import Store
from yarn_accel.tasks import load_app, plan_app

_NAME = "hdas-live"
_POLL_S = 0.5
_FAST_LINK = "10gbit"
_SAMPLE_S = 0.5
_MAX_PART_BYTES = 65536
_LINE = b"." * 99 + b"\n"
_LIMIT_S = 900.0
#: Without late binding three fit into a node, one for each core; with it some more, which wait.
_CONTAINER_MIB = {"first": 1024, "agent": 640}
_MAPPER = Path("tests/fixtures/late_binding/timed_mapper.py")
_LATE_JOB_S = 300.0
#: Longer than the queue of a node; for half of it a node waits for what is measured first.
_MAX_WAIT_S = 40.0
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
            "figures_uri": f"{FOLDER}/figures-{self._n_runs}.json",
            "bandwidth_bytes_per_s": bandwidth_bytes_per_s,
        }
        sections = {**self._options.sections, "worker": worker, "tasks": tasks}
        self.site.write_settings(replace(self._options, sections=sections))
        self._has_service = True
        start_tasks(self.site, n_workers, policy, self._say)

    def stop(self) -> None:
        """End the service, if there is one."""
        if self._has_service:
            self._has_service, self._serving = False, None
            self.site.stop()

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
        folder = f"{FOLDER}/run-{self._n_runs}"
        submissions = {
            app.name: self._submission(app, f"{app.name}-{self._n_runs}", folder, number * APP_INTERVAL_S)
            for number, app in enumerate(apps)
        }
        with self._sampled_links() as links:
            done = run_applications(self.site, self._store, submissions, _LIMIT_S, _POLL_S)
        first_s, outcome = min(done.submitted_s.values()), live_outcome(done.answers)
        tasks = [task for app in apps for task in self._tasks(f"{folder}/{app.name}", app.name, first_s)]
        self._store.delete(folder)
        return _Observed(outcome, tasks, [LinkSample(at_s - first_s, n_bytes) for at_s, n_bytes in links])

    def _submission(self, app: ScaledApp, name: str, folder: str, arrival_s: float) -> Submission:
        path = self._folder / "app.yaml"
        path.write_text(yaml.safe_dump(app_document(app, self._input(app), f"{folder}/{app.name}")))
        definition = plan_app(load_app(path), self._store, name)
        if len(definition.tasks) != app.n_tasks:
            raise JobError(f"{app.name} has {len(definition.tasks)} tasks, {app.n_tasks} are expected")
        return Submission(name, submitted_document(definition), arrival_s)

    def _input(self, app: ScaledApp) -> str:
        """A folder in HDFS with a file for each task."""
        uri = f"{FOLDER}/input/{app.name}-{app.n_tasks}"
        if uri not in self._inputs:
            self._say(f"{app.name}: {app.n_tasks} files of {app.split_bytes / 1e6:.2f} MB")
            n_lines, rest = divmod(app.split_bytes, len(_LINE))
            text = _LINE * n_lines + (b"." * (rest - 1) + b"\n" if rest else b"")
            for number in range(app.n_tasks):
                self._store.write_atomic(f"{uri}/{number:05}", [text])
            self._inputs.add(uri)
        return uri

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


# ---- the streaming jobs of late binding


def agent_settings(link_bytes_per_s: float) -> dict[str, Any]:
    """How an agent decides: with the cores, the emulated GPUs and the link of its node."""
    return {
        "network_interfaces": ["eth0"],
        "late_binding": {
            "policy": "hdas+",
            "cores": CORES,
            "gpus": GPUS,
            "bandwidth_mb_s": link_bytes_per_s / 1e6,
            "io": "link",
            "max_wait_s": _MAX_WAIT_S,
        },
    }


def write_inputs(store: Store, apps: Iterable[LateApp], n_mappers: int) -> None:
    """Write what the mappers read, a file for each."""
    line = b"." * 8191 + b"\n"
    for app in apps:
        text = line * (app.split_bytes // len(line))
        for number in range(n_mappers):
            store.write_atomic(f"{_input(app)}/{number:03}", [text])


def _input(app: LateApp) -> str:
    return f"{FOLDER}/late-input/{app.name}"


def late_output(key: LateKey) -> str:
    """The folder of the outputs of a run."""
    return f"{FOLDER}/late-{key.mode}-{key.repeat}"


def run_jobs(
    site: Site, store: Store, key: LateKey, apps: Sequence[LateApp], folder: Path
) -> list[Mapping[str, Any]]:
    """Submit both jobs at once and wait; the lines of their mappers.

    Raises:
        JobError: one failed.
    """
    outputs = {app.name: f"{late_output(key)}/{app.name}" for app in apps}
    # The launcher's own binding file is of pipeline servers, which do not run here.
    conf_dir = conf_without(site.cluster.conf_dir, folder / f"conf-{key.mode}-{key.repeat}", "binding_file")
    environ = {**site.environ, "HADOOP_CONF_DIR": str(conf_dir), "TMPDIR": str(folder)}
    started = {
        app.name: subprocess.Popen(
            [sys.executable, "-m", "yarn_accel", *_job(site, key, app, outputs[app.name], folder)],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for app in apps
    }
    try:
        for name, process in started.items():
            _, errors = process.communicate(timeout=_LATE_JOB_S)
            if process.returncode:
                raise JobError(f"{key}: {name} ended with {process.returncode}: {errors[-2000:]}")
    finally:
        for process in started.values():
            process.kill()
    parts = [part for uri in outputs.values() for part in store.list(uri) if "/part-" in part]
    texts = [store.read_bytes(part, _MAX_PART_BYTES).decode() for part in parts]
    lines = [json.loads(line) for text in texts for line in text.splitlines() if line.strip()]
    names = {key.job_name(app.name): app.name for app in apps}
    return [{**line, "job": names[line["job"]]} for line in lines]


def _job(site: Site, key: LateKey, app: LateApp, output: str, folder: Path) -> list[str]:
    # YARN puts the node's name in the place of {{NM_HOST}}.
    environment = f"ACCEL_AGENT={site.agent_socket('{{NM_HOST}}')},PYTHONPATH={ROOT}"
    properties = {
        "mapreduce.job.name": key.job_name(app.name),
        "mapreduce.job.reduces": "0",
        "mapreduce.map.speculative": "false",
        "mapreduce.map.resource.acct/slot": "0",
        "mapreduce.map.memory.mb": str(_CONTAINER_MIB[key.choose]),
        "mapreduce.map.env": environment,
        "mapreduce.input.fileinputformat.split.minsize": str(1 << 50),
    }
    choose = f"--choose {key.choose} --gpus {GPUS} --cpu-s {app.cpu_s:.3f} --gpu-s {app.gpu_s:.3f}"
    return [
        "streaming",
        "--result",
        str(folder / f"{app.name}-{key.mode}-{key.repeat}.json"),
        *(word for name, value in properties.items() for word in ("-D", f"{name}={value}")),
        "-input",
        _input(app),
        "-output",
        output,
        "-mapper",
        f"{sys.executable} {ROOT / _MAPPER} {choose}",
    ]

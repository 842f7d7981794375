"""Runs cells on a real cluster: the application as each needs it, and a real streaming job for every one.

The emulated operations are an installed distribution, the way a site brings operations of its own:
`yarn-accel start` packs it because ``environment.packages`` names it, and the servers find its operations by
their entry point. It lies in a folder of this run, which the admin's commands have on their path. Jobs are
run by the top runner of `jobs`, with this benchmark's zipapp and properties.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.papers.yarn_paper import cells
from benchmarks.papers.yarn_paper.cells import CLUSTERS, EMULATED, N_TASKS, REAL, Cell, Key, Stop, cell_of
from benchmarks.papers.yarn_paper.shipped import emulation, entry
from benchmarks.papers.yarn_paper.shipped.emulation import LOCK_FOLDER_VARIABLE, PREFIX
from benchmarks.papers.yarn_paper.shipped.entry import parse_row
from jobs.images.job import ImagesJob, run_images
from jobs.images.make_input import PHOTOGRAPHS, PatchPlan, store_files
from jobs.runners.hadoop import HadoopRunner
from jobs.runners.step import Report, Step, StepResult
from jobs.zipapp import build_zipapp
from tests.fixtures.hadoop_conf import conf_without
from tests.fixtures.yarn_site import ROOT, Site, SiteOptions, site_up
from yarn_accel.hadoop.site import SLOT_RESOURCE, SiteSettings
from yarn_accel.storage import Store

NAME = "accel-emulation"
_MODULE = "accel_emulation"
_VERSION = "1.0"


def write_distribution(folder: Path) -> Path:
    """Write it, unless it is there, into a folder that belongs on the path of Python; returns the folder.

    A file written again would be packed and uploaded again.
    """
    metadata = folder / f"{_MODULE}-{_VERSION}.dist-info"
    if metadata.is_dir():
        return folder
    metadata.mkdir(parents=True)
    texts = {
        f"{_MODULE}.py": Path(emulation.__file__).read_text(encoding="utf-8"),
        f"{metadata.name}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {_VERSION}\n",
        f"{metadata.name}/entry_points.txt": f"[yarn_accel.operations]\nall = {_MODULE}:DEVICE_OPERATIONS\n",
    }
    texts[f"{metadata.name}/RECORD"] = "".join(f"{name},,\n" for name in [*texts, f"{metadata.name}/RECORD"])
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = (
    b"import sys\n\n"
    b"from benchmarks.papers.yarn_paper.shipped.entry import main\n\nsys.exit(main(sys.argv[1:]))\n"
)
_PACKAGE = "benchmarks/papers/yarn_paper"


def build_archive(target: Path) -> Path:
    """The zipapp of `jobs` with our own modules in it and another beginning."""
    plain = build_zipapp(target.with_suffix(".jobs"))
    folder = Path(emulation.__file__).parent
    own = {f"{_PACKAGE}/shipped/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.py"))}
    # The packages around them import what stays at home.
    own |= {
        f"{name}/__init__.py": b'"""Shipped in part."""\n'
        for name in ("benchmarks", "benchmarks/papers", _PACKAGE)
    }
    own["__main__.py"] = _MAIN
    with zipfile.ZipFile(plain) as jobs, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        content = {name: jobs.read(name) for name in jobs.namelist()} | own
        for name in sorted(content):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content[name])
    plain.unlink()
    return target


class PaperRunner(HadoopRunner):
    """Runs steps on a site; a `jobs.runners.step.Runner`.

    Args:
        conf_dir: the cluster's.
        python: the interpreter on the nodes.
        folder: for configuration, archive and credentials.

    Attributes:
        properties: of every job from now on, such as where its mappers' agents listen.
        store: where inputs and outputs lie.
    """

    name = "cluster"

    def __init__(self, conf_dir: Path, python: str, folder: Path) -> None:
        # The launcher's own binding file is of its own pipeline servers, which do not run here.
        own = conf_without(conf_dir, folder / "conf-of-jobs", "binding_file")
        super().__init__(SiteSettings.read({"HADOOP_CONF_DIR": str(own)}), python, scratch=folder)
        self.properties: Mapping[str, str] = {}
        self.store = Store(conf_dir)

    def run(self, step: Step, report: Report) -> StepResult:
        """As `HadoopRunner.run`; a mapper asks for an `acct/slot`, of which each node has one."""
        slot = {f"mapreduce.map.resource.{SLOT_RESOURCE}": "1"}
        return super().run(replace(step, properties={**slot, **self.properties, **step.properties}), report)

    def build_archive(self, target: Path) -> Path:
        """As `build_archive`."""
        return build_archive(target)


Say = Callable[[str], None]

N_MAPPERS = 4
WINDOW = 4
#: Streaming hands lines on as fast as its pipe takes them: ones longer than that show how far a mapper is.
_LONG_LINE_BYTES = 400_000
_N_SPECULATED_MAPPERS = 10
_MAX_PART_BYTES = 64 << 20
_BATCH_IMAGES = 50
_N_TRIALS = 2
_MIB = 1 << 20
_PIPELINE: Mapping[str, Any] = {
    # One task at a time is what a device does; and the workers of all nodes share the cores of this machine.
    "workers": 1,
    "max_batch_size": 1,
    "pin_workers": False,
    "wake_latency_us": -1,
    "pool_bytes": 96 * _MIB,
    "queue_bytes": 48 * _MIB,
}


def task_line(key: Key, number: int, speeds: Mapping[str, float]) -> str:
    """One task of a cell as `shipped.tasks.play` reads it."""
    line: dict[str, Any] = {"task": number}
    if key.instrument == REAL:
        line |= {"operation": key.operation, "order": cells.MATRIX_ORDERS[key.intensity]}
    else:
        scale = cells.SCALES[key.operation]
        cpu_s, device_s = scale.seconds(key.intensity)
        params: dict[str, Any] = {"cpu_s": cpu_s, "device_s": device_s}
        params |= {"speeds": dict(speeds)} if speeds else {}
        params |= {"cpu_speeds": dict(cells.SLOW_CPUS)} if key.layout else {}
        line |= {
            "operation": PREFIX + key.operation,
            "params": params,
            "payload_bytes": scale.payload_bytes(key.payload_mb),
        }
    if key.layout:
        line["long"] = "." * _LONG_LINE_BYTES
    return json.dumps(line)


def manifest(key: Key, n_tasks: int, speeds: Mapping[str, float]) -> str:
    """All tasks of a cell, a line each."""
    return "".join(task_line(key, number, speeds) + "\n" for number in range(n_tasks))


def launch_options(base: SiteOptions, stop: Stop, weights: Mapping[str, float]) -> SiteOptions:
    """How the application is started for a stop.

    Args:
        base: the cluster's options.
        weights: of the accelerator nodes, for ``weighted``.
    """
    is_weighted = stop.policy == "weighted"
    table = {"weights": {"devices": dict(weights)}} if is_weighted else {}
    policy = "weighted" if stop.policy == "unweighted" else stop.policy
    # 25 tasks stay on every node, so nobody may change the one slot that each has.
    return replace(base, policy=policy, master={"slots": False, **table})


def _base(workers: int, environments: Path, mode: str) -> SiteOptions:
    """The cluster; its nodes share a disk, so they unpack the environment once instead of once each."""
    return SiteOptions(
        f"paper-{workers}",
        workers=workers,
        racks=1,
        accelerators=workers,
        slots=1,
        link="1gbit",
        mode=mode,
        pipeline=_PIPELINE,
        sections={"environment": {"packages": [NAME], "cache_dir": str(environments)}},
    )


@contextmanager
def ground_up(workers: int, folder: Path, say: Say, mode: str = "") -> Iterator[Ground]:
    """A cluster of so many nodes in one rack for as long as the block lasts.

    Args:
        folder: of this cluster; the one above it serves several.
        mode: of the cluster, such as ``netns`` or ``docker``; empty: netns as root.
    """
    folder.mkdir(parents=True, exist_ok=True)
    base = _base(workers, folder.parent / "environments", mode)
    with site_up(base, folder, say) as site:
        yield Ground(site, base, folder, say)


class Ground:
    """A cluster on which cells can be run, one after the other."""

    def __init__(self, site: Site, base: SiteOptions, folder: Path, say: Say) -> None:
        self.site = site
        self._base = base
        self._folder = folder
        self._say = say
        self._stop: Stop | None = None
        self._n_cells = 0
        self._images: dict[str, Sequence[str]] = {}
        self._workers = list(site.names)
        own = write_distribution(folder.parent / "site-packages")
        site.environ["PYTHONPATH"] = f"{own}:{ROOT}"
        self._runner = PaperRunner(site.cluster.conf_dir, sys.executable, folder)

    def settle(self, stop: Stop) -> None:
        """Have the application run as this stop wants it, or not at all."""
        if stop == self._stop:
            return
        if self._stop is not None and self._stop.policy != "none":
            self.site.stop()
        self._stop = None
        if stop.policy != "none":
            n_servers = self._n_servers(stop)
            self.site.servers = self._workers[:n_servers]
            self.site.others = self._workers[n_servers:]
            took_s = self.site.start(launch_options(self._base, stop, self._speeds(stop)))
            self._say(f"{stop.cluster} {stop.policy}: the application serves after {took_s:.1f} s")
        self._stop = stop

    def run(self, key: Key) -> Cell:
        """Run a cell; once more if its tasks were not where they should be.

        Raises:
            AccelError: the job failed.
            ValueError: a task is missing or doubled.
        """
        stop = Stop(key.cluster, key.policy)
        self.settle(stop)
        cell = None
        for _ in range(_N_TRIALS):
            cell = self._images_cell(key) if key.operation == "features" else self._tasks_cell(key)
            if key.layout or (cell.is_even and (key.policy == "none" or not cell.n_fallback)):
                break
            self._say(f"{key}: tasks by node {dict(cell.per_node)}, {cell.n_fallback} on mappers' own CPUs")
        assert cell is not None
        return cell

    def _n_servers(self, stop: Stop) -> int:
        is_weighted = stop.cluster == cells.WEIGHTED_CLUSTER
        return len(cells.SPEEDS) if is_weighted else CLUSTERS[stop.cluster]

    def _speeds(self, stop: Stop) -> Mapping[str, float]:
        if stop.cluster != cells.WEIGHTED_CLUSTER:
            return {}
        return dict(zip(self._workers, cells.SPEEDS, strict=False))

    def _prepare(self, key: Key, more: Mapping[str, str]) -> tuple[str, Path]:
        """A name and a folder for a cell, and the properties of its job."""
        self._n_cells += 1
        name = f"cell-{self._n_cells}"
        folder = self._folder / name
        folder.mkdir()
        properties = {_property(LOCK_FOLDER_VARIABLE): str(folder)}
        # Without an application mappers get no agent: they would wait a minute for its servers.
        if key.policy != "none":
            properties[_property(entry.AGENTS_VARIABLE)] = f"{self.site.run_dir}/agent.sock"
        self._runner.properties = properties | dict(more)
        return name, folder

    def _tasks_cell(self, key: Key) -> Cell:
        n_mappers = _N_SPECULATED_MAPPERS if key.layout else len(self._workers)
        n_tasks = N_TASKS if key.layout else N_TASKS // N_MAPPERS * n_mappers
        more = {}
        if key.layout:
            more["mapreduce.map.speculative"] = str(key.layout.endswith("on")).lower()
        name, _ = self._prepare(key, more)
        uri = self._runner.home(f"{name}/manifest")
        text = manifest(key, n_tasks, self._speeds(Stop(key.cluster, key.policy)))
        self._runner.store.write_atomic(uri, [text.encode()])
        n_gated = 0 if key.layout else n_mappers
        step = Step(
            name=f"paper-{name}",
            mapper=("paper-map", "--mappers", str(n_gated), "--window", str(WINDOW)),
            inputs=(uri,),
            output_uri=self._runner.home(f"{name}/output"),
            lines_per_map=n_tasks // n_mappers,
        )
        result = self._runner.run(step, _nothing)
        rows = [parse_row(line) for line in self._output(result)]
        return cell_of(key, rows, result.wall_s, len(result.tasks), n_mappers, "", _now())

    def _output(self, result: StepResult) -> list[str]:
        parts = (self._runner.store.read_bytes(part, _MAX_PART_BYTES).decode() for part in result.parts)
        return [line for part in parts for line in part.splitlines() if line.strip()]

    def _images_cell(self, key: Key) -> Cell:
        n_images = cells.N_IMAGES[key.instrument]
        uris = self._input_images(key.instrument, n_images)
        more = {}
        if key.instrument == EMULATED:
            image = {"cpu_s": cells.IMAGE_CPU_S, "device_s": cells.IMAGE_DEVICE_S}
            more[_property(entry.EMULATED_IMAGE_VARIABLE)] = json.dumps(image)
        name, folder = self._prepare(key, more)
        job = ImagesJob(k=2 * len(PHOTOGRAPHS), batch_images=_BATCH_IMAGES)
        outcome = run_images(self._runner, self._runner.store, uris, n_images, job, _nothing, name).outcome
        times = [json.loads(path.read_text()) for path in folder.glob("times-*.json")]
        maps = [task for task in outcome.tasks if task.kind == "map"]
        done = [task for task in maps if task.state == "SUCCEEDED"]
        return Cell(
            key=key,
            phase_s=max(each["done_s"] for each in times) - min(each["sent_s"] for each in times),
            job_s=outcome.wall_s,
            n_done=outcome.counters.get("done", 0),
            n_fallback=outcome.counters.get("cpu_fallback", 0),
            per_node={node: sum(t.node == node for t in done) for node in sorted({t.node for t in done})},
            n_attempts=len(maps),
            n_maps=len(times),
            at=_now(),
        )

    def _input_images(self, instrument: str, n_images: int) -> Sequence[str]:
        if instrument not in self._images:
            folder = self._runner.home(f"images-{instrument}")
            plan = PatchPlan(n_images)
            self._images[instrument] = store_files(self._runner.store, folder, plan, N_MAPPERS, _nothing)
        return self._images[instrument]


def _property(variable: str) -> str:
    """The job's property that reaches a mapper as this variable."""
    return variable.replace("_", ".")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _nothing(_: str) -> None:
    """Nobody reads the progress of a job of ten seconds."""

"""The one table of benchmarks: what each measures and needs, and how each file of results is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.result import Report, Row

BENCHMARKS: dict[str, str] = {
    "backfill": "backfilling on logs against referee schedules, and its times (--log FILE: a full log)",
    "binding_scale": "the master with 10,000 nodes in 250 racks, simulated: CPU, time per event, moves",
    "docker_overhead": "the pseudo-cluster in containers beside network namespaces: start, a job, HDFS rates",
    "gpu": "a GPU in 5 minutes: right against the CPU, fast against cuSOLVER, overlap, images, N-fold",
    "grid": "four sites with the same months of a log (--log FILE), alone, searched and co-allocated; G1-G8",
    "hadoop": "the pseudo-cluster: start, memory, job overhead, container start, HDFS rates",
    "hdas_live": "mixes of the HDAS paper on a real cluster, live beside simulated (quick: C alone)",
    "hdas_paper": "the HDAS paper's mixes A to Y, simulated, beside each of its statements (quick: one set)",
    "images": "the image job with 50,000 images on the 4-node cluster (quick: 500)",
    "mps_live": "DAGs under the MPS policy on a real cluster, beside simulator and Dask (quick: 3 minutes)",
    "mps_paper": "the MPS paper's figures 4 to 10, simulated, 20 seeds, beside its claims (quick: 3 seeds)",
    "namenode_calls": "what the factorize job asks of a NameNode per record, by residual and output",
    "pipeline": "the pipeline server against bare sockets, bare LAPACK and its peers",
    "predictor": "jobs of a log (--log FILE) predicted from those before, against the paper's own rule",
    "soak": "half an hour at 80 % load with 64 clients coming and going: is memory flat? (quick: 1 minute)",
    "task_overhead": "what a task costs at a worker beside its own work: report, order, start; calls per s",
    "torque": "the Torque scheduler on its emulation: cycle, starts, event to qrun, both ways, kill -9",
    "torque_load": "what the Torque scheduler asks of a server with 50,000 queued jobs (quick: 5,000)",
    "torque_real": "the same on a real Torque ($TORQUE_PREFIX, else PATH): events, starts, jobs, kill -9",
    "torque_balance": "how even the load is under each placement, simulated; claims L1-L6 (quick: 3 seeds)",
    "torque_profiles": "what H.264 encodes and image convolutions use, run here under the shipped sampler",
    "yarn_paper": "the YARN paper's experiments on a real cluster, beside its claims (quick: some cells)",
    "yarn_faults": "faults on a real cluster while a job runs: how long until the next answer, what is lost",
    "yarn_master": "the ApplicationMaster on a real cluster: submit to RUNNING, allocate, containers, memory",
}

#: Those that repeat what a paper did, in `benchmarks.papers`.
_OF_PAPERS = frozenset(
    {
        *("grid", "hdas_live", "hdas_paper", "mps_live", "mps_paper", "predictor"),
        *("torque_balance", "torque_profiles", "yarn_paper"),
    }
)

#: What computes nothing where there is no GPU.
_OF_GPUS = (
    ":!yarn_accel/launch/node_checks.py",
    ":!yarn_accel/operations/cuda_*.py",
    ":!yarn_accel/pipeline/workers/cuda.py",
)
_SERVER = (
    "yarn_accel/client",
    "yarn_accel/core/requests",
    "yarn_accel/formats",
    "yarn_accel/operations",
    "yarn_accel/pipeline",
    "yarn_accel/wire",
    *_OF_GPUS,
)
_APPLICATION = (
    "yarn_accel/adapters/hadoop_rpc",
    "yarn_accel/core/application",
    "yarn_accel/core/binding",
    "yarn_accel/launch",
    "yarn_accel/master",
    "yarn_accel/node",
    # Of the task service, which runs in none of these: its commands, pages and charts.
    ":!yarn_accel/launch/outcomes.py",
    ":!yarn_accel/launch/task*.py",
    ":!yarn_accel/master/diagram.py",
    ":!yarn_accel/master/task_*.py",
    ":!yarn_accel/master/worker_places.py",
    *_OF_GPUS,
)
_SCHEDULER = ("torque_sched/adapters", "torque_sched/core", "torque_sched/daemon", "torque_sched/policies")
_LEARNING = ("torque_sched/learning",)
_EMULATED = ("torque_sched/emulation",)
_LOGS = ("torque_sched/parse/swf.py", "torque_sched/sim/workload.py")
_TASK_POLICIES = tuple(
    f"yarn_accel/core/tasks/{name}"
    for name in (
        "commands.py",
        "contention.py",
        "durations.py",
        "events.py",
        "learning.py",
        "outcome.py",
        "policies",
        "records.py",
        "state.py",
        "use_over_time.py",
        "values.py",
    )
)
_TASK_SIMULATOR = tuple(f"yarn_accel/sim/{name}.py" for name in ("disk", "node", "simulator", "world"))
_DAG_SIMULATOR = tuple(f"yarn_accel/sim/dag_{name}.py" for name in ("inputs", "simulator", "world"))

#: What each measures: when a file there changes, its results are stale. ``:!`` leaves files out, as in git.
SUBJECTS: dict[str, tuple[str, ...]] = {
    "backfill": (
        *_LOGS,
        "torque_sched/core/availability.py",
        "torque_sched/learning/best.py",
        "torque_sched/policies/backfilling",
        "torque_sched/policies/fair_share.py",
        "torque_sched/policies/predict",
        *(
            f"torque_sched/sim/{name}.py"
            for name in ("check", "driver", "estimates", "experiment", "metrics", "results", "schedule")
        ),
        "benchmarks/backfill",
    ),
    "binding_scale": ("yarn_accel/core/application", "yarn_accel/core/binding", "benchmarks/binding_scale"),
    "docker_overhead": (
        "hadoop_conf",
        "yarn_accel/testbed",
        "benchmarks/hadoop.py",
        "benchmarks/docker_overhead.py",
    ),
    "gpu": ("yarn_accel/operations", "yarn_accel/pipeline", "benchmarks/gpu"),
    "grid": (
        *_LOGS,
        "torque_sched/core/availability.py",
        "torque_sched/core/grid",
        "torque_sched/core/handshake",
        "torque_sched/sim/grid",
        "benchmarks/papers/grid",
    ),
    "hadoop": ("hadoop_conf", "yarn_accel/testbed", "benchmarks/hadoop.py"),
    "hdas_live": (
        "yarn_accel/core/tasks",
        "yarn_accel/worker",
        # Its tasks are commands, without named environments.
        ":!yarn_accel/worker/function_*.py",
        ":!yarn_accel/worker/python_environments.py",
        *_TASK_SIMULATOR,
        "benchmarks/papers/hdas_live",
        "benchmarks/papers/live.py",
    ),
    "hdas_paper": (*_TASK_POLICIES, *_TASK_SIMULATOR, "benchmarks/papers/hdas_paper"),
    "images": (
        "jobs/images",
        "yarn_accel/client",
        "yarn_accel/operations",
        *_OF_GPUS,
        "benchmarks/images.py",
    ),
    "mps_live": (
        "yarn_accel/core/dags",
        "yarn_accel/core/tasks",
        ":!yarn_accel/core/tasks/late_binding",
        "yarn_accel/dags/generator.py",
        "yarn_accel/worker",
        *_DAG_SIMULATOR,
        "benchmarks/papers/live.py",
        "benchmarks/papers/mps_live",
    ),
    "mps_paper": (
        "yarn_accel/core/dags",
        ":!yarn_accel/core/dags/live",
        *(f"yarn_accel/core/tasks/{name}.py" for name in ("commands", "durations", "events", "values")),
        "yarn_accel/dags/generator.py",
        *_DAG_SIMULATOR,
        "benchmarks/papers/mps_paper",
    ),
    "namenode_calls": (
        "jobs/factorize",
        "yarn_accel/storage.py",
        "yarn_accel/pipeline",
        *_OF_GPUS,
        "benchmarks/namenode_calls.py",
    ),
    "pipeline": (*_SERVER, "benchmarks/pipeline"),
    "predictor": (
        "torque_sched/parse/swf.py",
        "torque_sched/policies/predict",
        "benchmarks/papers/predictor.py",
    ),
    "soak": (*_SERVER, "benchmarks/soak.py"),
    "task_overhead": (
        "yarn_accel/adapters/signed_http.py",
        "yarn_accel/core/tasks",
        "yarn_accel/node/master_client.py",
        "yarn_accel/worker",
        "benchmarks/task_overhead.py",
    ),
    "torque": (*_SCHEDULER, *_EMULATED, "benchmarks/torque.py", "benchmarks/torque_transport.py"),
    "torque_balance": (
        "torque_sched/core",
        ":!torque_sched/core/batch_protocol",
        ":!torque_sched/core/grid",
        ":!torque_sched/core/handshake",
        "torque_sched/policies",
        "benchmarks/papers/torque_balance.py",
        "benchmarks/papers/torque_balance_cluster.py",
        "benchmarks/papers/torque_profiles/profiles.json",
    ),
    "torque_load": (*_SCHEDULER, *_EMULATED, "benchmarks/torque_load.py"),
    "torque_profiles": (*_LEARNING, "torque_sched/sampler", "benchmarks/papers/torque_profiles"),
    "torque_real": (*_SCHEDULER, "benchmarks/torque_real.py"),
    "yarn_faults": (*_APPLICATION, *_SERVER, "benchmarks/yarn_faults.py"),
    "yarn_master": (*_APPLICATION, "benchmarks/yarn_master.py"),
    "yarn_paper": (*_APPLICATION, *_SERVER, "benchmarks/papers/yarn_paper"),
}

_CTC, _LANL = "CTC-SP2-1996-3.1-cln.swf", "LANL-CM5-1994-4.1-cln.swf"
_ARCHIVE = "of the Parallel Workloads Archive"


@dataclass(frozen=True, slots=True)
class Recording:
    """How a file of ``benchmarks/results`` is recorded.

    Attributes:
        benchmark: which one writes it.
        only: its sections; none: all.
        quick_only: its sections in the quick form of the report; none: as `only`.
        log: the log that it reads, by its name in the Parallel Workloads Archive.
        options: further words of its command.
        full_s: about how long it takes on two quiet cores.
        quick_s: the same for its quick form; 0: the quick report leaves it out.
    """

    benchmark: str
    only: tuple[str, ...] = ()
    quick_only: tuple[str, ...] = ()
    log: str = ""
    options: tuple[str, ...] = ()
    full_s: float = 120.0
    quick_s: float = 0.0

    def words(self, *, is_quick: bool = False) -> list[str]:
        """After ``python -m benchmarks``, without the files."""
        sections = (self.quick_only or self.only) if is_quick else self.only
        only = [word for section in sections for word in ("--only", section)]
        return [self.benchmark, *only, *self.options, *(["--quick"] if is_quick else [])]

    def command(self, stem: str) -> str:
        """What records the file again, for a reader to copy."""
        log = ["--log", f"{self.log}.gz"] if self.log else []
        target = ["--json", f"benchmarks/results/{stem}.json"]
        return " ".join(["python -m benchmarks", *self.words(), *log, *target])


def _pipeline(section: str, full_s: float, quick_s: float = 0.0) -> Recording:
    return Recording("pipeline", only=(section,), full_s=full_s, quick_s=quick_s)


#: Every file of results, by its name without ``.json``.
RECORDINGS: Mapping[str, Recording] = {
    "backfill": Recording("backfill", log=_CTC, full_s=180, quick_s=45),
    "backfill-compiled": Recording("backfill", only=("log",), log=_CTC, full_s=60),
    "binding_scale": Recording("binding_scale", full_s=220),
    "docker_overhead": Recording("docker_overhead", full_s=500),
    "gpu": Recording("gpu", full_s=300, quick_s=120),
    # `scale` and `formulas` judge no claim.
    "grid": Recording(
        "grid",
        only=("scan", "delay", "experiment"),
        quick_only=("scan", "experiment"),
        log=_CTC,
        full_s=600,
        quick_s=60,
    ),
    "hadoop": Recording("hadoop", full_s=220),
    "hdas_live": Recording("hdas_live", only=("C", "K", "P"), quick_only=("C",), full_s=2300, quick_s=180),
    "hdas_live-late": Recording("hdas_live", only=("late-binding",), full_s=800),
    "hdas_paper": Recording("hdas_paper", quick_only=("mixes",), full_s=80, quick_s=30),
    "images": Recording("images", full_s=240),
    "mps_live": Recording("mps_live", full_s=850),
    "mps_paper": Recording("mps_paper", full_s=150, quick_s=25),
    "namenode_calls": Recording("namenode_calls", full_s=240),
    "pipeline-echo": _pipeline("echo", 510, 60),
    "pipeline-hdfs": _pipeline("hdfs", 150),
    "pipeline-kernels": _pipeline("kernels", 120),
    "pipeline-latency": _pipeline("latency", 85, 30),
    "pipeline-small": _pipeline("small", 20),
    "pipeline-stages": _pipeline("stages", 200),
    "predictor-ctc": Recording("predictor", log=_CTC, full_s=30, quick_s=20),
    "predictor-lanl": Recording("predictor", log=_LANL, full_s=60, quick_s=20),
    "soak": Recording("soak", full_s=1900),
    "task_overhead": Recording("task_overhead", full_s=120, quick_s=30),
    # `transport` has a file of its own.
    "torque": Recording(
        "torque", only=("cycle", "backfill", "starts", "event", "comments", "kill"), full_s=240
    ),
    "torque-real": Recording("torque_real", full_s=600),
    "torque-transport": Recording("torque", only=("transport",), full_s=260),
    "torque_balance": Recording("torque_balance", full_s=300, quick_s=50),
    "torque_load": Recording("torque_load", full_s=900),
    "torque_profiles": Recording("torque_profiles", full_s=300),
    "yarn_faults": Recording("yarn_faults", full_s=900),
    "yarn_master": Recording("yarn_master", full_s=300),
    # All that judges a claim; `real` shows that the path computes.
    "yarn_paper": Recording(
        "yarn_paper",
        only=("emulated", "payload", "images", "container", "weighted", "speculation"),
        quick_only=("emulated", "payload"),
        full_s=2140,
        quick_s=280,
    ),
}

#: What not every machine has, by benchmark or by file of results.
NEEDS: dict[str, str] = {
    "backfill": f"the log CTC SP2 {_ARCHIVE}; without it two short traces are measured",
    "backfill-compiled": "the compiled form: a C compiler, `make compiled`, and that it runs in .compiled",
    "docker_overhead": "a Docker engine with the node image (make docker-images), and root",
    "gpu": "a GPU with its driver",
    "grid": f"the log CTC SP2 {_ARCHIVE}",
    "predictor": f"a log {_ARCHIVE}",
    "torque_profiles": "ffmpeg for the encodes; what was measured with it is in profiles.json",
    "torque_real": "a real Torque: pbs_server and pbs_mom on this machine",
}


def needs_of(stem: str) -> str:
    """What recording this file again takes beside this machine; empty: nothing."""
    return NEEDS.get(stem, NEEDS.get(RECORDINGS[stem].benchmark, "") if stem in RECORDINGS else "")


#: Those that keep what a killed run left in the JSON file, by ``--resume``.
RESUMABLE = frozenset({"grid", "hdas_live", "mps_live", "yarn_paper"})

#: Those that start a Hadoop cluster and take ``--mode``: how its nodes are kept apart.
TAKES_MODE = frozenset({"hadoop", "hdas_live", "images", "yarn_paper"})


def module_of(name: str) -> str:
    """The module or package of the benchmark ``name``."""
    return f"benchmarks.papers.{name}" if name in _OF_PAPERS else f"benchmarks.{name}"


def load(name: str) -> Any:
    """Import the benchmark ``name``: a module with a function ``run``, a `benchmarks.result.Benchmark`.

    A module with ``SECTIONS`` takes those to run as ``only``, one with ``draw`` can draw its report; one with
    ``require(path)`` raises there what it lacks on this machine to write its figures to that file.
    """
    return import_module(module_of(name))


def draw_result(stem: str, document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Have the benchmark of a recorded result draw it into a folder; nothing where it draws none."""
    name = str(document["name"])
    if not hasattr(load(name), "draw"):
        return []
    rows = [
        Row(**{**row, "spread": tuple(row["spread"]) if row["spread"] else None}) for row in document["rows"]
    ]
    report = Report(name, rows=rows, setting=dict(document["machine"]), series=document.get("series", {}))
    folder.mkdir(parents=True, exist_ok=True)
    return [Path(file) for file in load(name).draw(report, str(folder / stem))]

"""The streaming jobs of the late binding part on a cluster: their agents' settings, inputs and submission."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hdas_live.late import LateApp, LateKey
from benchmarks.hdas_live.setting import CORES, GPUS
from tests.fixtures.hadoop_conf import conf_without
from tests.fixtures.yarn_site import ROOT, Site
from yarn_accel.errors import JobError
from yarn_accel.storage import Store

#: Without late binding three fit into a node, one for each core; with it some more, which wait.
_CONTAINER_MIB = {"first": 1024, "agent": 640}
_MAPPER = Path("tests/fixtures/late_binding/timed_mapper.py")
_MAX_PART_BYTES = 65536
_JOB_S = 300.0
#: Longer than the queue of a node; for half of it a node waits for what is measured first.
_MAX_WAIT_S = 40.0


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
    return f"hdfs:///live/late-input/{app.name}"


def late_output(key: LateKey) -> str:
    """The folder of the outputs of a run."""
    return f"hdfs:///live/late-{key.mode}-{key.repeat}"


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
            _, errors = process.communicate(timeout=_JOB_S)
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

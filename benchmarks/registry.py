"""The one table of benchmarks: name -> (what it measures, where it lives)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["BENCHMARKS", "load"]

BENCHMARKS: dict[str, str] = {
    "backfill": "backfilling on logs against referee schedules, and its times (--log FILE: a full log)",
    "binding_scale": "the master with 10,000 nodes in 250 racks, simulated: CPU, time per event, moves",
    "gpu": "a GPU in 5 minutes: right against the CPU, fast against cuSOLVER, overlap, images, N-fold",
    "grid": "four sites with the same months of a log (--log FILE), alone, searched and co-allocated; G1-G8",
    "hadoop": "the pseudo-cluster: start, memory, job overhead, container start, HDFS rates",
    "images": "the image job with 50,000 images on the 4-node cluster (quick: 500)",
    "namenode_calls": "what the factorize job asks of a NameNode per record, by residual and output",
    "pipeline": "the pipeline server against bare sockets, bare LAPACK and its peers",
    "predictor": "jobs of a log (--log FILE) predicted from those before, against the paper's own rule",
    "soak": "half an hour at 80 % load with 64 clients coming and going: is memory flat? (quick: 1 minute)",
    "torque": "the Torque scheduler on its emulation: cycle, starts, event to qrun, comments, kill -9",
    "torque_load": "what the Torque scheduler asks of a server with 50,000 queued jobs (quick: 5,000)",
    "torque_real": "the same on a real Torque ($TORQUE_PREFIX, else PATH): events, starts, jobs, kill -9",
    "torque_balance": "how even the load is under each placement, simulated; claims L1-L6 (quick: 3 seeds)",
    "torque_profiles": "what H.264 encodes and image convolutions use, run here under the shipped sampler",
    "yarn_paper": "the YARN paper's experiments on a real cluster, beside its claims (quick: some cells)",
    "yarn_faults": "faults on a real cluster while a job runs: how long until the next answer, what is lost",
    "yarn_master": "the ApplicationMaster on a real cluster: submit to RUNNING, allocate, containers, memory",
}


def load(name: str) -> Any:
    """Import the benchmark ``name``: a module with a function ``run``, a `benchmarks.result.Benchmark`.

    A module with ``SECTIONS`` takes those to run as ``only``, one with ``draw`` can draw its report; one with
    ``require(path)`` raises there what it lacks on this machine to write its figures to that file.
    """
    return import_module(f"benchmarks.{name}")

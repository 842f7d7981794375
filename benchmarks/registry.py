"""The one table of benchmarks: name -> (what it measures, where it lives)."""

from __future__ import annotations

from importlib import import_module

from benchmarks.result import Benchmark

__all__ = ["BENCHMARKS", "load"]

BENCHMARKS: dict[str, str] = {
    "hadoop": "the pseudo-cluster: start, memory, job overhead, container start, HDFS rates",
    "images": "the image job with 50,000 images on the 4-node cluster (quick: 500)",
}


def load(name: str) -> Benchmark:
    """Import the benchmark ``name``; its module carries the same name and a function ``run``."""
    benchmark: Benchmark = import_module(f"benchmarks.{name}").run
    return benchmark

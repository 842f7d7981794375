"""Compiles the backfilling policies with mypyc if CLUSTER_ACCEL_COMPILED=1 says so; the rest is in setup.cfg.

The modules named here decide every event of a simulated log. Interpreted they give the same schedules, only
slower.
"""

import os

from setuptools import setup

COMPILED = {
    "torque_sched/core": "availability",
    "torque_sched/policies/backfilling": "conservative count_table easy entry fcfs scheduler selective",
}


def _extensions() -> list:
    if os.environ.get("CLUSTER_ACCEL_COMPILED") != "1":
        return []
    from mypyc.build import mypycify

    files = [f"{package}/{name}.py" for package, names in COMPILED.items() for name in names.split()]
    return mypycify(["--config-file", "setup.cfg", *files], opt_level="1")


setup(ext_modules=_extensions())

"""Compiles the hot path with mypyc if CLUSTER_ACCEL_COMPILED=1 says so; all the rest is in setup.cfg.

The modules named here are the path of a request to a pipeline server, and of an event to a policy of
backfilling. They are ordinary Python first: without a compiler the same files run as they are and give the
same answers, only slower (DECISIONS 4).
"""

import os

from setuptools import setup

COMPILED = {
    "yarn_accel/core": "crew queues scheduling scheduling_events weights",
    "yarn_accel/wire": "connection digest ends frames schema tags varying",
    "yarn_accel/client": "conversation courier lent links mapping memory packs tls transport",
    "yarn_accel/operations": "checks echo operation registry",
    "yarn_accel/pipeline": "admission arrays budget counters delivery flow ledger loans parking pool sending"
    " session stages waiting work",
    "yarn_accel/pipeline/workers": "control execution jobs memory pool process protocol",
    "torque_sched/core": "availability",
    "torque_sched/policies/backfilling": "conservative count_table easy entry fcfs scheduler selective",
}


def _extensions() -> list:
    if os.environ.get("CLUSTER_ACCEL_COMPILED") != "1":
        return []
    from mypyc.build import mypycify

    files = [f"{room}/{name}.py" for room, names in COMPILED.items() for name in names.split()]
    return mypycify(["--config-file", "setup.cfg", *files], opt_level="1")


setup(ext_modules=_extensions())

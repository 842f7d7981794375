"""``python -m torque_sched.sampler --file FILE [--interval 10]``: measure this node until SIGTERM."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event

from torque_sched.sampler.daemon import Sampler, serve
from torque_sched.sampler.gpus import GpuReader, load_nvml
from torque_sched.sampler.proc import ProcReader


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the options, sample until SIGTERM or SIGINT; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="torque-sched-sampler",
        description="Measure this node and its jobs for torque-sched. Run as root, started with mom; mom's "
        "configuration gets the line: $varattr 10 .../varattr.sh FILE",
    )
    parser.add_argument("--file", type=Path, required=True, help="written anew every interval")
    parser.add_argument("--interval", type=float, default=10.0, metavar="SECONDS", help="default 10")
    given = parser.parse_args(arguments)
    if not 0.05 <= given.interval <= 3600:
        parser.error("--interval: from 0.05 to 3600 seconds")
    logging.basicConfig(stream=sys.stderr, format="torque-sched-sampler: %(message)s")
    if not given.file.parent.is_dir():
        logging.getLogger(__name__).error(
            "%s is no folder: create it or choose another --file", given.file.parent
        )
        return 3
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    serve(Sampler(ProcReader(), GpuReader(load_nvml())), given.file, given.interval, stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m benchmarks.papers.torque_profiles``: measure, and write the profile file."""

from __future__ import annotations

import os
import sys

from benchmarks.papers.torque_profiles import measure_all, write
from benchmarks.result import machine_facts


def main() -> None:
    """Measure every workload that can run here and write ``profiles.json``."""
    measured, missing = measure_all(lambda line: print(f"  {line}", file=sys.stderr))
    path = write({"processor": machine_facts()["cpu"], "cores": os.cpu_count() or 0}, measured, missing)
    print(f"{path.name}: {len(measured)} measured, {len(missing)} not: {', '.join(missing) or 'none'}")


if __name__ == "__main__":
    main()

"""``python -m benchmarks.papers.torque_profiles``: measure, and write the profile file."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from benchmarks.papers.torque_profiles import measure_all, write


def main() -> None:
    """Measure every workload that can run here and write ``profiles.json``."""
    measured, missing = measure_all(lambda line: print(f"  {line}", file=sys.stderr))
    path = write({"processor": _processor(), "cores": os.cpu_count() or 0}, measured, missing)
    print(f"{path.name}: {len(measured)} measured, {len(missing)} not: {', '.join(missing) or 'none'}")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


if __name__ == "__main__":
    main()

"""Put what numba compiles at the first call of an image operation into the image's cache, while it is built.

It took each container with a pipeline server four seconds of CPU while the cluster started. Numba compiles
for one kind of processor, and again where the image runs on another.
"""

from __future__ import annotations

import sys

from yarn_accel.pipeline.workers.calibration import WARMING, measure
from yarn_accel.pipeline.workers.forms import Forms


def main() -> None:
    """Run the smallest problem of each operation, as the workers of a server do at their start."""
    forms = Forms("cpu")
    broken = [operation for operation, n in WARMING if measure(forms, operation, n) is None]
    if broken:
        sys.exit(f"cannot run {', '.join(broken)}")


main()

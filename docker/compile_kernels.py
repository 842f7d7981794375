"""Put what numba compiles at the first call of an image operation into a cache, while the image is built.

It took each container with a pipeline server four seconds of CPU while the cluster started. Numba compiles
for one kind of processor, and again where the image runs on another.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from yarn_accel.operations import registry
from yarn_accel.operations.operation import allocate

OPERATIONS = ("lbp", "colour")


def main() -> None:
    """Run each of them on one small image, as the workers of a server do at their start."""
    stream = io.BytesIO()
    Image.new("RGB", (64, 64)).save(stream, "PNG")
    image = np.frombuffer(stream.getvalue(), np.uint8)
    for name in OPERATIONS:
        run = registry.get(name).form("cpu")
        run([image.copy(), np.array([image.size], np.int64)], {}, allocate)


main()

"""Images to measure with: soft colours as photographs have them, encoded as JPEG or PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any


@dataclass(frozen=True)
class Kind:
    """Images of one form; ``side`` is their height and width in pixels."""

    format: str
    side: int

    def __str__(self) -> str:
        return f"{self.format} {self.side} x {self.side}"

    def encoded(self, n: int) -> list[bytes]:
        """So many of them, all different."""
        from PIL import Image

        random = np.random.default_rng(self.side)
        found = []
        for _ in range(n):
            coarse = Image.fromarray(random.integers(0, 256, (8, 8, 3)).astype(np.uint8))
            stream = io.BytesIO()
            coarse.resize((self.side, self.side), Image.Resampling.BICUBIC).save(stream, self.format)
            found.append(stream.getvalue())
        return found


JPEG, PNG = Kind("JPEG", 256), Kind("PNG", 64)
"""PNG as the image job has them."""


def packed_images(encoded: Sequence[bytes]) -> tuple[Array, Array]:
    """As the operations on images take them: all bytes, and the length of each."""
    return np.frombuffer(b"".join(encoded), np.uint8), np.array([len(each) for each in encoded], np.int64)

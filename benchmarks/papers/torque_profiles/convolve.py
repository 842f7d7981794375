"""The paper's image convolution: SIDE KERNEL IMAGES WORKERS; reads, convolves and throws away."""

from __future__ import annotations

import sys
from multiprocessing import get_context

import numpy as np
from scipy.ndimage import convolve


def _one(work: tuple[int, int, int]) -> float:
    """Make an image from a seed and convolve it; returns a checksum."""
    seed, side, kernel = work
    rng = np.random.default_rng(seed)
    image = rng.random((side, side), dtype=np.float32)
    weights = rng.random((kernel, kernel), dtype=np.float32)
    return float(convolve(image, weights, mode="reflect").sum())


def main(side: int, kernel: int, images: int, workers: int) -> float:
    """Convolve all images; returns the sum of the checksums."""
    work = [(seed, side, kernel) for seed in range(images)]
    if workers == 1:
        return sum(map(_one, work))
    # Started anew rather than forked: as the paper's application, whose processes share nothing.
    with get_context("spawn").Pool(workers) as pool:
        return sum(pool.imap_unordered(_one, work))


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:5]))

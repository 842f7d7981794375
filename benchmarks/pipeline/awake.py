"""Keeping the cores awake while everybody is measured: waking one costs as much as a small request.

Whoever holds ``/dev/cpu_dma_latency`` open, with a number of microseconds in it, asks the kernel for no
deeper sleep than can be left that fast. It holds for the whole machine, so all candidates gain by it alike.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["DEVICE", "can_keep_awake", "kept_awake"]

DEVICE = "/dev/cpu_dma_latency"


def can_keep_awake() -> bool:
    """Whether the device is there and ours to write."""
    return os.access(DEVICE, os.W_OK)


@contextmanager
def kept_awake(is_wanted: bool) -> Iterator[None]:
    """No core sleeps inside; nothing happens where it is not wanted."""
    if not is_wanted:
        yield
        return
    device = os.open(DEVICE, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(device, struct.pack("i", 0))
        yield
    finally:
        os.close(device)

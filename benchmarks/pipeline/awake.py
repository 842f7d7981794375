"""Cores kept awake while everybody is measured: it holds for the whole machine, so all gain by it alike."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from yarn_accel.pipeline.cpu_idle import DEVICE, can_keep_awake, keep_awake


def is_possible() -> bool:
    """Whether this machine lets us."""
    return can_keep_awake(DEVICE)


@contextmanager
def kept_awake(is_wanted: bool) -> Iterator[None]:
    """No core sleeps inside; nothing happens where it is not wanted."""
    if not is_wanted:
        yield
        return
    device = keep_awake(0, DEVICE)
    try:
        yield
    finally:
        os.close(device)

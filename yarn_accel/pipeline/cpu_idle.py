"""Keeping the cores from sleeping while small requests come, where the site allows it.

A core that waits is put to sleep by the kernel, and waking it costs more than a whole small request: on a
virtual machine 15 to 40 us each time, and one request wakes the server, a worker, the server and the client.
Whoever holds ``/dev/cpu_dma_latency`` open with a number of microseconds in it asks the kernel for no deeper
sleep than can be left that fast (kernel documentation, "PM Quality Of Service Interface").  It costs power
and holds for the whole machine, so it is asked for only while requests come often, and given back soon after.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable
from typing import Any

from yarn_accel.pipeline.config import CORES_MAY_SLEEP

logger = logging.getLogger(__name__)

DEVICE = "/dev/cpu_dma_latency"
LOOK_EVERY_S = 0.1
#: So many requests between two looks are worth it.
_OFTEN = 20
#: Looks with fewer before the cores may sleep again.
_PATIENCE = 10


def can_keep_awake(device: str = DEVICE) -> bool:
    """Whether the kernel's file is there and ours to write."""
    return os.access(device, os.W_OK)


def keep_awake(latency_us: int, device: str = DEVICE) -> int:
    """Ask for no deeper sleep than can be left that fast; closing the descriptor returned ends it.

    Raises:
        OSError: the site does not allow it.
    """
    descriptor = os.open(device, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, struct.pack("i", latency_us))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class CpuIdleLimit:
    """Holds the request while the server is busy with small things.

    Args:
        latency_us: the longest way out of sleep, in microseconds; `CORES_MAY_SLEEP`: never ask.
        n_requests: how many requests have come since the start.
        device: the kernel's file, for tests.

    Attributes:
        problem: why it cannot be asked for here; empty when it can.
    """

    def __init__(self, latency_us: int, n_requests: Callable[[], int], device: str = DEVICE) -> None:
        self._latency_us = latency_us
        self._n_requests = n_requests
        self._device = device
        self._fd = -1
        self._n_seen = 0
        self._n_quiet = 0
        self.problem = "" if latency_us != CORES_MAY_SLEEP else "switched off by wake_latency_us"
        if not self.problem and not can_keep_awake(device):
            self.problem = f"no right to write {device}"

    def close(self) -> None:
        """Let the cores sleep."""
        self._let_sleep()

    def snapshot(self) -> dict[str, Any]:
        """Whether the cores are kept awake now, and why they cannot be."""
        return {"awake": self._fd >= 0, "latency_us": self._latency_us, "problem": self.problem}

    def look(self) -> None:
        """Compare how many requests have come since the last look with what is worth staying awake for.

        To be called every `LOOK_EVERY_S`.
        """
        if self.problem:
            return
        n_requests = self._n_requests()
        is_often = n_requests - self._n_seen >= _OFTEN
        self._n_seen = n_requests
        self._n_quiet = 0 if is_often else self._n_quiet + 1
        if is_often and self._fd < 0:
            self._keep_awake()
        elif self._n_quiet >= _PATIENCE:
            self._let_sleep()

    def _keep_awake(self) -> None:
        try:
            self._fd = keep_awake(self._latency_us, self._device)
        except OSError as error:
            self.problem = f"{self._device}: {error.strerror}"
            logger.warning("the cores cannot be kept awake: %s", self.problem)

    def _let_sleep(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

"""The I/O of the node a worker runs on, as policies know it: TotalIO and #IOtask."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from yarn_accel.core.tasks.worker_messages import IoSample
from yarn_accel.node.sampling import Sampler, total_bytes_per_s
from yarn_accel.worker.read_phase import ReaderCount

INTERVAL_S = 1.0


def node_meter(interfaces: Iterable[str], source: str) -> Callable[[], float]:
    """Begins to measure a node; what it returns gives the bytes since then, of `source`."""
    sampler, began_s = Sampler(interfaces), time.monotonic()
    sampler.sample()
    return lambda: total_bytes_per_s(sampler.sample(), source) * (time.monotonic() - began_s)


class NodeIo:
    """Samples once a second: bytes and readers are those of the middle of that second.

    The bytes are a mean, so a task that began later is hardly in it. It must not be among the readers either:
    policies count what began after a sample by its figures.

    Args:
        interfaces: whose traffic counts; empty: those with the default route.
        source: ``link``, ``disk`` or ``larger``.
    """

    def __init__(
        self,
        readers: ReaderCount,
        interfaces: Iterable[str],
        source: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._readers = readers
        self._sampler = Sampler(interfaces)
        self._sampler.sample()
        self._source = source
        self._clock = clock
        self._sampled_s = clock()
        #: When it was looked, and who read then, since the last sample.
        self._counted: list[tuple[float, int]] = []
        self._latest: tuple[float, float, int] | None = None

    def look(self) -> None:
        """Count the readers, several times a second, and take a sample when it is time."""
        now_s = self._clock()
        self._counted.append((now_s, self._readers.n_readers))
        if now_s - self._sampled_s >= INTERVAL_S:
            middle_s = (now_s + self._sampled_s) / 2
            at_s, n_readers = min(self._counted, key=lambda counted: abs(counted[0] - middle_s))
            self._latest = at_s, total_bytes_per_s(self._sampler.sample(), self._source), n_readers
            self._sampled_s = now_s
            self._counted.clear()

    def latest(self) -> IoSample | None:
        """The last sample; None: there is none yet."""
        if self._latest is None:
            return None
        at_s, bytes_per_s, n_readers = self._latest
        return IoSample(bytes_per_s, n_readers, self._clock() - at_s)

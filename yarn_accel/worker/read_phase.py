"""Measures how long attempts read, and whether they did so alone; the callers give the time.

An attempt with a split reads until its command has taken the last line. One without a split reads files by
itself: its phase ends where its processes had read all that they did read, but for a hundredth. One that
reports what it reads is believed.

`NodeIo` samples the I/O of the whole node, as policies know it: TotalIO and #IOtask.

Alone is who had neither other readers of this worker beside him nor, on the node, more bytes by others than
`others_may_read`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from yarn_accel.core.tasks.events import TaskMeasurement
from yarn_accel.core.tasks.worker_messages import IoSample
from yarn_accel.node.sampling import Sampler, total_bytes_per_s

INTERVAL_S = 1.0

_MAX_SAMPLES = 512
_ALL = 0.99
_OTHERS_SHARE = 0.25
#: Reports, calls to HDFS and the like, which delay nobody.
_OTHERS_BYTES = 1024 * 1024
#: Begins to measure; what it returns gives the bytes of the whole node since then.
NodeMeter = Callable[[], Callable[[], float]]


def others_may_read(n_bytes: float) -> float:
    """Bytes of others on the node beside which one who reads so many still counts as alone."""
    return max(_OTHERS_SHARE * n_bytes, _OTHERS_BYTES)


class ReaderCount:
    """The attempts that read now; safe between threads.

    Args:
        meter: measures what the whole node reads and writes meanwhile; None: only these readers count.
    """

    def __init__(self, meter: NodeMeter | None = None) -> None:
        self._meter = meter
        self._phases: dict[ReadPhase, Callable[[], float] | None] = {}
        self._lock = threading.Lock()

    @property
    def n_readers(self) -> int:
        """#IOtask: how many there are."""
        return len(self._phases)

    def begin(self, phase: ReadPhase) -> None:
        """One more reads, if it did not yet; none of those that do is alone."""
        with self._lock:
            if phase in self._phases:
                return
            for each in (phase, *self._phases) if self._phases else ():
                each.is_alone = False
            self._phases[phase] = self._meter() if self._meter is not None else None

    def end(self, phase: ReadPhase) -> None:
        """It has read everything."""
        with self._lock:
            metered = self._phases.pop(phase, None)
        if metered is not None:
            phase.compare(metered())


class ReadPhase:
    """One attempt's.

    Args:
        started_s: when it started.

    Attributes:
        n_bytes: read so far, but for what it reports itself.
        is_alone: nobody else has read meanwhile, see above.
    """

    def __init__(self, started_s: float) -> None:
        self.started_s = started_s
        self._samples: list[tuple[float, int]] = [(started_s, 0)]
        self._ended_s: float | None = None
        self._reported: tuple[int, float] | None = None
        self.n_bytes = 0
        self.is_alone = True

    def read(self, n_bytes: int) -> None:
        """So much more was read of the split, and was taken."""
        self.n_bytes += n_bytes

    def sample(self, n_bytes: int, now_s: float) -> None:
        """So much was read in all."""
        if n_bytes <= self.n_bytes:
            return
        self.n_bytes = n_bytes
        self._samples.append((now_s, n_bytes))
        if len(self._samples) > _MAX_SAMPLES:
            del self._samples[1::2]

    @property
    def is_reported(self) -> bool:
        """Whether it says itself what it reads."""
        return self._reported is not None

    def report(self, n_bytes: int, read_s: float) -> None:
        """It says itself that it has read so much, beside its lines, for so long in all."""
        self._reported = n_bytes, read_s

    def compare(self, node_bytes: float) -> None:
        """So much the whole node read and wrote while this attempt read, which is over."""
        own_bytes = self.n_bytes + (self._reported[0] if self._reported is not None else 0)
        self.is_alone = self.is_alone and node_bytes - own_bytes <= others_may_read(own_bytes)

    def end(self, now_s: float) -> None:
        """The last line was taken."""
        self._ended_s = now_s

    def measured(self, now_s: float) -> TaskMeasurement:
        """The whole attempt, which ends now."""
        if self._reported is not None:
            n_bytes, reported_s = self._reported
            whole_s = max(0.0, now_s - self.started_s)
            read_s = min(reported_s, whole_s)
            return TaskMeasurement(float(self.n_bytes + n_bytes), read_s, whole_s - read_s, self.is_alone)
        ended_s = now_s if self._ended_s is None else self._ended_s
        if self._ended_s is None:
            ended_s = next((at_s for at_s, n in self._samples if n >= _ALL * self.n_bytes), now_s)
        read_s = max(0.0, ended_s - self.started_s)
        whole_s = max(read_s, now_s - self.started_s)
        return TaskMeasurement(float(self.n_bytes), read_s, whole_s - read_s, self.is_alone)


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

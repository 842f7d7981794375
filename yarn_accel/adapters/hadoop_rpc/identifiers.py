"""Names of applications, attempts, containers and nodes: as messages, and as the text that Hadoop prints.

A container's number carries the *epoch* of the ResourceManager (how often it was restarted) above bit 40; the
text shows it as ``e02`` where it is not zero: ``container_e02_1763700000000_0001_01_000003``.
"""

# ruff: noqa: RUF009 - `enum` and `message` declare fields, as dataclasses.field does
from __future__ import annotations

import re
from dataclasses import dataclass

from yarn_accel.adapters.hadoop_rpc.protobuf import int32, int64, message, string
from yarn_accel.errors import ConfigError

_EPOCH_SHIFT = 40
_APPLICATION = re.compile(r"application_(\d{1,19})_(\d{1,10})", re.ASCII)
_ATTEMPT = re.compile(r"appattempt_(\d{1,19})_(\d{1,10})_(\d{1,10})", re.ASCII)
_CONTAINER = re.compile(r"container_(?:e(\d{1,7})_)?(\d{1,19})_(\d{1,10})_(\d{1,10})_(\d{1,13})", re.ASCII)
_MAX_INT32, _MAX_INT64 = (1 << 31) - 1, (1 << 63) - 1


@dataclass(frozen=True, slots=True, order=True)
class ApplicationId:
    """One application of one life of a cluster: ``application_1763700000000_0001``.

    Attributes:
        cluster_timestamp: when the ResourceManager first started, in milliseconds.
        number: counted from 1.
    """

    cluster_timestamp: int = int64(2, 0, required=True)
    number: int = int32(1, 0, required=True, name="id")

    def __str__(self) -> str:
        return f"application_{self.cluster_timestamp}_{self.number:04d}"

    @staticmethod
    def parse(text: str) -> ApplicationId:
        """Read what `str` writes.

        Raises:
            ConfigError: something else.
        """
        timestamp, number = _numbers(_APPLICATION, text, "application id")
        return ApplicationId(timestamp, number)


@dataclass(frozen=True, slots=True, order=True)
class AttemptId:
    """One run of an application's master: ``appattempt_1763700000000_0001_000002``."""

    application: ApplicationId = message(1, ApplicationId, required=True, name="application_id")
    number: int = int32(2, 0, required=True, name="attemptId")

    def __str__(self) -> str:
        application = self.application
        return f"appattempt_{application.cluster_timestamp}_{application.number:04d}_{self.number:06d}"

    @staticmethod
    def parse(text: str) -> AttemptId:
        """Read what `str` writes.

        Raises:
            ConfigError: something else.
        """
        timestamp, application, number = _numbers(_ATTEMPT, text, "attempt id")
        return AttemptId(ApplicationId(timestamp, application), number)


@dataclass(frozen=True, slots=True, order=True)
class ContainerId:
    """One container; `number` holds the epoch above bit 40."""

    attempt: AttemptId = message(2, AttemptId, required=True, name="app_attempt_id")
    number: int = int64(3, 0, required=True, name="id")

    @property
    def epoch(self) -> int:
        """How often the ResourceManager had been restarted when it gave this container."""
        return self.number >> _EPOCH_SHIFT

    def __str__(self) -> str:
        application = self.attempt.application
        epoch = f"e{self.epoch:02d}_" if self.epoch > 0 else ""
        number = self.number & ((1 << _EPOCH_SHIFT) - 1)
        return (
            f"container_{epoch}{application.cluster_timestamp}_{application.number:04d}"
            f"_{self.attempt.number:02d}_{number:06d}"
        )

    @staticmethod
    def parse(text: str) -> ContainerId:
        """Read what `str` writes, and what CONTAINER_ID in a container's environment says.

        Raises:
            ConfigError: something else.
        """
        epoch, timestamp, application, attempt, number = _numbers(_CONTAINER, text, "container id")
        number |= epoch << _EPOCH_SHIFT
        if number > _MAX_INT64:
            raise ConfigError(f"{text[:80]!r} is no container id")
        return ContainerId(AttemptId(ApplicationId(timestamp, application), attempt), number)


@dataclass(frozen=True, slots=True, order=True)
class NodeId:
    """A NodeManager: the name it registered with and its RPC port."""

    host: str = string(1, "", required=True)
    port: int = int32(2, 0, required=True)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def _numbers(form: re.Pattern[str], text: str, what: str) -> list[int]:
    found = form.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text[:80]!r} is no {what}")
    numbers = [int(group or 0) for group in found.groups()]
    timestamps, counts = numbers[-len(numbers) : 2], numbers[2:4]
    if max(timestamps) > _MAX_INT64 or max(counts, default=0) > _MAX_INT32:
        raise ConfigError(f"{text[:80]!r} is no {what}")
    return numbers

"""By what jobs count as the same kind of job."""

from __future__ import annotations

from dataclasses import dataclass

#: One level of a chain: its name, then what must be equal.
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is known of a job before it runs.

    Attributes:
        user: who submitted it; empty: unknown.
        script: what it runs: the job's name or its script, without a run's own number; empty: unknown.
        shape: what it asks for, such as ``2x4+1`` (nodes, processors of each, GPUs of each).
        limit: the requested walltime as text; people change it with the input.
    """

    user: str = ""
    script: str = ""
    shape: str = ""
    limit: str = ""

    def chain(self) -> tuple[Key, ...]:
        """Keys from the closest kind of job to any job at all; what is unknown matches nothing.

        >>> [key[0] for key in Fingerprint("ada", "relax", "1x4", "3600").chain()][:3]
        ['user+script+shape+limit', 'user+script+shape', 'user+script']
        """
        user, script, shape, limit = self.user, self.script, self.shape, self.limit
        levels: tuple[Key, ...] = (
            ("user+script+shape+limit", user, script, shape, limit),
            ("user+script+shape", user, script, shape),
            ("user+script", user, script),
            ("script", script),
            ("user+shape+limit", user, shape, limit),
            ("user+shape", user, shape),
            ("user", user),
            ("recent",),
        )
        return tuple(key for key in levels if all(key[1:]))

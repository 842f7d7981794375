"""What the daemon finds out about jobs and nodes beside its decisions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Something an administrator should know of: one log line."""

    kind: str
    """``start-confirmed``, ``start-failed``, ``node-paused``, ``black-hole``."""
    subject: str
    text: str

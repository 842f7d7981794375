"""The words for a start that is planned: the same in a job's comment and in ``showstart``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import tzinfo

from torque_sched.core.decisions import Decision, Reserve
from torque_sched.core.model import JobId
from torque_sched.policies.gate import time_text


def guaranteed_words(at_s: float, zone: tzinfo) -> str:
    """A guaranteed start, as the job's comment and `showstart` have it: the minute by which it is over.

    >>> from datetime import timezone
    >>> guaranteed_words(0.0, timezone.utc)
    'not later than 1970-01-01 00:00 UTC'
    """
    return f"not later than {time_text(math.ceil(at_s / 60) * 60.0, zone)}"


def expected_words(at_s: float | None, zone: tzinfo) -> str:
    """An expected start, as the job's comment and `showstart` have it.

    >>> from datetime import timezone
    >>> expected_words(60.0, timezone.utc), expected_words(None, timezone.utc)
    ('expected 1970-01-01 00:01 UTC', 'no start expected yet')
    """
    return "no start expected yet" if at_s is None else f"expected {time_text(at_s, zone)}"


def with_expected(
    decisions: Iterable[Decision], expected: Mapping[JobId, float], zone: tzinfo
) -> tuple[Decision, ...]:
    """The decisions with the expected start in the words to each job that has a guaranteed one."""
    return tuple(_with_expected(decision, expected.get(decision.job), zone) for decision in decisions)


def _with_expected(decision: Decision, at_s: float | None, zone: tzinfo) -> Decision:
    if at_s is None or not isinstance(decision, Reserve) or decision.promise is None:
        return decision
    told = expected_words(min(at_s, decision.start_s), zone)
    return replace(decision, details={**decision.details, "expected": told})

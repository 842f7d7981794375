"""The records of `LateBinder`: claims, jobs, decisions; and how they are shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from yarn_accel.core.late_binding_reports import ClusterCount
from yarn_accel.core.tasks.commands import Candidate
from yarn_accel.core.tasks.late_binding.values import ClaimId, ClaimRequest
from yarn_accel.core.tasks.values import AppId, AppSpec, Form

_MOST_CANDIDATES = 16


@dataclass(slots=True, eq=False)
class JobRecord:
    """A user's job, as far as this node has seen it.

    Attributes:
        demands_of: forms, GPUs and name, which are the same for all its mappers.
        start_s: when its first claim came, anywhere.
        used_s: when this node last saw one.
        n_alloc: places this node has given it; `n_gpu` those of them with GPUs.
        elsewhere: what the master last said of other nodes; None: nothing.
        n_claims: open ones.
    """

    app: AppId
    spec: AppSpec
    demands_of: tuple[tuple[Form, ...], int, str]
    start_s: float
    used_s: float
    n_alloc: int = 0
    n_gpu: int = 0
    elsewhere: ClusterCount | None = None
    n_claims: int = 0


@dataclass(slots=True, eq=False)
class ClaimRecord:
    """One mapper's claim.

    Attributes:
        renewed_s: its last sign of life.
        form: in which it holds a place; None: it waits.
        gpus: indices of its GPUs.
        is_alone: nobody else on this node has read while it did.
    """

    claim: ClaimId
    user: str
    request: ClaimRequest
    job: JobRecord
    opened_s: float
    renewed_s: float
    form: Form | None = None
    gpus: tuple[int, ...] = ()
    granted_s: float = 0.0
    is_reading: bool = False
    is_alone: bool = True
    is_resumed: bool = False
    reason: str = ""

    @property
    def held_form(self) -> Form:
        """The form of a claim that holds a place."""
        assert self.form is not None
        return self.form


@dataclass(frozen=True, slots=True)
class LateDecision:
    """A decision, for `explain`: with every candidate of each form at that moment, the best first."""

    at_s: float
    claim: ClaimId
    app: AppId
    attempt: str
    form: Form
    gpus: tuple[int, ...]
    reason: str
    waited_s: float
    counts_age_s: float | None
    candidates: Mapping[Form, tuple[dict[str, Any], ...]]

    @classmethod
    def of(
        cls,
        claim: ClaimRecord,
        now_s: float,
        counts_age_s: float | None,
        candidates: Mapping[Form, tuple[dict[str, Any], ...]],
    ) -> LateDecision:
        """What was decided about a claim just now."""
        return cls(
            now_s,
            claim.claim,
            claim.job.app,
            claim.request.attempt,
            claim.held_form,
            claim.gpus,
            claim.reason,
            now_s - claim.opened_s,
            counts_age_s,
            {form: each[:_MOST_CANDIDATES] for form, each in candidates.items()},
        )

    def document(self, now_s: float) -> dict[str, Any]:
        """As JSON."""
        return {
            "age_s": round(now_s - self.at_s, 3),
            "claim": self.claim,
            "job": self.app,
            "attempt": self.attempt,
            "form": self.form.value,
            "gpus": list(self.gpus),
            "reason": self.reason,
            "waited_s": round(self.waited_s, 3),
            "counts_age_s": None if self.counts_age_s is None else round(self.counts_age_s, 3),
            "candidates": {form.value: list(each) for form, each in self.candidates.items()},
        }


def candidate_document(candidate: Candidate) -> dict[str, Any]:
    """A candidate as JSON."""
    return {
        "job": candidate.app,
        "predicted_delay": candidate.predicted_delay,
        "keys": {label: value if math.isfinite(value) else None for label, value in candidate.keys},
        "excluded": candidate.excluded,
    }


def claim_document(claim: ClaimRecord, now_s: float) -> dict[str, Any]:
    """A claim as JSON."""
    return {
        "claim": claim.claim,
        "user": claim.user,
        "job": claim.request.job,
        "name": claim.request.name,
        "attempt": claim.request.attempt,
        "form": None if claim.form is None else claim.form.value,
        "gpus": list(claim.gpus),
        "age_s": round(now_s - claim.opened_s, 3),
        "renewed_s_ago": round(now_s - claim.renewed_s, 3),
        "is_reading": claim.is_reading,
        "reason": claim.reason,
    }

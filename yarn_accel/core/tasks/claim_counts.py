"""Late binding on a node in a few numbers: what its agent reports to the master, and the words for people.

A document has ``waiting``, ``cpu`` and ``gpu`` (claims that wait, hold a core or hold a GPU now); ``decided``
(claims that got a place), ``undecided`` (refused) and ``lost`` (the mapper died, or its lease ended), these
three since the agent started; and ``counts_age_s``, the age of what the master last said of the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

CLAIM_STATES = ("waiting", "cpu", "gpu")
CLAIM_RESULTS = ("decided", "undecided", "lost")
_MAX_COUNT = 2**53
_MAX_AGE_S = 1e9


def claim_counts(
    claims: Mapping[str, int], outcomes: Mapping[str, int], counts_age_s: float | None
) -> dict[str, float]:
    """The document.

    Args:
        claims: how many there are by state.
        outcomes: see `LateBinder.outcomes`.
        counts_age_s: None: the master has not said anything of the cluster yet.
    """
    results = {
        "decided": outcomes.get("gpu", 0) + outcomes.get("cpu", 0),
        "undecided": outcomes.get("refused", 0),
        "lost": outcomes.get("lost", 0) + outcomes.get("expired", 0),
    }
    age = {} if counts_age_s is None else {"counts_age_s": round(counts_age_s, 3)}
    return {**{state: claims.get(state, 0) for state in CLAIM_STATES}, **results, **age}


def parse_claim_counts(value: Any) -> dict[str, float] | None:
    """What an agent reports, without keys whose value is none; None: it reports nothing."""
    if not isinstance(value, Mapping):
        return None
    found = {key: value[key] for key in (*CLAIM_STATES, *CLAIM_RESULTS) if _is_count(value.get(key))}
    age_s = value.get("counts_age_s")
    if isinstance(age_s, int | float) and not isinstance(age_s, bool) and 0 <= age_s <= _MAX_AGE_S:
        found["counts_age_s"] = age_s
    return found or None


def sum_claim_counts(found: Iterable[Mapping[str, float]]) -> dict[str, float] | None:
    """Of several nodes: the sums, how many ``nodes`` these are, and the largest age; None: of no node."""
    documents = list(found)
    if not documents:
        return None
    keys = (*CLAIM_STATES, *CLAIM_RESULTS)
    ages_s = [each["counts_age_s"] for each in documents if "counts_age_s" in each]
    return {
        "nodes": len(documents),
        **{key: sum(each.get(key, 0) for each in documents) for key in keys},
        **({"counts_age_s": max(ages_s)} if ages_s else {}),
    }


def claims_text(counts: Mapping[str, Any]) -> str:
    """Who holds and who waits, in words."""
    gpu, cpu, waiting = (_shown(counts.get(key)) for key in ("gpu", "cpu", "waiting"))
    return f"{gpu} GPU, {cpu} core, {waiting} wait"


def results_text(counts: Mapping[str, Any]) -> str:
    """What became of claims, and by how old counts, in words."""
    words = ", ".join(f"{_shown(counts.get(key))} {key}" for key in CLAIM_RESULTS)
    age_s = counts.get("counts_age_s")
    is_known = isinstance(age_s, int | float) and math.isfinite(age_s)
    return f"{words}; counts of the cluster {f'{age_s:.1f} s old' if is_known else 'not known'}"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def _shown(value: Any) -> str:
    return f"{value:,}" if _is_count(value) else "-"

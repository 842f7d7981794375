"""What an agent reports of late binding: bounded, and nothing of it trusted."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.core.tasks.claim_counts import (
    claim_counts,
    claims_text,
    parse_claim_counts,
    results_text,
    sum_claim_counts,
)

OUTCOMES = Counter(gpu=3, cpu=4, late=1, refused=2, lost=5, expired=1, ended=9)
COUNTS = {
    "waiting": 2,
    "cpu": 0,
    "gpu": 1,
    "decided": 7,
    "undecided": 2,
    "lost": 6,
    "counts_age_s": 1.235,
}


def test_the_document_of_an_agent_is_parsed_as_it_is():
    assert claim_counts({"waiting": 2, "gpu": 1}, OUTCOMES, 1.23456) == COUNTS
    assert parse_claim_counts(json.loads(json.dumps(COUNTS))) == COUNTS
    assert "counts_age_s" not in claim_counts({}, {}, None)


@pytest.mark.parametrize("value", [None, [], "gpu", 7, {}, {"gpu": "1", "cpu": True}, {"user": 1}])
def test_what_is_none_is_nothing(value):
    assert parse_claim_counts(value) is None


@pytest.mark.parametrize("value", [-1, 1.5, True, "1", None, 2**60, float("nan"), float("inf"), [1], {}])
def test_a_malformed_number_is_left_out_and_the_others_count(value):
    assert parse_claim_counts({**COUNTS, "gpu": value}) == {
        key: each for key, each in COUNTS.items() if key != "gpu"
    }


@pytest.mark.parametrize("value", [-1, True, "1", None, 1e12, float("nan"), float("inf"), 10**400, [1]])
def test_a_malformed_age_is_left_out(value):
    found = parse_claim_counts({**COUNTS, "counts_age_s": value})
    assert found == {key: each for key, each in COUNTS.items() if key != "counts_age_s"}


def test_sums():
    other = {"gpu": 1, "decided": 3, "counts_age_s": 4.0, "lost": 1}
    total = sum_claim_counts([COUNTS, other])
    assert total == {
        **COUNTS,
        "nodes": 2,
        "gpu": 2,
        "decided": 10,
        "lost": 7,
        "counts_age_s": 4.0,
    }
    assert sum_claim_counts([]) is None


def test_words():
    assert claims_text(COUNTS) == "1 GPU, 0 core, 2 wait"
    assert results_text(COUNTS) == "7 decided, 2 undecided, 6 lost; counts of the cluster 1.2 s old"
    assert claims_text({"gpu": 1}) == "1 GPU, - core, - wait"
    assert results_text({}) == "- decided, - undecided, - lost; counts of the cluster not known"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*COUNTS, "x"]), inner),
    max_leaves=12,
)


@given(JSON)
def test_whatever_comes_is_finite_small_and_can_be_shown(value):
    found = parse_claim_counts(value)
    if found is not None:
        assert set(found) <= set(COUNTS)
        assert len(json.dumps(found, allow_nan=False)) < 250
        assert claims_text(found)
        assert results_text(found)
        json.dumps(sum_claim_counts([found, found]), allow_nan=False)

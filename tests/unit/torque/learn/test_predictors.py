"""Predictors: the paper's rule in all its cases, the chain, and bounds that hold as often as they say."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torque_sched.errors import ConfigError, ModelError
from torque_sched.learn.chain import ChainPredictor, ChainSettings, UpperBound
from torque_sched.learn.ensemble import PREDICTORS, new_predictor
from torque_sched.learn.predictors import Estimate, Fingerprint, Predictor, SeedPredictor

RELAX = Fingerprint("ada", "relax", "1x4", "3600")
OTHER = Fingerprint("bob", "train", "2x8", "7200")


def taught(predictor: Predictor, job: Fingerprint, *values: float) -> Predictor:
    for value in values:
        predictor.observe(job, value)
    return predictor


NAMELESS = Fingerprint("ada", "")


@pytest.mark.parametrize(
    ("recent", "kind", "records", "value"),
    [
        (10, RELAX, [0.5], 0.5),
        (2, RELAX, [0.0, 0.0, 0.0, 1.0], 0.25),
        (10, OTHER, [0.8], 0.8),
        (10, OTHER, [0.0] * 8 + [1.0, 1.0], 0.6),  # L = N = 10, L1 = 2: 0.6 * mean(1, 1) + 0.4 * mean(zeros)
        (5, OTHER, [9.0] * 20 + [0.1, 0.1, 0.1, 0.1, 0.5], 0.34),  # L = 5, L1 = 1: 0.6 * 0.5 + 0.4 * 0.1
        (10, OTHER, [0.0, 1.0], 0.6),
    ],
    ids=["one match", "mean of all matches", "another kind", "newer fifth", "the last L", "one and one"],
)
def test_the_rule_of_the_paper(recent: int, kind: Fingerprint, records: list[float], value: float) -> None:
    said = taught(SeedPredictor(recent=recent), kind, *records).predict(RELAX)
    assert said.value == pytest.approx(value)
    if kind is RELAX:
        assert (said.n_similar, said.evidence) == (len(records), "script")


def test_what_no_record_matches_is_the_nodes_own_mean_or_the_recent() -> None:
    assert SeedPredictor().predict(RELAX, fallback=0.37) == Estimate(0.37)
    assert ChainPredictor().predict(RELAX, fallback=0.2) == Estimate(0.2)
    assert taught(SeedPredictor(), NAMELESS, 1.0).predict(NAMELESS).evidence == "recent"


class TestChain:
    def test_says_the_closest_kind_it_knows(self) -> None:
        predictor = taught(ChainPredictor(), RELAX, 0.5, 0.5)
        assert predictor.predict(RELAX).evidence == "user+script+shape+limit"
        assert predictor.predict(Fingerprint("ada", "relax", "9x9", "1")).evidence == "user+script"
        assert predictor.predict(Fingerprint("eve", "relax")).evidence == "script"
        assert predictor.predict(OTHER).evidence == "recent"

    def test_forgets_what_a_script_once_did(self) -> None:
        values = [0.9] * 50 + [0.1] * 20
        chain = taught(ChainPredictor(), RELAX, *values)
        seed = taught(SeedPredictor(), RELAX, *values)
        assert chain.predict(RELAX).value == pytest.approx(0.1)
        assert seed.predict(RELAX).value > 0.6

    def test_one_wild_run_moves_nothing(self) -> None:
        steady = taught(ChainPredictor(), RELAX, *[0.4, 0.5, 0.6] * 10, 100.0)
        assert 0.4 <= steady.predict(RELAX).value <= 0.6

    def test_forgets_kinds_beyond_its_bound(self) -> None:
        predictor = ChainPredictor(ChainSettings(max_kinds=50))
        for number in range(200):
            predictor.observe(Fingerprint(f"u{number}", f"s{number}", "1x1", "1"), 0.5)
        assert len(predictor) == 50


@pytest.mark.parametrize("name", PREDICTORS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_no_number_is_refused(name: str, value: float) -> None:
    predictor = new_predictor(name)
    with pytest.raises(ModelError, match="cannot have used"):
        predictor.observe(RELAX, value)
    assert predictor.predict(RELAX, fallback=0.25).value == 0.25


def test_an_unknown_predictor_names_the_known() -> None:
    with pytest.raises(ConfigError, match="chain, seed"):
        new_predictor("oracle")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0, 1)), max_size=80))
@pytest.mark.parametrize("name", PREDICTORS)
def test_predictions_stay_within_what_was_seen(name: str, records: list[tuple[int, int, float]]) -> None:
    first, second = new_predictor(name), new_predictor(name)
    for user, script, value in records:
        for predictor in (first, second):
            predictor.observe(Fingerprint(f"u{user}", f"s{script}"), value)
    said = first.predict(Fingerprint("u0", "s0"), fallback=0.5)
    values = [value for _, _, value in records] or [0.5]
    assert min(values) - 1e-9 <= said.value <= max(values) + 1e-9
    assert said == second.predict(Fingerprint("u0", "s0"), fallback=0.5), "equal histories, equal answers"


@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_a_bound_covers_what_it_says_even_when_the_world_changes(spread: float) -> None:
    rng = random.Random(7)
    bound = UpperBound(0.9)
    covered = []
    for step in range(6000):
        # Half way through everything becomes three times as wild.
        outcome = rng.gauss(0.0, spread * (1 if step < 3000 else 3))
        said = bound.bound(0.0, 1.0)
        covered.append(outcome <= said)
        bound.observe(outcome, 0.0, 1.0, said)
    assert 0.88 <= sum(covered[500:]) / len(covered[500:]) <= 0.92

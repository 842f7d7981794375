from __future__ import annotations

import pytest

from torque_sched.core.grid.formulas import SPLIT_FORMULAS, SplitCost, check_formula, register_formula
from torque_sched.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        # Our table of candidates: f = 2, 3, 4, 8 at p = 0.4.
        ("power", (1.32, 1.55, 1.741, 2.30)),
        ("harmonic", (1.40, 1.60, 1.733, 2.04)),
        ("linear", (1.40, 1.80, 2.20, 3.80)),
        ("constant", (1.40, 1.40, 1.40, 1.40)),
    ],
)
def test_factors_at_p_04(name: str, factors: tuple[float, ...]) -> None:
    cost = SplitCost(name, 0.4)
    found = [cost.length_s(1000.0, f) / 1000.0 for f in (2, 3, 4, 8)]
    assert found == pytest.approx(factors, abs=0.005)


def test_only_power_and_harmonic_say_over_70_percent_at_the_number_of_sites() -> None:
    def says(name: str) -> bool:
        return 1.7 < SPLIT_FORMULAS[name](4, 0.4) < 1.8

    assert {name for name in SPLIT_FORMULAS if says(name)} == {"power", "harmonic"}


@pytest.mark.parametrize(
    ("formula", "wrong"),
    [
        (lambda f, p: 1 + p * f, "a whole job must keep its length"),
        (lambda f, p: 1.0 + 0.1 * (f - 1), "p=0 must cost nothing"),
        (lambda f, p: 1.0 + p * (f - 1) * (9 - f) if f < 9 else 1.0, "fall with more blocks"),
        (lambda f, p: 1.0 + (f - 1) * p * (1 - p), "fall with p"),
    ],
)
def test_what_is_no_formula_is_refused_with_the_reason(formula, wrong: str) -> None:
    assert wrong in check_formula(formula)
    with pytest.raises(ConfigError, match="split formula 'mine'"):
        register_formula("mine", formula)
    assert "mine" not in SPLIT_FORMULAS


def test_an_own_formula_can_be_used_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(SPLIT_FORMULAS):  # what is registered here is gone after the test
        monkeypatch.setitem(SPLIT_FORMULAS, name, SPLIT_FORMULAS[name])
    monkeypatch.setitem(SPLIT_FORMULAS, "square", lambda f, p: 1.0)
    monkeypatch.delitem(SPLIT_FORMULAS, "square")
    register_formula("square", lambda f, p: 1.0 + p * (f - 1) ** 2)
    assert SplitCost("square", 0.5).length_s(10.0, 3) == 30.0
    with pytest.raises(ConfigError, match="is there already"):
        register_formula("square", lambda f, p: 1.0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"formula": "cubic"}, "known: constant, harmonic, linear, power"),
        ({"p": -0.1}, "p = -0.1"),
        ({"p": float("nan")}, "p = nan"),
        ({"min_gain": -1.0}, "lambda = -1"),
        ({"max_blocks": 0}, "f = 0"),
    ],
)
def test_bad_settings_are_named(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SplitCost(**values)  # type: ignore[arg-type]

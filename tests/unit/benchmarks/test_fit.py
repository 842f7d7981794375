"""How inputs that the papers lost were chosen: the search, and what it aims at."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from benchmarks import RESULTS
from benchmarks.papers.fit import TARGETS, loss_of, parameters_of, search, unevenness, vector_of
from benchmarks.papers.hdas_paper.paper import SETS
from benchmarks.result import Row


def recorded(name: str) -> dict[str, Row]:
    rows = json.loads((RESULTS / "hdas_paper.json").read_text())["rows"]
    return {
        row["what"].removeprefix(f"{name}: "): Row(**row)
        for row in rows
        if row["what"].startswith(f"{name}: ")
    }


def test_it_aims_at_35_statements_and_each_stands_apart_on_the_page() -> None:
    assert len(TARGETS) == 35
    assert all(claim.is_fitted for claim in TARGETS.values())


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_a_vector_and_back(name) -> None:
    found = parameters_of(vector_of(SETS[name]))
    assert found.gamma == pytest.approx(SETS[name].gamma)
    for app, shipped in SETS[name].apps.items():
        # Of BP and of those whose part of reading the paper states, the rest follows from that.
        assert asdict(found.apps[app]) == pytest.approx(asdict(shipped), rel=0.02)


def test_the_shipped_sets_are_nearer_than_others() -> None:
    shipped = loss_of(recorded("S2"))
    others = {what: replace(row, value=row.value * 1.1) for what, row in recorded("S2").items()}
    assert 0 < shipped < loss_of(others)


def test_a_search_that_is_killed_goes_on_as_if_it_had_not_been(tmp_path) -> None:
    asked = []

    def loss(vector) -> float:
        asked.append(tuple(vector))
        return sum((each - 0.3) ** 2 for each in vector)

    whole = search([0.0] * 4, loss, 60, tmp_path / "whole", lambda line: None)
    in_one_go = list(asked)
    asked.clear()
    search([0.0] * 4, loss, 25, tmp_path / "parts", lambda line: None)
    assert search([0.0] * 4, loss, 60, tmp_path / "parts", lambda line: None) == whole
    assert asked == in_one_go
    assert whole[1] < 0.36
    assert in_one_go[0] == (0.0,) * 4


def test_a_larger_cluster_is_another_one() -> None:
    assert unevenness(0.5, 1.0, "firstfit", 0) != unevenness(1.0, 1.0, "firstfit", 0)

"""What people see of promises and reservations: words for moments and nodes, the report's part, figures."""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.torque.adapters.test_files import figures_text
from tests.unit.torque.learning.build import NOW_S, job, node, snapshot
from torque_sched.adapters.metrics import Figures
from torque_sched.core.model import NodeName
from torque_sched.errors import ConfigError
from torque_sched.learning.promises import MADE, Change, Outcome
from torque_sched.policies.context import Reservation
from torque_sched.report.booking import chosen_nodes, moment_s, running_into, span_of
from torque_sched.report.kept import ON_TIME_S, promises_section, punctuality

NODES = (node("n1"), node("n2", properties=("big",)), node("n3", properties=("big",)), node("n4"))


def local(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))


def test_moments_as_people_write_them() -> None:
    now_s = local("2026-11-20 17:00:00")
    assert moment_s("now", now_s) == now_s
    assert moment_s("+2:00:00", now_s) == now_s + 7200
    assert moment_s("+90", now_s) == now_s + 90
    assert moment_s("18:30", now_s) == local("2026-11-20 18:30:00")
    assert moment_s("08:15:30", now_s) == local("2026-11-21 08:15:30")
    assert moment_s("17:00", now_s) == local("2026-11-21 17:00:00")
    assert moment_s("2026-12-24T08:00", now_s) == local("2026-12-24 08:00:00")
    assert moment_s("2026-12-24 08:00:00", now_s) == local("2026-12-24 08:00:00")
    assert moment_s("1800000000", now_s) == 1_800_000_000.0
    for text in ("", "soon", "25:00", "12:60", "+x", "2026-13-01", "-5", "９:00", "+" + "9" * 99):
        with pytest.raises(ConfigError, match="is no moment"):
            moment_s(text, now_s)


@given(st.text(max_size=12))
def test_any_words_are_a_moment_or_a_clear_error(text: str) -> None:
    try:
        assert isinstance(moment_s(text, NOW_S), float)
    except ConfigError as error:
        assert "is no moment" in error.message


def test_spans_that_cannot_be_are_told() -> None:
    assert span_of("+60", "", "1:00:00", NOW_S) == (NOW_S + 60, NOW_S + 3660)
    assert span_of("now", "+60", "", NOW_S) == (NOW_S, NOW_S + 60)
    for start, end, length, words in (
        ("1000000000", "", "60", "is over"),
        ("+60", "+30", "", "does not come after"),
        ("now", "", "0", "does not come after"),
        ("now", "", "long", "is no length"),
        ("now", "", "9000:00:00:00", "longer than a year"),
    ):
        with pytest.raises(ConfigError, match=words):
            span_of(start, end, length, NOW_S)


def test_nodes_by_name_and_by_count() -> None:
    seen = snapshot(nodes=NODES)
    assert chosen_nodes(seen, "n1,n4", NOW_S, NOW_S + 60, ()) == {"n1", "n4"}
    assert chosen_nodes(seen, "n1+n4", NOW_S, NOW_S + 60, ()) == {"n1", "n4"}
    assert chosen_nodes(seen, "2", NOW_S, NOW_S + 60, ()) == {"n1", "n2"}
    assert chosen_nodes(seen, "2:big", NOW_S, NOW_S + 60, ()) == {"n2", "n3"}
    taken = Reservation("a", frozenset({NodeName("n2")}), NOW_S, NOW_S + 60)
    assert chosen_nodes(seen, "1:big", NOW_S, NOW_S + 60, (taken,)) == {"n3"}
    assert chosen_nodes(seen, "1:big", NOW_S + 60, NOW_S + 90, (taken,)) == {"n2"}
    with pytest.raises(ConfigError, match="there are 2, of which 1 are up and not reserved then"):
        chosen_nodes(seen, "2:big", NOW_S, NOW_S + 60, (taken,))
    for text in ("n9", "n1,n9", "", ",", "0"):
        with pytest.raises(ConfigError, match=r"no node|are wanted"):
            chosen_nodes(seen, text, NOW_S, NOW_S + 60, ())


def test_of_equal_nodes_those_whose_jobs_end_in_time_are_taken_and_others_are_told() -> None:
    runs = job(1, "R", node="n2", start_s=NOW_S, walltime_s=1000.0)
    endless = job(2, "R", node="n1", start_s=NOW_S, walltime_s=None)
    seen = snapshot(runs, endless, nodes=NODES)
    assert chosen_nodes(seen, "1:big", NOW_S + 500, NOW_S + 600, ()) == {"n3"}
    assert chosen_nodes(seen, "1:big", NOW_S + 1000, NOW_S + 2000, ()) == {"n2"}
    assert chosen_nodes(seen, "3", NOW_S + 1000, NOW_S + 2000, ()) == {"n2", "n3", "n4"}
    both = frozenset({NodeName("n1"), NodeName("n2")})
    assert running_into(seen, both, NOW_S + 500) == [
        (runs.id, "n2", NOW_S + 1000), (endless.id, "n1", None),
    ]  # fmt: skip
    assert running_into(seen, both, NOW_S + 1000) == [(endless.id, "n1", None)]


def outcome(number: int, first_error_s: float, last_error_s: float, kind: str = "") -> Outcome:
    start_s = NOW_S + 100.0 * number
    changes = [Change(NOW_S, None, start_s - first_error_s, MADE)]
    if kind:
        changes.append(Change(NOW_S + 1, changes[0].to_s, start_s - last_error_s, kind, "<b>n1</b>"))
    return Outcome(
        (f"{number}.head", 1.0), start_s, NOW_S, start_s - first_error_s, start_s - last_error_s,
        0, len(changes) - 1, tuple(changes),
    )  # fmt: skip


def test_punctuality_counts_what_is_late() -> None:
    found = punctuality([-100.0, 0.0, ON_TIME_S, ON_TIME_S + 1, 1000.0])
    assert found is not None
    assert (found.n, found.kept, found.worst_s, found.half_s) == (5, 0.6, 1000.0, ON_TIME_S)
    assert found.mean_late_s == (60.0 + 61.0 + 1000.0) / 5
    assert punctuality([]) is None


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), max_size=40))
def test_the_part_on_promises_is_well_formed(errors_s: list[tuple[float, float]]) -> None:
    outcomes = [outcome(n, first, last, "node-failed") for n, (first, last) in enumerate(errors_s)]
    text = "".join(promises_section(outcomes))
    ElementTree.fromstring(f"<div>{text}</div>")
    assert "<b>" not in text
    assert (f"{len(outcomes)} jobs had a guaranteed start" in text) == bool(outcomes)
    if outcomes:
        assert "node-failed" in text


def test_figures_of_promises() -> None:
    figures = Figures()
    figures.cycle(0.3, 0.1, {"started": 2}, {}, {})
    figures.promised(7, {"made": 3, "node-failed": 1}, [(100.0, -20.0), (0.0, 0.0)])
    figures.promised(6, {"made": 1}, [])
    figures.prediction_errors = {"cpu": (0.1, 0.3, True)}
    text = figures_text(figures)

    def value(name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found, (name, text)
        return float(found[1])

    assert value("torque_sched_guaranteed_starts") == 6
    assert value('torque_sched_guaranteed_start_changes_total{kind="made"}') == 4
    assert value('torque_sched_guaranteed_start_changes_total{kind="node-failed"}') == 1
    assert value('torque_sched_guaranteed_start_late_seconds_bucket{le="60.0",which="first"}') == 1
    assert value('torque_sched_guaranteed_start_late_seconds_bucket{le="300.0",which="first"}') == 2
    assert value('torque_sched_guaranteed_start_late_seconds_sum{which="last"}') == 0
    assert value('torque_sched_guaranteed_start_early_seconds_sum{which="last"}') == 20
    assert value('torque_sched_prediction_error{figure="cpu",of="last"}') == 0.3
    assert value('torque_sched_prediction_drift{figure="cpu"}') == 1
    assert value('torque_sched_cycle_seconds_bucket{le="0.2"}') == 0
    assert value('torque_sched_cycle_seconds_bucket{le="0.5"}') == 1

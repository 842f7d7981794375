"""What people look at, piece by piece: words, plots, the page, the job that is only asked about."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.torque.learn.build import NOW_S, job, node, snapshot
from torque_sched.batch.torque.asked import asked_job
from torque_sched.daemon.config import Config
from torque_sched.decide.context import Context
from torque_sched.decide.settings import Settings
from torque_sched.errors import ConfigError
from torque_sched.learn import History
from torque_sched.learn.promises import MADE, Change, Outcome
from torque_sched.learn.rows import BalanceRow, CycleFacts
from torque_sched.learn.store import Store
from torque_sched.model.cluster import JobId, NodeName, Queue, QueueName, Resources, Server
from torque_sched.model.snapshot import Reservation, Snapshot
from torque_sched.report.booking import chosen_nodes, running_into, span_of
from torque_sched.report.page import ON_TIME_S, Line, bars, lines, page, promises_section, punctuality
from torque_sched.report.past import decisions_about
from torque_sched.report.picture import Picture, State, find
from torque_sched.report.summary import summarise
from torque_sched.report.tables import daemon_line, reasons_table
from torque_sched.report.words import moment


@given(st.lists(st.floats(0, 1e9), max_size=30), st.text(max_size=10))
def test_every_plot_is_well_formed_and_stays_inside(values: list[float], word: str) -> None:
    at = [float(n) for n in range(len(values))]
    for text in (lines(word, at, [Line(word, values)], [word] * 3), bars(word, values, [word] * len(values))):
        # XML holds no control characters, HTML shows them as nothing.
        root = ElementTree.fromstring(re.sub(r"[^\x20-\ud7ff\ue000-\ufffd]", "", text))
        for line in root.iter("polyline"):
            points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
            assert all(0 <= x <= 760 and 0 <= y <= 220 for x, y in points)


def balance(at_s: float) -> BalanceRow:
    return BalanceRow(at_s, 4, 1, 2, 0.5, 0.1, 0.2, 0.3, 0.05, 8, 2, 1, 3, 60.0)


def test_the_page_escapes_names_and_fetches_nothing(tmp_path: Path) -> None:
    history = History.open(tmp_path / "history.sqlite")
    evil = "<img src=http://x/ onerror=alert(1)>"
    machine = node(rectime_s=NOW_S + 50, gpus=(0.0,))
    running = job(1, "R", gpus=1, user=evil, start_s=NOW_S)
    history.observe(snapshot(running, nodes=(machine,)))
    history.observe(snapshot(job(1, "C", gpus=1, user=evil, start_s=NOW_S), nodes=(machine,)))
    history.close()
    store = Store(tmp_path / "history.sqlite")
    for at_s in (NOW_S, NOW_S + 60):
        store.record(CycleFacts(balance=balance(at_s)))
    summary = summarise(store, 0.0, NOW_S + 100)
    store.close()
    text = page(summary, evil)
    assert evil not in text
    assert "&lt;img src=http://x/ onerror=alert(1)&gt;" in text
    tags = re.findall(r"<(\w+)", text)
    assert not set(tags) & {"img", "script", "link", "iframe", "object"}
    assert not re.search(r'(?:src|href)\s*=\s*"', text)
    assert "default-src 'none'" in text
    holder = summary.gpu_holders[0]
    assert (holder.user, holder.n_unused, holder.used_hours) == (evil, 1, 0.0)


def test_words_below_a_plot_are_of_the_times_above_them() -> None:
    store = Store(None)
    for at_s in (NOW_S, NOW_S + 60, NOW_S + 10800):  # three hours, most of them without a scheduler
        store.record(CycleFacts(balance=balance(at_s)))
    text = page(summarise(store, 0.0, NOW_S + 10900), "x")
    for at_s in (NOW_S, NOW_S + 3600, NOW_S + 7200, NOW_S + 10800):
        assert f">{moment(at_s, '%Y-%m-%d %H:%M')}</text>" in text


def test_one_moment_is_not_drawn() -> None:
    store = Store(None)
    store.record(CycleFacts(balance=balance(NOW_S)))
    text = page(summarise(store, 0.0, NOW_S + 1), "x")
    assert "0 jobs ended" in text
    assert "nothing to draw yet" in text
    assert "polyline" not in text


def test_why_jobs_wait() -> None:
    jobs = {
        "1.head": {"decision": "hold", "reason": "job-held", "comment": "Not Running: x"},
        "2.head": {"decision": "start"},
    }
    assert reasons_table(State({"jobs": jobs, "mode": "serve"})).row_count == 1
    told = reasons_table(State({"jobs": jobs, "mode": "shadow"}))
    assert "the shadow would start them" in " ".join(map(str, told.columns[1].cells))


def test_summary_counts_waits_and_coverage(tmp_path: Path) -> None:
    history = History.open(tmp_path / "history.sqlite")
    jobs = [job(n, "C", start_s=NOW_S + n + 10.0 * n) for n in range(1, 11)]
    for each in jobs:
        history.observe(snapshot(each))
    history.close()
    store = Store.read_only(tmp_path / "history.sqlite")
    summary = summarise(store, 0.0, NOW_S + 500)
    store.close()
    assert summary.waits_s == tuple(10.0 * n for n in range(1, 11))
    assert [summary.wait_quantile(share) for share in (0.5, 0.9, 1.0)] == [50.0, 90.0, 100.0]
    by_figure = {error.figure.value: error for error in summary.errors}
    assert by_figure["cpu"].n == 9  # the first was predicted out of nothing
    assert by_figure["cpu"].mean_error == pytest.approx(0.0)
    assert by_figure["cpu"].by_predictor.keys() == {"chain", "seed"}


SITE = Snapshot(
    NOW_S, replace(Server(), name="head.cluster", default_queue="batch", next_job_number=77),
    (
        Queue(name=QueueName("batch"), resources_default=Resources({"nodes": "1", "walltime": "01:00:00"})),
        Queue(name=QueueName("gpu")),
    ),
    (node(),), (job(90),),
)  # fmt: skip


def test_a_job_asked_about_is_as_the_server_would_store_it() -> None:
    asked = asked_job(SITE, "nodes=2:ppn=4:gpus=1+1:big,mem=8gb", user="ada", name="relax-1")
    assert (asked.id, asked.queue, asked.user, asked.queued_s) == ("91.head", "batch", "ada", NOW_S)
    assert (asked.request.n_gpus, asked.request.n_procs, asked.request.mem_bytes) == (2, 9, 8 << 30)
    assert asked.walltime_s == 3600.0
    assert asked_job(SITE, "gpus=2,procs=4", user="ada").request.gpus_anywhere == 2
    assert asked_job(SITE, "mem=1gb", user="ada").request.nodes_text == "1"


def test_a_name_means_a_node_or_a_job_or_nothing() -> None:
    members = tuple(replace(job(5), id=JobId(f"5[{i}].head"), array_index=i) for i in (0, 1))
    look = snapshot(job(1), *members)
    assert find(look, "n1") is look.nodes[0]
    assert find(look, "1") is look.jobs[0]
    assert find(look, "5[1].head") is members[1]
    for name in ("5", "5[]", "5[].head"):
        with pytest.raises(ConfigError, match="is an array of 2 jobs"):
            find(look, name)
    with pytest.raises(ConfigError, match="no job and no node"):
        find(look, "2")
    look = snapshot(nodes=(node("n1.cluster"), node("n2.east"), node("n2.west")))
    assert find(look, "n1") is look.nodes[0]
    with pytest.raises(ConfigError, match="no job and no node"):
        find(look, "n2")


def test_the_journal_tells_what_was_decided_about_a_job(tmp_path: Path) -> None:
    def line(at_s: float, *decisions: dict[str, object], results: object = None) -> str:
        return json.dumps({"now_s": at_s, "decisions": decisions, "results": results or {}}) + "\n"

    n1, n2 = ([{"node": name, "ppn": 2, "gpus": 0}] for name in ("n1", "n2"))
    hold = {"is": "hold", "job": "1.head", "reason": "no-free-slots", "details": {"why": "2 full"}}
    reserve = {"is": "reserve", "job": "1.head", "start_s": 90.0, "reason": "reserved", "allocation": n1}
    start = {"is": "start", "job": "1.head", "allocation": n2}
    other = {"is": "hold", "job": "11.head", "reason": "job-held", "details": {}}
    (tmp_path / "cycles-1.jsonl").write_text(line(1, hold) + line(2, hold, other) + line(3, other))
    (tmp_path / "cycles-2.jsonl").write_text(
        line(4, reserve) + line(5, start, results={"1.head": ["started", ""]}) + '{"now_s": 6, "torn'
    )
    past = decisions_about(tmp_path, "1.head")
    found = [(each.kind, each.at_s, each.last_s) for each in past]
    assert found == [("hold", 1, 2), ("reserve", 4, 4), ("start", 5, 5)]
    assert past[0].words == "Not enough of the right type of nodes available (free slots: 2 full)"
    assert (past[1].reserved_s, past[1].nodes) == (90.0, ("n1",))
    assert past[2].words.startswith("started")
    assert decisions_about(tmp_path / "none", "1.head") == ()


def test_a_state_file_tells_what_is_left_alone_while_it_is_fresh() -> None:
    kept = {"nodes": {"n1": {"until_s": 50.0, "why": "failed"}}, "pairs": {"1.head": {"n2": {"until_s": 9}}}}
    state = State({"now_s": 10.0, "pid": 0, "back_off": {"jobs": {}, **kept}})
    assert state.back_off(20.0).nodes[NodeName("n1")].why == "failed"
    assert state.back_off(20.0).pairs[JobId("1.head")][NodeName("n2")].until_s == 9.0
    assert not state.back_off(1e6).nodes
    assert not state.is_alive
    assert not State({}).trouble


@pytest.mark.parametrize(
    ("holder", "is_alive", "words"),
    [
        (72, True, "serve: runs (process 72); last cycle"),
        (0, False, "serve: process 72 is gone; last cycle"),
        (80, False, "process 72 is gone, process 80 has its lock: another scheduler, or one of ours that"),
    ],
)
def test_who_runs_is_the_locks_word(holder: int, is_alive: bool, words: str) -> None:
    """A state file may be old: its process gone, its number somebody else's, the disk full since."""
    state = State({"pid": 72, "mode": "serve", "now_s": NOW_S, "last_cycle": {"n_jobs": 0}}, holder)
    assert state.is_alive == is_alive
    assert words in daemon_line(state, NOW_S + 9)


def test_a_scheduler_that_is_not_ours_is_told_of() -> None:
    assert daemon_line(State({}, 0), NOW_S) == "no scheduler of ours has run here"
    assert "process 80 has the lock: another scheduler" in daemon_line(State({}, 80), NOW_S)


@pytest.mark.parametrize(("silent_s", "n"), [(100.0, 1), (179.0, 1), (181.0, 2)])
def test_a_daemon_that_tells_nothing_is_told_of(silent_s: float, n: int) -> None:
    state = State({"pid": 72, "mode": "serve", "now_s": NOW_S - silent_s, "trouble": ["of it"]}, 72)
    seen = Picture(
        snapshot([], []), Settings(), Context(), History.open(None), state, Config(), False, Path()
    )
    assert len(seen.troubles) == n
    assert seen.troubles[-1] == "of it"


# What people see of promises and reservations: words for moments and nodes, the report's part, figures.


NODES = (node("n1"), node("n2", properties=("big",)), node("n3", properties=("big",)), node("n4"))


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
    for text, found in (("n1,n4", "n1 n4"), ("n1+n4", "n1 n4"), ("2", "n1 n2"), ("2:big", "n2 n3")):
        assert chosen_nodes(seen, text, NOW_S, NOW_S + 60, ()) == set(found.split())
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
    late, never = (runs.id, "n2", NOW_S + 1000), (endless.id, "n1", None)
    assert running_into(seen, both, NOW_S + 500) == [late, never]
    assert running_into(seen, both, NOW_S + 1000) == [never]


def outcome(number: int, first_error_s: float, last_error_s: float, kind: str) -> Outcome:
    start_s = NOW_S + 100.0 * number
    first_s, last_s = start_s - first_error_s, start_s - last_error_s
    changes = (Change(NOW_S, None, first_s, MADE), Change(NOW_S + 1, first_s, last_s, kind, "<b>n1</b>"))
    return Outcome((f"{number}.head", 1.0), start_s, NOW_S, first_s, last_s, 0, 1, changes)


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

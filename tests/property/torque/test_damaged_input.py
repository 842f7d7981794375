"""One damaged value in what we read: that record alone is lost, named and counted; no cycle stops."""

from __future__ import annotations

import functools
import re
import sqlite3
import tempfile
from contextlib import closing, suppress
from datetime import timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fixtures.torque_builders import job, node, snapshot
from tests.unit.torque.learn import build as learned
from tests.unit.torque.simulate.worlds import rules
from torque_sched.batch.accounting import read_on
from torque_sched.batch.torque.pbs import read_snapshot
from torque_sched.daemon.c_policy import SettingsInForce, c_files_of
from torque_sched.daemon.config import Config
from torque_sched.decide.context import Context
from torque_sched.decide.decide import decide
from torque_sched.decide.settings import BACKFILLS, Settings, new_backfill
from torque_sched.errors import TorqueSchedError
from torque_sched.learn import History
from torque_sched.learn.store import ALL_ROWS, Store
from torque_sched.learn.unreadable import RowForm
from torque_sched.learn.usage import USAGE
from torque_sched.model.decisions import Start
from torque_sched.simulate.counts.experiment import Plan, run
from torque_sched.simulate.live import run_live
from torque_sched.simulate.site import equal_nodes, site_of_log
from torque_sched.simulate.swf import parse_swf
from torque_sched.simulate.workload import LogSelection, workload_of

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "torque"
NOW_S = 1_795_195_700.0
OUTPUTS = {
    name: (GOLDEN / f"{file}.txt").read_text(encoding="utf-8")
    for name, file in {
        "nodes": "running-pbsnodes-x",
        "jobs": "running-qstat-f-t-x",
        "queues": "running-qstat-Q-f-1",
        "server": "idle-qstat-B-f",
    }.items()
}
_LEAF = re.compile(r"(?<=[,>=])[^<>,=\n]+(?=[<,\n])")
values = st.sampled_from(
    ["", "0", "-1", "9" * 12, "9" * 19, "9" * 39, "9" * 400, "1e308", "nan", "inf", "0.5", "\x00", "٣", "²",
     "9223372036854775807kb", "9" * 37 + "pb", "9" * 18 + ":00:00", "1000000:ppn=999999999", "a b", "é", "="]
)  # fmt: skip


@pytest.mark.parametrize("backfill", sorted(BACKFILLS))
@given(which=st.sampled_from(["nodes", "nodes", "jobs", "jobs", "queues", "server"]), data=st.data())
@settings(deadline=None, max_examples=examples(60))
def test_an_absurd_value_in_a_look_stops_no_cycle(backfill: str, which: str, data: st.DataObject) -> None:
    text = OUTPUTS[which]
    for _ in range(data.draw(st.integers(1, 3))):
        found = data.draw(st.sampled_from(list(_LEAF.finditer(text))))
        text = text[: found.start()] + data.draw(values) + text[found.end() :]
    outputs = {name: each.encode() for name, each in {**OUTPUTS, which: text}.items()}
    try:
        seen, _ = read_snapshot(outputs, NOW_S)
    except TorqueSchedError as error:
        assert error.cure
        return
    decisions = decide(seen, Settings(backfill=new_backfill(backfill)), Context())
    assert sorted(each.job for each in decisions) == sorted(each.id for each in seen.queued)
    assert all(isinstance(each, Start) or each.comment for each in decisions)
    history = History.open(None)
    history.observe(seen)
    assert not history.trouble
    history.close()


@pytest.mark.parametrize("backfill", ["conservative", "aged"])
def test_a_node_that_reports_more_memory_than_there_can_be_is_no_node_of_that_size(backfill: str) -> None:
    """It stopped every cycle: what plans ahead counts in 64 bits."""
    nodes = re.sub(r"physmem=\d+kb", f"physmem={'9' * 30}kb", OUTPUTS["nodes"])
    outputs = {name: each.encode() for name, each in {**OUTPUTS, "nodes": nodes}.items()}
    seen, problems = read_snapshot(outputs, NOW_S)
    assert not problems
    assert all(each.status is None or each.status.physmem_bytes is None for each in seen.nodes)
    decide(seen, Settings(backfill=new_backfill(backfill)), Context())


# -- accounting, as Torque 2.5, 4.2 and 6.1 write it

_STAMP = "11/20/2026 17:24:11"
_RECORD = (
    f"{_STAMP};E;%d.head;user=bob group=hpc jobname=old queue=batch ctime=1795195261 qtime=1795195261 "
    "etime=1795195261 %sstart=1795195270 owner=bob@head exec_host=%s Resource_List.nodes=1:ppn=2 "
    "Resource_List.walltime=01:00:00 session=4242 %send=1795195451 Exit_status=0 "
    "resources_used.cput=00:01:00 resources_used.mem=1024kb resources_used.walltime=00:03:01"
)
_VERSIONS = (
    ("", "n1/1+n1/0", ""),
    ("start_count=1 ", "n1/1+n1/0", ""),
    ("start_count=1 ", "n1/0-1", "total_execution_slots=2 unique_node_count=1 "),
)
_OF_ANOTHER = (
    "11/20/2026 17:40:00;E;900.head;user=ann group=hpc project=_pbs_project_default jobname=sim queue=workq "
    "ctime=1795195261 qtime=1795195261 etime=1795195261 start=1795195270 exec_host=n1/0*2 "
    "exec_vnode=(n1:ncpus=2) Resource_List.select=1:ncpus=2 session=5 end=1795196400 Exit_status=0 "
    "resources_used.cput=00:02:30 run_count=1"
)
"""As OpenPBS writes it."""
_VALUE = re.compile(r"(?<==)\S+")


@given(version=st.sampled_from(_VERSIONS), at=st.integers(0, 4), data=st.data())
@settings(deadline=None, max_examples=examples(100))
def test_a_damaged_value_in_an_accounting_record_costs_that_record_alone(
    version: tuple[str, str, str], at: int, data: st.DataObject
) -> None:
    """It took the records after it as its own, up to the next damaged one or one of another version."""
    lines = [_RECORD % (100 + number, *version) for number in range(5)]
    found = data.draw(st.sampled_from(list(_VALUE.finditer(lines[at]))))
    wrong = data.draw(st.sampled_from(["", "x", "-", "9" * 30, "1e308", "\x00", "é", ";", "٣"]))
    lines[at] = lines[at][: found.start()] + wrong + lines[at][found.end() :]
    if is_mixed := data.draw(st.booleans()):
        lines.append(_OF_ANOTHER)
    newline = data.draw(st.sampled_from(["\n", "\r\n"]))
    with tempfile.TemporaryDirectory() as folder:
        text = newline.join(lines) + newline
        (Path(folder) / "20261120").write_bytes((data.draw(st.sampled_from(["", "\ufeff"])) + text).encode())
        part = read_on(Path(folder), None, zone=timezone.utc)
        history = History.open(None, accounting=Path(folder))
        history.observe(snapshot([], []))
        history.close()
    ids = [each.id for each in part.jobs if each.id != "900.head"]
    assert len(ids) == len(part.jobs) - is_mixed
    assert [f"{100 + number}.head" for number in range(5) if number != at] == [
        each for each in ids if each != f"{100 + at}.head"
    ]
    assert len(part.jobs) + len(part.problems) == 5 + is_mixed
    assert all(each.cure and "accounting file 20261120" in str(each) for each in part.problems)


# -- the history file


def _history_file() -> bytes:
    """Of 60 jobs, with a row in each table that jobs that wait have."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.sqlite"
        history = History.open(path)
        ended = (learned.job(number, "C") for number in range(1, 60))
        history.observe(learned.snapshot(*ended, learned.job(80, "R"), learned.job(81)))
        history.close()
        with closing(sqlite3.connect(path)) as db:
            db.execute(
                "INSERT INTO reservations VALUES ('r', '[\"n1\"]', 0, 9e9, '[]', '', 0, NULL, NULL, '')"
            )
            db.execute("INSERT INTO pauses VALUES ('job', '1.head', '', 1, 9e9, '')")
            db.execute("INSERT INTO promises VALUES ('81.head', 1, 5, '[]', 1, 1, 1, 1, '', 0, 0, 0, '[]')")
            db.commit()
            db.execute("PRAGMA journal_mode = DELETE")
        return path.read_bytes()


HISTORY = functools.cache(_history_file)
cells = st.sampled_from([None, "", "x", b"\xff", -1, 9e99, 2**62, "[]", "{}", '{"a":"b"}', '[["n", 1]]'])


@given(
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=20),
    cell=st.tuples(st.sampled_from(ALL_ROWS), st.integers(0, 30), cells),
)
@example(flips=[], cell=(USAGE, 0, "[]"))
@example(
    flips=[(HISTORY().index(b"tablejobsjobs") - 100 + at, 0xFF) for at in range(5, 9)], cell=(USAGE, 2, 1)
)
@settings(deadline=None, max_examples=examples(150))
def test_a_damaged_history_is_opened_and_what_can_be_read_of_it_counts(
    flips: list[tuple[int, int]], cell: tuple[RowForm[Any], int, object]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.sqlite"
        damaged = bytearray(HISTORY())
        for at, byte in flips:
            damaged[100 + at % (len(damaged) - 100)] = byte
        path.write_bytes(damaged)
        form, column, value = cell
        with suppress(sqlite3.Error, UnicodeDecodeError), closing(sqlite3.connect(path)) as db:
            name = form.columns[column % len(form.columns)]
            db.execute(f"UPDATE {form.table} SET {name} = ?", (value,))
            db.commit()
        history = History.open(path)
        assert len(history.troubles) <= 1
        seen = learned.snapshot(learned.job(100, "C"), learned.job(81))
        assert history.observe(seen) == 1
        history.reservations(learned.NOW_S)
        history.usage(learned.NOW_S)
        history.promises.carried(seen)
        history.close()
        with Store.looked_at(path) as store:
            n_jobs = len(store.ended(1000))
        # Job 100, and of those before it all where something else is damaged.
        assert n_jobs == 60 if not flips and form.table != "jobs" else 1 <= n_jobs <= 60


# -- pbs_sched's files, a workload log

_FILES = {
    "sched_config": "round_robin: False all\nfair_share: true ALL\nsort_by: shortest_job_first ALL\n"
    "max_starve: 24:00:00\nhalf_life: 24:00:00\nunknown_shares: 10\nlog_filter: 256\ndedicated_prefix: ded\n",
    "holidays": "* c\nYEAR 2026\n  weekday 0600 1730\n  saturday none all\n  359 Dec 25 Christmas\n",
    "dedicated_time": "04/15/2026 12:00 04/15/2026 15:30\n11/20/2026 00:00 11/21/2026 00:00\n",
    "resource_group": "grp1 50 root 10\ngrp2 51 root 20\nusr1 60 grp1 5\nusr2 61 grp1 5\n",
}
_WORD = re.compile(r"[^\s:]+")
_WORDS = [
    "",
    "01/01/0001",
    "12/31/9999",
    "02/30/2026",
    "24:00",
    "true",
    "-",
    "9" * 400,
    "nan",
    "-1",
    "²",
    "\x00",
    "\ufeff",
]


@given(which=st.sampled_from(sorted(_FILES)), number=st.integers(0, 200), word=st.sampled_from(_WORDS))
@example(which="resource_group", number=3, word="9" * 400)
@example(which="dedicated_time", number=0, word="01/01/0001")
@settings(deadline=None, max_examples=examples(100))
def test_a_damaged_word_in_a_file_of_pbs_sched_is_a_warning(which: str, number: int, word: str) -> None:
    text = _FILES[which]
    found = list(_WORD.finditer(text))
    at = found[number % len(found)]
    files = c_files_of({**_FILES, which: text[: at.start()] + word + text[at.end() :]}, Config())
    seen = snapshot([node("n1")], [job(1, "1:ppn=4", user="usr1"), job(2, user="usr2", group="grp2")])
    made = SettingsInForce(Config(), files).at(seen.now_s)
    assert len(decide(seen, made, Context(usage={"usr1": 5.0}, group_usage={"grp2": 1e9}))) == 2
    told = [warning for warning in files.warnings if which in warning]
    assert len(told) == len(set(told))


@given(
    rows=st.lists(st.integers(0, 17), min_size=1, max_size=4),
    word=st.sampled_from(
        ["", "x", "nan", "-inf", "1e308", "9" * 16, "-5", "\x00", "0x1", "1_000", "2.5", "\u0663"]
    ),
    is_twice=st.booleans(),
    most=st.none() | st.integers(1, 4),
)
@settings(deadline=None, max_examples=examples(60))
def test_every_line_of_a_log_is_a_job_or_counted(
    rows: list[int], word: str, is_twice: bool, most: int | None
) -> None:
    good = [f"{number} {number * 10} 0 10 4 -1 -1 4 20 -1 1 1 1 1 1 1 -1 -1" for number in range(1, 6)]
    lines = list(good)
    for number, field in enumerate(rows):
        words = lines[number].split()
        words[field] = word
        lines[number] = " ".join(words)
    lines += lines[:1] if is_twice else []
    trace = parse_swf(["; MaxProcs: 64", *lines])
    choice = LogSelection(max_jobs=most)
    made = workload_of(trace, choice)
    assert all(0 < each.run_s <= each.limit_s and 0 < each.procs <= 64 for each in made.jobs)
    if made.jobs:
        # Whatever counts is simulated, with nodes and without.
        site = site_of_log("a log", trace, made, equal_nodes(64, 8))
        assert len(run_live(site, rules()).starts) == len(made.jobs)
        plan = Plan(policies=("easy", "conservative"), choice=choice, check=True)
        assert not any(each.problems for each in run("a log", trace, plan).results)
    assert len(made.jobs) + sum(made.rejected.values()) + made.n_ignored == made.n_lines == len(lines)
    assert most or {each.number for each in made.jobs} >= set(range(len(rows) + 1, 6))

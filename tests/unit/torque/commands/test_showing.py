"""What people ask of a plan: what is shown as free can be used so, and planned starts are those decided."""

from __future__ import annotations

import json
import math
import pkgutil
import subprocess
import sys
from typing import Any

import click
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.examples import examples
from tests.fixtures.torque_builders import NOW_S, job, node, running, snapshot
from torque_sched import commands
from torque_sched.cli import COMMANDS, main
from torque_sched.commands._answering import answer_question, load_teller
from torque_sched.decide.context import Context, PendingStart, Window
from torque_sched.decide.decide import decide
from torque_sched.decide.explain import FreeNode, PlannedStart, showbf, showstart
from torque_sched.decide.settings import Settings, new_backfill
from torque_sched.learn.expectations import ErrorSeen
from torque_sched.learn.promises import MADE, Change, KeptPromise, Outcome
from torque_sched.model.cluster import Job, NodeName
from torque_sched.model.decisions import GuaranteedStart, NodeShare, Reserve, Start
from torque_sched.model.snapshot import Reservation, Snapshot
from torque_sched.model.states import JobState
from torque_sched.report.outlook import Outlook
from torque_sched.report.tables import document, openings, openings_table

BACKFILLS = ("conservative", "easy", "aged", "none")


def with_backfill(name: str) -> Settings:
    values: dict[str, Any] = {"after_s": 0.0} if name == "aged" else {}
    return Settings(backfill=new_backfill(name, **values))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Snapshot, Context]:
    """Up to three nodes, each with at most one job, some that wait, and perhaps a reservation."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    nodes = [node(f"n{at}", np) for at, np in enumerate(sizes)]
    jobs: list[Job] = []
    for at, np in enumerate(sizes):
        used = draw(st.integers(0, np))
        if used:
            walltime_s = draw(st.sampled_from([900.0, 1000.0, 5000.0, None]))
            jobs.append(running(len(jobs) + 1, f"n{at}/0-{used - 1}", f"1:ppn={used}", walltime_s=walltime_s))
    for _ in range(draw(st.integers(0, 3))):
        ppn = draw(st.integers(1, max(sizes)))
        walltime_s = draw(st.sampled_from([100.0, 1000.0, 10_000.0]))
        jobs.append(job(len(jobs) + 1, f"1:ppn={ppn}", walltime_s=walltime_s, etime_s=NOW_S - 500.0))
    kept = ()
    if draw(st.booleans()):
        start_s = NOW_S + draw(st.sampled_from([-100.0, 300.0, 2000.0]))
        kept = (Reservation("r", frozenset({NodeName("n0")}), start_s, start_s + 1000.0, frozenset({"eve"})),)
    return snapshot(nodes, jobs), Context(reservations=kept)


@pytest.mark.parametrize("backfill", BACKFILLS)
@given(clusters())
@settings(max_examples=examples(60), deadline=None)
def test_a_job_that_asks_for_what_is_shown_starts_now(
    backfill: str, cluster: tuple[Snapshot, Context]
) -> None:
    seen, context = cluster
    chosen = with_backfill(backfill)
    for free in showbf(seen, chosen, context):
        walltime_s = 1e7 if math.isinf(free.until_s) else free.until_s - NOW_S
        asks = job(99, f"{free.node}:ppn={free.slots}", walltime_s=walltime_s)
        planned = showstart(seen, chosen, context, asks)
        assert planned.start_s == NOW_S, (free, planned)
        assert isinstance(planned.decision, Start)


@pytest.mark.parametrize("backfill", ["conservative", "easy"])
@given(
    st.lists(st.sampled_from([0.0, 600.0, 1200.0, 6000.0]), min_size=2, max_size=6),
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from([300.0, 1800.0])), max_size=3),
)
@example([0.0, 0.0, 600.0, 600.0, 6000.0], [(3, 1800.0)])
@settings(max_examples=examples(60), deadline=None)
def test_of_nodes_of_one_slot_so_many_start_now_as_are_shown(
    backfill: str, left_s: list[float], waiting: list[tuple[int, float]]
) -> None:
    """Nodes that are alike share a row of the plan: their number is what counts, and how long it lasts."""
    nodes = [node(f"n{at}", 1) for at in range(len(left_s))]
    jobs = [
        running(at + 1, f"n{at}/0", "1:ppn=1", walltime_s=each, since_s=0)
        for at, each in enumerate(left_s) if each
    ]  # fmt: skip
    jobs += [
        job(50 + at, f"{min(n, len(nodes))}:ppn=1", walltime_s=each, etime_s=NOW_S - 500.0)
        for at, (n, each) in enumerate(waiting)
    ]
    seen, chosen = snapshot(nodes, jobs), with_backfill(backfill)
    shown = showbf(seen, chosen, Context())
    assert len({free.node for free in shown if not left_s[int(free.node[1:])]}) == len(
        {f.node for f in shown}
    )
    for until_s in {free.until_s for free in shown}:
        n = sum(free.until_s >= until_s for free in shown)
        walltime_s = 1e7 if math.isinf(until_s) else until_s - NOW_S
        for asked, starts in ((n, True), (n + 1, False)):
            if asked <= len(nodes):
                one = job(99, f"{asked}:ppn=1", walltime_s=walltime_s, etime_s=NOW_S)
                planned = showstart(seen, chosen, Context(), one)
                assert (planned.start_s == NOW_S) is starts, (asked, until_s, planned)


@pytest.mark.parametrize("backfill", BACKFILLS)
@given(clusters())
@settings(max_examples=examples(30), deadline=None)
def test_the_planned_start_is_the_decided_one(backfill: str, cluster: tuple[Snapshot, Context]) -> None:
    seen, context = cluster
    chosen = with_backfill(backfill)
    for decision in decide(seen, chosen, context):
        planned = showstart(seen, chosen, context, seen.job_by_id[decision.job])
        assert planned.decision == decision
        assert planned.is_promise == (isinstance(decision, Reserve) and decision.promise is not None)
        if not isinstance(decision, Start | Reserve):
            assert planned.start_s is None
            assert planned.evidence


def test_the_evidence_names_what_is_in_the_way() -> None:
    seen = snapshot(
        [node("n0", 4)],
        [running(1, "n0/0-3", "1:ppn=4", walltime_s=1000.0), job(2, "1:ppn=4", walltime_s=5000.0)],
    )
    kept = Reservation("disks", frozenset({NodeName("n0")}), NOW_S + 4000.0, NOW_S + 5000.0)
    context = Context(reservations=(kept,), dedicated=(Window(NOW_S + 20_000.0, NOW_S + 21_000.0),))
    planned = showstart(seen, with_backfill("conservative"), context, job(3, "1:ppn=1", walltime_s=30_000.0))
    assert planned.is_promise
    assert planned.start_s is not None
    assert planned.start_s >= NOW_S + 21_000.0
    told = "\n".join(planned.evidence)
    assert "1 waiting jobs come before it, 1 of them with a guaranteed start" in told
    assert "1.head may run on n0 until" in told
    assert "dedicated time from" in told
    assert "disks keeps nodes from " in told


def free(name: str, slots: int, until_s: float, gpus: int = 0, *properties: str) -> FreeNode:
    return FreeNode(NodeName(name), slots, gpus, 2.0**30, until_s, properties)


def test_nodes_that_are_alike_share_a_row() -> None:
    found = [
        free("n1", 4, math.inf), free("n2", 4, math.inf), free("n3", 4, NOW_S + 60.0),
        free("n4", 0, math.inf), free("g1", 8, math.inf, 2, "gpunode"),
        *(free(f"m{at}", 1, NOW_S + 90.0) for at in range(9)),
    ]  # fmt: skip
    rows = openings(found)
    sizes = [(row.slots, row.gpus, len(row.nodes)) for row in rows]
    assert sizes == [(8, 2, 1), (4, 0, 2), (1, 0, 9), (4, 0, 1)]
    for shows_names, words in ((False, "m0,m1,m2,..."), (True, "m7,m8")):
        console = Console(width=200)
        with console.capture() as text:
            console.print(openings_table(rows, NOW_S, shows_names=shows_names))
        assert words in text.get()
        assert "no end" in text.get()
        assert "00:01:00" in text.get()
    told = json.loads(json.dumps(document(found, NOW_S), allow_nan=False))
    assert told["nodes"][0]["until_s"] is None
    assert told["nodes"][2]["until_s"] == NOW_S + 60.0


def said(outlook: Outlook) -> str:
    return "\n".join(outlook.lines())


def test_a_start_that_is_under_way_says_so() -> None:
    """Between the order and the next look: the job waits by the last look, and runs by the server."""
    waits = job(7, "1:ppn=2", name="relax")
    ordered = PendingStart(waits.id, (NodeShare(NodeName("n1"), 2, 1),), NOW_S)
    under_way = Outlook(waits, NOW_S, None, None, None, under_way=ordered)
    text = said(under_way)
    assert "start: it started just now on n1:ppn=2:gpus=1: ordered " in text
    assert "not confirmed yet by a look" in text
    told = under_way.document()
    assert (told["start_s"], told["is_under_way"], told["state"]) == (NOW_S, True, "Q")


def test_an_outlook_in_words_and_as_json() -> None:
    waits = job(7, "1:ppn=2", name="relax")
    share = (NodeShare(NodeName("n1"), 2, 1),)
    promise = GuaranteedStart(waits.id, NOW_S + 500.0, share, 60.0, NOW_S, NOW_S + 900.0, NOW_S - 100.0)
    planned = PlannedStart(waits.id, NOW_S + 400.0, share, True, promise, None, ("7 jobs wait",))
    made = Change(NOW_S - 100.0, None, NOW_S + 900.0, MADE)
    kept = KeptPromise((waits.id, 0.0), promise, n_better=3, n_broken=1, changes=(made,))
    waiting = Outlook(waits, NOW_S, planned, kept, None, why_not_expected="no job has ended yet")
    text = said(waiting)
    assert "guaranteed: not later than 1970-01-12 13:55 UTC, in 00:08:20 on n1:ppn=2:gpus=1" in text
    assert "expected: not known: no job has ended yet" in text
    assert "first guaranteed: " in text
    assert "sooner 3 times since, put off or withdrawn 1 times" in text
    assert "because: 7 jobs wait" in text
    told = waiting.document()
    starts = [told[name] for name in ("start_s", "guaranteed_start_s", "first_guaranteed_start_s")]
    assert starts == [NOW_S + 400.0, NOW_S + 500.0, NOW_S + 900.0]
    assert told["nodes"] == [{"node": "n1", "ppn": 2, "gpus": 1}]
    runs = running(8, "n1/0-1", state=JobState.RUNNING)
    outcome = Outcome((runs.id, 0.0), NOW_S - 600.0, NOW_S - 900.0, NOW_S, NOW_S - 600.0, 2, 0, (made,))
    started = Outlook(runs, NOW_S, None, None, outcome)
    assert "00:10:00 before its first guaranteed start, just at its last guaranteed start" in said(started)
    assert started.document()["first_guaranteed_start_s"] == NOW_S
    nothing = Outlook(runs, NOW_S, None, None, None)
    assert "no start had been guaranteed" in said(nothing)
    assert nothing.document()["guaranteed_start_s"] is None
    held = PlannedStart(waits.id, None, (), False, None, None, ())
    unknown = Outlook(waits, NOW_S, held, None, None, why_none="Job is held")
    assert "guaranteed: none: Job is held" in said(unknown)
    sooner = Outlook(waits, NOW_S, planned, None, None, NOW_S + 108.0, ErrorSeen(9, 12.0, -5.0, 90.0))
    told = said(sooner)
    assert "expected: 1970-01-12 13:48 UTC, in 00:01:48; of 9 past starts half came between " in told
    assert "between 00:00:05 earlier and 00:01:30 later than expected, the middle one 00:00:12 later" in told
    assert sooner.document()["expected_start_s"] == NOW_S + 108.0
    assert sooner.document()["expected_error"]["n"] == 9


# The list of commands: what it says, what it imports.


@pytest.mark.parametrize("name", COMMANDS)
def test_each_line_of_the_list_is_the_commands_own(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(300) == COMMANDS[name]


def test_every_command_is_in_the_list() -> None:
    found = {each.name.replace("_", "-") for each in pkgutil.iter_modules(commands.__path__)}
    assert list(COMMANDS) == sorted(name for name in found if name[0] != "-")


def test_the_list_imports_no_command() -> None:
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from torque_sched.cli import main\n"
        "result = CliRunner().invoke(main, [])\n"
        "assert result.exit_code == 0 and 'showstart' in result.output, result.output\n"
        "print(*sorted(name for name in sys.modules if name.startswith('torque_sched.')))\n"
        "print(*sorted({'pydantic', 'yaml', 'rich', 'numpy', 'asyncio'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "torque_sched.cli\n\n"


def test_the_shell_completes_names() -> None:
    context = click.Context(main)
    assert [item.value for item in main.shell_complete(context, "show")] == ["showbf", "showstart"]


def test_the_daemon_finds_all_that_answers_need() -> None:
    """It imports them by name, before it forks for an answer."""
    assert load_teller() is answer_question

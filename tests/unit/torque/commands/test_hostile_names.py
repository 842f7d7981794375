"""What users write does nothing on the terminal, in the history or in the report of somebody else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.torque_printing import format_xml
from tests.unit.torque.learn.build import NOW_S, job, snapshot
from torque_sched.batch.torque.parse.pbsnodes import parse_pbsnodes
from torque_sched.batch.torque.parse.qstat import parse_jobs
from torque_sched.batch.torque.parse.records import Record
from torque_sched.commands import explain, showbf, showstart, status, top, whatif
from torque_sched.commands._console import out
from torque_sched.daemon.config import Config
from torque_sched.decide.context import Context
from torque_sched.decide.fair_share import Share
from torque_sched.decide.order import FairShareOrder, FcfsOrder
from torque_sched.decide.settings import Settings
from torque_sched.learn import History, HistorySettings
from torque_sched.learn.store import Store
from torque_sched.model.cluster import Job, Queue, QueueName, Server
from torque_sched.model.snapshot import Snapshot
from torque_sched.report.explained import place_in_order, share_lines
from torque_sched.report.page import page
from torque_sched.report.picture import Picture, State
from torque_sched.report.summary import summarise
from torque_sched.report.viewer import Viewer

NAMES = [
    "x\nnow: start on n9", "\x1b[2J\x1b]0;root\x07", "\x9b8m", "a\x00b\x7f", "\u202egpj\u2066", "[/bold]",
    "[red]x", ":smile:", "[link=http://x/]y[/link]", "<script>alert(1)</script>", "\u2028",
    "x" * 1_000_000, "a\tb\r;=,'\"",
]  # fmt: skip
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def read_job(text: str, state: str = "Q") -> Job:
    attributes = {
        "Job_Name": text, "Job_Owner": "alice@h", "euser": "alice", "egroup": text[:200], "job_state": state,
        "queue": "batch", "ctime": "1795195000", "qtime": "1795195000", "etime": "1795195000",
        "Account_Name": text, "comment": text, "submit_args": text, "Resource_List.nodes": "1:ppn=1",
        "Resource_List.software": text, "Resource_List.walltime": "01:00:00",
    }  # fmt: skip
    document = format_xml([Record("Job", "7.head", attributes)], header=True)
    (made,) = parse_jobs(document.encode()).items
    return made


def picture_of(*jobs: Job, note: str = "") -> Picture:
    told_by_mom = Record("Node", "n1", {"state": "free", "np": "8", "note": note, "ntype": "cluster"})
    (machine,) = parse_pbsnodes(format_xml([told_by_mom])).items
    queue = Queue(name=QueueName("batch"), is_enabled=True, is_started=True, queue_type="Execution")
    seen = Snapshot(NOW_S, Server(default_queue="batch"), (queue,), (machine,), jobs)
    told = {"jobs": {each.id: {"decision": "hold", "comment": each.comment} for each in jobs}}
    state = State({"pid": 1, "mode": "serve", "now_s": NOW_S, **told})
    memory = History.open(None)
    context = Context(predictions=memory.predictions())
    return shown(seen, Settings(), context, memory, state, "root")


def shown(
    seen: Snapshot, settings: Settings, context: Context, memory: History, state: State, user: str
) -> Picture:
    """To a user."""
    return Picture(seen, settings, context, memory, state, Config(), False, Path("none"), Viewer(user), None)


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_does_nothing_on_a_terminal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    seen = picture_of(read_job(name), note=name)
    asked = {"submit": "nodes=1", "user": "alice", "queue": None, "name": name, "as_json": False}
    explain.tell(seen, {"name": "7.head"})
    explain.tell(seen, {"name": "n1"})
    status.tell(seen, {"as_json": False})
    top.tell(seen, {"n_nodes": 0})
    showbf.tell(seen, {"kind": "", "walltime": None, "shows_names": True, "as_json": False})
    showstart.tell(seen, {**asked, "job": "7.head", "submit": None})
    whatif.tell(seen, {key: asked[key] for key in ("submit", "user", "queue", "name")})
    said = "".join(capsys.readouterr())
    assert not CONTROLS.search(said)
    assert "\nnow: start on n9" not in said
    if name.isprintable() and len(name) < 100:
        assert name in said  # as it is: no markup, no emoji
    assert len(said) < 3_500_000


def test_colours_are_ours_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    out().print("a\x1b[8mb\nc", style="red")
    said = capsys.readouterr().out
    assert "\x1b[31ma\\x1b[8mb" in said
    assert said.count("\n") == 2


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_is_learned_and_reported_as_text(name: str, tmp_path: Path) -> None:
    read = read_job(name)
    ended = replace(job(7, "C"), name=read.name, user=read.name[:300], group=read.group, account=read.account)
    history = History.open(tmp_path / "history.sqlite")
    history.observe(snapshot(replace(ended, state=job(7, "R").state, comp_s=None, exit_status=None)))
    history.observe(snapshot(ended))
    history.close()
    store = Store.read_only(tmp_path / "history.sqlite")
    text = page(summarise(store, 0.0, NOW_S + 10_000), name)
    store.close()
    assert "<script>" not in text
    assert "[link" in text or "http://" not in text


# What a user is told who asks why a job is behind.


def picture_with(order: object, *jobs: Job) -> Picture:
    memory = History.open(None, HistorySettings(half_life_s=1e9))
    seen = snapshot(*jobs)
    memory.observe(seen)
    context = Context(usage=memory.usage(NOW_S))
    return shown(seen, Settings(order=order), context, memory, State({}), "ada")  # type: ignore[arg-type]


def ran(number: int, user: str, hours: float, gpus: int = 0) -> Job:
    seconds = hours * 3600.0
    made = job(number, "C", user=user, gpus=gpus, start_s=NOW_S - seconds, runtime_s=seconds)
    return replace(made, group="phys")


def test_a_user_behind_is_told_usage_share_and_place() -> None:
    mine, another, eves = job(3), job(4), job(5, user="eve")
    order = FairShareOrder((Share("ada", 1), Share("bob", 1), Share("eve", 2)), unknown_shares=0)
    seen = picture_with(
        order, ran(1, "ada", 10, gpus=1), ran(2, "bob", 10), replace(mine, group="phys"), another, eves
    )
    told = list(share_lines(seen, seen.snapshot.job_by_id[mine.id]))
    assert "usage of user ada: 20.0 processor hours and 10.0 GPU hours, each counted as 10: 120.0" in told[0]
    assert "86 % of all users'" in told[0]
    assert "half is forgotten in" in told[0]
    assert told[1].startswith("usage of group phys: 40.0 processor hours")
    assert "share of user ada: 25 % of the cluster; of 2 users who wait 1 had less" in told[2]
    assert told[3] == "order: 2 of 3 waiting jobs, by fair_share"


def test_where_usage_makes_no_difference_that_is_said() -> None:
    seen = picture_with(FcfsOrder(), job(1), job(2))
    (usage, order) = share_lines(seen, seen.snapshot.queued[1])
    assert "0 % of all users'" in usage
    assert order == "order: 2 of 2 waiting jobs, by fcfs, to which usage makes no difference"


@pytest.mark.parametrize("order", [FairShareOrder(), FcfsOrder()])
def test_a_job_that_is_not_submitted_comes_last_of_its_user(order: object) -> None:
    seen = picture_with(order, job(1), job(2))
    assert place_in_order(seen, job(9)) == (3, 3)


def test_a_job_that_runs_is_told_its_usage_only() -> None:
    seen = picture_with(FairShareOrder(), replace(job(1, "R", start_s=NOW_S - 3600.0), group="phys"))
    told = [line.partition(":")[0] for line in share_lines(seen, seen.snapshot.running[0])]
    assert told == ["usage of user ada", "usage of group phys"]

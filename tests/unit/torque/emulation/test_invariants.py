"""What the emulated server keeps over kills, and how it runs files."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tests.unit.torque.emulation.in_memory import NODES, Bench
from torque_sched.emulation.execute import Processes
from torque_sched.emulation.journal import Journal
from torque_sched.emulation.model import to_record

NAMES = st.sampled_from(["node1", "node2", "node3", "node4"])
JOBS = st.integers(44, 60)


class Server(RuleBasedStateMachine):
    """Users, operators, moms and the clock, all at once."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.state = Path(self.folder.name)
        (self.state / "server_priv" / "accounting").mkdir(parents=True)
        self.bench = Bench(NODES, scheduling="True")
        self.journal = Journal(self.state)
        self.journal.compact(self.bench.world)
        self.lines = 0

    def teardown(self) -> None:
        self.folder.cleanup()

    def ask(self, *words: str, user: str = "root") -> None:
        self.lines -= len(self.bench.world.records)
        self.bench.ask(*words, user=user, stdin="x\n")
        self.lines += len(self.bench.world.records)
        self.journal.commit(self.bench.world)

    @rule(
        asked=st.sampled_from(["nodes=1", "nodes=1:ppn=2", "nodes=2:ppn=2", "nodes=1:gpus=1", "procs=3"]),
        extra=st.sampled_from([(), ("-h",), ("-n",), ("-t", "0-2%2"), ("-a", "12312359")]),
        runtime_s=st.integers(1, 200),
    )
    def submit(self, asked: str, extra: tuple[str, ...], runtime_s: int) -> None:
        self.ask("qsub", "-l", asked, "-v", f"EMULATED_RUNTIME={runtime_s}", *extra, user="alice")

    @rule(number=JOBS, kind=st.sampled_from(["afterok", "afterany", "afternotok"]), status=st.integers(0, 1))
    def submit_dependent(self, number: int, kind: str, status: int) -> None:
        self.ask("qsub", "-W", f"depend={kind}:{number}", "-v", f"EMULATED_EXIT={status}", user="bob")

    @rule(number=JOBS, member=st.sampled_from(["", "[0]", "[2]"]), node=NAMES, ppn=st.integers(1, 4))
    def run(self, number: int, member: str, node: str, ppn: int) -> None:
        self.ask("qrun", "-a", "-H", f"{node}:ppn={ppn}", f"{number}{member}")

    @rule(number=JOBS)
    def run_where_it_fits(self, number: int) -> None:
        self.ask("qrun", "-a", str(number))

    @rule(number=JOBS, verb=st.sampled_from(["qdel", "qhold", "qrls", "qrerun"]))
    def act(self, number: int, verb: str) -> None:
        self.ask(verb, str(number))

    @rule(number=JOBS, text=st.text(max_size=20))
    def comment(self, number: int, text: str) -> None:
        self.ask("qalter", "-W", f"comment={text}", str(number), str(number + 1))

    @rule(number=JOBS, word=st.sampled_from(["suspend", "resume"]))
    def signal(self, number: int, word: str) -> None:
        # The real server does not look whether the slots are still free: two jobs on one slot may follow.
        if word == "suspend" or not self.bench.world.jobs.get(f"{number}.head"):
            self.ask("qsig", "-s", word, str(number))

    @rule(node=NAMES, change=st.sampled_from(["mom=stopped", "mom=up", "is_failing=1", "is_failing=0"]))
    def change_node(self, node: str, change: str) -> None:
        self.ask("emulated", "node", node, change)

    @rule(seconds=st.sampled_from([1, 3, 50, 400]))
    def wait(self, seconds: int) -> None:
        self.bench.advance(seconds)
        self.journal.commit(self.bench.world)

    @invariant()
    def slots_belong_to_active_jobs_and_the_other_way_round(self) -> None:
        world = self.bench.world
        held: dict[str, set[tuple[str, int]]] = {}
        for name, holders in world.slots.items():
            for index, holder in enumerate(holders):
                if holder is not None:
                    held.setdefault(holder, set()).add((name, index))
        for job in world.jobs.values():
            mine = {(name, index) for name, indices in job.slots for index in indices}
            assert held.pop(job.id, set()) == (mine if job.state == "R" else set()), job
        assert not held

    @invariant()
    def counts_add_up(self) -> None:
        world = self.bench.world
        assert sum(world.counts().values()) == sum(not job.members for job in world.jobs.values())

    @invariant()
    def array_limits_hold(self) -> None:
        for job in self.bench.world.jobs.values():
            if job.slot_limit:
                states = [self.bench.world.jobs[m].state for m in job.members if m in self.bench.world.jobs]
                assert states.count("R") <= job.slot_limit

    @invariant()
    def the_journal_gives_back_what_was_there(self) -> None:
        world = self.bench.world
        with tempfile.TemporaryDirectory() as copy:
            shutil.copytree(self.state, copy, dirs_exist_ok=True)
            again = Journal(Path(copy)).load()
        for name in ("jobs", "nodes", "queues"):
            mine, theirs = (
                {key: json.dumps(to_record(value)) for key, value in getattr(each, name).items()}
                for each in (world, again)
            )
            assert theirs == mine
        assert (again.server, again.next_job, again.slots) == (world.server, world.next_job, world.slots)


TestServer = Server.TestCase
TestServer.settings = settings(max_examples=examples(20), stateful_step_count=25, deadline=None)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The state of a server that was killed after it had taken two jobs."""
    (tmp_path / "server_priv" / "accounting").mkdir(parents=True)
    bench, journal = Bench(), Journal(tmp_path)
    journal.compact(bench.world)
    for _ in range(2):
        bench.submit()
        journal.commit(bench.world)
    return tmp_path


@pytest.mark.parametrize("cut", [1, 30, None])
def test_a_half_written_line_is_as_if_it_had_not_been(kept: Path, cut: int | None) -> None:
    path = next(kept.glob("journal.*.jsonl"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut] if cut else whole[: whole.index(b"\n") + 1])
    assert list(Journal(kept).load().jobs) == ["44.head"]


def test_records_lost_by_a_kill_are_written_again(kept: Path) -> None:
    path = next((kept / "server_priv" / "accounting").iterdir())
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole[:-7], encoding="utf-8")
    Journal(kept).load()
    assert path.read_text(encoding="utf-8") == whole
    assert len(whole.splitlines()) == 2


# Scripts that really run: what a server does that goes on after one that was killed.


def test_files_that_a_killed_servers_process_is_reading_are_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wrapper may be slow to begin; a shell that found them empty would end with 0 and do nothing."""
    bench = Bench(executes=True)
    job = bench.world.job(bench.submit("-l", "nodes=1", script="echo first\n"))
    bench.good("qrun", "-H", "node2", job.id)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: SimpleNamespace(poll=lambda: None))
    Processes(tmp_path).start(bench.world, job)
    (folder,) = tmp_path.iterdir()
    with (folder / "script").open() as read_by_the_first:
        job.script = "echo again\n"
        Processes(tmp_path).start(bench.world, job)
        assert read_by_the_first.read() == "echo first\n"
    assert (folder / "script").read_text() == "echo again\n"
    assert sorted(path.name for path in folder.iterdir()) == ["gpus", "nodes", "script", "wrapper"]

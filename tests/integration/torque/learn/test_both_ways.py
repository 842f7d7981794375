"""The same hours of a cluster, once by Torque's protocol and once by its commands: the journals are equal."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.integration.torque.learn.cycles import by_commands, clock_of, cycle_of, journal_in
from tests.integration.torque.learn.test_profiles import NODES, PROGRAMS
from torque_sched.batch.system import BatchSystem
from torque_sched.batch.torque.batch_client import BatchClient, ServerPlace
from torque_sched.batch.torque.native import NativePbs
from torque_sched.commands.replay import replay
from torque_sched.daemon.config import Config
from torque_sched.daemon.cycle import CycleLimits
from torque_sched.daemon.journal_form import JournalledCycle, line_of, read_journal
from torque_sched.emulation import EmulatedTorque
from torque_sched.learn import History
from torque_sched.model.snapshot import Snapshot

STEP_S = 600.0
# One start after the other, and no limit by this machine's clock: both runs are to be the same.
LIMITS = CycleLimits(starts_at_once=1, starts_s=3600.0)
CONFIG = Config(backfill="conservative")
COMPARED = (
    "now_s", "silent_s", "config", "context", "decisions", "results", "findings", "promises", "settled",
)  # fmt: skip


def by_protocol(torque: EmulatedTorque, clock: Callable[[], float]) -> BatchSystem:
    client = BatchClient(ServerPlace(torque.trqauthd, "127.0.0.1", torque.port))
    return NativePbs(client, by_commands(torque, clock), clock)


def change(torque: EmulatedTorque, draw: random.Random, number: int) -> None:
    """What users, administrators and nodes do in one step."""
    programs = [each for each in PROGRAMS if draw.random() < 0.5]
    jobs = [{"arguments": each.arguments(number, draw), "user": each.user} for each in programs]
    if number % 4 == 0:
        jobs.append({"arguments": ["-l", "nodes=4:ppn=16,walltime=1:00:00"], "user": "zoe"})
    ids = torque.submit_many(jobs) if jobs else []
    if ids and draw.random() < 0.3:
        torque.run(draw.choice(["qhold", "qdel"]), draw.choice(ids))
    if number % 6 == 2:
        torque.set_node("node2", mom=draw.choice(["stopped", "up"]))
    torque.set_node("node1", is_failing=number % 5 == 0)


async def run(torque: EmulatedTorque, server: BatchSystem, n_steps: int, folder: Path) -> None:
    """Schedule and write the journal."""
    history, draw = History.open(None), random.Random(11)
    cycle = cycle_of(server, history, clock_of(torque), CONFIG, LIMITS)
    lines = journal_in(folder)
    try:
        for number in range(n_steps):
            change(torque, draw, number)
            report = await cycle.run()
            lines.append(line_of(report, number, CONFIG, {}, mode="serve", cause="test"))
            torque.clock.advance(STEP_S)
    finally:
        lines.close()
        history.close()
        await server.close()


def journalled(
    place: Path, n_steps: int, way: Callable[[EmulatedTorque, Callable[[], float]], BatchSystem]
) -> list[JournalledCycle]:
    with EmulatedTorque.create(place / "emulation", nodes=NODES, clock="manual") as torque:
        server = way(torque, clock_of(torque))
        asyncio.run(run(torque, server, n_steps, place / "journal"))
    return list(read_journal(place / "journal"))


def without_connections(snapshot: Snapshot) -> Snapshot:
    """The same less the server's count of connections, which the commands' own move."""
    extra = {name: text for name, text in snapshot.server.extra.items() if name != "net_counter"}
    return replace(snapshot, server=replace(snapshot.server, extra=extra))


# A day has 144 steps.
@pytest.mark.parametrize("n_steps", [9, pytest.param(144, marks=pytest.mark.slow)])
def test_a_day_has_the_same_journal_either_way(tmp_path: Path, n_steps: int) -> None:
    native = journalled(tmp_path / "native", n_steps, by_protocol)
    commands = journalled(tmp_path / "commands", n_steps, by_commands)
    assert len(native) == len(commands) == n_steps
    for one, other in zip(native, commands, strict=True):
        assert without_connections(one.snapshot) == without_connections(other.snapshot), one.number
        assert {key: one.line[key] for key in COMPARED} == {key: other.line[key] for key in COMPARED}
    found = {finding["kind"] for cycle in native for finding in cycle.line["findings"]}
    assert {"start-confirmed", "start-failed"} <= found
    assert len({decision["is"] for cycle in native for decision in cycle.line["decisions"]}) == 3
    for name in ("native", "commands"):
        done = CliRunner().invoke(replay, [str(tmp_path / name / "journal")])
        assert (done.exit_code, done.output.count("otherwise")) == (0, 0), done.output

"""The script of a block with a real barrier: it waits, runs with all hosts, or is turned away."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.unit.torque.site.linked import run
from torque_sched.core.handshake import SiteId, Token
from torque_sched.core.site import RunBlock
from torque_sched.errors import StartupError, TorqueSchedError
from torque_sched.site.audit import Audit
from torque_sched.site.barrier import Barrier, BarrierAnswer, Standing
from torque_sched.site.block_script import NO_DIRECTIVES, BlockScript, block_script, encoded
from torque_sched.site.hosted_block import HostedBlock, start_of
from torque_sched.site.store import SiteStore

BODY = """#!/bin/sh
#PBS -l walltime=99:00:00
echo "$TORQUE_GRID_INDEX/$TORQUE_GRID_COUNT at $TORQUE_GRID_SITE of $TORQUE_GRID_SITES: $TORQUE_GRID_HOSTS"
cat "$TORQUE_GRID_HOSTFILE"
exit 5
"""
TICKET = "ab" * 16


def text_of(port: int, body: str, wait_s: float = 20.0) -> str:
    block = BlockScript(
        ticket=TICKET,
        url=f"http://127.0.0.1:{port}/barrier",
        home="alpha",
        job="1.alpha",
        site="beta",
        index=1,
        count=2,
        script=encoded(body),
        wait_s=wait_s,
    )
    return block_script(block, "python3")


async def play(text: str, tmp_path: Path) -> tuple[int, str, str]:
    nodes = tmp_path / "nodes"
    nodes.write_text("n1\nn1\nn2\n")
    env = {
        "PATH": os.environ["PATH"],
        "PBS_NODEFILE": str(nodes),
        "PBS_JOBID": "7.beta",
        "TMPDIR": str(tmp_path),
    }
    script = tmp_path / "job.sh"
    script.write_text(text)
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", str(script), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


def story(tmp_path: Path, *answers: BarrierAnswer, body: str = BODY) -> tuple[int, str, str, list[Standing]]:
    stood: list[Standing] = []
    told: list[tuple[int, str, str]] = []

    def answer(standing: Standing) -> BarrierAnswer:
        stood.append(standing)
        return answers[min(len(stood), len(answers)) - 1]

    async def main() -> None:
        barrier = Barrier(answer)
        await barrier.start("127.0.0.1", 0)
        try:
            told.append(await play(text_of(barrier.port, body), tmp_path))
        finally:
            await barrier.stop()

    run(main)
    return (*told[0], stood)


def test_it_waits_then_runs_and_knows_all(tmp_path: Path) -> None:
    go = BarrierAnswer(say="go", sites=("alpha", "beta"), hosts=(("m1",), ("n1", "n2")))
    code, out, errors, stood = story(tmp_path, BarrierAnswer(say="wait"), go)
    assert (code, errors) == (5, "")
    assert out == "1/2 at beta of alpha beta: m1 n1,n2\n0 alpha m1\n1 beta n1\n1 beta n2\n"
    assert [(each.job, each.hosts) for each in stood] == 2 * [("7.beta", ("n1", "n2"))]
    assert not list(tmp_path.glob("torque-grid.*"))  # nothing is left behind


def test_a_cancelled_start_runs_nothing(tmp_path: Path) -> None:
    code, out, errors, _ = story(tmp_path, BarrierAnswer(say="cancel", why="the other failed"))
    assert (code, out) == (75, "")
    assert "the other failed" in errors


def test_hosts_from_elsewhere_are_no_commands(tmp_path: Path) -> None:
    go = BarrierAnswer(say="go", sites=("$(id)", "b"), hosts=(("`id`",), ("'; id; '",)))
    code, out, _, _ = story(tmp_path, go, body='echo "$TORQUE_GRID_SITES $TORQUE_GRID_HOSTS"\n')
    assert (code, out) == (0, "$(id) b `id` '; id; '\n")


def test_nobody_at_the_barrier(tmp_path: Path) -> None:
    told: list[tuple[int, str, str]] = []

    async def main() -> None:
        told.append(await play(text_of(1, BODY, wait_s=0.5), tmp_path))

    run(main)
    assert told[0][0] == 76


def test_the_ticket_stands_in_the_script_alone_and_directives_do_not_count(tmp_path: Path) -> None:
    text = text_of(1, BODY)
    assert text.count(TICKET) == 1
    assert "#PBS" not in text  # the user's script travels encoded
    assert NO_DIRECTIVES not in text


def test_the_barrier_answers_nothing_else(tmp_path: Path) -> None:
    import aiohttp

    async def main() -> None:
        barrier = Barrier(lambda standing: BarrierAnswer(say="wait"))
        await barrier.start("127.0.0.1", 0)
        url = f"http://127.0.0.1:{barrier.port}"
        try:
            with pytest.raises(StartupError, match=r"barrier\.port"):
                await Barrier(lambda standing: BarrierAnswer(say="wait")).start("127.0.0.1", barrier.port)
            async with aiohttp.ClientSession() as session:
                for path, body, status in (
                    ("/", b"{}", 404),
                    ("/barrier", b"{}", 400),
                    ("/barrier", b"x" * (2 << 20), 404),
                ):
                    async with session.post(url + path, data=io.BytesIO(body)) as answer:
                        assert answer.status == status
        finally:
            await barrier.stop()

    run(main)


def test_the_audit_file_is_bounded_and_private(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit", file_bytes=300, n_files=3)
    for number in range(40):
        audit.write("alpha", "10.0.0.1", "engine", "answered", number=number)
    audit.close()
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["audit", "audit.1", "audit.2"]
    assert all(path.stat().st_size < 500 for path in files)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)


def test_the_store_keeps_what_it_was_told(tmp_path: Path) -> None:
    path = tmp_path / "site.sqlite"
    store = SiteStore(path)
    store.set_fact("guest", {"a": [1, None]})
    store.set_block("a/1/1", {"x": 1})
    store.set_job("1.head", {"y": 2})
    store.set_job("2.head", {"y": 3})
    store.set_job("2.head", None)
    again = SiteStore(path)  # while the first one never said good-bye
    assert (again.fact("guest"), again.fact("none")) == ({"a": [1, None]}, None)
    assert (again.blocks(), again.jobs()) == ({"a/1/1": {"x": 1}}, {"1.head": {"y": 2}})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for each in (store, again):
        each.close()
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StartupError, match="cannot be used"):
        SiteStore(path)


def test_a_block_that_is_killed_before_its_reserved_start_does_not_wait_for_it() -> None:
    block = HostedBlock(ticket="", user="x")
    order = RunBlock(Token(SiteId("beta"), "1", 1), 0, 1, "x", "grid", time.time() + 3600.0, 60, "")

    async def story() -> None:
        waiting = asyncio.create_task(start_of(order, block))
        await asyncio.sleep(0.01)
        block.is_killed, block.why = True, "its owner deleted it"
        with pytest.raises(TorqueSchedError, match="its owner deleted it"):
            await asyncio.wait_for(waiting, 30)

    run(story)

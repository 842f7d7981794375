"""The connection to the emulated server is cut anywhere: no job starts twice, none is forgotten."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from torque_sched.adapters.batch_client import BatchClient, ServerPlace
from torque_sched.adapters.commands import Commands
from torque_sched.adapters.native import NativePbs
from torque_sched.adapters.pbs import Look, Pbs
from torque_sched.core.batch_protocol import (
    Reply,
    RequestType,
    RunJob,
    Status,
    encode_reply,
    encode_request,
    wanted,
)
from torque_sched.core.model import JobId
from torque_sched.core.states import JobState
from torque_sched.emulation import EmulatedTorque, Fault
from torque_sched.errors import BatchError
from torque_sched.parse.qrun import RunKind
from torque_sched.parse.status_objects import JOB_ATTRIBUTES

HOSTS = "node1:ppn=1"


@pytest.fixture
def torque(tmp_path: Path) -> Iterator[EmulatedTorque]:
    """Its jobs run until the test ends."""
    with EmulatedTorque.create(tmp_path / "c", nodes="node1 np=1000\n", clock="manual") as made:
        yield made


@pytest.mark.parametrize(("n_cuts", "n_jobs"), [(200, 40), pytest.param(2000, 300, marks=pytest.mark.slow)])
def test_a_connection_cut_anywhere_starts_no_job_twice_and_forgets_none(
    torque: EmulatedTorque, n_cuts: int, n_jobs: int
) -> None:
    ids = torque.submit_many({"arguments": ["-l", "nodes=1"], "runtime_s": 3000} for _ in range(n_jobs))
    cut, lost = asyncio.run(_schedule(torque, n_cuts, random.Random(n_cuts)))
    assert sum(cut.values()) == n_cuts
    assert min(cut[name] for name in ("StatusJob", "StatusNode", "AsyncRunJob", "trqauthd")) > 0, cut
    assert lost > n_cuts / 10, "hardly an answer to a start was lost"
    assert _started(torque, len(ids)) == dict.fromkeys(ids, 1)


def _started(torque: EmulatedTorque, n_jobs: int) -> Counter[str]:
    """How often each job started; the server records a start after it has answered."""
    deadline_s = time.monotonic() + 30.0
    while True:
        lines = [line.split(";") for line in torque.accounting()]
        started = Counter(words[2] for words in lines if words[1:2] == ["S"])
        if sum(started.values()) >= n_jobs or time.monotonic() > deadline_s:
            return started
        time.sleep(0.05)


async def _schedule(torque: EmulatedTorque, n_cuts: int, draw: random.Random) -> tuple[Counter[str], int]:
    """Meet all cuts, each in a look or in the start of a job that shows as queued; then start what waits.

    Returns:
        How many cuts were ordered of which request, and how many starts got no answer.
    """
    client = BatchClient(ServerPlace(torque.trqauthd, "127.0.0.1", torque.port))
    native = NativePbs(client, Pbs(Commands(torque.env), time.time), time.time)
    cut: Counter[str] = Counter()
    lost = 0
    try:
        look = await native.look()
        while sum(cut.values()) < n_cuts:
            waiting = [job.id for job in look.snapshot.jobs if job.state is JobState.QUEUED]
            name, n_bytes = _exchange(draw, client.user, look, waiting)
            cut[name] += 1
            if name == "trqauthd":
                await client.close()
            torque.set_faults(Fault(name, "cut", after=draw.randint(0, n_bytes), times=1))
            try:
                if name == "AsyncRunJob":
                    result = await native.start(waiting[0], HOSTS)
                    assert result.kind in {RunKind.STARTED, RunKind.OTHER}, result
                    lost += result.kind is RunKind.OTHER
                look = await native.look()
            except BatchError:
                look = await native.look()
        torque.set_faults()
        for job in (await native.look()).snapshot.jobs:
            if job.state is JobState.QUEUED:
                assert (await native.start(job.id, HOSTS)).kind is RunKind.STARTED
        return cut, lost
    finally:
        await native.close()


def _exchange(draw: random.Random, user: str, look: Look, waiting: Sequence[JobId]) -> tuple[str, int]:
    """A request to cut, and how many bytes it and its reply have together."""
    if waiting and draw.random() < 0.5:
        n_reply = len(encode_reply(Reply()))
        return "AsyncRunJob", len(encode_request(RunJob(user, waiting[0], HOSTS))) + n_reply
    name, output, request = draw.choice(
        [
            ("StatusJob", "jobs", Status(RequestType.STATUS_JOB, user, attributes=wanted(JOB_ATTRIBUTES[0]))),
            ("StatusNode", "nodes", Status(RequestType.STATUS_NODE, user)),
            ("StatusQueue", "queues", Status(RequestType.STATUS_QUEUE, user)),
            ("StatusServer", "server", Status(RequestType.STATUS_SERVER, user)),
            ("trqauthd", "", None),
        ]
    )
    if request is None:
        return name, 60
    return name, len(encode_request(request)) + len(look.outputs[output])

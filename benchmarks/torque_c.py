"""A stand-in for the C pbs_sched, by its published rules, on a server of the batch protocol.

What it does, from the C daemon's source: each event is one cycle. A cycle looks at the server, its queues,
nodes and jobs. Then it takes the waiting jobs in order of submission (jobs without ``cput`` are equal to
``shortest_job_first``), asks the server for each whether its nodes are free, runs each that fits, without a
host list, and goes on with the next. It keeps nodes for nobody before ``max_starve``, a day. A run waits
until the mom has the job, which is before the job runs: here an AsyncRunJob and a wait. A comment is written
where it changed.

Times: a run takes at least `RUN_S` and a question at least `QUERY_S`, as measured with the C client's
requests on Torque 6.1.3. What favours it: it asks for 12 attributes of a job in place of all, its look and
its books are those of this package, and it opens no connection to any mom.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from torque_sched.adapters.commands import Commands
from torque_sched.batch.torque.batch_client import BatchClient, ServerPlace
from torque_sched.batch.torque.native import NativePbs
from torque_sched.batch.torque.pbs import Pbs
from torque_sched.batch.torque.protocol import Attribute, ModifyJob, ReplyDecoder, RunJob, as_they_are
from torque_sched.model.cluster import Job
from torque_sched.model.snapshot import Snapshot
from torque_sched.model.states import JobState

RUN_S = 0.0185
"""RunJob is answered when the mom has the job: 54 a second over one connection, 42 by the C daemon."""
QUERY_S = 0.0001
"""The smallest requests took 0.04 to 0.45 ms."""
_REQUEST_S = 30.0
_EVENT_BYTES = 4
_CYCLES_FOR = {1, 2, 3, 5, 10}
_WAITS = "Not Running: Not enough of the right type of nodes are available"


class CScheduler:
    """Runs cycles, one for each event.

    Args:
        trqauthd: the server's.
    """

    def __init__(self, trqauthd: Path) -> None:
        self._client = BatchClient(ServerPlace(trqauthd))
        self._server = NativePbs(self._client, Pbs(Commands({}), time.time), time.time)
        self._started: set[str] = set()

    async def cycle(self) -> None:
        """Run what fits, in order of submission."""
        snapshot = (await self._server.look()).snapshot
        if not snapshot.server.scheduling:
            return
        free = _free(snapshot)
        queued = [job for job in snapshot.jobs if job.state is JobState.QUEUED]
        for job in queued:
            nodes = list(first_fit(job, free))
            if len(nodes) < job.request.n_pieces:
                continue
            began_s = time.monotonic()
            reply = await self._client.ask(RunJob(self._client.user, job.id), _decoder, _REQUEST_S)
            await asyncio.sleep(max(0.0, RUN_S - (time.monotonic() - began_s)))
            if reply.reply.code:
                continue
            for name, n_slots in nodes:
                free[name] -= n_slots
            await self._comment(job, time.strftime("Job started on %a %b %d at %H:%M"))
        await asyncio.sleep(QUERY_S * len(queued))
        for job in queued:
            await self._comment(job, _WAITS, only_if_waits=True)

    async def _comment(self, job: Job, text: str, *, only_if_waits: bool = False) -> None:
        if job.comment == text or (only_if_waits and job.id in self._started):
            return
        if not only_if_waits:
            self._started.add(job.id)
        attributes = (Attribute("comment", None, text),)
        await self._client.ask(ModifyJob(self._client.user, job.id, attributes), _decoder, _REQUEST_S)


def _free(snapshot: Snapshot) -> dict[str, int]:
    return {node.name: node.slots - sum(part.n_slots for part in node.jobs) for node in snapshot.nodes}


def first_fit(job: Job, free: dict[str, int]) -> Iterator[tuple[str, int]]:
    """The first nodes of the file that have the slots, each for one piece."""
    left = dict(free)
    for piece in job.request.pieces:
        for _ in range(piece.count):
            name = next((name for name, n_free in left.items() if n_free >= piece.slots), None)
            if name is None:
                return
            del left[name]
            yield name, piece.slots


def _decoder() -> ReplyDecoder[object]:
    return ReplyDecoder(as_they_are)


def main(trqauthd: str, port: int) -> None:
    """Take events until killed, one cycle for each."""
    scheduler = CScheduler(Path(trqauthd))
    loop = asyncio.new_event_loop()
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            connection, _ = listener.accept()
            with connection:
                data = connection.recv(_EVENT_BYTES)
            if int.from_bytes(data, "big") in _CYCLES_FOR:
                loop.run_until_complete(scheduler.cycle())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

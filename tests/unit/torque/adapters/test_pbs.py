"""One look: four answers of different moments, and what is done where they do not fit together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from torque_sched.adapters.commands import Commands, Completed
from torque_sched.adapters.pbs import Look, Pbs
from torque_sched.core.model import JobId, NodeName
from torque_sched.errors import CommandError, SnapshotError

QUEUES = b"Queue: batch\n    queue_type = Execution\n    enabled = True\n    started = True\n\n"
SERVER = b"Server: head\n    server_state = Active\n    scheduling = True\n\n"


def nodes(*listed: str) -> bytes:
    """One node of four slots, with a job on each of the first ones."""
    jobs = ",".join(f"{slot}/{job}" for slot, job in enumerate(listed))
    inner = f"<jobs>{jobs}</jobs>" if jobs else ""
    return f"<Data><Node><name>n1</name><state>free</state><np>4</np>{inner}</Node></Data>".encode()


def jobs(**states: str) -> bytes:
    """Jobs by number (``j7="R"``) and state; those that hold something are on the node."""
    found = ""
    for name, state in states.items():
        where = "<exec_host>n1/0</exec_host>" if state in "RES" else ""
        found += (
            f"<Job><Job_Id>{name[1:]}.head</Job_Id><Job_Owner>ann@head</Job_Owner><job_state>{state}</job_state>"
            f"<queue>batch</queue>{where}<Resource_List><nodes>1</nodes></Resource_List></Job>"
        )
    return f"<Data>{found}</Data>".encode()


class Answers(Commands):
    """The commands' outputs; those of ``pbsnodes`` one after the other, None: it fails."""

    def __init__(self, qstat: bytes, *pbsnodes: bytes | None) -> None:
        super().__init__({})
        self._qstat, self._pbsnodes = qstat, list(pbsnodes)

    async def run(self, argv: Sequence[str], timeout_s: float, *, keeps: int | None = None) -> Completed:
        if argv[0] == "pbsnodes":
            out = self._pbsnodes.pop(0)
            if out is None:
                raise CommandError("pbsnodes did not end", cure="try it by hand")
        else:
            out = {"-f": self._qstat, "-Q": QUEUES, "-B": SERVER}[argv[1]]
        return Completed(tuple(argv), 0, out, b"", 0.25)

    @property
    def n_left(self) -> int:
        return len(self._pbsnodes)


def look(commands: Commands) -> Look:
    return asyncio.run(Pbs(commands, lambda: 1000.0).look())


@pytest.mark.parametrize(
    "qstat", [jobs(j7="C"), jobs(j7="Q"), jobs(j8="Q")], ids=["ended", "put back", "forgotten"]
)
def test_nodes_older_than_the_jobs_are_asked_again(qstat: bytes) -> None:
    """Else the slots of a job that has ended are taken by nobody known, and nobody knows until when."""
    commands = Answers(qstat, nodes("7.head"), nodes())
    found = look(commands)
    assert found.snapshot.node_by_name[NodeName("n1")].slots_used == 0
    assert found.outputs["nodes"] == nodes()
    assert found.query_s == 0.5
    assert commands.n_left == 0


@pytest.mark.parametrize("state", ["R", "E", "S"])
def test_nodes_that_list_what_holds_them_are_asked_once(state: str) -> None:
    commands = Answers(jobs(j7=state), nodes("7.head"), nodes())
    assert look(commands).snapshot.node_by_name[NodeName("n1")].slots_used == 1
    assert commands.n_left == 1


def test_nodes_newer_than_the_jobs_are_asked_once() -> None:
    """The job ended in between: it counts as running, with an end that is known."""
    commands = Answers(jobs(j7="R"), nodes(), nodes())
    assert look(commands).snapshot.job_by_id[JobId("7.head")].slots_by_node() == {"n1": 1}
    assert commands.n_left == 1


def test_what_stays_is_believed_and_asked_once_more_only() -> None:
    commands = Answers(jobs(j8="Q"), nodes("7.head"), nodes("7.head"), nodes())
    assert look(commands).snapshot.node_by_name[NodeName("n1")].slots_used == 1
    assert commands.n_left == 1


@pytest.mark.parametrize("second", [None, b"<Data><Node>"], ids=["no answer", "damaged"])
def test_without_a_second_answer_there_is_no_snapshot(second: bytes | None) -> None:
    with pytest.raises(SnapshotError):
        look(Answers(jobs(j7="C"), nodes("7.head"), second))

"""Which jobs count as the same kind."""

from __future__ import annotations

import pytest

from tests.unit.torque.learning.build import job
from torque_sched.core.model import Job, JobId, QueueName
from torque_sched.core.request import Chunk, GenericResource, Request
from torque_sched.core.states import JobState
from torque_sched.learning.kinds import fingerprint_of, script_of, shape_of


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("relax-017", "relax"),
        ("relax_18.sh", "relax"),
        ("relax.pbs", "relax"),
        ("run0042", "run"),
        ("job7", "job"),
        ("my_task12", "my_task"),
        ("namd2", "namd2"),
        ("namd2-0017", "namd2"),
        ("h264", "h264"),
        ("case20170304", "case"),
        ("12345", "12345"),
        ("STDIN", ""),
        ("", ""),
    ],
)
def test_the_number_of_a_run_is_not_part_of_the_script(name: str, script: str) -> None:
    assert script_of(job(1, name=name)) == script


def test_a_member_of_an_array_is_of_the_kind_of_the_array() -> None:
    assert script_of(job(1, name="align2-5", array_index=5)) == "align2"


@pytest.mark.parametrize(
    ("request_", "shape"),
    [
        (Request(chunks=(Chunk(2, 4, 1), Chunk(1, 1))), "2x4+1,1x1"),
        (Request(procs=16), "p16"),
        (Request(), "1x1"),
        (Request(gres=(GenericResource("gpus", 2),)), "1x1,g2"),
    ],
)
def test_shape_says_what_is_asked_for(request_: Request, shape: str) -> None:
    found = shape_of(Job(JobId("1.head"), JobState.QUEUED, QueueName("batch"), request_))
    assert found == shape


def test_a_fingerprint_has_user_script_shape_and_limit() -> None:
    kind = fingerprint_of(job(3, name="relax-3", user="ada", ppn=4, gpus=1, walltime_s=7200))
    assert (kind.user, kind.script, kind.shape, kind.limit) == ("ada", "relax", "1x4+1", "7200")
    assert fingerprint_of(job(3, walltime_s=None)).limit == ""

"""Every reason has its words; decisions turn into comments and host lists."""

from __future__ import annotations

import pytest

from torque_sched.core.decisions import Hold, NodeShare, Reserve, Start
from torque_sched.core.model import JobId, NodeName
from torque_sched.core.reasons import (
    COMMENT_LIMIT,
    Reason,
    comment_for,
    log_text_for,
    run_failure_comment,
    started_comment,
)
from torque_sched.errors import ModelError


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_words_for_owner_and_log(reason: Reason) -> None:
    assert comment_for(reason).startswith("Not Running: ")
    assert log_text_for(reason)
    assert "{" not in comment_for(reason)


@pytest.mark.parametrize(
    ("reason", "comment"),
    [
        (Reason.QUEUE_NOT_STARTED, "Not Running: Queue not started."),
        (Reason.SERVER_USER_LIMIT, "Not Running: User has reached server running job limit."),
        (Reason.QUEUE_GROUP_LIMIT, "Not Running: Group has reached queue running limit."),
        (Reason.NOT_ENOUGH_NODES, "Not Running: Not enough of the right type of nodes are available"),
        (Reason.CROSSES_DEDICATED_TIME, "Not Running: Job would cross dedicated time boundry"),
        (Reason.DRAINING, "Not Running: Draining system to allow starving job to run"),
    ],
)
def test_comments_equal_those_of_the_c_daemon(reason: Reason, comment: str) -> None:
    assert comment_for(reason) == comment


def test_log_text_of_the_most_frequent_reason_equals_the_captured_one() -> None:
    assert log_text_for(Reason.NOT_ENOUGH_NODES) == "Not enough of the right type of nodes available"


def test_details_fill_the_sentence_and_cannot_break_it() -> None:
    hold = Hold(JobId("1.h"), Reason.NEVER_FITS, {"why": "no node has 9 slots\nand {braces}"})
    assert hold.comment == "Not Running: Job can never run here: no node has 9 slots and {braces}"
    assert len(comment_for(Reason.NEVER_FITS, {"why": "x" * 9999})) == COMMENT_LIMIT


def test_comments_around_a_start() -> None:
    assert started_comment("Fri", "Nov", 20, 17, 38) == "Job started on Fri Nov 20 at 17:38"
    assert run_failure_comment("Unknown node ") == "Not Running - PBS Error: Unknown node"


def test_a_start_names_slots_and_gpus_of_every_node() -> None:
    start = Start(JobId("1.h"), (NodeShare(NodeName("n4"), 2, 1), NodeShare(NodeName("n1"), 1)))
    assert start.hosts == "n4:ppn=2:gpus=1+n1:ppn=1"
    assert "estimated start" in Reserve(JobId("1.h"), 5.0, start.allocation).comment


def test_a_share_of_nothing_is_refused() -> None:
    for node, ppn, gpus in (("n", 0, 0), ("", 1, 0), ("n", 1, -1)):
        with pytest.raises(ModelError):
            NodeShare(NodeName(node), ppn, gpus)

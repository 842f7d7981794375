"""A request that comes twice is computed once; nobody is forgotten, nobody gets another's answer."""

import pytest

from tests.unit.core.requests.world import KIB, MIB, World, needs
from yarn_accel.core.requests import events as e

LARGE = needs(64, MIB)


def test_the_same_request_joins_the_one_that_runs_and_both_are_answered(world, a, b):
    first, second = world.ask(a, "k"), world.ask(b, "k")
    assert len(world.started) == 1
    world.finish()
    answers = world.answer(a, first), world.answer(b, second)
    assert [answer.is_duplicate for answer in answers] == [False, True]
    assert answers[0].work == answers[1].work
    assert world.used_bytes == 0


def test_a_small_answer_is_repeated_until_it_is_old(world, a, b):
    world.ask(a, "k")
    world.finish()
    world.wait(599.0)
    assert world.kind(b, world.ask(b, "k")) == "Repeat"
    world.wait(2.0)
    world.ask(b, "k")
    assert len(world.started) == 2


def test_tenants_do_not_share_keys(world, a):
    world.ask(a, "k")
    world.ask(world.open("other"), "k", needs(operation="lu"))
    world.finish()
    world.finish()
    assert len(world.started) == 2


@pytest.mark.parametrize("change", ["content", "writes", "digest"])
@pytest.mark.parametrize("is_answered", [False, True])
def test_the_same_key_for_something_else_is_a_conflict(world, a, b, change, is_answered):
    world.ask(a, "k")
    if is_answered:
        world.finish()
    what = needs(operation="lu") if change == "content" else needs()
    # What the header says is refused before its payload comes.
    digest = b"other" if change == "digest" else None
    more = {"writes": "hdfs://nn/out/x"} if change == "writes" else {}
    request = world.ask(b, "k", what, digest, **more)
    assert world.code(b, request) == "key-reused"
    assert b in world.free


def test_a_payload_with_other_bytes_is_a_conflict_when_it_is_there(world, a, b):
    world.ask(a, "k")
    request = world.ask(b, "k", digest=None)
    world.arrive(b, request, b"other")
    assert world.code(b, request) == "key-reused"


@pytest.mark.parametrize(
    "failure",
    [
        e.Failure("storage", "storage", "DataNode gone", "", True),
        e.Failure("unavailable", "out-of-memory", "", "", True),
        e.Failure("internal", "internal-error", ""),
        e.Failure("rejected", "deadline-exceeded", ""),
    ],
)
def test_what_may_be_better_next_time_is_computed_again(world, a, failure):
    world.ask(a, "k")
    world.finish(failure=failure)
    world.ask(a, "k")
    assert len(world.started) == 2


def test_a_rejection_is_repeated(world, a, b):
    request = world.ask(a, "k")
    world.finish(failure=e.Failure("rejected", "singular", "no"))
    assert (world.code(a, request), world.used_bytes) == ("singular", 0)
    request = world.ask(b, "k")
    assert world.code(b, request) == "singular"
    assert world.answer(b, request).is_duplicate


def test_a_file_that_changed_is_another_request(world, a):
    what = needs(reads=("hdfs://nn/in/x",), input_bytes=64, output_bytes=64)
    for digest, kind in ((b"old", "ReplyResult"), (b"old", "Repeat"), (b"new", "ReplyFailure")):
        request = world.ask(a, "k", what)
        world.looked(digest=digest)
        world.read()
        world.finish()
        assert world.kind(a, request) == kind


@pytest.mark.parametrize(("lies_there", "kind"), [("stamp", "Repeat"), ("other", ""), (None, "")])
def test_a_written_answer_is_repeated_only_while_it_lies_there(world, a, lies_there, kind):
    world.ask(a, "k", writes="hdfs://nn/out/x")
    world.finish()
    world.wrote("stamp")
    request = world.ask(a, "k", writes="hdfs://nn/out/x")
    assert world.checks
    assert a in world.blocked
    world.checked(lies_there)
    assert world.kind(a, request) == kind
    assert len(world.started) == (1 if kind else 2)


def test_an_output_of_which_nothing_is_known_is_written_again(world, a):
    world.ask(a, "k", writes="hdfs://nn/out/x")
    world.finish()
    world.wrote(None)
    world.ask(a, "k", writes="hdfs://nn/out/x")
    assert len(world.started) == 2


# Large answers


def test_a_large_answer_that_was_dear_is_kept_where_it_lies_and_repeated(world, a, b):
    world.ask(a, "k", LARGE)
    world.finish(compute_s=1.0)
    assert world.used_bytes == 3 * MIB // 2
    assert world.kind(b, world.ask(b, "k", LARGE)) == "Repeat"


def test_a_large_answer_that_was_cheap_is_only_noted(world, a, b):
    world.ask(a, "k", LARGE)
    world.finish(compute_s=1e-6)
    assert world.used_bytes == 0
    assert world.code(b, world.ask(b, "k", LARGE, b"other")) == "key-reused"
    world.ask(b, "k", LARGE)
    assert len(world.started) == 2


@pytest.mark.parametrize("is_computed", [False, True], ids=["while it is computed", "while it is sent"])
def test_what_reached_nobody_is_kept_even_if_cheap(world, a, b, is_computed):
    world.stop(a)
    world.ask(a, "k", LARGE)
    if is_computed:
        world.finish(compute_s=1e-6)
    world.close(a)
    world.finish(compute_s=1e-6)
    assert world.kind(b, world.ask(b, "k", LARGE)) == "Repeat"


def test_kept_answers_make_space_when_it_is_wanted_oldest_first():
    world = World(pool_bytes=16 * MIB)
    world.worker()
    a = world.open()
    for number in range(2):
        world.ask(a, f"k{number}", LARGE)
        world.finish(compute_s=1.0)
    world.ask(a, "large", needs(2 * MIB, 12 * MIB))
    assert len(world.running) == 1
    world.finish()
    assert world.kind(a, world.ask(a, "k1", LARGE)) == ""
    world.finish()
    assert len(world.started) == 4


def test_an_answer_that_is_being_repeated_stays_until_it_has_left(world, a, b):
    world.ask(a, "k", LARGE)
    world.finish(compute_s=1.0)
    world.stop(b)
    world.ask(b, "k", LARGE)
    world.wait(601.0)
    world.ask(a, "other")
    assert world.used_bytes == 3 * MIB // 2 + 64 * KIB
    world.go_on(b)
    world.finish()
    assert world.used_bytes == 0


def test_remembering_is_bounded(world, a):
    for number in range(200):
        world.ask(a, f"k{number}", needs(64, 8 * KIB))
        world.finish()
    assert len(world.remembered) < 10


# Those who go away, and those who crash


@pytest.mark.parametrize("is_second_staying", [True, False])
def test_it_is_computed_while_one_that_joined_waits(world, a, b, is_second_staying):
    world.ask(a, "blocks")
    first, second = world.ask(a, "k"), world.ask(b, "k")
    world.cancel(a, first)
    assert world.kind(a, first) == "ReplyCancelled"
    if not is_second_staying:
        world.cancel(b, second)
    world.finish()
    world.finish()
    assert world.kind(b, second) == ("ReplyResult" if is_second_staying else "ReplyCancelled")
    assert len(world.started) == 1 + is_second_staying
    assert world.used_bytes == 0


def test_who_waits_for_a_payload_that_never_comes_sends_it_itself():
    """The first had its digest already, but no memory yet, so the bytes went with its connection."""
    world = World()
    world.can_create = False
    a, b = world.open(), world.open()
    world.ask(a, "k")
    request = world.ask(b, "k")
    world.close(a)
    assert world.answer(b, request).reason.startswith("again: ")


def test_a_running_request_that_nobody_waits_for_is_finished_and_remembered(world, a, b):
    request = world.ask(a, "k")
    world.cancel(a, request)
    world.finish()
    assert world.kind(b, world.ask(b, "k")) == "Repeat"


def test_crashes_are_counted_by_key_also_of_those_who_come_again():
    world = World(max_attempts=2)
    world.worker(1)
    a = world.open()
    world.ask(a, "k")
    world.lose(1, world.running)
    world.close(a)
    b = world.open()
    world.worker(2)
    request = world.ask(b, "k")
    world.lose(2, world.running)
    assert world.code(b, request) == "worker-lost"


def test_a_crash_is_forgotten_when_the_key_has_worked():
    world = World(max_attempts=2)
    world.worker(1)
    a = world.open()
    world.ask(a, "k", LARGE)
    world.lose(1, world.running)
    world.worker(2)
    world.finish(compute_s=1e-6)
    request = world.ask(a, "k", LARGE)
    world.lose(2, world.running)
    world.worker(3)
    world.finish()
    assert world.kind(a, request) == "ReplyResult"

"""A site's side of a grid job: what it lets in, submits, starts, kills and reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.torque.grid.parties import HERE, HOME, WALL_S, Nodes, at, token
from torque_sched.errors import ModelError
from torque_sched.grid.handshake.blocks import (
    Admission,
    BlockReport,
    BlockState,
    Denial,
    Go,
    Look,
    PeerRules,
    Submit,
)
from torque_sched.grid.handshake.guest import (
    Arrived,
    BlockEnded,
    BlockFailed,
    BlockSubmitted,
    FindBlock,
    Guest,
    GuestState,
    JobOver,
    KillBlock,
    OpenBarrier,
    Rejection,
    RunBlock,
    StageTrouble,
)
from torque_sched.grid.handshake.holder import Freed, HolderState, Persist, Send
from torque_sched.grid.handshake.messages import (
    Claim,
    Commit,
    Committed,
    Confirm,
    From,
    Instant,
    NotReady,
    Piece,
    Ready,
    Refusal,
    Release,
    Released,
    SiteId,
    Tick,
    Token,
    TokenMessage,
)

RULES = {HOME: PeerRules({"ann": "guest1"}, slots_cap=8, length_cap_s=1000.0, blocks_cap=2)}

RELEASE, COMMIT = (kind(token(), HERE, WALL_S) for kind in (Release, Commit))
LOOK = Look(token(), HERE, WALL_S)


def guest(state: GuestState | None = None) -> Guest:
    return Guest(HERE, Nodes(), Admission(HERE, RULES), state or GuestState(HolderState("boot-1")))


def confirm(t: Token, user: str = "ann", slots: int = 4, length_s: float = 600.0) -> Confirm:
    return Confirm(t, HERE, WALL_S, Claim((Piece("", slots),), WALL_S, length_s), user)


def submit(t: Token, sent_s: float = 0.0, user: str = "ann", walltime_s: int = 500) -> Submit:
    return Submit(t, HERE, WALL_S + sent_s, 0, 2, user, "job", walltime_s, "#!/bin/sh\n")


def go(t: Token) -> Go:
    return Go(t, HERE, WALL_S, (HERE, HOME), (("n1",), ("m1", "m2")))


def tell(g: Guest, event: Any, seconds: float = 0.0) -> list[Any]:
    """All commands but `Persist`, which comes once and first."""
    if isinstance(event, TokenMessage):
        event = From(HOME, event)
    commands = list(g.apply(event, at(seconds)))
    assert not any(isinstance(command, Persist) for command in commands[1:])
    return [command for command in commands if not isinstance(command, Persist)]


def reports(commands: list[Any]) -> list[BlockState]:
    return [c.message.state for c in commands if isinstance(c, Send) and isinstance(c.message, BlockReport)]


def kinds(commands: list[Any]) -> list[type]:
    return [type(command) for command in commands]


def committed(t: Token | None = None) -> Guest:
    g, t = guest(), t or token()
    tell(g, confirm(t))
    assert isinstance(tell(g, Commit(t, HERE, WALL_S))[-1].message, Committed)
    return g


def at_barrier() -> Guest:
    g = committed()
    tell(g, submit(token()))
    tell(g, BlockSubmitted(token(), "7.here"))
    assert reports(tell(g, Arrived(token(), "7.here", ("n1",)))) == [BlockState.READY]
    return g


def running() -> Guest:
    g = at_barrier()
    opened, report = tell(g, go(token()))
    assert opened == OpenBarrier(token(), "7.here", (HERE, HOME), (("n1",), ("m1", "m2")))
    assert report.message.state is BlockState.RUNNING
    return g


def test_a_block_is_submitted_once_and_ends() -> None:
    g = committed()
    run, report = tell(g, submit(token()))
    assert run == RunBlock(token(), 0, 2, "guest1", "job", WALL_S, 500, "#!/bin/sh\n")
    assert report.message.state is BlockState.SUBMITTING
    assert reports(tell(g, submit(token(), 1.0), 1.0)) == [BlockState.SUBMITTING]
    assert tell(g, BlockSubmitted(token(), "7.here")) == []
    assert reports(tell(g, LOOK)) == [BlockState.SUBMITTED]
    # Go before it has arrived starts nothing.
    assert reports(tell(g, go(token()))) == [BlockState.SUBMITTED]
    tell(g, Arrived(token(), "7.here", ("n1",)))
    assert kinds(tell(g, go(token()))) == [OpenBarrier, Send]
    assert kinds(tell(g, go(token()))) == [Send]
    freed, report = tell(g, BlockEnded(token(), 3))
    assert isinstance(freed, Freed)
    assert (report.message.state, report.message.exit_status) == (BlockState.ENDED, 3)
    # The end is known until home releases it.
    assert reports(tell(g, LOOK)) == [BlockState.ENDED]
    assert isinstance(tell(g, RELEASE)[-1].message, Released)
    assert reports(tell(g, LOOK)) == [BlockState.UNKNOWN]
    assert reports(tell(g, submit(token()))) == [BlockState.CANCELLED]


def test_only_under_a_committed_claim_a_block_is_submitted_and_never_beyond_it() -> None:
    g = guest()
    assert reports(tell(g, submit(token()))) == [BlockState.CANCELLED]
    tell(g, confirm(token()))
    assert reports(tell(g, submit(token()))) == [BlockState.CANCELLED]
    (run, _) = tell(committed(), submit(token(), 100.0, walltime_s=9999), 100.0)
    assert run.walltime_s == 500


def test_released_is_said_only_when_the_block_is_gone() -> None:
    g = running()
    (kill,) = tell(g, RELEASE, 10)
    assert isinstance(kill, KillBlock)
    assert g.grants(at(10)), "its nodes are not free before it is gone"
    assert tell(g, RELEASE, 11) == []
    assert kinds(tell(g, Tick(), 20)) == [KillBlock]
    assert reports(tell(g, BlockEnded(token(), 271), 21)) == [BlockState.CANCELLED]
    assert g.grants(at(21)) == ()
    assert isinstance(tell(g, RELEASE, 22)[-1].message, Released)
    assert g.state.blocks == ()


def test_a_later_attempt_waits_until_the_earlier_block_is_gone() -> None:
    g = at_barrier()
    later = confirm(token(attempt=2))
    assert kinds(tell(g, later)) == [KillBlock]
    assert tell(g, later, 1) == []
    tell(g, BlockEnded(token(), 271), 1)
    assert isinstance(tell(g, later, 1)[-1].message, Ready)


def test_no_go_in_time_cancels_the_block_here() -> None:
    g = at_barrier()
    assert g.wake_s(at(0)) == at(180).monotonic_s
    assert tell(g, Tick(), 179.9) == []
    assert kinds(tell(g, Tick(), 180)) == [KillBlock]
    assert reports(tell(g, go(token()), 181)) == [BlockState.CANCELLING]
    assert reports(tell(g, BlockFailed(token(), "gone"), 182)) == [BlockState.CANCELLED]


def test_a_running_block_is_killed_at_the_end_of_its_claim_and_counts_as_ended() -> None:
    g = running()
    assert KillBlock in kinds(tell(g, Tick(), 600))
    assert reports(tell(g, BlockEnded(token(), 271), 601)) == [BlockState.ENDED]


def test_a_second_batch_job_of_a_token_is_turned_away() -> None:
    g = at_barrier()
    assert tell(g, Arrived(token(), "8.here", ("n2",))) == [Rejection(token(), "8.here")]
    assert tell(g, BlockSubmitted(token(), "8.here")) == [Rejection(token(), "8.here")]
    assert tell(g, Arrived(token("9"), "9.here", ("n2",))) == [Rejection(token("9"), "9.here")]
    tell(g, BlockFailed(token(), "gone"))
    assert tell(g, Arrived(token(), "7.here", ("n1",))) == [Rejection(token(), "7.here")]


def test_a_restart_looks_for_blocks_and_opens_the_barrier_again() -> None:
    g = running()
    risen = guest(g.state)
    assert risen.restart("boot-1", at(5)) == (FindBlock(token()),)
    assert kinds(tell(risen, Arrived(token(), "7.here", ("n1",)), 6)) == [OpenBarrier]
    lost = guest(g.state)
    lost.restart("boot-2", Instant(1.0, WALL_S + 30))
    assert reports(tell(lost, BlockFailed(token(), "no such job"), 31)) == [BlockState.CANCELLED]


def test_a_kill_under_way_goes_on_after_a_restart() -> None:
    g = running()
    tell(g, RELEASE)
    assert kinds(list(guest(g.state).restart("boot-1", at(5)))) == [KillBlock]


def test_a_submit_that_was_cut_off_by_a_crash_is_found_or_given_up() -> None:
    g = committed()
    tell(g, submit(token()))
    assert guest(g.state).restart("boot-1", at(5)) == (FindBlock(token()),)
    found = guest(g.state)
    tell(found, BlockSubmitted(token(), "7.here"), 5)
    assert reports(tell(found, LOOK)) == [BlockState.SUBMITTED]
    lost = guest(g.state)
    assert reports(tell(lost, BlockFailed(token(), "no such job"), 5)) == [BlockState.CANCELLED]


@pytest.mark.parametrize("is_submitted", [False, True])
def test_a_claim_is_kept_for_a_home_that_asks_and_given_back_when_it_is_silent(is_submitted: bool) -> None:
    """A start reserved hours ahead; `keep_s` is 900."""
    g = guest()
    claim = Claim((Piece("", 4),), WALL_S + 9000.0, 600.0)
    tell(g, Confirm(token(), HERE, WALL_S, claim, "ann"))
    tell(g, COMMIT)
    if is_submitted:
        assert kinds(tell(g, submit(token()))) == [RunBlock, Send]
    for seconds in range(100, 4001, 100):
        tell(g, Look(token(), HERE, WALL_S + seconds), seconds)
        tell(g, Tick(), seconds)
        assert g.grants(at(seconds))
    assert 4000 + 0.75 * 900 <= g.wake_s(at(4000)) - 50.0 <= 4000 + 900
    tell(g, From(SiteId("thief"), Look(token(), HERE, WALL_S + 4600)), 4600)
    given_back = tell(g, Tick(), 4900)
    if is_submitted:
        (kill,) = given_back
        assert kill == KillBlock(token(), None, "its home was not heard of in time")
        given_back = tell(g, BlockFailed(token(), "it was never submitted"), 4900)
    assert isinstance(given_back[0], Freed)
    assert g.grants(at(4900)) == ()
    state = BlockState.CANCELLED
    assert reports(tell(g, submit(token(), 4901), 4901)) == [state]


def test_silence_does_not_end_a_block_that_runs_and_counts_through_a_restart_but_not_a_boot() -> None:
    g = guest()
    claim = Claim((Piece("", 4),), WALL_S, 2000.0)
    rules = {HOME: PeerRules({"ann": "guest1"}, slots_cap=8, length_cap_s=9999.0, blocks_cap=2)}
    g = Guest(HERE, Nodes(), Admission(HERE, rules), GuestState(HolderState("boot-1")))
    tell(g, Confirm(token(), HERE, WALL_S, claim, "ann"))
    tell(g, COMMIT)
    waiting = g.state
    for boot, is_kept in (("boot-1", False), ("boot-2", True)):
        risen = Guest(HERE, Nodes(), Admission(HERE, rules), waiting)
        risen.restart(boot, at(500))
        tell(risen, Tick(), 901)
        assert bool(risen.grants(at(901))) is is_kept
    tell(g, submit(token()))
    tell(g, Arrived(token(), "7.here", ("n1",)))
    tell(g, go(token()))
    assert tell(g, Tick(), 1500) == []
    assert g.grants(at(1500))


def test_files_go_home_after_the_nodes_are_free_and_before_the_block_has_ended() -> None:
    g = running()
    freed, report = tell(g, JobOver(token(), 3), 10)
    assert isinstance(freed, Freed)
    assert g.grants(at(10)) == ()
    assert (report.message.state, report.message.exit_status) == (BlockState.STAGING, 3)
    (report,) = tell(g, StageTrouble(token(), "no space"), 11)
    assert (report.message.state, report.message.why) == (BlockState.STAGING, "no space")
    assert g.wake_s(at(11)) is None
    assert tell(g, Tick(), 700) == []
    assert guest(g.state).restart("boot-1", at(701)) == (FindBlock(token()),)
    assert tell(g, Arrived(token(), "7.here", ("n1",)), 702) == []
    (report,) = tell(g, BlockEnded(token(), 3, "given up"), 703)
    told = report.message
    assert (told.state, told.exit_status, told.why) == (BlockState.ENDED, 3, "given up")


def test_files_that_came_home_after_all_are_no_trouble_and_a_release_stops_the_tries() -> None:
    g = running()
    tell(g, JobOver(token(), 0), 10)
    tell(g, StageTrouble(token(), "no space"), 11)
    (report,) = tell(g, BlockEnded(token(), 0), 12)
    assert report.message.why == ""
    g = running()
    tell(g, JobOver(token(), 0), 10)
    assert kinds(tell(g, RELEASE, 11)) == [KillBlock]
    tell(g, BlockEnded(token(), 0), 12)
    assert isinstance(tell(g, RELEASE, 13)[-1].message, Released)


def test_messages_of_a_stranger_about_a_block_are_ignored() -> None:
    g = at_barrier()
    for message in (submit(token()), go(token()), LOOK):
        assert tell(g, From(SiteId("thief"), message)) == []
    (answer,) = tell(g, From(SiteId("thief"), RELEASE))
    assert answer.message.reason is Refusal.NOT_YOURS
    assert reports(tell(g, LOOK)) == [BlockState.READY]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (confirm(token(), user="bob"), "user bob of there is not known at here"),
        (confirm(token(), user=""), "user (none) of there is not known at here"),
        (confirm(token(), slots=9), "there would have 9 slots at here, of 8 allowed"),
        (confirm(token(), length_s=1001.0), "1001 s is longer than 1000 s allowed"),
    ],
)
def test_what_no_rule_allows_is_denied_with_its_reason(message: Confirm, why: str) -> None:
    (answer,) = tell(guest(), message)
    assert isinstance(answer.message, NotReady)
    assert (answer.message.reason, answer.message.detail) == (Refusal.DENIED, why)


@pytest.mark.parametrize("ours", ["root", "toor", "0", ""])
def test_nobody_is_mapped_to_root(ours: str) -> None:
    with pytest.raises(ModelError, match="never runs as root"):
        Admission(HERE, {HOME: PeerRules({"ann": ours}, 8, 10.0, 2)}, root_names=("root", "toor"))


class Everybody(dict[str, str]):
    """Maps also those whom it does not list."""

    def get(self, name: str, default: object = None) -> str:  # type: ignore[override]
        return "root"


ONE_SLOT = Claim((Piece("", 1),), WALL_S, 10.0)
REFUSED = "site here takes no work from there"


@pytest.mark.parametrize(
    ("rules", "home", "user", "found"),
    [
        ({}, HOME, "ann", Denial(REFUSED)),
        ({HOME: replace(RULES[HOME], refuse=True)}, HOME, "ann", Denial(REFUSED)),
        ({}, HERE, "ann", "ann"),
        ({}, HERE, "root", None),
        ({HOME: PeerRules(Everybody(), 8, 1000.0, 2)}, HOME, "ann", None),
    ],
    ids=["no rules", "refused", "own user", "own root", "a mapping that hides root"],
)
def test_who_is_let_in(rules: Any, home: SiteId, user: str, found: Denial | str | None) -> None:
    admitted = Admission(HERE, rules).admit(home, Token(home, "1", 1), user, ONE_SLOT, ())
    assert admitted == found if found else isinstance(admitted, Denial)


def test_caps_count_what_the_peer_has_here() -> None:
    admission, g = Admission(HERE, RULES), guest()
    for job in ("1", "2"):
        tell(g, confirm(token(job), slots=1))
    denied = admission.admit(HOME, token("3"), "ann", ONE_SLOT, g.grants(at(0)))
    assert denied == Denial("there has 2 blocks at here, as many as allowed")
    # A later attempt of a job that has its claim is no further one.
    assert admission.admit(HOME, token("2", 2), "ann", ONE_SLOT, g.grants(at(0))) == "guest1"

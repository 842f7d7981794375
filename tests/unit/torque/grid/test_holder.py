"""One site's holder: who gets a node, until when, and what a copy of a message changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.torque.grid.parties import HERE, HOME, WALL_S, Nodes, at, token
from torque_sched.grid.handshake.holder import (
    Ended,
    Freed,
    Granted,
    Holder,
    HolderCommand,
    HolderLimits,
    HolderState,
    Persist,
    Send,
)
from torque_sched.grid.handshake.messages import (
    SKEW_CAP_S,
    Claim,
    Commit,
    Committed,
    Confirm,
    From,
    Gone,
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
)


def holder(state: HolderState | None = None, limits: HolderLimits | None = None, **slots: int) -> Holder:
    return Holder(HERE, Nodes(**slots), state or HolderState("boot-1"), limits or HolderLimits())


def confirm(
    t: Token, *pieces: Piece, start_s: float = 0.0, length_s: float = 100.0, sent_s: float = 0.0
) -> Confirm:
    claim = Claim(pieces or (Piece("n1", 4),), WALL_S + start_s, length_s)
    return Confirm(t, HERE, WALL_S + sent_s, claim)


def tell(h: Holder, message: object, seconds: float = 0.0, peer: SiteId = HOME) -> HolderCommand:
    """The answer, which always comes last."""
    return h.apply(From(peer, message), at(seconds))[-1]  # type: ignore[arg-type]


def answer(h: Holder, message: object, seconds: float = 0.0, peer: SiteId = HOME) -> object:
    command = tell(h, message, seconds, peer)
    assert isinstance(command, Send)
    assert command.to == peer
    return command.message


def refusal(h: Holder, message: object, seconds: float = 0.0, peer: SiteId = HOME) -> Refusal:
    reply = answer(h, message, seconds, peer)
    assert isinstance(reply, NotReady | Gone)
    return reply.reason


def commit(t: Token, sent_s: float = 0.0) -> Commit:
    return Commit(t, HERE, WALL_S + sent_s)


def release(t: Token) -> Release:
    return Release(t, HERE, WALL_S)


def test_a_copy_of_a_confirm_gets_what_is_left_of_the_lease_and_no_more() -> None:
    h = holder()
    for seconds, lease_s in ((0.0, 30.0), (12.0, 18.0)):
        ready = answer(h, confirm(token(), sent_s=seconds), seconds)
        assert isinstance(ready, Ready)
        assert ready.lease_s == lease_s
    assert h.wake_s(at(12)) == at(30).monotonic_s
    (_, freed) = h.apply(Tick(), at(30))
    assert isinstance(freed, Freed)
    assert freed.reason is Refusal.EXPIRED
    assert refusal(h, confirm(token(), sent_s=30.0), 30.0) is Refusal.EXPIRED
    assert refusal(h, commit(token()), 31.0) is Refusal.EXPIRED


@pytest.mark.parametrize(
    ("first", "then", "why"),
    [
        (
            confirm(token("1"), Piece("n1", 1, gpus=2)),
            confirm(token("2"), Piece("n1", 1, gpus=1)),
            "BUSY",
        ),
        (confirm(token()), confirm(token(), Piece("n2", 1)), "CONFLICT"),
        (release(token()), confirm(token()), "RELEASED"),
        (commit(token()), confirm(token()), "UNKNOWN"),
    ],
    ids=["GPUs are taken", "another claim of the token", "a release overtakes", "an unknown token is closed"],
)
def test_what_is_refused_after_another_message(first: object, then: object, why: str) -> None:
    h = holder()
    answer(h, first)
    assert refusal(h, then) is Refusal[why]


def test_what_is_held_is_not_free_for_others_and_what_ends_is_at_once() -> None:
    h = holder()
    answer(h, confirm(token("1"), Piece("n1", 3)))
    assert refusal(h, confirm(token("2"), Piece("n1", 2))) is Refusal.BUSY
    assert isinstance(answer(h, confirm(token("3"), Piece("n1", 1))), Ready)
    # Half-open: one that starts when the other ends.
    assert isinstance(answer(h, confirm(token("4"), Piece("n1", 4), start_s=100.0)), Ready)
    assert refusal(h, confirm(token("5"), Piece("n1", 4), start_s=99.9)) is Refusal.BUSY


def test_uses_one_after_the_other_do_not_add_up() -> None:
    h = holder()
    for job, start_s in (("1", 10.0), ("2", 20.0)):
        answer(h, confirm(token(job), Piece("n1", 2), start_s=start_s, length_s=10.0))
    assert isinstance(answer(h, confirm(token("3"), Piece("n1", 2), length_s=100.0)), Ready)
    assert refusal(h, confirm(token("4"), Piece("n1", 1), start_s=15.0)) is Refusal.BUSY
    assert isinstance(answer(h, confirm(token("5"), Piece("n1", 2), start_s=30.0)), Ready)


def test_a_piece_without_a_node_gets_nodes_of_the_sites_choice() -> None:
    h = holder(n1=4, n2=4, n3=4)
    answer(h, confirm(token("1"), Piece("n2", 1)))
    answer(h, confirm(token("2"), Piece("", 4, count=2)))
    assert [p.node for p in h.state.grants[1].pieces] == ["n1", "n3"]
    assert refusal(h, confirm(token("3"), Piece("", 4))) is Refusal.BUSY
    assert isinstance(answer(h, confirm(token("4"), Piece("", 3))), Ready)


def test_a_later_attempt_closes_all_earlier_ones() -> None:
    h = holder()
    answer(h, confirm(token(attempt=1)))
    answer(h, commit(token(attempt=1)))
    commands = h.apply(From(HOME, confirm(token(attempt=3))), at(1))
    assert [type(c) for c in commands] == [Persist, Freed, Granted, Send]
    assert refusal(h, confirm(token(attempt=2))) is Refusal.SUPERSEDED
    assert refusal(h, commit(token(attempt=1))) is Refusal.SUPERSEDED
    # A release of an earlier attempt leaves the later one alone.
    assert isinstance(answer(h, release(token(attempt=2))), Released)
    assert [grant.token.attempt for grant in h.grants(at(1))] == [3]


@pytest.mark.parametrize("off_s", [SKEW_CAP_S + 0.1, -SKEW_CAP_S - 0.1])
def test_a_clock_that_is_off_is_refused_and_a_copy_in_time_is_not(off_s: float) -> None:
    h = holder()
    assert refusal(h, confirm(token(), sent_s=off_s)) is Refusal.SKEW
    assert isinstance(answer(h, confirm(token(), sent_s=0.9)), Ready)


@pytest.mark.parametrize(
    ("message", "peer", "why"),
    [
        (release(token()), "thief", "NOT_YOURS"),
        (commit(token()), "thief", "NOT_YOURS"),
        (confirm(token("2")), "thief", "NOT_YOURS"),
        (replace(release(token()), version=2), HOME, "VERSION"),
        (replace(release(token()), site=SiteId("elsewhere")), HOME, "WRONG_SITE"),
    ],
)
def test_only_the_home_site_may_speak_for_its_tokens(message: object, peer: str, why: str) -> None:
    h = holder()
    answer(h, confirm(token()))
    assert refusal(h, message, 0.0, SiteId(peer)) is Refusal[why]
    assert len(h.grants(at(0))) == 1


@pytest.mark.parametrize(
    ("start_s", "length_s"), [(-31.0, 100.0), (-20.0, 10.0), (31 * 86400.0, 100.0), (0.0, 31 * 86400.0)]
)
def test_a_claim_of_a_strange_time_is_refused(start_s: float, length_s: float) -> None:
    assert refusal(holder(), confirm(token(), start_s=start_s, length_s=length_s)) is Refusal.BAD_TIME


def test_one_home_cannot_hold_more_than_its_share() -> None:
    h = holder(limits=HolderLimits(per_home=2))
    for job in ("1", "2"):
        answer(h, confirm(token(job), Piece("n1", 1)))
    assert refusal(h, confirm(token("3"), Piece("n1", 1))) is Refusal.LIMIT


def test_a_restart_keeps_leases_and_commits_a_reboot_ends_the_leases() -> None:
    h = holder()
    for job in ("1", "2"):
        answer(h, confirm(token(job), Piece("n1", 1)))
    answer(h, commit(token("2")))
    same, other = holder(h.state), holder(h.state)
    assert (same.restart("boot-1", at(5)), same.state) == ((), h.state)
    assert isinstance(answer(same, commit(token("1")), 29.0), Committed)
    persist, freed = other.restart("boot-2", Instant(3.0, WALL_S + 60.0))
    assert isinstance(persist, Persist)
    assert isinstance(freed, Freed)
    assert (freed.grant.token.job, freed.reason) == ("1", Refusal.RESTARTED)
    assert [grant.token.job for grant in other.grants(at(60))] == ["2"]
    assert refusal(other, commit(token("1")), 60.0) is Refusal.RESTARTED


def test_a_committed_claim_ends_with_its_block_or_its_time() -> None:
    h = holder()
    for job in ("1", "2"):
        answer(h, confirm(token(job), Piece("n1", 1)))
        answer(h, commit(token(job)))
    _, freed = h.apply(Ended(token("1")), at(40))
    assert isinstance(freed, Freed)
    _, freed = h.apply(Tick(), at(100))
    assert isinstance(freed, Freed)
    assert freed.reason is Refusal.OVER
    assert h.grants(at(100)) == ()
    assert h.wake_s(at(100)) is None


def test_closed_tokens_are_forgotten_in_the_end() -> None:
    h = holder()
    answer(h, release(token()))
    h.apply(Tick(), at(3601))
    assert h.state.closed == ()
    # A copy from those days is too old to be believed.
    assert refusal(h, confirm(token()), 3601.0) is Refusal.SKEW

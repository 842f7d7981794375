"""One coordinator: the order in which it asks, when it commits, and what it leaves behind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.torque.grid.parties import HOME, WALL_S, at, token
from torque_sched.errors import ModelError
from torque_sched.grid.handshake.blocks import SITE_WIRE, BlockReport, BlockState, Go, Submit
from torque_sched.grid.handshake.coordinator import (
    Abort,
    Ask,
    Candidate,
    Coordinator,
    CoordinatorCommand,
    CoordinatorLimits,
    Failure,
    GaveUp,
    Phase,
    Placed,
)
from torque_sched.grid.handshake.holder import Persist, Send
from torque_sched.grid.handshake.messages import (
    Claim,
    Commit,
    Committed,
    Confirm,
    From,
    Gone,
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

Sent = list[tuple[str, str, int]]


def candidate(*sites: str) -> Candidate:
    return Candidate(tuple(Ask(SiteId(s), (Piece("n1", 1),)) for s in sites), WALL_S, 600.0)


def begin(*candidates: Candidate, limits: CoordinatorLimits | None = None) -> tuple[Coordinator, Sent]:
    c, commands = Coordinator.begin(HOME, "1", candidates, 1, at(0), limits or CoordinatorLimits())
    return c, sent(commands)


def sent(commands: tuple[CoordinatorCommand, ...]) -> Sent:
    return [
        (type(c.message).__name__, c.to, c.message.token.attempt) for c in commands if isinstance(c, Send)
    ]


def tell(
    c: Coordinator, site: str, kind: str, seconds: float = 0.0, *, attempt: int = 1, off_s: float = 0.0
) -> tuple[CoordinatorCommand, ...]:
    t, s, sent_s = token(attempt=attempt), SiteId(site), WALL_S + seconds + off_s
    replies = {
        "ready": Ready(t, s, sent_s, lease_s=30.0),
        "short": Ready(t, s, sent_s, lease_s=3.0),
        "busy": NotReady(t, s, sent_s, reason=Refusal.BUSY),
        "skew": NotReady(t, s, sent_s, reason=Refusal.SKEW),
        "committed": Committed(t, s, sent_s),
        "gone": Gone(t, s, sent_s, reason=Refusal.EXPIRED),
        "released": Released(t, s, sent_s),
    }
    return c.apply(From(s, replies[kind]), at(seconds))


def tell_all(c: Coordinator, *said: str, at_s: float = 0.0) -> None:
    """Answers like "a ready", one after the other."""
    for each in said:
        site, kind = each.split()
        tell(c, site, kind, at_s)


def test_sites_are_asked_in_order_each_after_the_one_before() -> None:
    c, first = begin(candidate("a", "b", "c"))
    assert first == [("Confirm", "a", 1)]
    assert sent(tell(c, "a", "ready")) == [("Confirm", "b", 1)]
    assert sent(tell(c, "c", "ready")) == []
    assert sent(tell(c, "b", "ready")) == [("Confirm", "c", 1)]
    commands = tell(c, "c", "ready")
    assert isinstance(commands[0], Persist)
    assert c.state.phase is Phase.COMMITTING
    assert sent(commands) == [("Commit", "a", 1), ("Commit", "b", 1), ("Commit", "c", 1)]
    tell_all(c, "a committed", "a committed", "c committed")
    persist, placed = tell(c, "b", "committed")
    assert isinstance(persist, Persist)
    assert placed == Placed(token(), candidate("a", "b", "c"))


def test_sites_out_of_order_are_no_candidate() -> None:
    for sites in (("b", "a"), ("a", "a"), ()):
        with pytest.raises(ModelError):
            candidate(*sites)
    with pytest.raises(ModelError):
        begin()


def test_a_refusal_releases_what_was_asked_and_tries_the_next() -> None:
    c, _ = begin(candidate("a", "b", "c"), candidate("b"))
    tell(c, "a", "ready")
    commands = tell(c, "b", "busy")
    assert sent(commands) == [("Release", "a", 1), ("Release", "b", 1), ("Confirm", "b", 2)]
    tell(c, "b", "busy", attempt=2)
    assert c.state.phase is Phase.GAVE_UP
    assert [s.why for s in c.state.setbacks] == [Refusal.BUSY, Refusal.BUSY]


def test_giving_up_is_told_at_once_and_releases_go_on_until_acknowledged() -> None:
    c, _ = begin(candidate("a"))
    commands = tell(c, "a", "busy")
    assert isinstance(commands[-1], GaveUp)
    assert commands[-1].next_attempt == 2
    assert not c.finished
    assert sent(c.apply(Tick(), at(1))) == [("Release", "a", 1)]
    assert c.apply(Tick(), at(1.5)) == ()
    tell(c, "a", "released", 2)
    assert c.finished
    assert c.wake_s(at(2)) is None


def test_releases_end_when_the_holds_must_have_run_out() -> None:
    c, _ = begin(candidate("a"))
    tell(c, "a", "busy")
    c.apply(Tick(), at(121))
    assert c.finished


def test_a_silent_site_fails_the_attempt_after_repeated_asking() -> None:
    c, _ = begin(candidate("a"), candidate("b"))
    asked = [sent(c.apply(Tick(), at(second))) for second in (1, 2, 3, 4)]
    assert asked == [[("Confirm", "a", 1)]] * 4
    assert sent(c.apply(Tick(), at(5))) == [("Release", "a", 1), ("Confirm", "b", 2)]
    assert c.state.setbacks[0].why is Failure.NO_ANSWER


@pytest.mark.parametrize(("kind", "off_s"), [("skew", 0.0), ("ready", 1.1), ("ready", -1.1)])
def test_a_clock_that_is_off_is_named_when_no_better_answer_comes(kind: str, off_s: float) -> None:
    c, _ = begin(candidate("a"))
    assert tell(c, "a", kind, 1.0, off_s=off_s) == ()
    c.apply(Tick(), at(5))
    assert c.state.setbacks[0].why is Refusal.SKEW


def test_a_late_answer_is_forgiven_when_a_copy_is_in_time() -> None:
    c, _ = begin(candidate("a"))
    tell(c, "a", "ready", 2.0, off_s=-1.5)
    assert sent(tell(c, "a", "ready", 3.0)) == [("Commit", "a", 1)]


def test_a_lease_that_would_run_out_first_is_not_committed() -> None:
    c, _ = begin(candidate("a", "b"))
    tell(c, "a", "short")
    commands = tell(c, "b", "ready", 2.5)
    assert sent(commands) == [("Release", "a", 1), ("Release", "b", 1)]
    assert c.state.setbacks[0].why is Failure.LEASE_SHORT


def test_a_hold_lost_before_its_commit_cancels_all_the_others() -> None:
    c, _ = begin(candidate("a", "b"), candidate("a"))
    tell_all(c, "a ready", "b ready", "a committed")
    commands = tell(c, "b", "gone")
    assert sent(commands) == [("Release", "a", 1), ("Release", "b", 1)]
    assert isinstance(commands[-1], GaveUp)
    # Committed claims are released until the claim's end, not only until a lease's.
    c.apply(Tick(), at(500))
    assert not c.finished
    tell_all(c, "a released", "b released", at_s=501)
    assert c.finished


def test_an_abort_at_any_time_releases_all() -> None:
    c, _ = begin(candidate("a", "b"))
    tell(c, "a", "ready")
    assert sent(c.apply(Abort(), at(0))) == [("Release", "a", 1), ("Release", "b", 1)]
    assert c.apply(Abort(), at(0)) == ()


def test_messages_of_others_change_nothing() -> None:
    c, _ = begin(candidate("a"))
    before = c.state
    other = Token(HOME, "2", 1)
    site = SiteId("a")
    assert c.apply(From(site, Ready(other, site, WALL_S, lease_s=9.0)), at(0)) == ()
    assert c.apply(From(SiteId("b"), Ready(token(), site, WALL_S, lease_s=9.0)), at(0)) == ()
    assert c.apply(From(site, Commit(token(), site, WALL_S)), at(0)) == ()
    assert c.apply(From(site, Release(token(attempt=9), site, WALL_S)), at(0)) == ()
    assert c.state == before


def test_confirm_tells_who_the_owner_is() -> None:
    _, commands = Coordinator.begin(HOME, "1", (candidate("a"),), 1, at(0), user="ann")
    assert isinstance(commands[1], Send)
    assert isinstance(commands[1].message, Confirm)
    assert commands[1].message.user == "ann"


# What travels between sites and into the store: comes back equal, or is refused with its place.


TOKEN = Token(SiteId("home"), "12[3].head", 4)
CONFIRM = Confirm(
    TOKEN, SiteId("b"), 5.0, Claim((Piece("n1", 2, 1), Piece("", 1, count=7)), 9.0, 60.0), "ann"
)
MESSAGES = (
    CONFIRM,
    Ready(TOKEN, SiteId("b"), 5.5, 30.0),
    NotReady(TOKEN, SiteId("b"), 5.5, Refusal.DENIED, "no"),
    Submit(TOKEN, SiteId("b"), 5.5, 0, 3, "ann", "job", 60, "#!/bin/sh\necho \u00fc\n"),
    Go(TOKEN, SiteId("b"), 5.5, (SiteId("a"), SiteId("b")), (("n1", "n2"), ())),
    BlockReport(TOKEN, SiteId("b"), 5.5, BlockState.ENDED, ("n1",), 271, "killed"),
    BlockReport(TOKEN, SiteId("b"), 5.5, BlockState.UNKNOWN),
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_equal(message: Any) -> None:
    assert SITE_WIRE.value(json.loads(json.dumps(SITE_WIRE.plain(message)))) == message


def changed(**changes: Any) -> dict[str, Any]:
    return {**SITE_WIRE.plain(CONFIRM), **changes}


@pytest.mark.parametrize(
    ("plain", "told"),
    [
        (None, "without a kind"),
        ([], "without a kind"),
        ({"kind": "HolderState"}, "unknown kind 'HolderState'"),
        ({"kind": ["Confirm"]}, "without a kind"),
        ({"kind": "Confirm"}, "missing fields claim, sent_s, site, token"),
        (changed(extra=1), "unknown or missing fields extra"),
        (changed(site=3), "Confirm.site is no str"),
        (changed(site="a b"), "is no name"),
        (changed(site="x" * 129), "is no name"),
        (changed(sent_s="now"), "Confirm.sent_s is no float"),
        (changed(sent_s=True), "Confirm.sent_s is no float"),
        (changed(sent_s=float("nan")), "Confirm.sent_s is no float"),
        (changed(version=1.5), "Confirm.version is no int"),
        (changed(token={"kind": "Piece", "node": "n", "slots": 1}), "Confirm.token is no Token"),
        (changed(token={"kind": "Token", "home": "a", "job": "1", "attempt": 0}), "attempt 0"),
        (changed(claim={"kind": "Claim", "pieces": [], "start_s": 1, "length_s": 1}), "1 to 20000 pieces"),
        (changed(claim={"kind": "Claim", "pieces": "n1", "start_s": 1, "length_s": 1}), "is no list"),
    ],
)
def test_anything_else_is_refused_with_its_place(plain: Any, told: str) -> None:
    with pytest.raises(ModelError, match=told.replace("(", r"\(")):
        SITE_WIRE.value(plain)


def test_values_out_of_bounds_cannot_be_made() -> None:
    two = (Piece("n1", 1), Piece("n1", 1))
    for make in (
        lambda: Claim(two, 0.0, 1.0),
        lambda: Claim((Piece("n1", 1),), 0.0, 0.0),
        lambda: Claim((Piece("n1", 1),), float("inf"), 1.0),
        lambda: Piece("n1", 0),
        lambda: Piece("n1", 1, count=2),
        lambda: Token(SiteId("a/b"), "1", 1),
        lambda: Ready(TOKEN, SiteId("b"), 0.0, 1e9),
        lambda: NotReady(TOKEN, SiteId("b"), 0.0, Refusal.BUSY, "x" * 301),
        lambda: Submit(TOKEN, SiteId("b"), 0.0, 3, 3, "ann", "job", 60, ""),
        lambda: Submit(TOKEN, SiteId("b"), 0.0, 0, 1, "ann", "job", 60, "x" * (256 * 1024 + 1)),
        lambda: Go(TOKEN, SiteId("b"), 0.0, (SiteId("a"),), ()),
        lambda: BlockReport(TOKEN, SiteId("b"), 0.0, BlockState.READY, ("a b",)),
    ):
        with pytest.raises(ModelError):
            make()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(
    message=st.sampled_from(MESSAGES),
    key=st.sampled_from(["kind", "token", "site", "claim", "sent_s", "state", "reason", "hosts", "x"]),
    value=json_values,
)
def test_no_plain_data_does_more_than_be_refused(message: Any, key: str, value: Any) -> None:
    plain = {**SITE_WIRE.plain(message), key: value}
    try:
        read = SITE_WIRE.value(plain)
    except ModelError:
        return
    assert SITE_WIRE.value(SITE_WIRE.plain(read)) == read

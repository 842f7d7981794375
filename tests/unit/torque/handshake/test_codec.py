"""What travels between sites and into the store: comes back equal, or is refused with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torque_sched.core.handshake import (
    WIRE,
    Claim,
    Confirm,
    NotReady,
    Piece,
    Ready,
    Refusal,
    SiteId,
    Token,
)
from torque_sched.core.site import SITE_WIRE, BlockReport, BlockState, Go, Submit
from torque_sched.errors import ModelError

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
    return {**WIRE.plain(CONFIRM), **changes}


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
        WIRE.value(plain)


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

"""Who gets a credential, for whom, and until when."""

from __future__ import annotations

import pytest

from yarn_accel.core.credential_grant import (
    CredentialRefusal,
    GrantedCredential,
    GrantRules,
    Requester,
    Revocations,
    decide,
    parse_revocations,
)

ALICE = Requester(1001, "alice", 1001)
RULES = GrantRules(frozenset({990, 65534}), frozenset({"operator"}), 12 * 3600.0)
NOW_S = 1_700_000_000.0


def ask(
    who: Requester = ALICE, tenant: str = "", lifetime_s: float = 0.0, revoked: Revocations | None = None
) -> GrantedCredential | CredentialRefusal:
    return decide(who, tenant, lifetime_s, RULES, revoked or Revocations(), NOW_S)


@pytest.mark.parametrize(
    ("tenant", "lifetime_s", "life_s"),
    [
        ("", 0, 12 * 3600),
        ("alice", 3600, 3600),
        ("alice", 10**400, 12 * 3600),
        ("", 13 * 3600, 12 * 3600),
        ("", 0.2, 1),
    ],
)
def test_a_user_gets_an_own_credential_for_no_longer_than_allowed(
    tenant: str, lifetime_s: float, life_s: int
) -> None:
    assert ask(ALICE, tenant, lifetime_s) == GrantedCredential("alice", int(NOW_S) + life_s)


@pytest.mark.parametrize(
    ("who", "tenant", "code"),
    [
        (ALICE, "bob", "other-tenant"),
        (ALICE, "*", "other-tenant"),
        (ALICE, "Alice", "other-tenant"),
        (Requester(990, "yarn", 990), "", "shared-user"),
        (Requester(990, "yarn", 990), "alice", "shared-user"),
        (Requester(65534, "nobody", 65534), "", "shared-user"),
        (Requester(1009, "", -1), "", "unknown-user"),
        (Requester(1009, "alice", 1001), "", "unknown-user"),
        (Requester(11, "operator", 11), "", "reserved-tenant"),
    ],
)
def test_who_gets_none(who: Requester, tenant: str, code: str) -> None:
    refusal = ask(who, tenant)
    assert isinstance(refusal, CredentialRefusal)
    assert refusal.code == code
    assert refusal.cure


@pytest.mark.parametrize("lifetime_s", [-1.0, float("nan"), float("inf"), float("-inf")])
def test_a_life_that_is_none(lifetime_s: float) -> None:
    refusal = ask(lifetime_s=lifetime_s)
    assert isinstance(refusal, CredentialRefusal)
    assert refusal.code == "bad-lifetime"


def test_a_revoked_user_gets_none_and_one_with_a_revoked_key_gets_another() -> None:
    refusal = ask(revoked=parse_revocations("alice\n"))
    assert isinstance(refusal, CredentialRefusal)
    assert refusal.code == "revoked"
    assert isinstance(ask(revoked=parse_revocations("alice 0123\nbob\n")), GrantedCredential)


def test_a_list_of_revocations() -> None:
    revoked = parse_revocations("# left the institute\nalice\n\nbob 12ab  # lost laptop\n")
    covered = [
        revoked.covers(*each) for each in (("alice", "x"), ("bob", "12ab"), ("bob", "34"), ("carol", "12ab"))
    ]
    assert covered == [True, True, False, False]
    with pytest.raises(ValueError, match="line 2: 3 words"):
        parse_revocations("alice\na b c\n")

"""Whether a user of a node may have a credential, for which tenant, and until when; which are revoked.

The tenant is the user's name, and nobody gets another's. A uid that several people's containers share says
nothing about who asks, so it gets none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_ASK = "ask the administrator for a credential: yarn-accel credential issue"


@dataclass(frozen=True, slots=True)
class Revocations:
    """A list of revoked credentials.

    Attributes:
        tenants: all credentials of these tenants, also those that are issued later.
        keys: single credentials, as (tenant, key id).
    """

    tenants: frozenset[str] = frozenset()
    keys: frozenset[tuple[str, str]] = frozenset()

    def covers(self, tenant: str, key_id: str = "") -> bool:
        """Whether a credential is revoked; without a key id: whether all of the tenant are."""
        return tenant in self.tenants or (tenant, key_id) in self.keys


def parse_revocations(text: str) -> Revocations:
    """Read a list: a line is ``TENANT`` or ``TENANT KEY_ID``, and ``#`` begins a comment.

    Raises:
        ValueError: a line has more words; names its number.
    """
    tenants, keys = set(), set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if len(words) == 1:
            tenants.add(words[0])
        elif len(words) == 2:
            keys.add((words[0], words[1]))
        elif words:
            raise ValueError(f"line {number}: {len(words)} words; TENANT or TENANT KEY_ID is expected")
    return Revocations(frozenset(tenants), frozenset(keys))


@dataclass(frozen=True, slots=True)
class Requester:
    """Who asks, as the kernel and the node's user database say.

    Attributes:
        uid: of the process that connected.
        name: its name on this node; empty: it has none.
        uid_of_name: what this name means here; -1: nobody.
    """

    uid: int
    name: str
    uid_of_name: int


@dataclass(frozen=True, slots=True)
class GrantRules:
    """The site's rules for credentials.

    Attributes:
        shared_uids: users under whom processes of several people run.
        reserved_tenants: names with special rights, which no user gets by being called so.
        max_lifetime_s: longest life of a credential.
    """

    shared_uids: frozenset[int]
    reserved_tenants: frozenset[str]
    max_lifetime_s: float


@dataclass(frozen=True, slots=True)
class GrantedCredential:
    """A credential for this tenant until then (Unix seconds)."""

    tenant: str
    expires_s: int


@dataclass(frozen=True, slots=True)
class CredentialRefusal:
    """Why there is none; `code` in one word."""

    code: str
    message: str
    cure: str


def decide(
    requester: Requester,
    tenant: str,
    lifetime_s: float,
    rules: GrantRules,
    revoked: Revocations,
    now_s: float,
) -> GrantedCredential | CredentialRefusal:
    """Decide about one request.

    Args:
        tenant: whom the credential is asked for; empty: the user.
        lifetime_s: wanted life; 0: the longest there is, which is also given where more is wanted.
    """
    name = requester.name
    if requester.uid in rules.shared_uids:
        who = f"{name or 'nobody'} (uid {requester.uid})"
        text = f"containers and services of several users run as {who}, so it does not say who asks"
        return CredentialRefusal("shared-user", text, f"ask under your own name, or {_ASK}")
    if not name or requester.uid_of_name != requester.uid:
        text = f"uid {requester.uid} has no name of its own on this node"
        return CredentialRefusal("unknown-user", text, _ASK)
    if tenant not in ("", name):
        return CredentialRefusal("other-tenant", f"{name} gets no credential of tenant {tenant}", _ASK)
    if name in rules.reserved_tenants:
        return CredentialRefusal("reserved-tenant", f"tenant {name} has special rights", _ASK)
    if revoked.covers(name):
        return CredentialRefusal(
            "revoked", f"the credentials of tenant {name} are revoked", "ask the administrator why"
        )
    if not 0 <= lifetime_s < math.inf:
        return CredentialRefusal("bad-lifetime", f"{lifetime_s} is no time in seconds", "ask for less hours")
    wanted_s = min(lifetime_s or rules.max_lifetime_s, rules.max_lifetime_s)
    return GrantedCredential(name, int(now_s + max(wanted_s, 1.0)))

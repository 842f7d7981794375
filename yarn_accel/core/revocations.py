"""Which credentials count no longer, although they have not expired."""

from __future__ import annotations

from dataclasses import dataclass


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

"""When an application's delegation tokens are prolonged, and when new ones take their place.

A delegation token has two ends.  It ends at `TokenTimes.expires_s` unless its renewer prolongs it before, and
at `TokenTimes.ends_s` for good; in its last minute the HDFS client does not use it any more.  The master acts
at seven tenths of the way to each, so that a service may be away for long.  All times are Unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

#: The part of a life after which something is done about its end.
_SHARE = 0.7
#: The HDFS client (hdfs-native 0.14.7) passes over a token that ends for good within so long.
_UNUSED_S = 60.0
#: Containers look for newer tokens so often in a life, within these bounds.
_LOOKS_PER_LIFE = 20
_LEAST_LOOK_S, _LONGEST_LOOK_S = 1.0, 300.0


def renew_at(begins_s: float, ends_s: float) -> float:
    """When to act about an end.

    >>> renew_at(1000.0, 2000.0)
    1700.0
    """
    return begins_s + _SHARE * max(0.0, ends_s - begins_s)


def look_interval_s(life_s: float) -> float:
    """How often a container looks for tokens that are newer than its own.

    >>> look_interval_s(7 * 86400.0), look_interval_s(100.0), look_interval_s(0.0)
    (300.0, 5.0, 1.0)
    """
    return min(_LONGEST_LOOK_S, max(_LEAST_LOOK_S, life_s / _LOOKS_PER_LIFE))


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """The life of tokens that were given together.

    Attributes:
        issued_s: when they were given.
        ends_s: when the first of them ends for good.
        prolonged_s: when they were prolonged last, or given.
        expires_s: when the first of them ends unless it is prolonged; `ends_s`: somebody else prolongs them.
    """

    issued_s: float
    ends_s: float
    prolonged_s: float
    expires_s: float

    @staticmethod
    def prolonged_by_others(issued_s: float, ends_s: float) -> TokenTimes:
        """The life of tokens that the ResourceManager prolongs."""
        return TokenTimes(issued_s, ends_s, issued_s, ends_s)

    def prolonged(self, now_s: float, expires_s: float) -> TokenTimes:
        """The same tokens, prolonged now."""
        return replace(self, prolonged_s=now_s, expires_s=min(expires_s, self.ends_s))

    @property
    def act_at_s(self) -> float:
        """When they are to be prolonged, or replaced."""
        return min(renew_at(self.prolonged_s, self.expires_s), self._replace_at_s)

    def need_new(self, now_s: float) -> bool:
        """Whether new tokens are to take their place."""
        return now_s >= self._replace_at_s

    @property
    def _replace_at_s(self) -> float:
        return renew_at(self.issued_s, self.ends_s - _UNUSED_S)

"""Builds the engines of `core.site` from settings and store."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Iterator, Mapping

from torque_sched.core.handshake import HolderLimits, HolderState, SiteId
from torque_sched.core.site import (
    SITE_VALUES,
    Admission,
    Guest,
    GuestLimits,
    GuestState,
    HomeLimits,
    PeerRules,
)
from torque_sched.errors import ConfigError
from torque_sched.learning.reservations import boot_id
from torque_sched.site.books import NodeBooks
from torque_sched.site.config import PeerSettings, SiteConfig
from torque_sched.site.store import SiteStore

STATE_FORM = SITE_VALUES
_FACT = "guest"
_LATE_GO_S = 60.0
"""A block waits so much longer for the word to go than its home waits for blocks."""
_LONGEST_WAIT_S = 60.0
_WORDS_PER_KEEP = 8
"""A home tells so often within `keep_s` that it wants its claims."""
_LEAST_START_S = 300.0
"""And at least so long, for homes that set a longer `start_s` than we."""


class _Users(Mapping[str, str]):
    """Their users -> ours; ``*`` stands for those that are not named."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users

    def __getitem__(self, name: str) -> str:
        if name in {"", "root", "*"}:
            raise KeyError(name)
        return self._users[name] if name in self._users else self._users["*"]

    def __iter__(self) -> Iterator[str]:
        return iter(name for name in self._users if name != "*")

    def __len__(self) -> int:
        return sum(name != "*" for name in self._users)


def _rules(peer: PeerSettings) -> PeerRules:
    return PeerRules(
        _Users(peer.users), peer.max_slots, peer.max_hours * 3600.0, peer.max_blocks, refuse=peer.refuse
    )


def admission_of(config: SiteConfig) -> Admission:
    """Who of which peer may do what here.

    Raises:
        ConfigError: a user is mapped to root, by whatever name.
    """
    roots = [user.pw_name for user in pwd.getpwall() if user.pw_uid == 0]
    for peer in config.peers:
        for theirs, ours in peer.users.items():
            if ours in roots:
                raise ConfigError(
                    f"peers: {peer.name}: users: {theirs!r}: {ours!r} has uid 0",
                    cure="map to an ordinary user",
                )
    peers = {SiteId(peer.name): _rules(peer) for peer in config.peers}
    return Admission(SiteId(config.name), peers, roots)


def home_limits(config: SiteConfig) -> HomeLimits:
    """Patience with our own jobs."""
    grid = config.grid
    return HomeLimits(
        start_s=grid.barrier_timeout_s,
        look_s=grid.poll_interval_s,
        wait_s=min(_LONGEST_WAIT_S, grid.claim_timeout_s / _WORDS_PER_KEEP),
    )


def open_guest(
    config: SiteConfig, admission: Admission, store: SiteStore
) -> tuple[Guest, Callable[[], None], NodeBooks]:
    """The guest as it was saved last, what saves it, and the books it decides on."""
    saved = store.fact(_FACT)
    state = STATE_FORM.value(saved) if saved is not None else GuestState(HolderState(boot_id()))
    start_s = max(_LEAST_START_S, config.grid.barrier_timeout_s + _LATE_GO_S)
    limits = GuestLimits(
        HolderLimits(lease_s=config.grid.lease_s), start_s=start_s, keep_s=config.grid.claim_timeout_s
    )
    books = NodeBooks()
    guest = Guest(SiteId(config.name), books, admission, state, limits)

    def keep() -> None:
        store.set_fact(_FACT, STATE_FORM.plain(guest.state))

    return guest, keep, books

"""The settings of a site's link to others: one YAML file, each key described once."""

from __future__ import annotations

import pwd
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from torque_sched.adapters.settings_file import complaints, read_settings
from torque_sched.errors import ConfigError
from torque_sched.grid.handshake.blocks import Admission, PeerRules
from torque_sched.grid.handshake.guest import GuestLimits
from torque_sched.grid.handshake.holder import HolderLimits
from torque_sched.grid.handshake.home_job import HomeLimits
from torque_sched.grid.handshake.messages import SiteId
from torque_sched.grid.membership import MembershipRules

_FROZEN = ConfigDict(extra="forbid", frozen=True)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
BECOME_WORDS = frozenset({"user"})
STAGE_WORDS = frozenset({"user", "job", "token", "block", "peer", "folder"})


_RENAMED = {
    "grid.look_s": "grid.poll_interval_s",
    "grid.keep_s": "grid.claim_timeout_s",
    "grid.start_s": "grid.barrier_timeout_s",
}


def _key(default: Any, text: str, **bounds: float) -> Any:
    made: Any = Field(default=default, description=text, **bounds)  # type: ignore[call-overload]
    return made


def _named(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text[:70]!r} is no name: letters, digits, `_`, `.`, `-`, at most 63")
    return text


def _template(words: tuple[str, ...], known: frozenset[str]) -> tuple[str, ...]:
    for word in words:
        unknown = set(_PLACEHOLDER.findall(word)) - known
        if unknown:
            raise ValueError(
                f"{word!r}: unknown {{{'}, {'.join(sorted(unknown))}}}; known: {', '.join(sorted(known))}"
            )
    return words


class PeerSettings(BaseModel):
    """One other site."""

    model_config = _FROZEN

    name: str = Field(description="its `name` in its own settings")
    address: str = Field(description="host or address it listens on")
    port: int = _key(15008, "its port", ge=1, le=65535)
    certificate: str = _key("", "PEM file of its certificate (pinned); empty: `ca` and certificate_name")
    certificate_name: str = _key("", "DNS name in its certificate, where a CA signed it; empty: `name`")
    shared_key: str = _key("", "file of a key both sites have: it signs requests, instead of a certificate")
    users: dict[str, str] = Field(
        default_factory=dict,
        description="its user: ours, who runs the block; `*` for all others; none: nothing is taken from it",
    )
    max_slots: int = _key(0, "so many of our slots at once for its blocks; 0: none", ge=0)
    max_hours: float = _key(24.0, "longest block", gt=0)
    max_blocks: int = _key(16, "so many blocks and holds at once", ge=1)
    refuse: bool = _key(False, "take nothing new from it; what runs goes on")
    sends: bool = _key(True, "our jobs may run there")

    _check_name = field_validator("name")(_named)

    @field_validator("users")
    @classmethod
    def _not_root(cls, users: dict[str, str]) -> dict[str, str]:
        for theirs, ours in users.items():
            if ours in {"root", "0"} or theirs == "root":
                raise ValueError(f"{theirs!r}: {ours!r}: root is never mapped; name an ordinary user")
            if not _NAME.fullmatch(ours):
                raise ValueError(f"{theirs[:70]!r}: {ours[:70]!r} is no user name")
        return users


class GossipSettings(BaseModel):
    """When peers are asked whether they are there."""

    model_config = _FROZEN
    period_s: float = _key(2.0, "some peers are asked so often", gt=0)
    fanout: int = _key(3, "so many at a time", ge=1)
    down_after_s: float = _key(10.0, "a peer suspected for so long is down", gt=0)
    retry_down_s: float = _key(10.0, "a peer that is down is tried so often", gt=0)

    def rules(self) -> MembershipRules:
        """As the state machine wants it."""
        return MembershipRules(self.period_s, self.fanout, self.down_after_s, self.retry_down_s)


class BarrierSettings(BaseModel):
    """Where blocks on our compute nodes wait for the others."""

    model_config = _FROZEN
    address: str = _key("127.0.0.1", "address our compute nodes reach this process at")
    port: int = _key(15009, "port of that", ge=1, le=65535)
    interpreter: str = _key("python3", "Python 3.6 or later on the compute nodes")


class OwnJobSettings(BaseModel):
    """Jobs of our users that may run elsewhere."""

    model_config = _FROZEN
    variable: str = _key("TORQUE_GRID", "a job of `qsub -h -v NAME=yes` may run elsewhere")
    max_blocks: int = _key(4, "a job is split into so many blocks at most", ge=1, le=64)
    split_formula: Literal["power", "linear", "harmonic", "constant"] = _key(
        "power", "how much longer a job of f blocks runs, by name"
    )
    split_overhead: float = _key(0.1, "p of that formula; power: T' = T * f**p", ge=0, le=1)
    min_gain: float = _key(
        1.0, "a split must end the job earlier than the best whole run by so many times T' - T", ge=0
    )
    poll_interval_s: float = _key(5.0, "time between queries of our server", gt=0)
    retry_s: float = _key(15.0, "a job for which there was no place is tried again after this", gt=0)
    reserve_hours: float = _key(
        24.0,
        "a job without a place for `lease_s` gets a start reserved, at one site or a common one at several, "
        "up to so much later; 0: it waits",
        ge=0,
    )
    claim_timeout_s: float = _key(
        900.0, "a claim whose block does not run is given back after so long without a message of its home; "
        "about equal at all sites", ge=20,
    )  # fmt: skip
    lease_s: float = _key(30.0, "a hold that is not committed is dropped after this", gt=0)
    barrier_timeout_s: float = _key(
        120.0, "all blocks wait at the barrier by then, or all are cancelled; equal at all sites", gt=0
    )
    max_attempts: int = _key(10, "after so many failed tries the job runs at home", ge=1)
    max_jobs: int = _key(50, "jobs of ours under way at once", ge=1)
    spool: str = _key("", "Torque: folder of the job scripts; empty: HOME/server_priv/jobs")


class SiteConfig(BaseModel):
    """Everything a site says about its links."""

    model_config = _FROZEN

    name: str = Field(description="this site; what peers call it")
    listen: str = Field(description="address peers reach")
    port: int = _key(15008, "port peers reach", ge=0, le=65535)
    certificate: str = Field(description="PEM file of our certificate")
    key: str = Field(description="PEM file of its private key, readable for us alone")
    ca: str = _key("", "PEM file of the authority that signed peers' certificates; empty: all are pinned")
    folder: str = _key("", "store, audit and state; empty: HOME/sched_priv/site")
    history: str = _key("", "the scheduler's history file; empty: HOME/sched_priv/history.sqlite")
    batch_system: Literal["auto", "torque", "openpbs"] = _key(
        "auto", "whose server this is; auto: as `qstat --version` says"
    )
    partition: str = _key("", "OpenPBS: whose queues and vnodes are ours; empty: those of no other")
    commands: str = _key("", "folder of Torque's or OpenPBS's commands; empty: they are on PATH")
    become: tuple[str, ...] = _key(
        ("runuser", "-u", "{user}", "--"), "command before qsub, to run it as {user}; none: as this process"
    )
    min_uid: int = _key(1000, "no user with a smaller uid gets a block; root never", ge=1)
    queue: str = _key("", "queue of foreign blocks; empty: the server's default")
    stage_in: tuple[str, ...] = _key(
        (), "command before a block is submitted, run as this process; none: nothing is staged"
    )
    stage_out: tuple[str, ...] = _key((), "command after it ended; its nodes are free by then")
    stage_timeout_s: float = _key(600.0, "time limit of each", gt=0)
    stage_out_tries: int = _key(6, "tries of stage_out, before its owner gets a message that it failed", ge=1)
    stage_out_pause_s: float = _key(
        15.0, "pause before its second try; doubled before each further one", gt=0
    )
    timeout_s: float = _key(10.0, "time limit of a request to a peer", gt=0)
    clock_tolerance_s: float = _key(30.0, "a signed request may be so old", gt=0)
    max_body_bytes: int = _key(1 << 20, "longest request or answer", ge=1 << 12)
    max_connections: int = _key(256, "open connections of peers", ge=1)
    audit_bytes: int = _key(16 << 20, "the audit file is closed when it is this long", ge=1 << 12)
    audit_files: int = _key(8, "so many audit files are kept", ge=2)
    metrics_port: int = _key(0, "TCP port of /metrics; 0: none", ge=0, le=65535)
    metrics_address: str = _key("127.0.0.1", "address of /metrics")
    gossip: GossipSettings = _key(GossipSettings(), "membership")
    barrier: BarrierSettings = _key(BarrierSettings(), "common start")
    grid: OwnJobSettings = _key(OwnJobSettings(), "our jobs elsewhere")
    peers: tuple[PeerSettings, ...] = _key((), "the other sites; nobody else is ever talked to")

    _check_name = field_validator("name")(_named)

    @field_validator("become")
    @classmethod
    def _become_words(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        checked = _template(words, BECOME_WORDS)
        if words and not any("{user}" in word for word in words):
            raise ValueError("name the {user}, or give no command at all")
        return checked

    @field_validator("stage_in", "stage_out")
    @classmethod
    def _stage_words(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        return _template(words, STAGE_WORDS)

    @model_validator(mode="after")
    def _peers_fit(self) -> SiteConfig:
        names = [peer.name for peer in self.peers]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"peers: {', '.join(twice)} named twice")
        if self.name in names:
            raise ValueError(f"peers: {self.name} is this site")
        for peer in self.peers:
            if not peer.certificate and not self.ca:
                raise ValueError(f"peers: {peer.name}: give its certificate, or a `ca` that signed it")
        shown = [peer for peer in self.peers if not peer.shared_key]
        if len({bool(peer.certificate) for peer in shown}) > 1:
            # A pinned peer could sign a certificate with the name of one of the others.
            raise ValueError("peers: give the certificate of each, or of none of them")
        return self

    @property
    def peer_by_name(self) -> dict[str, PeerSettings]:
        """Peers by name."""
        return {peer.name: peer for peer in self.peers}


def read_site_config(path: Path) -> SiteConfig:
    """The settings in a file.

    Raises:
        ConfigError: unreadable, or a key is unknown, missing or wrong.
    """
    try:
        return SiteConfig(**read_settings(path, _RENAMED))
    except ValidationError as error:
        raise ConfigError(f"{path}: {complaints(error, SiteConfig)}") from None


# -- as the state machines want them

_LATE_GO_S = 60.0
"""A block waits so much longer for `Go` than its home waits for blocks."""
_LEAST_START_S = 300.0
"""And at least so long, for homes that set a longer `barrier_timeout_s` than this site."""
_LONGEST_WAIT_S = 60.0
_RENEWALS_PER_TIMEOUT = 8
"""A home confirms its claims so often within `claim_timeout_s`."""


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
        wait_s=min(_LONGEST_WAIT_S, grid.claim_timeout_s / _RENEWALS_PER_TIMEOUT),
    )


def guest_limits(config: SiteConfig) -> GuestLimits:
    """Patience with the blocks and claims of others."""
    grid = config.grid
    start_s = max(_LEAST_START_S, grid.barrier_timeout_s + _LATE_GO_S)
    return GuestLimits(HolderLimits(lease_s=grid.lease_s), start_s=start_s, keep_s=grid.claim_timeout_s)

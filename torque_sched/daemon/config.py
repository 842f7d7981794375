"""The daemon's own settings: one YAML file, each key described once; an unknown key names the known ones.

Sections that set rules of the policies take their keys, defaults and descriptions from the rules themselves.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from torque_sched.adapters.settings_file import complaints, read_settings
from torque_sched.batch.connect import ServerSettings
from torque_sched.batch.torque.transport import Transport
from torque_sched.daemon.comments import Renewal
from torque_sched.daemon.cycle import CycleLimits
from torque_sched.daemon.failures import BlackHoleRules, Steps
from torque_sched.daemon.pending_orders import BackOffRules
from torque_sched.daemon.standing_reservations import (
    BEYOND_S,
    DAYS,
    Day,
    StandingReservation,
    minute_of,
)
from torque_sched.decide.fair_share import DEFAULT_GPU_WEIGHT
from torque_sched.decide.rules import (
    GpuRules,
    Members,
    MemoryRules,
    NodeRules,
    Qos,
    QueueRules,
    RunningLimits,
    Throttling,
)
from torque_sched.decide.settings import (
    BACKFILLS,
    ORDERS,
    PLACEMENTS,
    Settings,
    new_backfill,
    new_order,
    new_placement,
)
from torque_sched.errors import ConfigError
from torque_sched.learn.ensemble import PREDICTORS
from torque_sched.model.cluster import Job, NodeName
from torque_sched.model.snapshot import Reservation, Snapshot

_RENAMED = {
    "words_of_c": "pbs_sched_reasons_only",
    "gpus.avoid_sick": "gpus.avoid_unhealthy",
    "backfill.node_exact_jobs": "backfill.reservations",
}

_DAY_MINUTES = 24 * 60
_PLANNED_S = 7 * 86_400.0
_FROZEN = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
_NUMBERS = ConfigDict(allow_inf_nan=False)
_ATTRIBUTE = re.compile(r"^(\w+): (.+?)(?=^\w+: |\Z)", re.MULTILINE | re.DOTALL)


def _section(rules: type[Any]) -> Any:
    """A settings model with the fields of a dataclass, described by the Attributes of its docstring."""
    _, _, text = (rules.__doc__ or "").partition("Attributes:\n")
    described = {
        m[1]: " ".join(m[2].split()) for m in _ATTRIBUTE.finditer(re.sub(r"^ +", "", text, flags=re.M))
    }
    hints = typing.get_type_hints(rules)
    defaults = rules()
    entries: dict[str, Any] = {}
    for entry in dataclasses.fields(rules):
        kind, value = hints[entry.name], getattr(defaults, entry.name)
        if kind is Steps:
            kind, value = _Steps, _Steps(first_s=value.first_s, longest_s=value.longest_s)
        entries[entry.name] = (kind, Field(default=value, description=described.get(entry.name, "")))
    return create_model(rules.__name__, __config__=_FROZEN, **entries)


class _Steps(BaseModel):
    """Pauses that double."""

    model_config = _FROZEN
    first_s: float = Field(gt=0, description="the first pause")
    longest_s: float = Field(gt=0, description="the longest; each pause is twice the one before")

    @model_validator(mode="after")
    def _grow(self) -> _Steps:
        if self.first_s > self.longest_s:
            raise ValueError(f"first_s {self.first_s:g} is above longest_s {self.longest_s:g}")
        return self


def _rules(section: BaseModel, rules: type[Any]) -> Any:
    """The dataclass a section stands for."""
    values = {name: getattr(section, name) for name in type(section).model_fields}
    for name, value in values.items():
        if isinstance(value, _Steps):
            values[name] = Steps(value.first_s, value.longest_s)
    return rules(**values)


class NamedSettings(BaseModel):
    """One of a table by name, with its own settings."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = Field(description="which")

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, value: Any) -> Any:
        """The name alone will do."""
        return {"name": value} if isinstance(value, str) else value

    @property
    def values(self) -> dict[str, Any]:
        """Its own settings."""
        return dict(self.model_extra or {})


class JournalSettings(BaseModel):
    """The journal of cycles."""

    model_config = _FROZEN
    enabled: bool = Field(default=True, description="write each cycle, so that it can be replayed")
    folder: str = Field(default="", description="where; empty: sched_priv/journal")
    file_bytes: int = Field(default=64 << 20, ge=1 << 16, description="a file is closed when it is this long")
    n_files: int = Field(default=8, ge=2, description="so many files are kept")


class MetricsSettings(BaseModel):
    """Figures for Prometheus."""

    model_config = _FROZEN
    port: int = Field(default=0, ge=0, le=65535, description="TCP port of /metrics; 0: none")
    address: str = Field(default="127.0.0.1", description="address it listens on")


class LearningSettings(BaseModel):
    """The learning store."""

    model_config = _FROZEN
    history: str = Field(default="", description="its file; empty: sched_priv/history.sqlite")
    accounting: bool = Field(default=True, description="also learn from the server's accounting, if readable")
    predictors: tuple[str, ...] = Field(
        default=("chain", "seed"), min_length=1, description="the first answers; all are in report"
    )
    best_of: int | None = Field(default=None, ge=1, description="does nothing any more")
    max_jobs: int = Field(default=200_000, ge=1, description="ended jobs kept, the oldest go first")
    min_similar: int = Field(default=3, ge=1, description="memory admission needs so many similar jobs")


class FairShareSettings(BaseModel):
    """How usage is counted, for `order: fair_share`."""

    model_config = _FROZEN
    gpu_weight: float = Field(
        default=DEFAULT_GPU_WEIGHT, ge=0,
        description="a GPU second counts as so many processor seconds; 10: nodes with GPUs have some 8 to 16 "
        "slots for each, so all GPUs of a node count about what all its slots do",
    )  # fmt: skip
    half_life_s: float | None = Field(
        default=None, gt=0,
        description="usage counts half after this time; none: half_life of sched_config, else a day",
    )  # fmt: skip


class ReservationSettings(BaseModel):
    """An advance reservation: nodes for some users, or for nobody, for a time."""

    model_config = _FROZEN
    name: str = Field(description="shown to those who wait")
    nodes: tuple[str, ...] = Field(description="node names")
    start_s: float = Field(description="seconds since the epoch")
    end_s: float = Field(description="seconds since the epoch")
    users: tuple[str, ...] = Field(default=(), description="for whom; nobody: maintenance")

    @model_validator(mode="after")
    def _has_length(self) -> ReservationSettings:
        if not self.start_s < self.end_s:
            raise ValueError("end_s does not come after start_s")
        return self

    def value(self) -> Reservation:
        """As policies want it."""
        return Reservation(
            self.name,
            frozenset(NodeName(node) for node in self.nodes),
            self.start_s,
            self.end_s,
            frozenset(self.users),
        )


class StandingReservationSettings(BaseModel):
    """An advance reservation on days of each week, by the clock on the wall."""

    model_config = _FROZEN
    name: str = Field(description="shown to those who wait")
    nodes: tuple[str, ...] = Field(min_length=1, description="node names")
    days: tuple[Day, ...] = Field(default=DAYS, min_length=1, description="on which it begins")
    start: str = Field(description="HH:MM by the host's clocks")
    end: str = Field(description="HH:MM; not after start: on the next day")
    users: tuple[str, ...] = Field(default=(), description="for whom")
    groups: tuple[str, ...] = Field(default=(), description="for whose members; nobody at all: maintenance")

    @field_validator("start", "end", mode="before")
    @classmethod
    def _of_minutes(cls, value: Any) -> Any:
        """YAML reads 18:00 without quotes as a number of minutes."""
        is_minutes = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _DAY_MINUTES
        return f"{value // 60:02d}:{value % 60:02d}" if is_minutes else value

    @field_validator("start", "end")
    @classmethod
    def _is_a_time(cls, value: str) -> str:
        if minute_of(value) is None:
            raise ValueError(f"{value[:20]!r} is no time of day; write HH:MM, such as 08:00")
        return value

    def value(self) -> StandingReservation:
        """As it is expanded."""
        return StandingReservation(
            self.name,
            frozenset(NodeName(node) for node in self.nodes),
            frozenset(DAYS.index(day) for day in self.days),
            minute_of(self.start) or 0,
            minute_of(self.end) or 0,
            frozenset(self.users),
            frozenset(self.groups),
        )


class _NodeRules(_section(NodeRules)):  # type: ignore[misc]
    """As `NodeRules`."""


class _GpuRules(_section(GpuRules)):  # type: ignore[misc]
    """As `GpuRules`."""


class _MemoryRules(_section(MemoryRules)):  # type: ignore[misc]
    """As `MemoryRules`."""


class _QueueRules(_section(QueueRules)):  # type: ignore[misc]
    """As `QueueRules`."""


class _RunningLimits(_section(RunningLimits)):  # type: ignore[misc]
    """As `RunningLimits`."""

    @model_validator(mode="after")
    def _makes_sense(self) -> _RunningLimits:
        try:
            self.value()
        except ConfigError as error:
            raise ValueError(f"{error.message}; {error.cure}") from None
        return self

    def value(self) -> RunningLimits:
        """As policies want it."""
        return typing.cast(RunningLimits, _rules(self, RunningLimits))


class ThrottlingSettings(BaseModel):
    """How much may run at once of each user, group, account and queue."""

    model_config = _FROZEN
    users: dict[str, _RunningLimits] = Field(default={}, description='user: limits; "*": each user not named')
    groups: dict[str, _RunningLimits] = Field(
        default={}, description='group: limits; "*": each group not named'
    )
    accounts: dict[str, _RunningLimits] = Field(
        default={}, description='account (qsub -A): limits; "*": each account not named'
    )
    queues: dict[str, _RunningLimits] = Field(
        default={}, description='queue: limits; "*": each queue not named'
    )

    def value(self) -> Throttling:
        """As policies want it."""
        tables = {key: getattr(self, key) for key in type(self).model_fields}
        return Throttling(**{
            key: {name: bounds.value() for name, bounds in table.items()} for key, table in tables.items()
        })  # fmt: skip


class MembersSettings(BaseModel):
    """Who may use something; all empty: everybody."""

    model_config = _FROZEN
    users: tuple[str, ...] = Field(default=(), description="names of users")
    groups: tuple[str, ...] = Field(default=(), description="names of groups")

    def value(self) -> Members:
        """As policies want it."""
        return Members(frozenset(self.users), frozenset(self.groups))


class QosSettings(MembersSettings):
    """A quality of service."""

    accounts: tuple[str, ...] = Field(default=(), description="names of accounts")
    priority: int = Field(default=0, description="a higher one is taken before all of a lower one")
    default_of: tuple[str, ...] = Field(default=(), description="queues whose jobs have it unless they ask")
    limits: _RunningLimits = Field(default=_RunningLimits(), description="of all its jobs together")
    each_user: _RunningLimits = Field(default=_RunningLimits(), description="of each user's jobs in it")

    def members(self) -> Members:
        """Who may use it."""
        return Members(frozenset(self.users), frozenset(self.groups), frozenset(self.accounts))

    def qos(self) -> Qos:
        """As policies want it."""
        queues, limits, each_user = frozenset(self.default_of), self.limits.value(), self.each_user.value()
        return Qos(self.priority, self.members(), queues, limits, each_user)


class _BackOffRules(_section(BackOffRules)):  # type: ignore[misc]
    """As `BackOffRules`."""


class _BlackHoleRules(_section(BlackHoleRules)):  # type: ignore[misc]
    """As `BlackHoleRules`."""


class _CycleLimits(_section(CycleLimits)):  # type: ignore[misc]
    """As `CycleLimits`."""


def _key(default: Any, text: str, **bounds: float) -> Any:
    made: Any = Field(default=default, description=text, **bounds)  # type: ignore[call-overload]
    return made


class Config(BaseModel):
    """Everything a site may set."""

    model_config = _FROZEN

    commands: str = _key("", "folder of the batch system's commands; empty: they are on PATH")
    batch_system: Literal["auto", "torque", "openpbs"] = _key(
        "auto", "whose commands they are; auto: as qstat --version says"
    )
    partition: str = _key("", "OpenPBS: whose queues and vnodes are ours; empty: those of no other")
    heed_scheduling: bool = _key(
        True, "start nothing while the server's scheduling is False; false, at OpenPBS: do start, beside a "
        "native scheduler that is paused so",
    )  # fmt: skip
    loads_folder: str = _key(
        "",
        "OpenPBS: folder of the nodes' samplers (HOST.sample); empty: only what a hook on the MoMs shows",
    )
    transport: Transport = _key("auto", "how Torque is asked: native (its batch protocol), commands, or auto")
    trqauthd_socket: str = _key("", "empty: trqauthd-unix in the PBS home where it is, else in /tmp")
    addresses: tuple[str, ...] = _key((), "addresses to listen on; none: those of the server's host name")
    port: int = _key(15004, "port on which the server sends events (-S overrides it)", ge=0, le=65535)
    timer_s: float = _key(30.0, "a cycle at least so often, whatever events come", gt=0)
    settle_s: float = _key(0.05, "least time between the ends and beginnings of cycles", ge=0)
    watch_s: float = _key(
        0.05, "while jobs wait and others start, the server's count of running jobs is asked for so often; "
        "0: never", ge=0,
    )  # fmt: skip
    look_rest: float = _key(
        2.4, "the server is not looked at again for so many times what the last look took; events wait", ge=0
    )
    retry_s: float = _key(
        5.0, "a cycle that could not see the server, or lost it, is tried again after this", gt=0
    )
    query_timeout_s: float = _key(60.0, "time limit of each qstat and pbsnodes", gt=0)
    order_timeout_s: float = _key(30.0, "time limit of each qrun and qalter", gt=0)
    sched_config: bool = _key(True, "read sched_priv/sched_config and the files beside it")
    non_prime_bug: bool = _key(False, "lose `key ... non_prime` lines as the C daemon does")
    order: NamedSettings | None = _key(None, "who is next; none: what sched_config says, else fcfs")
    placement: NamedSettings = _key(NamedSettings(name="projected"), "where a job runs")
    backfill: NamedSettings | None = _key(None, "which waiting jobs get a reservation; none: aged")
    max_starts: int = _key(Settings().max_starts, "starts of one cycle", ge=1)
    pbs_sched_reasons_only: bool = _key(False, "give only reasons for which pbs_sched has a comment")
    comments: bool = _key(True, "write into each waiting job's comment why it waits")
    comment_refresh_s: float = _key(60.0, "figures in a comment are renewed so often", ge=0)
    comment_moved: float = _key(
        0.1,
        "a planned start in a comment is corrected when it moved by more than this share of what is left",
        ge=0,
    )
    comments_renewed_per_s: float = _key(
        5.0, "comments whose figures alone changed are renewed at this rate, each timer_s", gt=0
    )
    answers: bool = _key(True, "answer showstart, showbf, explain and whatif of users from the last look")
    delete_impossible: bool = _key(False, "delete jobs that can never run, as the C daemon does")
    offline_black_holes: bool = _key(False, "set nodes that swallow jobs offline, with a note")
    log_dialect: Literal["auto", "6", "4"] = _key("auto", "form of log lines; auto: the server's")
    restricted: tuple[str, ...] = _key((), "hosts that may connect from any port, as $restricted")
    nodes: _NodeRules = _key(_NodeRules(), "which nodes are used")
    gpus: _GpuRules = _key(_GpuRules(), "which GPUs are avoided")
    memory: _MemoryRules = _key(_MemoryRules(), "how memory decides")
    queues: _QueueRules = Field(
        default_factory=_QueueRules, description="rules of queues that the server does not know"
    )
    throttling: ThrottlingSettings = _key(
        ThrottlingSettings(), "how much may run at once of each user, group, account and queue"
    )
    accounts: dict[str, MembersSettings] = _key(
        {}, "account (qsub -A): who may use it, no other account being accepted; none: any user may write any"
    )
    qos: dict[str, QosSettings] = _key(
        {}, "QoS: who may use it, its priority and limits; none: what jobs ask for is not looked at"
    )
    back_off: _BackOffRules = Field(
        default_factory=_BackOffRules, description="how long failures are left alone"
    )
    black_holes: _BlackHoleRules = Field(
        default_factory=_BlackHoleRules, description="when a node is suspected"
    )
    limits: _CycleLimits = _key(_CycleLimits(), "what one cycle may take")
    journal: JournalSettings = _key(JournalSettings(), "the journal of cycles")
    metrics: MetricsSettings = _key(MetricsSettings(), "figures for Prometheus")
    reservations: tuple[ReservationSettings, ...] = _key((), "advance reservations")
    standing_reservations: tuple[StandingReservationSettings, ...] = _key(
        (), "advance reservations on days of each week"
    )
    learning: LearningSettings = _key(LearningSettings(), "what is remembered of jobs that ended")
    fair_share: FairShareSettings = _key(FairShareSettings(), "how usage of users and groups is counted")
    shadow_timer_s: float = _key(
        10.0, "instead of timer_s for a shadow: events come to one scheduler only", gt=0
    )
    shadow_port: int = _key(
        15005, "port of a shadow, for pbs_server -l, which sends the first event only", ge=0, le=65535
    )

    def reservations_at(self, snapshot: Snapshot) -> tuple[Reservation, ...]:
        """What the settings keep, as far ahead as jobs are planned."""
        until_s = snapshot.now_s + self.planned_s
        standing = self.standing_during(snapshot.now_s, until_s, snapshot.jobs)
        return (*(each.value() for each in self.reservations), *standing)

    @property
    def planned_s(self) -> float:
        """So far ahead standing reservations matter."""
        window_s = self.backfill.values.get("window_s", 0.0) if self.backfill is not None else 0.0
        return max(float(window_s), _PLANNED_S) + BEYOND_S

    def standing_during(
        self, from_s: float, until_s: float, jobs: Iterable[Job] = ()
    ) -> tuple[Reservation, ...]:
        """Standing reservations of a time; members of their groups are those who have one of these jobs."""
        jobs, standing = tuple(jobs), (each.value() for each in self.standing_reservations)
        return tuple(found for each in standing for found in each.during(from_s, until_s, jobs))

    def back_off_rules(self) -> BackOffRules:
        """As `PendingOrders` wants it."""
        return typing.cast(BackOffRules, _rules(self.back_off, BackOffRules))

    def black_hole_rules(self) -> BlackHoleRules:
        """As `PendingOrders` wants it."""
        return typing.cast(BlackHoleRules, _rules(self.black_holes, BlackHoleRules))

    def renewal(self) -> Renewal:
        """As `CommentPlan` wants it."""
        return Renewal(self.comment_refresh_s, self.comment_moved, self.timer_s, self.comments_renewed_per_s)

    def throttling_rules(self) -> Throttling:
        """As `Limits` wants it.

        Raises:
            ConfigError: a queue has two default QoS.
        """
        return replace(
            self.throttling.value(),
            qos={name: each.qos() for name, each in self.qos.items()},
            account_members={name: each.value() for name, each in self.accounts.items()},
        )

    def warnings(self) -> Iterator[str]:
        """What is set and does not bind as it looks."""
        if self.learning.best_of is not None:
            yield "learning.best_of does nothing any more: the first of learning.predictors answers"
        order = self.order.values if self.order is not None else {}
        by_account = self.throttling.accounts or order.get("account_weight")
        if not self.accounts and (by_account or any(each.accounts for each in self.qos.values())):
            yield (
                "limits, shares or QoS go by account, and any user may write any account (qsub -A): "
                "name in `accounts` who may use which"
            )
        for one, other in combinations([each.value() for each in self.standing_reservations], 2):
            if one.meets(other) and (one.users, one.groups) != (other.users, other.groups):
                yield (
                    f"standing_reservations: {one.name} and {other.name} keep {min(one.nodes & other.nodes)} "
                    "at the same time for different users, and nobody may use it who is not named in both: "
                    "change nodes or times"
                )

    def server(self, home: Path) -> ServerSettings:
        """How the server of this home is reached."""
        return ServerSettings(
            home, self.transport, self.trqauthd_socket, self.commands,
            self.query_timeout_s, self.order_timeout_s,
            self.batch_system, self.partition, self.heed_scheduling, self.loads_folder,
        )  # fmt: skip

    def cycle_limits(self) -> CycleLimits:
        """As `Cycle` wants it."""
        return typing.cast(CycleLimits, _rules(self.limits, CycleLimits))

    def rules(self) -> tuple[NodeRules, GpuRules, MemoryRules, QueueRules]:
        """As policies want them."""
        return (
            _rules(self.nodes, NodeRules), _rules(self.gpus, GpuRules),
            _rules(self.memory, MemoryRules), _rules(self.queues, QueueRules),
        )  # fmt: skip


def read_config(path: Path | None) -> Config:
    """The settings in a file; the defaults without one.

    Raises:
        ConfigError: unreadable, or a key is unknown or wrong.
    """
    values = read_settings(path, _RENAMED) if path is not None else {}
    # A key whose values are all commented out is as good as none.
    values = {
        key: value for key, value in values.items() if value is not None or key not in Config.model_fields
    }
    try:
        config = Config(**values)
    except ValidationError as error:
        raise ConfigError(f"{path}: {complaints(error, Config)}") from None
    for name in config.learning.predictors:
        if name not in PREDICTORS:
            known = ", ".join(sorted(PREDICTORS))
            raise ConfigError(
                f"{path}: learning.predictors: no predictor {name!r}", cure=f"known are {known}"
            )
    try:
        config.cycle_limits()
        config.throttling_rules()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", cure=error.cure) from None
    chosen = {key: getattr(config, key) for key in _POLICIES}
    made = {key: _checked(f"{path}: {key}", key, each) for key, each in chosen.items() if each is not None}
    return config.model_copy(update=made)


_POLICIES: dict[str, tuple[Mapping[str, Any], Callable[..., object]]] = {
    "order": (ORDERS, new_order),
    "placement": (PLACEMENTS, new_placement),
    "backfill": (BACKFILLS, new_backfill),
}


def _checked(place: str, key: str, choice: NamedSettings) -> NamedSettings:
    """The choice with its settings as numbers and texts of the kind that it wants.

    Raises:
        ConfigError: no such name, no such setting, or a value that makes no sense.
    """
    table, make = _POLICIES[key]
    hints = typing.get_type_hints(table[choice.name]) if choice.name in table else {}
    values = choice.values
    for name in values.keys() & hints.keys():
        try:
            values[name] = TypeAdapter(hints[name], config=_NUMBERS).validate_python(values[name])
        except ValidationError as error:
            raise ConfigError(f"{place}.{name}: {complaints(error, Config)}") from None
    try:
        make(choice.name, **values)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.message}", cure=error.cure) from error
    return NamedSettings(name=choice.name, **values)

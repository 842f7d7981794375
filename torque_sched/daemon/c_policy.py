"""What pbs_sched's own files mean for our policies: the settings in effect at a moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torque_sched.adapters.state_file import read_plain
from torque_sched.batch.torque.parse.sched_config import (
    CPolicy,
    Holidays,
    ResourceGroup,
    SchedConfig,
    parse_dedicated_time,
    parse_holidays,
    parse_resource_group,
    parse_sched_config,
)
from torque_sched.daemon.config import Config
from torque_sched.decide.backfill import AgedReservations
from torque_sched.decide.context import Window
from torque_sched.decide.decide import planner
from torque_sched.decide.settings import Settings, new_backfill, new_order, new_placement
from torque_sched.decide.throttling import QosOrder
from torque_sched.errors import ConfigError

FILES = ("sched_config", "holidays", "dedicated_time", "resource_group")
"""What is read in ``sched_priv``, all of it optional."""
_A_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class CFiles:
    """What the files say; ``texts`` has them as they were, for the journal."""

    sched: SchedConfig | None = None
    """None: there is no sched_config, or it is not to be read."""
    holidays: Holidays = field(default_factory=Holidays)
    dedicated: tuple[Window, ...] = ()
    groups: tuple[ResourceGroup, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was not understood, and what has no effect."""
        sched = (*self.sched.warnings, *_without_effect(self.sched)) if self.sched else ()
        return sched + self.holidays.warnings + self._other

    _other: tuple[str, ...] = ()


def _without_effect(sched: SchedConfig) -> Iterator[str]:
    """Keys that are set and do nothing here, with what does."""
    for name in ("load_balancing", "load_balancing_rr"):
        if getattr(sched.prime, name) or getattr(sched.non_prime, name):
            yield (
                f"sched_config: {name} has no effect (pbs_sched, too, heeds it for time-shared nodes only); "
                "set `placement: loadave` for the least load average"
            )


def read_c_files(folder: Path, config: Config) -> CFiles:
    """Read them from ``sched_priv``.

    Raises:
        ConfigError: a file is there and cannot be read.
    """
    texts: dict[str, str] = {}
    for name in FILES if config.sched_config else ():
        path = folder / name
        try:
            texts[name] = read_plain(path).decode("utf-8", "replace")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}", cure="give this user the file to read") from error
    return c_files_of(texts, config)


def c_files_of(texts: dict[str, str], config: Config) -> CFiles:
    """The same from texts, for replaying."""
    sched = None
    if "sched_config" in texts:
        sched = parse_sched_config(texts["sched_config"], as_c=config.non_prime_bug)
    spans, odd_times = parse_dedicated_time(texts.get("dedicated_time", ""))
    groups, odd_groups = parse_resource_group(texts.get("resource_group", ""))
    return CFiles(
        sched,
        parse_holidays(texts.get("holidays", "")),
        tuple(Window(first.timestamp(), until.timestamp()) for first, until in spans),
        groups,
        tuple(texts.items()),
        (*odd_times, *odd_groups),
    )


class SettingsInForce:
    """The policies' settings by the time of day.

    Args:
        config: our own settings, which win over the files.
        files: pbs_sched's.

    Raises:
        ConfigError: an order, a placement or a backfill has a name or a setting nobody knows, or what it
            needs is not installed.
    """

    def __init__(self, config: Config, files: CFiles) -> None:
        self._holidays = files.holidays
        sched = files.sched or SchedConfig()
        self.prime = _settings(config, files, sched.prime)
        self.non_prime = _settings(config, files, sched.non_prime)
        if any(each.backfill.ahead is not None for each in (self.prime, self.non_prime)):
            planner()

    def at(self, now_s: float) -> Settings:
        """Those in force now."""
        moment = datetime.fromtimestamp(now_s)  # noqa: DTZ006 -- prime time is the host's own
        settings = self.prime if self._holidays.is_prime(moment) else self.non_prime
        return replace(settings, zone=moment.astimezone().tzinfo or timezone.utc)


def _settings(config: Config, files: CFiles, policy: CPolicy) -> Settings:
    nodes, gpus, memory, queues = config.rules()
    if files.sched is not None:
        queues = replace(
            queues,
            ignored=queues.ignored | frozenset(files.sched.ignored_queues),  # type: ignore[arg-type]
            dedicated_prefix=queues.dedicated_prefix or files.sched.dedicated_prefix,
            strict=queues.strict or policy.strict_fifo,
        )
    throttling, order = config.throttling_rules(), _order(config, files, policy)
    if any(qos.priority for qos in throttling.qos.values()):
        order = QosOrder(order, throttling)
    return Settings(
        order=order,
        placement=_made(new_placement, config.placement.name, config.placement.values),
        backfill=_backfill(config, files, policy),
        nodes=nodes,
        gpus=gpus,
        memory=memory,
        queues=queues,
        throttling=throttling,
        max_starts=config.max_starts,
        words_of_c=config.pbs_sched_reasons_only,
    )


def half_life_s(config: Config, files: CFiles) -> float:
    """After which time usage counts half."""
    if config.fair_share.half_life_s is not None:
        return config.fair_share.half_life_s
    return files.sched.half_life_s if files.sched is not None else _A_DAY_S


def _order(config: Config, files: CFiles, policy: CPolicy) -> Any:
    if config.order is not None:
        return _made(new_order, config.order.name, config.order.values)
    sched = files.sched
    is_fair = policy.fair_share or policy.sort_by == "fair_share"
    if sched is None or (is_fair and policy.strict_fifo):
        return _made(new_order, "fcfs", {})
    if is_fair:
        from torque_sched.decide.fair_share import Share

        shares = tuple(Share(each.name, each.shares, each.parent) for each in files.groups)
        values: dict[str, Any] = {
            "shares": shares, "unknown_shares": sched.unknown_shares, "by_queue": policy.by_queue,
            "round_robin": policy.round_robin, "sort_queues": policy.sort_queues,
        }  # fmt: skip
        return _made(new_order, "fair_share", values)
    keys = policy.keys if policy.sort_by == "multi_sort" else (policy.sort_by,)
    values = {
        "by_queue": policy.by_queue, "round_robin": policy.round_robin,
        "sort_queues": policy.sort_queues, "keys": keys, "strict_fifo": policy.strict_fifo,
    }  # fmt: skip
    return _made(new_order, "c_order", values)


def _backfill(config: Config, files: CFiles, policy: CPolicy) -> Any:
    starve_s = files.sched.max_starve_s if files.sched is not None else None
    if config.backfill is not None:
        values = {"max_starve_s": starve_s} if starve_s and config.backfill.name == "drain" else {}
        return _made(new_backfill, config.backfill.name, {**values, **config.backfill.values})
    if files.sched is not None and not policy.help_starving_jobs:
        return _made(new_backfill, "none", {})
    # `help_starving_jobs` drains the cluster for a starving job; keeping nodes for it does the same with
    # less left idle. Who wants the former sets `backfill: drain`.
    aged = AgedReservations()
    return replace(aged, after_s=starve_s) if starve_s else aged


def _made(make: Any, name: str, values: dict[str, Any]) -> Any:
    return make(name, **values)

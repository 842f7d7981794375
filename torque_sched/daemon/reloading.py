"""SIGHUP: what of the settings a running daemon takes anew, and what waits for a restart."""

from __future__ import annotations

from torque_sched.daemon.config import Config

AT_ONCE = frozenset(
    {
        "back_off", "backfill", "black_holes", "comment_moved", "comment_refresh_s", "comments_renewed_per_s",
        "delete_impossible", "fair_share", "gpus", "limits", "look_rest", "max_starts", "memory", "nodes",
        "offline_black_holes", "order", "pbs_sched_reasons_only", "placement", "queues", "reservations",
        "restricted", "retry_s", "settle_s", "timer_s",
    }
)  # fmt: skip
"""Keys in force from the next cycle on; the others belong to what is open or remembered."""


def changes_of(old: Config, new: Config) -> tuple[str, ...]:
    """Keys whose values differ, in their order."""
    return tuple(key for key in Config.model_fields if getattr(old, key) != getattr(new, key))


def taken_at_once(old: Config, new: Config) -> Config:
    """The old settings with those of the new ones that a running daemon can take."""
    return old.model_copy(update={key: getattr(new, key) for key in changes_of(old, new) if key in AT_ONCE})

"""Which attributes servers and queues have, of what kind, and in which form their values are kept."""

from __future__ import annotations

from torque_sched.emulation.checks import canonical
from torque_sched.emulation.model import Refused

_BOOLEANS = frozenset(
    (
        "scheduling", "query_other_jobs", "poll_jobs", "mom_job_sync", "down_on_error",
        "allow_node_submit", "moab_array_compatible", "note_append_on_error", "acl_host_enable",
        "acl_user_enable", "acl_group_enable", "acl_group_sloppy", "acl_logic_or", "enabled",
        "started", "is_transit", "from_route_only", "automatic_requeue", "auto_node_np",
        "disable_server_id_check",
    )
)  # fmt: skip
NUMBERS = frozenset(
    (
        "scheduler_iteration", "node_check_rate", "tcp_timeout", "job_stat_rate",
        "keep_completed", "max_running", "max_user_run", "max_group_run", "max_user_queuable",
        "max_queuable", "log_level", "log_events", "nppcu", "next_job_number",
        "timeout_for_job_delete", "timeout_for_job_requeue", "max_slot_limit",
        "max_job_array_size", "Priority", "node_ping_rate", "kill_delay", "max_threads",
        "tcp_incoming_timeout",
    )
)  # fmt: skip
_TEXTS = frozenset(
    (
        "server_state", "default_queue", "mail_from", "mail_domain", "comment", "default_node",
        "server_name", "submit_hosts", "acl_hosts", "managers", "operators", "acl_roots",
        "tokens", "acl_users", "acl_groups", "queue_type", "route_destinations",
        "features_required", "disallowed_types", "checkpoint_defaults", "node_pack",
        "authorized_users", "node_suffix", "required_login_property",
    )
)  # fmt: skip
FAMILIES = frozenset(("resources_default", "resources_max", "resources_min", "resources_available"))
_QUEUE_ONLY = frozenset(
    (
        "enabled", "started", "queue_type", "route_destinations", "Priority", "features_required",
        "disallowed_types", "is_transit", "max_queuable", "acl_groups", "acl_group_enable",
        "acl_group_sloppy", "from_route_only", "required_login_property", "checkpoint_defaults",
    )
)  # fmt: skip
_QUEUE_TOO = frozenset(
    ("max_running", "max_user_run", "max_group_run", "max_user_queuable", "keep_completed", "acl_hosts",
     "acl_host_enable", "kill_delay", "acl_users", "acl_user_enable", "acl_logic_or")
)  # fmt: skip
_TYPES = frozenset(
    ("batch", "interactive", "rerunable", "nonrerunable", "fault_tolerant", "fault_intolerant", "job_array")
)
_BAD_TYPE = 15082
LISTS = frozenset(
    ("managers", "operators", "acl_hosts", "submit_hosts", "properties", "acl_users", "acl_groups",
     "route_destinations", "tokens", "acl_roots")
)  # fmt: skip
OPERATORS_MAY_NOT = frozenset(("managers", "operators", "acl_hosts", "acl_roots"))
"""Server attributes that only a manager sets."""


READ_ONLY = frozenset(
    ("server_state", "total_jobs", "state_count", "resources_assigned", "pbs_version", "net_counter", "mtime")
)
"""Attributes that nobody sets."""


def is_server_attribute(name: str) -> bool:
    """Whether a server has it."""
    head = name.partition(".")[0]
    return head in FAMILIES or (head in (_BOOLEANS | NUMBERS | _TEXTS) and head not in _QUEUE_ONLY)


def is_queue_attribute(name: str) -> bool:
    """Whether a queue has it."""
    head = name.partition(".")[0]
    return head in FAMILIES or head in (_QUEUE_ONLY | _QUEUE_TOO)


def kept_value(name: str, value: str) -> str:
    """The value as it is kept and shown.

    Raises:
        Refused: no value of the attribute's kind; the text lacks what it is for.
    """
    head, _, resource = name.partition(".")
    try:
        if head in _BOOLEANS:
            return _boolean(value)
        if head in NUMBERS:
            return str(int(value))
        if head == "disallowed_types" and not set(value.split(",")) <= _TYPES:
            raise Refused(_BAD_TYPE, "Bad type in disallowed_types list")
        if head == "queue_type":
            return {"e": "Execution", "r": "Route"}[_queue_kind(value)]
        if head in FAMILIES and resource:
            return canonical(resource, value, is_old=False)
    except (ValueError, KeyError, Refused) as error:
        if isinstance(error, Refused) and error.code == _BAD_TYPE:
            raise
        raise Refused(15016, "Illegal attribute or resource value for") from error
    return value


def _queue_kind(text: str) -> str:
    word = text.lower()
    if not word or not any(whole.startswith(word) for whole in ("execution", "route")):
        raise ValueError(text)
    return word[0]


def _boolean(text: str) -> str:
    word = text.lower()
    if word in ("true", "t", "y", "yes", "1"):
        return "True"
    if word in ("false", "f", "n", "no", "0"):
        return "False"
    raise ValueError(text)

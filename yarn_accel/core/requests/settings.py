"""Limits of the request machine, shares and rights of its tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """The share and the rights of one tenant.

    Attributes:
        weight: share of device time and of memory under load, above 0.
        read_prefixes: what referenced inputs must lie below, normalised to ``scheme://authority/path``.
        write_prefixes: what outputs must lie below, normalised likewise.
    """

    weight: float = 1.0
    read_prefixes: tuple[str, ...] = ()
    write_prefixes: tuple[str, ...] = ()


_UNKNOWN = TenantSettings()


@dataclass(frozen=True, slots=True)
class MachineSettings:
    """Limits and shares; what a site can set has its default in the server's configuration.

    Attributes:
        pool_bytes: ceiling of all segments together.
        queue_bytes: for each tenant, bound of inputs that no worker has yet, and of what computes or waits
            to leave; half of it is the bound of what one connection holds until its replies have left.
        max_request_bytes: largest inputs of one request.
        max_shared_bytes: shared memory granted to one connection; 0: none.
        max_in_flight: requests under way of one connection.
        reply_cache_bytes: memory of the copied answers.
        reply_cache_age_s: how long any answer is remembered.
        max_attempts: workers that one request may crash before it fails.
        max_batch_size: requests computed together.
        max_batch_bytes: inputs of one batch, on a device whose kind `batch_bytes` does not name.
        max_queue_delay_s: how long a request waits for others to fill its batch.
        unread_grace_s: a connection that has not moved for so long, and holds memory above the share of its
            tenant, is cut off when another tenant waits for that memory.
        prefetch_below_s: a worker busy for shorter than that gets its next batch ahead.
        priority_step_s: one step of priority counts as so many seconds of earlier arrival.
        lanes: by kind of device, batches that a worker computes at a time; one where none is named.
        batch_bytes: by kind of device, inputs of one batch.
        tenants: by name; ``*`` is everybody not named.
        users: of users whose own HDFS rights count, where no entry of `tenants` narrows them.
    """

    pool_bytes: int
    queue_bytes: int
    max_request_bytes: int
    max_shared_bytes: int
    max_in_flight: int
    reply_cache_bytes: int
    reply_cache_age_s: float
    max_attempts: int
    max_batch_size: int
    max_batch_bytes: int
    max_queue_delay_s: float
    unread_grace_s: float = 0.5
    prefetch_below_s: float = 0.005
    priority_step_s: float = 10.0
    lanes: Mapping[str, int] = field(default_factory=dict)
    batch_bytes: Mapping[str, int] = field(default_factory=dict)
    tenants: Mapping[str, TenantSettings] = field(default_factory=dict)
    users: TenantSettings = _UNKNOWN

    def tenant(self, name: str, account: str = "") -> TenantSettings:
        """The settings of a tenant: its own, else those of ``*``, else weight 1 and no rights.

        Args:
            account: of a user who is known by a principal, `name`, and whose own HDFS rights count: the short
                name, which an entry may have too.
        """
        found = self.tenants.get(name) or (self.tenants.get(account) if account else None)
        return found or self.tenants.get("*") or (self.users if account else _UNKNOWN)

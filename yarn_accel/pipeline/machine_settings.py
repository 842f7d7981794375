"""What the request machine must know of a server's settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from yarn_accel.core.requests.settings import MachineSettings, TenantSettings
from yarn_accel.pipeline.workers.control import N_LANES

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.own_filesystem import OwnFilesystem


def machine_settings(config: PipelineConfig, filesystem: OwnFilesystem) -> MachineSettings:
    """The machine's limits and shares, with the prefixes of all rights normalised.

    Args:
        config: of the server.
        filesystem: what prefixes without a host mean.
    """

    def normal(prefixes: Iterable[str]) -> tuple[str, ...]:
        return tuple([filesystem.prefix(prefix) for prefix in prefixes])

    tenants = {
        name: TenantSettings(tenant.weight, normal(tenant.read_prefixes), normal(tenant.write_prefixes))
        for name, tenant in config.tenants.items()
    }
    return MachineSettings(
        pool_bytes=config.pool_bytes,
        queue_bytes=config.queue_bytes,
        max_request_bytes=config.max_request_bytes,
        max_shared_bytes=config.max_shared_memory_bytes,
        max_in_flight=config.max_in_flight,
        reply_cache_bytes=config.reply_cache_bytes,
        reply_cache_age_s=config.reply_cache_age_s,
        max_attempts=config.max_attempts,
        max_batch_size=config.max_batch_size,
        max_batch_bytes=config.max_batch_bytes,
        max_queue_delay_s=config.max_queue_delay_us / 1e6,
        lanes={"cuda": N_LANES},
        tenants=tenants,
    )

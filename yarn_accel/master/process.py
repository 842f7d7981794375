"""The ApplicationMaster as a process: it registers, loads its modules, and serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from yarn_accel.adapters.hadoop_rpc import AttemptGoneError
from yarn_accel.master.registration import read_registration_settings, register

logger = logging.getLogger(__name__)


def run(config_file: Path, environ: Mapping[str, str], report: Callable[[str], None]) -> int:
    """Work until the application is over or this attempt is; returns the exit code.

    Args:
        report: gets one line when the master listens.

    Raises:
        StartupError: this is no container of YARN, or the port is taken.
        ConfigError: the settings or the plan are wrong.
    """
    return asyncio.run(_serve(config_file, environ, report))


async def _serve(config_file: Path, environ: Mapping[str, str], report: Callable[[str], None]) -> int:
    registration = None
    try:
        registration = await register(read_registration_settings(config_file), environ)
        from yarn_accel.master.service import serve

        await serve(config_file, registration, environ, report)
    except AttemptGoneError as error:
        logger.error("this attempt is over: %s", error)
        return 1
    finally:
        if registration is not None:
            registration.listener.close()
            await registration.am.close()
    return 0

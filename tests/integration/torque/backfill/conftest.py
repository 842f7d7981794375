"""Backfilling on the real daemon over an EMULATED Torque."""

import pytest

from tests.integration.torque.daemon.conftest import port, serve, torque

__all__ = ["port", "serve", "torque", "way"]


@pytest.fixture
def way() -> str:
    """By which way the daemon asks the server."""
    return "auto"

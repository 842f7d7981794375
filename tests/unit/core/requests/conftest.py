"""A machine with one worker, and two connections of one tenant."""

import pytest

from tests.unit.core.requests.world import World


@pytest.fixture
def world():
    """16 MiB, of which each of two tenants may keep 8."""
    world = World()
    world.worker()
    return world


@pytest.fixture
def a(world):
    return world.open()


@pytest.fixture
def b(world):
    return world.open()

"""Applications in a state that many tests begin with."""

import pytest

from tests.unit.core.application.driver import Driver, accelerator, only, plain, servers_only
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev


@pytest.fixture
def driver():
    """Only servers; one accelerator node whose server is asked for."""
    return Driver(roles=servers_only())


@pytest.fixture
def serving():
    """As `driver`, with the server of a1 serving, and n1 bound to it."""
    driver = Driver(roles=servers_only())
    (ask,) = only(driver.nodes(accelerator(), plain()), cmd.RequestContainer)
    driver.container = driver.run(ask)
    driver.hear("a1", container=driver.container.id, gauges=ev.ServerGauges(8))
    assert driver.app.bound() == {"n1": "a1"}
    return driver

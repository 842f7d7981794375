"""The last test of the application that all tests of this folder share: what its end leaves."""

from __future__ import annotations

import pytest

from tests.fixtures.yarn_site import Site
from tests.integration.master.conftest import SLOTS

pytestmark = [pytest.mark.hadoop]


def test_an_admin_changes_memory_and_stop_restores_the_slots(site: Site) -> None:
    host = site.others[0]
    report = site.nodes()[host]
    assert report.capability is not None
    size = type(report.capability)(report.capability.memory_mib + 256, 7, report.capability.amounts)
    site.ask(lambda manager: manager.update_node_resource(report.node, size))
    site.until("the change", lambda: site.nodes()[host].capability.vcores == 7)
    assert site.processes()
    site.stop()
    assert set(site.slots().values()) == {SLOTS}
    after = site.nodes()[host].capability
    assert (after.memory_mib, after.vcores) == (size.memory_mib, 7)
    assert not site.attributes() & {"accel-bind", "accel-slots", "accel-drained"}

"""The application that all tests of this folder share ends; here, after all that befell it before."""

import pytest

from tests.integration.master.conftest import SLOTS

pytestmark = [pytest.mark.hadoop]


def test_stop_restores_the_slots_and_keeps_what_an_admin_changed_meanwhile(site):
    host = site.others[0]
    report = site.nodes()[host]
    size = type(report.capability)(report.capability.memory_mib + 256, 7, report.capability.amounts)
    site.ask(lambda manager: manager.update_node_resource(report.node, size))
    site.until("the change", lambda: site.nodes()[host].capability.vcores == 7)
    site.stop()
    assert set(site.slots().values()) == {SLOTS}
    after = site.nodes()[host].capability
    assert (after.memory_mib, after.vcores) == (size.memory_mib, 7)
    assert not site.attributes() & {"accel-bind", "accel-slots", "accel-drained"}

"""One real cluster of four nodes in one rack, two of which play accelerators, with the application on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.yarn_site import Site, SiteOptions, site_up
from yarn_accel.errors import StartupError

#: No share is as large, so a share differs from what is configured.
SLOTS = 9
#: The site allows five failures; the master is killed more often here, but not so quickly.
PATIENT = {"app": {"attempt_failures_validity_interval_s": 2.0}}


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Network namespaces as root, else loopback; skipped with the reason where Hadoop cannot be started."""
    options = SiteOptions("master", late=1, slots=SLOTS, sections=PATIENT)
    try:
        with site_up(options, tmp_path_factory.mktemp("admin")) as found:
            print(f"\nstart took {found.start():.1f} s")
            yield found
    except StartupError as error:
        pytest.skip(f"no Hadoop here: {error}")

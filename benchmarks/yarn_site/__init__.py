"""A real Hadoop cluster with the application on it, for tests and benchmarks.

``with site_up(SiteOptions("name"), folder) as site: site.start()`` brings it up and takes it down, see
`Site`: its admin, its mappers, its faults.
"""

from __future__ import annotations

from benchmarks.yarn_site.caller import Caller
from benchmarks.yarn_site.options import SiteOptions
from benchmarks.yarn_site.site import DEADLINE_S, ROOT, Site, site_up

__all__ = ["DEADLINE_S", "ROOT", "Caller", "Site", "SiteOptions", "site_up"]

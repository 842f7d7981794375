"""Settings and orders that the launcher has no word for, given to the daemons of a cluster that is up."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping

from tests.fixtures.programs import ran
from tests.fixtures.yarn_site import Site
from yarn_accel.hadoop.java import java_argv
from yarn_accel.hadoop.site import HadoopSite

YARN_SITE = "yarn-site.xml"
CAPACITY_SCHEDULER = "capacity-scheduler.xml"
#: A NodeManager hears of slots that were set with a heartbeat, one a second. An RM that is killed before that
#: forgets them, and gets from the node what it had: where `stop` had just restored, nobody sets them again.
_HEARD_S = 2.5


def change(site: Site, values: Mapping[str, str]) -> float:
    """Write properties and restart the ResourceManager; seconds until its nodes are back."""
    write(site, values)
    return restart(site)


def write(site: Site, values: Mapping[str, str], file: str = YARN_SITE) -> None:
    """Write properties into yarn-site.xml, or another file, for daemons that are started from now on.

    The launcher writes the file anew at its next `up` only.
    """
    path = site.cluster.node_conf_dir / file
    tree = ElementTree.parse(path)
    root = tree.getroot()
    known = {each.findtext("name"): each for each in root.iter("property")}
    for name, value in values.items():
        found = known.get(name)
        if found is None:
            found = ElementTree.SubElement(root, "property")
            ElementTree.SubElement(found, "name").text = name
            ElementTree.SubElement(found, "value")
        text = found.find("value")
        assert text is not None
        text.text = value
    tree.write(path)


def rmadmin(site: Site, *words: str) -> None:
    """``yarn rmadmin`` as an admin of stock Hadoop has it."""
    jobs = HadoopSite.load(site.environ)
    argv = java_argv(
        jobs.install,
        "org.apache.hadoop.yarn.client.cli.RMAdminCLI",
        site.cluster.conf_dir,
        jvm_options=jobs.client_jvm_options,
        arguments=words,
    )
    done = ran(argv, timeout=120)
    assert done.returncode == 0, done.stderr


def restart_node(site: Site, name: str) -> None:
    """kill -9 of a NodeManager and a new one."""
    site.cluster.kill(name, "nodemanager")
    site.cluster.start(name, "nodemanager")


def restart(site: Site) -> float:
    """kill -9 of the ResourceManager and a new one; seconds until all nodes are back."""
    time.sleep(_HEARD_S)
    began_s = time.monotonic()
    site.cluster.kill("master", "resourcemanager")
    site.cluster.start("master", "resourcemanager")
    site.until("all nodes are back", lambda: len(site.nodes()) == len(site.names))
    return time.monotonic() - began_s

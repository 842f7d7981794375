"""Two real workers in two racks for the tests of this folder, and a client of their ResourceManager."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from yarn_accel.adapters.hadoop_rpc import (
    NativeResourceManager,
    Patience,
    ResourceManagerAddresses,
    RpcSettings,
    User,
)
from yarn_accel.errors import StartupError
from yarn_accel.hadoop.site import HadoopSite
from yarn_accel.testbed import Cluster, UpOptions, take_down

CLUSTER_NAME = "rpc"


@dataclass(frozen=True)
class Yarn:
    """A cluster that is up, and what it takes to talk to it."""

    cluster: Cluster
    site: HadoopSite
    addresses: ResourceManagerAddresses
    settings: RpcSettings

    def resource_manager(self) -> NativeResourceManager:
        return NativeResourceManager(self.addresses, User(getpass.getuser()), self.settings, Patience(30.0))


@pytest.fixture(scope="package")
def yarn() -> Iterator[Yarn]:
    """Network namespaces as root, else loopback; skipped with the reason where Hadoop cannot be started."""
    take_down(CLUSTER_NAME)
    mode = "netns" if os.geteuid() == 0 else "loopback"
    try:
        options = UpOptions(CLUSTER_NAME, nodes=2, racks=2, accel_nodes=1, mode=mode, pipeline=False)
        cluster = Cluster.up(options)
        site = HadoopSite.load({"HADOOP_CONF_DIR": str(cluster.conf_dir)})
        addresses = ResourceManagerAddresses.from_properties(site.properties)
        yield Yarn(cluster, site, addresses, RpcSettings(hosts=site.client_hosts))
    except StartupError as error:
        pytest.skip(f"no Hadoop here: {error}")
    finally:
        take_down(CLUSTER_NAME)

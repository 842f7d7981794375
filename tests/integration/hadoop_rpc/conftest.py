"""A client of the ResourceManager of the cluster that all tests share."""

from __future__ import annotations

import getpass
from dataclasses import dataclass

import pytest

from yarn_accel.adapters import hadoop_rpc
from yarn_accel.hadoop.site import HadoopSite
from yarn_accel.testbed import Cluster


@dataclass(frozen=True)
class Yarn:
    """A cluster that is up, and what it takes to talk to it."""

    cluster: Cluster
    site: HadoopSite
    addresses: hadoop_rpc.ResourceManagerAddresses
    settings: hadoop_rpc.RpcSettings

    def resource_manager(self) -> hadoop_rpc.ResourceManager:
        return hadoop_rpc.ResourceManager(
            self.addresses, hadoop_rpc.User(getpass.getuser()), self.settings, hadoop_rpc.Patience(30.0)
        )


@pytest.fixture(scope="package")
def yarn(hadoop_cluster: Cluster) -> Yarn:
    """The cluster of all tests, seen by its ResourceManager."""
    site = HadoopSite.load({"HADOOP_CONF_DIR": str(hadoop_cluster.conf_dir)})
    addresses = hadoop_rpc.ResourceManagerAddresses.from_properties(site.properties)
    return Yarn(hadoop_cluster, site, addresses, hadoop_rpc.RpcSettings(hosts=site.client_hosts))

"""The pseudo-cluster launcher: real daemons, one network namespace per node."""

from yarn_accel.cluster.cluster import Cluster
from yarn_accel.cluster.plan import UpOptions
from yarn_accel.cluster.status import ClusterStatus, DaemonStatus
from yarn_accel.cluster.teardown import take_down, take_down_all

__all__ = ["Cluster", "ClusterStatus", "DaemonStatus", "UpOptions", "take_down", "take_down_all"]

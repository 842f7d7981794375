"""A real Hadoop cluster on one machine: stock daemons, one network namespace per node. For tests and demos.

===================  ==========================================================================
``plan``             names, addresses, racks and ports of a cluster (pure)
``state``            the files of a cluster, what is written down about it, locks
``allocation``       which free subnet or ports a new cluster gets
``preflight``        what the machine must have first
``netns``            network namespaces, links, host names
``settings``         the configuration that daemons, clients and pipeline servers read
``processes``        the cluster's processes, found by their mark
``daemons``          starting one daemon
``bringup``          starting all that is missing, in order
``health``           asking a daemon whether it is healthy
``status``           what all daemons do
``teardown``         removing everything that bears the cluster's mark
``cluster``          the above as one object
``cluster_cli``      ``yarn-accel cluster``
``maven``            fetching Hadoop's jars
``templates``        configuration directories from the templates in ``hadoop_conf/``
``class_archives``   one class data archive for all JVMs
``class_lists``      recording which classes it holds
``single_node``      five daemons on loopback, for recording and for tests
``hadoop_cli``       ``yarn-accel hadoop``
===================  ==========================================================================

Nothing else in the package imports this one; the table of commands names it.
"""

from yarn_accel.testbed.cluster import Cluster
from yarn_accel.testbed.plan import UpOptions
from yarn_accel.testbed.status import ClusterStatus, DaemonStatus
from yarn_accel.testbed.teardown import take_down, take_down_all

__all__ = ["Cluster", "ClusterStatus", "DaemonStatus", "UpOptions", "take_down", "take_down_all"]

"""A real Hadoop cluster on one machine: stock daemons, a network namespace or container per node.

===================  ==========================================================================
``plan``             names, addresses, racks and ports of a cluster (pure)
``state``            the files of a cluster, what is written down about it, locks
``allocation``       which free subnet or ports a new cluster gets
``preflight``        what the machine must have first
``backend``          what a back end does: makes the nodes of a plan, runs and disturbs them
``backends``         the table of back ends
``host_nodes``       the back ends of loopback and netns mode
``links``            limits of links (pure)
``netns``            network namespaces, links, host names
``docker_nodes``     the back end of docker mode
``docker_specs``     what a plan asks of a Docker engine (pure)
``docker_engine``    the connection to the engine, and its failures
``settings``         the configuration that daemons, clients and pipeline servers read
``processes``        the cluster's processes, found by their mark
``daemons``          starting one daemon
``bringup``          starting all that is missing, in order
``health``           asking a daemon whether it is healthy
``status``           what all daemons do
``teardown``         removing everything that bears the cluster's mark
``cluster``          the above as one object
``cluster_cli``      ``yarn-accel cluster``
``container_node``   one node in the foreground: what a container of ``docker/`` runs
``container_cli``    ``yarn-accel cluster run-node``
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

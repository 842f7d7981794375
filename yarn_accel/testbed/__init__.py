"""A real Hadoop cluster on one machine: stock daemons, a network namespace or container per node.

===================  ==========================================================================
``plan``             names, addresses, racks, ports and links of a cluster (pure)
``state``            the files of a cluster, its specification, locks
``preflight``        what the machine must have first, and which numbers are free
``software``         Hadoop's jars, fetched by Maven, and one class data archive for all JVMs
``settings``         the configuration that daemons, clients and pipeline servers read
``kerberos``         a realm with its KDC, keytabs and certificate, and logins to web pages
``processes``        the cluster's processes, found by their mark
``backends``         the back end of each mode: makes the nodes, runs and disturbs them; taking down
``host_nodes``       the back ends of loopback and netns mode
``docker_nodes``     the back end of docker mode, and its connection to the engine
``docker_specs``     what a plan asks of a Docker engine (pure)
``daemons``          starting daemons in order, and asking whether they are healthy
``cluster``          the above as one object
``cluster_cli``      ``yarn-accel cluster``
``container_node``   one node in the foreground: what a container of ``docker/`` runs
``single_node``      five daemons on loopback, for recording the class list and for tests
``hadoop_cli``       ``yarn-accel hadoop``
===================  ==========================================================================

Nothing else in the package imports this one; the table of commands names it.
"""

from yarn_accel.testbed.backends import take_down, take_down_all
from yarn_accel.testbed.cluster import Cluster, ClusterStatus, DaemonStatus
from yarn_accel.testbed.plan import UpOptions

__all__ = ["Cluster", "ClusterStatus", "DaemonStatus", "UpOptions", "take_down", "take_down_all"]

"""A real Torque on this machine, in namespaces of its own, for tests and benchmarks.

``with torque_up(found()) as site`` makes a head with pbs_server and trqauthd, and nodes with a pbs_mom each.
Each host has its own network, processes, host name and mounts: over the PBS home that is compiled into the
binaries lies a folder of the cluster's own. So a Torque that works on this machine is neither seen nor
touched, and no packet leaves. The kernel ends all of it with the process that made it. It needs root; nothing
is built here: the programs are those of `TORQUE_PREFIX`, else those on PATH.
"""

from __future__ import annotations

from benchmarks.torque_site.binaries import PREFIX_VARIABLE, Absent, Binaries, found
from benchmarks.torque_site.daemon import Daemon
from benchmarks.torque_site.site import NODES, ROOT, TorqueSite, eventually, torque_up

__all__ = [
    "NODES",
    "PREFIX_VARIABLE",
    "ROOT",
    "Absent",
    "Binaries",
    "Daemon",
    "TorqueSite",
    "eventually",
    "found",
    "torque_up",
]

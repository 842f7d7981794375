"""A stateful emulation of Torque's server, moms and commands, to try a scheduler without a cluster.

Programs named like Torque's go on PATH (``qsub``, ``qstat``, ``pbsnodes``, ``qrun`` ...); behind them
one server process keeps the state, lets jobs start and end, and knocks at the scheduler's port. What
they print and how they fail follows outputs of real servers, 6.1.3 and 4.2.10; ``pbs_version`` and the
moms' ``version`` end in ``-emulated``, so nobody takes it for the real thing. Beside them it uses Torque's
own batch protocol at a port of 127.0.0.1, with an emulated trqauthd.

OpenPBS 23.06.06 is the second dialect (`torque_sched.emulation.openpbs`): the same clients, journal, clock
and faults, its own programs and server. Of it there are no reservations and no scheduler that asks.

What of Torque is not emulated: routing to other servers, reservations, pbs_mom's own configuration file,
checkpointing,
interactive sessions (``qsub -I`` is refused as where there is no terminal), accounting by tokens, IPv6,
several servers in one cluster.
"""

from torque_sched.emulation.emulated import (
    EmulatedCluster,
    EmulatedOpenPbs,
    EmulatedTorque,
    ManualClock,
    SentEvent,
)
from torque_sched.emulation.faults import Fault

__all__ = ["EmulatedCluster", "EmulatedOpenPbs", "EmulatedTorque", "Fault", "ManualClock", "SentEvent"]

"""Whether the node at the other end of a TCP connection is still there, as far as the two kernels know.

A server that computes says nothing for long, and one that is short of memory reads nothing; but its kernel
acknowledges what arrives, however busy node and server are, and answers a probe per second while nothing is
under way.  So a node that has acknowledged nothing of what needs to be acknowledged for some seconds is off
the network.  TCP by itself goes on for a quarter of an hour; its option ``TCP_USER_TIMEOUT`` is not used
since it also ends connections to servers that do acknowledge but have no room.

Where the kernel does not tell (any but Linux) nothing is ever found lost; standard library only, Python 3.8.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Optional

__all__ = ["LOST_AFTER_S", "UNANSWERED_PROBES", "ask_often", "mute_s"]

#: How long a node may leave everything unacknowledged before it counts as lost, unless it is set otherwise.
LOST_AFTER_S = 3.0
#: So many probes, or copies of the same bytes, must be unanswered: one alone may be lost on a bad line.
UNANSWERED_PROBES = 2
_PROBE_EVERY_S = 1
_CAN_TELL = sys.platform.startswith("linux")
#: ``struct tcp_info`` to tcpi_last_ack_recv: eight bytes, then whole numbers of four.
_TCP_INFO = struct.Struct("8B13I")
_RETRANSMITS, _PROBES = 2, 3
_UNACKED, _LAST_DATA, _LAST_ACK = 8 + 4, 8 + 11, 8 + 12


def ask_often(sock: socket.socket, lost_after_s: float) -> None:
    """Have the kernel probe the other end of a TCP connection every second in which nothing is under way.

    A connection nobody waits on is ended by the kernel after `lost_after_s`, in whole seconds.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if not _CAN_TELL:
        return
    n_probes = max(UNANSWERED_PROBES, round(lost_after_s / _PROBE_EVERY_S) - 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, min(127, n_probes))


def mute_s(sock: socket.socket) -> float:
    """For how long the other end has acknowledged nothing although it should have; 0: it has, or who knows.

    Without room at the other end the probes become rare; between two of them nothing is missing.
    """
    told = _tcp_info(sock)
    if told is None:
        return 0.0
    fields = _TCP_INFO.unpack(told)
    is_asked = fields[_PROBES] >= UNANSWERED_PROBES
    is_repeated = fields[_UNACKED] > 0 and fields[_RETRANSMITS] >= UNANSWERED_PROBES
    return min(fields[_LAST_DATA], fields[_LAST_ACK]) / 1000 if is_asked or is_repeated else 0.0


def _tcp_info(sock: socket.socket) -> Optional[bytes]:
    if not _CAN_TELL or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:
        return None
    return told if len(told) == _TCP_INFO.size else None

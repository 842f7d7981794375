"""Detects servers that hang, and nodes that are off the network.

A server promises progress on unanswered requests once per second (the capability ``progress``). One that is
silent for some seconds and leaves a ping unanswered hangs, `SilenceMeter`. Time in which this process did not
run, or did not look, is nobody's silence.

A server that computes sends nothing for long, and one that is short of memory reads nothing. The kernel of
its node still acknowledges what arrives, however busy the node is, and answers one keep-alive probe per
second while nothing is under way. A node that acknowledges nothing of what it should for some seconds is
lost. TCP alone takes a quarter of an hour to find that out. `TCP_USER_TIMEOUT` does not serve: it also ends
connections to servers that acknowledge but have no space.

Only Linux reports the figures; elsewhere no node is ever found lost. Standard library only, Python 3.8.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Optional

from yarn_accel.client.signal_errors import reraise_from_signal

#: How long a node may leave everything unacknowledged before it counts as lost, unless it is set otherwise.
LOST_AFTER_S = 3.0
#: Silence of a server that promised progress once per second, and an unanswered ping, after which it hangs.
SILENT_AFTER_S = 3.0
#: A longer gap between two looks means that this process stood still itself; no more of it counts.
_LONGEST_GAP_S = 0.5
#: So many probes, or copies of the same bytes, must be unanswered: one alone may be lost on a bad line.
UNANSWERED_PROBES = 2
_PROBE_EVERY_S = 1
_CAN_TELL = sys.platform.startswith("linux")
#: ``struct tcp_info`` to tcpi_last_ack_recv: eight bytes, then whole numbers of four.
_TCP_INFO = struct.Struct("8B13I")
_RETRANSMITS, _PROBES = 2, 3
_UNACKED, _LAST_DATA, _LAST_ACK = 8 + 4, 8 + 11, 8 + 12


class SilenceMeter:
    """Measures for how long a server was silent, counting only time in which this process looked.

    Attributes:
        silent_s: seconds of silence as of the last look.
    """

    def __init__(self) -> None:
        self.silent_s = 0.0
        self._looked_s = 0.0

    def restart(self, now_s: float) -> None:
        """Bytes came, or from now on an answer is due."""
        self.silent_s = 0.0
        self._looked_s = now_s

    def look(self, now_s: float) -> float:
        """Nothing has come so far; the seconds of silence."""
        self.silent_s += min(now_s - self._looked_s, _LONGEST_GAP_S)
        self._looked_s = now_s
        return self.silent_s


def enable_keepalive(sock: socket.socket, lost_after_s: float) -> None:
    """Have the kernel probe the other end of an idle TCP connection every second.

    The kernel ends a connection whose probes are not answered for `lost_after_s`, in whole seconds.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if not _CAN_TELL:
        return
    n_probes = max(UNANSWERED_PROBES, round(lost_after_s / _PROBE_EVERY_S) - 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, min(127, n_probes))


def unacknowledged_s(sock: socket.socket) -> float:
    """Seconds for which the other end has not acknowledged what it should have; 0: it has, or it is unknown.

    While the other end has no space the probes become rare; between two of them nothing is due.
    """
    info = _tcp_info(sock)
    if info is None:
        return 0.0
    fields = _TCP_INFO.unpack(info)
    is_asked = fields[_PROBES] >= UNANSWERED_PROBES
    is_repeated = fields[_UNACKED] > 0 and fields[_RETRANSMITS] >= UNANSWERED_PROBES
    return min(fields[_LAST_DATA], fields[_LAST_ACK]) / 1000 if is_asked or is_repeated else 0.0


def _tcp_info(sock: socket.socket) -> Optional[bytes]:
    if not _CAN_TELL or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError as error:
        reraise_from_signal(error)
        return None
    return info if len(info) == _TCP_INFO.size else None

"""How many accelerated mappers YARN may start on each node: `acct/slot`.

A server that can feed C requests at a time is shared evenly by its own node and the k nodes bound to it::

    share = C // (k + 1), one more for the first C % (k + 1): the server's node, then the others by name
    share = max(share, 1)

so the shares add up to C, or to k + 1 where there are more nodes than requests.  A node without a server
gets 0.

While there is no server anywhere, for `restore_after_s` nothing is changed, then every node gets its
configured value (None), so that jobs go on with their CPUs; the same on `StopRequested`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from yarn_accel.core.application.commands import Command, SetSlots
from yarn_accel.core.application.nodes import NEVER
from yarn_accel.core.application.settings import Settings


def shares(capacity: int, server: str, bound: Iterable[str]) -> dict[str, int]:
    """Slots of a server's own node and of the nodes bound to it, by the formula above."""
    members = [server, *bound]
    share, n_more = divmod(max(capacity, 0), len(members))
    if not share or not n_more:
        return dict.fromkeys(members, max(share, 1))
    members[1:] = sorted(members[1:])
    return {node: share + (i < n_more) for i, node in enumerate(members)}


class SlotMode(enum.Enum):
    """Whether slots get their shares, stay as they are, or get their configured values."""

    SHARE = "share"
    WAIT = "wait"
    RESTORE = "restore"


@dataclass(slots=True, eq=False)
class _SlotOrder:
    """The last order for a node."""

    asked: int | None
    asked_s: float


class SlotManager:
    """Desired slots of every node, and the last command for each; `_unset`: it is not confirmed yet."""

    def __init__(self, settings: Settings, commands: list[Command]) -> None:
        self._settings = settings
        self._commands = commands
        self._share: dict[str, int] = {}
        self._shares: dict[str, dict[str, int]] = {}
        self._entries: dict[str, _SlotOrder] = {}
        self._unset: set[str] = set()
        self.mode = SlotMode.WAIT
        self.refusal = "" if settings.has_slots else "switched off"

    @property
    def is_settled(self) -> bool:
        """Every order was carried out, or none can be."""
        return bool(self.refusal) or not self._unset

    def share(self, servers: Mapping[str, tuple[int, Iterable[str]] | None]) -> list[str]:
        """Share servers out anew, each given as capacity and bound nodes; None: it serves no more.

        Returns:
            The nodes whose share changed.
        """
        left: dict[str, None] = {}
        fresh: dict[str, int] = {}
        for server, served in servers.items():
            old, new = self._shares.pop(server, {}), {}
            if served is not None:
                self._shares[server] = new = shares(served[0], server, served[1])
            if old != new:
                left.update((node, None) for node in old if node not in new)
                fresh.update((node, share) for node, share in new.items() if old.get(node) != share)
        changed = [node for node, share in fresh.items() if self._share.get(node) != share]
        self._share.update(fresh)
        for node in left:
            if node not in fresh:
                del self._share[node]
                changed.append(node)
        return changed

    def wanted(self, node: str) -> int | None:
        """The desired slots of the node; None: the configured value."""
        return None if self.mode is SlotMode.RESTORE else self._share.get(node, 0)

    def given(self, node: str) -> tuple[int | None, bool] | None:
        """The last order and whether it was carried out; None: there was none."""
        entry = self._entries.get(node)
        return (entry.asked, node not in self._unset) if entry is not None else None

    def reconcile(self, node: str, now_s: float) -> float:
        """Set the node's slots if they are not as desired; returns when to look again."""
        if self.refusal or self.mode is SlotMode.WAIT:
            return NEVER
        wanted = self.wanted(node)
        entry = self._entries.get(node)
        again_s = self._settings.slots_again_s
        if entry is not None and entry.asked == wanted:
            if node not in self._unset:
                return NEVER
            if now_s < entry.asked_s + again_s:
                return entry.asked_s + again_s
        self._entries[node] = _SlotOrder(wanted, now_s)
        self._unset.add(node)
        self._commands.append(SetSlots(node, wanted))
        return now_s + again_s

    def carried_out(self, node: str, n_slots: int | None) -> None:
        """An order was carried out; an older one than the last confirms nothing."""
        entry = self._entries.get(node)
        if entry is not None and entry.asked == n_slots:
            self._unset.discard(node)

    def seen(self, node: str, n_slots: int | None) -> bool:
        """Whether the slots that the RM reports differ from the last order; None: it reports none."""
        entry = self._entries.get(node)
        if entry is None or n_slots is None or entry.asked is None:
            return False
        if entry.asked == n_slots:
            self._unset.discard(node)
            return False
        self._unset.add(node)
        return True

    def forget(self, node: str) -> None:
        """The node is gone; when it comes back it has its configured value."""
        self._entries.pop(node, None)
        self._unset.discard(node)

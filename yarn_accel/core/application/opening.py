"""When an attempt makes its first bindings.

The first attempt does so at once. A later one finds servers that run and nodes that are bound to them, as far
as that is published, and keeps it so: it listens for `Settings.settle_s`, and then until the RM has listed
all nodes and every server that somebody is bound to has spoken, but for `Settings.recall_s` at most. Who
spoke so long ago that it would soon count as silent is waited for again: where the list comes late, or agents
could not get through for a while, a server must not be lost in the moment in which all is bound.
"""

from __future__ import annotations

from yarn_accel.core.application.world import World

__all__ = ["Opening"]


class Opening:
    """Opens the bindings of a world when it is time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._awaited: list[str] | None = None

    def step(self) -> None:
        """Make the first bindings if that is due."""
        world = self._world
        if world.bindings.is_open:
            return
        is_ending = world.life.stopping_s is not None and world.life.attempt > 0
        is_settled = world.now_s >= world.settled_s and world.is_listed
        if is_ending or world.now_s >= world.opens_by_s or (is_settled and not self._is_awaiting()):
            self._open()

    def look_s(self) -> float:
        """When it is due whatever is heard."""
        world = self._world
        return world.settled_s if world.now_s < world.settled_s else world.opens_by_s

    def _open(self) -> None:
        world = self._world
        published, world.published = world.published, {}
        world.bindings.open(world.now_s, published)

    def _is_awaiting(self) -> bool:
        """Whether a server may yet speak that was bound to; who was not waited for once never is again."""
        if self._awaited is None:
            self._awaited = sorted(set(self._world.published.values()))
        while self._awaited and not self._may_speak(self._awaited[-1]):
            self._awaited.pop()
        return bool(self._awaited)

    def _may_speak(self, host: str) -> bool:
        world = self._world
        node = world.nodes.get(host)
        place = world.server_place(node) if node is not None and node.is_usable else None
        if place is None or host in world.drained:
            return False
        if place.report is not None and world.now_s < place.report.at_s + world.settings.silence_s / 2:
            return False
        return any(held.was_launched for held in place.live())

"""Keeps one container in every place that wants one: what is there against what should be, place by place.

A container that was told to stop is told again until the RM or the NM confirms its end, or it is forgotten;
one that was forgotten and speaks again is told to stop once more.  The ids of containers that ended are
remembered for a while, so that late and repeated messages about them change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from yarn_accel.core.application.alarms import NEVER
from yarn_accel.core.application.commands import Ask, Check, Command, Launch, Release, StopContainer, Unask
from yarn_accel.core.application.events import Container, NodeView
from yarn_accel.core.application.exits import describe_exit, is_excused, is_lasting
from yarn_accel.core.application.history import History
from yarn_accel.core.application.places import Held, Node, Phase, Place, Want
from yarn_accel.core.application.roles import Restart
from yarn_accel.core.application.settings import Settings

__all__ = ["Staff"]

#: Ids of ended containers remembered: a few of each node of a large cluster.
_N_ENDED = 65536
_FIRST_OF_ATTEMPT = 32


class Staff:
    """All containers and requests of the application; commands go to `orders`."""

    def __init__(self, settings: Settings, history: History, orders: list[Command]) -> None:
        self._settings = settings
        self._history = history
        self._orders = orders
        self.holders: dict[str, Place] = {}
        self.requests: dict[int, Place] = {}
        self._ended: dict[str, float] = {}
        self._request_id = 0

    def begin(self, attempt: int) -> None:
        """Request ids of this attempt differ from those of the ones before."""
        self._request_id = max(self._request_id, attempt << _FIRST_OF_ATTEMPT)

    def knows(self, container: str) -> bool:
        """Whether it is held, or was."""
        return container in self.holders or container in self._ended

    def adopt(self, place: Place, container: Container, now_s: float) -> None:
        """A container that runs already, from before our time."""
        held = Held(container, Phase.RUNNING, now_s, was_launched=True, reason="found running")
        self._hold(place, held)
        self._history.add(now_s, place.node, f"{place.role.name} adopted", container.id)

    def grant(self, place: Place, container: Container, now_s: float) -> None:
        """A container the RM gave us."""
        self._hold(place, Held(container, Phase.GRANTED, now_s))

    def answered(self, request_id: int, node: Node) -> None:
        """The RM gave a container for the request.

        One that was repeated is taken back besides: the repetition may have come there after the first was
        answered, and wait for a second container.
        """
        place = self.requests[request_id]
        if place.asked_s > place.first_asked_s:
            self._unask(place, node)
        else:
            self._close(place)

    def forget_requests(self) -> None:
        """The RM was restarted: what was asked is asked again."""
        for place in self.requests.values():
            place.asked_s = -NEVER

    def doubt(self, confirmed: Iterable[str], now_s: float) -> None:
        """The RM's list of our containers lacks some of ours: their NMs are asked."""
        for container in sorted(self.holders.keys() - set(confirmed)):
            held = self.holders[container].held[container]
            if held.was_launched and held.is_live:
                self._check(held, now_s)

    def confirm(self, container: str, now_s: float) -> None:
        """Its NM runs it."""
        place = self.holders.get(container)
        if place is not None and place.held[container].phase is Phase.LAUNCHING:
            held = place.held[container]
            held.phase, held.since_s = Phase.RUNNING, now_s

    def not_started(self, container: str, why: str, now_s: float) -> None:
        """Its launch failed."""
        place = self.holders.get(container)
        if place is not None and place.held[container].phase is Phase.LAUNCHING:
            held = place.held[container]
            self._fail(place, held, f"not started: {why[:200]}", now_s)
            self._orders.append(Release(held.container))

    def completed(self, container: str, exit_status: int, diagnostics: str, now_s: float) -> None:
        """It ended; counted as a failure unless it was told to, or others are to blame."""
        place = self.holders.get(container)
        if place is None:
            self._remember(container, NEVER)
            return
        held = place.held[container]
        was_live = held.is_live
        reason = describe_exit(exit_status, diagnostics)
        if was_live and exit_status == 0 and place.role.restart is Restart.ON_FAILURE:
            place.is_done = True
        elif was_live and not is_excused(exit_status):
            lasts = is_lasting(exit_status)
            place.backoff.failed(self._settings, place.well_for_s(), reason, now_s, is_lasting=lasts)
        self._end(place, held, NEVER)
        self._history.add(
            now_s, place.node, f"{place.role.name} ended", reason if was_live else held.reason or reason
        )

    def abandon(self, place: Place, reason: str, now_s: float) -> None:
        """The node is gone; the RM is told to give up what it may still count there."""
        again_s = self._settings.stop_again_s
        for held in list(place.held.values()):
            if held.is_live or now_s >= held.ordered_s + again_s:
                held.ordered_s = now_s
                self._orders.append(Release(held.container))
            self._end(place, held, held.ordered_s + again_s)
            self._history.add(now_s, place.node, f"{place.role.name} given up", reason)
        place.is_done = False

    def speaks_late(self, container: Container, now_s: float) -> bool:
        """Whether a container is one of the past; it is told to stop if its end was never confirmed."""
        again_s = self._ended.get(container.id)
        if again_s is None:
            return False
        if now_s >= again_s:
            self._ended[container.id] = now_s + self._settings.stop_again_s
            self._orders += (StopContainer(container), Release(container))
        return True

    def keep(self, place: Place, want: Want, node: Node, now_s: float) -> float:
        """Step from what the place has to what it should have; returns when to look again."""
        if want is Want.KEEP and place.request_id is None and len(place.held) == 1:
            (only,) = place.held.values()
            if only.is_live:
                return self._nurse(place, only, node, now_s)
        if want is Want.NONE:
            self._retire(place, list(place.live()), "not wanted here any more", now_s)
        elif want is Want.HOLD:
            granted = [held for held in place.live() if held.phase is Phase.GRANTED]
            self._retire(place, granted, "not wanted now", now_s)
        live = sorted(place.live(), key=lambda held: _rank(place, held))
        self._retire(place, live[1:], "surplus", now_s)
        look_s = min((self._press(place, held, now_s) for held in _retiring(place)), default=NEVER)
        first = next(place.live(), None)
        if want is not Want.KEEP or first is not None:
            self._unask(place, node)
        if want is not Want.KEEP:
            return look_s
        if first is not None:
            return min(look_s, self._nurse(place, first, node, now_s))
        return min(look_s, self._seek(place, node, now_s))

    def _seek(self, place: Place, node: Node, now_s: float) -> float:
        """Ask for a container, unless it is too early for one."""
        if place.is_vacating() or place.is_done or node.view is None:
            return NEVER
        if place.backoff.until_s > now_s:
            self._unask(place, node)
            return place.backoff.until_s
        if place.request_id is None or now_s >= place.asked_s + self._settings.ask_again_s:
            self._ask(place, node.view, now_s)
        return place.asked_s + self._settings.ask_again_s

    def _nurse(self, place: Place, held: Held, node: Node, now_s: float) -> float:
        """Bring the one live container to its work and watch it there."""
        settings = self._settings
        if held.phase is Phase.GRANTED:
            held.phase, held.since_s, held.ordered_s = Phase.LAUNCHING, now_s, now_s
            held.was_launched = True
            self._orders.append(Launch(held.container, place.role.name))
        if held.phase is Phase.LAUNCHING:
            limit_s = held.since_s + settings.launch_limit_s
            if now_s < limit_s:
                return limit_s
            self._fail(place, held, f"no answer to its launch for {settings.launch_limit_s:g} s", now_s)
            return held.ordered_s + settings.stop_again_s
        well_s = max(held.since_s, place.well_s)
        # A server is spoken for by its agent: while that is silent too, another server would be no better.
        reached_s = node.heard_s if place.role.is_server else node.reached_s
        hung_s = well_s + settings.hung_s
        if now_s >= hung_s and reached_s >= well_s + settings.hung_s / 2:
            self._fail(place, held, f"not well for {settings.hung_s:g} s", now_s)
            return held.ordered_s + settings.stop_again_s
        look_s = self._watch(place, held, now_s)
        return min(look_s, hung_s) if now_s < hung_s else look_s

    def _watch(self, place: Place, held: Held, now_s: float) -> float:
        """Ask the NM about a container that is silent, or dead; returns when to look again."""
        settings = self._settings
        if held.gone_s is not None:
            due_s, again_s = held.gone_s, max(settings.check_gone_s, now_s - held.gone_s)
            if held.checked_s >= held.gone_s:
                due_s = held.checked_s + max(settings.check_gone_s, held.checked_s - held.gone_s)
        else:
            again_s = settings.check_after_s
            report_s = place.report.at_s if place.report else held.since_s
            due_s = max(held.since_s, held.checked_s, report_s) + again_s
        if now_s < due_s:
            return due_s
        self._check(held, now_s)
        return now_s + again_s

    def _check(self, held: Held, now_s: float) -> None:
        held.checked_s = now_s
        self._orders.append(Check(held.container))

    def _press(self, place: Place, held: Held, now_s: float) -> float:
        """Insist on the end of a retiring container; returns when to look again."""
        settings = self._settings
        forget_s = held.since_s + settings.forget_s
        if now_s >= forget_s:
            self._end(place, held, held.ordered_s + settings.stop_again_s)
            self._history.add(now_s, place.node, f"{place.role.name} forgotten", "its end was not confirmed")
            return NEVER
        if now_s >= held.ordered_s + settings.stop_again_s:
            held.ordered_s = now_s
            if held.was_launched:
                self._orders.append(StopContainer(held.container))
            self._orders.append(Release(held.container))
        return min(held.ordered_s + settings.stop_again_s, forget_s)

    def _fail(self, place: Place, held: Held, reason: str, now_s: float) -> None:
        place.backoff.failed(self._settings, place.well_for_s(), reason, now_s)
        self._retire(place, (held,), reason, now_s)

    def _retire(self, place: Place, some: Iterable[Held], reason: str, now_s: float) -> None:
        for held in some:
            stop = StopContainer if held.was_launched else Release
            self._orders.append(stop(held.container))
            held.phase, held.since_s, held.ordered_s = Phase.RETIRING, now_s, now_s
            held.reason = reason
            _unhear(place, held)
            self._history.add(now_s, place.node, f"{place.role.name} told to stop", reason)

    def _ask(self, place: Place, view: NodeView, now_s: float) -> None:
        if place.request_id is None:
            self._request_id += 1
            place.request_id = self._request_id
            place.first_asked_s = now_s
            self.requests[place.request_id] = place
        place.asked_s = now_s
        role = place.role
        vector = role.resource.on(view.capability)
        self._orders.append(Ask(role.name, view.host, view.rack, vector, role.priority, place.request_id))

    def _unask(self, place: Place, node: Node) -> None:
        if place.request_id is None:
            return
        rack = node.view.rack if node.view is not None else ""
        role = place.role
        self._orders.append(Unask(role.name, place.node, rack, role.priority, place.request_id))
        self._close(place)

    def _close(self, place: Place) -> None:
        if place.request_id is not None:
            del self.requests[place.request_id]
            place.request_id = None

    def _hold(self, place: Place, held: Held) -> None:
        place.held[held.container.id] = held
        self.holders[held.container.id] = place

    def _end(self, place: Place, held: Held, stop_from_s: float) -> None:
        del place.held[held.container.id]
        del self.holders[held.container.id]
        _unhear(place, held)
        self._remember(held.container.id, stop_from_s)

    def _remember(self, container: str, stop_from_s: float) -> None:
        """`stop_from_s`: told to stop if it speaks after that; `NEVER`: its end is certain."""
        self._ended.pop(container, None)
        self._ended[container] = stop_from_s
        if len(self._ended) > _N_ENDED:
            del self._ended[next(iter(self._ended))]


def _rank(place: Place, held: Held) -> tuple[bool, bool, str]:
    """Whom to keep of several: who was heard, then who runs, then the lowest id."""
    is_heard = place.report is not None and place.report.container == held.container.id
    return not is_heard, held.phase is not Phase.RUNNING, held.container.id


def _retiring(place: Place) -> list[Held]:
    return [held for held in place.held.values() if not held.is_live]


def _unhear(place: Place, held: Held) -> None:
    """What a container said does not outlive it."""
    if place.report is None or place.report.container == held.container.id:
        place.report = None
        place.well_since_s = None
        place.well_s = -NEVER

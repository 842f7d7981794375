"""Turns the caller's calls into requests and their answers into the outcomes the caller sees.

A `CallSource` hands out what to send next, one call or several as one pack, and orders the outcomes as asked.
"""

from __future__ import annotations

import collections
import inspect
import io
from collections.abc import Iterable, Mapping
from typing import Callable, Deque, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from yarn_accel.client.calls import Call, Reply
from yarn_accel.client.packs import MAX_CALLS, is_packable, pack, pack_size, same_form, split
from yarn_accel.errors import AccelError, LocalProtocolError, RejectedError

Outcome = Union[Reply, AccelError]
_Settled = Tuple[Call, Outcome]
#: What can be iterated, or looks so, and never yields a call.
_NO_CALLS = (str, bytes, bytearray, memoryview, Mapping, io.IOBase)
#: With `ordered`, this many windows of answers may wait for an earlier one before nothing new is sent.
_WINDOWS_AHEAD = 4


_TAKES = 'map takes an iterable of calls, such as `(Call.of("lu", uri) for uri in uris)`'


def calls_in(calls: Iterable[Call]) -> Iterator[Call]:
    """The calls of an iterable, each seen to be one.

    Raises:
        LocalProtocolError: it cannot hold calls (a text, a mapping, an open file), is a generator that runs
            or has ended, or holds something else.
    """
    if isinstance(calls, _NO_CALLS) or hasattr(calls, "dtype") or not isinstance(calls, Iterable):
        raise not_a_call(calls)
    if inspect.isgenerator(calls):
        name, state = calls.__name__, inspect.getgeneratorstate(calls)
        if state in (inspect.GEN_RUNNING, inspect.GEN_CLOSED):
            how = "is running already" if state == inspect.GEN_RUNNING else "has ended before"
            raise LocalProtocolError("the generator {} {}".format(name, how), cure=_TAKES)
    for call in calls:
        if not isinstance(call, Call):
            raise not_a_call(call)
        yield call


def not_a_call(found: object) -> LocalProtocolError:
    """The error of something that should be a call, or hold calls."""
    what = "a single call" if isinstance(found, Call) else "{} is no call".format(type(found).__name__)
    return LocalProtocolError("{}: {}".format(what, repr(found)[:64]), cure=_TAKES)


def check_window(window: object) -> None:
    """Raise `LocalProtocolError` unless so many calls may be under way at once."""
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise LocalProtocolError("window is {!r}: a number from 1 expected".format(window))


def _never(operation: str) -> bool:
    return False


class CallSource:
    """The calls of one `map`.

    Args:
        calls: where they come from; asked for the next one only when there is space for it. None among them:
            there is nothing now.
        window: requests in flight.
        ordered: give outcomes in the order of the calls, not in that of completion.
        pack: how many small calls of the same form may travel as one request, or "auto".
        takes_stacks: whether the servers say that an operation takes such a pack; asked for those that this
            process does not know.
    """

    def __init__(
        self,
        calls: Iterable[Optional[Call]],
        window: int,
        ordered: bool = False,
        pack: Union[int, str] = 1,
        takes_stacks: Callable[[str], bool] = _never,
    ) -> None:
        if pack != "auto" and (not isinstance(pack, int) or pack < 1):
            raise LocalProtocolError("pack is {!r}: a number from 1 or 'auto' expected".format(pack))
        check_window(window)
        self._calls = iter(calls)
        self._is_exhausted = False
        self._pack = pack
        self._takes_stacks = takes_stacks
        self._pushed_back: Optional[Call] = None
        self._singles: Deque[Call] = collections.deque()
        self._packs: Dict[int, Tuple[Call, Sequence[Call]]] = {}
        self._ordered = ordered
        self._ahead_limit = _WINDOWS_AHEAD * max(1, window) * (pack if isinstance(pack, int) else MAX_CALLS)
        self._n_ahead = 0
        self._order: Deque[Call] = collections.deque()
        self._settled: Dict[int, List[_Settled]] = {}

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing new comes; some of what was there may still wait."""
        return self._is_exhausted

    def next(self) -> Optional[Call]:
        """What to send next; None when that is nothing now, and, with nothing under way, nothing ever."""
        if self._singles:
            return self._singles.popleft()
        first = self._pull()
        if first is None or self._pack == 1 or not is_packable(first, self._takes_stacks):
            return first
        return self._packed(first)

    def settle(self, call: Call, outcome: Outcome) -> Sequence[_Settled]:
        """What an answer means to the caller: nothing yet, or some calls with their outcomes."""
        packed = self._packs.pop(id(call), None)
        if packed is None:
            settled: List[_Settled] = [(call, outcome)]
        else:
            settled = self._unpacked(packed[1], outcome)
        return self._in_order(settled) if self._ordered else settled

    def _pull(self) -> Optional[Call]:
        call = self._pushed_back
        if call is not None:
            self._pushed_back = None
        elif not self._is_exhausted and self._n_ahead < self._ahead_limit:
            try:
                call = next(self._calls)
            except StopIteration:
                self._is_exhausted = True
            if call is not None and self._ordered:
                self._order.append(call)
        return call

    def _packed(self, first: Call) -> Call:
        members = [first]
        limit = pack_size(first, self._pack)
        while len(members) < limit:
            following = self._pull()
            if following is None:
                break
            if not same_form(first, following):
                self._pushed_back = following
                break
            members.append(following)
        if len(members) == 1:
            return first
        try:
            together = pack(members)
        except LocalProtocolError:
            self._singles.extend(members)
            return self._singles.popleft()
        self._packs[id(together)] = (together, members)
        return together

    def _unpacked(self, members: Sequence[Call], outcome: Outcome) -> List[_Settled]:
        if isinstance(outcome, Reply):
            return list(zip(members, split(outcome, len(members))))  # noqa: B905 -- Python 3.8
        if isinstance(outcome, RejectedError):
            # One of them is bad; alone, the others get their answers and the bad one its own error.
            self._singles.extend(members)
            return []
        return [(member, outcome) for member in members]

    def _in_order(self, settled: Sequence[_Settled]) -> List[_Settled]:
        for item in settled:
            self._settled.setdefault(id(item[0]), []).append(item)
        self._n_ahead += len(settled)
        due: List[_Settled] = []
        while self._order:
            place = id(self._order[0])
            waiting = self._settled.get(place)
            if not waiting:
                break
            self._order.popleft()
            due.append(waiting.pop(0))
            if not waiting:
                del self._settled[place]
        self._n_ahead -= len(due)
        return due

"""Calls submitted from any thread, carried out by one: the thread that owns a dispatcher.

Calls wait in a queue, outside of the dispatcher's window, until there is space; each has a future.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import os
import threading
from concurrent.futures import Future
from typing import Callable, Deque, Dict, Iterator, List, Optional, Tuple, Union

from yarn_accel.client.calls import Call, Outcome, Reply
from yarn_accel.client.dispatch import Dispatcher
from yarn_accel.errors import AccelError, LocalProtocolError

#: From an outcome to the outcome the caller gets; None: the call given back is to be sent instead.
Settle = Callable[[Call, Outcome], Optional[Call]]


class _Closed(Exception):
    """Ends the `map` when nobody waits for its outcomes."""


class Submitter:
    """Owns a dispatcher in a thread of its own, which starts with the first call.

    Args:
        dispatcher: closed at the end.
        window, pack: see `Dispatcher.map`.
        settle: gets every outcome before its future; returns a call to send in its place, or None.
    """

    def __init__(self, dispatcher: Dispatcher, window: int, pack: Union[int, str], settle: Settle) -> None:
        self._dispatcher = dispatcher
        self._window = window
        self._pack = pack
        self._settle = settle
        self._lock = threading.Lock()
        self._queue: Deque[Tuple[Call, Future[Reply]]] = collections.deque()
        self._open: Dict[int, List[Tuple[Call, Future[Reply]]]] = {}
        self._cancelled: Deque[Call] = collections.deque()
        self._is_closing = self._is_abandoning = self._is_woken = False
        self._wakeup_in, self._wakeup_out = os.pipe()
        os.set_blocking(self._wakeup_in, False)
        dispatcher.wake_by(self._wakeup_in, self._woken)
        self._thread = threading.Thread(target=self._run, name="accelerator-calls", daemon=True)
        self._thread.start()

    def submit(self, call: Call) -> Future[Reply]:
        """Queue a call.

        Raises:
            LocalProtocolError: it is closed.
        """
        future: Future[Reply] = Future()
        with self._lock:
            if self._is_closing:
                raise LocalProtocolError("this accelerator is closed")
            self._queue.append((call, future))
            self._wake()
        future.add_done_callback(lambda done: self._cancel(call) if done.cancelled() else None)
        return future

    def close(self, cancel: bool = False) -> None:
        """Take no more, and wait until every future is settled.

        Args:
            cancel: cancel the futures of all calls without an outcome, and wait for none.
        """
        with self._lock:
            self._is_closing = True
            self._is_abandoning = self._is_abandoning or cancel
            if self._thread.is_alive():
                self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # In any thread

    def _cancel(self, call: Call) -> None:
        with self._lock:
            self._cancelled.append(call)
            if not self._is_closing or self._thread.is_alive():
                self._wake()

    def _wake(self) -> None:
        if not self._is_woken and self._wakeup_out >= 0:
            self._is_woken = True
            os.write(self._wakeup_out, b"!")

    # In the own thread

    def _run(self) -> None:
        try:
            while not self._is_done():
                try:
                    for call, outcome in self._dispatcher.map(self._calls(), self._window, pack=self._pack):
                        self._finish(call, outcome)
                except AccelError as error:
                    self._fail_all(error)
        except _Closed:
            pass
        except BaseException as error:
            self._fail_all(error)
            raise
        finally:
            self._end()

    def _is_done(self) -> bool:
        with self._lock:
            return self._is_closing and not self._queue

    def _calls(self) -> Iterator[Optional[Call]]:
        while True:
            with self._lock:
                if self._is_abandoning:
                    raise _Closed
                item = self._queue.popleft() if self._queue else None
                is_closing = self._is_closing
            if item is None:
                if is_closing:
                    return
                yield None
            elif not item[1].cancelled():
                self._open.setdefault(id(item[0]), []).append(item)
                yield item[0]

    def _finish(self, call: Call, outcome: Outcome) -> None:
        items = self._open[id(call)]
        _, future = items.pop(0)
        if not items:
            del self._open[id(call)]
        if not _begin(future):
            return
        instead = self._settle(call, outcome)
        if instead is not None:
            with self._lock:
                self._queue.append((instead, future))
        elif isinstance(outcome, AccelError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup_in, 64)
        with self._lock:
            self._is_woken = False
            cancelled, self._cancelled = self._cancelled, collections.deque()
            if self._is_abandoning:
                raise _Closed
        for call in cancelled:
            if id(call) in self._open:
                self._dispatcher.cancel(call)

    def _fail_all(self, error: BaseException) -> None:
        """Nothing can be computed: every call that is here gets the error."""
        for call, future in self._take_all():
            if not _begin(future):
                continue
            own = error
            if isinstance(error, AccelError):
                own = copy.copy(error)
                self._settle(call, own)
            future.set_exception(own)

    def _end(self) -> None:
        self._dispatcher.close()
        with self._lock:
            self._is_closing = True
        for _, future in self._take_all():
            future.cancel()
        with self._lock:
            os.close(self._wakeup_in)
            os.close(self._wakeup_out)
            self._wakeup_in = self._wakeup_out = -1

    def _take_all(self) -> List[Tuple[Call, Future[Reply]]]:
        with self._lock:
            found = [item for items in self._open.values() for item in items]
            found += self._queue
            self._queue.clear()
        self._open.clear()
        return found


def _begin(future: Future[Reply]) -> bool:
    """Whether somebody still wants the outcome; from then on it cannot be cancelled."""
    return future.running() or future.set_running_or_notify_cancel()

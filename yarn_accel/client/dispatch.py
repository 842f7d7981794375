"""Calls to whichever server answers: another one when a server is lost, the own CPU when none is left.

Every call gets exactly one outcome, whatever happens to the servers. `DispatchState` decides; this module
carries its commands out: it opens connections, sends, waits for sockets, and computes on this node.
"""

from __future__ import annotations

import collections
import contextlib
import math
import random
import select
import time
from dataclasses import replace
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Generator,
    Iterable,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
    Union,
)

from yarn_accel.client import dispatch_events as ev
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.call_source import CallSource, Outcome
from yarn_accel.client.calls import Call, Reply
from yarn_accel.client.client import Client
from yarn_accel.client.dispatch_state import DispatchSettings, DispatchState
from yarn_accel.client.liveness import LOST_AFTER_S, SILENT_AFTER_S
from yarn_accel.client.reporter import WaitReporter
from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.errors import AccelError, LocalProtocolError, UnavailableError
from yarn_accel.wire import Credential

_T = TypeVar("_T")

FALLBACK_DEVICE = "cpu:fallback"
_CONNECT_TIMEOUT_S = 5.0
#: Who waits looks so often whether servers are still there, and which there are.
_LOOK_S = 0.25


class Dispatcher:
    """Sends calls to the servers that answer; use it as a context manager, from one thread.

    Args:
        endpoints: the servers, best first (`binding.choose`), to begin with.
        credential: proves the tenant to each of them.
        fallback: an object with ``call(Call) -> Reply`` that computes here; None: such calls fail.
        on_wait: called with a sentence that says what is being waited for.
        patience_s: how long to look for a server before turning to the fallback, and for storage that may
            recover before a call fails.
        timeout_s: longest silence of a server that does not promise progress.
        silent_after_s: longest silence of one that does; then it hangs, and its calls go to another.
        max_attempts: how many servers a call may outlive.
        node: the node this process runs on; see `Client`.
        find_servers: the servers of now, and what is known of them; asked often, with True when a server is
            wanted urgently. None: those of the beginning stay.
        lost_after_s: see `Client`.
        client_options: more keyword arguments for `Client`.
        waits: gets what is waited for, see `WaitReporter`.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        credential: Credential,
        fallback: Optional[Any] = None,
        on_wait: Optional[Callable[[str], None]] = None,
        *,
        patience_s: float = 30.0,
        timeout_s: float = 60.0,
        silent_after_s: float = SILENT_AFTER_S,
        max_attempts: int = 4,
        node: Optional[str] = None,
        find_servers: Optional[Callable[[bool], ev.ServersFound]] = None,
        lost_after_s: float = LOST_AFTER_S,
        client_options: Optional[Dict[str, Any]] = None,
        waits: Optional[WaitReporter] = None,
    ) -> None:
        self._credential, self._fallback = credential, fallback
        self._on_wait = on_wait or _say_nothing
        self._find_servers = find_servers
        self._found: Optional[ev.ServersFound] = None
        limits = {"timeout_s": timeout_s, "silent_after_s": silent_after_s, "lost_after_s": lost_after_s}
        self._client_options = {**(client_options or {}), **limits, "node": node}
        self._on_progress = self._client_options.pop("on_progress", None)
        self._callback_error: Optional[BaseException] = None
        self._waits, self._progress = waits, ""
        connect_timeout_s = min(_CONNECT_TIMEOUT_S, silent_after_s)
        self._settings = DispatchSettings(patience_s, max_attempts, connect_timeout_s, fallback is not None)
        self._first_endpoints = tuple(endpoints)
        #: Set while calls are under way: whatever interrupts them leaves state and connections half changed.
        self._is_unfinished, self._state = False, self._new_state()
        self._clients: Dict[Endpoint, Client] = {}
        self._lost: Set[Endpoint] = set()
        self._commands: Deque[ev.Command] = collections.deque()
        self._is_carrying_out, self._look_s = False, 0.0
        self._outcomes: Deque[Tuple[Call, Outcome]] = collections.deque()
        self._to_compute: Optional[Call] = None
        self._wakeup: Optional[Tuple[int, Callable[[], None]]] = None
        self._actions = self._command_actions()
        self._apply(ev.ServersFound(self._first_endpoints))

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def counts(self) -> Dict[str, int]:
        """``lost_servers``; ``resubmitted``, how often a call was sent again, with its key, because its
        server was lost; ``moved``, how often one went elsewhere while it waited."""
        return self._state.counts

    def close(self) -> None:
        """Close the connections to servers."""
        self._start_again()

    def wake_by(self, descriptor: int, on_wakeup: Callable[[], None]) -> None:
        """End a wait within `map` when a descriptor becomes readable, as another thread may make it.

        With this the calls of a `map` may be None for "nothing now": it then rests until it is woken.

        Args:
            on_wakeup: called in the thread of the `map`; reads what the descriptor has. It may `cancel`, and
                may raise to end the `map`.
        """
        self._wakeup = descriptor, on_wakeup

    def cancel(self, call: Call) -> None:
        """Recall one call of the `map` under way; its outcome is its answer, if that was faster, else a
        `RejectedError` with the code ``cancelled``. A call within a pack, or without, goes on."""
        self._apply(ev.CallCancelled(call))

    def call(self, call: Call) -> Reply:
        """One call, start to end; raises its error."""
        with contextlib.closing(self.map((call,), window=1)) as outcomes:
            for _, outcome in outcomes:
                if isinstance(outcome, AccelError):
                    raise outcome
                return outcome
        raise LocalProtocolError("a call without outcome")

    def map(
        self,
        calls: Iterable[Optional[Call]],
        window: int = 4,
        *,
        ordered: bool = False,
        pack: Union[int, str] = 1,
    ) -> Generator[Tuple[Call, Outcome], None, None]:
        """Every call with its one outcome; the arguments are those of `Client.map`.

        Raises:
            AuthenticationError: every server refuses this credential; waiting would not help.
            RemoteProtocolError: every server has another version of the protocol.
        """
        source = CallSource(calls, window, ordered, pack, self._takes_stacks)
        with contextlib.closing(self._answers(source, window)) as answers:
            for call, outcome in answers:
                yield from source.settle(call, outcome)

    def _answers(self, source: CallSource, window: int) -> Generator[Tuple[Call, Outcome], None, None]:
        if self._is_unfinished:
            self._start_again()
        self._is_unfinished = True
        try:
            while True:
                self._submit(source, window)
                if self._outcomes:
                    self._clear_wait()
                    yield self._outcomes.popleft()
                elif self._to_compute is not None:
                    self._compute()
                elif self._state.n_open:
                    self._wait()
                elif source.is_exhausted or self._wakeup is None:
                    self._abandon()
                    return
                else:
                    self._rest()
        except GeneratorExit:
            self._abandon()
            raise
        except BaseException:
            # Whatever was raised, perhaps between any two instructions: the servers hear that nobody waits.
            self._start_again()
            raise

    def _takes_stacks(self, operation: str) -> bool:
        """Whether every server that is connected says so, and there is one."""
        clients = self._clients.values()
        return bool(clients) and all(client.takes_stacks(operation) for client in clients)

    def _submit(self, source: CallSource, window: int) -> None:
        """Take calls from the source while there is space, and the ones before have left this process."""
        while self._state.n_open < window and not self._outcomes:
            following = source.next()
            if following is None:
                return
            if following.error is not None:
                self._outcomes.append((following, following.error))
                return
            self._find(False)
            self._apply(ev.CallSubmitted(following))
            while any(client.has_outgoing for client in self._clients.values()) and self._wait():
                pass

    def _abandon(self) -> None:
        self._outcomes.clear()
        self._to_compute = None
        if self._state.n_open:
            self._apply(ev.MapAbandoned())
        self._clear_wait()
        self._is_unfinished = False

    def _new_state(self) -> DispatchState:
        return DispatchState(self._settings, lambda: random.uniform(1.0, 1.25))

    def _start_again(self) -> None:
        """Close all connections and forget what was under way; the counts go on."""
        self._is_unfinished = True
        self._clear_wait()
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()
        self._commands.clear()
        self._outcomes.clear()
        self._lost.clear()
        self._to_compute, self._is_carrying_out = None, False
        counts = self._state.counts
        self._state = self._new_state()
        self._state.counts.update(counts)
        self._apply(self._found or ev.ServersFound(self._first_endpoints))
        self._is_unfinished = False

    # Carrying commands out

    def _command_actions(self) -> Dict[type, Callable[[Any], None]]:
        return {
            ev.ConnectServer: self._connect,
            ev.CloseServer: self._close,
            ev.DoubtServer: lambda order: self._use(order.server, Client.doubt),
            ev.FindServers: lambda order: self._find(True),
            ev.SendCall: lambda order: self._use(order.server, Client.submit, order.call, False),
            ev.RecallCall: lambda order: self._use(order.server, Client.cancel, order.call),
            ev.ComputeLocally: self._note_to_compute,
            ev.DeliverOutcome: self._outcomes.append,
            ev.FailMap: _fail,
            ev.TellWait: lambda order: self._on_wait(order.text),
        }

    def _apply(self, event: ev.DispatchEvent) -> None:
        """Tell the state an event, and carry out what follows, in order."""
        self._commands.extend(self._state.apply(event, time.monotonic()))
        if self._is_carrying_out:
            return
        self._is_carrying_out = True
        try:
            while self._commands:
                command = self._commands.popleft()
                self._actions[type(command)](command)
        finally:
            self._is_carrying_out = False

    def _connect(self, order: ev.ConnectServer) -> None:
        options = {**self._client_options, "connect_timeout_s": order.timeout_s}
        options["on_progress"] = self._report_progress
        self._note_wait()
        client = Client(order.server, self._credential, **options)
        # Known before it is open, so that it is closed whatever interrupts this.
        self._clients[order.server] = client
        try:
            client.connect()
        except AccelError as error:
            reraise_from_signal(error)
            del self._clients[order.server]
            self._apply(ev.ServerUnreachable(order.server, error))
        else:
            self._apply(ev.ServerConnected(order.server))

    def _close(self, order: ev.CloseServer) -> None:
        self._lost.discard(order.server)
        self._clients.pop(order.server).close()

    def _use(self, server: Endpoint, action: Callable[..., _T], *arguments: Any) -> Optional[_T]:
        """Do something with the client of a server, unless it was lost since that was ordered."""
        if server in self._lost:
            return None
        try:
            return action(self._clients[server], *arguments)
        except UnavailableError as error:
            reraise_from_signal(error)
            if error is self._callback_error:
                raise
            self._lost.add(server)
            self._apply(ev.ServerLost(server, error))
            return None

    def _report_progress(self, *progress: Any) -> None:
        self._progress = "; {} {} is at '{}' for {:.0f} s".format(
            progress[0].operation, progress[0].key, progress[1], progress[2]
        )
        if self._on_progress is None:
            return
        try:
            self._on_progress(*progress)
        except BaseException as error:
            self._callback_error = error
            raise

    def _note_to_compute(self, order: ev.ComputeLocally) -> None:
        self._to_compute = order.call

    def _compute(self) -> None:
        call, self._to_compute = self._to_compute, None
        assert call is not None
        assert self._fallback is not None
        if self._waits is not None and (self._first_endpoints or self._find_servers is not None):
            self._waits.note(self, "this node's CPU to compute {} {}".format(call.operation, call.key))
        try:
            outcome: Outcome = replace(self._fallback.call(call), device=FALLBACK_DEVICE)
        except AccelError as error:
            reraise_from_signal(error)
            outcome = error
        self._apply(ev.CallComputed(call, outcome))

    def _find(self, is_urgent: bool) -> None:
        """Tell the state the servers of now, if they are others than before."""
        if self._find_servers is not None:
            found = self._find_servers(is_urgent)
            if found != self._found:
                self._found = found
                self._apply(found)

    # Waiting

    def _wait(self) -> bool:
        """Wait until a server can be heard, or for a moment; tell the state what they say.

        Returns:
            whether there was something, so that waiting again makes sense.
        """
        if len(self._clients) == 1 and self._state.wake_at_s == math.inf and self._wakeup is None:
            for endpoint, client in self._clients.items():
                if not client.has_outgoing and client.n_in_flight and not client.has_answers:
                    return self._wait_for(endpoint)
        poll = self._poll()
        is_here = any(client.has_answers for client in self._clients.values())
        now_s = time.monotonic()
        wait_s = 0.0 if is_here else min(_LOOK_S, max(0.0, self._state.wake_at_s - now_s))
        ready = {descriptor for descriptor, _ in poll.poll(wait_s * 1000)}
        is_due = not ready or now_s >= self._look_s
        if is_due:
            self._look_s = now_s + _LOOK_S
        for endpoint, client in list(self._clients.items()):
            if is_due or client.has_answers or client.fileno() in ready:
                self._hear(endpoint)
        if is_due:
            self._note_wait()
            self._find(False)
            self._apply(ev.ClockTick())
        self._take_wakeup(ready)
        return (bool(ready) or is_here) and not self._outcomes

    def _note_wait(self) -> None:
        if self._waits is not None:
            self._waits.note(self, self._state.waits_for() + self._progress)

    def _clear_wait(self) -> None:
        if self._waits is not None:
            self._waits.clear(self)
        self._progress = ""

    def _rest(self) -> None:
        """Wait, with nothing under way, until there is something to do or a server ends a connection."""
        ready = {descriptor for descriptor, _ in self._poll().poll()}
        for endpoint, client in list(self._clients.items()):
            if client.fileno() in ready:
                self._hear(endpoint)
        self._take_wakeup(ready)

    def _poll(self) -> select.poll:
        poll = select.poll()
        for client in self._clients.values():
            poll.register(client.fileno(), select.POLLIN | (select.POLLOUT if client.has_outgoing else 0))
        if self._wakeup is not None:
            poll.register(self._wakeup[0], select.POLLIN)
        return poll

    def _take_wakeup(self, ready: Set[int]) -> None:
        if self._wakeup is not None and self._wakeup[0] in ready:
            self._wakeup[1]()

    def _wait_for(self, endpoint: Endpoint) -> bool:
        """`_wait` where a single server has all calls: receiving waits by itself."""
        has_moved = bool(self._use(endpoint, Client.await_bytes))
        self._hear(endpoint, is_new=False)
        now_s = time.monotonic()
        if now_s >= self._look_s or not has_moved:
            self._look_s = now_s + _LOOK_S
            self._note_wait()
            self._find(False)
            self._apply(ev.ClockTick())
        return has_moved and not self._outcomes

    def _hear(self, endpoint: Endpoint, is_new: bool = True) -> None:
        while endpoint in self._clients:
            client = self._clients[endpoint]
            was_draining = client.is_draining
            found = self._use(endpoint, Client.arrived, is_new)
            if client.is_draining and not was_draining and endpoint in self._clients:
                self._apply(ev.ServerDraining(endpoint))
            if found is None:
                return
            self._apply(ev.CallFinished(endpoint, *found))
            # What the socket has is looked at when it says so; TLS may hold more than the socket knows of.
            is_new = client.carrier == "tls"


def _fail(order: ev.FailMap) -> None:
    raise order.error


def _say_nothing(text: str) -> None:
    """The default of `on_wait`."""

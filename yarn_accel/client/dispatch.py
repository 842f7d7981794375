"""Calls to whichever server answers: another one when a server is lost, the own CPU when none is left.

Every call gets exactly one outcome, whatever happens to the servers. `CallSource` turns the caller's calls
into requests, one call or several small ones as one pack, and answers into outcomes in the order that was
asked for. `DispatchState` decides where each goes. `Dispatcher` carries that out: it opens connections,
sends, waits for sockets, and computes on this node.

A small matrix costs less to compute than a request costs to send, so consecutive calls of the same form
(operation, params, specs) may travel together: their inputs are stacked along a new first axis, and the reply
is cut up again. Bytes of arrays in C order are simply put one behind the other; arrays in F order are brought
into C order first, for which numpy must be there.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import inspect
import io
import math
import os
import random
import select
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Generator,
    Iterator,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
    Union,
)

from yarn_accel.client import dispatch_state as ds
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call, Outcome, Reply, Tensor
from yarn_accel.client.client import Client
from yarn_accel.client.reporter import WaitReporter
from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.client.transport import CONNECT_TIMEOUT_S, LOOK_S, LOST_AFTER_S, SILENT_AFTER_S, TIMEOUT_S
from yarn_accel.errors import AccelError, LocalProtocolError, RejectedError, UnavailableError
from yarn_accel.operations import OPERATIONS
from yarn_accel.operations.operation import SMALL_ORDER
from yarn_accel.wire import LARGE_PACK_BYTES, MAX_DIMENSIONS, PACK_BYTES, Credential, TensorSpec

_T = TypeVar("_T")
_Settled = Tuple[Call, Outcome]

FALLBACK_DEVICE = "cpu:fallback"
#: How long to look for a server, to bear with a busy one, and to wait for storage.
PATIENCE_S = 60.0
#: Types that can be iterated, or look so, and never yield a call.
_NO_CALLS = (str, bytes, bytearray, memoryview, Mapping, io.IOBase)
_TAKES = 'map takes an iterable of calls, such as `(Call.of("lu", uri) for uri in uris)`'
#: With `ordered`, this many windows of answers may wait for an earlier one before nothing new is sent.
_WINDOWS_AHEAD = 4
#: Most calls in a pack of automatic size.
MAX_CALLS = 64


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
        patience_s: float = PATIENCE_S,
        timeout_s: float = TIMEOUT_S,
        silent_after_s: float = SILENT_AFTER_S,
        max_attempts: int = ds.MAX_ATTEMPTS,
        node: Optional[str] = None,
        find_servers: Optional[Callable[[bool], ds.ServersFound]] = None,
        lost_after_s: float = LOST_AFTER_S,
        client_options: Optional[Dict[str, Any]] = None,
        waits: Optional[WaitReporter] = None,
    ) -> None:
        self._credential, self._fallback = credential, fallback
        self._on_wait = on_wait or _say_nothing
        self._find_servers = find_servers
        self._found: Optional[ds.ServersFound] = None
        self._found_until_s = -math.inf
        limits = {"timeout_s": timeout_s, "silent_after_s": silent_after_s, "lost_after_s": lost_after_s}
        self._client_options = {**(client_options or {}), **limits, "node": node}
        self._on_progress = self._client_options.pop("on_progress", None)
        self._callback_error: Optional[BaseException] = None
        self._waits, self._progress = waits, ""
        self._new_state = functools.partial(
            ds.DispatchState,
            lambda: random.uniform(1.0, 1.25),
            patience_s=patience_s,
            max_attempts=max_attempts,
            connect_timeout_s=min(CONNECT_TIMEOUT_S, silent_after_s),
            has_fallback=fallback is not None,
        )
        self._first_endpoints = tuple(endpoints)
        #: Set while calls are under way: whatever interrupts them leaves state and connections half changed.
        self._is_unfinished, self._state = False, self._new_state()
        self._clients: List[Client] = []
        self._lost: Set[Client] = set()
        self._commands: Deque[ds.Command] = collections.deque()
        self._is_carrying_out, self._look_s = False, 0.0
        self._outcomes: Deque[Tuple[Call, Outcome]] = collections.deque()
        self._to_compute: Optional[Call] = None
        self._wakeup: Optional[Tuple[int, Callable[[], None]]] = None
        self._actions = self._command_actions()
        self._carry_out(self._state.found(ds.ServersFound(self._first_endpoints), time.monotonic()))

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
        self._carry_out(self._state.cancelled(call, time.monotonic()))

    def empty(self, spec: TensorSpec) -> Tensor:
        """A tensor to fill in, in memory shared with a server of this node if one is connected, or can be.

        Where nothing was sent yet, an echo of some bytes makes the connection that a call would make.
        """
        if not self._clients and not self._state.n_open and not self._is_unfinished:
            self.outcome(Call.of("echo", b"empty", key="empty/{}".format(os.urandom(8).hex())))
        for client in self._clients:
            if client.carrier == "memfd":
                found = self._use(client, Client.empty, spec)
                if found is not None:
                    return found
        return Tensor(spec, memoryview(bytearray(spec.nbytes)))

    def call(self, call: Call) -> Reply:
        """One call, start to end; raises its error."""
        outcome = self.outcome(call)
        if isinstance(outcome, AccelError):
            raise outcome
        return outcome

    def outcome(self, call: Call) -> Outcome:
        """The outcome of one call, as of a `map` of it alone; raises what that raises."""
        if self._is_unfinished:
            self._start_again()
        self._is_unfinished = True
        try:
            self._submit(call)
            while not self._outcomes:
                self._step()
            outcome = self._outcomes.popleft()[1]
            self._clear_wait()
            self._is_unfinished = False
        except BaseException:
            self._start_again()
            raise
        return outcome

    def map(
        self,
        calls: Iterable[Optional[Call]],
        window: int = 4,
        *,
        ordered: bool = False,
        pack: Union[int, str] = 1,
    ) -> Generator[Tuple[Call, Outcome], None, None]:
        """Every call with its one outcome; the arguments are those of `Accelerator.map`.

        Raises:
            AuthenticationError: every server refuses this credential; waiting would not help.
            RemoteProtocolError: every server has another version of the protocol.
        """
        source = CallSource(calls, window, ordered, pack, self._takes_stacks, self._pack_bytes)
        with contextlib.closing(self._answers(source, window)) as answers:
            for call, outcome in answers:
                yield from source.settle(call, outcome)

    def _answers(self, source: CallSource, window: int) -> Generator[Tuple[Call, Outcome], None, None]:
        if self._is_unfinished:
            self._start_again()
        self._is_unfinished = True
        try:
            while True:
                while self._state.n_open < window and not self._outcomes:
                    following = source.next()
                    if following is None:
                        break
                    self._submit(following)
                if self._outcomes:
                    self._clear_wait()
                    yield self._outcomes.popleft()
                elif self._state.n_open:
                    self._step()
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
        return bool(self._clients) and all(client.takes_stacks(operation) for client in self._clients)

    def _pack_bytes(self) -> int:
        """Most inputs of a pack that every server that is connected gains from."""
        return min([client.pack_bytes for client in self._clients], default=PACK_BYTES)

    def _submit(self, call: Call) -> None:
        """Take a call; returns when it has left this process, or waits for something else."""
        if call.error is not None:
            self._outcomes.append((call, call.error))
            return
        self._find(False)
        self._carry_out(self._state.submitted(call, time.monotonic()))
        while any([client.has_outgoing for client in self._clients]) and self._wait():
            pass

    def _step(self) -> None:
        """Bring the calls without outcome forward: compute one here, or wait for a moment."""
        if self._to_compute is not None:
            self._compute()
        else:
            self._wait()

    def _abandon(self) -> None:
        self._outcomes.clear()
        self._to_compute = None
        if self._state.n_open:
            self._carry_out(self._state.abandoned(time.monotonic()))
        self._clear_wait()
        self._is_unfinished = False

    def _start_again(self) -> None:
        """Close all connections and forget what was under way; the counts go on."""
        self._is_unfinished = True
        self._clear_wait()
        while self._clients:
            # Known until it is closed: whatever interrupts this, the next one closes it.
            self._clients[-1].close()
            self._clients.pop()
        self._commands.clear()
        self._outcomes.clear()
        self._lost.clear()
        self._to_compute, self._is_carrying_out = None, False
        counts = self._state.counts
        self._state = self._new_state()
        self._state.counts.update(counts)
        found = self._found or ds.ServersFound(self._first_endpoints)
        self._carry_out(self._state.found(found, time.monotonic()))
        self._is_unfinished = False

    # Carrying commands out

    def _command_actions(self) -> Dict[type, Callable[[Any], None]]:
        return {
            ds.ConnectServer: self._connect,
            ds.CloseServer: self._close,
            ds.DoubtServer: lambda order: self._use(self._client_of(order.server), Client.doubt),
            ds.FindServers: lambda order: self._find(True),
            ds.SendCall: self._send,
            ds.RecallCall: lambda order: self._use(self._client_of(order.server), Client.cancel, order.call),
            ds.ComputeLocally: self._note_to_compute,
            ds.DeliverOutcome: self._outcomes.append,
            ds.FailMap: _fail,
            ds.TellWait: lambda order: self._on_wait(order.text),
        }

    def _carry_out(self, commands: Sequence[ds.Command]) -> None:
        """Do what the state ordered, after what it has ordered before."""
        self._commands.extend(commands)
        if self._is_carrying_out:
            return
        self._is_carrying_out = True
        try:
            while self._commands:
                command = self._commands.popleft()
                self._actions[type(command)](command)
        finally:
            self._is_carrying_out = False

    def _connect(self, order: ds.ConnectServer) -> None:
        options = {**self._client_options, "connect_timeout_s": order.timeout_s}
        options["on_progress"] = self._report_progress
        self._note_wait()
        client = Client(order.server, self._credential, **options)
        # Known before it is open, so that it is closed whatever interrupts this.
        self._clients.append(client)
        try:
            client.connect()
        except AccelError as error:
            reraise_from_signal(error)
            self._clients.remove(client)
            self._carry_out(self._state.unreachable(order.server, error, time.monotonic()))
        else:
            self._carry_out(self._state.connected(order.server, time.monotonic()))

    def _close(self, order: ds.CloseServer) -> None:
        client = self._client_of(order.server)
        self._lost.discard(client)
        client.close()
        self._clients.remove(client)

    def _client_of(self, server: Endpoint) -> Client:
        return next(client for client in self._clients if client.endpoint is server)

    def _send(self, order: ds.SendCall) -> None:
        self._use(self._client_of(order.server), Client.submit, order.call, False)

    def _use(self, client: Client, action: Callable[..., _T], *arguments: Any) -> Optional[_T]:
        """Do something with a client, unless its server was lost since that was ordered."""
        if client in self._lost:
            return None
        try:
            return action(client, *arguments)
        except UnavailableError as error:
            reraise_from_signal(error)
            if error is self._callback_error:
                raise
            self._lost.add(client)
            self._carry_out(self._state.lost(client.endpoint, error, time.monotonic()))
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

    def _note_to_compute(self, order: ds.ComputeLocally) -> None:
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
        self._carry_out(self._state.computed(outcome, time.monotonic()))

    def _find(self, is_urgent: bool) -> None:
        """Tell the state the servers of now, if they are others than before."""
        if self._find_servers is None or (not is_urgent and time.monotonic() < self._found_until_s):
            return
        found = self._find_servers(is_urgent)
        self._found_until_s = found.until_s
        if self._found is None or found[:-1] != self._found[:-1]:
            self._found = found
            self._carry_out(self._state.found(found, time.monotonic()))

    # Waiting

    def _wait(self) -> bool:
        """Wait until a server can be heard, or for a moment; tell the state what they say.

        Returns:
            whether there was something, so that waiting again makes sense.
        """
        if len(self._clients) == 1 and self._state.wake_at_s == math.inf and self._wakeup is None:
            client = self._clients[0]
            if not client.has_outgoing and client.n_in_flight and not client.has_answers:
                return self._wait_for(client)
        poll = self._poll()
        is_here = any(client.has_answers for client in self._clients)
        now_s = time.monotonic()
        wait_s = 0.0 if is_here else min(LOOK_S, max(0.0, self._state.wake_at_s - now_s))
        ready = {descriptor for descriptor, _ in poll.poll(wait_s * 1000)}
        is_due = not ready or now_s >= self._look_s
        if is_due:
            self._look_s = now_s + LOOK_S
        for client in list(self._clients):
            if is_due or client.has_answers or client.fileno() in ready:
                self._hear(client)
        if is_due:
            self._note_wait()
            self._find(False)
            self._carry_out(self._state.tick(time.monotonic()))
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
        for client in list(self._clients):
            if client.fileno() in ready:
                self._hear(client)
        self._take_wakeup(ready)

    def _poll(self) -> select.poll:
        poll = select.poll()
        for client in self._clients:
            poll.register(client.fileno(), select.POLLIN | (select.POLLOUT if client.has_outgoing else 0))
        if self._wakeup is not None:
            poll.register(self._wakeup[0], select.POLLIN)
        return poll

    def _take_wakeup(self, ready: Set[int]) -> None:
        if self._wakeup is not None and self._wakeup[0] in ready:
            self._wakeup[1]()

    def _wait_for(self, client: Client) -> bool:
        """`_wait` where a single server has all calls: receiving waits by itself."""
        has_moved = bool(self._use(client, Client.await_bytes))
        self._hear(client, is_new=False)
        now_s = time.monotonic()
        if now_s >= self._look_s or not has_moved:
            self._look_s = now_s + LOOK_S
            self._note_wait()
            self._find(False)
            self._carry_out(self._state.tick(time.monotonic()))
        return has_moved and not self._outcomes

    def _hear(self, client: Client, is_new: bool = True) -> None:
        while client in self._clients:
            was_draining = client.is_draining
            found = self._use(client, Client.arrived, is_new)
            if client.is_draining and not was_draining and client in self._clients:
                self._carry_out(self._state.draining(client.endpoint, time.monotonic()))
            if found is None:
                return
            self._carry_out(self._state.answered(client.endpoint, *found, time.monotonic()))
            # What the socket has is looked at when it says so; TLS may hold more than the socket knows of.
            is_new = client.carrier == "tls"


def _fail(order: ds.FailMap) -> None:
    raise order.error


def _say_nothing(text: str) -> None:
    """The default of `on_wait`."""


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
        pack_bytes: how many bytes of inputs the servers gain from in one pack.
    """

    def __init__(
        self,
        calls: Iterable[Optional[Call]],
        window: int,
        ordered: bool = False,
        pack: Union[int, str] = 1,
        takes_stacks: Callable[[str], bool] = lambda operation: False,
        pack_bytes: Callable[[], int] = lambda: PACK_BYTES,
    ) -> None:
        if pack != "auto" and (not isinstance(pack, int) or pack < 1):
            raise LocalProtocolError("pack is {!r}: a number from 1 or 'auto' expected".format(pack))
        check_window(window)
        self._calls = iter(calls)
        self._is_exhausted = False
        self._pack = pack
        self._takes_stacks, self._pack_bytes = takes_stacks, pack_bytes
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
        """The call to send next; None: nothing now, and, with nothing under way, nothing ever."""
        if self._singles:
            return self._singles.popleft()
        first = self._pull()
        if first is None or self._pack == 1:
            return first
        pack_bytes = self._pack_bytes()
        if not is_packable(first, self._takes_stacks, pack_bytes):
            return first
        return self._packed(first, pack_size(first, self._pack, pack_bytes))

    def settle(self, call: Call, outcome: Outcome) -> Sequence[_Settled]:
        """Take an answer; returns the calls that it settles, with their outcomes, perhaps none yet."""
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

    def _packed(self, first: Call, limit: int) -> Call:
        members = [first]
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


# Packs


def is_packable(call: Call, takes_stacks: Callable[[str], bool], pack_bytes: int = PACK_BYTES) -> bool:
    """Whether a call may travel in a pack: a small one, all by value, of an operation that takes stacks.

    Args:
        takes_stacks: whether the servers say so of an operation that this process does not know.
        pack_bytes: most inputs of a pack; one call has half of that at most, and above half of `PACK_BYTES`
            only matrices of an order up to `SMALL_ORDER`, which a GPU computes together.
    """
    if call.output_uri or not call.inputs or call.error is not None:
        return False
    operation = OPERATIONS.get(call.operation)
    if not (takes_stacks(call.operation) if operation is None else operation.takes_stacks):
        return False
    n_bytes, largest_side = 0, 0
    for item in call.inputs:
        if type(item) is not Tensor or len(item.spec.shape) >= MAX_DIMENSIONS:
            return False
        largest_side = max(largest_side, *item.spec.shape[-2:], 0)
        if item.spec.order == "F" and len(item.spec.shape) > 1 and "numpy" not in sys.modules:
            return False
        n_bytes += item.spec.nbytes
    most_bytes = (pack_bytes if largest_side <= SMALL_ORDER else PACK_BYTES) // 2
    return 0 < n_bytes <= most_bytes


def pack_size(call: Call, pack: Any, pack_bytes: int = PACK_BYTES) -> int:
    """How many calls of this form travel together.

    Args:
        pack: a number, which `LARGE_PACK_BYTES` bound, or "auto".
        pack_bytes: most inputs of a pack of automatic size.
    """
    n_bytes = max(1, sum(item.spec.nbytes for item in call.inputs if type(item) is Tensor))
    if pack != "auto":
        return max(1, min(int(pack), LARGE_PACK_BYTES // n_bytes))
    return max(1, min(MAX_CALLS, pack_bytes // n_bytes))


def same_form(first: Call, other: Call) -> bool:
    """Whether two calls differ in nothing but their keys and the content of their inputs."""
    if (
        other.operation != first.operation
        or len(other.inputs) != len(first.inputs)
        or other.output_uri
        or other.error is not None
        or other.deadline_s != first.deadline_s
        or other.priority != first.priority
        or (other.params is not first.params and other.params != first.params)
    ):
        return False
    for one, two in zip(first.inputs, other.inputs):  # noqa: B905 -- Python 3.8
        if type(two) is not Tensor or (two.spec is not one.spec and two.spec != one.spec):
            return False
    return True


def pack(calls: Sequence[Call]) -> Call:
    """Calls of the same form as one call; its key follows from theirs, so sending it again computes nothing.

    Raises:
        LocalProtocolError: the data of an input does not fit its spec.
    """
    first = calls[0]
    inputs = []
    for position, item in enumerate(first.inputs):
        assert type(item) is Tensor
        spec = TensorSpec(item.spec.dtype, (len(calls), *item.spec.shape))
        parts: List[Any] = [call.inputs[position] for call in calls]
        inputs.append(Tensor(spec, b"".join([_in_c_order(part) for part in parts])))
    return Call(
        _key_of(calls), first.operation, first.params, tuple(inputs), "", first.deadline_s, first.priority
    )


def split(reply: Reply, n_calls: int) -> List[Reply]:
    """The reply to a pack, one for each call, on the same memory; time and bytes are shared out evenly."""
    seconds = {stage: spent_s / n_calls for stage, spent_s in reply.seconds.items()}
    columns = [(name, _slices(tensor, n_calls)) for name, tensor in reply.tensors.items()]
    infos = _infos(reply.info, n_calls)
    bytes_in, bytes_out = reply.bytes_in // n_calls, reply.bytes_out // n_calls
    replies = []
    for position in range(n_calls):
        tensors = {name: column[position] for name, column in columns}
        replies.append(
            Reply(infos[position], tensors, reply.server, reply.device, seconds, bytes_in, bytes_out)
        )
    return replies


def _key_of(calls: Sequence[Call]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for call in calls:
        key = call.key.encode("utf-8", "surrogatepass")
        digest.update(len(key).to_bytes(4, "big") + key)
    return "pack/" + digest.hexdigest()


def _in_c_order(tensor: Tensor) -> Any:
    flat = tensor.flat()
    if tensor.spec.order == "C" or len(tensor.spec.shape) < 2:
        return flat
    return tensor.array().tobytes(order="C")


def _slices(tensor: Tensor, n_calls: int) -> List[Tensor]:
    spec = tensor.spec
    inner = spec.shape[1:]
    if spec.order == "F" and len(spec.shape) > 1:
        return [Tensor.of(array) for array in tensor.array()]
    item_spec = TensorSpec(spec.dtype, inner)
    step = item_spec.nbytes
    view = memoryview(tensor.data)
    if view.ndim != 1 or view.itemsize != 1:
        view = view.cast("B")
    return [Tensor(item_spec, view[at * step : at * step + step]) for at in range(n_calls)]


def _infos(info: Mapping[str, Any], n_calls: int) -> List[Dict[str, Any]]:
    """A list as long as the pack holds one fact per call; everything else is true of each."""
    lists: List[Tuple[str, List[Any]]] = []
    common: Dict[str, Any] = {}
    for name, value in info.items():
        if isinstance(value, (list, tuple)) and len(value) == n_calls:
            lists.append((name, list(value)))
        else:
            common[name] = value
    return [{**common, **{name: values[at] for name, values in lists}} for at in range(n_calls)]

"""Answers: from what a worker said to the message its client gets, and to those that are kept for who asks
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from yarn_accel.core.requests import commands as order
from yarn_accel.operations.registry import OPERATIONS
from yarn_accel.wire import Busy, Cancelled, Failed, Lent, NamedTensor, Placement, Result

if TYPE_CHECKING:
    from yarn_accel.core.requests.events import Failure
    from yarn_accel.pipeline.buffers import Buffers
    from yarn_accel.pipeline.connections import Session
    from yarn_accel.pipeline.counters import Counters
    from yarn_accel.pipeline.work import Work

_MAX_MESSAGE = 2000
_MAX_CURE = 500
_MAX_REASON = 500


class _Answer(NamedTuple):
    """An answer that may be repeated: its message, and its payload where it lies or was copied to."""

    result: Result
    payload: tuple[memoryview, ...]


class Responder:
    """Carries out the commands that are about answers.

    Args:
        sessions: the open connections, by number.
        works: the admitted requests, by number.
        buffers: where results lie.
        counters: what is counted.
        server: how the server is named in results.
        on_over: called with the number of a reply that will never be sent, and False.

    Attributes:
        handlers: by command, who carries it out.
        n_done: requests answered with a result.
    """

    def __init__(
        self,
        sessions: Mapping[int, Session],
        works: Mapping[int, Work],
        buffers: Buffers,
        counters: Counters,
        server: str,
        on_over: Callable[[int, bool], None],
    ) -> None:
        self._sessions = sessions
        self._works = works
        self._buffers = buffers
        self._counters = counters
        self._server = server
        self._on_over = on_over
        self._answers: dict[int, _Answer] = {}
        self.n_done = 0
        self.handlers: dict[type, Callable[[Any], None]] = {
            order.ReplyResult: self._reply,
            order.Repeat: self._repeat,
            order.ReplyFailure: self._reply_failure,
            order.ReplyBusy: self._reply_busy,
            order.ReplyCancelled: self._reply_cancelled,
            order.GrantMemory: self._grant_memory,
            order.Remember: self._remember,
            order.Forget: self._forget,
        }

    def _reply(self, command: order.ReplyResult) -> None:
        work = self._works[command.work]
        result = work.result or self._make_result(work)
        session = self._sessions.get(command.connection)
        if session is None:
            if command.reply:
                self._on_over(command.reply, False)
            return
        request_id = command.request_id
        session.unanswered.discard(request_id)
        self.n_done += 1
        if command.is_duplicate:
            self._count_duplicate("done")
        else:
            self._counters.answered(
                work.request.operation, "done", session.tenant, result.seconds, result.bytes_out
            )
        if result.id != request_id:
            result = result._replace(id=request_id)
        if command.segment:
            assert work.done is not None
            offsets = tuple([area.offset for _, area in work.done.tensors])
            placement = Placement(command.segment, offsets)
            session.send(result._replace(placement=placement), (), command.reply)
        else:
            session.send(result, work.payload, command.reply)

    def _repeat(self, command: order.Repeat) -> None:
        answer = self._answers[command.answer]
        session = self._sessions.get(command.connection)
        if session is None:
            self._on_over(command.reply, False)
            return
        session.unanswered.discard(command.request_id)
        self._count_duplicate("done")
        result = answer.result._replace(id=command.request_id)
        session.send(result, answer.payload, command.reply)

    def _reply_failure(self, command: order.ReplyFailure) -> None:
        session = self._sessions.get(command.connection)
        if session is None:
            return
        work = self._works.get(command.work)
        request = work.request if work is not None else session.request
        operation = request.operation if request is not None else "unknown"
        session.unanswered.discard(command.request_id)
        self.fail(session, command.request_id, command.failure, operation, command.is_duplicate)

    def fail(
        self, session: Session, request_id: int, failure: Failure, operation: str, is_duplicate: bool = False
    ) -> None:
        """Answer a request with a failure."""
        outcome = "rejected" if failure.kind == "rejected" else "failed"
        if is_duplicate:
            self._count_duplicate(outcome)
        else:
            known = operation if operation in OPERATIONS else "unknown"
            self._counters.answered(known, outcome, session.tenant, {}, 0)
        kind, code, message, cure, transient = failure
        text = "".join(char if char.isprintable() else " " for char in message)
        session.send(Failed(request_id, kind, code, text[:_MAX_MESSAGE], cure[:_MAX_CURE], transient))

    def _reply_busy(self, command: order.ReplyBusy) -> None:
        session = self._sessions.get(command.connection)
        if session is None:
            return
        if command.request_id in session.unanswered:
            session.unanswered.discard(command.request_id)
            self._counters.add("busy", 1, session.tenant)
        session.send(Busy(command.request_id, command.retry_after_s, command.reason[:_MAX_REASON]))

    def _reply_cancelled(self, command: order.ReplyCancelled) -> None:
        session = self._sessions.get(command.connection)
        if session is not None:
            session.unanswered.discard(command.request_id)
            self._counters.add("cancelled")
            session.send(Cancelled(command.request_id))

    def _grant_memory(self, command: order.GrantMemory) -> None:
        session = self._sessions.get(command.connection)
        if session is None:
            return
        segment = self._buffers.by_id[command.segment]
        if command.request_id or command.segment not in session.shared:
            session.shared.add(command.segment)
            grant = Lent(command.request_id, segment.id, segment.n_bytes)
            session.send(grant, fd=segment.fd)

    def _remember(self, command: order.Remember) -> None:
        work = self._works[command.work]
        result = work.result or self._make_result(work)
        payload = work.payload
        if command.is_copy:
            payload = tuple([memoryview(bytes(part)) for part in payload])
        self._answers[command.answer] = _Answer(result, payload)

    def _forget(self, command: order.Forget) -> None:
        self._answers.pop(command.answer, None)

    def _make_result(self, work: Work) -> Result:
        """The message for the client, and the payload that goes with it."""
        done, request = work.done, work.request
        assert done is not None
        bytes_out = 0
        tensors: list[NamedTensor] = []
        payload: list[memoryview] = []
        by_id, is_written = self._buffers.by_id, bool(request.output_uri)
        for name, area in done.tensors:
            offset, spec = area.offset, area.spec
            n_bytes = spec.nbytes
            bytes_out += n_bytes
            if not is_written:
                tensors.append(NamedTensor(name, spec))
                payload.append(by_id[area.segment].view[offset : offset + n_bytes])
        queue_s = work.started_s - work.ready_s
        seconds = {
            "read": work.read_s,
            "queue": queue_s if queue_s > 0.0 else 0.0,
            "compute": done.compute_s,
            "write": work.write_s,
            "total": time.monotonic() - work.arrived_s,
        }
        work.payload = tuple(payload)
        work.result = Result(
            request.id,
            _with_conversions(done.info, work.plan.converted),
            tuple(tensors),
            self._server,
            work.device,
            seconds,
            work.bytes_in,
            bytes_out,
        )
        return work.result

    def _count_duplicate(self, outcome: str) -> None:
        self._counters.add(outcome)
        self._counters.add("duplicates")


def _with_conversions(info: Mapping[str, Any], converted: str) -> Mapping[str, Any]:
    """The facts of a computation, with what reading its inputs changed."""
    if not converted:
        return info
    return {
        **info,
        "converted": "; ".join([converted, *([info["converted"]] if "converted" in info else [])]),
    }

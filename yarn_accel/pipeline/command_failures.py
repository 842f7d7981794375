"""What follows when a command of the request machine could not be carried out: an event, or the end of a
connection, so that nobody waits for what will never happen.
"""

from __future__ import annotations

from yarn_accel.core.requests import commands as order
from yarn_accel.core.requests import events as event
from yarn_accel.pipeline.work import failure_of

_OF_STORAGE = (order.Look, order.LookAtOutput, order.Read, order.Write)
_OF_CONNECTION = (
    order.Admit,
    order.GrantMemory,
    order.Receive,
    order.Repeat,
    order.ReplyBusy,
    order.ReplyCancelled,
    order.ReplyFailure,
    order.ReplyResult,
    order.Skip,
)


def connection_to_end(command: order.Command) -> int:
    """The connection that does not get what it waits for, or cannot be read on; 0: none.

    It has to end before the machine gets the events of `events_of`: what it was still sending is over then.
    """
    return command.connection if isinstance(command, _OF_CONNECTION) else 0


def events_of(command: order.Command, error: Exception, now_s: float) -> list[event.Event]:
    """The events that the machine waits for after a command; `error` is the reason they give."""
    if isinstance(command, order.Run):
        failure = failure_of(error)
        results = [event.WorkResult(work, failure, 0.0, 0) for work in command.works]
        return [event.Finished(command.worker, tuple(results), now_s)]
    if isinstance(command, _OF_STORAGE):
        return [event.StorageFailed(command.work, failure_of(error), now_s)]
    if isinstance(command, order.CreateSegment):
        return [event.SegmentFailed(command.segment, now_s)]
    if isinstance(command, order.ReplyResult | order.Repeat) and command.reply:
        return [event.Sent((command.reply,), False, now_s)]
    return []

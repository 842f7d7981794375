"""Jobs from ``qstat -f -t -x`` or its text, queues from ``-Q -f -1``, the server from ``-B -f -1``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import timezone, tzinfo
from typing import Any

from torque_sched.batch.torque.parse.jobs import job_from_record
from torque_sched.batch.torque.parse.records import Parsed, Record, convert, decoded
from torque_sched.batch.torque.parse.request import parse_tokens
from torque_sched.batch.torque.parse.status_objects import build_from_reply, is_reply
from torque_sched.batch.torque.parse.text import read_text
from torque_sched.batch.torque.parse.xml import build_from_xml
from torque_sched.errors import DocumentError, ModelError, RecordError
from torque_sched.model.cluster import Job, Queue, QueueName, Resources, Server
from torque_sched.model.units import boolean, count, duration_s

_FAMILIES = ("available", "assigned", "max", "min", "default")
_NUMBERS = {
    "max_running": "max_running",
    "max_user_run": "max_user_run",
    "max_group_run": "max_group_run",
    "max_queuable": "max_queuable",
    "max_user_queuable": "max_user_queuable",
    "total_jobs": "total_jobs",
}
_SECONDS = {"keep_completed": "keep_completed_s"}
_QUEUE_TEXTS = {"queue_type": "queue_type"}
_QUEUE_FLAGS = {"enabled": "is_enabled", "started": "is_started"}
_SERVER_TEXTS = {"server_state": "state", "default_queue": "default_queue", "pbs_version": "version"}
_SERVER_FLAGS = {
    "scheduling": "scheduling",
    "query_other_jobs": "query_other_jobs",
    "moab_array_compatible": "holds_beyond_array_limits",
}
_SERVER_SECONDS = {
    "scheduler_iteration": "scheduler_iteration_s",
    "node_check_rate": "node_check_rate_s",
    "job_stat_rate": "job_stat_rate_s",
}


def parse_jobs(
    data: bytes | str,
    command: str = "qstat",
    zone: tzinfo = timezone.utc,
    seen: dict[str, Job] | None = None,
) -> Parsed[Job]:
    """Jobs of a whole ``qstat -f`` output, XML or text, or of a whole reply of pbs_server.

    Args:
        data: what the command printed. No text at all is an empty list; XML must be there in full.
        command: the command's name for messages.
        zone: the server's time zone; only text times need it.
        seen: jobs of the XML output before by their text, so that unchanged ones are not read again; it
            is replaced by this output's. An empty dict to begin with.

    Raises:
        DocumentError: the output is unusable as a whole.
    """
    build = functools.partial(job_from_record, zone=zone)
    if is_reply(data):
        return build_from_reply(data, "Job", build)
    text = decoded(data, command)
    if text.lstrip()[:1] == "<":
        return build_from_xml(text, "Job", command, build, seen)
    return convert(read_text(text, "Job", command), build)


def parse_queues(data: bytes | str, command: str = "qstat -Q") -> Parsed[Queue]:
    """Queues of a whole ``qstat -Q -f`` output (text; Torque has no XML for it), or of a pbs_server's reply.

    Raises:
        DocumentError: the output is unusable as a whole.
    """
    if is_reply(data):
        return build_from_reply(data, "Queue", queue_from_record)
    return convert(read_text(data, "Queue", command), queue_from_record)


def parse_server(data: bytes | str, command: str = "qstat -B") -> Server:
    """The server of a whole ``qstat -B -f`` output, or of a whole reply of pbs_server.

    Raises:
        DocumentError: the output is unusable, or its one record is damaged.
    """
    if is_reply(data):
        parsed = build_from_reply(data, "Server", server_from_record)
    else:
        parsed = convert(read_text(data, "Server", command), server_from_record)
    return one_server(parsed, command)


def one_server(parsed: Parsed[Server], command: str) -> Server:
    """The one server that was read.

    Raises:
        DocumentError: it is damaged, or there is another number of them.
    """
    if parsed.problems:
        raise DocumentError(parsed.problems[0].message, cure=parsed.problems[0].cure)
    if len(parsed.items) != 1:
        raise DocumentError(
            f"{command} names {len(parsed.items)} servers instead of one", cure="is pbs_server running?"
        )
    return parsed.items[0]


def queue_from_record(record: Record) -> Queue:
    """The queue a record describes; attributes not used here are in ``extra``.

    Raises:
        RecordError: a limit or a switch is garbled; a queue with an unknown limit must not be used.
    """
    reader = _Attributes(record)
    fields = reader.shared()
    fields |= reader.texts(_QUEUE_TEXTS) | reader.flags(_QUEUE_FLAGS)
    fields["priority"] = reader.take("Priority", count, 0)
    fields["features_required"] = reader.take("features_required", _names, ())
    return Queue(name=QueueName(record.name), extra=reader.rest, **fields)


def server_from_record(record: Record) -> Server:
    """The server a record describes; attributes not used here are in ``extra``.

    Raises:
        RecordError: a limit or a switch is garbled.
    """
    reader = _Attributes(record)
    fields = reader.shared()
    fields |= reader.texts(_SERVER_TEXTS) | reader.flags(_SERVER_FLAGS) | reader.seconds(_SERVER_SECONDS)
    fields["next_job_number"] = reader.take("next_job_number", count, None)
    fields["managers"] = reader.take("managers", _names, ())
    fields["operators"] = reader.take("operators", _names, ())
    fields["tokens"] = reader.take("tokens", _tokens, ())
    return Server(name=record.name, extra=reader.rest, **fields)


def _tokens(text: str) -> tuple[tuple[str, float], ...]:
    """A text nobody understands gives no tokens: jobs that want some wait, the others do not."""
    try:
        return parse_tokens(text)
    except RecordError:
        return ()


def _names(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


class _Attributes:
    """Takes the known attributes of one record and keeps the rest."""

    def __init__(self, record: Record) -> None:
        self._place = record.place
        self.rest = dict(record.attributes)

    def take(self, name: str, read: Any, default: Any) -> Any:
        text = self.rest.pop(name, None)
        if text is None:
            return default
        try:
            return read(text)
        except (ModelError, ValueError) as error:
            message = getattr(error, "message", str(error))
            raise RecordError(f"{self._place}: {name}: {message}", cure="look at it with qmgr") from error

    def shared(self) -> dict[str, Any]:
        fields = {field: self.take(name, count, None) for name, field in _NUMBERS.items()}
        fields |= self.seconds(_SECONDS)
        fields["state_count"] = self.take("state_count", _state_count, {})
        for family in _FAMILIES:
            prefix = f"resources_{family}."
            names = [name for name in self.rest if name.startswith(prefix)]
            texts = {name[len(prefix) :]: self.rest.pop(name) for name in names}
            fields[f"resources_{family}"] = Resources(texts)
        return fields

    def seconds(self, names: Mapping[str, str]) -> dict[str, Any]:
        return {field: self.take(name, duration_s, None) for name, field in names.items()}

    def texts(self, names: Mapping[str, str]) -> dict[str, Any]:
        return {field: self.rest.pop(name) for name, field in names.items() if name in self.rest}

    def flags(self, names: Mapping[str, str]) -> dict[str, Any]:
        # A queue that prints no "started" has never been started; the same holds for the other switches.
        switched_off = {"enabled", "started"}
        fields = {}
        for name, field in names.items():
            if name in self.rest or name in switched_off:
                fields[field] = self.take(name, boolean, False)
        return fields


def _state_count(text: str) -> dict[str, int]:
    """``Transit:0 Queued:2 ...``; words that are not of that form are left out."""
    pairs = (word.partition(":") for word in text.split())
    return {state: count(number) for state, colon, number in pairs if colon and number}

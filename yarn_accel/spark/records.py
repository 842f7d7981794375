"""Records in, one result for each out: what `map_partitions` and `map_in_pandas` do in a task.

Nothing here is Spark's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import reprlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from yarn_accel.client.accelerator import Accelerator, is_bad_record
from yarn_accel.client.calls import Call, Reply
from yarn_accel.errors import AccelError, ConfigError, LocalProtocolError, RejectedError

MODES = ("PERMISSIVE", "FAILFAST")
"""Named as those of Spark's readers."""

_FALLBACK_DEVICE = "cpu:fallback"
#: The most bad records that wait until a record that was sent has its reply.
_MAX_WAITING = 1000


class RecordResult(NamedTuple):
    """The result of one record.

    Attributes:
        record: the record, or what ``keep`` made of it.
        value: what ``result`` returned; None for a bad record.
        error_code: a short stable word, such as ``not-finite``; None for a good record.
        error_message: the cause and its cure, for people; None for a good record.
    """

    record: Any
    value: Any
    error_code: str | None = None
    error_message: str | None = None


@dataclasses.dataclass(frozen=True)
class RecordMapper:
    """Makes calls of records and results of replies; travels from the driver to the tasks.

    Attributes:
        call: makes the call of a record; runs in the task.
        result: makes the value of a record and its reply; runs in the task. The reply's arrays are views of
            memory that is used again: copy what is kept.
        mode: see `check_mode`.
        window, pack: as `Accelerator.map`.
    """

    call: Callable[[Any], Call]
    result: Callable[[Any, Reply], Any]
    mode: str = "PERMISSIVE"
    window: int | None = None
    pack: int | str | None = None

    def results(
        self, accel: Accelerator, records: Iterable[Any], count: Callable[[str, int], None]
    ) -> Iterator[RecordResult]:
        """One result for each record, as they finish; as many calls as the window says are under way.

        Args:
            count: adds to a counter.

        Raises:
            RejectedError: a record is bad, and the mode is FAILFAST.
            AccelError: a failure that is not the record's: Spark shall try the task again.
        """
        return _MappedRecords(self, records, count).results(accel, self.window, self.pack)


class TaskRecords:
    """The records of one task on their way: those that wait for replies, and those that are bad before that.

    Args:
        mode: see `check_mode`.
        count: adds to a counter.
        most_bad: so many bad records wait until a record that was sent has its reply.

    Attributes:
        are_all_taken: no record is left that `calls` has not seen.
    """

    def __init__(
        self,
        records: Iterable[Any],
        mode: str,
        count: Callable[[str, int], None],
        most_bad: int = _MAX_WAITING,
    ) -> None:
        self.count = count
        self.are_all_taken = False
        self._records = iter(records)
        self._mode = mode
        self._most_bad = most_bad
        self._n_open = 0
        self._bad: deque[RecordResult] = deque()

    def calls(self) -> Iterator[Call]:
        """The calls of the next records, until these end or `reject` says so."""
        raise NotImplementedError

    def settle(self, tag: Any, outcome: Reply | AccelError) -> Iterator[RecordResult]:
        """The results of the call with this tag."""
        raise NotImplementedError

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing is left to be sent."""
        return self.are_all_taken

    def results(
        self, accel: Accelerator, window: int | None, pack: int | str | None = None
    ) -> Iterator[RecordResult]:
        """One result for each record, as they finish."""
        try:
            while not self.is_exhausted:
                outcomes: Any = accel.map(self.calls(), window, pack=pack)
                with contextlib.closing(outcomes):
                    for call, outcome in outcomes:
                        yield from self.settle(call.tag, outcome)
                        yield from self._take_bad()
                yield from self._take_bad()
        finally:
            self.count("cancelled", self._n_open)

    def taken(self) -> Iterator[Any]:
        """The records that are left, each counted."""
        for record in self._records:
            self._n_open += 1
            self.count("records_in", 1)
            yield record
        self.are_all_taken = True

    def reject(self, record: Any, error: AccelError | ValueError) -> bool:
        """A record is bad before it is sent; whether `calls` is to end, as many of these wait."""
        self._bad.append(rejected_record(record, error, self._mode))
        return len(self._bad) >= self._most_bad

    def done(self, record: Any, value: Any) -> RecordResult:
        """A record has its value."""
        return self._settled("done", RecordResult(record, value))

    def rejected(self, record: Any, error: AccelError | ValueError) -> RecordResult:
        """A record that was sent is bad."""
        return self._settled("rejected", rejected_record(record, error, self._mode))

    def _take_bad(self) -> Iterator[RecordResult]:
        while self._bad:
            yield self._settled("rejected", self._bad.popleft())

    def _settled(self, counter: str, result: RecordResult) -> RecordResult:
        self._n_open -= 1
        self.count(counter, 1)
        return result


class _MappedRecords(TaskRecords):
    """A call for each record."""

    def __init__(
        self, mapper: RecordMapper, records: Iterable[Any], count: Callable[[str, int], None]
    ) -> None:
        super().__init__(records, mapper.mode, count)
        self._mapper = mapper

    def calls(self) -> Iterator[Call]:
        for record in self.taken():
            try:
                call = self._mapper.call(record)
            except (AccelError, ValueError) as error:
                if self.reject(record, error):
                    return
                continue
            if not isinstance(call, Call):
                what = f"the function for a record's call returned {type(call).__name__!r}"
                raise LocalProtocolError(what, cure="return yarn_accel.client.Call.of(operation, *inputs)")
            self.count("sent", 1)
            yield dataclasses.replace(call, tag=record)

    def settle(self, tag: Any, outcome: Reply | AccelError) -> Iterator[RecordResult]:
        if isinstance(outcome, AccelError):
            yield self.rejected(tag, outcome)
            return
        count_reply(outcome, self.count)
        try:
            value = self._mapper.result(tag, outcome)
        except (AccelError, ValueError) as error:
            yield self.rejected(tag, error)
        else:
            yield self.done(tag, value)


def rejected_record(record: Any, error: AccelError | ValueError, mode: str) -> RecordResult:
    """The result of a bad record.

    Raises:
        AccelError: it is not the record's fault, or the mode is FAILFAST.
    """
    bad: AccelError
    if isinstance(error, AccelError):
        bad = error
    else:
        bad = RejectedError("invalid-record", str(error) or type(error).__name__)
    if not is_bad_record(bad):
        raise bad
    code, message = bad.code, str(bad)
    if mode == "FAILFAST":
        what = f"record {reprlib.repr(record)} is bad ({code}): {message}"
        raise RejectedError(code, what) from error
    return RecordResult(record, None, code, message)


def count_reply(reply: Reply, count: Callable[[str, int], None]) -> None:
    """Count the bytes of a reply's inputs, and whether this process computed it itself."""
    count("bytes", reply.bytes_in)
    count("cpu_fallback", int(reply.device == _FALLBACK_DEVICE))


def check_mode(mode: str) -> str:
    """The mode in upper case: PERMISSIVE gives bad records an error, FAILFAST fails the job at the first.

    Raises:
        ConfigError: there is no such mode.
    """
    if mode.upper() not in MODES:
        raise ConfigError(f"mode {mode!r} is unknown", cure="use one of {}".format(", ".join(MODES)))
    return mode.upper()

"""Records in, one result for each out: bad ones, errors that are not theirs, counters, memory."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from yarn_accel.client import Call, ConfigError, RejectedError, StorageError, UnavailableError, connect
from yarn_accel.errors import LocalProtocolError
from yarn_accel.spark.records import RecordMapper, check_mode


def square_of(record):
    """Zero is bad input for this function, and what is negative for the operation."""
    if record == 0:
        raise ValueError("a zero")
    return Call.of("cholesky", np.eye(2) * record)


def trace(record, reply):
    return float(reply.arrays()["l"].trace())


def counting(counts):
    """Adds amounts by name."""
    return lambda name, amount: counts.update({name: amount})


def run(records, call=square_of, result=trace, counts=None, **options):
    mapper = RecordMapper(call, result, **options)
    counts = Counter() if counts is None else counts
    with connect("inline", count_calls=False) as accel:
        return list(mapper.results(accel, records, counting(counts))), counts


def test_each_record_has_one_result_and_is_counted():
    results, counts = run([4, 0, -1, 9])
    assert [each[3] for each in results if each.record == 0] == ["a zero"]
    assert {each.record: (each.value, each.error_code) for each in results} == {
        4: (4.0, None),
        0: (None, "invalid-record"),
        -1: (None, "not-positive-definite"),
        9: (6.0, None),
    }
    assert counts["records_in"] == 4 == counts["done"] + counts["rejected"]
    assert (counts["done"], counts["sent"], counts["cancelled"]) == (2, 3, 0)
    assert counts["bytes"] == 2 * 32
    assert counts["cpu_fallback"] == 2


def test_a_file_that_is_not_there_is_a_bad_record(tmp_path):
    path = tmp_path / "none.npy"
    ((_, _, code, message),), counts = run([path], call=lambda each: Call.of("lu", each))
    assert code == "storage"
    assert "none.npy" in message
    assert counts["rejected"] == 1


def test_a_result_that_is_refused_is_a_bad_record():
    def refuse(record, reply):
        raise RejectedError("too-small", "below 1", cure="scale it")

    results, counts = run([4], result=refuse)
    assert results[0][2:] == ("too-small", "below 1: scale it")
    assert (counts["done"], counts["rejected"]) == (0, 1)


@pytest.mark.parametrize(
    "error", [UnavailableError("nobody"), StorageError("a DataNode went", transient=True), KeyError("path")]
)
def test_what_is_not_the_record_s_fault_ends_the_task(error):
    def fail(record):
        raise error

    counts = Counter()
    with pytest.raises(type(error)):
        run([1], call=fail, counts=counts)
    assert counts["records_in"] == counts["cancelled"] == 1


def test_failfast_names_the_first_bad_record():
    with pytest.raises(RejectedError, match=r"record -1 is bad \(not-positive-definite\)") as raised:
        run([4, -1, 9], mode="FAILFAST")
    assert raised.value.code == "not-positive-definite"


def test_the_word_for_a_mode_is_known_in_any_case():
    assert check_mode("failfast") == "FAILFAST"
    with pytest.raises(ConfigError, match="PERMISSIVE, FAILFAST"):
        check_mode("dropmalformed")


def test_another_thing_than_a_call_is_named():
    with pytest.raises(LocalProtocolError, match="'dict'"):
        run([1], call=lambda record: {})


def test_many_bad_records_in_a_row_do_not_pile_up():
    """Records are taken as results are taken: no list of all that are bad is made first."""
    taken = 0

    def records():
        nonlocal taken
        for _ in range(10_000):
            taken += 1
            yield 0

    mapper, counts = RecordMapper(square_of, trace), Counter()
    with connect("inline", count_calls=False) as accel:
        results = mapper.results(accel, records(), counting(counts))
        next(results)
        assert taken <= 1_000
        assert sum(1 for _ in results) == 9_999
    assert counts["rejected"] == 10_000


def test_what_is_left_when_the_reader_stops_is_cancelled():
    mapper, counts = RecordMapper(square_of, trace, window=3), Counter()
    with connect("inline", count_calls=False) as accel:
        results = mapper.results(accel, iter(range(1, 100)), counting(counts))
        next(results)
        results.close()
    assert counts["records_in"] == counts["done"] + counts["cancelled"] < 10
    assert counts["done"] == 1

"""Lines with checksums: what was torn is left out, what is damaged is an error."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from yarn_accel.core.tasks.service.journal import decode_journal, encode_records
from yarn_accel.core.tasks.service.records import AppClosed, decode_record, encode_record
from yarn_accel.errors import StorageError

RECORDS = ({"r": "a", "n": 1}, {"r": "b", "text": "zwei\nZeilen, grün"}, {"r": "c", "list": [1, [2.5, None]]})
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.dictionaries(st.text(), values, max_size=4), max_size=6))
def test_what_is_written_is_read(records):
    content = encode_records(records)
    decoded = decode_journal(content, "journal")
    assert decoded.records == tuple(records)
    assert (decoded.n_bytes, decoded.torn_bytes) == (len(content), 0)
    assert content.count(b"\n") == len(records)


def test_a_line_that_was_torn_is_left_out_wherever_it_was_torn():
    content = encode_records(RECORDS)
    ends = [0, *(at + 1 for at, byte in enumerate(content) if byte == ord("\n"))]
    for cut in range(len(content)):
        decoded = decode_journal(content[:cut], "journal")
        whole = max(end for end in ends if end <= cut)
        assert decoded.records == RECORDS[: ends.index(whole)]
        assert (decoded.n_bytes, decoded.torn_bytes) == (whole, cut - whole)


def test_a_damaged_line_is_one_error_with_its_place():
    content = encode_records(RECORDS)
    for at, byte in enumerate(content[:-1]):
        if byte == ord("\n"):
            continue
        damaged = content[:at] + bytes([byte ^ 1]) + content[at + 1 :]
        line = content[:at].count(b"\n") + 1
        if damaged.count(b"\n") == content.count(b"\n"):
            with pytest.raises(StorageError, match=rf"hdfs:///j, line {line}: damaged.*restore the file"):
                decode_journal(damaged, "hdfs:///j")


def test_infinity_is_no_record():
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_records([{"x": float("inf")}])


def test_records_of_another_version_are_refused():
    assert decode_record(encode_record(AppClosed("a"))) == AppClosed("a")
    for record in ({"r": "new"}, {"r": "closed", "app": "a", "more": 1}, {}):
        with pytest.raises(StorageError, match="of a kind that is not known here"):
            decode_record(record)

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.factorize.manifest import (
    DTYPES,
    FIELDS,
    OPERATIONS,
    Entry,
    UniqueEntries,
    format_entry,
    key_of,
    parse_entry,
    records,
)
from yarn_accel.errors import RejectedError

GOOD = "m1\thdfs://master:8020/in/m1.bin\tfloat64\t512x512\tF\tlu\thdfs://master:8020/out/m1.npz"

keys = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,30}", fullmatch=True)
paths = st.from_regex(r"(/[A-Za-z0-9._ %-]{1,12}){1,4}", fullmatch=True)
uris = st.one_of(paths.map(lambda p: "file://" + p), paths.map(lambda p: "hdfs://master:8020" + p))
entries = st.builds(
    Entry,
    key=keys,
    uri=uris,
    dtype=st.sampled_from(sorted(DTYPES)),
    shape=st.tuples(st.integers(1, 1 << 20), st.integers(1, 1 << 20)),
    order=st.sampled_from("CF"),
    operation=st.sampled_from(OPERATIONS),
    output_uri=uris.map(lambda uri: uri + ".npz"),
)


@given(entries)
def test_what_was_written_is_read_back(entry):
    assert parse_entry(format_entry(entry) + "\r\n") == entry


@given(st.text(max_size=200))
def test_text_that_is_no_entry_is_rejected_with_a_cure(text):
    with pytest.raises(RejectedError) as caught:
        parse_entry(text, "line 7")
    assert caught.value.code == "manifest"
    assert caught.value.message.startswith("line 7: ")
    assert caught.value.cure
    assert "\n" not in str(caught.value)


@given(st.text(max_size=100))
def test_every_line_has_a_stable_key(text):
    assert key_of(text) == key_of(text)
    assert "\t" not in key_of(text)
    assert key_of(text)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("key", "a b", "letters, digits"),
        ("uri", "/in/m1.bin", "hdfs://HOST:PORT/PATH"),
        ("uri", "ftp://x/y", "hdfs://HOST:PORT/PATH"),
        ("uri", "hdfs://[x/y", "hdfs://HOST:PORT/PATH"),
        ("dtype", "int8", "float32, float64"),
        ("shape", "512", "rows x columns"),
        ("shape", "0x5", "from 1 to"),
        ("order", "Z", "C, F"),
        ("operation", "svd", "lu, qr, cholesky"),
        ("output_uri", "hdfs://master/out/m1.bin", ".npz"),
    ],
)
def test_a_wrong_field_is_named_with_its_cure(field, value, said):
    fields = GOOD.split("\t")
    fields[FIELDS.index(field)] = value
    with pytest.raises(RejectedError) as caught:
        parse_entry("\t".join(fields), "line 3")
    assert f"line 3: {field} is" in caught.value.message
    assert said in caught.value.cure


def test_the_number_of_fields_is_named():
    with pytest.raises(
        RejectedError, match=r"number of fields is 1 in 'garbage'.*separated by TABs: key, uri"
    ):
        parse_entry("garbage")


def test_an_endless_line_is_not_repeated():
    with pytest.raises(RejectedError) as caught:
        parse_entry("x" * 100_000)
    assert len(str(caught.value)) < 200


def test_comments_and_blank_lines_are_no_records_but_count_as_lines():
    assert list(records(["# head\n", "\n", "a\n", "  \n", "b"])) == [(3, "a"), (5, "b")]


def test_a_byte_order_mark_and_carriage_returns_are_no_part_of_a_record():
    assert list(records(["\ufeffa\r\n", "\r\n", "b\r"])) == [(1, "a"), (3, "b")]
    assert list(records(["\ufeff# head\r\n", "\ufeffb\n"])) == [(2, "\ufeffb")]


@pytest.mark.parametrize(
    ("key", "output", "said"),
    [
        ("m1", "hdfs://nn/out/other.npz", "line 9: its key 'm1' is that of line 4"),
        ("m2", "hdfs://nn/out/m1.npz", "line 9: its output_uri 'hdfs://nn/out/m1.npz' is that of line 4"),
        ("m2", "hdfs://nn//out/./m1.npz", "its output_uri 'hdfs://nn/out/m1.npz' is that of line 4"),
        ("m2", "hdfs://other/out/m1.npz", ""),
    ],
)
def test_the_second_of_one_key_or_output_names_the_first(key, output, said):
    unique = UniqueEntries()
    entry = dataclasses.replace(parse_entry(GOOD), key="m1", output_uri="hdfs://nn/out/m1.npz")
    unique.check(entry, 4, "line 4")
    second = dataclasses.replace(entry, key=key, output_uri=output)
    if not said:
        unique.check(second, 9, "line 9")
        return
    with pytest.raises(RejectedError, match=re.escape(said)) as caught:
        unique.check(second, 9, "line 9")
    assert caught.value.code == "doubled-record"
    assert caught.value.cure == "give each record a key and an output of its own"


def test_only_keys_are_compared_where_outputs_are_not_used():
    unique = UniqueEntries(has_output=False)
    entry = parse_entry(GOOD)
    unique.check(entry, 1, "line 1")
    unique.check(dataclasses.replace(entry, key="another"), 2, "line 2")


def test_the_key_of_a_broken_line_is_its_first_field_when_that_is_one():
    assert key_of("m1\tbroken") == "m1"
    assert key_of("this is garbage").startswith("line-")


def test_the_size_of_the_file_follows_from_the_entry():
    assert parse_entry(GOOD).n_bytes == 512 * 512 * 8

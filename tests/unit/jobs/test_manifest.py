"""Lines of a manifest, the matrices that are made for one, and the sample with what is expected of it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jobs.factorize
from jobs.factorize.job import FactorizeJob, run_factorize
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
from jobs.factorize.matrices import (
    FLAWS,
    LIMIT,
    balance,
    drawn,
    make_bytes,
    manifest_of,
    plan_flawed,
    plan_matrices,
    ratios,
)
from jobs.runners.local import InlineRunner
from yarn_accel.errors import RejectedError
from yarn_accel.storage import Store
from yarn_accel.uris import file_uri

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
    with pytest.raises(RejectedError, match=r"fields is 1 in 'garbage'.*separated by TABs: key, uri"):
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


def array(matrix):
    flat = np.frombuffer(make_bytes(matrix), DTYPES[matrix.dtype])
    return flat.reshape((matrix.n, matrix.n), order=matrix.order)


def test_the_demo_has_every_combination_and_300_megabytes():
    planned = plan_matrices(60, 256, 1500)
    assert len({(m.operation, m.dtype, m.order) for m in planned}) == 12
    assert (min(m.n for m in planned), max(m.n for m in planned)) == (256, 1500)
    assert sum(m.n_bytes for m in planned) > 300_000_000
    assert len({m.key for m in planned}) == 60


def test_equal_seeds_give_equal_bytes_and_other_seeds_other_ones():
    first, again = (plan_matrices(3, 8, 16, seed=1) for _ in range(2))
    assert [make_bytes(m) for m in first] == [make_bytes(m) for m in again]
    assert make_bytes(plan_matrices(3, 8, 16, seed=2)[0]) != make_bytes(first[0])


def test_cholesky_gets_symmetric_positive_definite_matrices():
    for matrix in plan_matrices(24, 8, 40):
        if matrix.operation == "cholesky":
            values = array(matrix).astype(float)
            assert np.array_equal(values, values.T)
            assert np.linalg.eigvalsh(values).min() > 0


def test_each_flaw_is_what_it_says():
    flawed = {matrix.flaw: matrix for matrix in plan_flawed(16)}
    assert set(flawed) == set(FLAWS)
    assert np.isnan(array(flawed["nan"])).sum() == 1
    assert np.linalg.eigvalsh(array(flawed["indefinite"])).min() < 0
    assert len(make_bytes(flawed["short"])) < flawed["short"].n_bytes


@given(st.integers(1, 40), st.integers(1, 9))
def test_dealing_keeps_every_matrix(count, n_tasks):
    planned = plan_matrices(count, 10, 99)
    assert sorted(balance(planned, n_tasks), key=lambda m: m.number) == list(planned)


def test_dealing_makes_runs_of_about_equal_work():
    balanced = balance(plan_matrices(48, 256, 1500), 8)
    work = [sum(m.n**3 for m in balanced[start : start + 6]) for start in range(0, 48, 6)]
    assert max(work) < 1.5 * min(work)


def factors_of(matrix, operation):
    from scipy import linalg

    if operation == "lu":
        lu, piv = linalg.lu_factor(matrix)
        return {"lu": lu, "piv": piv}
    if operation == "qr":
        q, r = linalg.qr(matrix, mode="economic")
        return {"q": q, "r": r}
    return {"l": linalg.cholesky(matrix, lower=True)}


@pytest.mark.parametrize("operation", ["lu", "qr", "cholesky"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_good_factors_pass_and_damaged_ones_do_not(operation, dtype):
    rng = np.random.default_rng(5)
    matrix = rng.standard_normal((40, 40))
    matrix = (matrix @ matrix.T + 4 * np.eye(40) if operation == "cholesky" else matrix).astype(dtype)
    eps = float(np.finfo(dtype).eps) / 2
    factors = factors_of(matrix, operation)
    good = ratios(matrix.astype(float), factors, operation, eps)
    assert max(good.values()) < LIMIT
    factors = {name: values.copy() for name, values in factors.items()}
    next(iter(factors.values()))[1, 0] += 0.5
    assert max(ratios(matrix.astype(float), factors, operation, eps).values()) > LIMIT


def test_a_sample_is_drawn_by_its_seed():
    lines = manifest_of(plan_matrices(12, 8, 16), "file:///in", "file:///out").splitlines()
    entries = [parse_entry(line) for line in lines]
    some = drawn(entries, sample=2, seed=3)
    assert some == drawn(entries, sample=2, seed=3)
    assert len(some) == 2
    assert drawn(entries) == entries


FOLDER = Path(jobs.factorize.__file__).parent


def test_the_sample_gives_what_is_expected(tmp_path):
    for matrix in plan_matrices(12, 16, 48):
        path = tmp_path / "factorize" / "matrices" / f"{matrix.key}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make_bytes(matrix))
    manifest = (FOLDER / "sample.txt").read_text().replace("file:///tmp/factorize-sample", file_uri(tmp_path))
    with InlineRunner() as runner:
        outcome = run_factorize(runner, Store(), manifest, FactorizeJob(n_tasks=2), lambda _: None)
    done = [
        (row.key, "done", row.operation, row.dtype, f"{row.shape[0]}x{row.shape[1]}")
        for row in outcome.results
    ]
    rejected = [(reject.key, "rejected", reject.code) for reject in outcome.rejects]
    found = sorted("\t".join(fields) for fields in (*done, *rejected))
    assert found == (FOLDER / "expected.txt").read_text().splitlines()

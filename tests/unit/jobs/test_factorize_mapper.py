from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.factorize.manifest import Done, Reject, format_row, parse_row
from jobs.factorize.mapper import FactorizeOptions, factorize
from yarn_accel.client.calls import Reference, Reply
from yarn_accel.client.current_attempt import CurrentAttempt
from yarn_accel.errors import RejectedError, StorageError, UnavailableError

ATTEMPT = CurrentAttempt("job_1_0001", "task_1_0001_m_000003", "attempt_1_0001_m_000003_1", 3, "w2")


def line(key: str, operation: str = "lu") -> str:
    return f"{key}\tfile:///in/{key}\tfloat64\t4x4\tF\t{operation}\tfile:///out/{key}.npz\n"


def reply(info=None, device="cpu") -> Reply:
    seconds = {"read": 0.1, "queue": 0.2, "compute": 0.3, "write": 0.4, "total": 1.0}
    return Reply(info or {}, {}, "w1", device, seconds, 128, 256)


class FakeServer:
    """Answers like a server: keeps what was asked, fails at given calls, answers out of order."""

    def __init__(self, failures=None, device="cpu", lag=2):
        self.calls = []
        self.failures = failures or {}
        self.device = device
        self.lag = lag

    def __call__(self, calls):
        waiting = []
        for call in calls:
            self.calls.append(call)
            waiting.append(call)
            if len(waiting) > self.lag:
                yield self.answer(waiting.pop())
        while waiting:
            yield self.answer(waiting.pop(0))

    def answer(self, call):
        for (operation, part), error in self.failures.items():
            if call.operation == operation and part in str(call.inputs[0]):
                return call, error
        info = {"residual": 0.5} if call.operation == "residual" else {"n": 4}
        return call, reply(info, self.device)


def run(lines, server=None, read_bytes=None, keep=None, residual="all", **options):
    counters = Counter()

    def count(name, amount):
        counters[name] += amount

    server = server or FakeServer()
    read_bytes = read_bytes or (lambda uri: bytes(128))
    wanted = FactorizeOptions(residual=residual, **options)
    rows = factorize(lines, server, read_bytes, ATTEMPT, wanted, count, keep)
    return list(rows), counters


def test_each_line_becomes_a_factorization_and_then_a_residual_of_what_was_written():
    server = FakeServer()
    rows, counters = run([line("a", "qr")], server)
    first, second = server.calls
    assert (first.operation, first.output_uri) == ("qr", "file:///out/a.npz")
    assert first.inputs[0].spec.shape == (4, 4)
    assert (second.operation, second.params) == ("residual", {"operation": "qr"})
    assert second.inputs == (first.inputs[0], Reference("file:///out/a.npz", None))
    seconds, places = (0.1, 0.2, 0.3, 0.4, 1.0), ("w1", "cpu", "w2", ATTEMPT.attempt_id)
    assert rows == [Done("a", "qr", "float64", (4, 4), 0.5, seconds, 128, *places)]
    assert counters == {"records_in": 1, "sent": 2, "done": 1, "bytes": 128}


def test_a_sample_is_the_first_record_and_each_sixteenth_after_it():
    rows, counters = run([line(f"m{n:02d}") for n in range(33)], residual="sample")
    assert sorted(row.key for row in rows if row.residual is not None) == ["m00", "m16", "m32"]
    assert (counters["sent"], counters["done"]) == (36, 33)


def test_factors_that_are_kept_are_not_written_by_the_server_and_checked_by_value():
    kept, server = [], FakeServer()
    lines = [line("a"), line("b").replace("file:///out/b.npz", "-")]
    rows, _ = run(lines, server, keep=lambda *pair: kept.append(pair))
    assert {call.output_uri for call in server.calls} == {""}
    assert sorted(key for key, _ in kept) == sorted(row.key for row in rows) == ["a", "b"]
    assert all(len(call.inputs) == 1 for call in server.calls), "the fake's factors are no tensors"


def test_keys_are_the_same_in_every_attempt_and_differ_between_records():
    twin = CurrentAttempt(ATTEMPT.job_id, ATTEMPT.task_id, "attempt_1_0001_m_000003_0", 3, "w4")
    first, second = FakeServer(), FakeServer()
    options = FactorizeOptions(residual="all")
    for server, attempt in ((first, ATTEMPT), (second, twin)):
        list(factorize([line("a"), line("b")], server, lambda uri: b"", attempt, options, lambda *_: None))
    keys = [call.key for call in first.calls]
    assert keys == [call.key for call in second.calls]
    assert len(set(keys)) == 4


def test_by_value_rejects_a_file_of_the_wrong_length_and_a_missing_one():
    def read(uri):
        if uri.endswith("short"):
            return b"x" * 100
        raise StorageError(f"{uri}: no such file")

    rows, counters = run([line("short"), line("gone")], read_bytes=read, is_by_value=True)
    assert [(row.key, row.code) for row in rows] == [("short", "wrong-length"), ("gone", "storage")]
    assert "has 100 bytes, float64 4x4 needs 128" in rows[0].message
    assert counters == {"records_in": 2, "rejected": 2}


@pytest.mark.parametrize("step", ["lu", "residual"])
def test_a_bad_record_is_rejected_with_its_reason_and_the_rest_goes_on(step):
    server = FakeServer({(step, "/b"): RejectedError("not-finite", "NaN at [1, 2]")})
    rows, counters = run([line("a"), line("b"), "garbage\n", line("c")], server)
    rejects = {row.key: row.code for row in rows if isinstance(row, Reject)}
    assert rejects.pop("b") == "not-finite"
    assert list(rejects.values()) == ["manifest"]
    assert {row.key for row in rows if isinstance(row, Done)} == {"a", "c"}
    assert (counters["records_in"], counters["done"], counters["rejected"]) == (4, 2, 2)


@pytest.mark.parametrize("lag", [0, 1, 5])
def test_strict_names_the_first_in_the_input_whatever_was_answered_first(lag):
    failures = {("lu", f"/{key}"): RejectedError("not-finite", f"NaN in {key}") for key in "bd"}
    server = FakeServer({**failures, ("residual", "/a"): RejectedError("broken-file", "a is torn")}, lag=lag)
    with pytest.raises(RejectedError, match=r"record [ab] \("):
        run([line(key) for key in "cabdefgh"], server, is_strict=True)
    assert len(server.calls) < 16


@pytest.mark.parametrize(
    "error", [UnavailableError("nobody answers"), StorageError("slow disk", transient=True)]
)
def test_a_failure_that_is_not_the_records_fault_fails_the_task(error):
    with pytest.raises(type(error)):
        run([line("a")], FakeServer({("lu", "/a"): error}))


@given(st.lists(st.sampled_from(["good", "garbage", "bad", "late"]), max_size=20), st.integers(0, 5))
def test_every_record_gives_exactly_one_row(kinds, lag):
    server = FakeServer(
        {("lu", "/bad"): RejectedError("not-finite", "NaN"), ("residual", "/late"): StorageError("gone")},
        lag=lag,
    )
    lines = ["garbage" if kind == "garbage" else line(f"{kind}{i}") for i, kind in enumerate(kinds)]
    rows, counters = run(lines, server)
    assert len(rows) == len(lines)
    assert counters["records_in"] == counters["done"] + counters["rejected"] == len(lines)
    assert counters["done"] == sum(kind == "good" for kind in kinds)


names = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)
seconds = st.floats(0, 1000).map(lambda value: round(value, 4))
done_rows = st.builds(
    Done,
    key=names,
    operation=st.sampled_from(["lu", "qr"]),
    dtype=st.just("float32"),
    shape=st.tuples(st.integers(1, 9999), st.integers(1, 9999)),
    residual=st.sampled_from([None, 0.0, 0.25, 31.5, float("inf")]),
    seconds=st.tuples(*[seconds] * 5),
    n_bytes=st.integers(0, 1 << 40),
    server=names,
    device=st.sampled_from(["cpu", "cpu:fallback"]),
    node=names,
    attempt=names,
)
reject_rows = st.builds(
    Reject, key=names, code=names, message=st.text(st.characters(codec="utf-8")), node=names, attempt=names
)


@given(st.one_of(done_rows, reject_rows))
def test_a_row_is_one_line_and_is_read_back(row):
    text = format_row(row)
    assert "\n" not in text
    again = parse_row(text + "\n")
    assert format_row(again) == text
    if isinstance(row, Done):
        assert again == row


def test_a_residual_that_is_not_a_number_never_looks_good():
    row = parse_row(
        format_row(Done("a", "lu", "float32", (1, 1), float("nan"), (0.0,) * 5, 4, "s", "cpu", "n", "t"))
    )
    assert row.residual == float("inf")


@pytest.mark.parametrize("text", ["", "a\tdone", "a\tmaybe\tx\ty\tz\tw"])
def test_a_line_that_is_not_ours_is_refused(text):
    with pytest.raises(ValueError, match="not a line of the factorize job"):
        parse_row(text)

"""Bars that overlap in time lie in lanes of their own."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from yarn_accel.report.charts import lanes

SPANS = st.tuples(st.floats(0, 100), st.floats(0.1, 30)).map(lambda each: (each[0], sum(each)))


@settings(max_examples=examples(100))
@given(st.lists(SPANS, max_size=20))
def test_bars_in_one_lane_never_overlap(spans):
    found, n_lanes = lanes(spans)
    assert max(found, default=0) == n_lanes - 1
    ends = {}
    for lane, (start, end) in sorted(zip(found, spans, strict=True), key=lambda each: each[1]):
        assert ends.get(lane, 0.0) <= start
        ends[lane] = end

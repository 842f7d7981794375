from yarn_accel.adapters.metric_families import CONTENT_TYPE, Vocabulary, exposition

WORDS = Vocabulary("yarn_accel_test_")


def test_gauges_and_counters_as_text():
    text = exposition(
        [
            WORDS.gauge(
                "open_files",
                "files that are open",
                ("floor",),
                [(("1",), 2), (("2",), True), (('a"\n\\',), 1), (("3",), None)],
            ),
            WORDS.counter("steps", "steps made", (), [((), 7)]),
        ]
    ).decode()
    assert 'yarn_accel_test_open_files{floor="1"} 2.0\n' in text
    assert 'yarn_accel_test_open_files{floor="2"} 1.0\n' in text
    assert r'{floor="a\"\n\\"} 1.0' in text
    assert "3" not in text, "what is not known has no sample"
    assert "# TYPE yarn_accel_test_steps_total counter\nyarn_accel_test_steps_total 7.0\n" in text
    assert CONTENT_TYPE.startswith("text/plain")

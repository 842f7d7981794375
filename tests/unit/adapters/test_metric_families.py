from yarn_accel.adapters.metric_families import CONTENT_TYPE, Vocabulary, exposition, value_at

WORDS = Vocabulary("yarn_accel_test_")


def test_gauges_and_counters_as_text():
    text = exposition(
        [
            WORDS.gauge("open_files", "files that are open", ("floor",), [(("1",), 2), (("2",), True)]),
            WORDS.counter("steps", "steps made", (), [((), 7)]),
        ]
    ).decode()
    assert 'yarn_accel_test_open_files{floor="1"} 2.0\n' in text
    assert 'yarn_accel_test_open_files{floor="2"} 1.0\n' in text
    assert "# TYPE yarn_accel_test_steps_total counter\nyarn_accel_test_steps_total 7.0\n" in text
    assert CONTENT_TYPE.startswith("text/plain")


def test_what_is_not_known_has_no_sample_and_zero_has_one():
    family = WORDS.gauge("open_files", "files", ("floor",), [(("1",), None), (("2",), 0)])
    assert [(sample.labels, sample.value) for sample in family.samples] == [({"floor": "2"}, 0)]


def test_labels_are_escaped():
    family = WORDS.gauge("open_files", "files", ("floor",), [(('a"\n\\',), 1)])
    assert r'{floor="a\"\n\\"} 1.0' in exposition([family]).decode()


def test_a_value_is_found_where_its_keys_lead():
    values = {"a": {"b": 0}, "c": 1}
    assert value_at(values, ("a", "b")) == 0
    assert value_at(values, ("a", "x")) is None
    assert value_at(values, ("c", "b", "a")) is None

"""Figures of applications: measured first, corrected, kept, and never believed blindly."""

import math

import pytest

from tests.fixtures.task_events import TaskEnded
from tests.fixtures.task_world import MB, TaskWorld, app_spec, resource_spec
from yarn_accel.core.tasks import learning
from yarn_accel.core.tasks.commands import StartTask
from yarn_accel.core.tasks.events import EndReason, IoSampled, TaskMeasurement
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policies import make
from yarn_accel.core.tasks.values import AppFigures, Form, FormFigures
from yarn_accel.errors import ConfigError

SPEC = app_spec("knn", cpu=(100, 0), gpu=(13, 3))
UNKNOWN = app_spec("knn", cpu=(100, 0), gpu=(13, 3), is_declared=False)


def measure(store, read_s, compute_s, spec=UNKNOWN, alone=True, predicted_s=None):
    measured = TaskMeasurement(1024 * MB, read_s, compute_s, alone)
    store.observe(spec, Form.GPU, "", measured, predicted_s)
    return store.profile(spec, Form.GPU, "")


def test_what_was_declared_is_the_oldest_measurement():
    store = FigureStore()
    assert store.profile(SPEC, Form.GPU, "")[:3] == (13, 3, 16)
    assert measure(store, 15, 3, SPEC)[:2] == (14, 3)
    assert measure(store, 15, 3, SPEC)[:2] == (15, 3)


def test_the_median_bears_outliers():
    store = FigureStore()
    for read_s in (13, 13, 400, 13, 0.1, 13):
        profile = measure(store, read_s, 3)
    assert profile[:2] == (13, 3)
    assert profile.request_bytes_per_s == pytest.approx(1024 * MB / 13)


def test_figures_follow_a_change_within_the_window():
    store = FigureStore()
    for read_s in [10] * 30 + [20] * 8:
        profile = measure(store, read_s, 3)
    assert profile.read_s == 20


def test_others_can_only_make_a_task_read_longer():
    """Alone it took 13 s: 26 s beside others change nothing; 11 s beside others say that is out of date."""
    store = FigureStore()
    for _ in range(3):
        measure(store, 13, 3)
    assert [measure(store, 26, 3, alone=False).read_s for _ in range(30)] == [13] * 30
    for _ in range(8):
        profile = measure(store, 11, 3, alone=False)
    assert profile.read_s == 11


def test_errors_of_the_prediction_do_not_add_up():
    """A short read is over before others notice it; correcting by a predicted stretch drove it to nothing."""
    store = FigureStore()
    for _ in range(1000):
        profile = measure(store, 0.04, 23.6, alone=False, predicted_s=25)
    assert profile[:2] == (0.04, 23.6)


def test_what_was_never_alone_is_the_lower_quartile():
    store = FigureStore()
    for read_s in (40, 14, 30, 26, 13, 50, 33, 41):
        profile = measure(store, read_s, 3, alone=False)
    assert profile.read_s == 26
    assert measure(store, 12, 3).read_s == 12


def test_a_declaration_stands_until_a_task_was_alone():
    """All tasks of a herd read slowly: that says nothing of one that is alone."""
    store = FigureStore()
    spec = app_spec("knn", gpu=(13, 3))
    assert {measure(store, 66, 3, spec, alone=False).read_s for _ in range(30)} == {13}
    assert measure(store, 15, 3, spec).read_s == 14


def test_figures_are_by_name_form_and_kind_of_accelerator():
    store = FigureStore()
    measured = TaskMeasurement(1024 * MB, 5, 1, True)
    store.observe(UNKNOWN, Form.GPU, "fast", measured, None)
    assert store.profile(UNKNOWN, Form.GPU, "") is None
    assert store.profile(UNKNOWN, Form.CPU, "fast") is None
    assert store.profile(UNKNOWN, Form.GPU, "fast")[:2] == (5, 1)
    assert store.profile(app_spec("other", gpu=(1, 1), is_declared=False), Form.GPU, "fast") is None


def test_tasks_that_read_nothing_or_take_no_time_have_figures():
    store = FigureStore()
    store.observe(UNKNOWN, Form.CPU, "", TaskMeasurement(0, 0, 0, True), None)
    profile = store.profile(UNKNOWN, Form.CPU, "")
    assert profile.alone_s > 0
    assert profile.request_bytes_per_s == 0
    assert FigureStore.from_document(store.to_document()).profile(UNKNOWN, Form.CPU, "") == profile


def test_what_is_believed_stands_beside_what_happened():
    store = FigureStore()
    measure(store, 13, 3, predicted_s=20)
    measure(store, 19, 3, alone=False, predicted_s=20)
    (belief,) = store.beliefs()
    assert (belief.name, belief.form, belief.n_measured) == ("knn", Form.GPU, 2)
    assert (belief.predicted_s, belief.happened_s) == (20, 19)
    assert belief.mean_error == pytest.approx((0.2 + 0.1) / 2)


def test_a_document_brings_the_figures_back():
    store = FigureStore()
    for read_s in (13, 14, 15):
        measure(store, read_s, 3)
    document = store.to_document()
    again = FigureStore.from_document(document)
    assert again.to_document() == document
    assert measure(again, 99, 99)[:2] == (14, 3)


@pytest.mark.parametrize("value", [-1, math.inf, math.nan, None, "13", True, 10**400])
@pytest.mark.parametrize("key", ["read_s", "compute_s", "split_bytes"])
def test_a_bad_number_is_named_with_its_application_and_key(key, value):
    entry = {"form": "gpu", "split_bytes": 1e9, "read_s": 13, "compute_s": 3} | {key: value}
    with pytest.raises(ConfigError, match=f"figures of 'knn', gpu, {key}: expected a number"):
        FigureStore.from_document({"version": 1, "applications": {"knn": [entry]}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"read_s": 0, "compute_s": 0}, "figures of 'knn', gpu: read_s and compute_s are both 0"),
        ({"split_bytes": 0}, "split_bytes: expected a number above 0"),
        ({"form": "tpu"}, "figures of 'knn', form: expected cpu or gpu, found 'tpu'"),
        ({"form": ["gpu"]}, "form: expected cpu or gpu"),
        ({"form": "cpu", "accelerator": "fast"}, "accelerator: expected a kind of GPU"),
        ({"n_measured": 0}, "n_measured: expected a whole number"),
        ({"sped_up": 3}, "expected the keys accelerator, compute_s"),
    ],
)
def test_a_bad_entry_is_one_clear_error(change, message):
    entry = {"form": "gpu", "split_bytes": 1e9, "read_s": 13, "compute_s": 3} | change
    with pytest.raises(ConfigError, match=message):
        FigureStore.from_document({"version": 1, "applications": {"knn": [entry]}})


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"version": 2},
        {"version": 1, "applications": []},
        {"version": 1, "applications": {"a": 3}},
    ],
)
def test_what_is_no_document_is_one_clear_error(document):
    with pytest.raises(ConfigError, match="figures"):
        FigureStore.from_document(document)


def test_an_entry_twice_is_an_error():
    entry = {"form": "gpu", "split_bytes": 1e9, "read_s": 13, "compute_s": 3}
    with pytest.raises(ConfigError, match="figures of 'knn', gpu: given twice"):
        FigureStore.from_document({"version": 1, "applications": {"knn": [entry, entry]}})


def test_measurements_and_declarations_are_checked_where_they_are_made():
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="measured read_s"):
            TaskMeasurement(1, bad, 1, True)
        with pytest.raises(ConfigError, match="read_s"):
            FormFigures(bad, 1)
        with pytest.raises(ConfigError, match="split_bytes"):
            AppFigures(bad, {})


def starts(commands):
    return [(c.task.split("-")[0], c.form, c.reason) for c in commands if isinstance(c, StartTask)]


def done(made, task, alone=True):
    """A task ends with the figures it was made with."""
    name, worker = next((name, w) for name, w in made.workers.items() if task in w.running)
    form, _ = worker.running.pop(task)
    times = {Form.CPU: (100, 0), Form.GPU: (13, 3)}[form]
    measured = TaskMeasurement(1024 * MB, *times, alone)
    made.apply([TaskEnded(task, name, EndReason.DONE, made.now_s, measured)])


@pytest.mark.parametrize("name", ["model", "hdas", "hdas+"])
def test_the_first_task_of_each_form_is_measured_alone(name):
    made = TaskWorld(make(name), lambda task, form: 16)
    made.join(resource_spec("n1"), resource_spec("n2"))
    made.submit(UNKNOWN)
    made.now_s = 1
    commands = starts(made.decide())
    # One task for each form, on a node of its own; nothing else disturbs them.
    assert [(app, form) for app, form, _ in commands] == [("knn", Form.GPU), ("knn", Form.CPU)]
    assert all(reason.startswith("measured first: nobody reads") for _, _, reason in commands)
    made.now_s = 17
    done(made, "knn-0000")
    commands = starts(made.decide())
    # GPU tasks are known now; the node where the form cpu is measured stays quiet.
    assert [form for _, form, _ in commands].count(Form.GPU) == 4
    assert all(command.resource == "n1" for _, command in made.log[2:])


def test_a_first_task_does_not_wait_for_ever_for_a_quiet_node():
    made = TaskWorld(make("hdas"), lambda task, form: 16)
    made.join(resource_spec("n1"))
    made.apply([IoSampled("n1", 50 * MB, 2, 0.0, 0.0)])
    made.submit(UNKNOWN)
    assert starts(made.decide()) == []
    made.now_s = 30
    assert starts(made.decide())[0][2] == "measured first: no node was without readers in time"


def test_unknown_figures_do_not_stop_an_application_nor_others():
    """While one task is measured, others of that form get what nobody else can use, after the quiet time."""
    made = TaskWorld(make("hdas"), lambda task, form: 3000)
    made.join(resource_spec("n1", cores=3, gpus=0))
    made.submit(app_spec("rs", cpu=(0, 2600), is_declared=False))
    assert len(starts(made.decide())) == 1
    made.now_s = 29
    assert starts(made.decide()) == []
    made.now_s = 31
    assert [reason for *_, reason in starts(made.decide())] == [
        "not measured yet; nobody else can use this place"
    ] * 2


def test_a_first_task_that_fails_is_followed_by_another():
    made = TaskWorld(make("hdas"), lambda task, form: 16)
    made.join(resource_spec("n1"))
    made.submit(app_spec("a", gpu=(1, 2), is_declared=False, n_tasks=2))
    made.decide()

    made.end("a-0000", EndReason.FAILED)
    assert [reason.partition(":")[0] for *_, reason in starts(made.decide())] == ["measured first"]
    made.run()
    assert len(made.done) == 2


def test_figures_from_before_need_no_first_task():
    store = FigureStore()
    measure(store, 13, 3)
    made = TaskWorld(make("hdas"), lambda task, form: 16, store)
    made.join(resource_spec("n1"))
    made.submit(app_spec("knn", gpu=(13, 3), is_declared=False))
    assert len(starts(made.decide())) == 4


def test_corrections_can_be_switched_off():
    made = TaskWorld(make("hdas", {"learns": False}), lambda task, form: 16)
    made.join(resource_spec("n1"))
    made.submit(SPEC)
    made.decide()
    done(made, "knn-0000")
    assert made.policy.figures.beliefs() == ()


def test_a_document_of_others_yields_to_what_was_measured_here():
    others = FigureStore()
    measure(others, 99, 99)
    measure(others, 50, 5, app_spec("bp", gpu=(1, 1), is_declared=False))
    store = FigureStore()
    measure(store, 13, 3)
    store.take_over(others.to_document())
    assert store.profile(UNKNOWN, Form.GPU, "")[:2] == (13, 3)
    assert {belief.name: belief.read_s for belief in store.beliefs()} == {"bp": 50, "knn": 13}
    assert [belief.name for belief in store.beliefs(("bp", "unheard-of"))] == ["bp"]
    assert store.measured_here == {"knn"}
    before = store.to_document()
    with pytest.raises(ConfigError):
        store.take_over({"version": 1, "applications": {"knn": 3}})
    assert store.to_document() == before


def test_the_names_that_were_measured_longest_ago_are_forgotten(monkeypatch):
    monkeypatch.setattr(learning, "MAX_NAMES", 3)
    store = FigureStore()
    for name in "abcad":
        measure(store, 1, 1, app_spec(name, gpu=(1, 1), is_declared=False))
    assert list(store.to_document()["applications"]) == ["c", "a", "d"]
    assert store.measured_here == {"c", "a", "d"}
    document = {**store.to_document()}
    document["applications"] = {f"n{i}": document["applications"]["c"] for i in range(5)}
    store.take_over(document)
    assert list(store.to_document()["applications"]) == ["c", "a", "d"]

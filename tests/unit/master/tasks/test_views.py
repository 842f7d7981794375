"""The part of the page about applications of tasks, and their metrics."""

import copy

import pytest

from tests.fixtures.page_reader import Reader
from tests.unit.master import test_metrics
from tests.unit.master.tasks.scenes import busy_world, state_with, task_state
from tests.unit.master.test_page import EVIL, rows
from yarn_accel.master import page as pages
from yarn_accel.master.status_documents import Query
from yarn_accel.master.tasks import views
from yarn_accel.report.task_tables import MAX_ROWS

TASKS = task_state(busy_world())
BELIEF = {
    "form": "gpu",
    "accelerator": "a100",
    "split_bytes": 1 << 20,
    "read_s": 0.5,
    "compute_s": 2.0,
    "n_measured": 3,
    "predicted_s": 2.6,
    "happened_s": 2.9,
    "mean_error": 0.12,
}


def page(state):
    return pages.page(state, Query(), "", views.sections(state["tasks"], state["at"]))


def samples(state):
    return test_metrics.samples(state, views.families(state["tasks"]))


def read(**changes):
    return Reader(page(state_with({**copy.deepcopy(TASKS), **changes})))


def test_applications_are_shown_with_shares_and_delays():
    late, early = rows(read(), "Applications of tasks")
    assert late[:2] == ["late", "running"]
    counts = TASKS["apps"]["late"]["tasks"]
    assert late[3] == str(counts["running"])
    assert late[4].startswith(f"{counts['done']} of 300")
    assert late[6] == str(TASKS["apps"]["late"]["cores"])
    assert late[8] == f"{100 * TASKS['apps']['late']['share']:.0f} %"
    assert late[9] == "", "it is not known"
    assert early[:2] == ["early", "done"]
    assert early[4].startswith("4 of 4")


def test_each_worker_is_drawn_over_time_and_all_together():
    use = copy.deepcopy(TASKS["use"])
    use["workers"]["n1"]["bytes_per_s"] = [None, 5e6, 2.5e6]
    reader = read(use=use)
    charts = reader.texts("svg", "use")
    assert len(charts) == 1 + len(TASKS["use"]["workers"])
    assert "all workers together" in charts[0]
    (chart,) = [text for text in charts if text.startswith("n1:")]
    assert "GPUs" in chart
    assert "cores" in chart
    assert "2.4 MiB/s" in chart
    n_curves = [3 if worker["n_gpus"] else 2 for worker in TASKS["use"]["workers"].values()]
    assert len(reader.all("path", "curve")) == 2 + sum(n_curves)


def test_workers_and_figures_have_rows():
    reader = read(figures={"knn": [BELIEF]})
    (row,) = rows(reader, "Figures")
    assert row == ["knn", "gpu (a100)", "1.0 MiB", "0.5", "2", "3", "2.6", "2.9", "12 %"]
    workers = {row[0]: row for row in rows(reader, "Workers over time")}
    assert workers["n1"][1] == "there"
    assert workers["n1"][2].endswith(" of 4")


def test_markup_in_names_is_text():
    app, worker = TASKS["apps"]["late"], TASKS["workers"]["n1"]
    use = copy.deepcopy(TASKS["use"])
    use["workers"][EVIL] = use["workers"]["n1"]
    reader = read(
        apps={EVIL: {**app, "error": EVIL, "state": EVIL}},
        workers={EVIL: {**worker, "problem": EVIL}},
        figures={EVIL: [{**BELIEF, "accelerator": EVIL}]},
        use=use,
        problems=[EVIL],
        policy=EVIL,
    )
    assert len(reader.all("script")) == 1, "our own"
    shown = EVIL.replace("\u202e", "\ufffd")
    assert rows(reader, "Applications of tasks")[0][0] == shown
    assert rows(reader, "Figures")[0][0] == shown
    assert rows(reader, "Workers over time")[0][-1] == shown
    assert any(text.startswith(shown) for text in reader.texts("svg", "use"))
    assert "\u202e" not in page(state_with({**TASKS, "problems": [EVIL]}))


def test_many_applications_are_cut():
    ended = {f"a{n}": TASKS["ended"]["early"] for n in range(3 * MAX_ROWS)}
    reader = read(ended=ended)
    found = rows(reader, "Applications of tasks")
    assert len(found) == MAX_ROWS
    assert found[1][0] == f"a{3 * MAX_ROWS - 1}", "the last one that ended comes first"
    assert "201 more are left out" in reader.texts("section")[0]


def test_a_service_that_has_not_read_its_journal_says_so():
    state = state_with({"problems": ["the task service has not read its journal yet"]})
    assert "has not read its journal" in page(state)
    assert not any(name.startswith("task") for name in samples(state))


def test_metrics_count_and_name_nobody():
    found = samples(state_with(TASKS))
    counts = TASKS["apps"]["late"]["tasks"]
    assert found["tasks"] == {(state,): n for state, n in counts.items()}
    assert found["task_applications"] == {("running",): 1}
    assert found["task_workers"] == {(): len(TASKS["workers"])}
    assert found["task_cores"] == {(): sum(each["n_cores"] for each in TASKS["workers"].values())}
    assert found["task_cores_in_use"] == {(): sum(each["cores"] for each in TASKS["workers"].values())}
    assert found["task_attempts_total"] == {("done", "cpu"): 7, ("failed", "gpu"): 1}
    assert found["task_attempt_seconds_total"][("done", "cpu")] == 30.5
    assert found["task_journal_failing"] == {(): 0}
    assert found["task_core_seconds_total"] == {("ann",): 30.5}
    assert found["task_gpu_seconds_total"] == {("ann",): 2.0}
    assert found["task_read_bytes_total"] == {("ann",): 4096}
    assert "task_delay_ratio" not in found, "it is not known"


@pytest.mark.parametrize("n_apps", [1, 200])
def test_metrics_are_as_many_however_many_applications_there_are(n_apps):
    apps = {f"a{n}": {**TASKS["apps"]["late"], "delay": 1.0 + n} for n in range(n_apps)}
    found = samples(state_with({**TASKS, "apps": apps}))
    assert sum(len(each) for name, each in found.items() if name.startswith("task")) == 24
    assert found["task_delay_ratio"] == {(): float(n_apps)}


def dag_row(**changes):
    """A DAG that runs, as the status has it."""
    facts = {
        "class": "high",
        "may_interrupt": False,
        "is_paused": False,
        "sd": 0.7514,
        "own_makespan_s": 80.0,
    }
    counts = {"n_moved": 3, "n_interrupted": 1, "lost_s": 2.5}
    dag = {**facts, **counts, "predicted_end_at": None}
    return {**TASKS["apps"]["late"], "dag": {**dag, **changes}}


def test_dags_are_shown_with_class_progress_slowdown_and_end():
    state = state_with({**copy.deepcopy(TASKS), "apps": {"flow-1": dag_row(), "late": TASKS["apps"]["late"]}})
    state["tasks"]["apps"]["flow-1"]["dag"]["predicted_end_at"] = state["at"] + 90
    text = page(state)
    (row,) = rows(Reader(text), "DAGs")
    counts = TASKS["apps"]["late"]["tasks"]
    n_done = f"{counts['done']} of {sum(counts.values())}"
    assert row[:3] == ["flow-1", "high", "running"]
    assert row[5] == f"{n_done}{n_done} tasks are done", "beside a bar"
    assert row[6:8] == ["0.751", "1 min 20 s"]
    assert row[9:] == [
        "1 min 30 s",
        "3 tasks moved to another worker before they started; 1 attempts interrupted, after 2.5 s together",
    ]
    assert "unfairness 0.000 (mean deviation 0.000 of the mean SD) of 1" in text
    assert [each[0] for each in rows(Reader(text), "Applications of tasks")] == ["late", "early"]


def test_a_dag_that_is_paused_or_not_planned_yet():
    text = page(
        state_with(
            {
                **TASKS,
                "apps": {"flow-1": {**dag_row(sd=None, own_makespan_s=None), "state": "paused"}},
                "ended": {},
            }
        )
    )
    assert "Applications of tasks" not in text
    (row,) = rows(Reader(text), "DAGs")
    assert row[2] == "paused"
    assert row[6:8] == ["", ""]
    assert "unfairness" not in text


def test_without_dags_there_is_no_part_about_them():
    assert ">DAGs" not in page(state_with(TASKS))

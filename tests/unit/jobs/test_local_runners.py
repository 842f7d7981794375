"""Both jobs with the two runners that need no Hadoop: the same input gives the same outcome with each."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from jobs.entry import parse_stderr
from jobs.factorize.job import FactorizeJob, factors_of, good_entries, parts_uri, run_factorize, write_outcome
from jobs.factorize.manifest import key_of
from jobs.factorize.matrices import (
    GARBAGE_LINE,
    LIMIT,
    balance,
    make_bytes,
    manifest_of,
    plan_flawed,
    plan_matrices,
    verify,
)
from jobs.images.job import ImagesJob, run_images
from jobs.images.make_input import PatchPlan, patches, purity, write_files
from jobs.runners.local import InlineRunner, LocalRunner, LocalTask, path_of
from jobs.runners.step import Step
from yarn_accel.client import SequenceFileReader, SequenceFileWriter
from yarn_accel.client.typed_bytes import encode_typed_pair
from yarn_accel.errors import JobError, StartupError, StorageError
from yarn_accel.storage import Store
from yarn_accel.uris import file_uri

#: Each task of the local one is a process, and computes the same: few tests need that in `make test`.
LOCAL_IS_SLOW = pytest.mark.parametrize(
    "runner", ["inline", pytest.param("local", marks=pytest.mark.slow)], indirect=True
)
RUNNERS = ("inline", "local")


def by_reference_and_by_value(slow: bool) -> pytest.MarkDecorator:
    """Both runners, whose mappers send URIs or bytes; one of the local runner's is slow."""
    cases = [(kind, is_by_value) for kind in RUNNERS for is_by_value in (False, True)]
    marks = {("local", slow): pytest.mark.slow}
    marked = [pytest.param(*each, marks=marks.get(each, ())) for each in cases]
    return pytest.mark.parametrize(("runner", "is_by_value"), marked, indirect=["runner"])


BAD = {
    "bad-nan": "not-finite",
    "bad-indefinite": "not-positive-definite",
    "bad-short": "wrong-length",
    "bad-missing": "storage",
    key_of(GARBAGE_LINE): "manifest",
}


def silent(_: str) -> None:
    """Report nothing."""


@pytest.fixture(scope="module")
def runners():
    """The two runners, open; the server of the local runner runs for the whole module."""
    with InlineRunner() as inline, LocalRunner(python=sys.executable) as local:
        yield {"inline": inline, "local": local}


@pytest.fixture(params=RUNNERS)
def runner(request, runners):
    return runners[request.param]


@pytest.fixture
def run_matrices(runner, tmp_path):
    """Run a manifest of small matrices, good ones and one of each flaw."""
    store = Store()
    input_uri, output_uri = file_uri(tmp_path / "in"), file_uri(tmp_path / "out")
    matrices = balance((*plan_matrices(12, 16, 48), *plan_flawed(24)), 3)
    for matrix in matrices:
        if matrix.flaw != "missing":
            store.write_atomic(f"{input_uri}/{matrix.key}.bin", [make_bytes(matrix)])
    manifest = "# a comment\n" + manifest_of(matrices, input_uri, output_uri) + GARBAGE_LINE + "\n"

    def run(text=manifest, residual="all", **options):
        job = FactorizeJob(n_tasks=3, residual=residual, **options)
        return run_factorize(runner, store, text, job, silent, name=tmp_path.name)

    run.manifest = manifest
    return run


@by_reference_and_by_value(slow=True)
def test_matrices_are_factorized_and_bad_records_are_named(run_matrices, tmp_path, is_by_value):
    outcome = run_matrices(is_by_value=is_by_value)
    assert (outcome.n_in, len(outcome.results), len(outcome.rejects)) == (17, 12, 5)
    assert {reject.key: reject.code for reject in outcome.rejects} == BAD
    assert max(row.residual for row in outcome.results) < LIMIT
    assert len(outcome.tasks) == 3
    done = {row.key for row in outcome.results}
    entries = [entry for entry in good_entries(run_matrices.manifest) if entry.key in done]
    checks = verify(lambda uri: path_of(uri).read_bytes(), factors_of(Store(), entries))
    reported = {row.key: row.residual for row in outcome.results}
    for check in checks:
        assert check.residual == pytest.approx(reported[check.key], rel=1e-2, abs=1e-3)
    results, rejects = write_outcome(outcome, tmp_path / "tables")
    assert len(results.read_text().splitlines()) == 13
    assert len(rejects.read_text().splitlines()) == 6
    assert [path.name for path in (tmp_path / "out").iterdir() if path.suffix != ".npz"] == []


@by_reference_and_by_value(slow=False)
def test_a_task_keeps_its_factors_in_one_file(run_matrices, runner, tmp_path, is_by_value):
    lines = run_matrices.manifest.splitlines()
    without = "".join(line.rpartition("\t")[0] + "\t-\n" if "\t" in line else line + "\n" for line in lines)
    outcome = run_matrices(without, output="sequence", is_by_value=is_by_value)
    assert (outcome.n_in, len(outcome.results), len(outcome.rejects)) == (17, 12, 5)
    assert max(row.residual for row in outcome.results) < LIMIT
    folder_uri = parts_uri(runner, tmp_path.name)
    names = [uri.rpartition("/")[2] for uri in Store().list(folder_uri)]
    assert names == [
        f"{kind}-{n:05d}{end}" for kind, end in (("factors", ".seq"), ("part", "")) for n in range(3)
    ]
    done = {row.key for row in outcome.results}
    entries = [entry for entry in good_entries(without, has_output=False) if entry.key in done]
    checks = verify(lambda uri: path_of(uri).read_bytes(), factors_of(Store(), entries, folder_uri))
    assert {check.key for check in checks} == done
    assert max(check.residual for check in checks) < LIMIT
    assert not (tmp_path / "out").exists()


@LOCAL_IS_SLOW
def test_the_factors_of_a_record_that_was_rejected_are_missed_by_name(run_matrices, runner, tmp_path):
    run_matrices(output="sequence", residual="none")
    folder_uri = parts_uri(runner, tmp_path.name)
    entries = good_entries(run_matrices.manifest)
    with pytest.raises(StorageError, match="no factors of bad-indefinite, bad-missing, bad-nan, bad-short"):
        list(factors_of(Store(), entries, folder_uri))


def test_only_the_local_runner_uses_a_server(runners, run_matrices, runner):
    outcome = run_matrices()
    fallbacks = outcome.counters.get("cpu_fallback", 0)
    assert fallbacks == (12 if runner is runners["inline"] else 0)
    assert {row.server for row in outcome.results} == ({"local"} if fallbacks else {"local0"})


def test_strict_fails_and_names_the_first_bad_record(run_matrices):
    good_then_bad = [
        *[line for line in run_matrices.manifest.splitlines() if line.startswith("m")],
        GARBAGE_LINE,
        *[line for line in run_matrices.manifest.splitlines() if line.startswith("bad-nan")],
    ]
    with pytest.raises(JobError) as caught:
        run_matrices("\n".join(good_then_bad), is_strict=True)
    assert f"record {key_of(GARBAGE_LINE)} (manifest)" in str(caught.value)
    assert "separated by TABs" in str(caught.value)


@LOCAL_IS_SLOW
@pytest.mark.parametrize("output", ["npz", "sequence"])
def test_the_second_record_of_a_key_or_output_is_rejected_whichever_task_has_it(run_matrices, output):
    good = [line for line in run_matrices.manifest.splitlines() if line.startswith("m")]
    same_key = good[0].rpartition("/")[0] + "/another.npz"
    same_output = "another-key\t" + good[1].partition("\t")[2]
    text = "\ufeff" + "\r\n".join([good[0], "", *good[1:], same_key, same_output])
    outcome = run_matrices(text, output=output, residual="none")
    first = good[0].partition("\t")[0]
    doubled = {first: "its key", "another-key": "its output_uri"}
    if output == "sequence":
        del doubled["another-key"]
    assert {each.key: each.code for each in outcome.rejects} == dict.fromkeys(doubled, "doubled-record")
    for each in outcome.rejects:
        assert doubled[each.key] in each.message
        assert f"is that of line {1 if each.key == first else 3}" in each.message
    assert (outcome.n_in, len(outcome.results)) == (14, 14 - len(doubled))
    assert [entry.key for entry in good_entries(text)].count(first) == 1
    with pytest.raises(JobError, match=rf"record {first} \(doubled-record\): manifest line 14"):
        run_matrices(text, output=output, is_strict=True)


def test_an_empty_manifest_is_an_error(run_matrices):
    with pytest.raises(JobError, match="no records"):
        run_matrices("# nothing\n\n")


@pytest.fixture(scope="module")
def image_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    plan = PatchPlan(n_images=96, side_px=40, n_broken=2)
    write_files(plan, 2, lambda number: (folder / f"part-{number}.seq").open("wb"), silent)
    return plan, [file_uri(folder / f"part-{number}.seq") for number in range(2)]


@pytest.mark.parametrize(
    ("kind", "n_rounds"),
    [
        ("inline", 0),
        # Compared with the other in the next test.
        pytest.param("local", 0, marks=pytest.mark.slow),
        ("inline", 20),
        # Each round starts processes; what they do is the same as in the two above.
        pytest.param("local", 20, marks=pytest.mark.slow),
    ],
)
def test_images_are_clustered_by_their_photograph(runners, tmp_path, image_files, kind, n_rounds):
    plan, inputs = image_files
    job = ImagesJob(n_rounds=n_rounds, sample_one_in=2, n_reduces=2)
    found = run_images(runners[kind], Store(), inputs, 98, job, silent, name=tmp_path.name)
    assert {row.key for row in found.outcome.results} == {key for key, _ in patches(plan, range(96))}
    assert [(reject.key, reject.code) for reject in found.outcome.rejects] == [
        ("broken/000096", "broken-image"),
        ("broken/000097", "broken-image"),
    ]
    assert purity(found.clustering.index).share > 0.7
    assert {row.cluster for row in found.outcome.results} <= set(found.clustering.centroids)
    if n_rounds:
        assert found.clustering.summary["is_converged"]


def test_the_two_runners_agree_about_the_clusters(runners, tmp_path, image_files):
    _, inputs = image_files
    found = [
        run_images(runner, Store(), inputs, 98, ImagesJob(), silent, name=tmp_path.name).clustering
        for runner in runners.values()
    ]
    assert found[0].index == found[1].index
    assert found[0].summary["inertia"] == pytest.approx(found[1].summary["inertia"], rel=1e-6)


@LOCAL_IS_SLOW
@pytest.mark.parametrize("n_rounds", [0, 3])
def test_the_second_image_of_a_key_is_rejected_whichever_task_has_it(runner, tmp_path, image_files, n_rounds):
    """The third lies in the same file as the first, the second in another."""
    first = image_files[1][0]
    with path_of(first).open("rb") as stream:
        pairs = list(SequenceFileReader(stream))
    for number, extra in enumerate(([*pairs, pairs[3], pairs[3]], pairs[3:5])):
        with (tmp_path / f"{number}.seq").open("wb") as out:
            writer = SequenceFileWriter(out)
            for key, content in extra:
                writer.append(key, content)
    inputs = [file_uri(tmp_path / f"{number}.seq") for number in range(2)]
    n_in = len(pairs) + 4
    job = ImagesJob(k=4, n_rounds=n_rounds, sample_one_in=2)
    found = run_images(runner, Store(), inputs, n_in, job, silent, name=tmp_path.name)
    doubled = [each.key for each in found.outcome.rejects if each.code == "doubled-record"]
    assert sorted(doubled) == sorted([pairs[3][0]] * 3 + [pairs[4][0]])
    assert len(found.outcome.results) + len(found.outcome.rejects) == n_in
    assert found.outcome.counters["rejected"] == len(found.outcome.rejects)


@LOCAL_IS_SLOW
def test_strict_images_name_the_second_of_a_key(runner, tmp_path):
    (image,) = (content for _, content in patches(PatchPlan(1, 40), range(1)))
    for name, keys in (("a", "kl"), ("b", "ml"), ("c", "kk")):
        with (tmp_path / name).open("wb") as out:
            writer = SequenceFileWriter(out)
            for key in keys:
                writer.append(key, image)
    for number, names in enumerate(("ab", "c")):
        inputs = [file_uri(tmp_path / name) for name in names]
        job, name = ImagesJob(k=2, is_strict=True), f"{tmp_path.name}-{number}"
        with pytest.raises(JobError, match=r"record [lk] \(doubled-record\): another record has the key"):
            run_images(runner, Store(), inputs, 9, job, silent, name)


@pytest.mark.parametrize("is_strict", [False, True], ids=["a job that ends well", "a job that fails"])
def test_what_killed_writers_left_beside_the_factors_is_deleted(tmp_path, is_strict):
    (matrix,) = plan_matrices(1, 16, 16)
    uri = file_uri(tmp_path)
    left, foreign = (tmp_path / f".{name}.{0:032x}.tmp" for name in (f"{matrix.key}.npz", "other.npz"))
    for path in (left, foreign):
        path.write_bytes(b"half")
    Store().write_atomic(f"{uri}/{matrix.key}.bin", [make_bytes(matrix)])
    text = f"{GARBAGE_LINE}\n" + manifest_of([matrix], uri, uri)
    with InlineRunner() as runner, contextlib.ExitStack() as stack:
        if is_strict:
            stack.enter_context(pytest.raises(JobError, match="manifest"))
        run_factorize(runner, Store(), text, FactorizeJob(n_tasks=1, is_strict=is_strict), silent)
    assert not left.exists()
    assert foreign.exists()


@LOCAL_IS_SLOW
def test_an_output_folder_that_exists_is_an_error(runner, run_matrices):
    run_matrices()
    with pytest.raises(JobError, match=r"exists already: remove it \(rm -r (\S+)\), or .* --home") as caught:
        run_matrices()
    shutil.rmtree(re.search(r"rm -r (\S+)\)", str(caught.value))[1])
    run_matrices()


def test_a_text_record_under_typed_bytes_is_rejected_by_type(runners, tmp_path):
    (tmp_path / "stdin").write_bytes(encode_typed_pair("k", "no bytes"))
    step = Step("types", ("images-map",), (), file_uri(tmp_path / "out"), io="typedbytes")
    task = LocalTask(step, "r", "map", 0, step.mapper, tmp_path / "stdin", tmp_path / "stdout", tmp_path)
    assert runners["inline"].run_task(task) == {"records_in": 1, "rejected": 1}
    assert b"wrong-type" in (tmp_path / "stdout").read_bytes()


def test_without_server_and_numpy_the_message_says_what_to_do(tmp_path):
    bare = tmp_path / "python-without-packages"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    store, uri = Store(), file_uri(tmp_path / "in")
    matrix = plan_matrices(1, 8, 8)[0]
    store.write_atomic(f"{uri}/{matrix.key}.bin", [make_bytes(matrix)])
    with (
        LocalRunner(python=str(bare), n_servers=0) as runner,
        pytest.raises(JobError, match="no pipeline server answers, and this node cannot compute by itself"),
    ):
        run_factorize(runner, store, manifest_of([matrix], uri, uri), FactorizeJob(), silent)


def test_without_server_but_with_numpy_the_mapper_computes(tmp_path):
    store, uri = Store(), file_uri(tmp_path / "in")
    matrices = plan_matrices(2, 8, 16)
    for matrix in matrices:
        store.write_atomic(f"{uri}/{matrix.key}.bin", [make_bytes(matrix)])
    with LocalRunner(python=sys.executable, n_servers=0) as runner:
        outcome = run_factorize(
            runner, store, manifest_of(matrices, uri, uri), FactorizeJob(n_tasks=1), silent
        )
    assert outcome.counters["cpu_fallback"] == 2
    assert {row.device for row in outcome.results} == {"cpu:fallback"}


@pytest.mark.slow
def test_mappers_and_reducers_work_on_the_oldest_python(find_python, tmp_path, image_files):
    store, uri = Store(), file_uri(tmp_path / "in")
    matrices = plan_matrices(12, 8, 16)
    for matrix in matrices:
        store.write_atomic(f"{uri}/{matrix.key}.bin", [make_bytes(matrix)])
    manifest = manifest_of(matrices, uri, file_uri(tmp_path / "out")) + GARBAGE_LINE
    with LocalRunner(python=find_python("3.8")) as runner:
        outcome = run_factorize(runner, store, manifest, FactorizeJob(n_tasks=2), silent)
        found = run_images(runner, store, image_files[1], 98, ImagesJob(n_rounds=2), silent)
    assert (len(outcome.results), len(outcome.rejects)) == (12, 1)
    assert (len(found.outcome.results), len(found.outcome.rejects)) == (96, 2)


def test_an_interpreter_that_is_not_there_is_named(tmp_path):
    with (
        LocalRunner(python="python9.9", n_servers=0) as runner,
        pytest.raises(StartupError, match=r"python9\.9"),
    ):
        run_factorize(runner, Store(), "garbage\n", FactorizeJob(), silent)


def test_nothing_is_left_of_a_closed_runner(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with LocalRunner() as runner:
        scratch = Path(path_of(runner.home("x"))).parent
        assert (scratch / "token").stat().st_mode & 0o077 == 0
    assert not scratch.exists()
    assert list(tmp_path.iterdir()) == [], "a server's own folder goes with it"


def test_stderr_is_read_as_hadoop_reads_it():
    counted = "reporter:counter:yarn-accel,done,"
    said = f"reporter:status:waiting\n{counted}2\n\nboom\n{counted}3\nlater\n"
    assert parse_stderr(said) == ({"done": 5}, "boom")


def test_data_in_hdfs_is_no_local_input():
    with pytest.raises(StorageError, match="not a local file"):
        path_of("hdfs://master/x")


@pytest.mark.parametrize("io", ["text", "typedbytes"])
def test_an_input_that_is_a_pipe_is_refused_and_not_waited_for(runners, tmp_path, io):
    os.mkfifo(tmp_path / "pipe")
    step = Step("pipe", ("images-map",), (file_uri(tmp_path / "pipe"),), file_uri(tmp_path / "out"), io=io)
    with pytest.raises(StorageError, match="regular file"):
        runners["inline"].run(step, silent)

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from jobs.runners.hadoop import HadoopRunner, streaming_arguments
from jobs.runners.step import Outcome, RejectedRecord, Step, write_table
from yarn_accel.errors import ConfigError, JobError
from yarn_accel.hadoop.site import SiteSettings
from yarn_accel.hadoop.streaming import StreamingAdditions, complete


def argv(step: Step) -> list[str]:
    """As Hadoop gets them, without what the command adds."""
    words = streaming_arguments(step, "python3.9", Path("/x/accel-job.pyz"))
    assert complete(words, StreamingAdditions()) == words, "generic options first"
    return words


def lines_step(**options) -> Step:
    return Step("f", ("factorize-map", "--by", "value"), ("hdfs://m/manifest",), "hdfs://m/out", **options)


def images_step(**options) -> Step:
    return Step(
        "i", ("images-map",), ("hdfs://m/a", "hdfs://m/b"), "hdfs://m/out", io="typedbytes", **options
    )


def properties(words: list[str]) -> dict[str, str]:
    pairs = [words[i + 1] for i, word in enumerate(words) if word == "-D"]
    return dict(pair.split("=", 1) for pair in pairs)


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_a_manifest_is_cut_by_lines():
    words = argv(lines_step(lines_per_map=7, files=(Path("/y/centroids.tsv"),)))
    found = properties(words)
    assert found["mapreduce.input.lineinputformat.linespermap"] == "7"
    assert found["stream.map.input.ignoreKey"] == "true"
    assert found["mapreduce.job.reduces"] == "0"
    assert option(words, "-inputformat").endswith("NLineInputFormat")
    assert option(words, "-mapper") == "python3.9 accel-job.pyz factorize-map --by value"
    assert option(words, "-files") == "/x/accel-job.pyz,/y/centroids.tsv"


def test_images_travel_as_typed_bytes_one_task_for_each_file():
    words = argv(images_step(reducer=("images-reduce", "--k", "4"), n_reduces=3))
    assert option(words, "-io") == "typedbytes"
    assert option(words, "-inputformat").endswith("SequenceFileInputFormat")
    assert option(words, "-reducer") == "python3.9 accel-job.pyz images-reduce --k 4"
    assert properties(words)["mapreduce.job.reduces"] == "3"
    assert "-outputformat" not in words
    assert [words[i + 1] for i, word in enumerate(words) if word == "-input"] == ["hdfs://m/a", "hdfs://m/b"]


def test_features_stay_sequence_files():
    assert option(argv(images_step(output_kind="sequence")), "-outputformat").endswith(
        "SequenceFileOutputFormat"
    )


def test_a_strict_job_is_not_tried_again():
    found = properties(argv(lines_step(is_strict=True)))
    assert (found["mapreduce.map.maxattempts"], found["mapreduce.reduce.maxattempts"]) == ("1", "1")
    assert "mapreduce.map.maxattempts" not in properties(argv(lines_step()))


@pytest.fixture
def site(tmp_path):
    setting = "<configuration><property><name>fs.defaultFS</name><value>hdfs://nn:8020/</value></property></configuration>"
    (tmp_path / "core-site.xml").write_text(setting)
    return SiteSettings.read({"HADOOP_CONF_DIR": str(tmp_path)})


def test_data_goes_below_the_users_home_of_the_sites_file_system(site):
    first, second = HadoopRunner(site), HadoopRunner(site)
    assert first.home("x").startswith("hdfs://nn:8020/user/")
    assert first.home("x") != second.home("x")


def test_they_are_whose_hadoop_takes_them_for(site, monkeypatch):
    monkeypatch.setenv("LOGNAME", "somebody-else")
    monkeypatch.setenv("HADOOP_USER_NAME", "ada")
    assert HadoopRunner(site).home("x").startswith("hdfs://nn:8020/user/ada/")
    monkeypatch.delenv("HADOOP_USER_NAME")
    name = pwd.getpwuid(os.geteuid()).pw_name
    assert HadoopRunner(site).home("x").startswith(f"hdfs://nn:8020/user/{name}/")


def test_what_the_command_refuses_is_an_error_of_the_same_kind(site, tmp_path):
    """Servers without a credential for them: it says so before anything is submitted."""
    path = tmp_path / "binding"
    path.write_text('{"version": 1, "servers": [{"name": "a", "host": "h", "port": 1}]}')
    with pytest.raises(ConfigError, match=r"^the site has servers, .* no credential for them: ask the admin"):
        HadoopRunner(site, binding_file=path).run(lines_step(), print)


def test_a_site_without_a_file_system_is_a_configuration_error(site):
    bare = SiteSettings(site.conf_dir, properties={})
    with pytest.raises(ConfigError, match=r"fs\.defaultFS"):
        HadoopRunner(bare)


def outcome(n_in=3, n_done=2, **counters) -> Outcome[str]:
    counters = {"records_in": 3, "done": 2, "rejected": 1, **counters}
    return Outcome(n_in, ("a",) * n_done, (RejectedRecord("b", "c", "d"),), counters, (), 1.0)


def test_records_that_add_up_pass():
    outcome().check_complete()


@pytest.mark.parametrize(
    "wrong", [{"n_in": 4}, {"n_done": 1}, {"records_in": 4}, {"done": 3}, {"rejected": 0}]
)
def test_records_that_do_not_add_up_are_an_error(wrong):
    with pytest.raises(JobError, match="records do not add up"):
        outcome(**wrong).check_complete()


def test_a_table_keeps_its_shape_whatever_is_in_it(tmp_path):
    path = write_table(tmp_path / "deep" / "t.tsv", ("a", "b"), [("x\ty", "one\ntwo")])
    assert path.read_text() == "a\tb\nx y\tone two\n"

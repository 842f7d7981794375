from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from jobs.outcome import Outcome, RejectedRecord, write_table
from jobs.runners.hadoop import HadoopRunner, streaming_job
from jobs.runners.step import Step
from yarn_accel.errors import ConfigError, JobError
from yarn_accel.hadoop.jars import HadoopInstall
from yarn_accel.hadoop.site import HadoopSite

FILES = (Path("/x/accel-job.pyz"), Path("/x/binding.json"))


def argv(step: Step, **options) -> list[str]:
    options = {"credentials": None, "has_slots": True, **options}
    return streaming_job(step, "python3.9", FILES, **options).argv()


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


def test_a_manifest_is_cut_by_lines_and_mappers_ask_for_slots():
    words = argv(lines_step(lines_per_map=7))
    found = properties(words)
    assert found["mapreduce.input.lineinputformat.linespermap"] == "7"
    assert found["stream.map.input.ignoreKey"] == "true"
    assert found["mapreduce.map.resource.acct/slot"] == "1"
    assert found["mapreduce.job.reduces"] == "0"
    assert option(words, "-inputformat").endswith("NLineInputFormat")
    assert option(words, "-mapper") == "python3.9 accel-job.pyz factorize-map --by value"
    assert option(words, "-files") == "/x/accel-job.pyz,/x/binding.json"
    assert max(i for i, word in enumerate(words) if word == "-D") < words.index("-input"), (
        "generic options first"
    )


def test_a_cluster_without_the_resource_is_not_asked_for_it():
    assert "mapreduce.map.resource.acct/slot" not in properties(argv(lines_step(), has_slots=False))


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


def test_the_credential_travels_by_the_name_of_its_file_only():
    words = argv(lines_step(), credentials=Path("/private/token"))
    assert properties(words)["mapreduce.job.credentials.binary"] == "/private/token"
    assert sum("/private/token" in word for word in words) == 1


def test_mappers_get_the_masters_to_ask_when_no_agent_answers():
    words = argv(lines_step(), masters=("http://rm/proxy/a/", "http://rm/proxy/b/"))
    assert option(words, "-cmdenv") == "ACCEL_MASTER=http://rm/proxy/a/,http://rm/proxy/b/"
    assert "-cmdenv" not in argv(lines_step())


@pytest.fixture
def site(tmp_path):
    install = HadoopInstall(Path("java"), tmp_path, tmp_path / "cp.jar", tmp_path / "s.jar", "3.5.0", 0, 0)
    return HadoopSite(conf_dir=tmp_path, install=install, properties={"fs.defaultFS": "hdfs://nn:8020/"})


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


def test_a_site_without_a_binding_names_no_server(site, tmp_path):
    assert HadoopRunner(site).binding().servers == ()
    with pytest.raises(ConfigError, match="cannot be read"):
        HadoopRunner(site, binding_file=tmp_path / "none").binding()


def test_servers_without_a_master_secret_are_a_configuration_error(site, tmp_path):
    path = tmp_path / "binding"
    path.write_text('{"version": 1, "servers": [{"name": "a", "host": "h", "port": 1}]}')
    with pytest.raises(ConfigError, match="no credential for them: ask the administrator"):
        HadoopRunner(site, binding_file=path).run(lines_step(), print)


def test_a_site_without_a_file_system_is_a_configuration_error(tmp_path, site):
    bare = HadoopSite(conf_dir=site.conf_dir, install=site.install, properties={})
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

"""The arguments of our own streaming jobs, and of `yarn-accel streaming`."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.errors import ConfigError, JobError, StartupError
from yarn_accel.hadoop import streaming
from yarn_accel.hadoop.java import HadoopInstall
from yarn_accel.hadoop.site import HadoopSite
from yarn_accel.testbed.single_node import free_ports

GENERIC = {"-D", "-files"}
STREAMING = {"-input", "-output", "-mapper", "-reducer", "-inputformat", "-outputformat", "-io"}


def job(**changes):
    return streaming.StreamingJob(
        **{"name": "j", "mapper": "cat", "inputs": ["/in"], "output": "/out", **changes}
    )


def option_values(argv, option):
    return [argv[k + 1] for k, part in enumerate(argv) if part == option]


@pytest.fixture
def site(tmp_path):
    (tmp_path / "class-path.jar").write_bytes(b"")
    install = HadoopInstall(
        Path("/jdk/bin/java"), tmp_path, tmp_path / "class-path.jar", tmp_path / "s.jar", "3.5.0", 1, 1
    )
    address = f"127.0.0.1:{free_ports(1)[0]}"
    return HadoopSite(
        conf_dir=tmp_path,
        install=install,
        properties={"yarn.resourcemanager.address": address},
        client_jvm_options=("-Djdk.net.hosts.file=/h",),
    )


def test_a_map_only_job():
    argv = job(properties={"a.b": "c"}, files=["/x/app.pyz#app", "/y"]).argv()
    assert option_values(argv, "-D") == ["mapreduce.job.name=j", "a.b=c", "mapreduce.job.reduces=0"]
    assert option_values(argv, "-files") == ["/x/app.pyz#app,/y"]
    assert option_values(argv, "-input") == ["/in"]
    assert "-reducer" not in argv


def test_a_reducer_means_one_reduce_unless_said_otherwise():
    assert "mapreduce.job.reduces=1" in job(reducer="cat").argv()
    assert "mapreduce.job.reduces=3" in job(reducer="cat", n_reduces=3).argv()


def test_lines_of_a_manifest_come_without_their_offset():
    argv = job(input_format=streaming.NLINE_INPUT_FORMAT).argv()
    assert "stream.map.input.ignoreKey=true" in argv
    kept = job(
        input_format=streaming.NLINE_INPUT_FORMAT, properties={"stream.map.input.ignoreKey": "false"}
    ).argv()
    assert "stream.map.input.ignoreKey=false" in kept
    assert not any("ignoreKey" in part for part in job().argv())


@pytest.mark.parametrize("name", ["/a,b", "/a b"])
def test_a_name_that_hadoop_would_split_is_refused(name):
    with pytest.raises(ConfigError, match="cannot be shipped"):
        job(files=[name]).argv()


def test_no_input_is_refused():
    with pytest.raises(ConfigError, match="job j has no input"):
        job(inputs=[]).argv()


WORD = st.text("abc/.", min_size=1, max_size=6)


@given(
    inputs=st.lists(WORD, min_size=1, max_size=3),
    files=st.lists(WORD, max_size=3),
    properties=st.dictionaries(WORD, WORD, max_size=3),
    reducer=st.sampled_from(["", "cat"]),
    io=st.sampled_from(["", "typedbytes"]),
)
def test_generic_options_come_first_and_the_same_job_gives_the_same_arguments(**changes):
    first, second = job(**changes), job(**changes)
    argv = first.argv()
    assert argv == second.argv()
    options = argv[::2]
    assert set(options) <= GENERIC | STREAMING
    n_generic = sum(option in GENERIC for option in options)
    assert set(options[:n_generic]) <= GENERIC
    assert option_values(argv, "-input") == changes["inputs"]


def test_the_client_gets_the_site_s_options_and_our_log_format(site):
    argv = streaming.client_argv(site, job(), ["-Xlog:cds"])
    assert "-Xlog:cds" in argv
    assert "-Djdk.net.hosts.file=/h" in argv
    assert any(part.startswith("-Dlog4j.configuration=file:") for part in argv)
    assert argv[argv.index("-cp") + 1].endswith(f":{site.conf_dir}")
    main = argv.index("org.apache.hadoop.streaming.HadoopStreaming")
    assert argv[main + 1 :] == job().argv()


def test_a_dead_resourcemanager_is_one_line(site):
    with pytest.raises(StartupError, match=r"no ResourceManager answers at 127.0.0.1:\d+") as caught:
        streaming.run_streaming(site, job(), lambda _: None)
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


def test_a_file_to_ship_must_exist(site, tmp_path):
    with pytest.raises(JobError, match=r"ships .*/none.pyz, which does not exist"):
        streaming.run_streaming(site, job(files=[f"{tmp_path}/none.pyz#a"]), lambda _: None)


def test_a_failed_result_becomes_an_error_with_its_diagnosis():
    failed = streaming.JobResult("job_1_2", "FAILED", {}, [], 1.0, "no numpy (attempt_1 on w1)")
    with pytest.raises(JobError, match=r"job_1_2 failed: no numpy \(attempt_1 on w1\)"):
        failed.check()
    done = streaming.JobResult("job_1_2", "SUCCEEDED", {}, [], 1.0)
    assert done.check() is done


JOB = ("-input", "in", "-output", "out", "-mapper")


@pytest.fixture
def additions(tmp_path):
    return streaming.StreamingAdditions(
        "python3.9",
        {"mapreduce.map.resource.acct/slot": "1", streaming.CREDENTIAL_PROPERTY: "credential"},
        [tmp_path / "client.zip"],
        {"PYTHONPATH": "client.zip", "ACCEL_MASTER": "http://master"},
    )


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "my_mapper.py"
    path.write_text("")
    return path


def test_the_shortest_job_gets_everything_it_needs(additions, script, tmp_path):
    assert streaming.complete([*JOB, str(script)], additions) == [
        *("-D", "mapreduce.map.resource.acct/slot=1", "-D", f"{streaming.CREDENTIAL_PROPERTY}=credential"),
        *("-files", f"{script},{tmp_path}/client.zip"),
        *("-input", "in", "-output", "out", "-mapper", "python3.9 my_mapper.py"),
        *("-cmdenv", "PYTHONPATH=client.zip", "-cmdenv", "ACCEL_MASTER=http://master"),
    ]


def test_what_the_user_says_wins(additions, script):
    given = [
        *("-cmdenv", "PYTHONPATH=mine", "-cmdenv", "ACCEL_MASTER=http://other", "-cmdenv", "A=b"),
        *(*JOB, f"python3.12 {script} --fast", "-reducer", "cat", "-verbose"),
        *("-D", f"{streaming.CREDENTIAL_PROPERTY}=mine", "-Dmapreduce.map.resource.acct/slot=2"),
        *("-files", "hdfs:///x/client.zip,words#list", "-archives", "env.tgz#env"),
    ]
    assert streaming.complete(given, additions) == [
        *("-D", f"{streaming.CREDENTIAL_PROPERTY}=mine", "-D", "mapreduce.map.resource.acct/slot=2"),
        *("-archives", "env.tgz#env", "-files", f"hdfs:///x/client.zip,words#list,{script}"),
        *("-cmdenv", "A=b", "-input", "in", "-output", "out"),
        *("-mapper", "python3.12 my_mapper.py --fast", "-reducer", "cat", "-verbose"),
        *("-cmdenv", "PYTHONPATH=client.zip:mine", "-cmdenv", "ACCEL_MASTER=http://other"),
    ]


def test_programs_of_the_nodes_stay_as_they_are(additions):
    assert "/bin/cat missing.py" in streaming.complete([*JOB, "/bin/cat missing.py"], additions)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no -input is given"),
        (("-input", "in", "-mapper", "cat"), "no -output is given"),
        (("-input", "in", "-output", "out"), "no -mapper is given"),
        ((*JOB,), "-mapper has no value"),
        (("stray", *JOB, "cat"), "the word 'stray' belongs to no option"),
        ((*JOB, "cat", "stray"), "the word 'stray' after -mapper cat belongs to no option"),
        ((*JOB, "my_mapper.py", "--fast", "1"), "unknown option --fast after -mapper my_mapper.py"),
        (("-input", "-output", "out", "-mapper", "cat"), "-input has no value: -output follows"),
    ],
)
def test_what_is_missing_is_named(additions, arguments, said):
    with pytest.raises(ConfigError, match=said):
        streaming.complete(arguments, additions)


def test_a_script_whose_name_hadoop_would_split_is_refused(additions, tmp_path):
    script = tmp_path / "a,b.py"
    script.write_text("")
    with pytest.raises(ConfigError, match="cannot be shipped"):
        streaming.complete([*JOB, str(script)], additions)

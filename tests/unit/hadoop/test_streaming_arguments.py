"""What `yarn-accel streaming` makes of the arguments of `mapred streaming`."""

import pytest

from yarn_accel.errors import ConfigError
from yarn_accel.hadoop.streaming_arguments import CREDENTIAL_PROPERTY, StreamingAdditions, complete

JOB = ("-input", "in", "-output", "out", "-mapper")


@pytest.fixture
def additions(tmp_path):
    return StreamingAdditions(
        "python3.9",
        {"mapreduce.map.resource.acct/slot": "1", CREDENTIAL_PROPERTY: "credential"},
        [tmp_path / "client.zip"],
        {"PYTHONPATH": "client.zip", "ACCEL_MASTER": "http://master"},
    )


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "my_mapper.py"
    path.write_text("")
    return path


def test_the_shortest_job_gets_everything_it_needs(additions, script, tmp_path):
    assert complete([*JOB, str(script)], additions) == [
        *("-D", "mapreduce.map.resource.acct/slot=1", "-D", f"{CREDENTIAL_PROPERTY}=credential"),
        *("-files", f"{script},{tmp_path}/client.zip"),
        *("-input", "in", "-output", "out", "-mapper", "python3.9 my_mapper.py"),
        *("-cmdenv", "PYTHONPATH=client.zip", "-cmdenv", "ACCEL_MASTER=http://master"),
    ]


def test_what_the_user_says_wins(additions, script):
    given = [
        *("-cmdenv", "PYTHONPATH=mine", "-cmdenv", "ACCEL_MASTER=http://other", "-cmdenv", "A=b"),
        *(*JOB, f"python3.12 {script} --fast", "-reducer", "cat", "-verbose"),
        *("-D", f"{CREDENTIAL_PROPERTY}=mine", "-Dmapreduce.map.resource.acct/slot=2"),
        *("-files", "hdfs:///x/client.zip,words#list", "-archives", "env.tgz#env"),
    ]
    assert complete(given, additions) == [
        *("-D", f"{CREDENTIAL_PROPERTY}=mine", "-D", "mapreduce.map.resource.acct/slot=2"),
        *("-archives", "env.tgz#env", "-files", f"hdfs:///x/client.zip,words#list,{script}"),
        *("-cmdenv", "A=b", "-input", "in", "-output", "out"),
        *("-mapper", "python3.12 my_mapper.py --fast", "-reducer", "cat", "-verbose"),
        *("-cmdenv", "PYTHONPATH=client.zip:mine", "-cmdenv", "ACCEL_MASTER=http://other"),
    ]


def test_programs_of_the_nodes_stay_as_they_are(additions):
    assert "/bin/cat missing.py" in complete([*JOB, "/bin/cat missing.py"], additions)


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
        complete(arguments, additions)


def test_a_name_that_hadoop_would_split_is_refused(additions, tmp_path):
    script = tmp_path / "a,b.py"
    script.write_text("")
    with pytest.raises(ConfigError, match="cannot be shipped"):
        complete([*JOB, str(script)], additions)

"""An application's tasks from real files; what is missing, empty or in the way is one error."""

import pytest

from yarn_accel.core.tasks.attempt_orders import InputSplit
from yarn_accel.core.tasks.values import AppFigures, Form, FormDemand, FormFigures
from yarn_accel.errors import ConfigError
from yarn_accel.storage import Store
from yarn_accel.tasks import parse_app, plan_app

MIB = 1024 * 1024


@pytest.fixture
def plan(tmp_path):
    """Plans an application in a folder with some input."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"0123456789\n" * 10)
    (tmp_path / "in" / "b.txt").write_bytes(b"b\n")
    (tmp_path / "in" / "_SUCCESS").write_bytes(b"")
    (tmp_path / "in" / ".hidden").write_bytes(b"x")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "m").write_bytes(b"first\n\nsecond")
    mapper = tmp_path / "mapper"
    mapper.write_bytes(b"#!/bin/sh\ncat\n")
    mapper.chmod(0o755)

    def plan(**more):
        values = {"name": "a", "input": "in", "output": "out", "cpu": {"command": ["cat"]}, **more}
        values = {key: value for key, value in values.items() if value is not None}
        return plan_app(parse_app(values, tmp_path), Store())

    return plan


def test_files_of_a_folder_are_cut(plan, tmp_path):
    definition = plan(split_bytes=50)
    uri = f"file://{tmp_path}/in"
    assert [each.input for each in definition.tasks] == [
        InputSplit(f"{uri}/a.txt", 0, 50),
        InputSplit(f"{uri}/a.txt", 50, 50),
        InputSplit(f"{uri}/a.txt", 100, 10),
        InputSplit(f"{uri}/b.txt", 0, 2),
    ]
    assert [each.task for each in definition.tasks][:2] == ["a/000000", "a/000001"]
    assert definition.tasks[3].output == "part-00003"
    assert definition.output == f"file://{tmp_path}/out"
    assert definition.spec.n_tasks == 4


def test_all_of_an_app_reaches_the_service(plan, tmp_path):
    definition = plan(
        split_bytes=50,
        priority=3,
        max_attempts=2,
        timeout_s=9,
        memory_mib=100,
        cpu={"command": ["./mapper", "-v"], "cores": 2},
        gpu={"operation": "lu", "gpus": 2},
        figures={"cpu": {"compute_s": 3}, "gpu": {"read_s": 1}, "accelerators": {"V100": {"read_s": 2}}},
        environment={"B": "2", "A": "1"},
        files=["mapper"],
    )
    assert definition.spec.demands == {
        Form.CPU: FormDemand(2, 0, 100 * MIB),
        Form.GPU: FormDemand(1, 2, 100 * MIB, is_served=True),
    }
    assert definition.programs[Form.CPU].command == ("./mapper", "-v")
    assert definition.programs[Form.GPU].operation == "lu"
    assert definition.spec.declared == AppFigures(
        50.0, {Form.CPU: FormFigures(0, 3), Form.GPU: FormFigures(1, 0)}, {"V100": FormFigures(2, 0)}
    )
    assert definition.environment == (("A", "1"), ("B", "2"))
    assert definition.files == (("mapper", f"file://{tmp_path}/mapper"),)
    assert (definition.spec.priority, definition.max_attempts, definition.time_limit_s) == (3, 2, 9.0)


def test_each_line_of_a_manifest_is_a_task(plan):
    definition = plan(input=None, manifest="m", with_keys=True)
    assert [(each.input.start, each.input.length, each.input.with_keys) for each in definition.tasks] == [
        (0, 5, True),
        (6, 6, True),
    ]


def test_a_file_that_is_named_twice_is_read_once(plan):
    assert len(plan(input=["in/b.txt", "in", "in/b.txt"], split_bytes=1000).tasks) == 2


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"input": "no-such"}, r"input: .*no-such: there is no such file or folder: correct the name"),
        ({"input": "in/*.txt"}, "patterns are not expanded: name the folder"),
        ({"input": "empty"}, "input: .*is empty, so there are no tasks"),
        ({"input": "nested"}, "nested/sub is a folder in a folder"),
        ({"input": "packed.gz"}, "packed.gz is compressed, which is not read: decompress it first"),
        ({"input": None, "manifest": "in"}, "manifest: .*in is a folder: name one file"),
        ({"input": None, "manifest": "empty"}, "manifest: .*is empty"),
        ({"input": None, "manifest": "no-such"}, "manifest: .*there is no such file"),
        ({"output": "there"}, "output: .*there is there already: give another folder"),
        ({"output": "in/out"}, "output: .*lies in the input .*give a folder outside"),
        ({"output": "in"}, "output: .*lies in the input"),
        (
            {"input": "large", "split_bytes": 1},
            "split_bytes: 1 makes 200000 tasks.*give split_bytes: 1048576",
        ),
        ({"files": ["no-such"]}, "files: .*there is no such file"),
        ({"files": ["in"]}, "files: .*in is a folder"),
        ({"cpu": {"command": ["no-such-program"]}}, "cpu.command: there is no program no-such-program"),
        ({"cpu": {"command": ["./mapper"]}}, "cpu.command: ./mapper is not among `files`: add it"),
        ({"gpu": {"command": ["bin/x"]}}, "gpu.command: bin/x is not among `files`"),
        ({"cpu": {"command": ["mapper"]}, "files": ["mapper"]}, "mapper is one of `files`: write ./mapper"),
        ({"cpu": {"command": ["/"]}}, "cpu.command: / cannot be executed here"),
        ({"cpu": {"command": ["./m"]}, "files": ["m"]}, "m may not be executed: chmod"),
    ],
)
def test_each_fault_is_one_error_with_its_cure(plan, tmp_path, more, words):
    (tmp_path / "nested" / "sub").mkdir(parents=True)
    (tmp_path / "there").mkdir()
    (tmp_path / "packed.gz").write_bytes(b"x")
    (tmp_path / "large").write_bytes(b"x" * 200_000)
    with pytest.raises(ConfigError, match=words):
        plan(**more)


def test_a_program_that_only_the_nodes_have_is_named_by_its_path(plan):
    assert plan(cpu={"command": ["/opt/site/bin/tool"]}).programs[Form.CPU].command == ("/opt/site/bin/tool",)

import pytest

from yarn_accel.errors import ConfigError
from yarn_accel.hadoop.programs import PROGRAMS, main_class


def test_a_command_becomes_its_class_and_the_rest_its_arguments():
    assert main_class("yarn", ["jar", "my.jar", "-x"]) == ("org.apache.hadoop.util.RunJar", ["my.jar", "-x"])
    assert (
        main_class("mapred", ["streaming", "-input", "/a"])[0]
        == "org.apache.hadoop.streaming.HadoopStreaming"
    )


def test_a_class_that_serves_several_commands_x():
    assert main_class("yarn", ["application", "-list"])[1] == ["application", "-list"]
    assert main_class("yarn", ["node", "-list"])[1] == ["-list"]


def test_the_name_of_a_class_does_for_a_command():
    assert main_class("hadoop", ["my.Tool", "a"]) == ("my.Tool", ["a"])


@pytest.mark.parametrize("program", sorted(PROGRAMS))
@pytest.mark.parametrize("words", [[], ["nosuch"], ["-help"], [""]])
def test_others_are_refused_with_a_list(program: str, words: list[str]):
    with pytest.raises(ConfigError) as raised:
        main_class(program, words)
    assert all(name in str(raised.value.cure) for name in PROGRAMS[program])

"""Faults of a file of settings are named in the words of its author."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from yarn_accel.adapters.settings_file import complaints, read_settings
from yarn_accel.errors import ConfigError
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.master.config import SOME_MANAGERS, MasterConfig
from yarn_accel.node.config import AgentConfig
from yarn_accel.pipeline.config import PipelineConfig


class Inner(BaseModel):
    """A section."""

    model_config = ConfigDict(extra="forbid")

    weight: float = Field(1.0, gt=0, le=10)
    n: int = Field(1, ge=1, lt=100)


class Outer(BaseModel):
    """One key of each kind."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=2, max_length=5, pattern="^[a-z]*$")
    is_on: bool = False
    rate: float = Field(1.0, allow_inf_nan=False)
    level: Literal["low", "high"] = "low"
    hosts: tuple[str, ...] = Field(("a",), min_length=1, max_length=2)
    each: dict[str, Inner] = Field(default_factory=dict)
    inner: Inner = Inner()
    maybe: Inner | None = None
    gpus: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"

    @field_validator("name")
    @classmethod
    def _check_name(cls, name):
        if name == "root":
            raise ValueError("not everybody's friend")
        return name


def said(values):
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"name": "abc", **values})
    return complaints(caught.value, Outer)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"is_on": "maybe"}, 'is_on: must be true or false, not "maybe"'),
        ({"is_on": None}, "is_on: must be true or false, not null"),
        ({"rate": "fast"}, 'rate: must be a number, not "fast"'),
        ({"rate": float("inf")}, "rate: must be a finite number, not Infinity"),
        ({"inner": {"n": 2.5}}, "inner.n: must be a whole number, not 2.5"),
        ({"inner": {"n": "two"}}, 'inner.n: must be a whole number, not "two"'),
        ({"inner": {"n": 0}}, "inner.n: must be at least 1, not 0"),
        ({"inner": {"n": 100}}, "inner.n: must be less than 100, not 100"),
        ({"inner": {"weight": 0}}, "inner.weight: must be greater than 0.0, not 0"),
        ({"inner": {"weight": 11}}, "inner.weight: must be at most 10.0, not 11"),
        ({"inner": 3}, "inner: must be a mapping of keys to values, not 3"),
        ({"each": [1]}, "each: must be a mapping of keys to values, not [1]"),
        ({"each": {"a": {"n": "x"}}}, 'each.a.n: must be a whole number, not "x"'),
        ({"hosts": "a"}, 'hosts: must be a list, not "a"'),
        ({"hosts": ["a", True]}, "hosts.1: must be a text, not true"),
        ({"hosts": []}, "hosts: must be 1 or more in number, not []"),
        ({"hosts": ["a", "b", "c"]}, 'hosts: must be at most 2 in number, not ["a", "b", "c"]'),
        ({"name": 5}, "name: must be a text, not 5"),
        ({"name": "a"}, 'name: must be a text of length 2 or more, not "a"'),
        ({"name": "abcdef"}, 'name: must be a text of length 5 at most, not "abcdef"'),
        ({"name": "A b"}, 'name: must be a text that matches ^[a-z]*$, not "A b"'),
        ({"name": "root"}, "name: not everybody's friend"),
        ({"level": "mid"}, 'level: must be "low" or "high", not "mid"'),
        ({"gpus": "all"}, 'gpus: must be a whole number or "auto", not "all"'),
        ({"gpus": -1}, 'gpus: must be at least 0 or "auto", not -1'),
        ({"maybe": {"m": 1}}, "maybe.m: unknown key; known: n, weight"),
        ({"each": {"a": {"m": 1}}}, "each.a.m: unknown key; known: n, weight"),
        ({"is_of": 1}, "is_of: unknown key; known: each, gpus, hosts, inner"),
    ],
)
def test_a_wrong_value_is_reported_with_what_is_wanted(values, words):
    assert said(values).startswith(words)


def test_all_that_is_wrong_is_said_at_once_and_long_values_are_cut():
    assert said({"is_on": "x" * 100, "m": 1, "rate": []}).split("; ") == [
        "m: unknown key",
        "known: each, gpus, hosts, inner, is_on, level, maybe, name, rate",
        f'is_on: must be true or false, not "{"x" * 59}...',
        "rate: must be a number, not []",
    ]


def test_of_many_faults_the_first_are_said_and_the_others_counted():
    text = said({"each": {f"e{n}": {"n": 0} for n in range(30)}})
    assert text.startswith("each.e0.n: must be at least 1, not 0; each.e1.n: ")
    assert text.endswith("; and 22 more")


def test_an_entry_of_a_list_has_its_name_and_a_list_of_faults_is_not_empty_besides():
    class Entry(Inner):
        id: str

    class Entries(BaseModel):
        entries: tuple[Entry, ...] = Field(min_length=1)

    values = {"entries": [{"id": "b", "n": 0}]}
    with pytest.raises(ValidationError) as caught:
        Entries.model_validate(values)
    assert complaints(caught.value, Entries, values) == "entries.0 (b).n: must be at least 1, not 0"


def test_what_must_be_given_is_named():
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({})
    assert complaints(caught.value, Outer) == "name: missing"


@pytest.mark.parametrize(
    "wrong", [[[]], {"a": {"b": []}}, float("nan"), -1e300, "", "no such thing " * 9, None]
)
@pytest.mark.parametrize(
    ("model", "given"),
    [
        (MasterConfig, SOME_MANAGERS),
        (AgentConfig, {}),
        (PipelineConfig, {"master_secret_file": "x"}),
        (LaunchConfig, {}),
    ],
)
def test_no_key_of_ours_is_answered_in_the_checkers_words(model, given, wrong):
    for name in model.model_fields:
        try:
            model.model_validate({**given, name: wrong})
        except ValidationError as error:
            words = complaints(error, model)
            assert "Input" not in words, words
            assert " valid " not in words, words
            assert words.startswith(name) or ": " not in words, words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: a was given in line 1 already: keep one of the two"),
        ("top:\n  in:\n    a: 1\n    'a': 1\n", "line 4: a was given in line 3 already"),
        ("- a\n", "not a mapping of keys to values"),
        ("x: [{a: 1}, {b: 1, b: 2}]\n", "line 1: b was given in line 1 already"),
        ('{"a": 1,\n "a": 1}', "line 2: a was given in line 1 already"),
        ("x: &it {a: 1, a: 2}\ny: *it\n", "line 1: a was given"),
        ("a: 1\n b: 2\n", "not YAML: line 2, column 3: mapping values are not allowed here"),
        ("a: [1\n", "not YAML: line 2, column 1: expected ',' or ']', but got '<stream end>'"),
        ("a: !!python/object:os.system x\n", "not YAML: line 1, column 4: could not determine a constructor"),
        ("a: \x01\n", "not YAML: "),
        ("a: " + "[" * 5000, "not YAML: nested too deeply"),
        ("a: \t- b: [c\n", "not YAML: line 1, column 4: found character '\\t' that cannot start any token"),
    ],
)
def test_a_file_that_is_none_names_the_line(tmp_path, text, words):
    path = tmp_path / "some.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_settings(path)
    assert str(caught.value).startswith(f"{path}: {words}")
    assert "\n" not in str(caught.value)


def test_a_file_of_other_bytes_is_named(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match=r"some\.yaml: not YAML: 'utf-8' codec"):
        read_settings(path)


def test_what_is_right_is_read(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("base: &it {a: 1, b: [x, {c: 2}]}\nmore:\n  <<: *it\n  a: 3\nloop: &l [*l]\n7: yes\n")
    values = read_settings(path)
    assert values["more"] == {"a": 3, "b": ["x", {"c": 2}]}
    assert values["loop"][0] is values["loop"]
    assert values["7"] is True
    path.write_text("# nothing\n")
    assert read_settings(path, may_be_empty=True) == {}
    with pytest.raises(ConfigError, match="not a mapping"):
        read_settings(path)

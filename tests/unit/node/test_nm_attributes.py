"""The NodeManager's script against YARN's own grammar (NodeLabelUtil, ScriptBasedNodeAttributesProvider)."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sizes import size_of
from yarn_accel.launch.bootstrap import check_node, node_facts
from yarn_accel.launch.node_checks import attribute_facts
from yarn_accel.node import nm_attributes

NOW_S = 1_800_000_123.0
SCRIPT = Path(nm_attributes.__file__)
NAME = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z-_]*")
VALUE = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z-_.]*")
OF_THE_NODE = ("accel-glibc", "accel-machine", "accel-python")
H200 = {"name": "NVIDIA H200", "memory_total_bytes": 150_754_820_096, "health": "ok"}


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """The script's lines for what a state file holds."""
    path = tmp_path_factory.mktemp("agent") / "state.json"

    def reported(text, now_s):
        path.write_text(text, errors="surrogatepass")
        return nm_attributes.lines(path, now_s)

    return reported


def state(devices=(H200,), at=NOW_S - 1, server="ok", **more):
    reported = None if server is None else {"health": server}
    return json.dumps({"devices": list(devices), "at": at, "server": reported, **more})


def parsed(printed):
    """What YARN makes of the agent's facts; an AssertionError where YARN throws the whole output away."""
    return {name: value for name, value in understood(printed).items() if name not in OF_THE_NODE}


def understood(printed):
    found = {}
    for line in printed:
        assert "\n" not in line
        if line.startswith("NODE_ATTRIBUTE:"):
            name, kind, value = line[len("NODE_ATTRIBUTE:") :].split(",")
            assert (kind, name in found) == ("STRING", False)
            assert NAME.fullmatch(name)
            assert VALUE.fullmatch(value)
            assert max(len(name), len(value)) <= 255
            found[name] = value
    return found


def test_the_facts_of_an_accelerator_node(lines):
    assert parsed(lines(state(), NOW_S)) == {
        "accel-as-of": "20270115-0800",
        "accel-gpu-memory-gib": "140",
        "accel-gpu-model": "NVIDIA-H200",
        "accel-gpus": "1",
        "accel-health": "ok",
        "accel-server": "ok",
    }


def test_a_node_without_accelerators(lines):
    found = parsed(lines(state(devices=(), server=None), NOW_S))
    assert "accel-gpu-model" not in found
    assert (found["accel-gpus"], found["accel-server"], found["accel-health"]) == ("0", "none", "ok")


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("NVIDIA A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB"),
        ("Tesla V100/PCIe, 32GB (rev. 2)", "Tesla-V100-PCIe-32GB-rev.-2"),
        ("  -_. ", None),
        ("", None),
        (
            "GPU:STRING,evil\nNODE_ATTRIBUTE:accel-health,STRING,ok",
            "GPU-STRING-evil-NODE_ATTRIBUTE-accel-health-STRING-ok",
        ),
        ("显卡 RTX™ 4090", "RTX-4090"),
        ("٣٢", None),
        ("x" * 400, "x" * 255),
    ],
)
def test_nasty_names(lines, name, reported):
    found = parsed(lines(state([{**H200, "name": name}]), NOW_S))
    assert found.get("accel-gpu-model") == reported
    assert found["accel-health"] == "ok"


def test_a_gpu_that_failed_has_no_name(lines):
    failed = {**H200, "name": None, "memory_total_bytes": None, "health": "failed"}
    found = parsed(lines(state([H200, failed]), NOW_S))
    assert (found["accel-gpu-model"], found["accel-health"]) == ("NVIDIA-H200", "sick")


def test_two_models(lines):
    a30 = {**H200, "name": "NVIDIA A30", "memory_total_bytes": 24 << 30}
    found = parsed(lines(state([H200, a30, {**H200, "health": "lost"}, H200]), NOW_S))
    assert (found["accel-gpus"], found["accel-gpu-memory-gib"]) == ("3", "24"), "a lost one is not counted"
    assert found["accel-gpu-model"] == "NVIDIA-A30_NVIDIA-H200"


@pytest.mark.parametrize(
    ("device", "server", "health"),
    [
        ("ok", "ok", "ok"),
        ("hot", "draining", "ok"),
        ("failed", "ok", "sick"),
        ("lost", "ok", "sick"),
        ("silent", "ok", "sick"),
        ("ok", "gone", "sick"),
        ("ok", "silent", "sick"),
        ("ok", "unhealthy", "sick"),
        ("ok", "starting", "ok"),
    ],
)
def test_health(lines, device, server, health):
    assert parsed(lines(state([{**H200, "health": device}], server=server), NOW_S))["accel-health"] == health


@pytest.mark.parametrize("at", [NOW_S - 31, NOW_S + 3600, 0])
def test_an_agent_that_stopped_writing_shows(lines, at):
    assert parsed(lines(state(at=at), NOW_S))["accel-health"] == "stale"


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "null", "[]", "{}", '{"devices": 3}', '{"devices": [1], "server": null}'),
        *("[" * 100_000, "\ud800"),
    ],
)
def test_no_state_no_facts_but_a_health(lines, text):
    assert parsed(lines(text, NOW_S)) == {"accel-as-of": "20270115-0800", "accel-health": "none"}


def test_what_changes_every_second_is_not_printed(lines):
    busy = {**H200, "utilisation": 0.5, "temperature_c": 40, "memory_bytes": 1 << 30}
    more = {**H200, "utilisation": 0.9, "temperature_c": 60, "memory_bytes": 9 << 30}
    assert lines(state([busy], seq=1), NOW_S) == lines(state([more], at=NOW_S, seq=2), NOW_S + 1)


_ANY = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300) | st.lists(st.integers())
)


@given(st.dictionaries(st.sampled_from(["name", "memory_total_bytes", "health"]), _ANY), _ANY)
def test_whatever_the_state_says_yarn_can_read_it(lines, device, server):
    found = parsed(lines(state([device, H200], NOW_S, server), NOW_S))
    assert {"accel-as-of", "accel-health"} <= set(found)


def old_python():
    """A Python 3.8 of this machine; empty without one."""
    found = [shutil.which("python3.8"), *sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8"))]
    for path in filter(None, found):
        if subprocess.run([path, "-V"], capture_output=True, check=False).returncode == 0:
            return str(path)
    return ""


OLD = old_python()
PYTHONS = [
    pytest.param(sys.executable, id="this"),
    pytest.param(OLD, id="3.8", marks=pytest.mark.skipif(not OLD, reason="no Python 3.8 on this machine")),
]


@pytest.mark.parametrize("python", PYTHONS)
def test_as_the_nodemanager_runs_it(python, tmp_path):
    alone, path = tmp_path / "nm_attributes.py", tmp_path / "state.json"
    alone.write_text(SCRIPT.read_text())
    path.write_text(state(at=time.time()))

    def run(*arguments):
        argv = [python, "-I", "-S", alone, *arguments]
        completed = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert completed.stderr == ""
        return parsed(completed.stdout.splitlines())

    assert run(path)["accel-gpu-model"] == "NVIDIA-H200"
    path.unlink()
    for arguments in ([path], [], [tmp_path]):
        assert run(*arguments)["accel-health"] == "none"


def test_a_file_that_never_ends_ends_the_script(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    completed = subprocess.run(
        [sys.executable, SCRIPT, pipe], capture_output=True, text=True, check=False, timeout=300
    )
    assert (completed.returncode, completed.stdout) == (-14, "")


def test_the_node_tells_python_and_c_library_as_a_start_asks_for_them(lines):
    facts = attribute_facts(understood(lines("", NOW_S)))
    assert (facts["glibc"], facts["machine"]) == (platform.libc_ver()[1], platform.machine())
    have = node_facts()
    assert have["python"] in facts["python"].split("_")
    check_node({**have, "glibc": "2.17"}, facts)


def test_every_python_of_the_node_is_reported(lines, tmp_path, monkeypatch):
    for minor in (8, 9, 10):
        (tmp_path / f"python3.{minor}").write_text("#!/bin/sh\n")
        (tmp_path / f"python3.{minor}").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    own = sys.version_info[1]
    reported = understood(lines("", NOW_S))["accel-python"]
    assert reported == "_".join(f"3.{minor}" for minor in sorted({8, 9, 10, own}))


def test_it_can_be_run_by_its_name():
    assert SCRIPT.read_text().startswith("#!/usr/bin/env python3\n")


def test_the_script_has_thirty_lines():
    assert size_of(SCRIPT.read_text()).code <= 30

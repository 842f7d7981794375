from __future__ import annotations

import json
from dataclasses import asdict

from yarn_accel.launch import bootstrap
from yarn_accel.launch.node_compatibility import (
    ATTRIBUTES,
    EXIT_REASONS,
    attribute_facts,
    check_nodes,
    explain_exit,
)
from yarn_accel.launch.packing import Requirement

NEED = Requirement("3.11", ".cpython-311-x86_64-linux-gnu.so", "x86_64", "2.28")


def test_each_node_is_judged_by_what_it_tells() -> None:
    compatibility = check_nodes(
        NEED,
        {
            "fits": {**asdict(NEED), "glibc": "2.31"},
            "same": {"glibc": "2.28", "python": "3.11"},
            "several": {"glibc": "2.28", "python": "3.9_3.11"},
            "python": {"python": "3.9", "glibc": "2.31"},
            "glibc": {"python": "3.11", "glibc": "2.9"},
            "arm": {"machine": "aarch64"},
            "silent": {},
        },
    )
    assert set(compatibility.incompatible) == {"python", "glibc", "arm"}
    assert "python3 is 3.9" in compatibility.incompatible["python"]
    assert "install python3.11" in compatibility.incompatible["python"]
    assert "glibc is 2.9, the environment needs 2.28" in compatibility.incompatible["glibc"]
    assert compatibility.unknown == ("silent",)
    assert "1 nodes tell neither" in str(compatibility)


def test_versions_are_numbers_and_not_text() -> None:
    assert not check_nodes(NEED, {"n": {"glibc": "2.100"}}).incompatible
    assert check_nodes(NEED, {"n": {"glibc": "2.3"}}).incompatible


def test_a_node_without_glibc_does_not_fit() -> None:
    assert "another C library" in check_nodes(NEED, {"alpine": {"glibc": ""}}).incompatible["alpine"]


def test_facts_come_from_node_attributes_of_any_prefix() -> None:
    attributes = {"nm.yarn.io/accel-python": "3.11", "accel-glibc": "2.36", "rm.yarn.io/accel-bind": "w1"}
    assert attribute_facts(attributes) == {"python": "3.11", "glibc": "2.36"}
    # An extension suffix begins with a dot, and the value of a node attribute may not.
    assert set(ATTRIBUTES.values()) == set(bootstrap.node_facts()) - {"extension_suffix"}


def test_exit_codes_have_a_reason_and_say_whether_it_lasts() -> None:
    assert explain_exit(bootstrap.EXIT_PYTHON) == (EXIT_REASONS[bootstrap.EXIT_PYTHON], True)
    reason, lasts = explain_exit(bootstrap.EXIT_DISK) or ("", True)
    assert "disk space" in reason
    assert not lasts
    assert explain_exit(1) is None
    assert explain_exit(137) is None


def test_exit_codes_differ_from_each_other_and_from_signals() -> None:
    own = [value for name, value in vars(bootstrap).items() if name.startswith("EXIT_")]
    assert len(set(own)) == len(own) == 5
    assert all(100 < code < 126 for code in own)
    json.dumps(dict(EXIT_REASONS))

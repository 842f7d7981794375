"""What `doctor` says of Torque's own protocol: it asks both ways, as the daemon does at its start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from torque_sched.batch.torque.protocol import ErrorCode
from torque_sched.daemon.checks import Check, Level, transport_check
from torque_sched.daemon.config import Config
from torque_sched.daemon.paths import Options
from torque_sched.emulation import EmulatedTorque, Fault

from .conftest import NODES


@pytest.fixture(scope="module")
def torque(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedTorque]:
    made = EmulatedTorque.create(tmp_path_factory.mktemp("c") / "c", nodes=NODES)
    with made:
        made.submit("-l", "nodes=1", "-p", "5", runtime_s=600)
        yield made


@pytest.fixture(autouse=True)
def environment(torque: EmulatedTorque, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in torque.env.items():
        monkeypatch.setenv(name, text)


def checked(torque: EmulatedTorque, transport: str = "auto") -> Check:
    config = Config(transport=transport, commands=str(torque.path))  # type: ignore[arg-type]
    return transport_check(Options(torque.home), config)


@pytest.fixture
def no_trqauthd(torque: EmulatedTorque) -> Iterator[None]:
    torque.control("trqauthd", "stop")
    yield
    torque.control("trqauthd", "start")


def test_both_ways_agree(torque: EmulatedTorque) -> None:
    agrees = "the batch protocol; its look agrees with the commands'"
    for transport, told in (
        ("auto", agrees),
        ("native", agrees),
        ("commands", "commands, as the settings say"),
    ):
        assert checked(torque, transport).line == f"ok      transport: {told}"


@pytest.mark.parametrize(("transport", "level"), [("auto", Level.WARNING), ("native", Level.WRONG)])
def test_where_they_differ_it_says_in_what(torque: EmulatedTorque, transport: str, level: str) -> None:
    program, real = torque.path / "qstat", torque.directory / "real" / "qstat"
    real.parent.mkdir(exist_ok=True)
    program.rename(real)
    try:
        change = "s/Priority>5</Priority>7</g; s/Priority = 5/Priority = 7/"
        program.write_text(f'#!/bin/sh\n{real} "$@" | sed "{change}"\n')
        program.chmod(0o755)
        found = checked(torque, transport)
    finally:
        real.replace(program)
    assert found.level == level
    assert found.text.endswith(
        "its look differs from the commands': job 1.head: priority (protocol 5, commands 7)"
    )
    assert "set transport: native" in found.cure
    assert checked(torque, transport).level == Level.OK


@pytest.mark.usefixtures("no_trqauthd")
@pytest.mark.parametrize(("transport", "level"), [("auto", Level.WARNING), ("native", Level.WRONG)])
def test_without_trqauthd_a_user_is_told_what_to_start(
    torque: EmulatedTorque, transport: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = checked(torque, transport)
    assert (found.level, f"no trqauthd at {torque.trqauthd}" in found.text) == (level, True)
    assert "start trqauthd" in found.cure


@pytest.mark.usefixtures("no_trqauthd")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only it may use a port below 1024")
def test_root_needs_no_trqauthd_unless_the_server_wants_another_proof(torque: EmulatedTorque) -> None:
    """A build with munge has no trqauthd, and believes no port: the commands know how to ask it."""
    (torque.home / "server_name").write_text(f"127.0.0.1:{torque.port}\n")
    assert checked(torque).line.startswith("ok"), checked(torque).line
    torque.set_faults(Fault("StatusServer", "exit", code=ErrorCode.NOT_AUTHORISED, text="Invalid credential"))
    try:
        found = checked(torque)
    finally:
        torque.set_faults()
    assert found.level == Level.WARNING
    assert found.text.startswith("commands: pbs_server does not take requests of root: Invalid credential")
    assert found.cure.startswith("it works, only slower; ")


def test_commands_that_fail_are_not_put_down_to_the_protocol(torque: EmulatedTorque) -> None:
    torque.set_faults(Fault("qstat", "exit", code=9, text="qstat: no licence\n", skip=4))
    try:
        found = checked(torque)
    finally:
        torque.set_faults()
    assert (found.level, found.text.startswith("not compared: qstat ")) == (Level.WARNING, True), found


def test_a_dead_server_is_no_matter_of_the_way(tmp_path: Path) -> None:
    made = EmulatedTorque.create(tmp_path / "c", nodes=NODES)
    with made:
        made.kill()
        assert checked(made, "native").level == Level.WRONG

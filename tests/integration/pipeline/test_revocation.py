"""A server refuses expired and revoked credentials, without being started again."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.integration.pipeline.conftest import MASTER
from yarn_accel.client.calls import Call, Tensor
from yarn_accel.client.client import Client
from yarn_accel.errors import AccelError, AuthenticationError
from yarn_accel.wire.credential import issue


def ask(server, credential, key="k"):
    with Client(server.endpoint, credential, timeout_s=120) as client:
        return client.call(Call(key, "echo", {}, (Tensor.of(np.eye(2)),))).server


def until_refused(attempt, reason):
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s:
        try:
            attempt()
        except AccelError as error:
            assert reason in str(error)
            return error
        time.sleep(0.05)
    pytest.fail("it was never refused")


def test_revoked_and_expired_credentials_are_refused_by_a_running_server(spawn_server, tmp_path):
    revoked = tmp_path / "revoked"
    revoked.write_text("# nobody yet\n")
    server = spawn_server("w1", revoked_file=str(revoked), devices=["cpu"]).wait_ready()

    def new(tenant, key_id, lifetime_s=3600):
        return issue(MASTER, tenant, int(time.time()) + lifetime_s, key_id)

    alice, alice2, bob = new("alice", "k1"), new("alice", "k2"), new("bob", "k1")
    for credential in (alice, alice2, bob):
        assert ask(server, credential) == "w1"

    with Client(server.endpoint, alice, timeout_s=120) as client:
        client.connect()
        revoked.write_text("alice k1\n")
        until_refused(lambda: ask(server, alice), "the credential of tenant alice was revoked")
        open_too = client.map((Call("late", "echo", {}, (Tensor.of(np.eye(2)),)),), window=1)
        with pytest.raises(AccelError):
            raise next(iter(open_too))[1]
    assert ask(server, alice2) == "w1", "another key of the same tenant counts"

    revoked.write_text("alice\n")
    # Whoever had just connected loses the connection; the next is not let in.
    until_refused(lambda: ask(server, alice2), "was revoked")
    error = until_refused(lambda: ask(server, alice2), "was revoked")
    assert isinstance(error, AuthenticationError)
    assert ask(server, bob) == "w1"

    revoked.write_text("")
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s:
        try:
            assert ask(server, alice, "again") == "w1"
            break
        except AuthenticationError:
            time.sleep(0.05)
    else:
        pytest.fail("it was never taken back")

    with pytest.raises(AuthenticationError, match="expired"):
        ask(server, new("alice", "k3", -1))

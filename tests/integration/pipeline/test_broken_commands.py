"""A command that the server's own code fails to carry out ends with an answer; nothing is held afterwards."""

import numpy as np
import pytest

from yarn_accel.client.calls import Call, Reference, Tensor
from yarn_accel.client.client import Client
from yarn_accel.core.requests import commands
from yarn_accel.errors import AccelError, UnavailableError
from yarn_accel.wire import TensorSpec

KIB = 1024
DATA = Tensor.of(np.arange(96 * KIB, dtype="u1"))
SMALL = Tensor.of(np.arange(6.0))


class Broken:
    """Fails the first time it is called, perhaps after its work was done, and then works again."""

    def __init__(self, work, is_done=False):
        self._work = work
        self._is_done = is_done
        self.has_failed = False

    def __call__(self, *arguments, **options):
        if self.has_failed:
            return self._work(*arguments, **options)
        self.has_failed = True
        if self._is_done:
            self._work(*arguments, **options)
        raise TypeError("broken by the test")


@pytest.fixture
def server(start_server, tmp_path):
    return start_server(unix_path=str(tmp_path / "socket"), workers=1)


def broken(owner, name, **options):
    """Break a method."""
    breaking = Broken(getattr(owner, name), **options)
    setattr(owner, name, breaking)
    return breaking


def broken_command(server, command):
    """Break how the server carries out a command."""
    handlers = server._engine._handlers
    handlers[command] = breaking = Broken(handlers[command])
    return breaking


@pytest.fixture
def serves_on(server, credential, wait_until):
    """Afterwards the next request works, and the machine holds nothing."""
    yield
    assert answer_of(server, credential, Call("after", "echo", {}, (DATA,))).bytes_out == len(DATA.data)
    machine = server._engine.machine
    wait_until(lambda: server.stats()["in_flight"] == 0, "nothing is under way")
    server.loop.ask(machine.validate, 60.0)
    snapshot = server.loop.ask(machine.snapshot, 60.0)
    assert (snapshot["queued"], snapshot["running"], snapshot["in_flight"]) == (0, 0, 0)
    assert snapshot["pool"]["used_bytes"] == snapshot["pool"]["kept_bytes"]


def workers(server, wait_until):
    wait_until(lambda: server.stats()["workers"][0]["state"] == "idle", "the worker is there")
    return server._engine.machine.workers


def answer_of(server, credential, call, node="elsewhere"):
    """The answer to a call, over a connection of its own."""
    with Client(server.endpoint, credential, node=node) as client:
        return client.call(call)


def error_of(server, credential, call, node="elsewhere"):
    """The error of a call."""
    with Client(server.endpoint, credential, node=node) as client, pytest.raises(AccelError) as caught:
        client.call(call)
    return caught.value


def by_reference(folder, output=""):
    (folder / "in.u1").write_bytes(bytes(DATA.data))
    source = Reference(f"file://{folder}/in.u1", TensorSpec("|u1", (96 * KIB,)))
    return Call("referenced", "echo", {}, (source,), output_uri=output)


@pytest.mark.usefixtures("serves_on")
def test_a_batch_that_cannot_be_handed_over(server, credential, caplog, wait_until):
    (process,) = workers(server, wait_until)
    broken(process, "send")
    error = error_of(server, credential, Call("k", "echo", {}, (SMALL,)))
    assert "the server broke: TypeError: broken by the test" in error.message
    (record,) = [each for each in caplog.records if "could not carry out" in each.message]
    assert record.exc_info is not None


@pytest.mark.usefixtures("serves_on")
def test_a_batch_that_was_handed_over_all_the_same_costs_the_worker(server, credential, wait_until):
    """It may write to the memory of its works until it has ended; then they are computed elsewhere."""
    (process,) = workers(server, wait_until)
    broken(process, "send", is_done=True)
    assert answer_of(server, credential, Call("k", "echo", {}, (SMALL,))).bytes_out == 48
    wait_until(lambda: server.stats()["workers"][0]["n_lost"] == 1, "the worker is replaced")


@pytest.mark.usefixtures("serves_on")
@pytest.mark.parametrize("name", ["look", "read", "write", "look_at_output"])
def test_storage_that_cannot_be_asked(server, credential, tmp_path, name):
    output = f"file://{tmp_path}/out.npz" if name in ("write", "look_at_output") else ""
    call = by_reference(tmp_path, output)
    if name == "look_at_output":
        answer_of(server, credential, call)
    broken(server._storage, name)
    error = error_of(server, credential, call)
    assert "the server broke: TypeError: broken by the test" in error.message


@pytest.mark.usefixtures("serves_on")
@pytest.mark.parametrize("node", ["elsewhere", None], ids=["of the pool", "to lend"])
def test_memory_that_cannot_be_made(server, credential, node):
    """Others may give theirs back, so it is tried again."""
    breaking = broken(server._buffers, "create")
    with Client(server.endpoint, credential, node=node) as client:
        assert client.carrier == ("tcp" if node else "memfd")
        assert client.call(Call("k", "echo", {}, (DATA,))).bytes_out == len(DATA.data)
    assert breaking.has_failed


@pytest.mark.usefixtures("serves_on")
@pytest.mark.parametrize("tensor", [SMALL, DATA], ids=["came with its header", "is still to come"])
def test_a_payload_that_has_no_place(server, credential, tensor):
    """The connection cannot be read on, and its key is free for who asks again."""
    breaking = broken_command(server, commands.Receive)
    error = error_of(server, credential, Call("k", "echo", {}, (tensor,)))
    assert isinstance(error, UnavailableError)
    assert "the server broke" in error.message
    assert breaking.has_failed
    reply = answer_of(server, credential, Call("k", "echo", {}, (tensor,)))
    assert bytes(next(iter(reply.tensors.values())).data) == bytes(tensor.data)


FAILING = Call("k", "cholesky", {}, (Tensor.of(-np.eye(3)),))
ECHO = Call("k", "echo", {}, (DATA,))


@pytest.mark.usefixtures("serves_on")
@pytest.mark.parametrize(
    ("command", "call", "node"),
    [
        (commands.ReplyResult, ECHO, "elsewhere"),
        (commands.ReplyResult, ECHO, None),
        (commands.ReplyFailure, FAILING, "elsewhere"),
        (commands.GrantMemory, ECHO, None),
    ],
    ids=["result", "result in shared memory", "failure", "grant"],
)
def test_an_answer_that_cannot_be_said_ends_its_connection(server, credential, command, call, node):
    """Its client hears why, and an answer that was never sent is there for who asks again."""
    breaking = broken_command(server, command)
    error = error_of(server, credential, call, node)
    assert isinstance(error, UnavailableError)
    assert "the server broke" in error.message
    assert breaking.has_failed
    if call is ECHO:
        assert answer_of(server, credential, call, node).bytes_out == len(DATA.data)


@pytest.mark.usefixtures("serves_on")
def test_a_repeated_answer_that_cannot_be_said(server, credential):
    call = Call("k", "echo", {}, (SMALL,))
    answer_of(server, credential, call)
    broken_command(server, commands.Repeat)
    assert "the server broke" in error_of(server, credential, call).message
    assert answer_of(server, credential, call).bytes_out == 48
    assert server.stats()["duplicates"] == 1


@pytest.mark.usefixtures("serves_on")
@pytest.mark.parametrize("command", [commands.Admit, commands.Skip])
def test_a_connection_that_cannot_be_read_on(server, credential, tmp_path, wait_until, command):
    call = by_reference(tmp_path)
    if command is commands.Skip:
        # The key is taken by another request.
        answer_of(server, credential, Call("k", "echo", {}, (SMALL,)))
        call = ECHO
    breaking = broken_command(server, command)
    error_of(server, credential, call)
    wait_until(lambda: breaking.has_failed, "the command was ordered")
    wait_until(lambda: not server._engine.sessions, "the connection has ended")

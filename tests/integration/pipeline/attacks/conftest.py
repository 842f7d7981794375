"""One server process that all attacks meet; what it uses is compared before and after each of them."""

import time

import pytest

from tests.integration.pipeline import bad_operations
from tests.integration.pipeline.attackers import RawClient, assert_serves, footprint, settled
from tests.integration.pipeline.conftest import MASTER, ServerProcess
from yarn_accel.wire.credential import issue

MIB = 1 << 20


@pytest.fixture(scope="package")
def server(tmp_path_factory):
    """One server process for all attacks of this folder."""
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "alice").mkdir()
    (folder / "alice2").mkdir()
    of_alice = f"file://{folder}/alice/"
    tenants = {"alice": {"read_prefixes": [of_alice], "write_prefixes": [f"{of_alice}out/"]}}
    tenants["bob"] = {"read_prefixes": [f"file://{folder}/bob/"]}
    sizes = {"pool_bytes": 256 * MIB, "queue_bytes": 64 * MIB, "max_request_bytes": 32 * MIB}
    options = {
        **sizes,
        "max_shared_memory_bytes": 8 * MIB,
        "stall_timeout_s": 3.0,
        "handshake_timeout_s": 3.0,
    }
    options |= {"workers": 2, "unix_path": str(folder / "socket"), "extra_operations": [bad_operations.PATH]}
    process = ServerProcess(folder / "server", "w1", tenants=tenants, **options)
    try:
        process.wait_ready()
        process.data = folder
        yield process
    finally:
        process.stop()


@pytest.fixture(scope="package")
def alice():
    return issue(MASTER, "alice", int(time.time()) + 3600, "k1")


@pytest.fixture(scope="package")
def bob():
    return issue(MASTER, "bob", int(time.time()) + 3600, "k1")


@pytest.fixture(scope="module")
def operator():
    """The one who sees process ids."""
    return issue(MASTER, "operator", int(time.time()) + 3600, "k1")


@pytest.fixture(autouse=True)
def unharmed(server, alice, request, wait_until):
    """The same process serves on afterwards, and uses no more than before."""
    assert_serves(server, alice)
    wait_until(server.has_loaded_all, "it has loaded all")
    before = footprint(server.process.pid)
    yield before
    assert server.process.poll() is None, (server.folder / "log").read_text()[-3000:]
    assert_serves(server, alice)
    stats = settled(server, alice)
    after = footprint(server.process.pid)
    assert after.own_bytes - before.own_bytes < 16 * MIB, (before, after)
    # Free segments are kept warm: two descriptors each, as many as one connection's share of 32 MiB makes.
    assert after.n_fds <= before.n_fds + 2 * 512 + 12, (before, after)
    assert after.n_threads <= before.n_threads + 6, (before, after)
    assert stats["pool"]["peak_bytes"] <= stats["pool"]["bound_bytes"]
    print(f"{request.node.name}: own memory {before.own_bytes / MIB:.1f} -> {after.own_bytes / MIB:.1f} MiB")


@pytest.fixture
def raw(server, alice):
    clients = []

    def connect(credential=None, **options):
        clients.append(RawClient(server.endpoint, credential or alice, **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()

"""Keys and prefixes belong to a tenant: nobody sees or changes what is another's."""

import contextlib

import numpy as np
import pytest

from tests.integration.pipeline.attackers import RawClient, statistics
from yarn_accel.client.calls import Call, Reference, Tensor
from yarn_accel.client.client import Client
from yarn_accel.errors import RejectedError, StorageError
from yarn_accel.wire import Ping, Pong, TensorSpec


def test_another_tenants_key_gives_nothing_away(server, alice, bob):
    """A key belongs to its tenant: the same words by somebody else are another request."""
    secret = np.full((100, 100), 42.0)
    with Client(server.endpoint, alice) as client:
        client.call(Call("shared-key", "echo", {}, (Tensor.of(secret),)))
    before = statistics(server, alice)["duplicates"]
    with Client(server.endpoint, bob) as client:
        reply = client.call(Call("shared-key", "echo", {}, (Tensor.of(np.zeros((100, 100))),)))
        assert not next(iter(reply.tensors.values())).array().any()
        cancelled = RawClient(server.endpoint, bob)
    with cancelled:
        assert isinstance(cancelled.answer(Ping(1)), Pong)
    assert statistics(server, alice)["duplicates"] == before
    with Client(server.endpoint, alice) as client, pytest.raises(RejectedError) as caught:
        client.call(Call("shared-key", "echo", {}, (Tensor.of(np.zeros((100, 100))),)))
    assert "key" in str(caught.value) or "key" in caught.value.code


def references(folder):
    """URIs that alice may not read, each for its own reason."""
    (folder / "bob").mkdir(exist_ok=True)
    secret = folder / "bob" / "secret.bin"
    secret.write_bytes(b"bob's secret")
    (folder / "alice" / "own.bin").write_bytes(b"alice's own")
    for link, target in (("link.bin", secret), ("folder", folder / "bob"), ("up", folder)):
        if not (folder / "alice" / link).is_symlink():
            (folder / "alice" / link).symlink_to(target)
    base = f"file://{folder}"
    return {
        "another tenant's": f"{base}/bob/secret.bin",
        "a sibling with a longer name": f"{base}/alice2/x",
        "a link to a file": f"{base}/alice/link.bin",
        "a link to a folder": f"{base}/alice/folder/secret.bin",
        "a link upwards": f"{base}/alice/up/bob/secret.bin",
        "dots": f"{base}/alice/../bob/secret.bin",
        "dots in disguise": f"{base}/alice/%2e%2e/bob/secret.bin",
        "dots behind a folder": f"{base}/alice/x/../../bob/secret.bin",
        "double slashes": f"{base}//bob/secret.bin",
        "another host": f"file://localhost{folder}/bob/secret.bin",
        "no scheme": f"{folder}/bob/secret.bin",
        "a device": "file:///dev/zero",
        "proc": "file:///proc/self/environ",
        "hdfs": "hdfs:///tmp/x",
        "the prefix itself": f"{base}/alice/",
        "a null byte": f"{base}/alice/own.bin\0x",
        "a query": f"{base}/alice/own.bin?x=1",
    }


def test_foreign_prefixes_and_links_are_not_read(server, alice):
    uris, outcomes = references(server.data), {}
    with Client(server.endpoint, alice) as client:
        own = client.call(Call("own", "echo", {}, (Reference(f"file://{server.data}/alice/own.bin"),)))
        assert bytes(next(iter(own.tensors.values())).array()) == b"alice's own"
        for name, uri in uris.items():
            call = Call(f"read {name}", "echo", {}, (Reference(uri, TensorSpec("|u1", (12,))),))
            found = client.map((call,), window=1)
            outcomes[name] = next(iter(found))[1]
    given = [
        name for name, outcome in outcomes.items() if not isinstance(outcome, RejectedError | StorageError)
    ]
    assert given == []
    assert not [name for name, outcome in outcomes.items() if "bob's secret" in str(outcome)]
    print(f"{len(uris)} foreign references refused")


def test_foreign_prefixes_and_links_are_not_written(server, alice):
    out = server.data / "alice" / "out"
    out.mkdir(exist_ok=True)
    outside = server.data / "bob" / "written.npz"
    outside.parent.mkdir(exist_ok=True)
    for link, target in (("link.npz", outside), ("folder", server.data / "bob")):
        if not (out / link).is_symlink():
            (out / link).symlink_to(target)
    base = f"file://{server.data}/alice"
    forbidden = [
        f"{base}/x.npz",
        f"{base}/out/../x.npz",
        f"{base}/out/folder/written.npz",
        f"file://{outside}",
    ]
    with Client(server.endpoint, alice) as client:
        good = Call("w", "echo", {}, (Tensor.of(np.eye(3)),), f"{base}/out/good.npz")
        assert client.call(good).tensors == {}
        calls = [Call(f"w{uri}", "echo", {}, (Tensor.of(np.eye(3)),), uri) for uri in forbidden]
        outcomes = {call.output_uri: outcome for call, outcome in client.map(calls, window=1)}
        # Renaming replaces a link and does not follow it; refusing it is as good.
        with contextlib.suppress(RejectedError, StorageError):
            client.call(Call("wl", "echo", {}, (Tensor.of(np.eye(3)),), f"{base}/out/link.npz"))
    written = [
        uri for uri, outcome in outcomes.items() if not isinstance(outcome, RejectedError | StorageError)
    ]
    assert written == []
    assert not outside.exists()
    assert (out / "good.npz").exists()


def test_a_prefix_is_each_tenants_own(server, bob):
    references(server.data)
    with Client(server.endpoint, bob) as client:
        mine = client.call(Call("b", "echo", {}, (Reference(f"file://{server.data}/bob/secret.bin"),)))
        assert bytes(next(iter(mine.tensors.values())).array()) == b"bob's secret"
        with pytest.raises((RejectedError, StorageError)):
            client.call(Call("b2", "echo", {}, (Reference(f"file://{server.data}/alice/own.bin"),)))
        with pytest.raises((RejectedError, StorageError)):
            client.call(Call("b3", "echo", {}, (Tensor.of(np.eye(3)),), f"file://{server.data}/bob/x.npz"))

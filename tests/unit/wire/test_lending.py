"""Shared memory is granted only where both ends have said that they can."""

import pytest

from yarn_accel.errors import LocalProtocolError, RemoteProtocolError
from yarn_accel.wire import (
    MEMFD,
    NEED_DATA,
    GiveBack,
    Lend,
    Lent,
    NamedTensor,
    Placement,
    Request,
    Result,
    TensorSpec,
)
from yarn_accel.wire.messages import encode

SPEC = TensorSpec("<f8", (10, 10))
REQUEST = Request(1, "k", "lu", {}, (SPEC, SPEC), placement=Placement(5, (0, 832)), keep_inputs=True)
RESULT = Result(1, {}, (NamedTensor("lu", SPEC),), "w1", "cpu", {}, 1600, 800, Placement(5, (1664,)))
LENDING = {"capabilities": (MEMFD,)}


@pytest.fixture
def lending(make_pair):
    return make_pair(client_options=LENDING, server_options=LENDING).open()


def test_a_segment_is_granted_used_and_given_back(lending):
    client, server = lending.client, lending.server
    assert lending.tell(client, server, Lend(3, 4096)) == Lend(3, 4096)
    assert lending.tell(server, client, Lent(3, 5, 65536)) == Lent(3, 5, 65536)
    assert lending.tell(client, server, REQUEST) == REQUEST
    assert server.payload_left == 0
    assert server.next_event() is NEED_DATA
    assert lending.tell(server, client, RESULT) == RESULT
    assert client.payload_left == 0
    assert lending.tell(client, server, GiveBack(5)) == GiveBack(5)


def test_tensors_in_a_segment_are_no_payload(lending):
    with pytest.raises(LocalProtocolError, match="0 bytes but 1600 were given"):
        lending.client.send(REQUEST, [bytes(800), bytes(800)])


@pytest.mark.parametrize("message", [REQUEST, Lend(1, 4096), GiveBack(5)])
@pytest.mark.parametrize("only", ["client", "server", "nobody"])
def test_without_agreement_a_client_cannot_lend(make_pair, only, message):
    options = {"client": {}, "server": {}, only: LENDING}
    pair = make_pair(client_options=options["client"], server_options=options["server"]).open()
    with pytest.raises(LocalProtocolError, match="not agreed"):
        pair.client.send(message)
    kind, varying_bytes, header, n_bytes = encode(message)
    pair.server.receive_data(pair.forge(pair.client, kind, header, n_bytes, varying_bytes))
    with pytest.raises(RemoteProtocolError, match="not agreed"):
        pair.server.next_event()


@pytest.mark.parametrize("message", [RESULT, Lent(0, 5, 65536)])
def test_without_agreement_a_server_cannot_lend(pair, message):
    with pytest.raises(LocalProtocolError, match="not agreed"):
        pair.server.send(message)
    kind, varying_bytes, header, n_bytes = encode(message)
    pair.client.receive_data(pair.forge(pair.server, kind, header, n_bytes, varying_bytes))
    with pytest.raises(RemoteProtocolError, match="not agreed"):
        pair.client.next_event()

"""Exchanges recorded from real daemons: played again, cut anywhere, and damaged in 20,000 ways."""

import random
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.adapters.hadoop_rpc.exchanges import drain, exchanges, mutated, recorded_logins
from tests.unit.adapters.hadoop_rpc.fake_hadoop import METHODS
from yarn_accel.adapters.hadoop_rpc import NotRegisteredError, framing, methods
from yarn_accel.adapters.hadoop_rpc.protobuf import decode_delimited, delimited, encode
from yarn_accel.adapters.hadoop_rpc.records import ContainerState, ExitStatus, NodeState
from yarn_accel.adapters.hadoop_rpc.rpc_errors import ApplicationGoneError
from yarn_accel.adapters.hadoop_rpc.sasl import Protection
from yarn_accel.adapters.hadoop_rpc.tokens import owner_of
from yarn_accel.errors import AccelError, AuthenticationError

RECORDED = exchanges()
CLIENT, ADMIN, WRONG, MASTER, NODE = RECORDED
N_MUTATIONS = 20_000
N_WATCHED = 2_000  # watching every allocation takes most of the time
ANSWERS = {name: each.answer for name, each in METHODS.items()}


def played(client, turns, calls):
    """Take what was received and make the calls; all events, and what is sent beside what was."""
    calls, events, sent = iter(calls), client.begin(), []
    for who, data in turns:
        if who == "received":
            client.receive_data(data)
            events += drain(client)
            continue
        waiting = client.data_to_send()
        if not waiting:
            name, request = next(calls)
            client.call(name, encode(request))
            waiting = client.data_to_send()
        sent.append((waiting, data))
    return events, sent


def play(exchange):
    """Make the same calls; all that was sent, and (method, answer or error) in order."""
    events, turns = played(exchange.client(), exchange.turns, exchange.calls())
    sent = b"".join(waiting for waiting, _ in turns)
    answers = [event for event in events if not isinstance(event, framing.LoggedIn)]
    return sent, [
        (
            name,
            each.error
            if isinstance(each, framing.CallFailed)
            else decode_delimited(ANSWERS[name], each.content)[0],
        )
        for (name, _), each in zip(exchange.calls(), answers, strict=True)
    ]


@pytest.mark.parametrize(
    "exchange", [CLIENT, ADMIN, MASTER, NODE], ids=lambda each: each.protocol.split(".")[-1]
)
def test_the_same_bytes_go_out_again(exchange):
    sent, _ = play(exchange)
    assert sent == exchange.sent


def test_what_the_resource_manager_said():
    _, outcome = play(CLIENT)
    answers = dict(reversed(outcome))
    assert answers["getNewApplication"].maximum.other == {"acct/slot": 2}
    nodes = answers["getClusterNodes"].reports
    assert {(each.node.host, each.rack, each.state) for each in nodes} == {
        ("w1", "/rack1", NodeState.RUNNING),
        ("w2", "/rack2", NodeState.RUNNING),
    }
    assert {each.key.prefix for each in nodes[0].attributes} == {"nm.yarn.io"}
    refused = answers["getApplicationReport"]
    assert isinstance(refused, ApplicationGoneError)
    assert refused.code == "application-not-found"
    assert "\tat " not in refused.message
    assert "application_" in refused.message
    assert outcome[-1][1].reports[0].name == "recorded"


def test_what_the_master_received():
    _, outcome = play(MASTER)
    assert isinstance(outcome[0][1], NotRegisteredError)
    registered = outcome[1][1]
    assert {each.name for each in registered.resource_types} == {"memory-mb", "vcores", "acct/slot"}
    heartbeats = [answer for name, answer in outcome if name == "allocate"][1:]
    assert [each.response_id for each in heartbeats] == list(range(1, len(heartbeats) + 1))
    assert all(each.command is None for each in heartbeats)
    (container,) = [each for beat in heartbeats for each in beat.allocated]
    (node_token,) = [each for beat in heartbeats for each in beat.node_tokens]
    assert node_token.node == container.node
    (status,) = [each for beat in heartbeats for each in beat.completed]
    assert (status.id, status.exit_status) == (container.id, ExitStatus.KILLED_BY_APPMASTER)
    assert outcome[-1][1].is_unregistered


def test_what_the_node_said():
    _, outcome = play(NODE)
    (first, again, statuses, stopped) = [answer for _, answer in outcome]
    assert len(first.succeeded) == 1
    (failed,) = again.failed
    assert failed.id == first.succeeded[0]
    assert failed.exception.class_name.startswith("org.apache.hadoop.yarn.exceptions.")
    assert statuses.statuses[0].state is ContainerState.RUNNING
    assert stopped.succeeded == first.succeeded


def test_a_wrong_password_is_refused():
    client = WRONG.client()
    client.begin()
    client.receive_data(WRONG.received)
    with pytest.raises(AuthenticationError, match=r"InvalidToken|SaslException"):
        drain(client)


LOGINS = recorded_logins()


@pytest.mark.parametrize(
    "recorded", LOGINS, ids=lambda each: f"{each.service}-{each.way}-{each.protection.name.lower()}"
)
def test_logins_to_real_services_are_played_again(recorded):
    """The same bytes go out, and the answers are read, with each protection of both logins."""
    nodes, token = methods.GetClusterNodesRequest(()), methods.GetDelegationTokenRequest("yarn")
    calls = [("getClusterNodes", nodes), ("getDelegationToken", token)]
    if recorded.service == "NameNode":
        del calls[0]
    events, sent = played(recorded.client(), recorded.turns, calls)
    for waiting, data in sent:
        assert waiting == data
    assert isinstance(events[0], framing.LoggedIn)
    if recorded.service == "ResourceManager":
        nodes = decode_delimited(methods.GetClusterNodesResponse, events[1].content)[0].reports
        assert {each.node.host for each in nodes} == {"w1", "w2"}
    if recorded.way == "ticket":
        token = decode_delimited(methods.GetDelegationTokenResponse, events[-1].content)[0].token
        kinds = {"ResourceManager": "RM_DELEGATION_TOKEN", "NameNode": "HDFS_DELEGATION_TOKEN"}
        assert token.kind == kinds[recorded.service]
        if recorded.service == "NameNode":
            assert owner_of(token).principal == "alice@KRB.TEST"
    elif recorded.service == "NameNode":
        assert "can be issued only with kerberos" in events[-1].error.message


def test_each_login_was_recorded_with_each_protection():
    seen = {(each.service, each.way, each.protection) for each in LOGINS}
    assert len(seen) == len(LOGINS) == 2 * 2 * len(Protection)


@given(st.sampled_from(RECORDED), st.lists(st.integers(0, 6000), max_size=8))
def test_frames_may_be_cut_anywhere(exchange, cuts):
    whole = [repr(each) for each in _receive(exchange, exchange.received, [])]
    assert [repr(each) for each in _receive(exchange, exchange.received, sorted(cuts))] == whole


def _receive(exchange, data, cuts):
    """All events, the error that ends them included; every call is made as soon as the connection is open."""
    client = exchange.client()
    events = [*client.begin()]
    bounds = [0, *(min(cut, len(data)) for cut in cuts), len(data)]
    n_made = 0
    try:
        for start, end in pairwise(bounds):
            client.receive_data(data[start:end])
            while True:
                if client.is_open and not n_made:
                    n_made = len([client.call(name, encode(request)) for name, request in exchange.calls()])
                event = client.next_event()
                if event is None:
                    break
                events.append(event)
    except AccelError as error:
        events.append(str(error))
    return events


def test_damaged_streams_end_in_an_error_of_ours():
    """20,000 mutations with a fixed seed: no other exception, no endless loop, little memory."""
    rng = random.Random(5)
    frames = [(exchange, *each) for exchange in RECORDED for each in _answers(exchange)]
    assert len(frames) > 25
    n_understood = 0
    tracemalloc.start()
    for at in range(N_MUTATIONS):
        exchange, method, stream = frames[at % len(frames)]
        n_understood += _survives(exchange, method, mutated(stream, rng))
        if at == N_WATCHED:
            peak_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert N_MUTATIONS // 10 < n_understood < N_MUTATIONS
    assert peak_bytes < 16 << 20


def _answers(exchange):
    """Every answer with its method, as that of call 0; and the login as a whole, without a method."""
    frames, at = [], 0
    data = exchange.received
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        frames.append(data[at : at + 4 + length])
        at += 4 + length
    n_login = len(frames) - len(exchange.calls())
    found = [("", b"".join(frames[:n_login]))] if n_login > 0 else []
    for (method, _), frame in zip(exchange.calls(), frames[max(0, n_login) :], strict=False):
        header, end = decode_delimited(framing.ResponseHeader, frame, 4)
        content = delimited(encode(replace(header, call_id=0))) + frame[end:]
        found.append((method, len(content).to_bytes(4, "big") + content))
    return found


def _survives(exchange, method, stream):
    """Whether the client made something of it; anything but an error of ours escapes."""
    client = (
        exchange.client() if not method else framing.RpcClientProtocol(exchange.protocol, framing.User("ann"))
    )
    client.begin()
    if method:
        client.call(method, b"")
    try:
        client.receive_data(stream)
        for event in drain(client):
            if isinstance(event, framing.CallAnswered):
                decode_delimited(ANSWERS[method], event.content)
    except AccelError:
        return False
    return True

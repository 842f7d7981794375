"""Tokens: licences by name, in the server's attribute and in a job's request."""

from __future__ import annotations

import pytest

from tests.fixtures.torque_printing import format_tokens
from torque_sched.errors import RecordError
from torque_sched.parse.qstat import parse_jobs, parse_server
from torque_sched.parse.request import parse_tokens

SERVER = "Server: head\n    server_state = Active\n    scheduling = True\n    tokens = {}\n\n"
JOB = "Job Id: 1.head\n    job_state = Q\n    queue = batch\n    Resource_List.tokens = {}\n\n"


def test_both_sides_are_read() -> None:
    text = "matlab:2.0,ansys:1.5"
    assert parse_server(SERVER.format(text)).tokens == (("matlab", 2.0), ("ansys", 1.5))
    assert parse_jobs(JOB.format("matlab:2")).items[0].request.tokens == (("matlab", 2.0),)
    assert format_tokens(parse_tokens(text)) == text


@pytest.mark.parametrize("text", ["matlab", "matlab:", ":2", "matlab:-1", "matlab:nan", "matlab:x,a:1"])
def test_what_is_no_token(text: str) -> None:
    with pytest.raises(RecordError, match="is not NAME:NUMBER"):
        parse_tokens(text)
    # The server's must not cost the snapshot; a job's must not be started by guess.
    assert parse_server(SERVER.format(text)).tokens == ()
    assert "tokens" in parse_jobs(JOB.format(text)).items[0].request.trouble

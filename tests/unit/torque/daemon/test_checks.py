"""What doctor says of this user's rights at the server, and of nodes that the server avoids."""

from __future__ import annotations

import pytest

from tests.unit.torque.policies.builders import NOW_S, node
from torque_sched.core.model import Server
from torque_sched.core.snapshot import Snapshot
from torque_sched.daemon.checks import Level, avoided_nodes, rights


@pytest.mark.parametrize(
    ("managers", "operators", "user", "is_root_there", "level"),
    [
        # As real servers answered, 4.2.10 and 6.1.3: root on their host may do everything, whoever is named.
        ((), (), "root@head", True, Level.OK),
        (("bob@head",), ("carol@head",), "root@head", True, Level.OK),
        (("bob@head",), ("carol@head",), "root@other", False, Level.WARNING),
        (("root@other",), (), "root@other", False, Level.OK),
        ((), ("carol@*",), "carol@head.example.org", False, Level.OK),
        ((), ("carol@head",), "carol@head.example.org", False, Level.OK),
        ((), ("carolus@head",), "carol@head", False, Level.WARNING),
        ((), (), "carol@head", False, Level.WARNING),
    ],
)
def test_rights(
    managers: tuple[str, ...], operators: tuple[str, ...], user: str, is_root_there: bool, level: str
) -> None:
    server = Server(name="head", managers=managers, operators=operators)
    found = rights(server, user, is_root_there=is_root_there)
    assert found.level == level
    assert (f"operators += {user}" in found.line) == (level == Level.WARNING)


@pytest.mark.parametrize(("version", "found"), [("6.1.3.h5", ["n2"]), ("4.2.10", [])])
def test_a_node_that_reports_and_is_left_alone_is_named(version: str, found: list[str]) -> None:
    nodes = (
        node("n1"),
        node("n2", state="down", rectime_s=NOW_S - 8),
        node("n3", state="down", rectime_s=NOW_S - 400),
        node("n4", state="down,offline", rectime_s=NOW_S - 8),
    )
    seen = Snapshot(NOW_S, Server(name="head", version=version), (), nodes, ())
    lines = [check.line for check in avoided_nodes(seen)]
    assert [line.split()[2] for line in lines] == found
    assert all("set node n2 state = free" in line for line in lines)

"""The specification and the tables of the code say the same."""

import re
from pathlib import Path

from yarn_accel import wire
from yarn_accel.wire import handshake
from yarn_accel.wire.connection import ACCEPTED
from yarn_accel.wire.messages import BY_KIND

SPEC = (Path(wire.__file__).parent / "SPEC.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (\d+) \| (\w+) \| (\w+) \|(?: (.*))?\|$", re.MULTILINE)
ROWS = {int(kind): (name, sender, rest) for kind, name, sender, rest in ROW.findall(SPEC)}


def test_the_version_is_the_one_described():
    assert SPEC.startswith(f"# The wire protocol, version {wire.VERSION}\n")


def test_every_kind_and_field_is_described():
    for kind, layout in BY_KIND.items():
        name, _, rest = ROWS[kind]
        assert name == layout.make.__name__
        fields = [layout.number, *[field.name for field in layout.fixed], layout.open]
        assert all(f"`{field}`" in rest for field in fields if field), name
    for kind, (make, fields) in handshake._BY_KIND.items():
        name, _, rest = ROWS[kind]
        assert name == make.__name__
        assert all(f"`{field.name}`" in rest for field in fields), name
    assert set(ROWS) == set(BY_KIND) | set(handshake._BY_KIND)


def test_who_sends_what_is_described():
    for kind, layout in BY_KIND.items():
        senders = {
            sender
            for sender, hearer in (("client", "server"), ("server", "client"))
            if layout.make in ACCEPTED[hearer]
        }
        described = ROWS[kind][1]
        assert senders == ({"client", "server"} if described == "both" else {described})

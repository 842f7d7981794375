"""How the link of a node is limited, whatever the node is. Pure."""

from __future__ import annotations

from yarn_accel.testbed.plan import rate_bits_per_s

#: The node's end of its link.
INSIDE = "eth0"


def shape_argvs(interface: str, link: str, delay: str, namespace: str = "") -> list[list[str]]:
    """Return the commands that limit what leaves an interface (pure)."""
    tc = ["tc", *(["-n", namespace] if namespace else []), "qdisc", "replace", "dev", interface]
    argvs = []
    parent = ["root"]
    if delay:
        argvs.append([*tc, *parent, "handle", "1:", "netem", "delay", delay, "limit", "100000"])
        parent = ["parent", "1:1"]
    if link:
        # One timer tick's worth, and the largest packets that a virtual link passes on at once.
        burst_bytes = max(256 * 1024, int(rate_bits_per_s(link) / 8 / 250))
        tbf = ["handle", "10:", "tbf", "rate", link, "burst", str(burst_bytes), "latency", "50ms"]
        argvs.append([*tc, *parent, *tbf])
    return argvs

"""pbs_sched's ``usage``: the fair-share usage it kept, as the C compiler laid its records out.

A record is a name of up to 8 characters and its NUL, then CPU seconds as a ``long`` at the next place such a
number may have: 24 bytes on machines of 64 bits, 16 on those of 32. A longer name runs on into the gap. There
is no header, no count and no version; users whose usage is 1 (the least there is) are left out.
"""

from __future__ import annotations

import struct

from torque_sched.errors import RecordError

_FORMS = ("<16sq", "<12si")
_MOST_BYTES = 64 << 20


def parse_usage(data: bytes, place: str = "usage") -> dict[str, float]:
    """CPU seconds by user or group.

    Raises:
        RecordError: these are no such records, of either size.
    """
    if len(data) > _MOST_BYTES:
        raise RecordError(f"{place} is {len(data)} bytes long", cure="remove it; usage then begins anew")
    for form in _FORMS:
        found = _read(data, form)
        if found is not None:
            return found
    raise RecordError(
        f"{place}: {len(data)} bytes that are no usage records of pbs_sched",
        cure="remove it; usage then begins anew",
    )


def _read(data: bytes, form: str) -> dict[str, float] | None:
    if len(data) % struct.calcsize(form):
        return None
    found: dict[str, float] = {}
    for raw, amount in struct.iter_unpack(form, data):
        name = raw.partition(b"\0")[0]
        if not name or amount < 0 or not all(32 < byte < 127 for byte in name):
            return None
        found[name.decode("ascii")] = float(amount)
    return found

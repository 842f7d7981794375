"""``python -m tests.integration.pipeline.greedy_client SOCKET SECRET TENANT HOW``: takes memory, keeps it.

``unread``: asks for echoes of 1 MiB until no more can be sent, and reads none.  ``shared``: takes shared
memory until it gets no more.  Prints how much that was, and then does nothing.
"""

import contextlib
import os
import sys
import time

from tests.integration.pipeline.attackers import RawClient
from yarn_accel.client.binding import Endpoint
from yarn_accel.wire import Lend, Lent, Request, TensorSpec
from yarn_accel.wire.credential import issue

MIB = 1 << 20
_SPEC = TensorSpec("|u1", (MIB,))


def leave_unread(client):
    client.sock.settimeout(2.0)
    n_sent = 0
    with contextlib.suppress(OSError):
        for number in range(176):
            request = Request(number, f"u{os.getpid()}-{number}", "echo", {}, (_SPEC,))
            client.sock.sendall(client.frame(request, [bytes(MIB)]))
            n_sent += 1
    return n_sent * MIB


def take_shared(client):
    n_bytes = 0
    while isinstance(event := client.answer(Lend(client.new_id(), MIB)), Lent):
        n_bytes += event.n_bytes
    return n_bytes


def main():
    path, secret, tenant, how = sys.argv[1:]
    credential = issue(bytes.fromhex(secret), tenant, int(time.time()) + 3600, "k1")
    client = RawClient(Endpoint("w1", "", 0, path), credential, unix=True, lending=True)
    n_bytes = {"unread": leave_unread, "shared": take_shared}[how](client)
    print(n_bytes, flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    main()

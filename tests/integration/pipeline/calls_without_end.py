"""``python calls_without_end.py HOST PORT SECRET_HEX OPERATION SECONDS``: calls a server until it is lost.

Prints lines of JSON: ``{"ready": true}`` after the first answer; then, when the server is lost, when (Unix
seconds) and why.  The first call is short, the others take SECONDS.
"""

import json
import sys
import time

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call
from yarn_accel.client.client import Client
from yarn_accel.errors import UnavailableError
from yarn_accel.wire.credential import issue


def main():
    host, port, secret, operation, seconds = sys.argv[1:]
    credential = issue(bytes.fromhex(secret), "alice", int(time.time()) + 3600, "k1")
    is_ready, number = False, 0
    try:
        with Client(Endpoint("w1", host, int(port)), credential, timeout_s=60.0) as client:
            while True:
                number += 1
                own_s = float(seconds) if number > 1 else 0.001
                client.call(Call(f"c{number}", operation, {"seconds": own_s}))
                if not is_ready:
                    print(json.dumps({"ready": True}), flush=True)
                    is_ready = True
    except UnavailableError as error:
        print(json.dumps({"at": time.time(), "why": str(error)}), flush=True)


if __name__ == "__main__":
    main()

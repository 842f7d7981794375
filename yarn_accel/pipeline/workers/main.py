"""A worker process: ``python -m yarn_accel.pipeline.workers.main CHANNEL CONTROL PARENT [OPERATIONS ...]``.

It imports what operations need, says that it is ready, and waits: as a standby until it is ordered to take a
place (its cores or its GPU), then for jobs, until the other end of the channel is closed.  The number of
threads of numerical libraries comes with the environment, since they read it when they are loaded.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence

from yarn_accel.pipeline.workers.launching import ControlWord, die_with_parent
from yarn_accel.pipeline.workers.protocol import Channel, encode_object


def main(arguments: Sequence[str]) -> int:
    """Be a worker."""
    # Imported modules stay, and to look for garbage among them would take an eighth of the start.
    gc.disable()
    channel_fd, control_fd, parent = (int(text) for text in arguments[:3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not die_with_parent(parent):
        return 1
    for fd in (channel_fd, control_fd):
        os.set_inheritable(fd, False)
    faulthandler.enable(control_fd)
    channel = Channel(socket.socket(fileno=channel_fd))
    control = ControlWord(control_fd)
    threading.Thread(target=control.keep_ticking, name="tick", daemon=True).start()
    try:
        # Imported only now: from here on a failure can be reported, and the process no longer outlives its
        # owner.
        from yarn_accel.pipeline.workers.execution import prepare, versions
        from yarn_accel.pipeline.workers.worker import Worker

        worker = Worker(channel, control)
        prepare(arguments[3:])
        gc.freeze()
        gc.enable()
        channel.send(encode_object(ready=versions()))
        worker.serve()
    except (BrokenPipeError, ConnectionResetError):
        pass
    except Exception as error:  # noqa: BLE001 -- the owner must hear why
        channel.send(encode_object(unfit=f"{type(error).__name__}: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Run commands side by side: ``python -m tests.lanes NAME=COMMAND NAME=COMMAND``.

Every line is shown as it comes, after the name of its lane; at the end stands how each lane ended, with its
failures once more. Exit status 0: all ended with 0. An interruption reaches every lane once, and all are
waited for, since they take down what they started.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

REPEATED_LINES = re.compile(r"(FAILED|ERROR) |=+ .* in [\d.]+s.*=$|make.*\*\*\*")
"""Lines that the end shows again: failed tests, pytest's last line, what make could not do."""


class Lane:
    """A command in a session of its own: what is typed at the terminal interrupts only who shows it."""

    def __init__(self, name: str, command: str) -> None:
        self.name = name
        self.reported: list[str] = []
        self.seconds = 0.0
        self._process = subprocess.Popen(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._show)
        self._thread.start()

    def _show(self) -> None:
        began_s = time.monotonic()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            sys.stdout.write(f"{self.name} | {line}")
            sys.stdout.flush()
            if REPEATED_LINES.match(line):
                self.reported.append(line)
        self._process.wait()
        self.seconds = time.monotonic() - began_s

    def interrupt(self) -> None:
        """Tell all its processes to end."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGINT)

    def ended(self) -> int:
        """Wait for the end; the exit status."""
        self._thread.join()
        return self._process.returncode


def main(words: list[str]) -> int:
    """Run the lanes; 0 if all went well."""
    lanes: list[Lane] = []

    def interrupt(*_: object) -> None:
        for lane in lanes:
            lane.interrupt()

    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # else nohup wants it to go on
        signals.append(signal.SIGHUP)
    for number in signals:
        signal.signal(number, interrupt)
    lanes.extend(Lane(*word.split("=", 1)) for word in words)
    codes = [lane.ended() for lane in lanes]
    for lane, code in zip(lanes, codes, strict=True):
        minutes, seconds = divmod(round(lane.seconds), 60)
        print(f"\n{lane.name}: {minutes} min {seconds} s, exit status {code}")
        print("".join(lane.reported), end="")
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

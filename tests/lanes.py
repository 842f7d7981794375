"""Run commands side by side: ``python -m tests.lanes [--again COMMAND] NAME=COMMAND NAME=COMMAND``.

Every line is shown as it comes, after the name of its lane; at the end stands how each lane ended, with its
failures once more. Exit status 0: all ended with 0. An interruption reaches every lane once, and all are
waited for, since they take down what they started.

With ``--again``, at most three tests that failed are run once more when all lanes have ended, by this command
and their names. If they pass, the exit status is 0, and the last lines call them unstable: each is a fault of
the test or of the product, which only shows beside others, and which somebody has to cure.
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

FAILED_TEST = re.compile(r"(?:FAILED|ERROR) (tests/\S+\.py::.+?)(?: - .*)?$")
MAX_AGAIN = 3


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

    def failed_tests(self) -> list[str]:
        """The names of the tests that failed, each once."""
        found = (FAILED_TEST.match(line.rstrip("\n")) for line in self.reported)
        return list(dict.fromkeys(match[1] for match in found if match))


def main(words: list[str]) -> int:
    """Run the lanes; 0 if all went well."""
    again = ""
    if words[:1] == ["--again"]:
        again, words = words[1], words[2:]
    lanes: list[Lane] = []
    is_interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        for lane in lanes:
            lane.interrupt()

    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # else nohup wants it to go on
        signals.append(signal.SIGHUP)
    for number in signals:
        signal.signal(number, interrupt)
    lanes.extend(Lane(*word.split("=", 1)) for word in words)
    for lane in lanes:
        lane.ended()
    failing = [lane for lane in lanes if shown_end(lane)]
    tests = [lane.failed_tests() for lane in failing]
    n_tests = sum(map(len, tests))
    if not failing or not again or not all(tests) or n_tests > MAX_AGAIN or is_interrupted:
        return int(bool(failing))
    print(f"\nonce more, when nothing else runs: {n_tests} tests that failed", flush=True)
    names = [name for found in tests for name in found]
    lanes.append(Lane("again", f"{again} {shlex.join(names)}"))
    if shown_end(lanes[-1]):
        return 1
    print("".join(f"UNSTABLE {name}: it failed beside others, and passed alone\n" for name in names), end="")
    return 0


def shown_end(lane: Lane) -> int:
    """Wait for the end of a lane and print it; the exit status."""
    code = lane.ended()
    minutes, seconds = divmod(round(lane.seconds), 60)
    print(f"\n{lane.name}: {minutes} min {seconds} s, exit status {code}")
    print("".join(lane.reported), end="", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

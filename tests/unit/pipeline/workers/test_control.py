from __future__ import annotations

import faulthandler
import subprocess
import sys
import threading

import pytest

from yarn_accel.pipeline.workers.control import N_LANES, ControlWord, LaneState

_PROGRAM = """
import ctypes, faulthandler, sys, threading, time
faulthandler.enable(int(sys.argv[1]))
def meanwhile(): time.sleep(600)
threading.Thread(target=meanwhile, daemon=True).start()
time.sleep(0.1)
def faulty(): ctypes.string_at(8)
faulty()
"""


@pytest.fixture
def control():
    word = ControlWord()
    yield word
    word.close()


def test_each_lane_says_what_it_is_at_and_no_number_stands_for_two_things(control):
    fields = [control.SINCE_NS, control.MEASURING, control.ALIVE_NS]
    for lane in range(N_LANES):
        fields += [lane * control.LANE + field for field in (control.STATE, control.FIRST, control.COUNT)]
        control.words[lane * control.LANE + control.STATE] = LaneState.READING
        control.words[lane * control.LANE + control.FIRST] = 10 + lane
        control.words[lane * control.LANE + control.COUNT] = 1 + lane
    assert len(set(fields)) == len(fields)
    found = [control.job_at({10 + lane}) for lane in range(N_LANES)]
    assert found == [(LaneState.READING, 10 + lane, 1 + lane) for lane in range(N_LANES)]


def test_nothing_is_reported_of_a_worker_that_no_fault_killed(control):
    assert control.last_frames() == []


def test_the_frames_are_those_of_the_thread_that_failed(control):
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(control.fd)], pass_fds=[control.fd], timeout=120, check=False
    )
    assert ended.returncode < 0
    frames = control.last_frames()
    assert "string_at" in frames[0]
    assert "faulty" in frames[1]
    assert not any("meanwhile" in frame for frame in frames)


def test_another_thread_listed_first_is_not_blamed(control):
    """All threads are notified, those that wait as well."""
    waits = threading.Event()
    thread = threading.Thread(target=waits.wait, daemon=True)
    thread.start()
    faulthandler.dump_traceback(control.fd, all_threads=True)
    waits.set()
    thread.join()
    frames = control.last_frames()
    assert "test_control.py" in frames[0]
    assert not any("in wait" in frame for frame in frames)

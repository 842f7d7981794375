"""Operations that take their time, for ``extra_operations``: as if the servers had devices of other speeds.

``timed`` takes ``seconds`` (a parameter) over the speed in the name of the table that is configured.
"""

import time

from yarn_accel.operations.operation import Operation, Outcome, allocate


def _timed(speed):
    def run(arrays, params, place=allocate):
        time.sleep(params["seconds"] / speed)
        return Outcome({}, {"speed": speed})

    return [Operation("timed", "", None, lambda specs, params: None, run, lambda specs, params: 0)]


SPEED_1, SPEED_2, SPEED_4 = (_timed(speed) for speed in (1, 2, 4))

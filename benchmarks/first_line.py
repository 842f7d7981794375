"""A streaming mapper that says when it read each line: ``attempt<TAB>unix seconds``. Standard library."""

import os
import sys
import time

for _ in sys.stdin:
    sys.stdout.write("\t".join((os.environ["mapreduce_task_attempt_id"], repr(time.time()))) + "\n")  # noqa: SIM112  (Hadoop names it)

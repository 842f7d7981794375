"""What runs first in our containers: small logs, the container's secret, its devices; then it is the command.

``python -m yarn_accel.launch.inside WORD...`` is ``yarn-accel WORD...`` for a process that NodeManagers run
for weeks: YARN never rotates the files it opens for it.  ``launch serve FILE``, the server of an accelerator
node, exists here alone: it does without what only people's commands need.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
from pathlib import Path

from yarn_accel.errors import AccelError
from yarn_accel.launch.device_lock import take_from_environment
from yarn_accel.launch.rotation import rotate_output
from yarn_accel.launch.secrets import deliver

__all__ = ["SERVE", "main"]

#: The words before the file of a server's settings.
SERVE = ("launch", "serve")


def main() -> None:
    """Run the command of ``sys.argv``; its exit code is ours."""
    rotate_output()
    is_server = sys.argv[1:3] == list(SERVE)
    try:
        deliver(os.environ, Path())
        # The locks end with this process: nothing gives them back before.
        take_from_environment(os.environ)
        if is_server:
            sys.exit(_serve(Path(sys.argv[3])))
    except AccelError as error:
        sys.stderr.write(f"yarn-accel: {error}\n")
        sys.exit(error.exit_code)
    sys.argv[0] = "yarn-accel"
    runpy.run_module("yarn_accel", run_name="__main__", alter_sys=True)


def _serve(settings_file: Path) -> int:
    # Modules make many objects that stay: to look for garbage among them takes an eighth of the start.  It
    # is looked for again when the server is ready.
    gc.disable()
    from yarn_accel.launch.serving import main as serve

    return serve(settings_file)


if __name__ == "__main__":
    main()

"""The first code in our containers: it rotates logs, delivers secrets, locks devices, then runs the command.

``python -m yarn_accel.launch.container_entry WORD...`` is ``yarn-accel WORD...`` for a process that a
NodeManager runs for weeks: YARN never rotates the files that it opens for it.  The words ``launch serve
FILE`` exist here alone: they start the pipeline server of an accelerator node, its first worker process
before anything else.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from yarn_accel.errors import AccelError, ConfigError
from yarn_accel.launch.container_secrets import deliver
from yarn_accel.launch.device_lock import take_from_environment
from yarn_accel.launch.log_rotation import rotate_output
from yarn_accel.pipeline.workers.launching import Launched, launch

#: The words before the file of a server's settings.
SERVE = ("launch", "serve")


def main() -> None:
    """Run the command of ``sys.argv`` and exit with its code."""
    rotate_output()
    try:
        deliver(os.environ, Path())
        # The locks end with this process: nothing gives them back before.
        take_from_environment(os.environ)
        if sys.argv[1:3] == list(SERVE):
            sys.exit(_serve(Path(sys.argv[3])))
    except AccelError as error:
        sys.stderr.write(f"yarn-accel: {error}\n")
        sys.exit(error.exit_code)
    sys.argv[0] = "yarn-accel"
    runpy.run_module("yarn_accel", run_name="__main__", alter_sys=True)


def _serve(settings_file: Path) -> int:
    # Imports make many objects that stay: a search for garbage among them takes an eighth of the start.
    # `pipeline.service` enables it again when the server is ready.
    gc.disable()
    document = _read(settings_file)
    keep_kernels(os.environ, Path())
    worker = _first_worker(settings_file, document)
    # Loaded only now, while the worker loads its libraries, which takes longest.
    from yarn_accel.launch.node_server import node_config
    from yarn_accel.node.paths import remove_abandoned
    from yarn_accel.pipeline.serve import serve

    config = node_config(document, os.environ)
    status = serve(config, worker)
    # Whoever of agent and server ends last takes their folder along.
    remove_abandoned(Path(config.state_file).parent, 0.0)
    return status


def keep_kernels(environ: MutableMapping[str, str], folder: Path) -> None:
    """Have the server's workers keep compiled kernels in the container's folder, unless the site says where.

    CuPy's own choice is the home folder, which containers of YARN cannot write.
    """
    environ.setdefault("CUPY_CACHE_DIR", str(folder.absolute() / "cupy-kernels"))


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise _foreign(path) from None


def _first_worker(path: Path, document: dict[str, Any]) -> Launched:
    try:
        server = document["server"]
        return launch(int(server["cores_per_worker"]), [str(each) for each in server["extra_operations"]])
    except (KeyError, TypeError, ValueError):
        raise _foreign(path) from None


def _foreign(path: Path) -> ConfigError:
    return ConfigError(f"{path}: not what `yarn-accel start` writes")


if __name__ == "__main__":
    main()

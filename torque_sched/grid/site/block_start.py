"""Travels in a block's job script: waits until all blocks stand at the barrier, then writes the body out.

Standard library only, Python 3.6: it runs on compute nodes, which need to reach nothing but their own
site's process. Its input is the dict ``BLOCK`` that the script defines in front of it; its result are the
files ``environment`` (for the shell to read) and ``script`` in the folder it is given. Exit code 0: run;
75: the start was cancelled; 76: nobody was reached in time.
"""

import base64
import json
import os
import shlex
import sys
import time
import urllib.request
from typing import Any, Callable, Dict, List, Optional

CANCELLED = 75
NOBODY = 76
ASK_FIRST_S = 0.1
ASK_AGAIN_S = 1.0
REQUEST_S = 10.0


def own_hosts() -> List[str]:
    """Host names of this block, first one first, each once."""
    try:
        with open(os.environ["PBS_NODEFILE"]) as file:
            names = file.read().split()
    except (KeyError, OSError):
        names = [os.uname().nodename]
    return list(dict.fromkeys(names))


def ask(block: Dict[str, Any], hosts: List[str]) -> Optional[Dict[str, Any]]:
    """Tell the site's process that we stand here; what it says, or None when it was not reached."""
    question = {"ticket": block["ticket"], "job": os.environ.get("PBS_JOBID", ""), "hosts": hosts}
    request = urllib.request.Request(
        block["url"], json.dumps(question).encode("utf-8"), {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=REQUEST_S) as answer:
            said = json.loads(answer.read(1 << 22).decode("utf-8"))
            return said if isinstance(said, dict) else None
    except (OSError, ValueError):
        return None


def write_out(folder: str, block: Dict[str, Any], go: Dict[str, Any]) -> None:
    """The files the shell goes on with."""
    hosts = go["hosts"]
    lines = ["%d %s %s\n" % (i, site, host) for i, site in enumerate(go["sites"]) for host in hosts[i]]
    host_file = os.path.join(folder, "hosts")
    with open(host_file, "w") as file:
        file.write("".join(lines))
    variables = {
        "TORQUE_GRID_JOB": block["job"],
        "TORQUE_GRID_HOME": block["home"],
        "TORQUE_GRID_SITE": block["site"],
        "TORQUE_GRID_INDEX": str(block["index"]),
        "TORQUE_GRID_COUNT": str(block["count"]),
        "TORQUE_GRID_SITES": " ".join(go["sites"]),
        "TORQUE_GRID_HOSTS": " ".join(",".join(names) for names in hosts),
        "TORQUE_GRID_HOSTFILE": host_file,
    }
    with open(os.path.join(folder, "environment"), "w") as file:
        file.write("".join("export %s=%s\n" % (key, shlex.quote(text)) for key, text in variables.items()))
    script = os.path.join(folder, "script")
    with open(script, "wb") as file:
        file.write(base64.b64decode(block["script"]))
    os.chmod(script, 0o700)


def main(
    block: Dict[str, Any],
    folder: str,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Wait; returns the exit code."""
    hosts = own_hosts()
    end = clock() + block["wait_s"]
    pause = ASK_FIRST_S
    while clock() < end:
        said = ask(block, hosts)
        if said is not None and said.get("say") == "go":
            write_out(folder, block, said)
            return 0
        if said is not None and said.get("say") == "cancel":
            sys.stderr.write("torque-grid: the start was cancelled: %s\n" % said.get("why", ""))
            return CANCELLED
        sleep(pause)
        pause = min(ASK_AGAIN_S, pause * 1.5)
    sys.stderr.write("torque-grid: %s did not say go in time\n" % block["url"])
    return NOBODY


if __name__ == "__main__":
    sys.exit(main(BLOCK, sys.argv[1]))  # type: ignore[name-defined]  # noqa: F821

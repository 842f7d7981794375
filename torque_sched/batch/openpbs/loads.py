"""What nodes measure of themselves, by the sampler that Torque's nodes run too: from a vnode, or from files.

OpenPBS reports no loads. A hook on each MoM may write the sampler's file into the resource `RESOURCE` of
its vnode, which ``pbsnodes -av`` shows; or the samplers write into one shared folder, a file for each host.
Where a host has both, the newer one counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torque_sched.adapters.home import check_folder
from torque_sched.batch.openpbs.parse.text import Block
from torque_sched.errors import TorqueSchedError
from torque_sched.model.cluster import Node
from torque_sched.sampler.form import MAX_BYTES, sample_from_varattr

logger = logging.getLogger(__name__)

RESOURCE = "torque_sched_sample"
SUFFIX = ".sample"
HOOK_NAME = "torque_sched_load"
OBJECTS = (("hook", HOOK_NAME), ("resource", RESOURCE))
"""What an installation makes; with the resource its values on vnodes go."""
_SHOWN = f"resources_available.{RESOURCE}"
_MOST_FILES = 20_000
_OLD_S = 120.0
"""An older sample was left by a sampler that is gone."""
_HOOK = """\
# torque-sched: show the sampler's file in this vnode, for `pbsnodes -av`. Runs on each MoM, every 30 s.
try:
    import pbs

    with open({file!r}) as source:
        lines = source.read({most}).splitlines()
    text = ";".join(line for line in lines if "," not in line and " " not in line)
    vnode = pbs.event().vnode_list[pbs.get_local_nodename()]
    vnode.resources_available[{resource!r}] = text
except Exception:
    pass
"""


def hook_text(file: str) -> str:
    """The MoM hook's source.

    Args:
        file: what the sampler of each node writes.
    """
    return _HOOK.format(file=file, most=MAX_BYTES, resource=RESOURCE)


def qmgr_lines(source: str) -> list[str]:
    """What a manager tells qmgr to have the MoMs run the hook.

    Args:
        source: where the hook's source lies for qmgr.
    """
    return [
        f"create resource {RESOURCE} type=string, flag=h",
        f"create hook {HOOK_NAME}",
        f'set hook {HOOK_NAME} event = "exechost_periodic"',
        f"set hook {HOOK_NAME} freq = 30",
        f"set hook {HOOK_NAME} alarm = 5",
        f"import hook {HOOK_NAME} application/x-python default {source}",
    ]


def read_files(folder: Path, now_s: float) -> bytes:
    """The samples of a shared folder, a line for each host: its name, a blank, ``key:value;...``.

    Args:
        folder: of ``HOST.sample`` files; not writable for others.
        now_s: older files are left out.
    """
    try:
        check_folder(folder)
    except TorqueSchedError as error:
        logger.warning("no loads from files: %s", error)
        return b""
    lines = []
    for path in sorted(folder.glob(f"*{SUFFIX}"))[:_MOST_FILES]:
        try:
            if now_s - path.stat().st_mtime > _OLD_S:
                continue
            with path.open("rb") as file:
                text = file.read(MAX_BYTES + 64)
        except OSError:
            continue
        lines.append(path.name.removesuffix(SUFFIX).encode() + b" " + b";".join(text.split()) + b"\n")
    return b"".join(lines)


def samples_of(blocks: Sequence[Block], files: bytes) -> dict[str, dict[str, str]]:
    """The newest sample of each host or vnode, as ``key: value``.

    Args:
        blocks: of ``pbsnodes -av``.
        files: of `read_files`.
    """
    found: dict[str, dict[str, str]] = {}
    for block in blocks:
        # Most sites have none: then no block is read a second time for it.
        attributes = dict(block.pairs()) if _SHOWN in block.text else {}
        if attributes:
            host = attributes.get("resources_available.host", block.name)
            _keep_newer(found, host, attributes.get(_SHOWN, ""))
    for line in files.decode("utf-8", "replace").splitlines():
        host, _, text = line.partition(" ")
        _keep_newer(found, host, text)
    return found


def _keep_newer(found: dict[str, dict[str, str]], host: str, text: str) -> None:
    values = {key: value for key, sign, value in (each.partition(":") for each in text.split(";")) if sign}
    sample = sample_from_varattr(values)
    before = sample_from_varattr(found.get(host, {}))
    if sample is not None and (before is None or sample.at_s >= before.at_s):
        found[host] = values


def with_loads(nodes: Iterable[Node], samples: Mapping[str, Mapping[str, str]]) -> tuple[Node, ...]:
    """The nodes with what their samplers measured; how old that is says its own time alone."""
    return tuple(
        replace(node, status=replace(node.status, varattr=samples[str(node.name)]))
        if node.status is not None and str(node.name) in samples
        else node
        for node in nodes
    )

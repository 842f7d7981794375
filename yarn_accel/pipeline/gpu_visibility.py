"""Which GPUs the environment lets a process use.

``CUDA_VISIBLE_DEVICES`` is read as CUDA reads it: numbers, UUIDs, the beginning of a UUID that only one has,
MIG ids; what follows an entry that names nothing does not count, so empty and ``-1`` are none at all.  A
UUID that may be that of a lost GPU is passed over.  Numbers are those of ``nvidia-smi``; CUDA itself counts
so where ``CUDA_DEVICE_ORDER`` is ``PCI_BUS_ID`` or all GPUs are of one model.

``NVIDIA_VISIBLE_DEVICES`` is a word to the container runtime, which has acted on it before a process starts:
what it names by UUID or ``none`` holds here, too.  Its numbers count the node's GPUs; where NVML shows no
more GPUs than it names, the runtime has hidden the others and renumbered the rest.  ``void`` says that
another way of handing out devices is used, and nothing about which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from yarn_accel.pipeline.nvml import Gpu

CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
NVIDIA_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
_ORDER_VARIABLE = "CUDA_DEVICE_ORDER"


def visible_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """Those of the GPUs that may be used, in the order of the variable that names them; with their faults.

    The number or UUID of a GPU that MIG divides stands for all of its parts.
    """
    seen = _named_to_runtime(gpus, environ.get(NVIDIA_VARIABLE, ""))
    names = environ.get(CUDA_VARIABLE)
    if names is None:
        return seen
    found: list[Gpu] = []
    for name in names.split(","):
        # Numbers are the node's, whatever the other variable hides.
        matching = [gpu for gpu in _matching(gpus, name.strip()) if gpu not in found]
        if not matching and not _may_be_silent(gpus, name.strip()):
            break
        found += matching
    return [gpu for gpu in found if gpu in seen]


def doubtful_numbers(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> bool:
    """Whether the environment names GPUs by numbers that CUDA may count in another order than we do."""
    names = environ.get(CUDA_VARIABLE, "").split(",")
    is_ordered = environ.get(_ORDER_VARIABLE) == "PCI_BUS_ID"
    models = {gpu.product for gpu in gpus if not gpu.fault}
    return not is_ordered and len(models) > 1 and any(name.strip().isdecimal() for name in names)


def _named_to_runtime(gpus: Sequence[Gpu], text: str) -> list[Gpu]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or names in (["all"], ["void"]):
        return list(gpus)
    if names == ["none"]:
        return []
    n_gpus = len({gpu.index for gpu in gpus})
    if all(name.replace(":", "").isdecimal() for name in names) and n_gpus <= len(names):
        return list(gpus)
    found: list[Gpu] = []
    for name in names:
        found += [gpu for gpu in _matching(gpus, name) if gpu not in found]
    return found


def _matching(gpus: Sequence[Gpu], name: str) -> list[Gpu]:
    """What one entry names; a UUID may be cut short where only one GPU begins so."""
    if name.isdecimal():
        return [gpu for gpu in gpus if gpu.index == int(name)]
    if name.replace(":", "").isdecimal():
        return [gpu for gpu in gpus if gpu.name == f"cuda:{name}"]
    if not name.startswith(("GPU-", "MIG-")):
        return []
    parts = [gpu for gpu in gpus if gpu.uuid.startswith(name) or _former_id(gpu) == name]
    if parts:
        return parts if len(parts) == 1 else []
    parents = {gpu.parent_uuid for gpu in gpus if gpu.parent_uuid.startswith(name)}
    return [gpu for gpu in gpus if gpu.parent_uuid in parents] if len(parents) == 1 else []


def _may_be_silent(gpus: Sequence[Gpu], name: str) -> bool:
    """Whether the entry may name a GPU that no longer tells its UUID: it hides none of those that follow."""
    return name.startswith(("GPU-", "MIG-")) and any(not gpu.uuid for gpu in gpus)


def _former_id(gpu: Gpu) -> str:
    """How drivers before 470 named a part; CUDA still takes it."""
    if gpu.instance is None:
        return ""
    return f"MIG-{gpu.parent_uuid}/{gpu.instance[0]}/{gpu.instance[1]}"

"""Checks of a start before it submits: whether the nodes can run what travels to them.

* Interpreters: a NodeManager does not report its node's Python or C library.  Nodes that publish them as node
  attributes are checked here.  Any other node checks itself when its first container starts, and ends that
  container with an exit code which the ApplicationMaster reports.
* GPUs: whether the environment can compute on those there are, or that were asked for.
* Memory: buffers are sized to the nodes where the settings do not say how large they are, and no role may be
  larger than YARN gives out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from yarn_accel.adapters.hadoop_rpc.records import (
    NodeReport,
    YarnResource,
)
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.launch import bootstrap
from yarn_accel.launch.config import EnvironmentSettings, LaunchConfig
from yarn_accel.launch.packing import Requirement, distributions
from yarn_accel.launch.plan import ApplicationPlan, RolePlan
from yarn_accel.pipeline.config import PipelineConfig

#: Node attribute (any prefix) -> the fact it tells.
ATTRIBUTES = {
    "accel-python": "python",
    "accel-glibc": "glibc",
    "accel-machine": "machine",
}


@dataclass(frozen=True, slots=True)
class CompatibilityReport:
    """Facts about the nodes, as far as they are known before a submission.

    Attributes:
        incompatible: node -> why it cannot run the environment, with the cure.
        unknown: nodes without attributes; each checks itself.
    """

    incompatible: Mapping[str, str]
    unknown: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{node}: {why}" for node, why in sorted(self.incompatible.items())]
        if self.unknown:
            lines.append(f"{len(self.unknown)} nodes tell neither Python nor glibc: each checks itself")
        return "\n".join(lines)


def check_nodes(requirement: Requirement, facts: Mapping[str, Mapping[str, str]]) -> CompatibilityReport:
    """Check every node by what is known of it.

    Args:
        requirement: of the packed environment.
        facts: node -> its facts by the names of `Requirement`, as far as known (see `attribute_facts`).
    """
    incompatible, unknown = {}, []
    need = asdict(requirement)
    for node, have in facts.items():
        if not have:
            unknown.append(node)
        try:
            bootstrap.check_node(need, dict(have))
        except bootstrap.StartRefused as error:
            incompatible[node] = str(error)
    return CompatibilityReport(incompatible, tuple(sorted(unknown)))


def attribute_facts(attributes: Mapping[str, str]) -> dict[str, str]:
    """The facts on Python and C library in a node's attributes (name, with or without prefix, -> value)."""
    names = {name.rpartition("/")[2]: value for name, value in attributes.items()}
    return {fact: names[name] for name, fact in ATTRIBUTES.items() if names.get(name)}


GPU_EXTRAS = {"bundled": "gpu", "site": "gpu-site"}
"""By form of the environment, the extra that it takes along."""
_WHAT = {
    "bundled": "CuPy and CUDA 12's libraries travel to the nodes, about 2.6 GB there",
    "site": "CuPy travels to the nodes, about 0.4 GB there; each GPU node needs CUDA 12's toolkit",
    "none": "no CuPy travels to the nodes: their servers compute on the CPU",
}
_GPU = "yarn.io/gpu"
_N_NODES = 6
_CURE = "pip install 'cluster-accel[yarn,gpu]' here, with which `environment: {gpu: auto}` packs it"
_CUPY = re.compile(r"cupy-cuda(\d+)")
_CUDA_MAJORS = ("12", "13")


def gpu_form(settings: EnvironmentSettings) -> str:
    """``bundled``, ``site`` or ``none``: what travels for GPUs; ``auto`` is what is installed here."""
    if settings.gpu != "auto":
        return settings.gpu
    named = [form for form, extra in GPU_EXTRAS.items() if extra in settings.extras]
    return next(
        (form for form in [*named, *GPU_EXTRAS] if form in named or _is_installed(GPU_EXTRAS[form])), "none"
    )


def packed_extras(settings: EnvironmentSettings) -> tuple[str, ...]:
    """The extras that are packed, that of the GPUs among them.

    Raises:
        StartupError: what the settings ask for is not installed here.
    """
    extra = GPU_EXTRAS.get(gpu_form(settings))
    others = [each for each in settings.extras if each not in GPU_EXTRAS.values()]
    if extra is None:
        return tuple(others)
    try:
        distributions((extra,))
    except StartupError as error:
        cure = f"pip install 'cluster-accel[yarn,{extra}]' here, or `environment: {{gpu: none}}`"
        raise StartupError(f"environment.gpu: {settings.gpu}: {error.message}", cure=cure) from None
    return (*others, extra)


def gpu_note(settings: EnvironmentSettings) -> str:
    """The meaning of the setting here, in one line."""
    form = gpu_form(settings)
    asked = settings.gpu if settings.gpu == form else f"{settings.gpu}, here {form}"
    return f"environment.gpu: {asked}: {_WHAT[form]}"


def _is_installed(extra: str) -> bool:
    try:
        return bool(distributions((extra,)))
    except StartupError:
        return False


def _check_cupy(packed: Iterable[str]) -> None:
    cure = "leave it out of `environment: {packages: ...}`; `environment: {gpu: ...}` takes cupy-cuda12x"
    found = {name: match[1] for name in packed if (match := _CUPY.match(name))}
    for name, major in found.items():
        if major not in _CUDA_MAJORS:
            raise ConfigError(f"{name} is of CUDA {major}, which is not supported", cure=cure)
    if len(found) > 1:
        text = f"{' and '.join(sorted(found))} do not work in one environment"
        raise ConfigError(text, cure=f"{cure}; CUDA 13's CuPy goes with `environment: {{gpu: none}}`")


def check_gpu_environment(config: LaunchConfig, nodes: Sequence[NodeReport]) -> list[str]:
    """Notes on an environment without CuPy on a cluster with GPUs; none: all is well.

    Nodes whose GPUs YARN does not count are not known here; `status` says what their servers compute on.

    Raises:
        ConfigError: the settings ask for GPUs, or CuPy is there twice, or of a CUDA that is not supported.
        StartupError: what the settings ask to pack is not installed here.
    """
    asked, found = _asked(config), _nodes_with_gpus(nodes)
    packed = distributions(packed_extras(config.environment), config.environment.packages)
    _check_cupy(packed)
    if not (asked or found) or any(name.startswith("cupy") for name in packed):
        return []
    if asked:
        raise ConfigError(f"{asked} asks for GPUs, and CuPy is not in the environment", cure=_CURE)
    if config.server.gpus == 0 or "auto" not in config.pipeline_settings.devices:
        return []
    more = f" and {len(found) - _N_NODES} more" if len(found) > _N_NODES else ""
    where = ", ".join(found[:_N_NODES]) + more
    return [f"the GPUs of {where} stay idle, for CuPy is not in the environment: {_CURE}"]


def _asked(config: LaunchConfig) -> str:
    """The setting that asks for GPUs; empty: none does."""
    server = config.server
    if isinstance(server.gpus, int) and server.gpus:
        return f"`server: {{gpus: {server.gpus}}}`"
    if server.devices.isdecimal():
        return f"`server: {{devices: {server.devices}}}`"
    names = [name for name in config.pipeline_settings.devices if name.startswith("cuda")]
    return f"`pipeline: {{devices: [{', '.join(names)}]}}`" if names else ""


def _nodes_with_gpus(nodes: Sequence[NodeReport]) -> list[str]:
    return sorted(
        node.node.host
        for node in nodes
        if node.is_usable and node.capability is not None and node.capability.other.get(_GPU, 0)
    )


_MIB = 1024 * 1024
#: Scaled together, and only where none of them is set.
_BUFFERS = ("pool_bytes", "queue_bytes", "max_request_bytes", "max_shared_memory_bytes")
_STEPS = 16
_GPU = "yarn.io/gpu"
_STEP_KEY, _USUAL_STEP_MIB = "yarn.scheduler.minimum-allocation-mb", 1024
_LIMIT_KEY = "yarn.scheduler.maximum-allocation-mb"


def fitted(
    config: LaunchConfig, properties: Mapping[str, str], nodes: Sequence[NodeReport]
) -> tuple[LaunchConfig, tuple[str, ...]]:
    """The settings, with smaller buffers where a server with the default ones fits on no node.

    Args:
        properties: the cluster's; YARN rounds containers up, and bounds them.
        nodes: the cluster's.

    Returns:
        the settings, and what to say about them; nothing: they are as they were.
    """
    node_mib = _smallest_mib(config, nodes)
    if not node_mib or config.server.memory_mib or any(name in config.pipeline for name in _BUFFERS):
        return config, ()
    step_mib = _number(properties, _STEP_KEY, _USUAL_STEP_MIB)
    others = [config.master.memory_mib, config.agent.memory_mib if config.agent.enabled else 0]
    free_mib = node_mib - sum(-(-each // step_mib) * step_mib for each in others)
    free_mib = min(free_mib, _number(properties, _LIMIT_KEY, free_mib)) // step_mib * step_mib
    usual = {name: int(PipelineConfig.model_fields[name].default) for name in _BUFFERS}
    for share in range(_STEPS, 0, -1):
        sizes: dict[str, Any] = {name: n_bytes * share // _STEPS for name, n_bytes in usual.items()}
        smaller = config.model_copy(update={"pipeline": {**config.pipeline, **sizes}})
        if smaller.server_memory_mib <= free_mib:
            if share == _STEPS:
                return config, ()
            pools = [f"{given['pool_bytes'] // _MIB} MiB" for given in (sizes, usual)]
            why = f"so a server fits on a node of {node_mib} MiB beside an agent and the master"
            return smaller, (f"pool_bytes is {pools[0]} instead of {pools[1]}: {why}",)
    return config, ()


def _smallest_mib(config: LaunchConfig, nodes: Sequence[NodeReport]) -> int:
    """Memory of the smallest node that has an accelerator; of all, as long as none is known to have one."""
    named = config.master.settings.get("accelerator_nodes", ())
    sizes = {
        node.node.host: (node.capability.memory_mib, node.capability.other.get(_GPU, 0))
        for node in nodes
        if node.is_usable and node.capability is not None
    }
    known = [
        memory_mib
        for host, (memory_mib, n_gpus) in sizes.items()
        if n_gpus or any(fnmatchcase(host, each) for each in named)
    ]
    return min(known or [memory_mib for memory_mib, _ in sizes.values()], default=0)


def _number(properties: Mapping[str, str], key: str, usual: int) -> int:
    text = properties.get(key, "")
    return int(text) if text.isdecimal() and int(text) > 0 else usual


def check_sizes(
    plan: ApplicationPlan, maximum: YarnResource | None, nodes: tuple[NodeReport, ...]
) -> list[str]:
    """Check that YARN can allocate containers of these sizes.

    Args:
        maximum: the largest container the cluster gives out.
        nodes: the cluster's.

    Returns:
        what will not fit on any node as it is now; it may fit on one that comes.

    Raises:
        ConfigError: the cluster never gives out one as large.
    """
    warnings = []
    for role in plan.roles.values():
        wanted = {"memory-mb": role.memory_mib, "vcores": role.vcores, **role.other}
        if maximum is not None:
            _check_maximum(role, wanted, _amounts(maximum))
        have = [_amounts(node.capability) for node in nodes if node.capability is not None]
        if have and not any(all(amounts.get(k, 0) >= n for k, n in wanted.items()) for amounts in have):
            listed = ", ".join(f"{name} {amount}" for name, amount in wanted.items())
            warnings.append(f"no node is large enough for a container of role {role.name} ({listed})")
    return warnings


def _check_maximum(role: RolePlan, wanted: dict[str, int], maximum: dict[str, int]) -> None:
    for name, amount in wanted.items():
        if amount > maximum.get(name, 0):
            cure = "let YARN give out so many, or ask for less with `gpus` of the role"
            if name in ("memory-mb", "vcores"):
                cure = (
                    "ask for less (accelerator containers follow pipeline.pool_bytes and workers), or raise "
                    "yarn.scheduler.maximum-allocation-mb or -vcores"
                )
            raise ConfigError(
                f"role {role.name} needs {name} {amount}, the largest container has {maximum.get(name, 0)}",
                cure=cure,
            )


def _amounts(resource: YarnResource) -> dict[str, int]:
    return {"memory-mb": resource.memory_mib, "vcores": resource.vcores, **resource.other}

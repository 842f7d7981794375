"""The ``gpu_status`` of a node, from NVML (6.x) or nvidia-smi (4.x); everything in it is optional.

::

    gpu[1]=gpu_id=..;gpu_utilization=0%;..,gpu[0]=..,gpu_display=Disabled,driver_ver=..,timestamp=..
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torque_sched.batch.torque.parse.records import keyed
from torque_sched.model.cluster import GpuDevice, GpuReport

_DEVICE = re.compile(r"gpu\[([0-9]{1,4})\]=(.*)", re.DOTALL)
_FIELD = re.compile(r"gpu_\w{1,60}", re.ASCII)
_FREE_TEXTS = frozenset({"gpu_product_name"})
_NUMBER = re.compile(r"\s*(-?[0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([%A-Za-z]*)\s*")
_MEBIBYTES = {"MB": 1, "MIB": 1, "GB": 1024, "GIB": 1024}


def parse_gpu_status(text: str) -> GpuReport:
    """The report in a ``gpu_status`` value. What is missing, ``N/A`` or garbled becomes None."""
    devices: dict[int, str] = {}
    values: dict[str, str] = {}
    last: int | str | None = None
    for part in text.split(","):
        found = _DEVICE.fullmatch(part)
        key, equals, value = part.partition("=")
        if found is not None:
            last = int(found.group(1))
            devices[last] = found.group(2)
        elif isinstance(last, int) and (not equals or ";" in part):
            devices[last] += "," + part  # of the GPU's name
        elif equals:
            last = key.strip()
            values[last] = value
        elif isinstance(last, str):
            values[last] += "," + part
    ordered = tuple(_device(index, devices[index]) for index in sorted(devices))
    return GpuReport(ordered, values.get("driver_ver", ""), values.get("timestamp", ""), values)


def _device(index: int, text: str) -> GpuDevice:
    fields = keyed(text, ";", _FREE_TEXTS, lambda key, _: _FIELD.fullmatch(key) is not None)
    return GpuDevice(
        index=index,
        gpu_id=fields.get("gpu_id", ""),
        product=fields.get("gpu_product_name", ""),
        mode=fields.get("gpu_mode", ""),
        state=fields.get("gpu_state", ""),
        memory_total_bytes=_memory(fields, "gpu_memory_total"),
        memory_used_bytes=_memory(fields, "gpu_memory_used"),
        utilization=_fraction(fields, "gpu_utilization"),
        memory_utilization=_fraction(fields, "gpu_memory_utilization"),
        single_bit_ecc_errors=_count(fields, "gpu_single_bit_ecc_errors"),
        double_bit_ecc_errors=_count(fields, "gpu_double_bit_ecc_errors"),
        temperature_c=_number(fields, "gpu_temperature"),
        fields=fields,
    )


def _number(fields: Mapping[str, str], name: str) -> float | None:
    found = _NUMBER.fullmatch(fields.get(name, ""))
    return float(found.group(1)) if found else None


def _count(fields: Mapping[str, str], name: str) -> int | None:
    number = _number(fields, name)
    return None if number is None else int(number)


def _fraction(fields: Mapping[str, str], name: str) -> float | None:
    percent = _number(fields, name)
    return None if percent is None or percent < 0 else min(percent, 100.0) / 100.0


def _memory(fields: Mapping[str, str], name: str) -> int | None:
    found = _NUMBER.fullmatch(fields.get(name, ""))
    if found is None:
        return None
    factor = _MEBIBYTES.get(found.group(2).upper())
    return None if factor is None else int(float(found.group(1)) * factor) * 1024**2

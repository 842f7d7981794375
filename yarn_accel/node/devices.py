"""The accelerators of this node, read in a thread of its own, because a faulty driver may never answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

from yarn_accel.adapters.nvml import read_devices

_PATIENCE_S = 1.0
_MAX_DEVICES = 64
_Device = dict[str, Any]


def device_health(device: Mapping[str, Any], hot_celsius: float) -> str:
    """``ok``, ``hot``, or ``failed`` when the driver reports a fault, or no name."""
    if device.get("fault") or device.get("name") is None:
        return "failed"
    temperature_c = device.get("temperature_c")
    return "hot" if temperature_c is not None and temperature_c >= hot_celsius else "ok"


class DeviceWatch:
    """Asks the driver for the devices; used from one event loop.

    A device that was there once and is not any more is described as ``lost``: that is how a broken one shows.
    While the driver does not answer, the last devices are described as ``silent``, and nothing waits.

    Args:
        read: `read_devices`.
    """

    def __init__(self, hot_celsius: float, read: Callable[[], list[_Device]] = read_devices) -> None:
        self._hot_celsius = hot_celsius
        self._read = read
        self._known: dict[str, _Device] = {}
        self._probing: asyncio.Future[list[_Device]] | None = None

    async def report(self) -> list[_Device]:
        """Every device with ``index`` and ``health``, fit for JSON."""
        is_new = self._probing is None
        if self._probing is None:
            loop = asyncio.get_running_loop()
            self._probing = loop.create_future()
            # A daemon thread and no pool: one that hangs in the driver must not hold up the exit.
            threading.Thread(
                target=self._probe, args=(loop, self._probing), name="devices", daemon=True
            ).start()
        asking = self._probing
        await asyncio.wait([asking], timeout=_PATIENCE_S if is_new else 0)
        if not asking.done():
            return [{**device, "health": "silent"} for device in self._known.values()]
        self._probing = None
        return self._merged(asking.result()[:_MAX_DEVICES])

    def _merged(self, found: list[_Device]) -> list[_Device]:
        devices = []
        for at, device in enumerate(found):
            key = str(device.get("device", at))
            described = {**device, "index": at, "health": device_health(device, self._hot_celsius)}
            self._known[key] = described
            devices.append(described)
        names = {str(device.get("device", at)) for at, device in enumerate(found)}
        lost = [{**device, "health": "lost"} for key, device in self._known.items() if key not in names]
        return devices + lost

    def _probe(self, loop: asyncio.AbstractEventLoop, asking: asyncio.Future[list[_Device]]) -> None:
        try:
            found = self._read()
        except Exception:  # noqa: BLE001 -- a driver that fails in a new way is one without devices
            found = []
        try:
            loop.call_soon_threadsafe(_settle, asking, found)
        except RuntimeError:
            return  # the loop has ended meanwhile


def _settle(asking: asyncio.Future[list[_Device]], found: list[_Device]) -> None:
    if not asking.done():
        asking.set_result(found)

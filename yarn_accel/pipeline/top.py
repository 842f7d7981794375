"""``yarn-accel pipeline top``: what a running server is doing, refreshed like the program of that name.

It asks the server for its statistics through an ordinary connection as tenant ``operator``; rates and busy
shares are differences of two answers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from yarn_accel.adapters.repeated_output import repeated_output
from yarn_accel.errors import AccelError, ConfigError
from yarn_accel.pipeline.config import load_config
from yarn_accel.pipeline.counters import OPERATOR

if TYPE_CHECKING:
    from yarn_accel.client.client import Client
    from yarn_accel.pipeline.config import PipelineConfig

_CREDENTIAL_S = 24 * 3600
_STAGES = ("read", "compute", "write")
_RETRY_S = 1.0
#: A table in a file is not folded.
_FILE_WIDTH = 120
_Stats = Mapping[str, Any]


@click.command("top")
@click.option(
    "--config", "config_file", required=True, type=click.Path(path_type=Path), help="YAML configuration file."
)
@click.option("--once", is_flag=True, help="Print one picture and end.")
@click.option(
    "--interval",
    "interval_s",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.1, 60),
    help="Seconds.",
)
def command(config_file: Path, once: bool, interval_s: float) -> None:
    """Show what the running server is doing: stages, queues, rates, workers, devices."""
    config = load_config(config_file)
    try:
        _show_once(config, interval_s) if once else _show(config, interval_s)
    except KeyboardInterrupt:
        pass
    except AccelError as error:
        click.echo(f"pipeline top: {error}", err=True)
        sys.exit(error.exit_code)


def operator_client(config: PipelineConfig) -> Client:
    """A client, not yet connected, of the server with this configuration; with port 0 its state file says.

    Raises:
        ConfigError: the master secret or the state file cannot be used.
    """
    from yarn_accel.client.binding import Endpoint
    from yarn_accel.client.client import Client
    from yarn_accel.wire.credential import issue

    port = config.listen_port
    if config.listen_host and not port and config.state_file:
        try:
            port = int(json.loads(Path(config.state_file).read_text(encoding="utf-8"))["port"])
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"state_file {config.state_file}: {error}; is the server running?") from None
    endpoint = Endpoint(config.name or "pipeline", config.listen_host, port, config.unix_path)
    credential = issue(config.master_secret(), OPERATOR, int(time.time()) + _CREDENTIAL_S, "pipeline-top")
    return Client(endpoint, credential)


def _show_once(config: PipelineConfig, interval_s: float) -> None:
    with operator_client(config) as client:
        before = client.stats()
        time.sleep(interval_s)
        picture = screen(before, client.stats())
    Console(width=None if sys.stdout.isatty() else _FILE_WIDTH).print(picture)


def _show(config: PipelineConfig, interval_s: float) -> None:
    client = operator_client(config)
    client.connect()
    before: _Stats = {}
    with repeated_output(_FILE_WIDTH) as show:
        while True:
            try:
                after = client.stats()
            except AccelError as error:
                # The server may come back; what it counted starts again at 0 then.
                show(Text(f"{error}\nasking again every second; end with ^C"))
                client.close()
                before = {}
                time.sleep(_RETRY_S)
                continue
            show(screen(before, after))
            before = after
            time.sleep(interval_s)


def screen(before: _Stats, after: _Stats) -> RenderableType:
    """The whole picture.

    Args:
        before: earlier statistics of the same server; empty, or of a server that was started again: rates are
            averages since the start.
        after: the statistics of now.
    """
    if before.get("pid") != after.get("pid") or not before.get("uptime_s", 0) < after.get("uptime_s", 0):
        before = {}
    window_s = after.get("uptime_s", 0) - before.get("uptime_s", 0)
    rate = _Rate(before, after, max(window_s, 1e-3))
    parts: list[RenderableType] = [_title(after, rate), _stages(after, rate), _memory(after)]
    parts += [_shares(after, rate, "tenants", "device_s"), _shares(after, rate, "operations", "compute_s")]
    parts.append(_workers(after, before, window_s))
    if after.get("devices"):
        parts.append(_devices(after["devices"]))
    return Group(*parts)


class _Rate:
    """Differences of two snapshots per second."""

    def __init__(self, before: _Stats, after: _Stats, window_s: float) -> None:
        self._before, self._after, self.window_s = before, after, window_s

    def __call__(self, *path: str) -> float:
        """Per second of what is found under these keys."""
        return (_number_at(self._after, path) - _number_at(self._before, path)) / self.window_s


def _number_at(stats: Any, path: Iterable[str]) -> float:
    for key in path:
        stats = stats.get(key) if isinstance(stats, Mapping) else None
    return float(stats) if isinstance(stats, int | float) else 0.0


def _title(stats: _Stats, rate: _Rate) -> Text:
    health = stats.get("health", {})
    text = Text(f"{stats.get('server', '?')}", style="bold")
    text.append(f"  pid {stats.get('pid', '?')}, up {_duration(stats.get('uptime_s', 0))}", style="dim")
    text.append(f"   {rate('requests'):.1f} requests/s", style="bold cyan")
    text.append(f"  in {_bytes(rate('bytes_in'))}/s  out {_bytes(rate('bytes_out'))}/s")
    text.append(f"  in flight {stats.get('in_flight', 0)}")
    connections = stats.get("open_connections", {})
    if connections:
        text.append("\nconnections: " + ", ".join(f"{n} {label}" for label, n in sorted(connections.items())))
    if stats.get("is_draining"):
        text.append("\ndraining", style="bold yellow")
    for problem in health.get("problems", ()):
        text.append(f"\nproblem: {problem}", style="bold red")
    return text


def _stages(stats: _Stats, rate: _Rate) -> Table:
    table = _table("stage", ">busy", ">requests wait in it", "")
    for stage in _STAGES:
        # Seconds at work per second; may exceed 1, as several threads or workers do the same.
        share = rate("stage_busy", stage)
        table.add_row(stage, f"{share:.2f}", f"{rate('stage_seconds', stage):.2f}", _bar(share))
    return table


def _memory(stats: _Stats) -> Table:
    table = _table("memory", ">now", ">peak", ">bound", "")
    for name, queue in stats.get("queues", {}).items():
        table.add_row(f"{name} queue", *_filling(queue))
    pool = stats.get("pool")
    if pool:
        table.add_row("pool", *_filling({**pool, "bytes": pool.get("used_bytes", pool.get("bytes", 0))}))
        note = f"{pool.get('waiting', 0)} requests wait for memory" if pool.get("waiting") else ""
        table.add_row(
            "  of it shared; kept warm",
            _bytes(pool.get("shared_bytes", 0)),
            _bytes(pool.get("free_bytes", 0)),
            "",
            note,
        )
    return table


def _filling(area: _Stats) -> tuple[str, str, str, Text]:
    used, bound = area.get("bytes", 0), area.get("bound_bytes", 0)
    return _bytes(used), _bytes(area.get("peak_bytes", 0)), _bytes(bound), _bar(used / bound if bound else 0)


def _shares(stats: _Stats, rate: _Rate, group: str, seconds: str) -> Table:
    table = _table(
        group[:-1], ">asked/s", ">done/s", ">refused/s", ">failed/s", ">device s/s", ">in", ">out", ">queued"
    )
    for name, counts in sorted(stats.get(group, {}).items()):
        numbers = [
            f"{rate(group, name, key):.1f}" if key in counts or key != "requests" else ""
            for key in ("requests", "done", "rejected", "failed")
        ]
        sizes = [
            f"{_bytes(rate(group, name, key))}/s" if key in counts else ""
            for key in ("bytes_in", "bytes_out")
        ]
        table.add_row(
            name, *numbers, f"{rate(group, name, seconds):.2f}", *sizes, str(counts.get("queued", ""))
        )
    return table


def _workers(after: _Stats, before: _Stats, window_s: float) -> Table:
    table = _table(">worker", "device", ">pid", "state", ">busy", ">jobs", ">memory", "cores", "last fault")
    busy_before = {each.get("pid"): each.get("busy_s", 0.0) for each in _rows(before, "workers")}
    for at, each in enumerate(_rows(after, "workers")):
        busy_s = each.get("busy_s", 0.0) - busy_before.get(each.get("pid"), 0.0)
        table.add_row(
            "" if each.get("worker") == -1 else str(each.get("slot", at)),
            str(each.get("device", "")),
            str(each.get("pid", "")),
            str(each.get("state", "")),
            f"{min(1.0, max(0.0, busy_s) / max(window_s, 1e-3)):.2f}",
            str(each.get("n_jobs", "")),
            _bytes(each.get("rss_bytes") or each.get("rss") or 0),
            _cores(each.get("affinity")),
            str(each.get("last_fault") or ""),
        )
    return table


def _devices(devices: Sequence[_Stats]) -> Table:
    table = _table("device", "name", ">temperature", ">memory", ">of others", ">used", "")
    for each in devices:
        total, share = each.get("memory_total_bytes"), each.get("utilisation")
        temperature = each.get("temperature_c")
        table.add_row(
            str(each.get("device", "")),
            str(each.get("name") or each.get("fault") or ""),
            "" if temperature is None else f"{temperature} °C",
            _bytes(each.get("memory_bytes") or 0) + (f" / {_bytes(total)}" if total else ""),
            _bytes(each["other_bytes"]) if each.get("other_bytes") else "",
            "" if share is None else f"{share:.0%}",
            _bar(share or 0),
        )
    return table


def _table(*headings: str) -> Table:
    """A table; headings with ``>`` in front are of numbers."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading.lstrip(">"), justify="right" if heading.startswith(">") else "left")
    return table


def _bar(share: float, width: int = 20) -> Text:
    n_full = round(min(1.0, max(0.0, share)) * width)
    style = "green" if share < 0.8 else "yellow" if share < 0.95 else "red"
    return Text("━" * n_full, style=style).append("─" * (width - n_full), style="dim")


def _bytes(n_bytes: float) -> str:
    """Such as ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n_bytes) < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} TiB"


def _duration(seconds: float) -> str:
    minutes, rest_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest_s:02d}"


def _cores(affinity: Any) -> str:
    return (
        ",".join(str(core) for core in affinity)
        if isinstance(affinity, list | tuple)
        else str(affinity or "")
    )


def _rows(stats: _Stats, name: str) -> Sequence[_Stats]:
    found = stats.get(name)
    return found if isinstance(found, list | tuple) else ()

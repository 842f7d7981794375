"""``yarn-accel node``: the agent, its settings, its key, and the files that a site installs for it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from yarn_accel.adapters.settings_file import described
from yarn_accel.errors import UnavailableError
from yarn_accel.node.config import load_config, read_key

_FOLDER = Path(__file__).parent
_config_option = click.option(
    "--config", "config_file", type=click.Path(path_type=Path), help="YAML configuration file; default: none."
)


@click.group("node")
def group() -> None:
    """The services of every node."""


@group.command("agent")
@_config_option
@click.option("--node", default="", help="This node's name, as YARN has it.")
@click.option("--run-dir", default="", help="Folder of socket, state and lock.")
@click.option(
    "--dry-run", is_flag=True, help="Print the heartbeat that would be sent, and to whom; send nothing."
)
def _agent(config_file: Path | None, node: str, run_dir: str, dry_run: bool) -> None:
    """Tell the master how this node is, and local mappers where their server is, until SIGTERM."""
    config = load_config(config_file, os.environ, node=node, run_dir=run_dir)
    if dry_run:
        from yarn_accel.node.agent import preview

        click.echo(json.dumps(asyncio.run(preview(config)), indent=1))
        return
    key = read_key(config, os.environ)
    logging.basicConfig(
        level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    from yarn_accel.node.agent import run

    sys.exit(run(config, key, lambda line: click.echo(line)))


@group.command("claims")
@_config_option
@click.option("--node", default="", help="This node's name, as YARN has it.")
@click.option("--run-dir", default="", help="Folder of the agent's socket.")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def _claims(config_file: Path | None, node: str, run_dir: str, as_json: bool) -> None:
    """Show which mappers on this node have a GPU or a core or wait, what was decided, and why."""
    # GONE

    config = load_config(config_file, os.environ, node=node, run_dir=run_dir)
    found = request_claims(config.socket_path)
    click.echo(json.dumps(found, indent=1) if as_json else claims_text(found))


@group.command("check-config")
@_config_option
def _check_config(config_file: Path | None) -> None:
    """Print the settings in effect, each with what it means."""
    config = load_config(config_file, os.environ)
    if config.key_file:
        read_key(config, os.environ)
    for line in described(config):
        click.echo(line)


@group.command("make-secret")
@click.argument("path", type=click.Path(path_type=Path))
def _make_secret(path: Path) -> None:
    """Write the secret from which the keys of all nodes' agents are made: `agent.secret_file` of a start."""
    from yarn_accel.adapters.credentials import create_master_secret

    create_master_secret(path)


@group.command("make-key")
@click.option(
    "--secret-file", required=True, type=click.Path(path_type=Path), help="Made by `node make-secret`."
)
@click.argument("node")
@click.argument("path", type=click.Path(path_type=Path))
def _make_key(secret_file: Path, node: str, path: Path) -> None:
    """Write the key of NODE, derived from the secret, to PATH; it goes to that node alone."""
    from yarn_accel.adapters.credentials import MAKE_AGENTS_SECRET, read_master_secret, write_secret
    from yarn_accel.adapters.signed_http import sender_key

    secret = read_master_secret(secret_file, "--secret-file", MAKE_AGENTS_SECRET)
    write_secret(path, sender_key(secret, f"agent:{node}"))


@group.command("print-unit")
def _print_unit() -> None:
    """Print the systemd unit: save it as /etc/systemd/system/yarn-accel-node.service."""
    click.echo((_FOLDER / "yarn-accel-node.service").read_text(encoding="utf-8"), nl=False)


@group.command("print-attribute-script")
def _print_attribute_script() -> None:
    """Print the NodeManager's attribute script, which stands alone."""
    click.echo((_FOLDER / "nm_attributes.py").read_text(encoding="utf-8"), nl=False)


_PATIENCE_S = 5.0
_QUESTION = b'{"v": 1, "want": "claims"}\n'
_N_DECISIONS = 8
_N_FIGURES = 16


def request_claims(path: Path) -> dict[str, Any]:
    """Ask the agent that listens there.

    Raises:
        UnavailableError: none answers, or it does not bind late.
    """
    cure = "name the agent's folder with --run-dir"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(_PATIENCE_S)
            sock.connect(str(path))
            sock.sendall(_QUESTION)
            with sock.makefile("rb") as file:
                found = json.loads(file.readline())
    except OSError as error:
        raise UnavailableError(f"{path}: {(error.strerror or str(error)).lower()}", cure=cure) from None
    except ValueError:
        raise UnavailableError(f"{path}: what came back is no answer of an agent", cure=cure) from None
    if not isinstance(found, dict) or "claims" not in found:
        raise UnavailableError(f"{path}: the agent there does not bind late: {found!r:.200}")
    return found


def claims_text(found: Mapping[str, Any]) -> str:
    """The answer in lines; nothing that a mapper says is a command to the terminal."""
    lines = "\n".join(_lines(found))
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in lines)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"node {found['node']}, policy {found['policy']}"
    if "cores" not in found:
        yield "no mapper has asked yet"
        return
    age_s, is_used = found["counts_age_s"], found["are_counts_used"]
    age = "none yet" if age_s is None else f"{age_s:.1f} s old{'' if is_used else ', too old to be used'}"
    yield f"{found['cores']} cores, GPUs {found['gpus']}; counts of the cluster: {age}"
    for each in found["claims"]:
        place = each["form"] or "waits"
        phase = ", reads" if each["is_reading"] else ""
        yield (
            f"{each['attempt']} of {each['user']} ({each['name']}): {place} {each['gpus'] or ''}"
            f" since {each['age_s']:.1f} s{phase}; last sign of life {each['renewed_s_ago']:.1f} s ago"
        )
    for each in found.get("figures", ())[:_N_FIGURES]:
        yield (
            f"figures of {each['name']}, {each['form']}: {each['read_s']:.3g} s to read,"
            f" {each['compute_s']:.3g} s to compute; {each['n_measured']} measured by {each['source']}"
        )
    for each in found["decisions"][:_N_DECISIONS]:
        yield (
            f"{each['age_s']:8.1f} s ago {each['attempt']} of {each['job']}: {each['form']}"
            f" after {each['waited_s']:.1f} s: {each['reason']}"
        )
        yield from _candidates(each["candidates"])


def _candidates(candidates: Mapping[str, Any]) -> Iterator[str]:
    for form, rows in candidates.items():
        for row in rows:
            delay = row["predicted_delay"]
            shown = "not measured" if delay is None else f"delay {delay:.3g}"
            yield f"{'':15}{form} {row['job']}: {shown}{'; ' if row['excluded'] else ''}{row['excluded']}"

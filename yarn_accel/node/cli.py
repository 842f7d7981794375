"""``yarn-accel node``: the agent, its settings, its key, and the files a site installs for it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path

import click

from yarn_accel.adapters.settings_file import described
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
        from yarn_accel.node.dry_run import preview

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
    from yarn_accel.node.claims_view import claims_text, request_claims

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

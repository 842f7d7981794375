"""``yarn-accel credential``: how users' jobs get what lets them reach the pipeline servers."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import click

from yarn_accel.adapters.credentials import (
    create_master_secret,
    issue_for_user,
    issue_token_file,
    read_credential,
    read_master_secret,
    request_credential,
    socket_paths,
    store_own_credential,
    trusted_users,
)
from yarn_accel.wire import Credential

_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_HOURS = click.FloatRange(min=0, min_open=True, max=24 * 366)


@click.group("credential")
def group() -> None:
    """The site's secret, and the credentials of users' jobs."""


@group.command("new-secret")
@click.argument("file", type=_FILE)
def _new_secret(file: Path) -> None:
    """Write a fresh master secret to FILE (0600); every pipeline server of the site needs the same one."""
    create_master_secret(file)


@group.command("issue")
@click.option("--secret", "secret_file", type=_FILE, required=True, help="The site's master secret.")
@click.option("--tenant", default="", help="Whose requests these will be, such as a user name.")
@click.option(
    "--for", "user", default="", help="The user of this machine who is the tenant and gets the file."
)
@click.option("--into", "folder", type=_FOLDER, help="Folder for USER.credential; replaces the one before.")
@click.option("--hours", type=_HOURS, default=24.0, show_default=True, help="Life.")
@click.argument("file", type=_FILE, required=False)
def _issue(
    secret_file: Path, tenant: str, user: str, folder: Path | None, hours: float, file: Path | None
) -> None:
    """Write a credential, in Hadoop's token format: --tenant NAME FILE, or --for USER --into FOLDER.

    With --tenant, FILE (0600) is yours: hand it over. With --for (as root), the file is the user's own at
    once. The user submits with -D mapreduce.job.credentials.binary=FILE, or --credential FILE.
    """
    if bool(user) != (folder is not None) or bool(tenant) != (file is not None) or bool(user) == bool(tenant):
        raise click.UsageError("give either --tenant NAME FILE or --for USER --into FOLDER")
    master = read_master_secret(secret_file)
    if folder is not None:
        written, credential = issue_for_user(user, folder, master, hours * 3600)
        click.echo(f"{written}: {_described(credential)}")
    elif file is not None:
        issue_token_file(file, master, hours * 3600, tenant)
        click.echo(f"{file}: {_described(read_credential(file))}")


@group.command("request")
@click.option("--hours", type=_HOURS, help="Life; the site's limit is the default, too.")
@click.option("--tenant", default="", help="Whose it is to be; the master gives you none but your own.")
@click.option("--socket", "path", type=_FILE, help="The master's socket, if it is not where it usually is.")
@click.option("--master-user", multiple=True, help="Whom the master runs as, beside root and yarn.")
@click.argument("file", type=_FILE)
def _request(
    hours: float | None, tenant: str, path: Path | None, master_user: tuple[str, ...], file: Path
) -> None:
    """Get your own credential from the master, on its node, and write it to FILE (0600).

    Ask again before it expires: FILE is replaced. The kernel tells the master who you are.
    """
    paths = [path] if path is not None else socket_paths()
    credential, _ = request_credential(paths, trusted_users(master_user), tenant, (hours or 0.0) * 3600)
    store_own_credential(file, credential)
    click.echo(f"{file}: {_described(credential)}")


@group.command("show")
@click.argument("file", type=_FILE)
def _show(file: Path) -> None:
    """Say whose credential is in FILE, its key id (for `revoked_file`), and until when it counts."""
    click.echo(f"{file}: {_described(read_credential(file))}")


def _described(credential: Credential) -> str:
    until = datetime.datetime.fromtimestamp(credential.expires_s, datetime.timezone.utc)
    is_over = credential.expires_s <= time.time()
    when = f"{'expired' if is_over else 'until'} {until:%Y-%m-%d %H:%M:%S} UTC"
    return f"tenant {credential.tenant}, key {credential.key_id}, {when}"

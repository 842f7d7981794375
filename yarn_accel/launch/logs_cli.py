"""``yarn-accel logs``: what the attempts of a task printed, what pipeline servers say of a request.

Of an application that runs, the master names the containers, and the NodeManagers of their nodes show the
logs. Of one that has ended, the files of accounting name the containers of its servers, and the history
server shows the logs that YARN has aggregated.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from yarn_accel.adapters.hadoop_rpc.records import ApplicationReport
from yarn_accel.adapters.rest import WebAccess, get_text
from yarn_accel.errors import AccelError, ConfigError, RejectedError, UnavailableError
from yarn_accel.hadoop.control import Control, with_control
from yarn_accel.hadoop.history import log_contents
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.launch.application_cli import application_option, config_option, launch_config
from yarn_accel.launch.container_entry import KEPT_LOGS
from yarn_accel.launch.staging import ACCOUNTING_FOLDER
from yarn_accel.launch.status_view import plain

_MAX_LOG_BYTES = 64 << 20
#: Of one server.
_MAX_LINES = 200
_MAX_SHOWN = 200
#: Servers of applications that have ended, the last ones.
_MAX_ENDED = 200
_N_READERS = 8
_FILES = (*(f"stderr.{number}" for number in range(KEPT_LOGS, 0, -1)), "stderr")
#: The file of accounting of a pipeline server.
_ACCOUNTED = re.compile(r"(container_(?:e\d+_)?(\d+_\d+)_\d+_\d+)-\d+\.jsonl\Z")
_NODE = re.compile(r"Container: \S+ on (\S+?)(?:_\d+)?\s")


class _ServerLogs(NamedTuple):
    """A container of a pipeline server; its node may be empty, its address too: not known."""

    container: str
    node: str
    url: str


class _LogReader(NamedTuple):
    """Reads logs that a web service shows, by the caller's ticket where it asks for one."""

    rm_client: RmClient
    access: WebAccess

    def read(self, url: str, *, may_lack: bool = False) -> tuple[str, list[str]]:
        """The node that a log is of, and its lines.

        Args:
            may_lack: that the log is not there is no news.
        """
        try:
            if not url:
                raise UnavailableError("the web address of its node is not known")
            address = self.rm_client.reachable(url)
            answer = get_text(address, max_bytes=_MAX_LOG_BYTES, access=self.access)
        except AccelError as error:
            if not (may_lack and isinstance(error, RejectedError)):
                click.echo(f"note: {error}", err=True)
            return "", []
        node = _NODE.match(answer)
        return node[1] if node else "", (log_contents(answer) or "").splitlines()


@click.command("logs")
@click.argument("name", metavar="ID")
@application_option
@config_option
def logs(name: str, application: str, config_file: Path | None) -> None:
    """Print the logs of a task (APP/NUMBER or DAG/TASK), or what servers' logs say of a request (KEY)."""
    rm_client = RmClient.load()
    reader = _LogReader(rm_client, rm_client.site.web_access())
    try:
        attempts, servers = asyncio.run(with_control(rm_client, application, partial(_ask, name)))
    except UnavailableError as error:
        servers = list(_ended_servers(rm_client, application, config_file))
        if not _print_request(reader, name, servers):
            raise error from None
        return
    for each in attempts:
        click.echo(f"==> {plain(each['attempt'])} on {plain(each['node'])} <==")
        for line in reader.read(each["url"])[1]:
            click.echo(plain(line))
    if not attempts and not _print_request(reader, name, servers):
        raise ConfigError(
            f"{name[:_MAX_SHOWN]!r}: no task of this name is known, and the logs of {len(servers)} pipeline "
            "servers name no request of this key: they name those that failed or were repeated",
        )


async def _ask(name: str, _: ApplicationReport, control: Control) -> tuple[list[Any], list[_ServerLogs]]:
    """The attempts of a task; or where there is none of that name, the pipeline servers."""
    try:
        return (await control.ask("tasks-logs", {"task": name}))["attempts"], []
    except RejectedError as error:
        if error.code not in ("no-log", "no-task-service"):
            raise
    servers = (await control.ask("server-logs"))["servers"]
    return [], [_ServerLogs(each["container"], each["node"], each["url"]) for each in servers]


def _ended_servers(rm_client: RmClient, application: str, config_file: Path | None) -> Iterator[_ServerLogs]:
    """The servers of an application that has ended, or of the last ones, as far as they answered requests."""
    root = rm_client.staging_uri(launch_config(config_file).environment.staging_uri)
    folder, store = f"{root}/{ACCOUNTING_FOLDER}", rm_client.store()
    web = rm_client.site.history_web()
    names = sorted(uri.rpartition("/")[2] for uri in store.list(folder)) if store.exists(folder) else []
    found = [each for each in map(_ACCOUNTED.match, names) if each is not None]
    for each in found[-_MAX_ENDED:]:
        if application in ("", f"application_{each[2]}"):
            yield _ServerLogs(each[1], "", f"{web}/ws/v1/history/containerlogs/{each[1]}")


def _print_request(reader: _LogReader, key: str, servers: list[_ServerLogs]) -> bool:
    """Print the lines of these pipeline servers' logs about a request; whether there are any."""
    words = f"request {plain(key)} ("

    def find(server: _ServerLogs) -> tuple[str, list[str]]:
        """The node, and the lines, the last one last."""
        node, lines = server.node, list[str]()
        for file in _FILES if server.url else ("stderr",):
            url = f"{server.url}/{file}" if server.url else ""
            shown_node, content = reader.read(url, may_lack=file != "stderr" or not server.node)
            node, lines = node or shown_node, [*lines, *(line for line in content if words in line)]
        return node, lines[-_MAX_LINES:]

    with ThreadPoolExecutor(_N_READERS) as pool:
        found = [(server, *each) for server, each in zip(servers, pool.map(find, servers), strict=True)]
    for server, node, lines in found:
        if lines:
            click.echo(f"==> {plain(server.container)} on {plain(node)} <==")
            for line in lines:
                click.echo(plain(line))
    return any(lines for _, _, lines in found)

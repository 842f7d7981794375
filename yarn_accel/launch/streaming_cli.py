"""``yarn-accel streaming``: Hadoop Streaming for mappers that use pipeline servers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import click

from yarn_accel.adapters.credentials import issue_job_credential
from yarn_accel.client.archive import CLIENT_ARCHIVE, write_client_archive
from yarn_accel.client.binding import parse_binding
from yarn_accel.client.job_user import CA_VARIABLE as SERVER_CA_VARIABLE
from yarn_accel.client.task_servers import BINDING_FILE
from yarn_accel.client.webhdfs import CA_VARIABLE as WEB_CA_VARIABLE
from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.hadoop.java import java_argv
from yarn_accel.hadoop.rm_client import mapper_environment
from yarn_accel.hadoop.site import HDFS_SERVERS_PROPERTY, SLOT_RESOURCE, HadoopSite, SiteSettings
from yarn_accel.hadoop.streaming import (
    CREDENTIAL_PROPERTY,
    LOG_SETTINGS,
    StreamingAdditions,
    complete,
    is_request_for_help,
    job_name,
    watch_client,
)
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.uris import hdfs_roots

_FILE = click.Path(dir_okay=False, exists=True, path_type=Path)
_PRINT_FOLDER = "yarn-accel-streaming"
#: The name in a task's folder.


@click.command(
    "streaming",
    context_settings={"ignore_unknown_options": True},
    options_metavar="[--print | --result FILE] [--python P] [--credential FILE] [--application NAME]",
)
@click.option("--print", "is_printed", is_flag=True, help="Print the command instead of running it.")
@click.option(
    "--result",
    "result_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Show progress in short, and write there as JSON what came of the job.",
)
@click.option("--python", default="python3", show_default=True, help="Interpreter of the nodes.")
@click.option("--credential", "credential_file", type=_FILE, help="Token file from the administrator.")
@click.option(
    "--credential-hours",
    type=click.FloatRange(min=0, min_open=True),
    default=24.0,
    show_default=True,
    help="Life of a credential that is derived from the site's secret.",
)
@click.option("--binding", "binding_file", type=_FILE, help="Which node sends to which server.")
@click.option(
    "--application", default="", metavar="NAME", help="Whose servers, where several run; one's own, if any."
)
@click.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, metavar="-input IN -output OUT -mapper FILE ..."
)
def command(
    is_printed: bool,
    result_file: Path | None,
    python: str,
    credential_file: Path | None,
    credential_hours: float,
    binding_file: Path | None,
    application: str,
    arguments: tuple[str, ...],
) -> None:
    """Run Hadoop Streaming with a mapper that uses pipeline servers.

    All other options are those of `mapred streaming`. Added are the client (for `import yarn_accel`), the
    Python files that -mapper, -reducer and -combiner name, the job's credential, whom to ask for servers, and
    a slot for each mapper where the site has them. What is given wins over what would be added.

    With --print the files go into the folder yarn-accel-streaming, and the command that uses them is printed.
    With --result a failed job is one line with its reason; what ends this command ends the job.
    """
    site = SiteSettings.read()
    if is_request_for_help(arguments):
        sys.exit(_run(*_launcher(site, list(arguments))))
    if result_file is not None:
        _check_result(result_file, is_printed, arguments)
    with _folder(is_printed) as folder:
        credential = _credential(site, credential_file, credential_hours, folder)
        binding = binding_file or site.binding_file
        additions = _additions(site, python, credential, binding, folder, application, arguments)
        argv, environ = _launcher(site, complete(arguments, additions), is_printed)
        if is_printed:
            changed = [f"{name}={value}" for name, value in environ.items() if os.environ.get(name) != value]
            click.echo(shlex.join(["env", *changed, *argv] if changed else argv))
        elif result_file is not None:
            _run_watched(site, argv, environ, job_name(arguments) or "job", result_file)
        else:
            sys.exit(_run(argv, environ))


def _check_result(path: Path, is_printed: bool, arguments: tuple[str, ...]) -> None:
    """Refuse before the job what would fail after it; a result of an earlier job is no more there."""
    for option, is_given in (("--print", is_printed), ("-background", "-background" in arguments)):
        if is_given:
            raise ConfigError(f"--result needs the end of the job, and {option} does not wait for it")
    try:
        write_atomic(path, "")
        path.unlink()
    except OSError as error:
        raise ConfigError(f"--result {path}: {error.strerror}") from None


@contextlib.contextmanager
def _folder(is_kept: bool) -> Iterator[Path]:
    """A folder for what travels with the job, private because of the credential in it."""
    if not is_kept:
        with tempfile.TemporaryDirectory(prefix="yarn-accel-") as name:
            yield Path(name)
        return
    folder = Path.cwd() / _PRINT_FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    yield folder


def _credential(site: SiteSettings, given: Path | None, hours: float, folder: Path) -> Path | None:
    """The token file the job gets; None where the site has no secret, so its tasks compute by themselves."""
    if given is not None:
        return given.absolute()
    if site.master_secret_file is None:
        return None
    (folder / "credential").unlink(missing_ok=True)
    return issue_job_credential(folder / "credential", site.master_secret_file, hours * 3600)


def _hdfs_servers(site: SiteSettings, arguments: Sequence[str]) -> dict[str, str]:
    """The property by which a job gets a token of each HDFS that any of its arguments names."""
    named = hdfs_roots([re.split(r"[\s=,]+", word) for word in arguments])
    if not named or not site.security().is_kerberos:
        return {}
    of_site = site.properties.get(HDFS_SERVERS_PROPERTY, "").replace(",", " ").split()
    return {HDFS_SERVERS_PROPERTY: ",".join(dict.fromkeys([*of_site, *named]))}


def _additions(
    site: SiteSettings,
    python: str,
    credential: Path | None,
    binding_file: Path | None,
    folder: Path,
    application: str,
    arguments: Sequence[str],
) -> StreamingAdditions:
    properties, environment = _hdfs_servers(site, arguments), {"PYTHONPATH": CLIENT_ARCHIVE}
    files = [write_client_archive(folder / CLIENT_ARCHIVE)]
    if site.has_slots():
        properties[f"mapreduce.map.resource.{SLOT_RESOURCE}"] = "1"
    if credential is not None:
        properties[CREDENTIAL_PROPERTY] = str(credential)
    for key, authority, variable, name in (
        ("web_ca_file", site.web_ca_file, WEB_CA_VARIABLE, "hadoop-ca.pem"),
        ("server_ca_file", site.server_ca_file, SERVER_CA_VARIABLE, "server-ca.pem"),
    ):
        if authority is not None:
            (folder / name).write_text(_text(key, authority), encoding="utf-8")
            files.append(folder / name)
            environment[variable] = name
    if binding_file is not None:
        text = _text("binding_file", binding_file)
        if parse_binding(text).servers and credential is None:
            raise ConfigError(
                "the site has servers, but there is no credential for them",
                cure="ask the administrator for one (yarn-accel credential issue), give it with --credential",
            )
        (folder / BINDING_FILE).write_text(text, encoding="utf-8")
        files.append(folder / BINDING_FILE)
    else:
        # Where agents and mappers are of different users, mappers cannot know where the agents listen.
        environment.update(mapper_environment(site, application))
    return StreamingAdditions(python, properties, files, environment)


def _text(key: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{key} {path}: {error.strerror}") from None


def _launcher(
    site: SiteSettings, arguments: list[str], is_printed: bool = False
) -> tuple[list[str], Mapping[str, str]]:
    """The program that submits: the site's `mapred`, else Java with the jars; and its environment.

    A command that is only printed may be run elsewhere: where neither is here, it is that of `mapred`.
    """
    environ = dict(os.environ, HADOOP_CONF_DIR=str(site.conf_dir))
    own = Path(os.environ.get("HADOOP_HOME", ""), "bin", "mapred")
    mapred = str(own) if os.environ.get("HADOOP_HOME") and own.is_file() else shutil.which("mapred")
    if mapred is None:
        try:
            full = HadoopSite.load()
        except StartupError:
            if not is_printed:
                raise
            mapred = "mapred"
            click.echo("yarn-accel: no Hadoop is here, so run the command where mapred is", err=True)
        else:
            options = [f"-Dlog4j.configuration=file:{LOG_SETTINGS}", *full.client_jvm_options]
            place = full.install, "streaming", full.conf_dir
            return java_argv(*place, jvm_options=options, arguments=arguments), environ
    if site.client_jvm_options:
        options = [*site.client_jvm_options, os.environ.get("HADOOP_CLIENT_OPTS", "")]
        environ["HADOOP_CLIENT_OPTS"] = " ".join(options).strip()
    return [mapred, "streaming", *arguments], environ


def _run(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run it on this terminal; ^C is its own business, as it is without us. Its exit status."""
    try:
        process = subprocess.Popen(argv, env=environ)
    except OSError as error:
        raise StartupError(f"{argv[0]} cannot be started: {error.strerror}") from None
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return status if status >= 0 else 128 - status


def _run_watched(
    site: SiteSettings, argv: list[str], environ: Mapping[str, str], name: str, result_file: Path
) -> None:
    """Run it, with its progress on standard error; ^C and SIGTERM end the job on the cluster, too.

    Raises:
        JobError: the job failed; what came of it is written first.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        result = watch_client(site, argv, environ, lambda line: click.echo(line, err=True), name)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    write_atomic(result_file, json.dumps(result.facts(), indent=1) + "\n")
    result.check()

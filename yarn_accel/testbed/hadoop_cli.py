"""``yarn-accel hadoop``: the distribution and its configuration, apart from any cluster."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import yaml

from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.hadoop.java import HADOOP_VERSION, PROGRAMS, java_argv, main_class
from yarn_accel.hadoop.site import HadoopSite
from yarn_accel.testbed.settings import PLACEHOLDERS, render
from yarn_accel.testbed.single_node import record_command
from yarn_accel.testbed.software import ensure_archive, ensure_hadoop, write_jar_list

CLIENT_HEAP_MIB = 512


def _report(text: str) -> None:
    click.echo(text, err=True)


@click.group("hadoop")
def group() -> None:
    """Hadoop's jars and configuration templates."""


@group.command("fetch")
@click.option("--version", default=HADOOP_VERSION, show_default=True, help="Of Hadoop.")
def fetch_command(version: str) -> None:
    """Fetch Hadoop's jars and build the class data archive, unless both are cached."""
    install = ensure_hadoop(_report, version=version)
    archive = ensure_archive(install, _report)
    click.echo(
        f"Hadoop {install.version}: {install.n_jars} jars, {install.n_bytes / 1e6:.0f} MB, {install.lib_dir}"
    )
    click.echo(f"class data archive: {archive or 'none'}")


@group.command("render")
@click.argument("values", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", type=click.Path(file_okay=False, path_type=Path))
def render_command(values: Path, target: Path) -> None:
    """Write a configuration directory TARGET from the templates and a YAML file of VALUES."""
    try:
        loaded = yaml.safe_load(values.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{values}: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{values} must hold keys and values; see: yarn-accel hadoop placeholders")
    render({str(key): str(value) for key, value in loaded.items()}, target)
    click.echo(f"configuration written to {target}")


@group.command("placeholders")
def placeholders_command() -> None:
    """List every value that the templates take, with its default."""
    for name, placeholder in PLACEHOLDERS.items():
        default = "required" if placeholder.default is None else repr(placeholder.default)
        click.echo(f"{name}: {placeholder.meaning} [{default}]")


def program_argv(program: str, arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the command that Hadoop's script `program` would run, for the cluster of HADOOP_CONF_DIR.

    As with those scripts, HADOOP_CLASSPATH adds jars and folders, and HADOOP_CLIENT_OPTS options of the JVM.

    Raises:
        ConfigError: no such command, or a file of the configuration is wrong.
        StartupError: no configuration, jars or Java.
    """
    java_class, rest = main_class(program, arguments)
    site = HadoopSite.load(environ)
    try:
        options = shlex.split(environ.get("HADOOP_CLIENT_OPTS", ""))
    except ValueError as error:
        raise ConfigError(f"HADOOP_CLIENT_OPTS: {error}", cure="close the quotes") from error
    return java_argv(
        site.install,
        java_class,
        site.conf_dir,
        heap_mib=CLIENT_HEAP_MIB,
        extra_class_path=[part for part in environ.get("HADOOP_CLASSPATH", "").split(os.pathsep) if part],
        jvm_options=[*site.client_jvm_options, *options],
        arguments=rest,
    )


@group.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("program", type=click.Choice(sorted(PROGRAMS)))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run_command(program: str, arguments: tuple[str, ...]) -> None:
    """Run what Hadoop's script PROGRAM would run: `yarn jar`, `mapred streaming`, `hdfs dfs` and others.

    For where there are jars without scripts, such as those that `fetch` fetches.
    """
    argv = program_argv(program, arguments, os.environ)
    try:
        os.execv(argv[0], argv)
    except OSError as error:
        raise StartupError(f"{argv[0]} cannot be run: {error.strerror}") from error


@group.command("list-jars")
@click.argument("repository", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--version", default=HADOOP_VERSION, show_default=True, help="Of Hadoop.")
def list_jars_command(repository: Path, version: str) -> None:
    """List anew the jars that `fetch` takes without Maven (for maintainers, after Maven has fetched them).

    REPOSITORY is Maven's own on this machine, usually ~/.m2/repository.
    """
    install = ensure_hadoop(_report, version=version)
    click.echo(str(write_jar_list(install, repository)))


group.add_command(record_command)

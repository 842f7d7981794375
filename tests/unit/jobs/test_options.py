"""The option that says where a job runs, and the name it had before."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from jobs.cli import root
from jobs.options import RENAMED_RUNNERS, RUNNERS, with_runner_options


@click.command()
@with_runner_options
def which(**values: object) -> None:
    click.echo(values["runner"])


@pytest.mark.parametrize("name", RUNNERS)
def test_the_runner_is_taken_as_it_is_named(name: str) -> None:
    done = CliRunner().invoke(which, ["--runner", name])
    assert (done.stdout, done.stderr) == (f"{name}\n", "")


def test_without_the_option_a_job_runs_on_this_machine() -> None:
    done = CliRunner().invoke(which, [])
    assert (done.stdout, done.stderr) == ("local\n", "")


@pytest.mark.parametrize(("old", "new"), RENAMED_RUNNERS.items())
def test_the_former_option_works_and_names_the_new_one(old: str, new: str) -> None:
    done = CliRunner().invoke(which, ["--rung", old])
    assert (done.exit_code, done.stdout) == (0, f"{new}\n")
    assert f"--rung {old} is called --runner {new} now" in done.stderr


def test_the_new_option_wins_over_the_former_one() -> None:
    assert CliRunner().invoke(which, ["--runner", "hadoop", "--rung", "pipe"]).stdout == "hadoop\n"
    assert CliRunner().invoke(which, ["--rung", "pipe", "--runner", "hadoop"]).stdout == "hadoop\n"


@pytest.mark.parametrize("job", ["factorize", "images"])
def test_help_shows_the_new_name_alone(job: str) -> None:
    text = CliRunner().invoke(root, [job, "--help"]).stdout
    assert "--runner [inline|local|hadoop|spark]" in text
    assert "--rung" not in text

"""``python -m yarn_accel.node``: as ``yarn-accel node``, without loading the other packages (10 MiB less)."""

import sys

import click

from yarn_accel.errors import AccelError
from yarn_accel.node.cli import group


def _main() -> None:
    """Run the command; an expected error becomes one line on stderr and its exit code."""
    try:
        group(standalone_mode=True, prog_name="python -m yarn_accel.node")
    except AccelError as error:
        click.echo(f"yarn-accel: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    _main()

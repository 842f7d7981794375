"""Give a job its credential: derived from the site's master secret, in a file that is gone after the job."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from yarn_accel.streaming import issue_job_credential


@contextlib.contextmanager
def token_file(master_secret_file: Path, lifetime_s: float, scratch: Path | None = None) -> Iterator[Path]:
    """A token file in a private temporary folder (inside `scratch`); gone at the end of the block.

    Raises:
        ConfigError: the site's secret cannot be read by this user.
    """
    with tempfile.TemporaryDirectory(prefix="accel-token-", dir=scratch) as folder:
        yield issue_job_credential(Path(folder) / "credentials", master_secret_file, lifetime_s)

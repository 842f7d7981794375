"""Where the secrets of a running application are to be found on its nodes, and where not."""

import pytest

from tests.fixtures.secret_search import SecretSearch
from yarn_accel.adapters.credentials import read_master_secret
from yarn_accel.adapters.signed_http import sender_key
from yarn_accel.hadoop.control import RetainedApplication
from yarn_accel.launch.container_entry import MASTER_SECRET_FILE

pytestmark = [pytest.mark.hadoop]

#: What YARN itself keeps of an application's credentials: its own files, and what it needs after a restart.
_YARNS = ("container_tokens", ".tokens")
_STORES = ("rm-state", "nm-recovery")


@pytest.fixture
def search(site):
    """For every secret of the application."""
    control = RetainedApplication.of(str(site.application), site.environ).secret()
    pipeline = read_master_secret(site.cluster.master_secret_file)
    return SecretSearch([control, pipeline, *(sender_key(control, f"agent:{host}") for host in site.names)])


def test_no_command_line_and_no_environment_holds_one(site, search):
    pids = site.processes()
    assert any("pipeline.json" in command for command in pids.values()), pids
    assert search.in_processes(pids) == []


def test_no_log_and_no_upload_holds_one_and_nobody_else_can_read_them(site, search):
    place = site.cluster.conf_dir.parent
    holding = search.in_files(place)
    assert {path.name for path in holding} >= {MASTER_SECRET_FILE, "container_tokens"}, (
        "they are found at all"
    )
    strange = [path for path in holding if not _is_expected(path, place)]
    assert not strange
    own = [path for path in holding if path.name == MASTER_SECRET_FILE or path.parent == place]
    assert {oct(path.stat().st_mode & 0o777) for path in own} == {"0o600"}


def _is_expected(path, place):
    if path == place / "master-secret" or path.name == MASTER_SECRET_FILE:
        return True
    return path.name.endswith(_YARNS) or any(store in path.parts for store in _STORES)

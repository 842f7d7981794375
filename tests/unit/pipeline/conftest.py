"""NameNodes that know tokens alone, and the storage of jobs' users beside one."""

from contextlib import ExitStack

import pytest

from tests.unit.adapters.hadoop_rpc import fake_hadoop
from tests.unit.pipeline.token_namenode import GET_FILE_INFO, NameNode, running
from yarn_accel.pipeline.user_storage import UserStorage, site_services

_VARIABLES = ("HADOOP_TOKEN_FILE_LOCATION", "KRB5CCNAME", "KRB5_CLIENT_KTNAME")


@pytest.fixture
def start(monkeypatch):
    """Start NameNodes that know no token yet; this process has neither tokens nor tickets."""
    for name in _VARIABLES:
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("TOKIO_WORKER_THREADS", "1")
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.setitem(fake_hadoop.BY_PROTOCOL, (GET_FILE_INFO.protocol, GET_FILE_INFO.name), GET_FILE_INFO)
    pytest.importorskip("hdfs_native")
    with ExitStack() as at_end:

        def act():
            server = NameNode(tokens=[], is_strict=False)
            server.run = at_end.enter_context(running(server))
            return server

        yield act


@pytest.fixture
def namenode(start):
    return start()


@pytest.fixture
def users(namenode):
    """The storage of a server beside that NameNode."""
    found = UserStorage(site_services({}, f"hdfs://localhost:{namenode.port}"))
    yield found
    found.close_all()

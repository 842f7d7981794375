"""A NameNode that knows delegation tokens alone, for the native client; owners have a folder each."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass

from tests.unit.adapters.hadoop_rpc.fake_hadoop import STANDBY, FakeHadoop, Refusal
from yarn_accel.adapters.hadoop_rpc import Token
from yarn_accel.adapters.hadoop_rpc.methods import NAMENODE_CLIENT, Method
from yarn_accel.adapters.hadoop_rpc.protobuf import string
from yarn_accel.client.token_file import HDFS_DELEGATION_KIND
from yarn_accel.client.writable import encode_number
from yarn_accel.wire import HdfsToken

_WAIT_S = 120.0
FAR_S = 4_000_000_000


@dataclass(frozen=True, slots=True)
class GetFileInfoRequest:
    src: str = string(1, "", required=True)


@dataclass(frozen=True, slots=True)
class NoFileInfo:
    """There is no such file."""


GET_FILE_INFO = Method(NAMENODE_CLIENT, "getFileInfo", GetFileInfoRequest, NoFileInfo)


class NameNode(FakeHadoop):
    """Nothing is in any folder, and nobody but its owner may look into one."""

    is_standby = False

    def called(self, stream, name, request):
        if self.is_standby:
            raise Refusal(STANDBY)
        owner = stream.owner.decode("latin-1")
        user = re.match(r"/user/([a-z]+)", request.src)
        if user and user[1] not in owner:
            raise Refusal("org.apache.hadoop.security.AccessControlException", "Permission denied: user=x")
        return NoFileInfo()


@contextmanager
def running(namenode):
    """The server in a thread; the function that it yields runs a coroutine there."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(_WAIT_S)

    try:
        run(namenode.__aenter__())
        yield run
        run(namenode.__aexit__())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def identifier(owner="alice@R", ends_s=FAR_S, number=7, real_user=""):
    texts = b"".join(encode_number(len(each)) + each.encode() for each in (owner, "rm/m@R", real_user))
    numbers = b"".join(encode_number(each) for each in (1_700_000_000_000, ends_s * 1000, number, 2))
    return b"\0" + texts + numbers


def issued(namenode, owner="alice@R", password=b"hunter2", service="", **changes):
    """A token that the NameNode gave, as a job's token file has it."""
    token = identifier(owner, **changes)
    namenode.tokens.append(Token(token, password, HDFS_DELEGATION_KIND, ""))
    return HdfsToken(token, password, service or f"127.0.0.1:{namenode.port}")

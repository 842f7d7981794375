"""Hadoop's RPC spoken natively: no JVM, no protobuf library, no generated code.

::

    protobuf       messages <-> bytes              identifiers, records, header_messages,
    framing        frames, headers, calls          service_messages     YARN's records and calls
    sasl           the login                       methods              what can be called, and repeated
    transport      one connection on asyncio       native, nodes        the back end behind `backend`
    failover       several addresses, patience     credentials_file     token files

It works with Hadoop 3 where ``hadoop.rpc.protection`` is authentication, with simple or token logins.
Kerberos, integrity and privacy are not supported: `UnsupportedLoginError` says so.
"""

from yarn_accel.adapters.hadoop_rpc.addresses import Address, ResourceManagerAddresses
from yarn_accel.adapters.hadoop_rpc.backend import ApplicationMaster, NodeManager, ResourceManager
from yarn_accel.adapters.hadoop_rpc.credentials_file import (
    AM_RM_KIND,
    TokenFile,
    read_token_file,
    write_token_file,
)
from yarn_accel.adapters.hadoop_rpc.failover import Patience
from yarn_accel.adapters.hadoop_rpc.framing import User
from yarn_accel.adapters.hadoop_rpc.header_messages import Token
from yarn_accel.adapters.hadoop_rpc.identifiers import ApplicationId, AttemptId, ContainerId, NodeId
from yarn_accel.adapters.hadoop_rpc.native import NativeApplicationMaster, NativeResourceManager
from yarn_accel.adapters.hadoop_rpc.nodes import NativeNodeManager
from yarn_accel.adapters.hadoop_rpc.rpc_errors import (
    AlreadyRegisteredError,
    ApplicationGoneError,
    AttemptGoneError,
    BusyError,
    ConnectionLostError,
    NotRegisteredError,
    RemoteCallError,
    StandbyError,
    UnsupportedLoginError,
    error_of_exception,
)
from yarn_accel.adapters.hadoop_rpc.service_messages import (
    AllocateResponse,
    ApplicationSubmission,
    AttributeOperation,
    RegisterResponse,
)
from yarn_accel.adapters.hadoop_rpc.transport import RpcSettings

__all__ = [
    "AM_RM_KIND",
    "Address",
    "AllocateResponse",
    "AlreadyRegisteredError",
    "ApplicationGoneError",
    "ApplicationId",
    "ApplicationMaster",
    "ApplicationSubmission",
    "AttemptGoneError",
    "AttemptId",
    "AttributeOperation",
    "BusyError",
    "ConnectionLostError",
    "ContainerId",
    "NativeApplicationMaster",
    "NativeNodeManager",
    "NativeResourceManager",
    "NodeId",
    "NodeManager",
    "NotRegisteredError",
    "Patience",
    "RegisterResponse",
    "RemoteCallError",
    "ResourceManager",
    "ResourceManagerAddresses",
    "RpcSettings",
    "StandbyError",
    "Token",
    "TokenFile",
    "UnsupportedLoginError",
    "User",
    "error_of_exception",
    "read_token_file",
    "write_token_file",
]

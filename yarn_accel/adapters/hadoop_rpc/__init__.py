"""Hadoop's RPC spoken natively: no JVM, no protobuf library, no generated code.

::

    protobuf     messages <-> bytes              records      YARN's names and records
    tokens       tokens, and files of them       methods      YARN's calls: requests, answers, repeated or not
    sasl         the login with a token          clients      ResourceManager, NodeManagers: what others call
    kerberos     the login with a ticket         rpc_errors   the errors of a call
    gssapi       the machine's Kerberos library  framing      headers, frames, calls
    transport    one connection; a service that may be at several addresses, or away

It works with Hadoop 3, with simple, token and Kerberos logins and each ``hadoop.rpc.protection``.  On a site
with Kerberos nothing weaker is taken; `UnsupportedLoginError` says so.
"""

from yarn_accel.adapters.hadoop_rpc.clients import (
    ApplicationMaster,
    NodeManager,
    ResourceManager,
    ResourceManagerAddresses,
)
from yarn_accel.adapters.hadoop_rpc.framing import User
from yarn_accel.adapters.hadoop_rpc.kerberos import Kerberos, Security
from yarn_accel.adapters.hadoop_rpc.methods import (
    AllocateResponse,
    ApplicationSubmission,
    AttributeOperation,
    RegisterResponse,
)
from yarn_accel.adapters.hadoop_rpc.records import ApplicationId, AttemptId, ContainerId, NodeId
from yarn_accel.adapters.hadoop_rpc.rpc_errors import (
    AlreadyRegisteredError,
    ApplicationGoneError,
    AttemptGoneError,
    BusyError,
    ConnectionLostError,
    KdcUnavailableError,
    KerberosError,
    NotRegisteredError,
    RemoteCallError,
    StandbyError,
    TokenEndedError,
    UnsupportedLoginError,
    error_of_exception,
)
from yarn_accel.adapters.hadoop_rpc.tokens import (
    AM_RM_KIND,
    Token,
    TokenFile,
    read_token_file,
    write_token_file,
)
from yarn_accel.adapters.hadoop_rpc.transport import Address, Patience, RpcSettings

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
    "KdcUnavailableError",
    "Kerberos",
    "KerberosError",
    "NodeId",
    "NodeManager",
    "NotRegisteredError",
    "Patience",
    "RegisterResponse",
    "RemoteCallError",
    "ResourceManager",
    "ResourceManagerAddresses",
    "RpcSettings",
    "Security",
    "StandbyError",
    "Token",
    "TokenEndedError",
    "TokenFile",
    "UnsupportedLoginError",
    "User",
    "error_of_exception",
    "read_token_file",
    "write_token_file",
]

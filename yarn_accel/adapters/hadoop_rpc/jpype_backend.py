"""The back end for sites with Kerberos or RPC privacy: Hadoop's own RPC client, in a JVM inside this process.

Only the connection differs from the native back end.  A request is written as ever, read by Hadoop's
generated class, and called on Hadoop's own proxy, which does the login and the encryption; the answer comes
back as bytes::

    start_jvm([conf_dir, *jars])
    rm = NativeResourceManager(addresses, User("ann"), connect=JpypeConnection.open)

On a cluster with Kerberos a `User` means whoever has logged in (``kinit``, or a key tab in the JVM's
settings); on one with simple authentication it is the name.  Needs JPype (extra ``jpype``) and Java; a JVM
starts once per process and takes about 130 MiB, so application masters stay native where they can.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from yarn_accel.adapters.hadoop_rpc.addresses import Address
from yarn_accel.adapters.hadoop_rpc.framing import Identity, User
from yarn_accel.adapters.hadoop_rpc.methods import Method
from yarn_accel.adapters.hadoop_rpc.protobuf import decode, encode
from yarn_accel.adapters.hadoop_rpc.rpc_errors import ConnectionLostError, error_of_exception
from yarn_accel.adapters.hadoop_rpc.service_messages import SerializedException
from yarn_accel.adapters.hadoop_rpc.transport import RpcSettings
from yarn_accel.errors import AccelError, AuthenticationError, StartupError

__all__ = ["JpypeConnection", "start_jvm"]

_NOT_SENT = ("ConnectException", "NoRouteToHostException", "UnknownHostException", "ConnectTimeoutException")

Q = TypeVar("Q")
A = TypeVar("A")


def start_jvm(class_path: Sequence[Path], options: Sequence[str] = ("-Xmx128m", "-XX:+UseSerialGC")) -> None:
    """Start the JVM of this process; nothing to do when it runs.

    Args:
        class_path: the configuration directory and the jars of Hadoop's client.

    Raises:
        StartupError: JPype or Java is not there.
    """
    jpype = _jpype()
    if jpype.isJVMStarted():
        return
    try:
        jpype.startJVM(*options, classpath=[str(each) for each in class_path], convertStrings=True)
    except (OSError, jpype.JVMNotFoundException) as error:
        raise StartupError(f"no JVM: {error}", cure="install Java 17 or set JAVA_HOME") from None


class JpypeConnection:
    """A proxy of Hadoop's own RPC client; calls run in threads."""

    def __init__(self, address: Address, proxy: Any, interface: Any) -> None:
        self._address = address
        self._proxy = proxy
        self._interface = interface
        self._is_usable = True

    @classmethod
    async def open(
        cls, address: Address, protocol: str, identity: Identity, settings: RpcSettings | None = None
    ) -> JpypeConnection:
        """Make a proxy; it connects at the first call.

        Raises:
            StartupError: no JVM: call `start_jvm` first.
        """
        settings = RpcSettings() if settings is None else settings
        if not _jpype().isJVMStarted():
            raise StartupError("the JVM does not run", cure="call start_jvm first")
        interface = _java(protocol)
        proxy = await asyncio.to_thread(_proxy, interface, address, identity, settings)
        return cls(address, proxy, interface)

    @property
    def is_usable(self) -> bool:
        """Calls may be made."""
        return self._is_usable

    async def call(self, method: Method[Q, A], request: Q, timeout_s: float | None = None) -> A:
        """Call a method; errors as in `transport.RpcConnection.call`.

        A call that is given up goes on in its thread.
        """
        work = asyncio.to_thread(self._call, method.name, encode(request))
        try:
            return decode(method.answer, await asyncio.wait_for(work, timeout_s))
        except asyncio.TimeoutError:
            raise ConnectionLostError(
                f"{self._address} did not answer {method.name} within {timeout_s:g} s", was_sent=True
            ) from None

    async def close(self) -> None:
        """Stop the proxy; may be called again."""
        if self._is_usable:
            self._is_usable = False
            await asyncio.to_thread(_java("org.apache.hadoop.ipc.RPC").stopProxy, self._proxy)

    def _call(self, name: str, arguments: bytes) -> bytes:
        jpype = _jpype()
        request_class = _request_class(self._interface, name)
        request = request_class.parseFrom(jpype.JArray(jpype.JByte)(arguments))
        try:
            answer = getattr(self._proxy, name)(None, request)
        except jpype.JException as error:
            raise _error(error, str(self._address)) from None
        return bytes(answer.toByteArray())


def _jpype() -> Any:
    try:
        return importlib.import_module("jpype")
    except ImportError:
        raise StartupError("JPype is not installed", cure="pip install 'cluster-accel[jpype]'") from None


def _java(name: str) -> Any:
    return _jpype().JClass(name)


def _request_class(interface: Any, name: str) -> Any:
    """The generated class of a method's second parameter (the first is protobuf's controller)."""
    for method in interface.class_.getMethods():
        if method.getName() == name:
            return _java(method.getParameterTypes()[1].getName())
    raise StartupError(
        f"{interface.class_.getName()} has no {name}", cure="take the jars of Hadoop 3.3 or later"
    )


def _proxy(interface: Any, address: Address, identity: Identity, settings: RpcSettings) -> Any:
    configuration = _configuration()
    rpc = _java("org.apache.hadoop.ipc.RPC")
    rpc.setProtocolEngine(configuration, interface, _java("org.apache.hadoop.ipc.ProtobufRpcEngine2"))
    net = _java("org.apache.hadoop.net.NetUtils")
    host = settings.hosts.get(address.host, address.host)
    where = net.createSocketAddrForHost(host, address.port)
    user = _user(identity, where)
    once = _java("org.apache.hadoop.io.retry.RetryPolicies").TRY_ONCE_THEN_FAIL
    timeout_ms = round(1000 * settings.call_timeout_s)
    factory = net.getDefaultSocketFactory(configuration)
    return rpc.getProtocolProxy(
        interface, 1, where, user, configuration, factory, timeout_ms, once
    ).getProxy()


@functools.cache
def _configuration() -> Any:
    return _java("org.apache.hadoop.yarn.conf.YarnConfiguration")()


def _user(identity: Identity, where: Any) -> Any:
    users = _java("org.apache.hadoop.security.UserGroupInformation")
    users.setConfiguration(_configuration())
    if isinstance(identity, User):
        return users.getLoginUser() if users.isSecurityEnabled() else users.createRemoteUser(identity.name)
    jpype = _jpype()
    text = _java("org.apache.hadoop.io.Text")
    array = jpype.JArray(jpype.JByte)
    token = _java("org.apache.hadoop.security.token.Token")(
        array(identity.identifier), array(identity.password), text(identity.kind), text("")
    )
    _java("org.apache.hadoop.security.SecurityUtil").setTokenService(token, where)
    user = users.createRemoteUser("holder of a token")
    user.addToken(token)
    return user


def _error(error: Any, address: str) -> AccelError:
    """What an exception of the proxy means: the server's own, or that of the connection."""
    cause = error.getCause() if error.getClass().getSimpleName() == "ServiceException" else error
    cause = error if cause is None else cause
    name, text = str(cause.getClass().getName()), str(cause.getMessage())
    if name == "org.apache.hadoop.ipc.RemoteException":
        return error_of_exception(SerializedException(text, str(cause.getClassName())), address)
    reason = f"{address}: {text}"
    if "SaslException" in name or "AccessControlException" in name or "Kerberos" in text:
        return AuthenticationError(reason)
    return ConnectionLostError(reason, was_sent=name.split(".")[-1] not in _NOT_SENT)

"""``yarn-accel doctor``: the troubles that keep this user out of the cluster, with their places and cures.

`gather` reads the settings and asks the KDC, the ResourceManagers, the NameNodes and HDFS as the caller.
Nothing is changed.  `yarn_accel.core.site_checks` judges what it found.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from yarn_accel.adapters.hadoop_rpc import Kerberos, RpcSettings, Token, User
from yarn_accel.adapters.hadoop_rpc.clients import hdfs_service
from yarn_accel.adapters.hadoop_rpc.framing import Identity
from yarn_accel.adapters.hadoop_rpc.methods import (
    ADMINISTRATION,
    GET_CLUSTER_NODES,
    GET_FILE_INFO,
    NAMENODE_CLIENT,
    GetClusterNodesRequest,
    GetFileInfoRequest,
    Method,
)
from yarn_accel.adapters.hadoop_rpc.rpc_errors import StandbyError
from yarn_accel.adapters.hadoop_rpc.tokens import owner_of, read_token_file
from yarn_accel.adapters.hadoop_rpc.transport import Address, RpcConnection
from yarn_accel.adapters.kerberos_files import (
    KEYTAB_MAGIC,
    MAX_FILE_BYTES,
    clock_of,
    clock_request,
    read_cache,
    read_keytab,
    read_krb5_conf,
)
from yarn_accel.client.token_file import HDFS_DELEGATION_KIND, TOKEN_FILE_VARIABLE
from yarn_accel.core.site_checks import (
    HDFS,
    KDC,
    KEYTAB,
    NAMENODE,
    RESOURCEMANAGER,
    STANDBY,
    TICKET,
    TOKEN,
    HeldToken,
    KeytabKey,
    Krb5Conf,
    ProbeResult,
    SiteFacts,
    TicketCache,
    Trouble,
    troubles_of,
)
from yarn_accel.errors import AccelError
from yarn_accel.hadoop.site import SiteSettings
from yarn_accel.storage import Store
from yarn_accel.users import user_name

_ANSWER_S = 5.0
_CALL_S = 15.0
#: The Kerberos library gives a dead KDC up after 18 s.
_KDC_S = 40.0
_KDC_PORT = 88
_MAX_CLOCK_BYTES = 1 << 16


@click.command("doctor")
@click.option("--principal", default="", help="Look at this principal's login by --keytab.")
@click.option("--keytab", default="", type=click.Path(), help="Its keytab. [KRB5_CLIENT_KTNAME]")
@click.option("--json", "as_json", is_flag=True, help="All facts and troubles, as JSON.")
def doctor(principal: str, keytab: str, as_json: bool) -> None:
    """Find what keeps you out of the cluster: login, clocks, names, tokens, high availability.

    Exit code 1 when something is wrong. Nothing is changed.
    """
    facts = asyncio.run(gather(os.environ, principal, keytab))
    troubles = troubles_of(facts)
    if as_json:
        answers = [asdict(each) for each in facts.answers]
        click.echo(
            json.dumps({"troubles": [asdict(each) for each in troubles], "answers": answers}, indent=1)
        )
    else:
        _print(facts, troubles)
    sys.exit(1 if any(not trouble.is_warning for trouble in troubles) else 0)


def _print(facts: SiteFacts, troubles: Sequence[Trouble]) -> None:
    for answer in facts.answers:
        if not answer.code:
            click.echo(f"{answer.asked} {answer.place}: {answer.message or 'answers'}")
    if not troubles:
        click.echo("no trouble found")
        return
    table = Table(show_lines=True)
    for name in ("trouble", "place", "cure"):
        table.add_column(name, overflow="fold")
    for trouble in troubles:
        head = f"warning: {trouble.code}" if trouble.is_warning else trouble.code
        table.add_row(Text(f"{head}\n{trouble.text}"), Text(trouble.place), Text(trouble.cure))
    Console().print(table)


# ---- facts


async def gather(environ: Mapping[str, str], principal: str = "", keytab: str = "") -> SiteFacts:
    """Read and ask what the checks look at.

    Args:
        environ: HADOOP_CONF_DIR and the variables of Kerberos and Hadoop.
        principal: whose login by `keytab`; empty: that of the keytab's first key.
        keytab: empty: KRB5_CLIENT_KTNAME's.

    Raises:
        StartupError: no directory of settings.
        ConfigError: a file in it cannot be read.
    """
    site = SiteSettings.read(environ)
    is_own_login = not keytab
    jvm_options = (*site.client_jvm_options, *environ.get("HADOOP_OPTS", "").split())
    facts = SiteFacts(
        now_s=time.time(),
        uid=os.getuid(),
        conf_dir=str(site.conf_dir),
        properties=site.properties,
        jvm_options=jvm_options,
        proxy_user=environ.get("HADOOP_PROXY_USER", ""),
    )
    held, answers = _tokens(environ)
    facts = replace(facts, tokens=tuple(_described(token) for token in held))
    identity: Identity | None = User(user_name(environ))
    if facts.is_kerberos:
        krb5 = _krb5_conf(environ)
        keytab = keytab or _path(environ.get("KRB5_CLIENT_KTNAME", ""))
        keys, refusals = _keys(keytab)
        clocks, kdcs = await _kdcs(krb5)
        facts = replace(
            facts,
            krb5=krb5,
            krb5_config=environ.get("KRB5_CONFIG", ""),
            cache=_cache(environ, krb5),
            keytab=keytab,
            keys=keys,
            clocks=clocks,
        )
        identity, logins = _login(principal, keytab, keys)
        answers += [*refusals, *kdcs, *logins]
    if identity is not None:
        answers += await _services(site, identity)
        if is_own_login and any(not each.code for each in answers if each.asked == NAMENODE):
            answers.append(await asyncio.to_thread(_hdfs, site))
    answers += await _logins_by_token(site, held)
    return replace(facts, answers=tuple(answers))


def _krb5_conf(environ: Mapping[str, str]) -> Krb5Conf:
    path = environ.get("KRB5_CONFIG", "").split(os.pathsep)[0] or "/etc/krb5.conf"
    with contextlib.suppress(OSError):
        return read_krb5_conf(Path(path).read_text(encoding="utf-8", errors="replace"), path)
    return Krb5Conf(path)


def _cache(environ: Mapping[str, str], krb5: Krb5Conf) -> TicketCache:
    uid = os.getuid()
    usual = krb5.options.get("default_ccache_name", f"FILE:/tmp/krb5cc_{uid}")
    name = environ.get("KRB5CCNAME") or re.sub(r"%\{(uid|euid|USERID)\}", str(uid), usual)
    found = TicketCache(name)
    if found.kind != "FILE":
        return found
    with contextlib.suppress(OSError):
        path = Path(_path(name))
        found = replace(found, owner=path.stat().st_uid)
        data = _start_of(path)
        found = replace(found, is_keytab=data.startswith(KEYTAB_MAGIC))
        with contextlib.suppress(AccelError):
            found = replace(found, tickets=read_cache(data))
    return found


def _path(name: str) -> str:
    """The path in a name such as ``FILE:/tmp/x``."""
    return re.sub(r"\A(WR)?FILE:", "", name)


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE_BYTES)


def _keys(keytab: str) -> tuple[tuple[KeytabKey, ...], list[ProbeResult]]:
    if not keytab:
        return (), []
    cure = "name a keytab that this user can read; `klist -kt` shows what is in one"
    try:
        return read_keytab(_start_of(Path(keytab))), []
    except OSError as error:
        return (), [ProbeResult(KEYTAB, keytab, "kerberos-keytab", f"cannot be read: {error.strerror}", cure)]
    except AccelError as error:
        return (), [ProbeResult(KEYTAB, keytab, "kerberos-keytab", error.message, cure)]


def _login(
    principal: str, keytab: str, keys: Sequence[KeytabKey]
) -> tuple[Identity | None, list[ProbeResult]]:
    """The identity to ask services by, and what the Kerberos library says of ticket and keytab."""
    tried: list[tuple[str, Kerberos]] = []
    if keys:
        tried.append((KEYTAB, Kerberos(principal or keys[0].principal, keytab, "MEMORY:yarn-accel-doctor")))
    elif not keytab:
        tried.append((TICKET, Kerberos()))
    answers: list[ProbeResult] = []
    for asked, identity in tried:
        try:
            ticket = identity.ticket()
        except AccelError as error:
            answers.append(_refusal(asked, identity.place, error))
        else:
            left = "" if ticket.left_s is None else f", good for {ticket.left_s / 3600:.1f} h"
            answers.append(ProbeResult(asked, identity.place, message=f"{ticket.principal}{left}"))
            return identity, answers
    return None, answers


def _refusal(asked: str, place: str, error: AccelError) -> ProbeResult:
    code = STANDBY if isinstance(error, StandbyError) else error.code
    return ProbeResult(asked, place, code, error.message, error.cure)


# ---- the KDC and its clock


async def _kdcs(krb5: Krb5Conf) -> tuple[dict[str, float], list[ProbeResult]]:
    names = krb5.kdcs.get(krb5.default_realm, ())
    found = await asyncio.gather(*(_ask_clock(each, krb5.default_realm) for each in names))
    clocks = {f"KDC {name}": by_s for name, (by_s, _) in zip(names, found, strict=True) if by_s is not None}
    return clocks, [answer for _, answer in found]


async def _ask_clock(name: str, realm: str) -> tuple[float | None, ProbeResult]:
    """How much a KDC's clock is ahead of ours; None: it did not say."""
    try:
        address = Address.parse(name.rpartition("/")[2], _KDC_PORT)
        request = clock_request(realm, secrets.randbits(31))
        data = await asyncio.wait_for(_exchange(address, request), _ANSWER_S)
        by_s = clock_of(data) - time.time()
    except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, AccelError) as error:
        reason = str(error) or f"nothing within {_ANSWER_S:g} s"
        cure = "look whether krb5kdc runs there, and at the realm's `kdc` lines"
        return None, ProbeResult(KDC, name, "kerberos-no-kdc", f"the KDC does not answer: {reason}", cure)
    return (by_s if abs(by_s) >= 1 else 0.0), ProbeResult(KDC, name)


async def _exchange(address: Address, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(struct.pack(">I", len(request)) + request)
        (n_bytes,) = struct.unpack(">I", await reader.readexactly(4))
        return await reader.readexactly(min(n_bytes, _MAX_CLOCK_BYTES))
    finally:
        writer.close()


# ---- Hadoop's services


async def _services(site: SiteSettings, identity: Identity) -> list[ProbeResult]:
    """Ask each ResourceManager and each NameNode by itself, so that it is known which one is on standby."""
    answers: list[ProbeResult] = []
    asked = []
    try:
        found = site.resourcemanagers()
    except AccelError as error:
        answers.append(_refusal(RESOURCEMANAGER, str(site.conf_dir), error))
    else:
        both = zip(found.client, found.admin, strict=True)
        asked += [_ask_resourcemanager(site, client, admin, identity) for client, admin in both]
    with contextlib.suppress(AccelError):  # of the configuration, which the checks look at
        root = (GET_FILE_INFO, GetFileInfoRequest("/"))
        asked += [_ask(site, NAMENODE, each, identity, root) for each in _namenodes(site)]
    return [*answers, *await asyncio.gather(*asked)]


def _namenodes(site: SiteSettings) -> tuple[Address, ...]:
    return hdfs_service(site.properties, site.properties.get("fs.defaultFS", "")).addresses


async def _ask_resourcemanager(
    site: SiteSettings, client: Address, admin: Address, identity: Identity
) -> ProbeResult:
    """Ask a ResourceManager; one on standby listens for operators alone."""
    nodes = (GET_CLUSTER_NODES, GetClusterNodesRequest())
    answer = await _ask(site, RESOURCEMANAGER, client, identity, nodes)
    if answer.message.startswith("no connection to "):  # Not: no answer, as of one that hangs.
        other = await _ask(site, RESOURCEMANAGER, admin, identity, protocol=ADMINISTRATION)
        if not other.code:
            return ProbeResult(RESOURCEMANAGER, str(client), STANDBY)
    return answer


async def _ask(
    site: SiteSettings,
    service: str,
    address: Address,
    identity: Identity,
    call: tuple[Method[Any, Any], Any] | None = None,
    protocol: str = NAMENODE_CLIENT,
) -> ProbeResult:
    """Log in to a server, and make a call that changes nothing, if one is given."""
    method, request = call or (None, None)
    protocol = protocol if method is None else method.protocol
    settings = RpcSettings(
        login_timeout_s=_ANSWER_S, kdc_timeout_s=_KDC_S, hosts=site.client_hosts, security=site.security()
    )
    try:
        connection = await RpcConnection.open(address, protocol, identity, settings)
        try:
            if method is not None:
                await connection.call(method, request, _CALL_S)
        finally:
            await connection.close()
    except AccelError as error:
        return _refusal(service, str(address), error)
    return ProbeResult(service, str(address))


def _hdfs(site: SiteSettings) -> ProbeResult:
    """Look at the root folder as servers and jobs do: with the native client."""
    uri = f"{site.properties.get('fs.defaultFS', '').rstrip('/')}/user"
    try:
        Store(site.conf_dir).exists(uri)
    except AccelError as error:
        return _refusal(HDFS, uri, error)
    return ProbeResult(HDFS, uri)


# ---- tokens


def _tokens(environ: Mapping[str, str]) -> tuple[list[Token], list[ProbeResult]]:
    path = environ.get(TOKEN_FILE_VARIABLE, "")
    if not path:
        return [], []
    cure = "let HADOOP_TOKEN_FILE_LOCATION name the job's own token file, or unset it"
    try:
        content = read_token_file(Path(path).read_bytes())
    except OSError as error:
        return [], [ProbeResult(TOKEN, path, "token-file", f"cannot be read: {error.strerror}", cure)]
    except AccelError as error:
        return [], [ProbeResult(TOKEN, path, "token-file", error.message, cure)]
    return [each for each in content.tokens.values() if each.kind == HDFS_DELEGATION_KIND], []


def _described(token: Token) -> HeldToken:
    try:
        owner = owner_of(token)
    except AccelError:
        return HeldToken("an unknown owner", token.service, 0.0)
    return HeldToken(owner.principal, token.service, owner.ends_s)


async def _logins_by_token(site: SiteSettings, held: Sequence[Token]) -> list[ProbeResult]:
    """Log in by each token that has not ended: the NameNode tells a cancelled one by the login alone."""
    now_s = time.time()
    good = [token for token in held if _described(token).ends_s > now_s]
    try:
        addresses = _namenodes(site)
    except AccelError:
        return []
    return list(
        await asyncio.gather(*(_ask(site, TOKEN, address, token) for token in good for address in addresses))
    )

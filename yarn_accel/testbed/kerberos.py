"""Kerberos for a cluster on one machine: a realm with its KDC, keytabs, one certificate, and web logins.

All of it lies in the cluster's own folder, and nothing of the machine is changed. The KDC runs in the network
namespace of the master. ``krb5.conf``, users and groups are laid over /etc inside the nodes alone.

The daemons' pages ask for SPNEGO. Who holds the file that signs their cookies needs no ticket: the launcher
writes the cookie that a login would have got (`WebLogin`).

All daemons run as the user who started the cluster, whoever they are for Kerberos: containers, too. So every
container can read every token, and nobody should call such a cluster secure. It is for trying things out.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import shutil
import ssl
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from yarn_accel.adapters.commands import run
from yarn_accel.errors import ClusterError
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.testbed.plan import KDC_PORT, PROTECTIONS, ClusterPlan, DaemonRole, NodePlan
from yarn_accel.testbed.state import ClusterPaths

REALM = "KRB.TEST"
SERVICE_USER = "accel"
PEOPLE = ("alice", "bob", SERVICE_USER)
"""Users with a keytab each, for clients."""
PEOPLE_GROUP = "people"
#: The users that daemons' principals count as, by ``hadoop.security.auth_to_local``.
DAEMON_USERS = ("hdfs", "yarn", "mapred")
DAEMONS_GROUP = "hadoop"
SUPERUSER = "hdfs"
_FIRST_ID = 20001
#: The first part of the principals of a node, by the roles that may run there.
_SERVICES = {
    DaemonRole.NAMENODE: "nn",
    DaemonRole.RESOURCEMANAGER: "rm",
    DaemonRole.HISTORYSERVER: "jhs",
    DaemonRole.DATANODE: "dn",
    DaemonRole.NODEMANAGER: "nm",
}
REALM_TIMEOUT_S = 120.0
KEY_STORE_PASSWORD = "changeit"
"""Java asks for one; what protects the file is its mode."""
_LOGIN_LIFE_S = 600.0
#: Folders of HDFS that somebody else than their user must make: (path, owner, group, mode).
HDFS_FOLDERS = (
    ("/tmp", SUPERUSER, DAEMONS_GROUP, "1777"),
    ("/tmp/logs", "yarn", DAEMONS_GROUP, "1777"),
    ("/tmp/hadoop-yarn", "mapred", DAEMONS_GROUP, "0755"),
    ("/tmp/hadoop-yarn/staging", "mapred", DAEMONS_GROUP, "1777"),
    ("/tmp/hadoop-yarn/staging/history", "mapred", DAEMONS_GROUP, "1777"),
    ("/user", SUPERUSER, DAEMONS_GROUP, "0755"),
    *((f"/user/{name}", name, PEOPLE_GROUP, "0700") for name in PEOPLE),
)


# ---- the files


def folder(paths: ClusterPaths) -> Path:
    """Return the folder of all that this module makes."""
    return paths.root / "kerberos"


def krb5_conf(paths: ClusterPaths) -> Path:
    """Return the settings of Kerberos' clients: programs read them by KRB5_CONFIG."""
    return folder(paths) / "krb5.conf"


def keytab(paths: ClusterPaths, name: str) -> Path:
    """Return the keytab of a node's daemons, or of one of `PEOPLE`."""
    return folder(paths) / f"{name}.keytab"


def ticket_cache(paths: ClusterPaths) -> Path:
    """Return where ``kinit`` puts tickets for this cluster, beside the user's own ones."""
    return folder(paths) / "tickets"


def ca_file(paths: ClusterPaths) -> Path:
    """Return the certificate of all nodes, which is its own authority."""
    return folder(paths) / "nodes.pem"


def _key_store(paths: ClusterPaths) -> Path:
    return folder(paths) / "nodes.p12"


def _http_secret(paths: ClusterPaths) -> Path:
    return folder(paths) / "http-secret"


def etc_files(plan: ClusterPlan) -> dict[str, str]:
    """Return the files that are laid over those of /etc on the nodes, besides ``hosts``."""
    users = [*DAEMON_USERS, *PEOPLE]
    ids = range(_FIRST_ID, _FIRST_ID + len(users))
    groups = {DAEMONS_GROUP: (_FIRST_ID, DAEMON_USERS), PEOPLE_GROUP: (_FIRST_ID + 1, PEOPLE)}
    group_of = {user: number for number, members in groups.values() for user in members}
    passwd = [f"{user}:x:{uid}:{group_of[user]}::/:/usr/sbin/nologin" for user, uid in zip(users, ids)]  # noqa: B905
    group = [f"{name}:x:{number}:{','.join(members)}" for name, (number, members) in groups.items()]
    return {
        "krb5.conf": _krb5_text(plan),
        "passwd": _with_lines(Path("/etc/passwd"), passwd),
        "group": _with_lines(Path("/etc/group"), group),
    }


def _with_lines(path: Path, lines: Sequence[str]) -> str:
    """Return a file of /etc without the names that `lines` bring, and with these."""
    names = {line.partition(":")[0] for line in lines}
    kept = [line for line in path.read_text().splitlines() if line.partition(":")[0] not in names]
    return "\n".join([*kept, *lines]) + "\n"


def _krb5_text(plan: ClusterPlan) -> str:
    hosts = "".join(f"  {node.host} = {REALM}\n" for node in plan.nodes)
    return f"""[libdefaults]
  default_realm = {REALM}
  dns_lookup_realm = false
  dns_lookup_kdc = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
  forwardable = true
[realms]
  {REALM} = {{
    kdc = {plan.master.address}:{KDC_PORT}
  }}
[domain_realm]
{hosts}"""


def _kdc_text(plan: ClusterPlan, home: Path) -> str:
    listen = f"{plan.master.address}:{KDC_PORT}"
    return f"""[realms]
  {REALM} = {{
    kdc_listen = {listen}
    kdc_tcp_listen = {listen}
    database_name = {home}/principals
    key_stash_file = {home}/stash
    acl_file = {home}/acl
    supported_enctypes = aes256-cts:normal aes128-cts:normal
    max_life = 1d
    max_renewable_life = 7d
    default_principal_flags = +renewable, +forwardable
  }}
[logging]
  kdc = STDERR
  admin_server = STDERR
  default = STDERR
"""


# ---- making them


def principals(plan: ClusterPlan) -> dict[str, list[str]]:
    """Return the principals by keytab: of each node's daemons, and of each user."""
    found = {}
    for node in plan.nodes:
        services = [_SERVICES[role] for role in plan.roles(node) if role in _SERVICES]
        found[node.name] = [f"{service}/{node.host}" for service in [*services, "HTTP"]]
    return {**found, **{name: [name] for name in PEOPLE}}


def ensure_realm(plan: ClusterPlan, paths: ClusterPaths) -> bool:
    """Make the realm, its keytabs and the certificate unless they are there; tell whether they had to be.

    They are made in a folder of their own that is renamed when complete.

    Raises:
        ClusterError: a command failed.
    """
    home = folder(paths)
    if home.exists():
        return False
    paths.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = Path(tempfile.mkdtemp(prefix="realm-", dir=paths.root))
    try:
        write_atomic(draft / "krb5.conf", _krb5_text(plan))
        write_atomic(draft / "kdc.conf", _kdc_text(plan, draft))
        (draft / "acl").touch()
        _make_principals(plan, draft)
        write_atomic(draft / "kdc.conf", _kdc_text(plan, home))
        _make_certificate(plan, draft)
        write_atomic(draft / "http-secret", secrets.token_hex(32), mode=0o400)
        draft.rename(home)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def _make_principals(plan: ClusterPlan, draft: Path) -> None:
    env = {**os.environ, "KRB5_CONFIG": str(draft / "krb5.conf"), "KRB5_KDC_PROFILE": str(draft / "kdc.conf")}
    _run(["kdb5_util", "create", "-s", "-r", REALM, "-P", secrets.token_hex(16)], env)
    orders = []
    for name, owned in principals(plan).items():
        orders += [f"addprinc -randkey {principal}" for principal in owned]
        orders.append(f"ktadd -k {draft / f'{name}.keytab'} {' '.join(owned)}")
    _run(["kadmin.local", "-r", REALM], env, stdin="\n".join(orders) + "\n")
    for name in principals(plan):
        made = draft / f"{name}.keytab"
        if not made.exists():
            raise ClusterError(f"kadmin.local wrote no keytab for {name}")
        made.chmod(0o400)


def _make_certificate(plan: ClusterPlan, draft: Path) -> None:
    """Make one certificate with the names and addresses of all nodes; as its own authority it needs no other.

    Java believes the certificate of a key store's own key, so this store is the trust store, too.
    """
    names = [f"DNS:{node.host}" for node in plan.nodes] + [f"IP:{node.address}" for node in plan.nodes]
    key, certificate = draft / "nodes.key", draft / "nodes.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-days", "3650", "-subj", "/CN=cluster", "-addext", f"subjectAltName={','.join(names)}"]
    _run([*argv, "-keyout", str(key), "-out", str(certificate)], os.environ)
    argv = ["openssl", "pkcs12", "-export", "-name", "nodes", "-inkey", str(key), "-in", str(certificate)]
    _run([*argv, "-out", str(draft / "nodes.p12"), "-passout", f"pass:{KEY_STORE_PASSWORD}"], os.environ)
    for path in (key, draft / "nodes.p12"):
        path.chmod(0o400)


def _run(argv: Sequence[str], env: Mapping[str, str], stdin: str = "") -> None:
    done = run(argv, REALM_TIMEOUT_S, env=env, stdin=stdin)
    if not done.ok:
        raise ClusterError(f"`{' '.join(argv[:2])}` failed: {done.last_line()}")


# ---- what settings and daemons take from here


def template_values(plan: ClusterPlan, paths: ClusterPaths) -> dict[str, str]:
    """Return the values of the templates in ``hadoop_conf/kerberos`` for the daemons."""
    wanted = plan.options.protection.split(",") if plan.options.protection else list(PROTECTIONS)
    protection = ",".join(wanted)
    values = {
        "realm": REALM,
        # The jars come without it. Collected logs and reducers need it where there is Kerberos.
        "has_native_code": "false",
        "rpc_protection": protection,
        "transfer_protection": protection,
        "keytab": str(keytab(paths, "${accel.node}")),
        "http_secret_file": str(_http_secret(paths)),
        "key_store": str(_key_store(paths)),
        "key_store_password": KEY_STORE_PASSWORD,
    }
    if plan.options.token_life_s:
        life_ms = plan.options.token_life_s * 1000
        # As by default: a seventh of its life later it must be renewed.
        renew_ms = str(life_ms // 7 + 1)
        values |= {"token_max_life_ms": str(life_ms), "token_renew_ms": renew_ms}
        # Applications outlive their first tokens; the last renewal is where new ones are asked for.
        values |= {"token_proxy": "true", "token_proxy_hosts": "*", "token_proxy_groups": PEOPLE_GROUP}
        values["token_proxy_remaining_ms"] = renew_ms
    return values


def principals_of_masters() -> dict[str, str]:
    """Return the values of the templates by which clients of two masters know both."""
    return {"namenode_principals": f"nn/*@{REALM}", "rm_principals": f"rm/*@{REALM}"}


def kdc_argv(paths: ClusterPaths) -> list[str]:
    """Return the command of the KDC; its last argument names the cluster."""
    return ["krb5kdc", "-n", "-r", REALM, "-P", kdc_signature(paths)]


def kdc_signature(paths: ClusterPaths) -> str:
    """Return the last argument of the KDC's command."""
    return str(folder(paths) / "kdc.pid")


def environ(paths: ClusterPaths, node: NodePlan, role: DaemonRole | None = None) -> dict[str, str]:
    """Return the variables of Kerberos for a node's commands, or for the daemon of one role.

    A pipeline server reads and writes as the service's user: MIT's library fetches its tickets by keytab.
    """
    found = {"KRB5_CONFIG": str(krb5_conf(paths))}
    if role is DaemonRole.KDC:
        found["KRB5_KDC_PROFILE"] = str(folder(paths) / "kdc.conf")
    if role is DaemonRole.PIPELINE:
        found["KRB5_CLIENT_KTNAME"] = f"FILE:{keytab(paths, SERVICE_USER)}"
        found["KRB5CCNAME"] = f"MEMORY:{node.name}"
    return found


def client_environ(paths: ClusterPaths) -> dict[str, str]:
    """Return the variables of Kerberos for programs outside the nodes; tickets lie beside the user's own."""
    return {"KRB5_CONFIG": str(krb5_conf(paths)), "KRB5CCNAME": f"FILE:{ticket_cache(paths)}"}


def jvm_options(paths: ClusterPaths) -> list[str]:
    """Return the options by which a JVM finds the realm."""
    return [f"-Djava.security.krb5.conf={krb5_conf(paths)}"]


# ---- web pages


@dataclass(frozen=True)
class WebLogin:
    """A login to the pages of all daemons of a cluster.

    Attributes:
        secret: what the daemons sign their cookies with.
        context: believes the certificate of the nodes.
    """

    secret: bytes
    context: ssl.SSLContext

    @classmethod
    def of(cls, paths: ClusterPaths) -> WebLogin:
        """Read the login of a cluster.

        Raises:
            OSError: there is none (yet).
        """
        return cls(_http_secret(paths).read_bytes(), ssl.create_default_context(cafile=str(ca_file(paths))))

    def headers(self, user: str, role: DaemonRole, now_s: float | None = None) -> dict[str, str]:
        """Return the cookie of a user, as the daemon of a role would have given it after SPNEGO."""
        # The ResourceManager also takes its own tokens, and calls that another kind of login.
        kind = "kerberos-dt" if role is DaemonRole.RESOURCEMANAGER else "kerberos"
        ends_ms = int(((time.time() if now_s is None else now_s) + _LOGIN_LIFE_S) * 1000)
        text = f"u={user}&p={user}@{REALM}&t={kind}&e={ends_ms}"
        signature = base64.b64encode(hmac.new(self.secret, text.encode(), hashlib.sha256).digest()).decode()
        return {"Cookie": f'hadoop.auth="{text}&s={signature}"'}

"""The files a cluster is configured by: Hadoop's, from the templates in ``hadoop_conf/``, and the servers'.

A template's value may hold ``@name@``. `PLACEHOLDERS` lists every name with its meaning and its default for a
real site, and `ONE_MACHINE` the values that differ when many nodes share one machine. ``${name}`` is Hadoop's
own: Hadoop expands it, also from ``-Dname=value`` of the JVM, which is how many nodes share one directory
(`PER_NODE`).
"""

from __future__ import annotations

import re
import socket
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from yarn_accel.adapters.credentials import create_master_secret
from yarn_accel.client.binding import Binding, Endpoint, format_binding
from yarn_accel.errors import ConfigError, StorageError
from yarn_accel.hadoop.java import ADD_OPENS, LEAN_FLAGS, MAIN_CLASSES, HadoopInstall, archive_options
from yarn_accel.hadoop.site import SITE_FILE
from yarn_accel.hadoop.streaming import LOG_SETTINGS
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.testbed import kerberos
from yarn_accel.testbed.plan import (
    DATANODE_HTTPS_PORT,
    MASTER,
    NAME_SERVICE,
    NAMENODE_HTTPS_PORT,
    ZOOKEEPER_PORT,
    ClusterPlan,
    NetworkMode,
    NodePlan,
    bound_servers,
)
from yarn_accel.testbed.processes import MARK_PROPERTY, mark_of
from yarn_accel.testbed.state import ClusterPaths
from yarn_accel.users import login_name

_NAME = re.compile(r"@([a-z0-9_]+)@")
WEBAPPS = ("webapps/hdfs", "webapps/datanode", "webapps/secondary")
NODE_RESOURCES = "node-resources.xml"


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One name that templates may use.

    Attributes:
        meaning: what it stands for.
        default: its value on a real site; None when it must be given.
    """

    meaning: str
    default: str | None = None


PLACEHOLDERS: Mapping[str, Placeholder] = {
    "namenode_host": Placeholder("host of the NameNode, as the readers of this directory reach it"),
    "resourcemanager_host": Placeholder("host of the ResourceManager"),
    "historyserver_host": Placeholder("host of the JobHistoryServer"),
    "data_dir": Placeholder(
        "directory of a node's own data; with ${accel.node.dir} where nodes share a disk"
    ),
    "worker_host": Placeholder("name a worker registers with; empty: the machine's own name", ""),
    "worker_bind_host": Placeholder(
        "address that NodeManagers and DataNodes' web ports listen on", "0.0.0.0"
    ),
    "datanode_bind_host": Placeholder("address that DataNodes serve block data on", "0.0.0.0"),
    "namenode_port": Placeholder("RPC port of the NameNode", "8020"),
    "namenode_http_port": Placeholder("web port of the NameNode", "9870"),
    "namenode_https_port": Placeholder("web port of the NameNode with TLS", str(NAMENODE_HTTPS_PORT)),
    "datanode_port": Placeholder("data port of a DataNode", "9866"),
    "datanode_http_port": Placeholder("web port of a DataNode", "9864"),
    "datanode_https_port": Placeholder("web port of a DataNode with TLS", str(DATANODE_HTTPS_PORT)),
    "datanode_ipc_port": Placeholder("RPC port of a DataNode", "9867"),
    "rm_scheduler_port": Placeholder("ResourceManager's port for application masters", "8030"),
    "rm_tracker_port": Placeholder("ResourceManager's port for NodeManagers", "8031"),
    "rm_port": Placeholder("ResourceManager's port for clients", "8032"),
    "rm_admin_port": Placeholder("ResourceManager's port for operators", "8033"),
    "rm_web_port": Placeholder("web port of the ResourceManager", "8088"),
    "nm_localizer_port": Placeholder("NodeManager's port for localizers", "8040"),
    "nm_port": Placeholder("NodeManager's port for application masters", "8041"),
    "nm_web_port": Placeholder("web port of a NodeManager", "8042"),
    "shuffle_port": Placeholder("port of the shuffle service in a NodeManager", "13562"),
    "history_port": Placeholder("RPC port of the JobHistoryServer", "10020"),
    "history_admin_port": Placeholder("JobHistoryServer's port for operators", "10033"),
    "history_web_port": Placeholder("web port of the JobHistoryServer", "19888"),
    "topology_file": Placeholder("table of racks; empty: one rack", ""),
    "http_user": Placeholder("user of unauthenticated web requests", "dr.who"),
    "replication": Placeholder("copies of a block", "3"),
    "registration_check": Placeholder("whether DataNodes need reverse DNS", "true"),
    "safemode_extension_ms": Placeholder("read-only time after the last block report", "30000"),
    "datanode_heartbeat_s": Placeholder("seconds between DataNode heartbeats", "3"),
    "datanode_recheck_ms": Placeholder("interval of the search for dead DataNodes", "300000"),
    "heartbeat_ms": Placeholder("interval of NodeManagers' and application masters' heartbeats", "1000"),
    "nm_expiry_ms": Placeholder("silence after which a NodeManager is lost", "600000"),
    "am_expiry_ms": Placeholder("silence after which an application master is replaced", "600000"),
    "rm_recovery_wait_ms": Placeholder("pause of scheduling after a restart", "10000"),
    "nm_memory_mib": Placeholder("memory of a worker for containers, MiB", "8192"),
    "nm_vcores": Placeholder("cores of a worker for containers", "8"),
    "min_container_mib": Placeholder("step of container sizes, MiB", "128"),
    "slots": Placeholder("accelerator slots (acct/slot) of this node", "0"),
    "disk_limit_percent": Placeholder("fullness that marks a worker's disk bad", "90"),
    "attribute_script": Placeholder("script that prints node attributes; empty: none", ""),
    "attribute_interval_ms": Placeholder("interval of that script", "10000"),
    "attribute_timeout_ms": Placeholder("time limit of that script", "20000"),
    "task_class_path": Placeholder("class path of containers: conf directory and jars, as on the workers"),
    "task_jvm_options": Placeholder(
        "JVM options of tasks and application masters, before the user's",
        "-Djava.net.preferIPv4Stack=true -Dhadoop.metrics.log.level=WARN",
    ),
    "cluster_marker": Placeholder(
        "value of YARN_ACCEL_CLUSTER in every container's environment; empty: not set", ""
    ),
    "client_poll_ms": Placeholder("interval of a waiting client's looks at its job", "1000"),
    "reduce_slowstart": Placeholder("share of maps to finish before reducers start", "0.05"),
    "containers_per_heartbeat": Placeholder("containers that one node may get per heartbeat", "100"),
    # Of hadoop_conf/kerberos alone.
    "realm": Placeholder("Kerberos' realm", ""),
    "has_native_code": Placeholder("whether workers have Hadoop's native library (libhadoop.so)", "true"),
    "master_principal_host": Placeholder("host in the principals of the master's daemons", "_HOST"),
    "namenode_principals": Placeholder(
        "pattern of NameNodes' principals, for clients that call two by their addresses; empty: none", ""
    ),
    "rm_principals": Placeholder("likewise of ResourceManagers' principals", ""),
    "keytab": Placeholder("file with the keys of a node's daemons", ""),
    "rpc_protection": Placeholder(
        "protection of RPC: authentication, integrity, privacy or a list", "privacy"
    ),
    "transfer_protection": Placeholder("protection of block data, likewise", "privacy"),
    "http_secret_file": Placeholder("file with what signs the cookies of web pages", ""),
    "key_store": Placeholder("certificate and key of a node for TLS, PKCS12", ""),
    "key_store_password": Placeholder("password of that file", ""),
    "token_max_life_ms": Placeholder("life of a delegation token", "604800000"),
    "token_renew_ms": Placeholder("time after which a delegation token must be renewed", "86400000"),
    "token_proxy": Placeholder("true: the ResourceManager asks for users' next tokens; empty: no", ""),
    "token_proxy_hosts": Placeholder("hosts it may do so from (the user yarn); empty: none", ""),
    "token_proxy_groups": Placeholder("groups of those users; empty: none", ""),
    "token_proxy_remaining_ms": Placeholder("life a token has left then, if so; empty: three hours", ""),
    # Of hadoop_conf/ha alone.
    "name_service": Placeholder("name of both NameNodes", NAME_SERVICE),
    "first_master_host": Placeholder("host of the first NameNode and ResourceManager", ""),
    "second_master_host": Placeholder("host of the second ones", ""),
    "zookeeper_host": Placeholder("host of ZooKeeper", ""),
    "zookeeper_port": Placeholder("its port", str(ZOOKEEPER_PORT)),
    "shared_edits_dir": Placeholder("folder of edits that both NameNodes see", ""),
    "election_timeout_ms": Placeholder("silence after which an active master is replaced", "10000"),
    "health_timeout_ms": Placeholder("silence after which a NameNode counts as hanging", "45000"),
    "fencing_script": Placeholder("script that ends the NameNode of the host $target_host", "/bin/true"),
}

# The values that differ when all nodes share one machine, cores and disk.
ONE_MACHINE: Mapping[str, str] = {
    "replication": "2",
    "registration_check": "false",
    "safemode_extension_ms": "0",
    "datanode_heartbeat_s": "1",
    "datanode_recheck_ms": "5000",
    "heartbeat_ms": "200",
    "nm_expiry_ms": "20000",
    # One that dies is replaced at once; Spark's takes up to a minute to register when all cores are busy.
    "am_expiry_ms": "120000",
    "rm_recovery_wait_ms": "1000",
    "nm_memory_mib": "4096",
    "disk_limit_percent": "99",
    "attribute_interval_ms": "1000",
    "attribute_timeout_ms": "3000",
    "client_poll_ms": "200",
    "reduce_slowstart": "0.95",
    "containers_per_heartbeat": "1",
}

# One conf directory for many nodes: every daemon gets these as -D system properties, and Hadoop expands them.
PER_NODE: Mapping[str, str] = {
    "data_dir": "${accel.node.dir}",
    "worker_host": "${accel.host}",
    "worker_bind_host": "${accel.bind}",
    "datanode_bind_host": "${accel.bind.data}",
    "datanode_port": "${accel.port.dn}",
    "datanode_http_port": "${accel.port.dn.http}",
    "datanode_ipc_port": "${accel.port.dn.ipc}",
    "nm_port": "${accel.port.nm}",
    "nm_localizer_port": "${accel.port.nm.localizer}",
    "nm_web_port": "${accel.port.nm.http}",
    "shuffle_port": "${accel.port.shuffle}",
}


def templates_dir() -> Path:
    """The folder of templates: of the checkout when there is one, else as installed.

    Raises:
        StorageError: there is neither.
    """
    checkout = Path(__file__).resolve().parents[2] / "hadoop_conf"
    for folder in (checkout, Path(sys.prefix) / "share" / "cluster-accel" / "hadoop_conf"):
        if (folder / "core-site.xml").exists():
            return folder
    raise StorageError("the templates hadoop_conf/ are not there", cure="install cluster-accel again")


def task_values(
    install: HadoopInstall, archive: Path | None, conf_dir: str | Path, jvm_options: Sequence[str] = ()
) -> dict[str, str]:
    """Values of ``task_class_path`` and ``task_jvm_options``; workers see ``install`` under the same path.

    ``jvm_options`` are further options for the JVMs of tasks and application masters.

    A ``-cp`` option beats the class path that the application master exports, which begins with the changing
    working directory and would spoil the archive; that directory (job.xml, -libjars) comes last instead.
    """
    path = f"{install.class_path_jar}:{conf_dir}"
    options = [*LEAN_FLAGS, *ADD_OPENS, "-Djava.net.preferIPv4Stack=true", "-Dhadoop.metrics.log.level=WARN"]
    options += [
        *archive_options(archive),
        *jvm_options,
        "-cp",
        f"{path}:.:./*:./job.jar/*:./job.jar/classes:./job.jar/lib/*",
    ]
    return {"task_class_path": path.replace(":", ","), "task_jvm_options": " ".join(options)}


def render(
    values: Mapping[str, str], target: Path, *, templates: Path | None = None, layers: Sequence[str] = ()
) -> Path:
    """Write a configuration directory from the templates.

    Args:
        values: by placeholder name; defaults fill in the rest.
        target: the directory; made when missing, files of the same names are replaced.
        templates: another folder of templates.
        layers: folders in there whose files add properties to those of the same names, or replace them.

    Returns:
        ``target``.

    Raises:
        ConfigError: an unknown name, or one without a default is missing.
    """
    templates = templates_dir() if templates is None else templates
    full = _complete(values)
    names = {source.name for folder in ("", *layers) for source in (templates / folder).glob("*.xml")}
    for name in sorted(names):
        sources = [templates / folder / name for folder in ("", *layers)]
        text = _render_xml([source for source in sources if source.exists()], full)
        write_atomic(target / name, text)
    write_atomic(target / LOG_SETTINGS.name, LOG_SETTINGS.read_text())
    for name in WEBAPPS:
        (target / name).mkdir(parents=True, exist_ok=True)
    return target


def render_node_resources(slots: int, target: Path, *, templates: Path | None = None) -> Path:
    """Write a node's own ``node-resources.xml`` into ``target``, which goes before the conf directory."""
    folder = templates_dir() if templates is None else templates
    write_atomic(target / NODE_RESOURCES, _render_xml([folder / NODE_RESOURCES], {"slots": str(slots)}))
    return target


def render_topology(racks: Mapping[str, str], target: Path) -> Path:
    """Write the table of racks (address or name -> rack) for the placeholder ``topology_file``."""
    write_atomic(target, "".join(f"{name} {rack}\n" for name, rack in racks.items()))
    return target


def _complete(values: Mapping[str, str]) -> dict[str, str]:
    unknown = sorted(set(values) - set(PLACEHOLDERS))
    if unknown:
        raise ConfigError(f"unknown template value {unknown[0]}; known: {', '.join(sorted(PLACEHOLDERS))}")
    full = {}
    for name, placeholder in PLACEHOLDERS.items():
        value = values.get(name, placeholder.default)
        if value is None:
            raise ConfigError(f"template value {name} is missing: {placeholder.meaning}")
        full[name] = value
    if full["http_user"] == "":
        full["http_user"] = login_name()
    full["attribute_provider"] = "script" if full["attribute_script"] else ""
    return full


def _render_xml(sources: Sequence[Path], values: Mapping[str, str]) -> str:
    """Return one file out of several templates; a later one's property replaces an earlier one's."""
    root = ElementTree.parse(sources[0]).getroot()
    for source in sources[1:]:
        for added in list(ElementTree.parse(source).getroot().iter("property")):
            for node in root.findall("property"):
                if node.findtext("name") == added.findtext("name"):
                    root.remove(node)
            root.append(added)
    for node in list(root.iter("property")):
        value = node.find("value")
        if value is None:
            continue
        try:
            value.text = _NAME.sub(lambda match: values[match[1]], value.text or "")
        except KeyError as error:
            raise ConfigError(f"{sources[-1]}: unknown placeholder @{error.args[0]}@") from None
        if not value.text:
            root.remove(node)
    ElementTree.indent(root)
    return '<?xml version="1.0"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


# A JVM that is killed would leave its counters file in the shared temporary directory.
JVM_OPTIONS = ("-XX:-UsePerfData",)


def write_settings(
    plan: ClusterPlan, paths: ClusterPaths, install: HadoopInstall, archive: Path | None
) -> None:
    """Write every file that daemons, containers and clients read; the same plan gives the same files.

    Args:
        plan: the cluster.
        paths: where to write.
        install: the jars.
        archive: the class data archive, or None.
    """
    write_atomic(paths.hosts_file, hosts_text(plan))
    racks = {key: node.rack for node in plan.workers for key in (node.address, node.host, node.name)}
    racks.update({key: node.rack for node in plan.masters for key in (node.address, node.host)})
    topology = render_topology(racks, paths.root / "topology.table")
    script = _attribute_script(plan, paths)
    common = {
        **ONE_MACHINE,
        **_ports(plan),
        **task_values(install, archive, paths.conf_dir, jvm_options(plan, paths)),
        "http_user": login_name(),
        "replication": str(min(2, len(plan.data_nodes))),
        "topology_file": str(topology),
        "cluster_marker": mark_of(paths.name, paths.tag),
        "attribute_script": str(script),
    }
    layers = []
    if plan.options.secure:
        layers.append("kerberos")
        common.update(kerberos.template_values(plan, paths))
    hosts = ("namenode_host", "resourcemanager_host", "historyserver_host")
    nodes = {**common, **PER_NODE, **dict.fromkeys(hosts, plan.master.host)}
    client = {**common, **dict.fromkeys(hosts, plan.master.address), "data_dir": str(paths.root / "client")}
    if plan.options.ha:
        layers.append("ha")
        write_atomic(paths.zookeeper_config, _zookeeper_text(paths))
        keys = ("first_master_host", "second_master_host", "zookeeper_host")
        shared = {
            "shared_edits_dir": str(paths.shared_edits_dir),
            "election_timeout_ms": "4000",
            "health_timeout_ms": "10000",
            "fencing_script": str(_fencing_script(paths)),
        }
        nodes |= {
            **shared,
            **dict(zip(keys, [each.host for each in (*plan.masters, plan.master)], strict=True)),
        }
        client |= {
            **shared,
            **dict(zip(keys, [each.address for each in (*plan.masters, plan.master)], strict=True)),
        }
    render(nodes, paths.conf_dir, layers=layers)
    # Clients call addresses, and no resolver of this machine turns those into the hosts of principals.
    client["master_principal_host"] = plan.master.host
    if plan.options.ha and plan.options.secure:
        client |= kerberos.principals_of_masters()
    render(client, paths.client_conf_dir, layers=layers)
    (paths.root / "client" / "tmp").mkdir(parents=True, exist_ok=True)
    for node in plan.workers:
        render_node_resources(node.slots, paths.node_dir(node.name) / "conf")
    write_atomic(
        paths.client_conf_dir / SITE_FILE,
        yaml.safe_dump(_client_site(plan, paths, install, archive), sort_keys=True),
    )
    write_pipeline_settings(plan, paths)


def _zookeeper_text(paths: ClusterPaths) -> str:
    """Return the settings of the one ZooKeeper: a site has three or five of them."""
    return f"""tickTime=500
dataDir={paths.node_dir(MASTER) / "zookeeper"}
clientPort={ZOOKEEPER_PORT}
maxClientCnxns=0
admin.enableServer=false
"""


def _fencing_script(paths: ClusterPaths) -> Path:
    """Write the script by which a failover controller ends the other NameNode of this cluster.

    A stopped one would go on later and write to the shared edits as if it were still active.
    """
    path = paths.root / "fence-namenode.sh"
    wanted = ("accel.node=$target_host", f"{MARK_PROPERTY}={mark_of(paths.name, paths.tag)}")
    greps = [f'grep -szlxFe "-D{each}"' for each in wanted]
    greps.append(f"grep -szlxFe {MAIN_CLASSES['namenode']}")
    lines = [
        "#!/bin/sh",
        f"{greps[0]} /proc/[0-9]*/cmdline | xargs -r {greps[1]} | xargs -r {greps[2]} |",
        "    cut -d/ -f3 | xargs -r kill -KILL",
    ]
    write_atomic(path, "\n".join(lines) + "\n", mode=0o755)
    return path


def hosts_text(plan: ClusterPlan) -> str:
    """Return /etc/hosts of the nodes: all nodes, and this machine's own name for the bridge's address.

    In loopback mode a node's name is its address, so that nothing depends on a resolver.
    """
    lines = ["127.0.0.1 localhost"]
    lines += [f"{node.address} {node.host}" for node in plan.nodes]
    own = socket.gethostname()
    if own not in {node.host for node in plan.nodes} | {"localhost"}:
        lines.append(f"{plan.gateway} {own}")
    return "\n".join(lines) + "\n"


def _ports(plan: ClusterPlan) -> dict[str, str]:
    ports = plan.ports
    named = {
        "namenode_port": ports.namenode,
        "namenode_http_port": ports.namenode_http,
        "rm_scheduler_port": ports.rm_scheduler,
        "rm_tracker_port": ports.rm_tracker,
        "rm_port": ports.rm,
        "rm_admin_port": ports.rm_admin,
        "rm_web_port": ports.rm_http,
        "history_port": ports.history,
        "history_admin_port": ports.history_admin,
        "history_web_port": ports.history_http,
    }
    return {name: str(port) for name, port in named.items()}


def node_properties(plan: ClusterPlan, paths: ClusterPaths, node: NodePlan) -> dict[str, str]:
    """Return the system properties that make the shared configuration this node's own."""
    ports = node.ports
    is_loopback = plan.mode is NetworkMode.LOOPBACK
    return {
        MARK_PROPERTY: mark_of(paths.name, paths.tag),
        "accel.node": node.name,
        "accel.node.dir": str(paths.node_dir(node.name)),
        "accel.host": node.host,
        "accel.bind": node.address if is_loopback else "0.0.0.0",
        # The NameNode gives clients the address that a DataNode called from: on the loopback 127.0.0.1.
        "accel.bind.data": "127.0.0.1" if is_loopback else "0.0.0.0",
        "accel.port.nm": str(ports.nodemanager),
        "accel.port.nm.localizer": str(ports.localizer),
        "accel.port.nm.http": str(ports.nodemanager_http),
        "accel.port.shuffle": str(ports.shuffle),
        "accel.port.dn": str(ports.datanode),
        "accel.port.dn.http": str(ports.datanode_http),
        "accel.port.dn.ipc": str(ports.datanode_ipc),
        "java.io.tmpdir": str(paths.node_dir(node.name) / "tmp"),
    }


def jvm_options(plan: ClusterPlan, paths: ClusterPaths) -> list[str]:
    """Return the options of every JVM on the nodes; in loopback mode also how it resolves addresses."""
    names = [f"-Djdk.net.hosts.file={paths.hosts_file}"] if plan.mode is NetworkMode.LOOPBACK else []
    return [*JVM_OPTIONS, *names, *(kerberos.jvm_options(paths) if plan.options.secure else ())]


def _client_site(
    plan: ClusterPlan, paths: ClusterPaths, install: HadoopInstall, archive: Path | None
) -> Mapping[str, object]:
    return {
        "binding_file": str(paths.binding_file),
        "master_secret_file": str(paths.master_secret_file),
        "client_hosts_file": str(paths.hosts_file),
        **({"web_ca_file": str(kerberos.ca_file(paths))} if plan.options.secure else {}),
        "hadoop_version": install.version,
        # The property lets `down` find a job client whose launcher has died.
        "client_jvm_options": [
            *JVM_OPTIONS,
            *archive_options(archive),
            *(kerberos.jvm_options(paths) if plan.options.secure else ()),
            f"-D{MARK_PROPERTY}={mark_of(paths.name, paths.tag)}",
            f"-Djava.io.tmpdir={paths.root / 'client' / 'tmp'}",
        ],
    }


def _attribute_script(plan: ClusterPlan, paths: ClusterPaths) -> Path:
    """Write the script that a NodeManager runs each second: it only prints the file of its node."""
    path = paths.root / "node-attributes.sh"
    for node in plan.workers:
        lines = {"accel": str(node.is_accel).lower(), "rack": node.rack.strip("/")}
        text = "".join(f"NODE_ATTRIBUTE:{name},STRING,{value}\n" for name, value in lines.items())
        write_atomic(paths.node_dir(node.name) / "attributes", text)
    write_atomic(
        path, f'#!/bin/sh\nexec cat "{paths.root}/nodes/${{YARN_ACCEL_NODE:?}}/attributes"\n', mode=0o755
    )
    return path


# ---- pipeline servers


def write_pipeline_settings(plan: ClusterPlan, paths: ClusterPaths) -> None:
    """Write the binding, each pipeline server's settings, and once per cluster the master secret."""
    if not paths.master_secret_file.exists():
        create_master_secret(paths.master_secret_file)
    write_atomic(paths.binding_file, format_binding(_binding(plan, paths)))
    for node in plan.accel_nodes:
        settings = _pipeline(plan, paths, node)
        write_atomic(paths.pipeline_config(node.name), yaml.safe_dump(settings, sort_keys=True))


def _binding(plan: ClusterPlan, paths: ClusterPaths) -> Binding:
    servers = plan.accel_nodes if plan.options.pipeline else ()
    return Binding(
        servers=tuple(
            Endpoint(
                name=node.name,
                host=node.address,
                port=node.ports.pipeline,
                unix_path=paths.unix_path(node.name),
                node=node.host,
            )
            for node in servers
        ),
        racks={node.host: node.rack for node in plan.workers},
        bound=bound_servers(plan) if servers else {},
    )


def _pipeline(plan: ClusterPlan, paths: ClusterPaths, node: NodePlan) -> Mapping[str, object]:
    return {
        # It takes as much CPU as four daemons, at each start: where it is kept ends with a container.
        "calibrate": plan.mode is not NetworkMode.DOCKER,
        "name": node.name,
        "listen_host": node.address,
        "listen_port": node.ports.pipeline,
        "unix_path": paths.unix_path(node.name),
        "master_secret_file": str(paths.master_secret_file),
        "state_file": str(paths.pipeline_state(node.name)),
        "hdfs_conf_dir": str(paths.client_conf_dir),
        # One user's cluster for trying things out: every tenant may use all of its HDFS.
        "tenants": {"*": {"read_prefixes": ["hdfs://"], "write_prefixes": ["hdfs://"]}},
        # With Kerberos it reads and writes as the service's user, by a keytab.
        **({"user_tokens": "off"} if plan.options.secure else {}),
    }

"""Configuration directories, rendered from the templates in ``hadoop_conf/``.

A template's value may hold ``@name@``; :data:`PLACEHOLDERS` lists every name with its meaning and its default
for a real site, and :data:`ONE_MACHINE` what differs when many nodes share one machine. ``${name}`` is not
ours: Hadoop itself expands it, also from ``-Dname=value`` of the JVM, which is how many nodes share one
directory (:data:`PER_NODE`).
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from yarn_accel.errors import ConfigError, StorageError
from yarn_accel.hadoop.java import ADD_OPENS, LEAN_FLAGS, HadoopInstall, archive_options
from yarn_accel.hadoop.streaming import LOG_SETTINGS
from yarn_accel.local_filesystem import write_atomic
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
    "datanode_port": Placeholder("data port of a DataNode", "9866"),
    "datanode_http_port": Placeholder("web port of a DataNode", "9864"),
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
}

# What differs when all nodes share one machine, cores and disk.
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


def render(values: Mapping[str, str], target: Path, *, templates: Path | None = None) -> Path:
    """Write a configuration directory from the templates.

    Args:
        values: by placeholder name; defaults fill in the rest.
        target: the directory; made when missing, files of the same names are replaced.
        templates: another folder of templates.

    Returns:
        ``target``.

    Raises:
        ConfigError: an unknown name, or one without a default is missing.
    """
    templates = templates_dir() if templates is None else templates
    full = _complete(values)
    for source in sorted(templates.glob("*.xml")):
        write_atomic(target / source.name, _render_xml(source, full))
    write_atomic(target / LOG_SETTINGS.name, LOG_SETTINGS.read_text())
    for name in WEBAPPS:
        (target / name).mkdir(parents=True, exist_ok=True)
    return target


def render_node_resources(slots: int, target: Path, *, templates: Path | None = None) -> Path:
    """Write a node's own ``node-resources.xml`` into ``target``, which goes before the conf directory."""
    folder = templates_dir() if templates is None else templates
    write_atomic(target / NODE_RESOURCES, _render_xml(folder / NODE_RESOURCES, {"slots": str(slots)}))
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


def _render_xml(source: Path, values: Mapping[str, str]) -> str:
    root = ElementTree.parse(source).getroot()
    for node in list(root.iter("property")):
        value = node.find("value")
        if value is None:
            continue
        try:
            value.text = _NAME.sub(lambda match: values[match[1]], value.text or "")
        except KeyError as error:
            raise ConfigError(f"{source}: unknown placeholder @{error.args[0]}@") from None
        if not value.text:
            root.remove(node)
    ElementTree.indent(root)
    return '<?xml version="1.0"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"

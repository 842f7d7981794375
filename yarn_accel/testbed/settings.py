"""The files a cluster is configured by: Hadoop's for daemons and clients, and the pipeline servers'."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from yarn_accel.adapters.credentials import create_master_secret
from yarn_accel.client.binding import Binding, Endpoint, format_binding
from yarn_accel.hadoop.java import HadoopInstall, archive_options
from yarn_accel.hadoop.site import SITE_FILE
from yarn_accel.local_filesystem import write_atomic
from yarn_accel.testbed.netns import hosts_text
from yarn_accel.testbed.plan import ClusterPlan, NetworkMode, NodePlan, bound_servers
from yarn_accel.testbed.processes import MARK_PROPERTY, mark_of
from yarn_accel.testbed.state import ClusterPaths
from yarn_accel.testbed.templates import (
    ONE_MACHINE,
    PER_NODE,
    render,
    render_node_resources,
    render_topology,
    task_values,
)
from yarn_accel.users import login_name

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
    racks.update({plan.master.address: plan.master.rack, plan.master.host: plan.master.rack})
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
    hosts = ("namenode_host", "resourcemanager_host", "historyserver_host")
    render({**common, **PER_NODE, **dict.fromkeys(hosts, plan.master.host)}, paths.conf_dir)
    client = {**common, **dict.fromkeys(hosts, plan.master.address), "data_dir": str(paths.root / "client")}
    render(client, paths.client_conf_dir)
    (paths.root / "client" / "tmp").mkdir(parents=True, exist_ok=True)
    for node in plan.workers:
        render_node_resources(node.slots, paths.node_dir(node.name) / "conf")
    write_atomic(
        paths.client_conf_dir / SITE_FILE, yaml.safe_dump(_client_site(paths, archive), sort_keys=True)
    )
    write_pipeline_settings(plan, paths)


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
    return [*JVM_OPTIONS, *names]


def _client_site(paths: ClusterPaths, archive: Path | None) -> Mapping[str, object]:
    return {
        "binding_file": str(paths.binding_file),
        "master_secret_file": str(paths.master_secret_file),
        "client_hosts_file": str(paths.hosts_file),
        # The property lets `down` find a job client whose launcher has died.
        "client_jvm_options": [
            *JVM_OPTIONS,
            *archive_options(archive),
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
    }

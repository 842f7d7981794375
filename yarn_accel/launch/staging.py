"""The files that the containers of one application read: written here, uploaded to a folder of its own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from yarn_accel.adapters.credentials import CREDENTIAL_SOCKET
from yarn_accel.adapters.journal_file import begin_journal
from yarn_accel.errors import StartupError
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.hadoop.site import HDFS_SERVERS_PROPERTY
from yarn_accel.launch.config import LaunchConfig, WorkerRole
from yarn_accel.launch.container_entry import NODE_KEYS
from yarn_accel.launch.keytab import KEYTAB_FILE, check_keytab, is_uploaded, master_login, upload_keytab
from yarn_accel.launch.packing import Environment
from yarn_accel.launch.plan import ApplicationPlan, make_plan
from yarn_accel.launch.uploads import (
    SCRIPT_NAME,
    USES_FILE,
    FileResource,
    environments_uri,
    stored_script_name,
    upload,
    upload_script,
    uses_document,
)
from yarn_accel.master.config import SOME_MANAGERS, journal_uri, parse_config, tokens_uri
from yarn_accel.node.config import load_config
from yarn_accel.storage import Store
from yarn_accel.uris import hdfs_roots
from yarn_accel.worker.config import check_worker_settings

_VERSION = 1
_SOME_WORKER = {"node": "NODE", "worker": "NODE"}
_PLAN_FILE = "plan.json"
#: In an agent's folder.
_AGENT_SOCKET = "agent.sock"
_FIGURES_FILE = "task-figures.json"
#: What the jobs of all applications of a user used.
ACCOUNTING_FOLDER = "accounting"
_SERVER_FILE, _AGENT_FILE, _MASTER_FILE = "pipeline.json", "agent.yaml", "master.json"


@dataclass(frozen=True, slots=True)
class Staged:
    """An application's files in the cluster's storage.

    Attributes:
        plan: the roles.
        folder_uri: the folder that is this application's alone.
        delivered: files that the master gets with its credentials (see `container_entry`): name -> text.
    """

    plan: ApplicationPlan
    folder_uri: str
    delivered: Mapping[str, str]


def hdfs_servers(rm_client: RmClient, config: LaunchConfig) -> tuple[str, ...]:
    """Each HDFS that the settings name, or the site's ``mapreduce.job.hdfs-servers``."""
    of_site = rm_client.site.properties.get(HDFS_SERVERS_PROPERTY, "").replace(",", " ").split()
    return tuple(hdfs_roots([config.model_dump(), of_site]))


def application_uri(rm_client: RmClient, config: LaunchConfig, application: str) -> str:
    """The folder of one application."""
    return f"{rm_client.staging_uri(config.environment.staging_uri)}/applications/{application}"


def server_document(
    config: LaunchConfig, default_fs: str = "", root_uri: str = "", servers: Sequence[str] = ()
) -> dict[str, Any]:
    """The document that a pipeline server's container reads, see `container_entry.node_config`.

    ``server`` has the settings of the pipeline servers with every default but those that each node sets,
    ``agent`` the settings of the agents.

    Args:
        default_fs: ``fs.defaultFS`` here, which a container may not know.
        root_uri: the folder of everything that this user uploads.
        servers: each HDFS that the application has a token for, see `hdfs_servers`.
    """
    left_to_nodes = set(NODE_KEYS - config.pipeline.keys())
    server = config.pipeline_settings.model_dump(mode="json", exclude=left_to_nodes)
    if not server["default_fs"] and default_fs.startswith("hdfs://"):
        server["default_fs"] = default_fs
    if "hdfs_servers" not in config.pipeline:
        server["hdfs_servers"] = list(servers)
    if root_uri and "accounting_uri" not in config.pipeline:
        server["accounting_uri"] = f"{root_uri}/{ACCOUNTING_FOLDER}"
    return {"server": server, "agent": config.agent.settings}


def agent_document(rm_client: RmClient, config: LaunchConfig) -> dict[str, Any]:
    """Settings of the agents."""
    own = {"application_name": config.app.name, "application_user": rm_client.user}
    return {**_managers(rm_client), **own, **config.agent.settings}


def _managers(rm_client: RmClient) -> dict[str, Any]:
    """Where a node's processes ask for the master; by RPC with Kerberos, as REST wants a ticket then."""
    if rm_client.kerberos is None:
        return {"rm_urls": list(rm_client.site.resourcemanager_webs())}
    return {"rm_addresses": [str(each) for each in rm_client.addresses.client]}


def _default_fs(rm_client: RmClient) -> str:
    """HDFS by the name that it has here, and so in tokens; nodes may have another.  Empty: there is none."""
    found = rm_client.site.properties.get("fs.defaultFS", "")
    return found if found.startswith("hdfs://") else ""


def worker_document(rm_client: RmClient, config: LaunchConfig, role: WorkerRole) -> dict[str, Any]:
    """Settings of the workers of one size."""
    run_dir = config.agent.settings.get("run_dir")
    return {
        **_managers(rm_client),
        "default_fs": _default_fs(rm_client),
        "cores": role.vcores,
        "gpus": [str(index) for index in range(role.gpus)],
        "memory_mib": role.tasks_memory_mib,
        "agent_socket": f"{run_dir}/{_AGENT_SOCKET}" if run_dir else "",
        "size": "" if role is config.worker else role.size,
        **role.settings,
    }


def task_document(config: LaunchConfig, root_uri: str = "") -> dict[str, Any] | None:
    """Settings of the task service; None: there is none.

    Args:
        root_uri: the folder of everything that this user uploads.
    """
    roles = config.worker_roles
    if not roles:
        return None
    first, *more = (_size_document(name, role, config) for name, role in roles.items())
    kept = {"figures_uri": _FIGURES_FILE, "accounting_uri": ACCOUNTING_FOLDER} if root_uri else {}
    figures = {key: f"{root_uri}/{name}" for key, name in kept.items()}
    return {**figures, **first, "more_sizes": more, **config.tasks, **_own_limits(config.worker)}


def _size_document(name: str, role: WorkerRole, config: LaunchConfig) -> dict[str, Any]:
    limits: dict[str, Any] = {
        key: config.tasks[key] for key in ("min_workers", "max_workers") if key in config.tasks
    }
    return {
        "role": name,
        "cores": role.vcores,
        "gpus": role.gpus,
        "task_memory_mib": role.tasks_memory_mib,
        "node_label": role.node_label,
        "node_attribute": role.node_attribute,
        **limits,
        **_own_limits(role),
    }


def _own_limits(role: WorkerRole) -> dict[str, int]:
    limits = {"min_workers": role.min_workers, "max_workers": role.max_workers}
    return {key: value for key, value in limits.items() if value is not None}


def master_document(
    rm_client: RmClient, config: LaunchConfig, folder_uri: str, hdfs_names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Settings of the ApplicationMaster.

    Args:
        hdfs_names: of its tokens, see `ApplicationTokens.names`.
    """
    addresses = rm_client.addresses
    run_dir = config.agent.settings.get("run_dir")
    return {
        "version": _VERSION,
        "plan_file": _PLAN_FILE,
        "rm_client": [str(address) for address in addresses.client],
        "rm_scheduler": [str(address) for address in addresses.scheduler],
        "rm_admin": [str(address) for address in addresses.admin],
        "rm_webs": rm_client.site.resourcemanager_webs(),
        "user": rm_client.user,
        "application_name": config.app.name,
        "staging_uri": folder_uri,
        "default_fs": _default_fs(rm_client),
        "credential_socket": f"{run_dir}/{CREDENTIAL_SOCKET}" if run_dir else "",
        "revoked_file": config.pipeline_settings.revoked_file,
        "tasks": task_document(config, rm_client.staging_uri(config.environment.staging_uri)),
        **({"hdfs_names": dict(hdfs_names)} if hdfs_names else {}),
        **(
            master_login(rm_client, config.kerberos, hdfs_servers(rm_client, config))
            if config.kerberos.keytab
            else {}
        ),
        **config.master.settings,
    }


def stage(
    rm_client: RmClient,
    store: Store,
    config: LaunchConfig,
    packed: Environment,
    application: str,
    hdfs_names: Mapping[str, str] | None = None,
) -> Staged:
    """Upload everything; the environment only when it is not there yet.

    Args:
        hdfs_names: as of `master_document`.

    Raises:
        StorageError: it cannot be written.
        StartupError: a local file cannot be read or written.
    """
    root = rm_client.staging_uri(config.environment.staging_uri)
    folder = application_uri(rm_client, config, application)
    if rm_client.kerberos is not None:
        store.mkdirs(folder, 0o700)
    # First of all, so that nobody removes from now on what is looked for next.
    _upload_text(store, folder, USES_FILE, uses_document([packed.path.name, stored_script_name()]))
    if config.worker_roles:
        begin_journal(store, journal_uri(folder))
    environment = upload(store, packed.path, environments_uri(root))
    script = upload_script(store, environments_uri(root))
    texts = _texts(rm_client, config)
    files = {name: _upload_text(store, folder, name, text) for name, text in texts.items()}
    if is_uploaded(config.kerberos):
        files[KEYTAB_FILE] = upload_keytab(store, Path(config.kerberos.keytab), folder)
    plan = make_plan(config, environment, script, _files_of_roles(config, files), _tokens(config, folder))
    return _staged(rm_client, config, folder, plan, hdfs_names)


def stage_dry_run(rm_client: RmClient, config: LaunchConfig, packed: Environment) -> Staged:
    """The same plan without any upload, for `--dry-run`."""
    shared = environments_uri(rm_client.staging_uri(config.environment.staging_uri))
    folder = application_uri(rm_client, config, "APPLICATION")
    environment = FileResource(packed.path.name, f"{shared}/{packed.path.name}", packed.n_bytes, 0)
    script = FileResource(SCRIPT_NAME, f"{shared}/{SCRIPT_NAME}", 0, 0)
    texts = _texts(rm_client, config)
    files = {name: FileResource(name, f"{folder}/{name}", len(text), 0) for name, text in texts.items()}
    if is_uploaded(config.kerberos):
        files[KEYTAB_FILE] = FileResource(KEYTAB_FILE, f"{folder}/{KEYTAB_FILE}", 0, 0)
    plan = make_plan(config, environment, script, _files_of_roles(config, files), _tokens(config, folder))
    return _staged(rm_client, config, folder, plan)


def _tokens(config: LaunchConfig, folder_uri: str) -> str:
    """Where containers look for newer tokens; empty: nobody asks for any."""
    return tokens_uri(folder_uri) if config.kerberos.keytab else ""


def role_settings(config: LaunchConfig) -> dict[str, BaseModel]:
    """The settings of master, agents and pipeline servers with all defaults, by their place in the file.

    Values that only a cluster or a node knows are filled in by placeholders.

    Raises:
        ConfigError: names the key and the known ones.
    """
    # Only who shows or starts a task service needs its policies.
    from yarn_accel.master.tasks.settings import TaskSettings

    return {
        "master.settings": parse_config({**SOME_MANAGERS, **config.master.settings}),
        "agent.settings": load_config(None, {}, **{"node": "NODE", **config.agent.settings}),
        **{
            f"{name}.settings": check_worker_settings({**_SOME_WORKER, **role.settings})
            for name, role in {"worker": config.worker, **config.worker_roles}.items()
        },
        "tasks": TaskSettings.model_validate(task_document(config) or {}),
        "pipeline": config.pipeline_settings,
    }


def check_settings(rm_client: RmClient, config: LaunchConfig) -> None:
    """Check what `master`, `agent` and `kerberos` say before anything is uploaded.

    Raises:
        ConfigError: names the key and the known ones.
    """
    check_keytab(rm_client.site, config.kerberos)
    parse_config(master_document(rm_client, config, rm_client.staging_uri(config.environment.staging_uri)))
    # The names of agents and workers are known on their nodes alone.
    for role in (config.worker, *config.more_workers):
        check_worker_settings({**_SOME_WORKER, **worker_document(rm_client, config, role)})
    load_config(None, {}, node="node", **agent_document(rm_client, config))


def _staged(
    rm_client: RmClient,
    config: LaunchConfig,
    folder: str,
    plan: ApplicationPlan,
    hdfs_names: Mapping[str, str] | None = None,
) -> Staged:
    document = master_document(rm_client, config, folder, hdfs_names)
    settings = json.dumps(document, indent=1, sort_keys=True)
    return Staged(plan, folder, {_MASTER_FILE: settings, _PLAN_FILE: plan.to_json()})


def _texts(rm_client: RmClient, config: LaunchConfig) -> dict[str, str]:
    root_uri = rm_client.staging_uri(config.environment.staging_uri)
    texts = {
        _SERVER_FILE: json.dumps(
            server_document(config, _default_fs(rm_client), root_uri, hdfs_servers(rm_client, config)),
            indent=1,
            sort_keys=True,
        ),
        _AGENT_FILE: yaml.safe_dump(agent_document(rm_client, config), sort_keys=True),
    }
    for name, role in config.worker_roles.items():
        texts[f"{name}.yaml"] = yaml.safe_dump(worker_document(rm_client, config, role), sort_keys=True)
    return texts


def _files_of_roles(
    config: LaunchConfig, files: Mapping[str, FileResource]
) -> dict[str, Sequence[FileResource]]:
    keytab = files.get(KEYTAB_FILE)
    return {
        "master": [keytab] if keytab is not None else [],
        "server": [files[_SERVER_FILE]],
        "agent": [files[_AGENT_FILE]],
        **{name: [files[f"{name}.yaml"]] for name in config.worker_roles},
    }


def _upload_text(store: Store, folder_uri: str, name: str, text: str) -> FileResource:
    with tempfile.TemporaryDirectory(prefix="yarn-accel-") as folder:
        path = Path(folder) / name
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise StartupError(f"{path}: {error.strerror}") from None
        return upload(store, path, folder_uri)

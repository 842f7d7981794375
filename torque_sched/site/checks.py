"""What can be said of a site without serving: its files, and the state its process wrote."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torque_sched.adapters.state_file import lives
from torque_sched.errors import ConfigError, StartupError
from torque_sched.site.config import SiteConfig
from torque_sched.site.places import SitePlaces
from torque_sched.site.secret_files import read_shared_key
from torque_sched.site.tls import Identities, client_context, server_context
from torque_sched.site.torque_jobs import local_user


def check_files(home: Path, config: SiteConfig) -> None:
    """Open every certificate and key, and look every mapped user up.

    Raises:
        ConfigError: the first that cannot be used.
    """
    if not (home / "server_priv").is_dir() and not config.grid.spool:
        raise ConfigError(f"{home} has no server_priv", cure="name the PBS home with -d, or set grid.spool")
    if not config.become and os.geteuid() == 0:
        raise ConfigError(
            "become: without a command blocks would be submitted as root", cure="use the default, runuser"
        )
    server_context(config)
    Identities(config)
    for peer in config.peers:
        client_context(config, peer)
        if peer.shared_key:
            read_shared_key(Path(peer.shared_key))
        for theirs, ours in peer.users.items():
            try:
                local_user(ours, config.min_uid)
            except ConfigError as error:
                raise ConfigError(
                    f"peers: {peer.name}: users: {theirs!r}: {error.message}", cure=error.cure
                ) from None


def read_state(home: Path, config: SiteConfig) -> dict[str, Any]:
    """What the site's process wrote last, and whether it lives.

    Raises:
        StartupError: it never wrote anything.
    """
    path = SitePlaces.of(home, config).state
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise StartupError(f"{path}: not written yet", cure="torque-sched site serve") from None
    state["alive"] = lives(int(state.get("pid", 0)))
    return state

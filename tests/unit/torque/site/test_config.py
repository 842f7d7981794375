"""Settings of a site: what is wrong is said with its place and the known keys."""

from __future__ import annotations

import configparser
import pwd
import shlex
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.unit.torque.site.linked import make_certificate, make_key
from torque_sched.cli import main
from torque_sched.commands.site import site
from torque_sched.core.handshake import Claim, Piece, SiteId, Token
from torque_sched.core.site import Denial
from torque_sched.errors import ConfigError
from torque_sched.site.checks import check_files
from torque_sched.site.config import SiteConfig, read_site_config
from torque_sched.site.ending import FORCED
from torque_sched.site.engines import admission_of
from torque_sched.site.torque_jobs import filled, local_user

BASE: dict[str, Any] = {"name": "alpha", "listen": "127.0.0.1", "certificate": "a.crt", "key": "a.key"}


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump({**BASE, **changes}))
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pers": []}, "pers: unknown key; known: .*peers"),
        ({"grid": {"look": 3}}, "grid.look: unknown key; known: .*poll_interval_s"),
        ({"peers": [{"name": "beta"}]}, "peers.0.address: missing"),
        (
            {"peers": [{"name": "beta", "address": "b", "certificate": "c", "users": {"x": "root"}}]},
            "root is never mapped",
        ),
        (
            {"peers": [{"name": "beta", "address": "b", "certificate": "c", "users": {"root": "x"}}]},
            "root is never mapped",
        ),
        (
            {"peers": [{"name": "beta", "address": "b", "certificate": "c", "users": {"*": "root"}}]},
            r"peers.0.users: '\*': 'root': root is never mapped; name an ordinary user",
        ),
        (
            {"peers": [{"name": "beta", "address": "b", "certificate": "c", "users": {"*": "0"}}]},
            "root is never mapped",
        ),
        (
            {"peers": [{"name": "beta", "address": "b", "certificate": "c", "users": {"x": "a b"}}]},
            "no user name",
        ),
        ({"peers": [{"name": "beta", "address": "b"}]}, "give its certificate, or a `ca`"),
        ({"peers": [{"name": "alpha", "address": "b", "certificate": "c"}]}, "alpha is this site"),
        ({"peers": 2 * [{"name": "beta", "address": "b", "certificate": "c"}]}, "beta named twice"),
        (
            {
                "ca": "x",
                "peers": [{"name": "b", "address": "b", "certificate": "c"}, {"name": "d", "address": "d"}],
            },
            "of each, or of none",
        ),
        ({"name": "a/b"}, "is no name"),
        ({"become": ["sudo", "-u", "{usr}"]}, r"unknown \{usr\}; known: user"),
        ({"stage_in": ["cp", "{what}"]}, r"unknown \{what\}; known: block"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_site_config(written(tmp_path, **changes))


def test_files_are_tried(tmp_path: Path) -> None:
    (tmp_path / "server_priv").mkdir()
    crt, key = make_certificate(tmp_path, "alpha")
    peer = {"name": "beta", "address": "b", "certificate": make_certificate(tmp_path, "beta")[0]}
    well = read_site_config(written(tmp_path, certificate=crt, key=key, peers=[peer]))
    check_files(tmp_path, well)
    wrong = [
        ({"key": make_certificate(tmp_path, "gamma")[1]}, "belonging to the certificate"),
        ({"certificate": str(tmp_path / "none.crt")}, "No such file"),
        (
            {"peers": [{**peer, "users": {"a": "no-such-user-here"}}]},
            "beta: users: 'a': .*unknown on this machine",
        ),
        ({"peers": [{**peer, "certificate": key}]}, "certificate"),
        ({"peers": [{**peer, "shared_key": str(tmp_path / "none")}]}, "No such file"),
    ]
    for changes, words in wrong:
        values = {**BASE, "certificate": crt, "key": key, "peers": [peer], **changes}
        with pytest.raises(ConfigError, match=words):
            check_files(tmp_path, SiteConfig(**values))
    Path(key).chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 0600"):
        check_files(tmp_path, well)


@pytest.mark.parametrize("theirs", ["*", "ann"])
@pytest.mark.parametrize("words", [("check-config",), ("serve",), ("serve", "--dry-run")])
def test_another_name_of_root_is_refused_before_anything_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: str, words: tuple[str, ...]
) -> None:
    """toor has uid 0, too."""
    toor = pwd.struct_passwd(("toor", "x", 0, 12, "", "/root", "/bin/sh"))
    (tmp_path / "server_priv").mkdir()
    crt, key = make_certificate(tmp_path, "alpha")
    peer = {
        "name": "beta",
        "address": "b",
        "certificate": make_certificate(tmp_path, "beta")[0],
        "users": {theirs: "toor"},
    }
    path = written(tmp_path, certificate=crt, key=key, peers=[peer])
    monkeypatch.setattr(pwd, "getpwnam", lambda name: toor)
    monkeypatch.setattr(pwd, "getpwall", lambda: [toor])
    done = CliRunner().invoke(site, ["-d", str(tmp_path), "--config", str(path), *words])
    assert done.exit_code == (1 if "--dry-run" in words else 2), done.output
    place = f"peers: beta: users: '{theirs}': user 'toor' is root or in its group, and never gets a block"
    assert f"{place}: map to an ordinary user" in done.output
    assert not (tmp_path / "sched_priv").exists()
    with pytest.raises(ConfigError, match="'toor' has uid 0: map to an ordinary user"):
        admission_of(read_site_config(path))


def test_check_config_prints_every_setting_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "server_priv").mkdir()
    crt, key = make_certificate(tmp_path, "alpha")
    shared = make_key(tmp_path, "ab")
    peer = {
        "name": "beta",
        "address": "b",
        "certificate": make_certificate(tmp_path, "beta")[0],
        "shared_key": shared,
    }
    path = written(tmp_path, certificate=crt, key=key, peers=[peer])
    done = CliRunner().invoke(site, ["-d", str(tmp_path), "--config", str(path), "check-config"])
    assert done.exit_code == 0, done.output
    for name in SiteConfig.model_fields:
        assert f"{name}:" in done.output
    assert Path(shared).read_text() not in done.output
    assert Path(key).read_text().splitlines()[1] not in done.output
    for verb in ("status", "peers"):
        told = CliRunner().invoke(site, ["-d", str(tmp_path), "--config", str(path), verb])
        assert (told.exit_code, "not written yet" in told.output) == (3, True)


def test_every_key_is_described() -> None:
    def look(model: Any) -> None:
        for name, entry in model.model_fields.items():
            assert entry.description, f"{model.__name__}.{name}"

    for section in (
        SiteConfig,
        *(SiteConfig.model_fields[name].annotation for name in ("gossip", "barrier", "grid")),
    ):
        look(section)


def test_who_is_let_in() -> None:
    users = {"ann": "bin", "*": "daemon"}
    peers = [
        {
            "name": "beta",
            "address": "b",
            "certificate": "c",
            "users": users,
            "max_slots": 8,
            "max_hours": 1.0,
            "max_blocks": 1,
        },
        {"name": "gamma", "address": "b", "certificate": "c"},
        {"name": "delta", "address": "b", "certificate": "c", "users": users, "max_slots": 8, "refuse": True},
    ]
    admission = admission_of(SiteConfig(**{**BASE, "peers": peers}))

    def told(peer: str, user: str, slots: int = 4, length_s: float = 60.0) -> str | Denial:
        claim = Claim((Piece("", slots),), 0.0, length_s)
        return admission.admit(SiteId(peer), Token(SiteId(peer), "1", 1), user, claim, ())

    assert told("beta", "ann") == "bin"
    assert told("beta", "anybody") == "daemon"
    for peer, user in (
        ("beta", "root"),
        ("beta", ""),
        ("beta", "*"),
        ("gamma", "ann"),
        ("delta", "ann"),
        ("nobody", "ann"),
    ):
        assert isinstance(told(peer, user), Denial), (peer, user)
    assert isinstance(told("beta", "ann", slots=9), Denial)
    assert isinstance(told("beta", "ann", length_s=3601.0), Denial)


def test_root_and_system_users_never_get_a_block() -> None:
    for name, words in (("root", "root"), ("daemon", "below min_uid"), ("no-such-user-here", "unknown")):
        with pytest.raises(ConfigError, match=words):
            local_user(name, 1000)


def test_a_template_is_never_a_shell_line() -> None:
    words = filled(("cp", "-r", "{folder}/{job}", "x"), folder="/a b;rm -rf /", job="$(id){user}")
    assert words == ("cp", "-r", "/a b;rm -rf //$(id){user}", "x")


# The file for systemd: documented keys, a command line that exists, and systemd's own opinion.


DOCUMENTED = {
    "Unit": {"Description", "After", "Wants"},
    "Service": {
        *("ExecStartPre", "ExecStart", "Restart", "RestartSec", "TimeoutStopSec", "SuccessExitStatus"),
        *("LimitNOFILE", "ProtectSystem", "PrivateDevices", "ProtectKernelTunables", "ProtectKernelModules"),
        "ProtectControlGroups",
    },
    "Install": {"WantedBy"},
}
"""Of systemd.unit(5), systemd.service(5) and systemd.exec(5); all are of version 232 or earlier."""
GRACE_S = 3.0
"""So long the service takes to end at most."""


@pytest.fixture
def text() -> str:
    return resources.files("torque_sched.site").joinpath("torque-sched-site.service").read_text()


@pytest.fixture
def unit(text: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(text)
    return parsed


def test_every_key_is_a_documented_one(unit: configparser.ConfigParser) -> None:
    assert set(unit.sections()) == set(DOCUMENTED)
    for section, known in DOCUMENTED.items():
        assert set(unit[section]) <= known


def test_its_commands_exist(unit: configparser.ConfigParser) -> None:
    for key, verb in (("ExecStartPre", "check-config"), ("ExecStart", "serve")):
        words = shlex.split(unit["Service"][key])
        assert words[:3] == ["/usr/bin/env", "torque-sched", "site"]
        context = site.make_context("site", words[3:], resilient_parsing=True)
        assert context.params["home"] == Path("/var/spool/torque")
        assert words[-1] == verb
        assert verb in site.commands
    assert "site" in main.list_commands(context)


def test_it_leaves_time_to_end_and_a_forced_end_is_no_failure(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    assert float(service["TimeoutStopSec"]) > GRACE_S
    assert service["SuccessExitStatus"] == str(FORCED)
    assert service["Restart"] == "always"
    assert "User" not in service, "it becomes the mapped users, which takes root"


def test_systemd_finds_nothing_wrong(text: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze on this machine")
    path = tmp_path / "torque-sched-site.service"
    path.write_text(text)
    well = subprocess.run([program, "verify", path], capture_output=True, text=True, check=False)
    assert (well.returncode, str(path) in well.stderr) == (0, False), well.stderr
    path.write_text(text.replace("Restart=always", "Restart=perhaps").replace("LimitNOFILE", "LimitNOTHING"))
    wrong = subprocess.run([program, "verify", path], capture_output=True, text=True, check=False)
    assert "perhaps" in wrong.stderr
    assert "LimitNOTHING" in wrong.stderr

"""Settings of a site: what is wrong is said with its place and the known keys."""

from __future__ import annotations

import configparser
import pwd
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.unit.torque.grid.linked import make_certificate, make_key
from torque_sched.commands.site import site
from torque_sched.errors import ConfigError
from torque_sched.grid.handshake.blocks import Denial
from torque_sched.grid.handshake.messages import Claim, Piece, SiteId, Token
from torque_sched.grid.site.config import SiteConfig, admission_of, read_site_config
from torque_sched.grid.site.service import FORCED, server_settings
from torque_sched.grid.site.site_files import check_files
from torque_sched.grid.site.torque_jobs import filled

BASE: dict[str, Any] = {"name": "alpha", "listen": "127.0.0.1", "certificate": "a.crt", "key": "a.key"}


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump({**BASE, **changes}))
    return path


def peer(**more: Any) -> dict[str, Any]:
    """Settings of beta."""
    return {"name": "beta", "address": "b", "certificate": "c", **more}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pers": []}, "pers: unknown key; known: .*peers"),
        ({"grid": {"look": 3}}, "grid.look: unknown key; known: .*poll_interval_s"),
        ({"peers": [{"name": "beta"}]}, "peers.0.address: missing"),
        ({"peers": [peer(users={"x": "root"})]}, "root is never mapped"),
        ({"peers": [peer(users={"root": "x"})]}, "root is never mapped"),
        (
            {"peers": [peer(users={"*": "root"})]},
            r"peers.0.users: '\*': 'root': root is never mapped; name an ordinary user",
        ),
        ({"peers": [peer(users={"*": "0"})]}, "root is never mapped"),
        ({"peers": [peer(users={"x": "a b"})]}, "no user name"),
        ({"peers": [peer(certificate="")]}, "give its certificate, or a `ca`"),
        ({"peers": [peer(name="alpha")]}, "alpha is this site"),
        ({"peers": 2 * [peer()]}, "beta named twice"),
        ({"ca": "x", "peers": [peer(), peer(name="d", certificate="")]}, "of each, or of none"),
        ({"name": "a/b"}, "is no name"),
        ({"become": ["sudo", "-u", "{usr}"]}, r"unknown \{usr\}; known: user"),
        ({"become": ["env"]}, "user"),
        ({"become": ["env", "A={job}"]}, "user"),
        ({"stage_in": ["cp", "{what}"]}, r"unknown \{what\}; known: block"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_site_config(written(tmp_path, **changes))


@dataclass
class Files:
    """A site's folder with its own certificate and key, and beta's certificate."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "server_priv").mkdir()
        self.crt, self.key = make_certificate(self.folder, "alpha")
        self.theirs = make_certificate(self.folder, "beta")[0]

    def written(self, **more: Any) -> Path:
        """Its settings, with these of beta."""
        peers = [peer(**{"certificate": self.theirs, **more})]
        return written(self.folder, certificate=self.crt, key=self.key, peers=peers)

    def run(self, *words: str, **more: Any) -> Result:
        """``torque-sched site WORDS``."""
        argv = ["-d", str(self.folder), "--config", str(self.written(**more)), *words]
        return CliRunner().invoke(site, argv)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_files_are_tried(files: Files) -> None:
    well = read_site_config(files.written())
    check_files(files.folder, well)
    wrong: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"key": make_certificate(files.folder, "gamma")[1]}, {}, "belonging to the certificate"),
        ({"certificate": str(files.folder / "none.crt")}, {}, "No such file"),
        ({}, {"users": {"a": "no-such-user-here"}}, "beta: users: 'a': .*unknown on this machine"),
        ({}, {"users": {"a": "daemon"}}, "below min_uid"),
        ({}, {"certificate": files.key}, "certificate"),
        ({}, {"shared_key": str(files.folder / "none")}, "No such file"),
    ]
    for changes, of_peer, words in wrong:
        peers = [peer(**{"certificate": files.theirs, **of_peer})]
        values = {**BASE, "certificate": files.crt, "key": files.key, "peers": peers, **changes}
        with pytest.raises(ConfigError, match=words):
            check_files(files.folder, SiteConfig(**values))
    Path(files.key).chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 0600"):
        check_files(files.folder, well)


@pytest.mark.parametrize("theirs", ["*", "ann"])
@pytest.mark.parametrize("words", [("check-config",), ("serve",), ("serve", "--dry-run")])
def test_another_name_of_root_is_refused_before_anything_is_served(
    files: Files, monkeypatch: pytest.MonkeyPatch, theirs: str, words: tuple[str, ...]
) -> None:
    """toor has uid 0, too."""
    toor = pwd.struct_passwd(("toor", "x", 0, 12, "", "/root", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: toor)
    monkeypatch.setattr(pwd, "getpwall", lambda: [toor])
    done = files.run(*words, users={theirs: "toor"})
    assert done.exit_code == (1 if "--dry-run" in words else 2), done.output
    place = f"peers: beta: users: '{theirs}': user 'toor' is root or in its group, and never gets a block"
    assert f"{place}: map to an ordinary user" in done.output
    assert not (files.folder / "sched_priv").exists()
    with pytest.raises(ConfigError, match="'toor' has uid 0: map to an ordinary user"):
        admission_of(read_site_config(files.folder / "site.yaml"))


def test_check_config_prints_every_setting_and_no_secret(files: Files) -> None:
    shared = make_key(files.folder, "ab")
    done = files.run("check-config", shared_key=shared)
    assert done.exit_code == 0, done.output
    for name in SiteConfig.model_fields:
        assert f"{name}:" in done.output
    assert Path(shared).read_text() not in done.output
    assert Path(files.key).read_text().splitlines()[1] not in done.output
    for verb in ("status", "peers"):
        told = files.run(verb, shared_key=shared)
        assert (told.exit_code, "not written yet" in told.output) == (3, True)


@pytest.mark.parametrize(
    ("version", "setting", "words", "name"),
    [
        ("pbs_version = 23.06.06", "auto", "OpenPBS (qstat --version: pbs_version = 23.06.06)", "OpenPBS"),
        ("Version: 6.1.3", "auto", "Torque (qstat --version: Version: 6.1.3)", "Torque"),
        ("Version: 6.1.3", "openpbs", "OpenPBS (setting `batch_system`)", "OpenPBS"),
        ("", "auto", "Torque (qstat --version: no answer)", "Torque"),
    ],
)
def test_a_site_says_which_batch_system_it_is(
    files: Files, version: str, setting: str, words: str, name: str
) -> None:
    """As it was set, or as it is found; both commands say it, and the partition is a setting."""
    qstat = files.folder / "qstat"
    qstat.write_text(f"#!/bin/sh\necho {version!r}\n")
    qstat.chmod(0o755)
    path = files.written()
    values = {**yaml.safe_load(path.read_text()), "commands": str(files.folder), "batch_system": setting}
    path.write_text(yaml.safe_dump({**values, "partition": "p2"}))
    argv = ["-d", str(files.folder), "--config", str(path)]
    told = CliRunner().invoke(site, [*argv, "check-config"])
    assert told.exit_code == 0, told.output
    assert f"# the batch system: {words}" in told.output
    assert 'partition: "p2"' in told.output
    server = server_settings(files.folder, read_site_config(path))
    assert (server.dialect(), server.partition) == (name.lower(), "p2")
    tried = CliRunner().invoke(site, [*argv, "serve", "--dry-run"])
    assert f"FAIL {name}: " in tried.output


def test_every_key_is_described() -> None:
    parts = (SiteConfig.model_fields[name].annotation for name in ("gossip", "barrier", "grid"))
    for model in (SiteConfig, *parts):
        for name, entry in model.model_fields.items():  # type: ignore[union-attr]
            assert entry.description, (model, name)


def test_who_is_let_in() -> None:
    users = {"ann": "bin", "*": "daemon"}
    peers = [
        peer(users=users, max_slots=8, max_hours=1.0, max_blocks=1),
        peer(name="gamma"),
        peer(name="delta", users=users, max_slots=8, refuse=True),
    ]
    admission = admission_of(SiteConfig(**{**BASE, "peers": peers}))

    def told(name: str, user: str, slots: int = 4, length_s: float = 60.0) -> str | Denial:
        claim = Claim((Piece("", slots),), 0.0, length_s)
        return admission.admit(SiteId(name), Token(SiteId(name), "1", 1), user, claim, ())

    assert told("beta", "ann") == "bin"
    assert told("beta", "anybody") == "daemon"
    for words in ("beta:root", "beta:", "beta:*", "gamma:ann", "delta:ann", "nobody:ann"):
        assert isinstance(told(*words.split(":")), Denial), words
    assert isinstance(told("beta", "ann", slots=9), Denial)
    assert isinstance(told("beta", "ann", length_s=3601.0), Denial)


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
TORQUE = Path("/var/spool/torque")
GRACE_S = 3.0
"""So long the service takes to end at most."""


@pytest.fixture
def text() -> str:
    return resources.files("torque_sched.grid.site").joinpath("torque-sched-site.service").read_text()


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


def test_its_commands_exist_it_leaves_time_to_end_and_a_forced_end_is_no_failure(
    unit: configparser.ConfigParser,
) -> None:
    service = unit["Service"]
    for key, verb in (("ExecStartPre", "check-config"), ("ExecStart", "serve")):
        words = shlex.split(service[key])
        assert words[:3] == ["/usr/bin/env", "torque-sched", "site"]
        assert site.make_context("site", words[3:], resilient_parsing=True).params["home"] == TORQUE
        assert words[-1] == verb
        assert verb in site.commands
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

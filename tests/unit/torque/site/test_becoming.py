"""A block's process really is the user it is mapped to, by `runuser` as is the default; root never is one."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
from pathlib import Path

import pytest

from tests.conftest import NEEDS_ROOT
from tests.unit.torque.site.linked import run
from tests.unit.torque.site.test_block import TICKET, text_of
from torque_sched.adapters.commands import Commands
from torque_sched.adapters.pbs import Pbs
from torque_sched.errors import ConfigError
from torque_sched.site.barrier import Barrier, BarrierAnswer, Standing
from torque_sched.site.checks import check_files
from torque_sched.site.config import SiteConfig
from torque_sched.site.torque_jobs import BlockJob, TorqueJobs, local_user

USER = "nobody"
QSUB = """#!/bin/sh
# What qsub and pbs_mom do, in one: runs the script as whoever calls, and notes who that is.
for script; do :; done
cat "$script" > {out}/job.sh || exit 9
stat -c '%U %a' "$script" > {out}/script
{{ id -un; id -G; echo "$HOME $USER $LOGNAME"; }} > {out}/who
PBS_JOBID=7.beta setsid sh {out}/job.sh > {out}/stdout 2> {out}/stderr < /dev/null &
echo 7.beta
"""
BODY = """#!/bin/sh
id -un
id -G
grep -E '^(Uid|Gid|CapEff)' /proc/self/status
cat {secret} 2> /dev/null || echo "no secret"
touch {out}/made
"""
CONFIG = {"name": "beta", "listen": "x", "certificate": "c", "key": "k"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that users may pass through, as the site's folder is."""
    if os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)
    for path in (tmp_path, *tmp_path.parents):
        if path.owner() == "root" and path.name.startswith(("pytest", tmp_path.name)):
            path.chmod(0o711)
    return tmp_path


def torque_of(folder: Path) -> TorqueJobs:
    """Orders to the stand-in for Torque, with the settings' own words before qsub."""
    for name, mode in (("out", 0o1777), ("bin", 0o755), ("scripts", 0o711)):
        (folder / name).mkdir()
        (folder / name).chmod(mode)
    qsub = folder / "bin" / "qsub"
    qsub.write_text(QSUB.format(out=folder / "out"))
    qsub.chmod(0o755)
    config = SiteConfig(**CONFIG, min_uid=1)
    assert config.become[0] == "runuser"
    path = f"{folder / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
    runs = Commands({"PATH": path, "HOME": "/root", "USER": "root"})
    return TorqueJobs(runs, Pbs(runs, lambda: 0.0), config, folder / "scripts", folder)


async def started(jobs: TorqueJobs, body: str, made: Path) -> list[Standing]:
    """Submit a block, let it go at the barrier, and wait for what it makes; who stood there."""
    stood: list[Standing] = []

    def answer(standing: Standing) -> BarrierAnswer:
        stood.append(standing)
        return BarrierAnswer(say="go", hosts=(("n1",), ("m1",)), sites=("alpha", "beta"))

    barrier = Barrier(answer)
    await barrier.start("127.0.0.1", 0)
    block = BlockJob("alpha/1.alpha/1", USER, "grid-alpha-1", "n1:ppn=2", 60.0, text_of(barrier.port, body))
    assert await jobs.submit(block) == "7.beta"
    while not made.exists():  # noqa: ASYNC110, ASYNC240 -- another process makes it
        await asyncio.sleep(0.05)
    await barrier.stop()
    return stood


@pytest.mark.root
def test_a_blocks_process_is_the_mapped_user_and_nothing_of_root_is_left_to_it(folder: Path) -> None:
    secret, out = folder / "site.key", folder / "out"
    secret.write_text("secret")
    secret.chmod(0o600)
    jobs = torque_of(folder)
    stood: list[Standing] = []

    async def story() -> None:
        stood.extend(await started(jobs, BODY.format(secret=secret, out=out), out / "made"))

    run(story)
    user = pwd.getpwnam(USER)
    groups = " ".join(str(gid) for gid in os.getgrouplist(USER, user.pw_gid))
    who = (out / "who").read_text().splitlines()
    assert who == [USER, groups, f"{user.pw_dir} {USER} {USER}"]
    assert (out / "script").read_text() == f"{USER} 400\n"
    assert list((folder / "scripts").iterdir()) == []
    told = (out / "stdout").read_text().splitlines()
    assert told[:2] == [USER, groups]
    ids = [[str(number)] * 4 for number in (user.pw_uid, user.pw_gid)]
    assert [line.split()[1:] for line in told[2:4]] == ids
    assert told[4].split() == ["CapEff:", "0000000000000000"]
    assert told[5] == "no secret"
    assert (out / "made").owner() == USER
    assert [standing.ticket for standing in stood] == [TICKET]


@pytest.mark.parametrize(
    "name",
    [
        "root",
        "0",
        "+0",
        "-0",
        "0x0",
        "",
        " root",
        "root ",
        "root\n",
        "ROOT",
        "root\0x",
        "\N{ROMAN NUMERAL ONE}",
    ],
)
def test_no_spelling_of_root_is_a_user(name: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown on this machine|is root or in its group"):
        local_user(name, 1)


@pytest.mark.parametrize(("uid", "gid", "more"), [(0, 12, ()), (12, 0, ()), (12, 12, (0,))])
def test_neither_uid_0_nor_its_group_in_any_way(
    monkeypatch: pytest.MonkeyPatch, uid: int, gid: int, more: tuple[int, ...]
) -> None:
    """By another name, as the user's own group, or as one group among others."""
    user = pwd.struct_passwd(("ann", "x", uid, gid, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: user)
    monkeypatch.setattr(os, "getgrouplist", lambda name, own: [own, *more])
    with pytest.raises(ConfigError, match="is root or in its group"):
        local_user("ann", 1)


def test_an_ordinary_user_is_one() -> None:
    assert local_user(USER, 1).pw_name == USER


@pytest.mark.parametrize("become", [["env"], ["env", "A={job}"]])
def test_words_that_do_not_name_the_user_are_refused(become: list[str]) -> None:
    with pytest.raises(ValueError, match="user"):
        SiteConfig(**CONFIG, become=become)


@pytest.mark.root
def test_root_may_not_submit_blocks_as_itself(folder: Path) -> None:
    (folder / "server_priv").mkdir()
    with pytest.raises(ConfigError, match=r"become: .* as root"):
        check_files(folder, SiteConfig(**CONFIG, become=[]))


def test_the_programs_of_the_settings_are_here() -> None:
    """Else the test of the mapping would prove nothing."""
    assert shutil.which("runuser", path="/usr/sbin:/usr/bin:/sbin:/bin")

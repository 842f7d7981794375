"""The profiles torque and sites: an emulated Torque in a container, and two that are linked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.programs import ran
from tests.fixtures.waiting import until
from tests.integration.compose.project import TEST_LIMIT_S, WAIT_S, Project, absent

pytestmark = [pytest.mark.docker, pytest.mark.timeout(TEST_LIMIT_S)]

SUBMIT = """
cat >/tmp/job.sh <<'END'
#!/bin/sh
{body}
END
cd /torque && qsub {options} /tmp/job.sh
"""


@pytest.fixture(scope="module", autouse=True)
def _images() -> None:
    reason = absent("torque")
    if reason:
        pytest.skip(reason)


@pytest.fixture
def torque(tmp_path: Path) -> Iterator[Project]:
    project = Project(["torque"], tmp_path)
    try:
        project.up()
        yield project
    finally:
        project.down()


def submit(project: Project, service: str, body: str, options: str) -> str:
    script = SUBMIT.format(body=body, options=options)
    return project.said("exec", "-T", service, "bash", input=script).strip()


def field(project: Project, service: str, job: str, key: str) -> str:
    done = project.compose("exec", "-T", service, "qstat", "-f", job)
    text = done.stdout.replace("\n\t", "")
    return next(
        (line.split(" = ", 1)[1] for line in text.splitlines() if line.strip().startswith(f"{key} = ")), ""
    )


def test_a_job_runs_and_waiting_ones_have_a_reason_also_after_a_restart(torque: Project):
    first = submit(torque, "torque", "echo it ran >/data/ran", "-l nodes=1:ppn=2,walltime=0:05:00")
    until(lambda: field(torque, "torque", first, "job_state") in ("C", ""), "the job has ended", WAIT_S)
    assert torque.said("exec", "-T", "torque", "cat", "/data/ran") == "it ran\n"
    submit(torque, "torque", "sleep 300", "-l nodes=4:ppn=2,walltime=0:05:00")
    waiting = submit(torque, "torque", "true", "-l nodes=4:ppn=2,walltime=0:05:00")
    until(lambda: "Not Running" in field(torque, "torque", waiting, "comment"), "it says why", WAIT_S)
    torque.said("restart", "torque")
    torque.up()
    # The body of the other one ended with the container; the server lost no job.
    until(lambda: field(torque, "torque", waiting, "job_state") in ("R", "C"), "it is started", WAIT_S)


def test_nobody_has_rights_and_no_port_is_published(torque: Project):
    (container,) = torque.containers()
    shown = ran(
        [
            "docker",
            "inspect",
            "--format",
            "{{.HostConfig.Privileged}} {{json .NetworkSettings.Ports}}",
            container,
        ],
        check=True,
    )
    assert shown.stdout.split() == ["false", "{}"]
    status = torque.said("exec", "-T", "torque", "cat", "/proc/1/status")
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    assert torque.said("exec", "-T", "torque", "id", "-u") == "1000\n"


@pytest.mark.slow
def test_a_job_of_two_linked_sites_has_a_block_at_each(tmp_path: Path):
    sites = Project(["alpha", "beta"], tmp_path)
    try:
        sites.up()
        for service in ("alpha", "beta"):
            until(
                lambda service=service: (
                    "alive" in sites.compose("exec", "-T", service, "torque-sched", "site", "peers").stdout
                ),
                f"{service} sees its peer",
                WAIT_S,
            )
        options = "-h -v TORQUE_GRID=yes,TORQUE_GRID_NODES=6 -l nodes=1:ppn=2,walltime=0:05:00"
        job = submit(sites, "alpha", 'echo "$TORQUE_GRID_SITES" >"/data/$TORQUE_GRID_SITE"', options)
        until(lambda: field(sites, "alpha", job, "job_state") == "C", "the job has ended", WAIT_S)
        assert field(sites, "alpha", job, "comment") == "grid: ran at alpha: exit 0, beta: exit 0"
        assert sites.said("exec", "-T", "beta", "cat", "/data/beta") == "alpha beta\n"
    finally:
        sites.down()

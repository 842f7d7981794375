"""The emulated pbs_server of OpenPBS, and the cluster it begins with."""

from __future__ import annotations

from pathlib import Path

from torque_sched.emulation.call import Answer, Call, Verb
from torque_sched.emulation.control_verb import Control
from torque_sched.emulation.core import EmulatedServer, n_jobs
from torque_sched.emulation.model import EmulatedJob, EmulatedObject, EmulatedQueue
from torque_sched.emulation.openpbs import hooks, lifecycle, manage, orders, reservations, show, submit
from torque_sched.emulation.world import Settings, World

_ONE_QRUN_S, _ONE_OF_MANY_S, _ONE_COMMENT_S = 28e-3, 6.5e-3, 15e-3
"""A lone ``qrun -a`` took 28 to 79 ms, 155 in one command a second; 67 comments a second in one command."""
_SERVER = {
    "scheduling": "True",
    "acl_roots": "root@{server}",
    "managers": "root@{server},{admins}",
    "default_queue": "workq",
    "log_events": "511",
    "mailer": "/usr/sbin/sendmail",
    "mail_from": "adm",
    "query_other_jobs": "True",
    "resources_default.ncpus": "1",
    "default_chunk.ncpus": "1",
    "scheduler_iteration": "600",
    "flatuid": "True",
    "resv_enable": "True",
    "node_fail_requeue": "310",
    "max_array_size": "10000",
    "pbs_license_min": "0",
    "pbs_license_max": "2147483647",
    "pbs_license_linger_time": "31536000",
    "eligible_time_enable": "False",
    "job_history_enable": "True",
    "job_history_duration": "01:00:00",
    "max_concurrent_provision": "5",
    "max_job_sequence_id": "9999999",
}
_SCHED = {
    "sched_host": "{server}", "sched_cycle_length": "00:20:00", "throughput_mode": "True",
    "job_run_wait": "runjob_hook", "partition": "pbs-default", "sched_priv": "/var/spool/pbs/sched_priv",
    "sched_log": "/var/spool/pbs/sched_logs", "scheduling": "True", "scheduler_iteration": "600",
    "state": "idle", "preempt_queue_prio": "150", "preempt_prio": "express_queue, normal_jobs",
    "preempt_order": "SCR", "preempt_sort": "min_time_since_start", "log_events": "767",
    "server_dyn_res_alarm": "30",
}  # fmt: skip
_RESOURCES = {
    "ngpus": {"type": "long", "flag": "hn"},
    "gpumem": {"type": "size", "flag": "hn"},
    "feature": {"type": "string_array", "flag": "h"},
    "big": {"type": "boolean", "flag": "h"},
}


class OpenPbsServer(EmulatedServer):
    """An emulated OpenPBS.

    Args:
        directory: as for `EmulatedServer`.
        listeners: for Torque's events: hooks name whom they tell themselves.
    """

    def __init__(self, directory: Path, listeners: tuple[str, ...] = ()) -> None:
        super().__init__(directory)
        del listeners
        self._mom_hooks_s: dict[str, float] = {}
        if self.world.jobs:
            self.world.restarted_s = self.world.now_s
        for node in self.world.nodes.values():
            node.attributes.setdefault("last_state_change_time", str(int(self.world.now_s)))
        for job in self.world.jobs.values():
            lifecycle.due_again(self.world, job)
        for name, found in reservations.reservations(self.world).items():
            reservations.due_again(self.world, name, found)

    def script_files(self, directory: Path) -> None:
        """None: real ones keep scripts in their database, where `printjob -s` reads them."""
        del directory

    def verbs(self) -> dict[str, Verb]:
        """OpenPBS's programs."""
        return {
            "qsub": self._qsub, "qrun": orders.qrun, "qstat": show.qstat, "pbsnodes": show.pbsnodes,
            "qalter": orders.qalter, "qhold": orders.qhold, "qrls": orders.qrls, "qsig": orders.qsig,
            "qdel": orders.qdel, "qrerun": orders.qrerun, "qmove": orders.qmove, "qmgr": self._qmgr,
            "pbs_rsub": reservations.pbs_rsub, "pbs_rstat": reservations.pbs_rstat,
            "pbs_rdel": reservations.pbs_rdel, "printjob": orders.printjob, "emulated": self._control,
        }  # fmt: skip

    def _qsub(self, world: World, call: Call) -> Answer:
        failed = hooks.run(world, self._directory, "queuejob", "", call.requestor(world))
        return hooks.refusal(failed) if failed else submit.qsub(world, call)

    def _qmgr(self, world: World, call: Call) -> Answer:
        answer = manage.qmgr(world, call)
        manage.write_hooks(world, self._directory)
        return answer

    def _control(self, world: World, call: Call) -> Answer:
        """``emulated hooks broken|whole`` and ``confirm`` besides what every dialect has."""
        if call.arguments[:1] == ("confirm",) and len(call.arguments) == 3:
            return reservations.confirm(world, *call.arguments[1:])
        if call.arguments[:1] == ("hooks",):
            world.objects.pop("emulated hooks", None)
            if call.arguments[1:2] == ("broken",):
                world.objects["emulated hooks"] = EmulatedObject("emulated hooks")
            world.touch("object", "emulated hooks")
            return Answer()
        answer = Control(submit.qsub, lifecycle.end, reports=False)(world, call)
        if call.arguments[:1] == ("node",) and not answer.code:
            lifecycle.follow_mom(world, world.nodes[call.arguments[1]])
        return answer

    def advance(self, now_s: float) -> None:
        """Let the time run to ``now_s``."""
        self.world.advance(now_s, self._fire)
        hooks.run_on_moms(self.world, self._directory, self._mom_hooks_s)

    def _fire(self, world: World, at_s: float, kind: str, key: str) -> None:
        if kind.startswith("reserve_"):
            reservations.fire(world, kind, key)
        else:
            lifecycle.fire(world, at_s, kind, key)

    def end(self, job: EmulatedJob, status: int) -> None:
        """A script is over."""
        lifecycle.end(self.world, job, status)

    def version_answer(self) -> Answer:
        """``--version``."""
        return Answer(out=f"pbs_version = {show.version_of(self.world)}\n")

    def unknown_host(self, name: str, host: str) -> Answer:
        """What a client prints that was told of another server."""
        return Answer(err=f"Unknown Host.\n{name}: cannot connect to server {host} (errno=15034)\n", code=2)

    def order_s(self, call: Call) -> float:
        """As a real server was measured."""
        many = n_jobs(call)
        if call.name == "qrun":
            return _ONE_QRUN_S if many <= 1 else _ONE_OF_MANY_S * many
        return _ONE_COMMENT_S * many if call.name == "qalter" else 0.0

    def send_events(self) -> None:
        """Run the hooks for what happened."""
        world = self.world
        happened = list(world.happened)
        world.happened.clear()
        for event, key in happened:
            hooks.run(world, self._directory, event, key, f"root@{world.settings.server}")


def first_world(
    settings: Settings, now_s: float, queues: dict[str, dict[str, str]] | None, server: dict[str, str] | None
) -> World:
    """The world of a cluster that was just made: one queue ``workq``, the resources of many sites."""
    world = World(settings, now_s=now_s)
    names = [name for name in settings.admins if name != "root"]
    admins = ",".join(f"{name}@{settings.server}" for name in names) or "root@*"
    world.server = {
        key: value.format(server=settings.server, admins=admins) for key, value in _SERVER.items()
    }
    world.server.update(server or {})
    for name, attributes in (queues if queues is not None else {"workq": {}}).items():
        base = {"queue_type": "Execution", "enabled": "True", "started": "True", **attributes}
        world.queues[name] = EmulatedQueue(name, base, int(now_s))
    for name, attributes in _RESOURCES.items():
        world.objects[f"resource {name}"] = EmulatedObject(f"resource {name}", dict(attributes))
    sched = {key: value.format(server=settings.server) for key, value in _SCHED.items()}
    world.objects["sched default"] = EmulatedObject("sched default", sched)
    return world


def gone_answer(name: str, server: str) -> tuple[int, str]:
    """Exit code and standard error of a program that finds no server."""
    if name == "pbsnodes":
        return 1, f"Connection refused\npbsnodes: cannot connect to server {server}, error=15010\n"
    if name == "qrun":
        return 2, "Connection refused\nqrun: could not connect to server  (15010)\n"
    code = 255 if name == "qstat" else 15010 % 256
    return code, f"Connection refused\n{name}: cannot connect to server {server} (errno=15010)\n"

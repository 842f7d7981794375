"""State documents of clusters that never were, from the real `Application` and the real `AgentStatistics`."""

from tests.unit.core.application.virtual_cluster import ROLES
from yarn_accel.core.application import Application, Settings
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev
from yarn_accel.core.binding import make
from yarn_accel.master.status_documents import AgentStatistics, StatusDocuments

AT = 1_795_000_000.0
ABOUT = {
    "application": "application_1795000000000_0001",
    "name": "yarn-accel",
    "user": "ada",
    "queue": "default",
    "started_at": AT - 4000,
    "proxy_url": "http://rm:8088/proxy/application_1795000000000_0001/",
    "version": "0.9",
}
SERVICE = {"rm_heartbeats": 4000, "rm_failures": 2, "rm_age_s": 0.4, "rss_bytes": 45e6, "events": 9000}


class Scene:
    """A cluster: nodes as (host, rack, is_accelerator); every container that is asked for runs at once."""

    def __init__(self, nodes, policy="paper"):
        self.app = Application(Settings(settle_s=0.0), ROLES, lambda: make(policy))
        self.figures = AgentStatistics()
        self.now_s = 100.0
        self.nodes = {host: (rack, is_accelerator) for host, rack, is_accelerator in nodes}
        self.containers = {}
        self.n_done = dict.fromkeys(self.nodes, 0.0)
        self.tell(ev.TimerFired)
        self.tell(ev.Registered, (), 1)
        self.report()

    def tell(self, kind, *args, **more):
        for command in self.app.apply(kind(*args, **more, now_s=self.now_s)):
            self.enact(command)

    def enact(self, command):
        if isinstance(command, cmd.RequestContainer):
            container = ev.ContainerRef(
                f"container_{len(self.containers) + 1:06d}",
                command.node,
                command.priority,
                command.request_id,
            )
            self.containers[container.id] = (command.node, command.role)
            self.tell(ev.ContainersAllocated, (container,))
        elif isinstance(command, cmd.LaunchContainer):
            self.tell(ev.ContainerStarted, command.container.id)
        elif isinstance(command, cmd.SetSlots):
            self.tell(ev.SlotsSet, command.node, command.n_slots)

    def report(self, **documents):
        views = [
            ev.NodeView(
                host,
                8041,
                rack,
                is_usable=documents.get(host) != "gone",
                is_accelerator=is_accelerator,
                capability={"yarn.io/gpu": int(is_accelerator)},
            )
            for host, (rack, is_accelerator) in self.nodes.items()
        ]
        self.tell(ev.NodesReported, tuple(views), is_complete=True)

    def heartbeat(self, silent=(), rates=None, **changes):
        """A second passes, and all agents but the silent ones are heard; `rates`: requests/s by server."""
        self.now_s += 1.0
        self.tell(ev.TimerFired)
        for i, (host, (_, is_accelerator)) in enumerate(self.nodes.items()):
            if host in silent:
                continue
            rate = (rates or {}).get(host, 12.0 + 5 * i)
            self.n_done[host] += rate
            body = heartbeat(host, self.n_done[host], rate, is_accelerator) | changes.get(host, {})
            self.figures.heard(host, body, self.now_s)
            self.tell(ev.StatusReported, host, "agent")
            server = body["server"]
            if server is not None:
                is_healthy = server["health"] == "ok"
                self.tell(
                    ev.StatusReported,
                    host,
                    "server",
                    endpoint=f"{host}:7070",
                    is_healthy=is_healthy,
                    detail="; ".join(server["problems"]),
                    gauges=ev.ServerGauges(8, server["in_flight"]),
                )

    def documents(self, **service):
        """What the page is made from, as the master has it."""
        return StatusDocuments(
            self.app,
            self.figures,
            lambda: self.now_s,
            ABOUT,
            lambda now_s: {**SERVICE, **service},
            wall_clock=lambda: AT,
        )

    def state(self, **service):
        return at_once(self.documents(**service).whole())


def at_once(making):
    """The result of a coroutine that waits for nothing but its turn, without an event loop or inside one."""
    while True:
        try:
            making.send(None)
        except StopIteration as done:
            return done.value


CLAIMS = {
    "waiting": 1,
    "cpu": 2,
    "gpu": 3,
    "decided": 40,
    "undecided": 5,
    "lost": 6,
    "counts_age_s": 1.5,
}


def claiming(**counts):
    """The four nodes; mappers have claimed places on w1 and w2, and w3 and w4 have agents from before."""
    scene = four_nodes()
    both = {host: {"late_binding": {"apps": {}, "claims": CLAIMS}} for host in ("w1", "w2")}
    both["w2"]["late_binding"]["claims"] = {**CLAIMS, "counts_age_s": 2.5, **counts}
    scene.heartbeat(**both)
    return scene


def four_nodes(n_beats=12):
    """Two racks, in each a server's node and another one."""
    first, second = "/rack1", "/rack2"
    scene = Scene([("w1", first, True), ("w2", first, False), ("w3", second, True), ("w4", second, False)])
    for _ in range(n_beats):
        scene.heartbeat()
    return scene


def heartbeat(host, n_done, rate, is_accelerator):
    """The body of one heartbeat, as `node.agent` writes it."""
    gib = 2**30
    devices = [
        {
            "index": 0,
            "device": "cuda:0",
            "name": "NVIDIA L4",
            "health": "ok",
            "temperature_c": 61,
            "memory_bytes": 7 * gib,
            "memory_total_bytes": 23 * gib,
            "utilisation": 0.62,
        }
    ]
    return {
        "version": 1,
        "node": host,
        "address": host,
        "epoch": 1,
        "seq": 7,
        "at": AT,
        "devices": devices if is_accelerator else [],
        "server": server(host, n_done, rate) if is_accelerator else None,
        "pressure": {"io_some_avg10": 1.25},
        "nic": {"rx_bytes_per_s": 12e6, "tx_bytes_per_s": 3e6, "errors_per_s": 0.0},
        "disk": {"read_bytes_per_s": 4e6, "write_bytes_per_s": 1e6, "busy_share": 0.31},
        "agent": {"pid": 4711, "rss_bytes": 38e6, "cpu_share": 0.004},
        "problems": [],
    }


def server(host, n_done, rate, health="ok"):
    """The part about the server; it works 30 ms on a request."""
    return {
        "endpoint": {"name": host, "host": host, "port": 7070, "unix_path": "", "node": host, "tls": False},
        "is_local_only": False,
        "pid": 900,
        "started_at": "2026-11-21T09:00:00Z",
        "health": health,
        "problems": [],
        "in_flight": min(round(rate / 5), 8),
        "queued": max(round(rate / 5) - 4, 0),
        "queue_bytes": 48 * 2**20,
        "queue_bound_bytes": 512 * 2**20,
        "requests": n_done + 3,
        "done": n_done,
        "rejected": 2,
        "failed": 1,
        "busy": 0,
        "workers": 2,
        "computes_on": "cpu",
        "gpu_other_bytes": 3 * 2**30,
        "device_s": n_done * 0.03,
        "read_busy_s": n_done * 0.011,
        "compute_busy_s": n_done * 0.042,
        "write_busy_s": n_done * 0.006,
        "operations": {"lu": {"done": n_done, "compute_s": n_done * 0.03}},
    }

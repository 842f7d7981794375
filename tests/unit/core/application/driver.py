"""An `Application` with a clock in a test's hands, and words to say what was ordered."""

from tests.unit.core.application.virtual_cluster import AGENT, SERVER
from yarn_accel.core.application import Application, RoleTable, Settings
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev
from yarn_accel.core.binding import PaperBinding

USUAL = Settings()
ROLES = RoleTable([SERVER, AGENT])


class Driver:
    """Applies events at a clock of its own, validates after each, and keeps what was ordered."""

    def __init__(
        self,
        settings=USUAL,
        roles=ROLES,
        attempt=1,
        previous=(),
        is_registered=True,
        make_policy=PaperBinding,
    ):
        self.app = Application(settings, roles, make_policy)
        self.now_s = 0.0
        self.n = 0
        if is_registered:
            self(ev.TimerFired)
            self(ev.Registered, previous, attempt)

    def __call__(self, kind, *args, **more):
        commands = self.app.apply(kind(*args, **more, now_s=self.now_s))
        self.app.validate()
        return commands

    def wait(self, seconds):
        self.now_s += seconds
        return self(ev.TimerFired)

    def nodes(self, *views, **more):
        return self(ev.NodesReported, views, **more)

    def hear(self, node, role="server", container="", **more):
        return self(ev.StatusReported, node, role, container=container, endpoint=f"{node}:7070", **more)

    def run(self, ask):
        """What the RM and the NM do about a request."""
        self.n += 1
        container = ev.ContainerRef(f"c{self.n}", ask.node, ask.priority, ask.request_id)
        assert kinds(self(ev.ContainersAllocated, (container,))) >= {cmd.LaunchContainer}
        self(ev.ContainerStarted, container.id)
        return container


def kinds(commands):
    return {type(command) for command in commands}


def only(commands, kind):
    return [command for command in commands if isinstance(command, kind)]


def accelerator(host="a1", rack="/r1", **more):
    return ev.NodeView(host, 8041, rack, is_accelerator=True, capability={"yarn.io/gpu": 2}, **more)


def plain(host="n1", rack="/r1", **more):
    return ev.NodeView(host, 8041, rack, **more)


def servers_only():
    return RoleTable([SERVER])


def retry_s(driver):
    """How long the server of a1 will not be asked for."""
    return driver.app.snapshot(driver.now_s)["nodes"]["a1"]["places"]["server"]["retry_in_s"]


def held(driver):
    """The containers of the server of a1."""
    places = driver.app.snapshot(driver.now_s)["nodes"]["a1"]["places"]
    return [container["id"] for container in places["server"]["containers"]]


def members(driver, server):
    return [node for node, other in driver.app.bound().items() if other == server]


def slots(commands):
    return {command.node: command.n_slots for command in only(commands, cmd.SetSlots)}

"""A resource manager, node managers and a shell in a few lines of virtual time, around a real `Application`.

They believe nothing: each command is checked against what was ordered before, and the truth about containers,
asks and slots is kept apart from what the application thinks.
"""

from collections import deque
from dataclasses import dataclass, field

from yarn_accel.core.application import (
    Application,
    ContainerRole,
    NodeSelector,
    RoleResource,
    RoleTable,
    Settings,
)
from yarn_accel.core.application import commands as cmd
from yarn_accel.core.application import events as ev

SERVER = ContainerRole(
    "server", NodeSelector.ACCELERATOR, RoleResource(1024, 2, whole=("yarn.io/gpu",)), 10, is_server=True
)
AGENT = ContainerRole("agent", NodeSelector.EVERY, RoleResource(128), 11)
WORKER = ContainerRole("worker", NodeSelector.CHOSEN, RoleResource(512), 12)
ROLES = RoleTable([SERVER, AGENT, WORKER])
#: So often it may want to be woken at once, one time after the other: it looks at a few nodes each time.
AT_ONCE = 10
CONFIGURED = 9
#: The application's time is this one less its stalls.
ROUNDING_S = 1e-9
QUICK = Settings(
    guest_after_s=4.0,
    settle_s=1.0,
    max_delay_s=8.0,
    healthy_s=5.0,
    ask_again_s=6.0,
    launch_limit_s=4.0,
    check_after_s=4.0,
    hung_s=10.0,
    stop_again_s=2.0,
    forget_s=7.0,
    drain_grace_s=1.0,
    drain_limit_s=6.0,
    stop_drain_s=3.0,
    stop_limit_s=20.0,
    restore_after_s=5.0,
    slots_again_s=3.0,
    recovery_s=5.0,
    register_again_s=3.0,
)


@dataclass
class TrueNode:
    """A node as it is; `state` is the RM's: up, leaving, or gone."""

    host: str
    rack: str
    is_accelerator: bool
    state: str = "up"
    is_cut: bool = False
    slots: int = CONFIGURED

    def view(self, bound=None):
        capability = {"memory-mb": 8192, "yarn.io/gpu": 2 if self.is_accelerator else 0}
        return ev.NodeView(
            self.host,
            8041,
            self.rack,
            is_usable=self.state != "gone",
            is_accelerator=self.is_accelerator,
            is_leaving=self.state == "leaving",
            capability=capability,
            slots=self.slots,
            bound=bound,
        )


@dataclass
class TrueContainer:
    """A container as it is: granted, running, or ended."""

    container: ev.ContainerRef
    state: str = "granted"
    is_mute: bool = False
    is_ill: bool = False
    is_hung: bool = False
    n_open: int = 0
    is_lost: bool = False
    is_released: bool = False


@dataclass
class Ordered:
    """When each command was last given, to find those that are repeated too early."""

    at_s: dict = field(default_factory=dict)

    def check(self, key, now_s, again_s):
        last_s = self.at_s.get(key)
        assert last_s is None or now_s >= last_s + again_s - ROUNDING_S, (
            f"{key} ordered after {now_s - last_s:.2f} s again"
        )
        self.at_s[key] = now_s

    def forget(self, *whats):
        self.at_s = {key: at_s for key, at_s in self.at_s.items() if key[0] not in whats}


class VirtualCluster:
    """The truth, the messages under way, and the application."""

    def __init__(self, make_policy, settings=QUICK):
        self.make_policy = make_policy
        self.settings = settings
        self.now_s = 1000.0
        self.nodes = {}
        self.containers = {}
        self.asks = {}
        self.drained = set()
        self.chosen = frozenset()
        self.stopping_s = None
        # Tasks ask for servers, once a second; matters where idle servers are released.
        self.are_servers_wanted = True
        self.is_rm_registered = False
        self.is_finished = False
        self.messages = deque()
        self.commands = deque()
        self.bound = {}
        self.endpoints = {}
        self.version = 0
        self.attempt = 0
        self.n_containers = 0
        self.spoken_s = 0.0
        self.start_attempt()

    # The shell.

    def start_attempt(self):
        """A new attempt knows nothing but what events say."""
        self.attempt += 1
        self.app = Application(self.settings, ROLES, self.make_policy)
        self.is_rm_registered = False
        self.messages.clear()
        self.commands.clear()
        self.asks.clear()
        self.ordered = Ordered()
        self.wake_s = None
        for true in self.containers.values():
            if true.state == "granted":
                true.state = "ended"
        self.apply(ev.TimerFired(self.now_s))
        for host in sorted(self.drained):
            self.apply(ev.DrainRequested(host, self.now_s))
        if self.is_stopping:
            self.stopping_s = None
            self.stop()

    @property
    def is_stopping(self):
        return self.stopping_s is not None

    def stop(self):
        """An admin stops it, or tells a new attempt that it is to stop."""
        if not self.is_stopping:
            self.stopping_s = self.now_s
        self.apply(ev.StopRequested(self.now_s))

    def choose(self, hosts):
        """The nodes that are to have a worker."""
        self.chosen = frozenset(hosts)
        self.apply(ev.NodesChosen(WORKER.name, self.chosen, self.now_s))

    def apply(self, event):
        """Tell it, and wake it as often as it wants to be woken at once."""
        commands = self.apply_once(event)
        for _ in range(AT_ONCE):
            if self.wake_s is None or self.wake_s > self.now_s:
                return commands
            commands = commands + self.apply_once(ev.TimerFired(self.now_s))
        raise AssertionError("it wants to be woken at once without end")

    def apply_once(self, event):
        if self.wake_s is not None and self.wake_s <= self.now_s:
            self.wake_s = None
        commands = self.app.apply(event)
        for command in commands:
            self.take(command)
        self.app.validate()
        return commands

    def take(self, command):
        match command:
            case cmd.Unregister():
                self.check_end()
                self.check_order(command)
                self.commands.append(command)
            case cmd.SetTimer():
                is_due = self.wake_s is not None and self.wake_s <= self.now_s + ROUNDING_S
                assert self.wake_s is None or is_due or command.at_s < self.wake_s
                self.wake_s = command.at_s
            case cmd.PublishBindings():
                self.take_publication(command)
            case _:
                self.check_order(command)
                self.commands.append(command)

    def check_order(self, command):
        """It makes sense, and was not given a short while ago."""
        settings = self.settings
        again_s = 0.0
        match command:
            case cmd.RequestContainer():
                others = [key for key in self.asked() if key[:2] == (command.role, command.node)]
                assert others in ([], [(command.role, command.node, command.request_id)]), others
                key, again_s = command.request_id, settings.ask_again_s
            case cmd.CancelRequest():
                key, again_s = command.request_id, float("inf")
            case cmd.LaunchContainer():
                key, again_s = command.container.id, float("inf")
            case cmd.StopContainer() | cmd.ReleaseContainer():
                key, again_s = command.container.id, settings.stop_again_s
            case cmd.QueryContainer():
                key = command.container.id
            case cmd.SetSlots():
                key = command.node
            case _:
                assert self.is_stopping or isinstance(command, cmd.Register)
                key, again_s = "", settings.register_again_s
        self.ordered.check((type(command), key), self.now_s, again_s)

    def check_end(self):
        """Before its limit it leaves nothing to YARN that it has not ordered to stop itself."""
        if self.now_s < self.stopping_s + self.settings.stop_limit_s:
            reported = {
                key for kind, key in self.ordered.at_s if kind in (cmd.StopContainer, cmd.ReleaseContainer)
            }
            left = [true for true in self.running() if true.container.id not in reported and not true.is_lost]
            assert not left, left

    def asked(self):
        """Requests that are open as far as commands say: at the RM or on their way there."""
        asks = dict(self.asks)
        for command in self.commands:
            if isinstance(command, cmd.RequestContainer):
                asks[command.role, command.node, command.request_id] = command
            elif isinstance(command, cmd.CancelRequest):
                asks.pop((command.role, command.node, command.request_id), None)
        under_way = {c.request_id for m in self.messages for c in getattr(m, "containers", ())}
        return {key: ask for key, ask in asks.items() if key[2] not in under_way}

    def take_publication(self, publication):
        assert publication.version > self.version
        self.version = publication.version
        if publication.is_full:
            self.bound.clear()
            self.endpoints.clear()
        for target, changes in ((self.bound, publication.bound), (self.endpoints, publication.endpoints)):
            for name, value in changes:
                if value is None:
                    target.pop(name, None)
                else:
                    target[name] = value

    def send(self, message):
        """A message to the application: an event whose time is that of its arrival."""
        self.messages.append(message)

    def deliver(self, i=0, *, is_kept=False):
        message = self.messages[i]
        if not is_kept:
            del self.messages[i]
        if isinstance(message, ev.Resynced):
            self.ordered.forget(cmd.Register, cmd.RequestContainer, cmd.Unregister)
        self.apply(at(message, self.now_s))

    # The cluster.

    def carry_out(self):
        """Do the command that was given first."""
        command = self.commands.popleft()
        match command:
            case cmd.Register():
                self.is_rm_registered = True
                running = [
                    t.container for t in self.running() if self.nodes[t.container.node].state != "gone"
                ]
                self.send(ev.Registered(tuple(running), self.attempt, 0.0))
                self.send(self.report())
            case cmd.Unregister():
                if self.is_rm_registered:
                    self.is_finished = True
                    self.send(ev.Unregistered(0.0))
            case cmd.RequestContainer() if self.is_rm_registered:
                self.asks[command.role, command.node, command.request_id] = command
            case cmd.CancelRequest():
                self.asks.pop((command.role, command.node, command.request_id), None)
            case cmd.LaunchContainer():
                self.launch(command.container)
            case cmd.StopContainer() | cmd.QueryContainer():
                self.to_nm(command)
            case cmd.ReleaseContainer() if self.is_rm_registered:
                self.release(command.container)
            case cmd.SetSlots():
                self.nodes[command.node].slots = CONFIGURED if command.n_slots is None else command.n_slots
                self.send(ev.SlotsSet(command.node, command.n_slots, 0.0))

    def launch(self, container):
        true, node = self.containers[container.id], self.nodes[container.node]
        if true.state == "granted" and node.state != "gone" and not node.is_cut:
            true.state = "running"
            self.send(ev.ContainerStarted(container.id, 0.0))
        else:
            self.send(ev.ContainerStartFailed(container.id, "refused", 0.0))

    def to_nm(self, command):
        node = self.nodes[command.container.node]
        true = self.containers[command.container.id]
        if node.is_cut or node.state == "gone":
            return
        if isinstance(command, cmd.StopContainer):
            if true.state == "running":
                self.end(command.container.id, -105)
        elif true.state == "running":
            self.send(ev.ContainerStarted(command.container.id, 0.0))
        else:
            self.send(ev.ContainerCompleted(command.container.id, -100, "unknown", 0.0))

    def allocate(self, key):
        """The RM answers a request."""
        ask = self.asks.pop(key)
        assert self.nodes[ask.node].state != "gone"
        self.n_containers += 1
        container = ev.ContainerRef(f"c{self.n_containers:05}", ask.node, ask.priority, ask.request_id)
        self.containers[container.id] = TrueContainer(container)
        self.send(ev.ContainersAllocated((container,), 0.0))

    def allocatable(self):
        return sorted(key for key in self.asks if self.nodes[key[1]].state == "up")

    def end(self, container, status):
        true = self.containers[container]
        if true.state != "ended":
            true.state = "ended"
            self.send(ev.ContainerCompleted(container, status, "", 0.0))

    def running(self, role=None):
        return [
            true
            for true in self.containers.values()
            if true.state == "running" and (role is None or true.container.priority == role.priority)
        ]

    def add_node(self, host, rack, is_accelerator):
        self.nodes[host] = TrueNode(host, rack, is_accelerator)
        self.send(self.report(host))

    def report(self, *hosts):
        """A report of these nodes; of all, and complete, without names."""
        names = hosts or sorted(self.nodes)
        views = tuple(self.nodes[name].view(self.bound.get(name)) for name in names)
        return ev.NodesReported(views, 0.0, is_complete=not hosts)

    def set_state(self, host, state):
        """The RM's opinion of a node changes; what runs on a gone node is killed when that is back."""
        node = self.nodes[host]
        was_gone, node.state = node.state == "gone", state
        for true in self.containers.values():
            if true.container.node != host or true.state == "ended":
                continue
            if state == "gone":
                true.is_lost = True
                true.state = "ended" if true.state == "granted" else true.state
                self.send(ev.ContainerCompleted(true.container.id, -100, "", 0.0))
            elif was_gone and true.is_lost:
                true.state = "ended"
        if was_gone and state != "gone":
            node.slots = CONFIGURED
        self.send(self.report(host))

    def restart_rm(self):
        """It forgets requests and what it gave but was not started."""
        self.asks.clear()
        self.is_rm_registered = False
        for true in self.containers.values():
            if true.state == "granted":
                true.state = "ended"
        self.send(ev.Resynced(0.0))

    def release(self, container):
        """The RM takes it for ended at once; its NM kills it when it hears of that."""
        true = self.containers[container.id]
        is_running, true.is_released = true.state == "running", True
        self.end(container.id, -100)
        if is_running and self.nodes[container.node].is_cut:
            true.state = "running"

    def nms_speak(self):
        """NMs learn with their heartbeats what was released, and that the application is finished, and kill.

        The RM tells those that come back later, or after its own restart, that it is finished as well.
        """
        for true in self.running():
            node = self.nodes[true.container.node]
            if (self.is_finished or true.is_released) and not node.is_cut and node.state != "gone":
                true.state = "ended"

    def heartbeat(self, true, *, has_id=True):
        """A container reports, if its network lets it."""
        container = true.container
        if true.state != "running" or true.is_mute or self.nodes[container.node].is_cut:
            return
        role = ROLES.of_priority(container.priority)
        self.apply(
            ev.StatusReported(
                container.node,
                role.name,
                self.now_s,
                container.id if has_id else "",
                f"{container.node}:7070",
                not (true.is_ill or true.is_hung),
                "ill" if true.is_ill or true.is_hung else "",
                ev.ServerGauges(8, true.n_open),
                is_hung=true.is_hung,
            )
        )

    # Time.

    def wait(self, seconds):
        """Let time pass, waking the application whenever it asked for it."""
        until_s = self.now_s + seconds
        while self.wake_s is not None and self.wake_s <= until_s:
            self.now_s = max(self.wake_s, self.now_s)
            self.apply(ev.TimerFired(self.now_s))
        self.now_s = until_s
        self.apply(ev.TimerFired(self.now_s))

    def stall(self, seconds):
        """The application's process stands still; what it wanted to be woken for is not done yet."""
        self.now_s += seconds
        self.wake_s = None
        self.apply(ev.Stalled(seconds, self.now_s))

    def step(self, seconds=0.25):
        """Everything works for a moment: commands are carried out, messages arrive, servers speak."""
        for _ in range(1000):
            if self.commands:
                self.carry_out()
            elif self.messages:
                self.deliver()
            elif self.allocatable() and self.is_rm_registered:
                self.allocate(self.allocatable()[0])
            else:
                break
        else:
            raise AssertionError("commands and messages chase each other without end")
        if not self.is_rm_registered and not self.app.is_over:
            self.send(ev.Resynced(0.0))
        if self.now_s >= self.spoken_s + 1.0:
            self.spoken_s = self.now_s
            if self.are_servers_wanted:
                self.apply(ev.ServersWanted(0.0, self.now_s))
            self.nms_speak()
            for true in self.running():
                self.heartbeat(true)
        self.wait(seconds)

    def calm(self, seconds):
        """Everything works for a while, the shell polls the nodes, and who chooses some says so."""
        self.choose(host for host in self.chosen if self.nodes[host].state == "up")
        for i in range(int(seconds * 4)):
            if i % 8 == 0:
                self.send(self.report())
            self.step()

    def assert_target_is_actual(self):
        """What runs is what should run, and the world knows it."""
        wanted = set()
        for node in self.nodes.values():
            if node.state == "up" and not self.is_stopping:
                wanted.add((node.host, "agent"))
                if node.is_accelerator and node.host not in self.drained and self.are_servers_wanted:
                    wanted.add((node.host, "server"))
                if node.host in self.chosen:
                    wanted.add((node.host, "worker"))
        there = [
            (true.container.node, ROLES.of_priority(true.container.priority).name)
            for true in self.running()
            if not true.is_lost
        ]
        assert sorted(there) == sorted(wanted), (sorted(there), sorted(wanted))
        assert not self.asks
        assert not [true for true in self.containers.values() if true.state == "granted"]
        servers = {host: f"{host}:7070" for host, role in wanted if role == "server"}
        assert self.endpoints == servers
        self.assert_bound(set(servers))
        self.assert_slots(set(servers))

    def assert_bound(self, servers):
        racks = {self.nodes[host].rack for host in servers}
        nnodes = {n.host for n in self.nodes.values() if n.state != "gone" and n.host not in servers}
        crosses_racks = bool(racks) and self.app._cluster.bindings.policy.crosses_racks
        expected = {host for host in nnodes if crosses_racks or self.nodes[host].rack in racks}
        assert self.bound.keys() == (expected if not self.is_stopping else set())
        for host, server in self.bound.items():
            assert server in servers
            is_guest = crosses_racks and self.nodes[host].rack not in racks
            assert is_guest or self.nodes[server].rack == self.nodes[host].rack

    def assert_slots(self, servers):
        for node in self.nodes.values():
            if node.state == "gone":
                continue
            if not servers:
                assert node.slots == CONFIGURED, node
            elif node.host in servers or node.host in self.bound:
                assert node.slots >= 1, node
            else:
                assert node.slots == 0, node
        for server in servers:
            members = [server, *(host for host, other in self.bound.items() if other == server)]
            assert sum(self.nodes[host].slots for host in members) == max(8, len(members))


def at(message, now_s):
    """The same event, arriving now."""
    values = {name: getattr(message, name) for name in message.__slots__}
    return type(message)(**(values | {"now_s": now_s}))

"""What goes on and what goes wrong in a `VirtualCluster`: functions of it and a random generator."""

from yarn_accel.core.application import events as ev

HOSTS = ("a1", "a2", "a3", "n1", "n2", "n3", "n4")
RACKS = ("/r1", "/r2")


# Traffic: slow, out of order, sometimes lost or doubled.


def commands_are_carried_out(cluster, rng):
    for _ in range(min(rng.randint(1, 4), len(cluster.commands))):
        cluster.carry_out()


def a_message_arrives(cluster, rng):
    """One of the next few, now and then to come again."""
    if cluster.messages:
        i = rng.randrange(min(4, len(cluster.messages)))
        cluster.deliver(i, is_kept=rng.random() < 0.1)


def a_message_is_lost(cluster, rng):
    """But for what was allocated: the RM repeats that until it is acknowledged."""
    if cluster.messages and not isinstance(cluster.messages[0], ev.ContainersAllocated):
        del cluster.messages[0]


def the_rm_allocates(cluster, rng):
    """Now and then twice: the request was repeated while its answer was under way."""
    for key in cluster.allocatable():
        ask = cluster.asks[key]
        cluster.allocate(key)
        if rng.random() < 0.1:
            cluster.asks[key] = ask
            cluster.allocate(key)


def containers_speak(cluster, rng):
    cluster.nms_speak()
    for true in cluster.running():
        if rng.random() < 0.8:
            cluster.heartbeat(true, has_id=rng.random() < 0.8)


def time_passes(cluster, rng):
    cluster.wait(rng.choice([0.01, 0.1, 0.5, 1.0]))


TRAFFIC = {
    commands_are_carried_out: 6,
    a_message_arrives: 8,
    a_message_is_lost: 0.3,
    the_rm_allocates: 2,
    containers_speak: 3,
    time_passes: 3,
}


# Faults, and what admins do.


def a_container_ends(cluster, rng):
    if cluster.running():
        container = rng.choice(cluster.running()).container
        if container.priority == 10 and rng.random() < 0.5:
            heard = ev.StatusReported(
                container.node, "server", cluster.now_s, container.id, is_healthy=False, is_gone=True
            )
            cluster.apply(heard)
        cluster.end(container.id, rng.choice([0, 1, 137, -102, -104]))


def a_container_changes_its_mood(cluster, rng):
    if cluster.running():
        true = rng.choice(cluster.running())
        true.is_mute, true.is_ill, true.n_open = rng.choice(
            [(True, False, 0), (False, True, 0), (False, False, 3), (False, False, 0)]
        )
        true.is_hung = rng.random() < 0.1


def a_voice_of_the_past(cluster, rng):
    ids = [name for name, true in cluster.containers.items() if true.state == "ended"]
    if ids:
        container = cluster.containers[rng.choice(ids)].container
        role = "server" if container.priority == 10 else "agent"
        is_gone = rng.random() < 0.3
        heard = ev.StatusReported(
            container.node,
            role,
            cluster.now_s,
            container.id,
            "late:1",
            is_healthy=not is_gone,
            is_gone=is_gone,
        )
        cluster.apply(heard)


def the_rm_changes_its_mind_about_a_node(cluster, rng):
    cluster.set_state(rng.choice(HOSTS), rng.choice(["up", "up", "gone", "leaving"]))


def a_link_is_cut_or_healed(cluster, rng):
    node = cluster.nodes[rng.choice(HOSTS)]
    node.is_cut = not node.is_cut


def a_node_is_rebuilt(cluster, rng):
    node = cluster.nodes[rng.choice(HOSTS)]
    node.is_accelerator, node.rack = rng.random() < 0.5, rng.choice(RACKS)
    cluster.send(cluster.report(node.host))


def a_nm_restarts(cluster, rng):
    cluster.nodes[rng.choice(HOSTS)].slots = 9


def nodes_are_polled(cluster, rng):
    cluster.send(cluster.report())


def the_am_is_killed(cluster, rng):
    cluster.start_attempt()


def the_rm_is_restarted(cluster, rng):
    cluster.restart_rm()


def an_admin_drains(cluster, rng):
    host = rng.choice(HOSTS)
    cluster.drained.add(host)
    cluster.apply(ev.DrainRequested(host, cluster.now_s))


def an_admin_undrains(cluster, rng):
    host = rng.choice(sorted(cluster.drained) or HOSTS)
    cluster.drained.discard(host)
    cluster.apply(ev.UndrainRequested(host, cluster.now_s))


def nodes_are_chosen(cluster, rng):
    cluster.choose(host for host in HOSTS if rng.random() < 0.5)


def tasks_come_or_go(cluster, rng):
    cluster.are_servers_wanted = rng.random() < 0.5


def an_admin_rebinds(cluster, rng):
    cluster.apply(ev.RebindRequested(cluster.now_s))


def an_admin_stops(cluster, rng):
    cluster.stop()


def somebody_asks(cluster, rng):
    """What is answered is what was published."""
    host = rng.choice(HOSTS)
    assert cluster.app.explain(host).startswith(host)
    picture = cluster.app.snapshot(cluster.now_s)
    assert picture["nodes"].get(host, {}).get("bound") == cluster.app.bound().get(host)
    answer = cluster.app.assignment(host)
    if cluster.version >> 32 == cluster.attempt:
        assert answer.version == cluster.version
        assert dict(answer.servers).items() <= cluster.endpoints.items()
        assert answer.bound == ((cluster.bound[host],) if host in cluster.bound else ())


def nothing_goes_wrong_for_a_while(cluster, rng):
    cluster.calm(rng.choice([1.0, 4.0]))


def nothing_gets_through_for_a_while(cluster, rng):
    cluster.wait(rng.choice([3.0, 8.0, 15.0]))


def the_am_stands_still(cluster, rng):
    cluster.stall(rng.choice([0.3, 2.0, 6.1, 40.0]))


FAULTS = {
    a_container_ends: 6,
    a_container_changes_its_mood: 4,
    a_voice_of_the_past: 2,
    the_rm_changes_its_mind_about_a_node: 5,
    a_link_is_cut_or_healed: 3,
    a_node_is_rebuilt: 2,
    a_nm_restarts: 1,
    nodes_are_polled: 2,
    the_am_is_killed: 0.7,
    the_am_stands_still: 1,
    the_rm_is_restarted: 1,
    an_admin_drains: 1.5,
    an_admin_undrains: 1.5,
    nodes_are_chosen: 2,
    an_admin_rebinds: 1,
    an_admin_stops: 0.1,
    somebody_asks: 1,
    nothing_goes_wrong_for_a_while: 1.5,
    nothing_gets_through_for_a_while: 0.7,
}


def populate(cluster):
    """Seven nodes in two racks; three have accelerators."""
    for i, host in enumerate(HOSTS):
        cluster.add_node(host, RACKS[i % 3 == 2], host.startswith("a"))


def make_noise(cluster, rng, n, what=TRAFFIC):
    """`n` things of a table, by their weights."""
    for function in rng.choices(list(what), list(what.values()), k=n):
        function(cluster, rng)


def assert_calm_ends_well(cluster, seconds=60.0):
    """Links are healed, the hung stay hung; the rest is the application's business."""
    for node in cluster.nodes.values():
        node.is_cut = False
    for true in cluster.running():
        true.n_open = 0
    cluster.calm(seconds)
    if cluster.is_stopping:
        assert cluster.app.is_over
        assert not [true for true in cluster.running() if not true.is_lost]
        assert not cluster.bound
        assert not cluster.endpoints
        assert all(node.slots == 9 for node in cluster.nodes.values() if node.state != "gone")
    else:
        cluster.assert_target_is_actual()

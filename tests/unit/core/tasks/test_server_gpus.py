"""GPUs of pipeline servers as places: shared without being counted twice, used by operation tasks alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.driven_policy import DrivenPolicy, ServerGpusChanged
from tests.fixtures.task_events import AppSubmitted, ResourceJoined, TaskEnded, TasksReady
from tests.fixtures.task_world import MB
from tests.unit.core.tasks.service.policies import first_come
from tests.unit.core.tasks.service.world import LARGE, SMALL, World, app
from yarn_accel.core.dags.events import Decide
from yarn_accel.core.tasks.applications import OPERATION_PROGRAM, AppDefinition, FormProgram
from yarn_accel.core.tasks.commands import StartTask
from yarn_accel.core.tasks.events import EndReason
from yarn_accel.core.tasks.policies import POLICIES, make
from yarn_accel.core.tasks.server_gpus import ServingServers, share_server_gpus
from yarn_accel.core.tasks.service import events as ev
from yarn_accel.core.tasks.values import AppFigures, AppSpec, Form, FormDemand, FormFigures, ResourceSpec

NODES = st.sampled_from(["n1", "n2", "n3", "n4"])


@given(
    st.dictionaries(NODES, st.integers(0, 5)),
    st.dictionaries(NODES, NODES),
    st.dictionaries(st.sampled_from("abcdef"), NODES),
    st.integers(0, 1000),
)
def test_the_gpus_of_a_server_are_shared_out_once(n_gpus, server_of, node_of, turn):
    shares = share_server_gpus(ServingServers(n_gpus, server_of), node_of, turn)
    assert shares.keys() == node_of.keys()
    for server in set(server_of.values()):
        used = [shares[worker] for worker, node in node_of.items() if server_of.get(node) == server]
        assert sum(used) == (n_gpus.get(server, 0) if used else 0)
        assert max(used, default=0) - min(used, default=0) <= 1
    assert not any(shares[worker] for worker, node in node_of.items() if node not in server_of)


@given(st.integers(1, 5), st.integers(0, 9))
def test_what_cannot_be_divided_goes_round(n_workers, n_gpus):
    servers = ServingServers({"n1": n_gpus}, {"n1": "n1"})
    node_of = dict.fromkeys("abcdef"[:n_workers], "n1")
    turns = [share_server_gpus(servers, node_of, turn) for turn in range(n_workers)]
    assert {sum(each[worker] for each in turns) for worker in node_of} == {n_gpus}


def test_one_gpu_serves_four_nodes_by_turns_and_is_handed_over_when_it_is_free():
    nodes = {name: f"n{at}" for at, name in enumerate("abcd", 1)}
    servers = ServingServers({"n1": 1}, dict.fromkeys(nodes.values(), "n1"))
    turns = [share_server_gpus(servers, nodes, turn) for turn in range(4)]
    assert ["".join(worker for worker, n in each.items() if n) for each in turns] == ["a", "b", "c", "d"]
    assert share_server_gpus(servers, nodes, 1, {"a": 1}) == {"a": 1, "b": 0, "c": 0, "d": 0}
    assert share_server_gpus(servers, nodes, 1, {"a": 0}) == turns[1]


def placed(policy, now_s=1.0):
    return [
        (each.task, each.resource, each.form)
        for each in policy.apply(Decide(now_s))
        if isinstance(each, StartTask)
    ]


def submitted(policy, name, demands, n_tasks=6):
    figures = AppFigures(10 * MB, {form: FormFigures(1.0, 1.0) for form in demands})
    policy.apply(AppSubmitted(AppSpec(name, name, 0, n_tasks, demands, figures), 0.0))
    policy.apply(TasksReady(name, tuple(f"{name}/{i}" for i in range(n_tasks)), 0.0))


SERVED = {Form.GPU: FormDemand(gpus=1, is_served=True)}


@pytest.mark.parametrize("name", [each for each in POLICIES if each != "hadoop"])
def test_operation_tasks_use_the_servers_gpus_and_commands_the_workers_own(name):
    policy = DrivenPolicy(make(name))
    policy.apply(ResourceJoined(ResourceSpec("w1", "n1", 8, 1, 0, 1e8, server_gpus=2), 0.0))
    submitted(policy, "op", SERVED)
    submitted(policy, "own", {Form.GPU: FormDemand(gpus=1)})
    started = placed(policy)
    policy.validate()
    assert sorted(task.partition("/")[0] for task, *_ in started) == ["op", "op", "own"]
    policy.apply(TaskEnded(next(t for t, *_ in started if t.startswith("op")), "w1", EndReason.DONE, 2.0))
    assert [task.partition("/")[0] for task, *_ in placed(policy, 3.0)] == ["op"]
    policy.validate()


@pytest.mark.parametrize("name", list(POLICIES))
def test_a_node_without_a_server_gets_no_operation_task(name):
    policy = DrivenPolicy(make(name))
    policy.apply(ResourceJoined(ResourceSpec("w1", "n1", 8, 4, 0, 1e8), 0.0))
    submitted(policy, "op", SERVED)
    assert placed(policy) == []
    (candidate,) = policy.candidates("w1", Form.GPU)
    assert "GPUs of a server" in candidate.excluded


@pytest.mark.parametrize("name", ["fifo", "model", "hdas", "hdas+"])
def test_gpus_of_a_server_may_come_and_go_while_tasks_use_them(name):
    policy = DrivenPolicy(make(name))
    policy.apply(ResourceJoined(ResourceSpec("w1", "n1", 8, 0, 0, 1e8), 0.0))
    submitted(policy, "op", SERVED)
    assert placed(policy) == []
    policy.apply(ServerGpusChanged("w1", 3, 1.0))
    policy.validate()
    started = placed(policy, 1.0)
    assert len(started) == 3
    policy.apply(ServerGpusChanged("w1", 1, 2.0))
    policy.apply(ServerGpusChanged("unheard-of", 1, 2.0))
    policy.validate()
    for n, (task, *_) in enumerate(started):
        policy.apply(TaskEnded(task, "w1", EndReason.DONE, 3.0 + n))
        policy.validate()
        assert len(placed(policy, 3.0 + n)) == (0 if n < 2 else 1)


@pytest.mark.parametrize("name", ["fifo", "hdas"])
def test_where_there_is_a_cpu_form_the_policy_chooses(name):
    policy = DrivenPolicy(make(name))
    policy.apply(ResourceJoined(ResourceSpec("w1", "n1", 4, 0, 0, 1e8, server_gpus=1), 0.0))
    submitted(policy, "op", {**SERVED, Form.CPU: FormDemand()})
    assert [form for *_, form in placed(policy)] == [Form.GPU, Form.CPU, Form.CPU, Form.CPU]


def operation_app(name="op", n_tasks=4, with_cpu=False):
    definition = app(name, n_tasks, forms=(Form.GPU, Form.CPU) if with_cpu else (Form.GPU,))
    spec = definition.spec
    demands = {**spec.demands, Form.GPU: FormDemand(gpus=1, is_served=True)}
    return AppDefinition(
        AppSpec(spec.app, spec.name, 0, n_tasks, demands),
        {**definition.programs, Form.GPU: FormProgram((), "lu", {"form": "packed"})},
        definition.tasks,
        definition.output,
    )


def serving(world, n_gpus, server_of):
    world.apply(ev.ServersServe(ServingServers(n_gpus, server_of), world.now_s))


def test_without_any_server_submit_says_so():
    world = World(first_come)
    world.submit(operation_app())
    assert "gpu.operation: no pipeline server serves any node now" in world.refused["op"]
    serving(world, {"n9": 0}, {"n9": "n9"})
    world.submit(operation_app("again"))
    assert "again" in world.refused
    world.submit(operation_app("both", with_cpu=True))
    world.calm()
    assert world.ended["both"].error == ""


def test_operation_tasks_run_where_a_server_serves_and_never_more_than_it_has_gpus():
    most, running = [0], set()

    def behaviour(order, worker):
        assert order.argv == (OPERATION_PROGRAM, "lu", '{"form":"packed"}')
        assert order.demand.gpus == 0
        assert worker.name in ("w1", "w2")
        return "done"

    world = World(lambda: make("fifo"), behaviour=behaviour)
    world.grows = False
    for size in (SMALL, LARGE, SMALL):
        world.add_worker(size)
    serving(world, {"node-w2": 2}, {"node-w1": "node-w2", "node-w2": "node-w2"})
    world.submit(operation_app(n_tasks=9))
    assert world.service.wants_servers
    while "op" not in world.ended:
        world.run(1)
        running = {task for each in world.service.snapshot()["workers"].values() for task in each["running"]}
        most.append(len(running))
    shown = world.service.snapshot()["workers"]
    assert {name: each["server_gpus"] for name, each in shown.items()} == {"w1": 1, "w2": 1, "w3": 0}
    assert max(most) == 2
    assert world.ended["op"].error == ""
    serving(world, {}, {})
    world.run(1)
    assert not any(each["server_gpus"] for each in world.service.snapshot()["workers"].values())


def test_tasks_of_every_node_get_the_only_gpu_in_turn_and_never_two_at_a_time():
    world = World(lambda: make("fifo"))
    world.grows = False
    for _ in range(3):
        world.add_worker(SMALL)
    nodes = [f"node-w{number}" for number in (1, 2, 3)]
    serving(world, {"node-w1": 1}, dict.fromkeys(nodes, "node-w1"))
    world.submit(operation_app(n_tasks=60))
    users = set()
    while "op" not in world.ended and len(users) < 3:
        world.run(1)
        running = [n for n, each in world.service.snapshot()["workers"].items() for _ in each["running"]]
        assert len(running) <= 1
        users.update(running)
    assert users == {"w1", "w2", "w3"}


def test_another_master_learns_of_the_servers_anew():
    world = World(lambda: make("fifo"))
    servers = {"node-w1": 1}, {"node-w1": "node-w1"}
    world.add_worker(SMALL)
    serving(world, *servers)
    world.submit(operation_app(n_tasks=3))
    world.run(1)
    world.kill_master()
    world.run(2)
    serving(world, *servers)
    world.calm()
    assert world.ended["op"].error == ""


def test_gpus_of_servers_are_the_applications_share_and_no_workers_own():
    world = World(lambda: make("fifo"), behaviour=lambda order, worker: "hang")
    world.grows = False
    world.add_worker(SMALL)
    serving(world, {"node-w1": 4}, {"node-w1": "node-w1"})
    world.submit(operation_app())
    world.run(6)
    found = world.service.snapshot()
    assert (found["apps"]["op"]["cores"], found["apps"]["op"]["gpus"]) == (2, 2)
    assert found["apps"]["op"]["share"] == 1.0, "of the cores, which is more than a half of the GPUs"
    assert (found["workers"]["w1"]["gpus"], found["workers"]["w1"]["n_gpus"]) == (0, 0)

"""What goes wrong around a task service, at random."""

from tests.unit.core.tasks.service.world import app
from yarn_accel.core.tasks.values import Form

FORMS = ((Form.CPU,), (Form.GPU,), (Form.CPU, Form.GPU))


def submit(world):
    n = len(world.definitions) + 1
    if n > 6:
        return
    rng = world.rng
    n_tasks = rng.randint(1, 12)
    chain = {i: sorted(rng.sample(range(i), rng.randint(0, min(i, 2)))) for i in range(1, n_tasks)}
    world.submit(
        app(
            f"app{n}",
            n_tasks,
            chain=chain if rng.random() < 0.5 else None,
            forms=rng.choice(FORMS),
            output=rng.choice(("", f"hdfs:///out/{n}")),
            max_attempts=rng.randint(1, 4),
        )
    )


def cancel(world):
    if world.definitions and world.rng.random() < 0.3:
        world.cancel(world.rng.choice(sorted(world.definitions)))


def kill_worker(world):
    if world.workers:
        worker = world.workers[world.rng.choice(sorted(world.workers))]
        world.kill(worker, by_itself=world.rng.random() < 0.5, notices=world.rng.random() < 0.7)


def stop_worker(world):
    if world.workers:
        world.workers[world.rng.choice(sorted(world.workers))].is_stopped = True


def continue_workers(world):
    for worker in world.workers.values():
        worker.is_stopped = False


def kill_master(world):
    world.kill_master()


def stall_journal(world):
    world.writes_by_itself = False


def let_journal_go(world):
    world.writes_by_itself = True
    while world.unwritten:
        world.write_one()


def write_some(world):
    for _ in range(min(len(world.unwritten), world.rng.randint(1, 3))):
        if world.unwritten:
            world.write_one()


def fail_commit(world):
    world.commit_errors.append("no DataNode")


def lose_messages(world):
    world.loss = world.rng.choice((0.0, 0.1, 0.5))


def pass_time(world):
    world.run(world.rng.randint(1, 12))


FAULTS = (
    submit,
    submit,
    cancel,
    kill_worker,
    stop_worker,
    continue_workers,
    kill_master,
    stall_journal,
    let_journal_go,
    write_some,
    fail_commit,
    lose_messages,
    pass_time,
    pass_time,
    pass_time,
    pass_time,
)


def behave(world):
    """Attempts fail, hang and end their workers, now and then."""

    def behaviour(order, worker):
        chance = world.rng.random()
        return "fail" if chance < 0.1 else "crash" if chance < 0.12 else "done"

    return behaviour

"""qrun and the other orders of OpenPBS; of an order for a start next to nothing is checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from torque_sched.emulation.call import Answer, Call, Options, read_options
from torque_sched.emulation.checks import execution_time_s
from torque_sched.emulation.model import EmulatedJob, EmulatedNode, Refused
from torque_sched.emulation.openpbs import lifecycle
from torque_sched.emulation.openpbs.submit import check_known, resources_of
from torque_sched.emulation.openpbs.values import chunks_of, elements_of, indices_of, moment, n_chunks
from torque_sched.emulation.qsub_client import unquoted
from torque_sched.emulation.world import World

_ID = re.compile(r"(\d+)(\[[\d,:-]*\])?(\.[\w.-]+)?")
_QRUN_USAGE = (
    "Usage: qrun [-a] [-H vnode_specification ] job_identifier_list\n"
    "       qrun [-a] [-H - ] job_identifier_list\n"
    "       qrun --version\n"
)
_BAD_STATE = Refused(15016, "Request invalid for state of job")
_DENIED = Refused(15007, "Unauthorized Request ")
_READ_ONLY = "Cannot set attribute, read only or insufficient permission "
_WHILE_RUNNING = frozenset(("walltime", "cput", "min_walltime", "max_walltime"))
_HANG_S = 300.0
LONGEST_COMMENT = 255
Order = Callable[[EmulatedJob], None]


def jobs_of(world: World, word: str) -> list[EmulatedJob]:
    """The jobs an id names: one, or several members by a range.

    Raises:
        Refused: no such job, or it is over.
        ValueError: not an id.
    """
    match = _ID.fullmatch(word)
    if match is None:
        raise ValueError(word)
    ids = [word]
    if match[2] and match[2] != "[]" and not match[2][1:-1].isdigit():
        ids = [f"{match[1]}[{index}]{match[3] or ''}" for index in indices_of(match[2][1:-1])]
    found = []
    for each in ids:
        job = world.jobs.get(world.full_id(each))
        if job is None:
            raise Refused(15001, "Unknown Job Id")
        if job.state == "F":
            raise Refused(15139, "Job has finished")
        found.append(job)
    return found


def _each(world: World, name: str, words: tuple[str, ...], order: Order, *, code: int = 0) -> Answer:
    """Do an order to each job that is named; the exit code is the last error's."""
    answer = Answer()
    for word in words:
        try:
            for job in jobs_of(world, word):
                order(job)
        except ValueError:
            answer.err += f"{name}: illegally formed job identifier: {word}\n"
            answer.code = 1
        except Refused as error:
            answer.err += f"{name}: {error.text} {world.full_id(word)}" + "\n"
            answer.code = code or error.exit_code
    return answer


# -- qrun


def qrun(world: World, call: Call) -> Answer:
    """Start jobs where -H says; without it a scheduler would be asked, and none is there."""
    options = read_options(call.arguments, "aH:")
    if options.error or not options.words:
        return Answer(err=_QRUN_USAGE, code=1)
    spec = options.last("H")
    if options.has("H") and not spec.strip():
        return Answer(err=f"qrun: illegal -H value\n{_QRUN_USAGE}", code=1)
    answer = Answer()
    for word in options.words:
        try:
            for job in jobs_of(world, word):
                _start(world, call, job, options, answer)
        except ValueError:
            answer.err += f"qrun: illegally formed job identifier: {word}\n"
            answer.code = 1
        except Refused as error:
            tail = "" if error.text.startswith("Unknown node") else f" {world.full_id(word)}"
            answer.err += f"qrun: {error.text}{tail}\n"
            answer.code = 2
    return answer


def _start(world: World, call: Call, job: EmulatedJob, options: Options, answer: Answer) -> None:
    _check_start(world, call, job, options)
    spec = _filled(job, options.last("H"))
    nodes = _named(world, spec, options.last("H"))
    if any("job-exclusive" in lifecycle.state_of(world, node) for node in nodes):
        raise Refused(15044, "Resource temporarily unavailable")
    if any(node.mom == "stopped" for node in nodes):
        if options.has("a"):
            return
        raise Refused(15070, "Server could not connect to MOM")
    if any(node.mom == "hanging" for node in nodes) and not options.has("a"):
        answer.delay_s = _HANG_S
    begin = partial(lifecycle.start, world, job, spec)
    if options.has("a"):
        # As with real servers the order is done once its client has the answer.
        job.state = "T"
        world.granted.append(begin)
    else:
        begin()


def _check_start(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    """All that the server looks at of the job itself."""
    if not world.is_admin(call.user):
        raise _DENIED
    if job.is_array:
        raise Refused(15004, "Invalid request")
    if job.state == "S":
        # Seen on 23.06.06: accepted, and what ran there is thrown away.
        lifecycle.requeue(world, job, failed=False)
    if job.state not in "QHW":
        raise _BAD_STATE
    if not options.has("H"):
        raise Refused(15080, "Could not contact Scheduler")


def _named(world: World, spec: str, asked: str) -> list[EmulatedNode]:
    """The vnodes of an order; their resources must at least be known."""
    vnodes = [vnode for element in elements_of(spec) for vnode in element]
    for name, resources in vnodes:
        if name not in world.nodes:
            raise Refused(15064, f"Unknown node  {asked}")
        try:
            check_known(world, {key for key, _ in resources}, in_chunk=True)
        except Refused as error:
            raise Refused(error.code, "Unknown resource: ") from error
    return [world.nodes[name] for name, _ in vnodes]


def _filled(job: EmulatedJob, spec: str) -> str:
    """Bare vnodes take the resources of the select's chunks, one after the other."""
    if ":" in spec or "(" in spec:
        return spec
    chunks = [pairs for count, pairs in chunks_of(job.attributes["schedselect"]) for _ in range(count)]
    names = spec.split("+")
    counted = [
        ":".join([names[i % len(names)], *(f"{k}={v}" for k, v in pairs if k not in ("host", "vnode"))])
        for i, pairs in enumerate(chunks)
    ]
    return counted[0] if len(counted) == 1 else "+".join(f"({each})" for each in counted)


# -- the others


def _own(world: World, call: Call, job: EmulatedJob) -> None:
    if job.user != call.user and not world.is_admin(call.user):
        raise _DENIED


def qdel(world: World, call: Call) -> Answer:
    """Delete jobs, running or not."""
    options = read_options(call.arguments, "W:x")
    if options.error or not options.words:
        return Answer(err="usage:\n\tqdel [-W force|suppress_email=X] [-x] job_identifier...\n", code=2)
    requestor = call.requestor(world)

    def delete(job: EmulatedJob) -> None:
        _own(world, call, job)
        lifecycle.delete(world, job, requestor)

    return _each(world, "qdel", options.words, delete)


def qhold(world: World, call: Call) -> Answer:
    """Hold jobs: u by the owner, o by an operator, s by a manager."""
    return _hold(world, call, "qhold", add=True)


def qrls(world: World, call: Call) -> Answer:
    """Release holds."""
    return _hold(world, call, "qrls", add=False)


def _hold(world: World, call: Call, name: str, *, add: bool) -> Answer:
    options = read_options(call.arguments, "h:")
    if options.error or not options.words:
        return Answer(err=f"usage: {name} [-h hold_list] job_identifier...\n", code=2)
    letters = options.last("h", "u")

    def change(job: EmulatedJob) -> None:
        _own(world, call, job)
        rights = {"u": True, "o": world.is_admin(call.user), "s": world.is_admin(call.user, manager=True)}
        if not all(rights.get(letter, False) for letter in letters.replace("n", "")):
            raise _DENIED
        kept = set(job.holds) | set(letters) if add else set(job.holds) - set(letters)
        job.holds = "".join(letter for letter in "uos" if letter in kept)
        job.attributes["mtime"] = str(int(world.now_s))
        if job.is_active:
            world.touch_job(job)
            return
        lifecycle.settle(world, job)
        if add and job.holds:
            on = moment(world.now_s)
            job.attributes["comment"] = f"Job held by {call.user} on {on}"
        elif "comment" in job.attributes and not job.holds:
            job.attributes["comment"] = f"Job released by {call.user} on {moment(world.now_s)}"

    return _each(world, name, options.words, change)


def qalter(world: World, call: Call) -> Answer:
    """Change attributes: -W comment (operators), -l, -p, -N, -a, -h, -m ..."""
    options = read_options(call.arguments, "a:A:c:e:h:j:k:l:m:M:N:o:p:P:r:S:u:v:W:")
    if options.error or not options.words:
        return Answer(err="usage: qalter [-a date_time] ... job_identifier...\n", code=2)
    return _each(world, "qalter", options.words, partial(_alter, world, call, options))


def _alter(world: World, call: Call, options: Options, job: EmulatedJob) -> None:
    _own(world, call, job)
    world.happened.append(("modifyjob", job.id))
    for text in options.values.get("W", []):
        name, _, value = text.partition("=")
        if name == "comment":
            if not world.is_admin(call.user):
                raise Refused(15003, f"{_READ_ONLY} comment")
            job.attributes["comment"] = unquoted(value)[:LONGEST_COMMENT]
            world.touch_attributes(job, ["comment"])
            return
    for text in options.values.get("l", []):
        _alter_resources(world, job, text)
    for letter, name in (("p", "Priority"), ("N", "Job_Name"), ("A", "Account_Name"), ("P", "project")):
        if options.has(letter):
            job.attributes[name] = options.last(letter)
    if options.has("a"):
        job.attributes["Execution_Time"] = str(execution_time_s(options.last("a"), world.now_s))
    job.attributes["mtime"] = str(int(world.now_s))
    if not job.is_active and job.state != "B":
        lifecycle.settle(world, job)
    world.touch_job(job)


def _alter_resources(world: World, job: EmulatedJob, text: str) -> None:
    for name, value in resources_of(text).items():
        check_known(world, {name}, in_chunk=False)
        if job.state in "RE" and name not in _WHILE_RUNNING:
            raise Refused(15017, "Cannot modify attribute while job running ")
        job.resources[name] = value
        if name == "select":
            job.attributes["schedselect"] = value
            job.resources["nodect"] = str(n_chunks(value))


def qsig(world: World, call: Call) -> Answer:
    """Send a signal; ``suspend`` and ``resume`` are for operators."""
    options = read_options(call.arguments, "s:")
    if options.error or not options.words:
        return Answer(err="usage: qsig [-s signal] job_identifier...\n", code=2)
    signal = options.last("s", "TERM")

    def send(job: EmulatedJob) -> None:
        _own(world, call, job)
        if signal in ("suspend", "resume"):
            if not world.is_admin(call.user):
                raise _DENIED
            if job.state != ("R" if signal == "suspend" else "S"):
                raise _BAD_STATE
            world.kill.append((job.id, "STOP" if signal == "suspend" else "CONT"))
            (lifecycle.suspend if signal == "suspend" else lifecycle.resume)(world, job)
            return
        if job.state != "R":
            raise _BAD_STATE
        name = signal.removeprefix("SIG")
        world.kill.append((job.id, name))
        if name in ("KILL", "TERM", "INT") and not job.executes:
            lifecycle.end(world, job, lifecycle.KILLED)

    return _each(world, "qsig", options.words, send)


def qrerun(world: World, call: Call) -> Answer:
    """Back to the queue."""
    options = read_options(call.arguments, "W:")

    def rerun(job: EmulatedJob) -> None:
        if not world.is_admin(call.user):
            raise _DENIED
        if job.state not in "RS":
            raise _BAD_STATE
        lifecycle.requeue(world, job, failed=False)

    return _each(world, "qrerun", options.words, rerun)


def qmove(world: World, call: Call) -> Answer:
    """To another queue of this server."""
    options = read_options(call.arguments, "")
    target = options.words[0].partition("@")[0] if options.words else ""

    def move(job: EmulatedJob) -> None:
        _own(world, call, job)
        if target not in world.queues:
            raise Refused(15020, "Unknown queue")
        if job.state not in "QHW":
            raise _BAD_STATE
        job.queue = target
        job.attributes["qtime"] = str(int(world.now_s))
        world.touch_job(job)
        world.happened.append(("movejob", job.id))

    return _each(world, "qmove", options.words[1:], move)


def printjob(world: World, call: Call) -> Answer:
    """``printjob -s JOB``: the script out of the database, for root alone; there is no file of it."""
    options = read_options(call.arguments, "as")
    if options.error or len(options.words) != 1 or not options.has("s"):
        return Answer(err="usage: printjob [-a|-s] (jobid|file)\n", code=2)
    if call.user != "root":
        return Answer(err="printjob must be run by root\n", code=1)
    name = world.full_id(options.words[0])
    job = world.jobs.get(name)
    if job is None or not job.script:
        return Answer(err=f"Job {name} not found\n", code=1)
    line = "-" * 51
    return Answer(out=f"{line}\nJobscript for jobid:{name}\n{line}\n{job.script} \n")

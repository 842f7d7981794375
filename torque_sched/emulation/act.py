"""The small verbs on jobs: qalter, qhold, qrls, qsig, qdel, qrerun, qselect."""

from __future__ import annotations

import functools
from collections.abc import Callable

from torque_sched.emulation.call import Answer, Call, Options, read_options
from torque_sched.emulation.lifecycle import COMMANDS, delete, requeue, resume, settle, suspend
from torque_sched.emulation.model import EmulatedJob, Refused, job_order
from torque_sched.emulation.run import WELL_FORMED
from torque_sched.emulation.submit import execution_time_s, parse_pairs
from torque_sched.emulation.world import World

__all__ = ["qalter", "qdel", "qhold", "qrerun", "qrls", "qselect", "qsig"]

Act = Callable[[World, Call, EmulatedJob, Options], None]
_OPERATOR_ATTRIBUTES = frozenset(("comment",))
_PLAIN = {"A": "Account_Name", "M": "Mail_Users", "N": "Job_Name", "S": "Shell_Path_List", "j": "Join_Path",
          "k": "Keep_Files", "m": "Mail_Points", "p": "Priority", "u": "User_List"}  # fmt: skip


def _each(world: World, call: Call, letters: str, act: Act) -> Answer:
    options = read_options(call.arguments, letters)
    if options.error or not options.words:
        return Answer(err=f"{call.name}: {options.error or 'missing job identifier'}\n", code=2)
    answer = Answer()
    for word in options.words:
        if not WELL_FORMED.match(word):
            answer.err += f"{call.name}: illegally formed job identifier: {word}\n"
            answer.code = 1
            continue
        try:
            act(world, call, world.job(word.split("@")[0]), options)
        except Refused as error:
            text = error.text
            if error.code == 15001:
                text = f"Unknown Job Id Error {world.full_id(word)}"
                if call.name == "qdel":
                    text = f"nonexistent job id: {word}"
            answer.err += f"{call.name}: {text}\n"
            answer.code = error.exit_code
    return answer


def _permit(world: World, call: Call, job: EmulatedJob, *, operator: bool = False) -> None:
    if not world.is_admin(call.user) and (operator or call.user != job.user):
        raise Refused(15007, f"Unauthorized Request  MSG=operation not permitted {job.id}")


def qalter(world: World, call: Call) -> Answer:
    """Change jobs; many ids at once, and only an operator may set a comment."""
    return _each(world, call, "a:A:c:e:h:j:k:l:m:M:N:o:p:q:r:S:t:u:v:W:x:", _alter)


def _alter(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    changes = dict(_changes(",".join(options.values.get("W", []))))
    _permit(world, call, job, operator=bool(_OPERATOR_ATTRIBUTES & changes.keys()))
    if job.state == "C":
        raise Refused(15018, f"Request invalid for state of job MSG=job {job.id} state COMPLETE {job.id}")
    for key, value in changes.items():
        if key == "depend":
            raise Refused(
                15016, f"Illegal attribute or resource value  depend: not emulated in qalter {job.id}"
            )
        job.attributes[key] = _unquoted(value)
    job.attributes.update(
        {name: options.last(letter) for letter, name in _PLAIN.items() if options.has(letter)}
    )
    job.attributes["mtime"] = str(int(world.now_s))
    if options.values.keys() == {"W"}:
        world.touch_attributes(job, (*changes, "mtime"))
        return
    _alter_resources(job, options)
    if options.has("t"):
        job.slot_limit = int(options.last("t").partition("%")[2] or 0)
    _alter_state(world, job, options)
    world.touch_job(job)


def _unquoted(value: str) -> str:
    """A value in quotes without them: the client's parser leaves a blank where the closing one was."""
    is_quoted = len(value) > 1 and value[0] in "\"'" and value.rstrip()[-1:] == value[0]
    return value.rstrip()[1:-1] + " " if is_quoted else value


@functools.lru_cache(maxsize=64)
def _changes(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(parse_pairs(text).items())


def _alter_resources(job: EmulatedJob, options: Options) -> None:
    for text in options.values.get("l", []):
        for key, value in parse_pairs(text).items():
            if job.state not in "QHW" and key in ("nodes", "procs"):
                raise Refused(
                    15017, f"Cannot modify attribute while job running  Resource_List.{key} {job.id}"
                )
            job.resources[key] = value
            if key == "nodes":
                job.resources["neednodes"] = value


def _alter_state(world: World, job: EmulatedJob, options: Options) -> None:
    if options.has("h"):
        job.holds = "".join(letter for letter in options.last("h") if letter in "uos")
    if options.has("a"):
        job.attributes["Execution_Time"] = str(execution_time_s(options.last("a"), world.now_s))
    if (options.has("h") or options.has("a")) and job.state in "QHW" and not job.members:
        settle(world, job)


def qhold(world: World, call: Call) -> Answer:
    """Add holds: u, o, s; u without -h."""
    return _each(world, call, "h:t:", _hold)


def _letters(world: World, call: Call, job: EmulatedJob, options: Options) -> str:
    letters = options.last("h", "u")
    _permit(world, call, job, operator=any(letter in "os" for letter in letters))
    return letters


def _targets(world: World, job: EmulatedJob) -> list[EmulatedJob]:
    return [world.jobs[name] for name in job.members if name in world.jobs] if job.members else [job]


def _hold(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    letters = _letters(world, call, job, options)
    for each in _targets(world, job):
        each.holds = "".join(letter for letter in "uosl" if letter in each.holds or letter in letters)
        each.attributes["mtime"] = str(int(world.now_s))
        world.touch_job(each)
        if each.state in "QHW":
            settle(world, each)


def qrls(world: World, call: Call) -> Answer:
    """Take holds away; the scheduler hears of it."""
    return _each(world, call, "h:t:", _release)


def _release(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    letters = _letters(world, call, job, options)
    for each in _targets(world, job):
        each.holds = "".join(letter for letter in each.holds if letter not in letters)
        each.attributes["mtime"] = str(int(world.now_s))
        world.touch_job(each)
        if each.state in "QHW":
            settle(world, each)
    world.notify(COMMANDS["new"])


def qsig(world: World, call: Call) -> Answer:
    """Send a signal; suspend and resume are the scheduler's words."""
    return _each(world, call, "s:a", _signal)


def _signal(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    name = options.last("s", "SIGTERM")
    _permit(world, call, job, operator=name in ("suspend", "resume"))
    if job.state not in "RS":
        raise Refused(15018, f"Request invalid for state of job  {job.id}")
    if name == "suspend" and job.state == "R":
        suspend(world, job)
        world.kill.append((job.id, "STOP"))
    elif name == "resume" and job.state == "S":
        resume(world, job)
        world.kill.append((job.id, "CONT"))
    elif name not in ("suspend", "resume"):
        world.kill.append((job.id, name.removeprefix("SIG")))


def qdel(world: World, call: Call) -> Answer:
    """Delete jobs and arrays."""
    return _each(world, call, "m:pt:W:", _delete)


def _delete(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    _permit(world, call, job)
    if job.state == "C":
        raise Refused(
            15018, f"Request invalid for state of job MSG=invalid state for job - COMPLETE {job.id}"
        )
    delete(world, job, call.requestor(world))


def qrerun(world: World, call: Call) -> Answer:
    """Put running jobs back into the queue."""
    return _each(world, call, "f", _rerun)


def _rerun(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    _permit(world, call, job, operator=True)
    if job.state != "R":
        raise Refused(15018, f"Request invalid for state of job  {job.id}")
    requeue(world, job)
    world.notify(COMMANDS["new"])


def qselect(world: World, call: Call) -> Answer:
    """Ids of jobs by state (-s), user (-u) and queue (-q); array members one by one."""
    options = read_options(call.arguments, "a:A:c:e:h:l:N:p:q:r:s:u:")
    if options.error:
        return Answer(err=f"qselect: {options.error}\n", code=1)
    states, users, queue = options.last("s"), options.last("u").split(","), options.last("q")
    chosen = [
        job.id
        for job in sorted(world.jobs.values(), key=job_order)
        if not job.members
        and (not states or job.state in states)
        and (not options.has("u") or job.user in [name.split("@")[0] for name in users])
        and (not queue or job.queue == queue)
        and (job.state != "C" or "C" in states)
    ]
    return Answer(out="".join(f"{name}\n" for name in chosen))

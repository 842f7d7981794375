"""The small verbs on jobs: qhold, qrls, qsig, qdel, qrerun, qmove."""

from __future__ import annotations

import signal
from collections.abc import Callable

from torque_sched.emulation.call import DENIED, Answer, Call, Options, read_options, unknown_host
from torque_sched.emulation.lifecycle import (
    COMMANDS,
    delete,
    end,
    forget,
    hold_text,
    requeue,
    resume,
    settle,
    suspend,
)
from torque_sched.emulation.model import EmulatedJob, Refused, job_order, range_indices
from torque_sched.emulation.routing import RETRY_S, check_limits, check_room, is_route
from torque_sched.emulation.run import WELL_FORMED
from torque_sched.emulation.world import World

Act = Callable[[World, Call, EmulatedJob, Options], None]
_USAGE = {
    "qalter": "usage: qalter [-a date_time] [-A account_string] ...\n",
    "qdel": "usage: qdel [-W delay] [-m message] [-p] [-t array_range] job_identifier ...\n",
    "qhold": "usage: qhold [-h hold_list] [-t array_range] job_identifier...\n",
    "qrls": "usage: qrls [-h {uos}] [-t array_range] job_identifier...\n",
    "qrerun": "usage: qrerun [-f] job_identifier...\n",
    "qsig": "usage: qsig [-a] [-s signal] job_identifier...\n",
}
_SILENT = frozenset(("qhold", "qrls", "qalter", "qmove"))
"""Clients that do not say that a job is unknown; 4.2's qdel is another."""
_NOT_HELD = 15174
_NOT_HELD_TEXT = (
    "The requested state or substate can't be set from the job's current state (slot limit in effect)."
)
_BAD_STATE = "Request invalid for state of job"


def each_job(world: World, call: Call, letters: str, act: Act, check: Callable[[Options], str]) -> Answer:
    """Run ``act`` on all jobs named; ``check`` says what is wrong with the options, or nothing."""
    # qalter alone gives up at the first option that it does not know.
    options = read_options(call.arguments, letters, program="" if call.name == "qalter" else call.name)
    wrong = options.error or check(options)
    if wrong or not options.words:
        return Answer(err=(f"{call.name}: {wrong}\n" if wrong else "") + _USAGE[call.name], code=2)
    return on_jobs(world, call, options.words, lambda job: act(world, call, job, options))


def on_jobs(world: World, call: Call, words: tuple[str, ...], act: Callable[[EmulatedJob], None]) -> Answer:
    """Run ``act`` on the jobs named; what was refused, and, as real clients do, the code of the last job."""
    answer = Answer()
    strict = call.name == "qdel" and not world.settings.is_old
    for word in words:
        if not WELL_FORMED.match(word) or names_stranger(world, word):
            answer.err += f"{call.name}: illegally formed job identifier: {word}\n"
            answer.code = 1
            if strict:
                break
            continue
        name, _, host = word.partition("@")
        if host not in ("", world.settings.server, "localhost"):
            answer.err += unknown_host(host, 1, is_old=world.settings.is_old)
            answer.err += f"{call.name}: cannot connect to server {host} (errno=15010) {DENIED}\n"
            answer.code = 15010 % 256
            continue
        try:
            act(world.job(name))
            answer.code = answer.code if strict else 0
        except Refused as error:
            answer.err += _complaint(world, call.name, word, error)
            answer.code = error.exit_code
    return answer


def names_stranger(world: World, word: str) -> bool:
    """Whether an id names another server: to the clients of 4.2 it is none."""
    _, dot, host = word.partition("@")[0].partition(".")
    return world.settings.is_old and bool(dot) and host != world.settings.server


def _complaint(world: World, name: str, word: str, error: Refused) -> str:
    if error.code == 15001 and name == "qdel":
        return "" if world.settings.is_old else f"qdel: nonexistent job id: {word}\n"
    return "" if error.code == 15001 and name in _SILENT else f"{name}: {error.text}\n"


def permit(world: World, call: Call, job: EmulatedJob) -> None:
    """The owner and operators may.

    Raises:
        Refused: somebody else.
    """
    if not world.is_admin(call.user) and call.user != job.user:
        raise Refused(15007, f"Unauthorized Request  MSG=operation not permitted {job.id}")


def refuse_complete(job: EmulatedJob) -> None:
    """Nothing is done to a completed job.

    Raises:
        Refused: it is one.
    """
    if job.state == "C":
        raise Refused(15018, f"{_BAD_STATE} MSG=invalid state for job - COMPLETE {job.id}")


def _fine(options: Options) -> str:
    return ""


def _check_holds(options: Options) -> str:
    letters = options.last("h", "u")
    return "" if letters and set(letters) <= set("uos") else "illegal -h value"


def qhold(world: World, call: Call) -> Answer:
    """Add holds: u, o, s; u without -h."""
    return each_job(world, call, "h:t:", _hold, _check_holds)


def qrls(world: World, call: Call) -> Answer:
    """Take holds away; the scheduler hears of it."""
    return each_job(world, call, "h:t:", _release, _check_holds)


def _letters(world: World, call: Call, job: EmulatedJob, options: Options) -> str:
    letters = options.last("h", "u")
    permit(world, call, job)
    refuse_complete(job)
    if ("o" in letters and not world.is_admin(call.user)) or (
        "s" in letters and not world.is_admin(call.user, manager=True)
    ):
        raise Refused(15007, f"Unauthorized Request  {job.id}")
    return letters


def targets(world: World, job: EmulatedJob, options: Options) -> list[EmulatedJob]:
    """The job, or the members of an array: those of ``-t``, else all.

    Raises:
        Refused: ``-t`` names no range.
    """
    if not job.is_array:
        return [job]
    members = [world.jobs[name] for name in job.members if name in world.jobs]
    if not options.last("t").partition("%")[0]:
        return members
    try:
        wanted = range_indices(options.last("t").partition("%")[0])
    except ValueError as error:
        raise Refused(15004, f"Invalid request MSG=Error in specified array range {job.id}") from error
    return [each for each in members if int(each.attributes["job_array_id"]) in wanted]


def _hold(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    letters = _letters(world, call, job, options)
    for each in targets(world, job, options):
        change_holds(world, each, each.holds + letters)


def _release(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    letters = _letters(world, call, job, options)
    for each in targets(world, job, options):
        if each.state == "C":
            continue
        is_held = set(letters) & set(each.holds + ("s" if each.depends else ""))
        if not is_held and not world.settings.is_old:
            raise Refused(_NOT_HELD, f"{_NOT_HELD_TEXT} {job.id}")
        if "s" in letters:
            # A system hold is what dependencies hold a job with: it does not wait for them any more.
            each.depends = []
        each.attributes.setdefault("Hold_Types", "n")
        change_holds(world, each, "".join(letter for letter in each.holds if letter not in letters))


def change_holds(world: World, job: EmulatedJob, letters: str) -> None:
    """Give a job these holds; one that runs only shows them."""
    job.holds = "".join(letter for letter in "uosl" if letter in letters)
    job.attributes["mtime"] = str(int(world.now_s))
    world.touch_job(job)
    if job.state in "QHW":
        was_held = job.state == "H"
        settle(world, job)
        if was_held and job.state == "Q":
            world.notify(COMMANDS["new"])
    else:
        job.attributes["Hold_Types"] = hold_text(world, job)


def qsig(world: World, call: Call) -> Answer:
    """Send a signal; suspend and resume are the scheduler's words."""
    return each_job(world, call, "s:a", _signal, _fine)


def _signal(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    name = options.last("s", "SIGTERM")
    permit(world, call, job)
    if job.state not in "RS" or (name == "suspend" and job.state == "S"):
        raise Refused(15018, f"{_BAD_STATE} {job.id}")
    if name in ("suspend", "resume"):
        if not world.is_admin(call.user):
            raise Refused(15007, f"Unauthorized Request  {job.id}")
        _suspend_or_resume(world, job, name)
        return
    plain = name.removeprefix("SIG")
    if not plain.isdigit() and not hasattr(signal, f"SIG{plain}"):
        raise Refused(15015, f"Unknown/illegal signal name {job.id}")
    world.kill.append((job.id, plain))
    if plain in ("TERM", "KILL") and not job.executes:
        # Seen on real servers: the job's shell is told to end, whichever of the two it was.
        end(world, job, 256 + signal.SIGTERM)


def _suspend_or_resume(world: World, job: EmulatedJob, name: str) -> None:
    if name == "suspend":
        suspend(world, job)
        world.kill.append((job.id, "STOP"))
    elif job.state == "S":
        resume(world, job)
        world.kill.append((job.id, "CONT"))


def qdel(world: World, call: Call) -> Answer:
    """Delete jobs and arrays, or ``all``."""
    letters = "acm:pW:t:" if world.settings.is_old else "ab:cm:pW:t:"
    options = read_options(call.arguments, letters)
    if not options.words or options.error or options.words[-1].lower() != "all":
        return each_job(world, call, letters, delete_job, _check_delay)
    all_jobs = sorted(world.jobs.values(), key=job_order)
    open_jobs = [job for job in all_jobs if not job.parent and job.state != "C"]
    own = [job.id for job in open_jobs if world.is_admin(call.user) or job.user == call.user]
    answer = on_jobs(world, call, tuple(own), lambda job: delete_job(world, call, job, options))
    if len(own) < len(open_jobs):
        # What belongs to others looks to the client as if it were gone.
        answer.code = 15001 % 256
    return answer


def _check_delay(options: Options) -> str:
    return "illegal -W value" if options.has("W") and not options.last("W").isdigit() else ""


def delete_job(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    """Delete one job or array as qdel's options say.

    Raises:
        Refused: he may not, or the job is complete.
    """
    is_admin = world.is_admin(call.user)
    if options.has("p") and not is_admin:
        raise Refused(15007, f"Unauthorized Request  {job.id}")
    permit(world, call, job)
    if options.last("m") and not is_admin:
        needed = "MSG=must have operator or manager privilege to use -m parameter"
        raise Refused(15007, f"Unauthorized Request  {needed} {job.id}")
    if job.state == "C" and (options.has("a") or options.has("c")):
        return
    refuse_complete(job)
    if options.has("t") and job.is_array:
        for member in targets(world, job, options):
            if member.state != "C":
                delete(world, member, call.requestor(world))
        return
    is_purged = options.has("p") and job.state in "RES" and not job.is_array
    delete(world, job, call.requestor(world))
    if is_purged and job.id in world.jobs:
        forget(world, job)


def qrerun(world: World, call: Call) -> Answer:
    """Put running jobs back into the queue."""
    return each_job(world, call, "f", _rerun, _fine)


def _rerun(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    permit(world, call, job)
    if not world.is_admin(call.user):
        detail = "MSG=additional permissions required (ATR_DFLAG_MGWR | ATR_DFLAG_OPWR)"
        raise Refused(15007, f"Unauthorized Request  {detail} {job.id}")
    if job.state not in "RC":
        if world.settings.is_old:
            raise Refused(15018, f"{_BAD_STATE} MSG=job {job.id} is in a bad state {job.id}")
        return
    if job.attributes["Rerunable"] == "False":
        raise Refused(15040, f"job is not rerunnable MSG=job {job.id} not rerunnable {job.id}")
    requeue(world, job)
    world.notify(COMMANDS["new"])


def qmove(world: World, call: Call) -> Answer:
    """Move jobs to another queue of this server."""
    if len(call.arguments) < 2:
        return Answer(err="usage: qmove destination job_identifier...\n", code=2)
    target = call.arguments[0].split("@")[0]
    return on_jobs(world, call, call.arguments[1:], lambda job: _move(world, call, job, target))


def _move(world: World, call: Call, job: EmulatedJob, target: str) -> None:
    permit(world, call, job)
    if job.state not in "QHW":
        raise Refused(15018, f"{_BAD_STATE} {job.id}")
    if job.queue == target:
        detail = f"MSG=Job {job.id} already in queue {target}"
        raise Refused(15127, f"Job is already in destination queue. {detail} {job.id}")
    queue = world.queues.get(target)
    if queue is None:
        raise Refused(15020, f"Unknown queue {job.id}")
    try:
        if not world.is_admin(call.user):
            check_room(world, queue, job.user, job.group)
        check_limits(world, job, queue)
    except Refused as error:
        raise Refused(error.code, f"{error.text.partition(' MSG=')[0]} {job.id}") from error
    # Seen on real servers: the members of an array stay where they are.
    if is_route(queue):
        job.has_executed = job.queue in world.queues and not is_route(world.queues[job.queue])
        world.due(world.now_s + RETRY_S, "route", job.id)
    _take_defaults(world, job, target)
    # It goes to the end of the server's list.
    job.rank = world.next_rank
    world.next_rank += 1
    world.notify(COMMANDS["new"])


def _take_defaults(world: World, job: EmulatedJob, target: str) -> None:
    """Defaults of the old queue go, those of the new one come; since 6.1 ``nodes`` does not."""
    for name in job.defaulted:
        job.resources.pop(name, None)
    job.defaulted = []
    job.queue = target
    for key, value in world.queues[target].attributes.items():
        family, _, resource = key.partition(".")
        stays_away = ("neednodes",) if world.settings.is_old else ("nodes", "neednodes")
        if family == "resources_default" and resource not in (*stays_away, *job.resources):
            job.resources[resource] = value
            job.defaulted.append(resource)
    world.touch_job(job)

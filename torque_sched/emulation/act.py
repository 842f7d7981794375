"""The small verbs on jobs: qhold, qrls, qsig, qdel, qrerun, qmove, qselect."""

from __future__ import annotations

import signal
from collections.abc import Callable

from torque_sched.emulation.call import Answer, Call, Options, read_options
from torque_sched.emulation.lifecycle import (
    COMMANDS,
    delete,
    end,
    hold_text,
    requeue,
    resume,
    settle,
    suspend,
)
from torque_sched.emulation.model import EmulatedJob, Refused, job_order
from torque_sched.emulation.routing import check_limits, check_room
from torque_sched.emulation.run import WELL_FORMED
from torque_sched.emulation.world import World

__all__ = [
    "change_holds",
    "each_job",
    "on_jobs",
    "permit",
    "qdel",
    "qhold",
    "qmove",
    "qrerun",
    "qrls",
    "qselect",
    "qsig",
    "refuse_complete",
]

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
_BAD_STATE = "Request invalid for state of job"


def each_job(world: World, call: Call, letters: str, act: Act, check: Callable[[Options], str]) -> Answer:
    """Run ``act`` on all jobs named; ``check`` says what is wrong with the options, or nothing."""
    options = read_options(call.arguments, letters)
    wrong = options.error or check(options)
    if wrong or not options.words:
        return Answer(err=(f"{call.name}: {wrong}\n" if wrong else "") + _USAGE[call.name], code=2)
    return on_jobs(world, call, options.words, lambda job: act(world, call, job, options))


def on_jobs(world: World, call: Call, words: tuple[str, ...], act: Callable[[EmulatedJob], None]) -> Answer:
    """Run ``act`` on the jobs named; what was refused, and, as real clients do, the code of the last job."""
    answer = Answer()
    strict = call.name == "qdel" and not world.settings.is_old
    for word in words:
        if not WELL_FORMED.match(word):
            answer.err += f"{call.name}: illegally formed job identifier: {word}\n"
            answer.code = 1
            if strict:
                break
            continue
        try:
            act(world.job(word.split("@")[0]))
            answer.code = answer.code if strict else 0
        except Refused as error:
            answer.err += _complaint(world, call.name, word, error)
            answer.code = error.exit_code
    return answer


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


def _targets(world: World, job: EmulatedJob) -> list[EmulatedJob]:
    return [world.jobs[name] for name in job.members if name in world.jobs] if job.members else [job]


def _hold(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    letters = _letters(world, call, job, options)
    for each in _targets(world, job):
        change_holds(world, each, each.holds + letters)


def _release(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    letters = _letters(world, call, job, options)
    for each in _targets(world, job):
        if each.state == "C":
            continue
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
    options = read_options(call.arguments, "m:pt:W:")
    if options.words and options.words[-1].lower() == "all" and not options.error:
        names = [
            job.id
            for job in sorted(world.jobs.values(), key=job_order)
            if not job.parent and job.state != "C"
        ]
        return on_jobs(world, call, tuple(names), lambda job: _delete(world, call, job, options))
    return each_job(world, call, "m:pt:W:", _delete, _fine)


def _delete(world: World, call: Call, job: EmulatedJob, options: Options) -> None:
    permit(world, call, job)
    refuse_complete(job)
    if options.has("t") and job.members:
        for index in options.last("t").split(","):
            member = world.jobs.get(job.id.replace("[]", f"[{index}]"))
            if member is not None and member.state != "C":
                delete(world, member, call.requestor(world))
        return
    delete(world, job, call.requestor(world))


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
    for each in [job, *_targets(world, job)]:
        _take_defaults(world, each, target)
    world.notify(COMMANDS["new"])


def _take_defaults(world: World, job: EmulatedJob, target: str) -> None:
    """Defaults of the old queue go, those of the new one come; ``nodes`` does not come any more."""
    for name in job.defaulted:
        job.resources.pop(name, None)
    job.defaulted = []
    job.queue = target
    for key, value in world.queues[target].attributes.items():
        family, _, resource = key.partition(".")
        if family == "resources_default" and resource not in ("nodes", "neednodes", *job.resources):
            job.resources[resource] = value
            job.defaulted.append(resource)
    world.touch_job(job)


def qselect(world: World, call: Call) -> Answer:
    """Ids of jobs by state (-s), user (-u), queue (-q) and name (-N); array members one by one."""
    options = read_options(call.arguments, "a:A:c:e:h:l:N:p:q:r:s:u:")
    if options.error:
        return Answer(err=f"qselect: {options.error}\nusage: qselect [-a [op]date_time] ...\n", code=2)
    if not set(options.last("s")) <= set("CEHQRSTW"):
        return Answer(err="qselect: illegal -s value\nusage: qselect [-a [op]date_time] ...\n", code=2)
    sees_all = world.is_admin(call.user) or world.server.get("query_other_jobs") == "True"
    states, users, queue = options.last("s"), options.last("u").split(","), options.last("q")
    chosen = [
        job.id
        for job in sorted(world.jobs.values(), key=job_order)
        if not job.members
        and (sees_all or job.user == call.user)
        and (not states or job.state in states)
        and (not options.has("u") or job.user in [name.split("@")[0] for name in users])
        and (not queue or job.queue == queue)
        and (not options.has("N") or job.attributes["Job_Name"] == options.last("N"))
        and (not options.has("h") or set(job.holds) == set(options.last("h").replace("n", "")))
    ]
    return Answer(out="".join(f"{name}\n" for name in chosen))

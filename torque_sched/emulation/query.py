"""qstat and pbsnodes: what to show to whom."""

from __future__ import annotations

from torque_sched.emulation.act import names_stranger
from torque_sched.emulation.call import (
    DENIED,
    Answer,
    Call,
    Options,
    check_listed,
    read_options,
    unknown_host,
)
from torque_sched.emulation.model import EmulatedJob, EmulatedNode, Refused, job_order
from torque_sched.emulation.show_job import (
    disk_table,
    full_text,
    full_xml,
    short_table,
    viewer_of,
    wide_table,
)
from torque_sched.emulation.show_node import STATES, NodeTexts, list_text
from torque_sched.emulation.show_server import (
    queue_table,
    queue_text,
    server_table,
    server_text,
    summary_table,
)
from torque_sched.emulation.world import World

_WIDE = frozenset("anriGMRs")
_USAGE = "usage: qstat [-f [-1]] [-W site_specific] ...\n"
_LETTERS = "aeBfGiMnqQrRstu:xW:lc1-:"
_CONFLICT = "qstat: conflicting options.\n"
_NODES_USAGE = "usage:\tpbsnodes [-{c|d|l|o|p|r}] ...\n"
_MALFORMED = 1
_PBSNODES = "acdlm:nopqrxA:N:s:-:"
_CHANGES = frozenset("ocrNdm")


def qstat(world: World, call: Call) -> Answer:
    """Jobs, queues (-Q, -q) or the server (-B)."""
    options = read_options(call.arguments, _LETTERS)
    if options.error:
        return Answer(err=f"qstat: {options.error}\n{_USAGE}", code=2)
    if options.has("W") or options.has("-"):
        return Answer(err=_USAGE, code=2)
    wrong = _conflict(options)
    if wrong:
        return Answer(err=wrong + _USAGE, code=2)
    one_line = options.has("1")
    try:
        check_listed(world, call)
        if options.has("B"):
            return _server(world, options, one_line)
        if options.has("Q") or options.has("q"):
            return _queues(world, options, one_line)
        return _jobs(world, call, options, one_line)
    except Refused as error:
        return Answer(err=f"qstat: {error.text}\n", code=error.exit_code)


def _conflict(options: Options) -> str:
    """What of these options does not go with the others; nothing if all is well."""
    given = list(options.values)
    # Of -B and -Q the one that comes later is told.
    later = "BQ" if {"B", "Q"} <= set(given) and given.index("B") > given.index("Q") else "QB"
    for letter, others in (("B", "q"), (later[0], later[1]), ("f", "q")):
        if options.has(letter) and options.values.keys() & set(others):
            return f"{_CONFLICT} -{letter} incompatible with one or more options. Read qstat man page\n"
    alternatives = "airq" if options.has("q") else "air"
    one_line_of_nothing = options.has("1") and not (options.has("f") or options.has("n"))
    if one_line_of_nothing or len(options.values.keys() & set(alternatives)) > 1:
        return _CONFLICT
    return ""


def _elsewhere(world: World, host: str, *, code: int = 15010) -> Answer | None:
    """The answer if ``host`` is no name of this server."""
    if host in ("", world.settings.server, "localhost"):
        return None
    text = unknown_host(host, 3, is_old=world.settings.is_old)
    text += f"qstat: cannot connect to server {host} (errno=15010) {DENIED}\n"
    if world.settings.is_old:
        return Answer(err=f"{text}\n", code=code % 256)
    what = DENIED if code > 0 else f"Unknown error {code}"
    return Answer(err=f"{text}qstat: Error ({code} - {what}) \n", code=code % 256)


def _server(world: World, options: Options, one_line: bool) -> Answer:
    for word in options.words:
        # The client takes a negative number here, and does not know its text.
        answer = _elsewhere(world, word, code=-15010)
        if answer is not None:
            return answer
    return Answer(out=server_text(world, one_line=one_line) if options.has("f") else server_table(world))


def _queues(world: World, options: Options, one_line: bool) -> Answer:
    answer = Answer()
    names: list[str] = []
    for word in options.words or ("",):
        name, _, host = word.partition("@")
        elsewhere = _elsewhere(world, host)
        if elsewhere is not None:
            return elsewhere
        if name and name not in world.queues:
            answer.err += f"qstat: Unknown queue MSG=cannot locate queue {name}\n"
            answer.code = 15020 % 256
        else:
            names += [name] if name else list(world.queues)
    if not names:
        return answer
    if options.has("q"):
        answer.out = summary_table(world, names)
    elif options.has("f"):
        answer.out = "".join(queue_text(world, world.queues[name], one_line=one_line) for name in names)
    else:
        answer.out = queue_table(world, names)
    return answer


def _jobs(world: World, call: Call, options: Options, one_line: bool) -> Answer:
    answer = Answer()
    found: list[EmulatedJob] = []
    if options.has("u") and not options.last("u"):
        gap = "  " if world.settings.is_old else " "
        raise Refused(15016, f"Illegal attribute or resource value for{gap}User_List")
    for word in options.words or ("",):
        elsewhere = _elsewhere(world, word.partition("@")[2])
        if elsewhere is not None:
            return elsewhere
        try:
            found += _named(world, call, options, word.partition("@")[0])
        except Refused as error:
            answer.err += f"qstat: {error.text}\n"
            answer.code = answer.code or error.exit_code
    if found or not answer.err:
        answer.out = _shown(world, options, found, viewer_of(world, call.user), one_line)
    return answer


def _shown(world: World, options: Options, listed: list[EmulatedJob], viewer: str, one_line: bool) -> str:
    is_wide = bool(_WIDE & options.values.keys()) or options.has("u")
    if options.has("x"):
        return full_xml(world, listed, viewer=viewer)
    if options.has("f") and not _WIDE & options.values.keys():
        return full_text(world, listed, viewer=viewer, one_line=one_line)
    if options.has("R"):
        return disk_table(world, listed)
    if is_wide:
        unit = "G" if options.has("G") else "M" if options.has("M") else ""
        return wide_table(
            world, listed, hosts=options.has("n"), comments=options.has("s"), one_line=one_line, unit=unit
        )
    return short_table(world, listed)


def _named(world: World, call: Call, options: Options, word: str) -> list[EmulatedJob]:
    """The jobs that one word of the command line means; all without a word."""
    users = [name.split("@")[0] for name in options.last("u").split(",")] if options.has("u") else None
    states = "RSE" if options.has("r") else "QHWT" if options.has("i") else "TQHWRSEC"
    is_id = word[:1].isdigit() and world.full_id(word) in world.jobs
    if is_id and not world.jobs[world.full_id(word)].is_array:
        return named_jobs(world, call.user, word)
    return [
        job
        for job in named_jobs(world, call.user, word, expanded=options.has("t") or options.has("e"))
        if (users is None or job.user in users) and (job.state in states or options.has("x"))
    ]


def named_jobs(world: World, user: str, word: str, *, expanded: bool = False) -> list[EmulatedJob]:
    """The jobs that one word means to the server, of those that a user may see; all without a word.

    Args:
        world: the cluster.
        user: who asks.
        word: nothing, the name of a queue, or an id.
        expanded: members instead of arrays.

    Raises:
        Refused: there is no such job or queue, or the job is hidden from him.
    """
    sees_all = world.is_admin(user) or world.server.get("query_other_jobs") == "True"
    pool = sorted(world.jobs.values(), key=job_order)
    if word and not word[0].isdigit():
        if word not in world.queues:
            raise Refused(15020, f"Unknown queue destination {word}")
        pool = [job for job in pool if job.queue == word]
    elif word:
        job = world.jobs.get(world.full_id(word))
        if names_stranger(world, word):
            raise Refused(_MALFORMED, f"illegally formed job identifier: {word}\n")
        if job is None:
            raise Refused(15001, f"Unknown Job Id Error {world.full_id(word)}")
        if not (sees_all or job.user == user):
            if world.settings.is_old:
                return []
            raise Refused(15007, f"Unauthorized Request  {job.id}")
        if not job.is_array:
            return [job]
        # Seen on real servers: an array's own id without -t means everything.
        pool = [world.jobs[name] for name in job.members if name in world.jobs] if expanded else pool
    return [
        job
        for job in pool
        if (sees_all or job.user == user) and (not job.is_array if expanded else not job.parent)
    ]


class Pbsnodes:
    """The command ``pbsnodes``, with a store of rendered nodes."""

    def __init__(self) -> None:
        self._texts = NodeTexts()

    def __call__(self, world: World, call: Call) -> Answer:
        """Show nodes, or as an operator set them offline, clear or annotate them."""
        try:
            return self._run(world, call)
        except Refused as error:
            return Answer(err=f"pbsnodes: {error.text}\n", code=1)

    def _run(self, world: World, call: Call) -> Answer:
        options = read_options(call.arguments, "acdlnopqrxA:N:s:-:" if world.settings.is_old else _PBSNODES)
        if "" in options.words or (options.has("-") and not options.error):
            return Answer(err=_NODES_USAGE, code=1)
        if options.error:
            return Answer(err=f"pbsnodes: {options.error}\n{_NODES_USAGE}", code=1)
        host = options.last("s")
        if host not in ("", world.settings.server, "localhost"):
            text = unknown_host(host, 1, is_old=world.settings.is_old)
            text += f"pbsnodes: cannot connect to server {host}, error=15010 ({DENIED})\n"
            return Answer(err=text, code=1)
        # Of several ways to look the last one counts.
        looks = [letter for letter in options.values if letter in "alx"]
        lists = bool(looks) and looks[-1] == "l"
        if options.has("n") and not lists:
            return Answer(err=f"Error: -n requires -l\n{_NODES_USAGE}", code=1)
        words = list(options.words)
        if _CHANGES & options.values.keys():
            if words:
                names = [node.name if node else word for word in words for node in _meant(world, word)]
                return _change(world, call, options, names)
            return Answer(out=list_text(world, "", [], notes=options.has("n")) if lists else "")
        if options.has("p"):
            return Answer()
        if lists:
            return _list(world, words, notes=options.has("n"))
        return self._show(world, words, as_xml=options.has("x"))

    def _show(self, world: World, words: list[str], *, as_xml: bool) -> Answer:
        answer = Answer()
        shown = [] if words else list(world.nodes.values())
        for word in words:
            found = _meant(world, word)
            if found == [None]:
                answer.err, answer.code = f"pbsnodes: {_unknown().text}\n", 1
                break
            if not found:
                answer.err, answer.code = "pbsnodes: No nodes found\n", 2
            shown += [node for node in found if node is not None]
        if shown:
            answer.out = self._texts.xml(world, shown) if as_xml else self._texts.text(world, shown)
        return answer


def _list(world: World, words: list[str], *, notes: bool) -> Answer:
    """``-l [STATE] [NODE ...]``."""
    wanted = words.pop(0).lower() if words and words[0].lower() in STATES else ""
    names: list[str] = []
    for word in words:
        found = _meant(world, word)
        if found == [None]:
            raise _unknown()
        names += [node.name for node in found if node is not None]
    return Answer(out=list_text(world, wanted, names, notes=notes))


def _unknown() -> Refused:
    return Refused(15064, "Unknown node  MSG=cannot locate specified node")


def _meant(world: World, word: str) -> list[EmulatedNode | None]:
    """The node of that name, or those with a ``:property``; None for one that is not there."""
    if word.startswith(":"):
        return [node for node in world.nodes.values() if word[1:] in node.properties]
    return [world.nodes.get(word)]


def _change(world: World, call: Call, options: Options, words: list[str]) -> Answer:
    """Change nodes one by one. The client tells what was refused, and exits with 0 all the same."""
    answer = Answer()
    doing = "setting note attribute for" if options.has("N") or not world.settings.is_old else "marking node"
    for word in words:
        node = world.nodes.get(word)
        if node is None:
            answer.err += f"Error {doing} {word} - Unknown node \n"
        elif not world.is_admin(call.user):
            denied = "Unauthorized Request  MSG=error in permissions (PERM_OPorMGR)"
            answer.err += f"Error {doing} {word} - {denied}\n"
        else:
            answer.err += _mark(world, options, node)
    return answer


def _mark(world: World, options: Options, node: EmulatedNode) -> str:
    if options.has("m"):
        return _power(node.name, options.last("m"))
    if options.has("o"):
        node.offline = True
    if options.has("c") or options.has("r"):
        node.offline = False
    if options.has("r"):
        node.marked_down, node.marked_down_s = True, world.now_s
    if options.has("N"):
        node.note = "" if options.last("N") == "n" else options.last("N")
    world.touch_node(node.name)
    return ""


def _power(name: str, wanted: str) -> str:
    """``-m``: the hosts are always on, and a real mom that cannot sleep refuses as oddly."""
    known = ("running", "standby", "suspend", "sleep", "hibernate", "shutdown")
    if wanted == "running":
        return ""
    why = "Job not found" if wanted in known else "Illegal value for  power_state"
    return f"Error setting node power state for {name} - {why}\n"

"""``python -m benchmarks.tables [NAME]``: the tables of docs/*.md, from the files of results.

With ``--write`` the pages get what their commands print now. A test compares the two.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks import RESULTS, ROOT
from benchmarks.papers.hdas_live.runs import MODES
from benchmarks.papers.report.claims import CLAIMS

_PAGES = sorted((ROOT / "docs").glob("*.md"))
_SIZES = ("64 KiB", "1 MiB", "8 MiB", "50 MiB")
_TCP = {
    "ours tcp none": "ours",
    "ours tcp xxh3": "ours, checksum xxh3",
    "bare tcp none": "a bare socket loop",
    "zmq": "ZeroMQ",
    "flight": "Arrow Flight",
    "grpc": "gRPC",
    "ray": "Ray",
    "dask": "Dask",
    "triton": "PyTriton",
}
_SAME_NODE = {
    "ours best": "ours (shared memory)",
    **{name: _TCP[name] for name in ("zmq", "flight", "grpc", "ray", "dask")},
}
_BLOCK = re.compile(r"(^python -m benchmarks\.tables (\S+)\n```\n\n```text\n)(.*?)(^```$)", re.M | re.S)


Documents = Mapping[str, Mapping[str, Any]]
"""Results by their file's name without ``.json``."""


def _recorded() -> Documents:
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))
    }


def _rows(documents: Documents, part: str) -> dict[str, Mapping[str, Any]]:
    return {row["what"]: row for row in documents[f"pipeline-{part}"]["rows"]}


def _values(documents: Documents, part: str) -> dict[str, float]:
    return {what: row["value"] for what, row in _rows(documents, part).items()}


def _line(title: str, cells: Iterable[str], width: int = 8, *, first: int = 44) -> str:
    return f"{title:{first}}" + "".join(f" {cell:>{width}}" for cell in cells)


def _echo(documents: Documents, carrier: str, names: Mapping[str, str]) -> list[str]:
    value = _values(documents, "echo")
    lines = [_line(f"echo, {carrier}, GB/s", _SIZES)]
    for name, title in names.items():
        cells = [value.get(f"echo, {carrier}, {size}, 1 client, window 4: {name}") for size in _SIZES]
        # PyTriton is not installed everywhere.
        if any(cell is not None for cell in cells):
            lines.append(_line(title, ["-" if cell is None else f"{cell:.2g}" for cell in cells]))
    return lines


def _hdfs(documents: Documents) -> list[str]:
    rows, sizes = _rows(documents, "hdfs"), ("8 MB", "50 MB")
    lines = [_line("LU in and out of HDFS", sizes, 12)]
    for title, what, form in (
        ("the server reads, MB/s", ": server reads", ".0f"),
        ("over the best bare read", ": server reads / best bare read", ".2f"),
        ("the server writes, MB/s", ": server writes", ".0f"),
        ("over a bare write", ": server writes / bare write(bytes)", ".2f"),
        ("slowest stage alone / wall time", ", LU in and out: slowest stage alone / wall", ".2f"),
        ("the same, at most on these cores", ": slowest stage alone / wall, at most here", ".2f"),
    ):
        lines.append(_line(title, [f"{rows[f'hdfs, {size}{what}']['value']:{form}}" for size in sizes], 12))
    notes = [rows[f"hdfs, {size}, LU in and out: slowest stage alone / wall"]["note"] for size in sizes]
    for stage in ("read", "compute", "write"):
        found = [re.search(rf"{stage} (\d+) ms", note) for note in notes]
        lines.append(_line(f"one file alone, {stage}, ms", [each[1] if each else "-" for each in found], 12))
    return lines


def _computing(documents: Documents) -> list[str]:
    latency, small = _values(documents, "latency"), _values(documents, "small")
    tcp = {
        name: latency[f"latency, 64 B, tcp, cores may sleep: {name}"]
        for name in ("ours tcp", "flight", "grpc", "ray")
    }
    shares = [value for what, value in _values(documents, "stages").items() if what.startswith("efficiency")]
    kernels = [
        value for what, value in _values(documents, "kernels").items() if what.endswith("worker / bare")
    ]
    default = (latency[f"latency, 64 B, {way}, the server's default: ours {way}"] for way in ("tcp", "unix"))
    return [
        "round trip of 64 bytes, TCP, Unix socket, us: {:.0f}, {:.0f}".format(*default),
        "the same, TCP, cores may sleep, us: ours {:.0f}, Flight {:.0f}, gRPC {:.0f}, Ray {:.0f}".format(
            *tcp.values()
        ),
        "LU, QR, Cholesky of 1 to 50 MB by value, slowest stage alone / wall time: "
        f"{min(shares):.2f} to {max(shares):.2f}",
        "LU, QR, Cholesky of order 1000 to 4000, rate in the worker / bare LAPACK: "
        f"{min(kernels):.2f} to {max(kernels):.2f}",
        "LU of order 32, one by one, window 16: "
        f"{small['LU n = 32: one frame each, window 16']:,.0f} per second",
        "the same, packed by 64 (`pack=64`): "
        f"{small['LU n = 32: packed by 64 and batched, window 16']:,.0f} per second",
    ]


def _hdas(documents: Documents) -> list[str]:
    row = {row["what"]: row for row in documents["hdas_paper"]["rows"]}
    lines = [_line("25 mixes, simulated", ("paper", "S1", "S2"))]
    speedup, saved = "mean speed-up over Hadoop", "time saved against fifo"
    for policy, stated in (("fifo", 14.3), ("model", 17.9), ("hdas", 21.9)):
        cells = [f"{row[f'{name}: {speedup}, {policy}']['value']:.1f}" for name in ("S1", "S2")]
        lines.append(_line(f"{speedup}, {policy}", (f"{stated}", *cells)))
    ours = [f"{row[f'{name}: mean speed-up, hdas+']['value']:.1f}" for name in ("S1", "S2")]
    lines.append(_line(f"{speedup}, hdas+ (ours)", ("", *ours)))
    for what, paper in (
        (f"{saved}, model, mean", "0.187"),
        (f"{saved}, hdas, mean", "0.336"),
        ("mean delay of 25 mixes, model", "1.6"),
        ("mean delay of 25 mixes, hdas", "1.2"),
        ("mixes with a delay of at most 1.06, hdas", "21"),
    ):
        cells = [f"{row[f'{name}: {what}']['value']:.3g}" for name in ("S1", "S2")]
        lines.append(_line(what, (paper, *cells)))
    held = [_held(row, name) for name in ("S1", "S2")]
    lines.append(_line("statements not fitted to that hold", ("", *held)))
    took, cpu = row["time of all mixes and policies"], row["CPU time of all mixes and policies"]
    lines += [
        "",
        f"time of all mixes and policies: {took['value']:.0f} s, CPU {cpu['value']:.0f} s; {cpu['note']}",
    ]
    for policy in ("hdas", "hdas+"):
        value = row[f"{policy}: time per decision, mean"]["value"]
        lines.append(f"100 applications, 1,000 nodes, {policy}: {value:.0f} us per decision")
    return lines


def _held(row: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """Statements of the paper that hold under a set, of those that nothing was fitted to."""
    prefix = f"{name}: "
    found = [
        each.rule.holds(row[what])
        for each in CLAIMS
        if each.result == "hdas_paper" and not each.is_fitted
        for _, what in each.rows
        if what.startswith(prefix)
    ]
    return f"{sum(map(bool, found))}/{len(found)}"


def _torque(documents: Documents) -> list[str]:
    rows = documents["torque-transport"]["rows"]
    values = [row["value"] for row in rows]
    # Rows of the commands are named after those of the protocol, so their order tells which is which.
    starts, looks, native, commands, start_up, idle = (
        values[0:2], values[3:5], values[7:10], values[10:13], values[13], values[14:16]
    )  # fmt: skip
    pairs = [
        ("acknowledged starts per second", *(f"{each:,.0f}" for each in starts)),
        ("our CPU for a look at 10,000 jobs, ms", *(f"{each:.0f}" for each in looks)),
        ("2,000 jobs at once: first start after, s", *(f"{each[0]:.2f}" for each in (native, commands))),
        ("... longest cycle, s", *(f"{each[1]:.2f}" for each in (native, commands))),
        ("... each that waits knows why after, s", *(f"{each[2]:.2f}" for each in (native, commands))),
        ("idle daemon, CPU per minute, s", *(f"{each:.3f}" for each in idle)),
        ("start-up beside 2,000 jobs, s", f"{start_up:.2f}", "-"),
    ]
    return [
        _line("Torque, emulated server", ("protocol", "commands"), 10),
        *(_line(what, cells, 10) for what, *cells in pairs),
    ]


def _mps_live(documents: Documents) -> list[str]:
    """Each figure with its spread and, where it has one, its goal and the verdict."""
    if "mps_live" not in documents:
        return ["not recorded yet: python -m benchmarks mps_live --json out/mps_live.json"]
    document = documents["mps_live"]
    machine = document["machine"]
    return [
        _judged("", "median", "least", "most", "n", "goal", ""),
        *map(_judged_row, document["rows"]),
        "",
        f"{machine['machines']}; times of the paper / {machine['time_divided_by']:g}",
        f"load average when runs began: {machine['load_average']}",
    ]


def _judged(what: str, value: str, least: str, most: str, n: str, goal: str, verdict: str) -> str:
    return f"{what:64} {value:>8} {least:>8} {most:>8} {n:>4}  {goal:7} {verdict}".rstrip()


def _judged_row(row: Mapping[str, Any]) -> str:
    what = f"{row['what']}, {row['unit']}" if row["unit"] else row["what"]
    if not row["n"]:
        return f"{what}: {row['note']}"
    least, most = map(_number, row["spread"] or ()) if row["spread"] else ("", "")
    verdict = {None: "", True: "holds", False: "does not hold"}[row["ok"]]
    return _judged(what, _number(row["value"]), least, most, str(row["n"]), row["goal"], verdict)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


_Rows = Mapping[str, Mapping[str, Any]]
_SHARES = (("mean delay", "mean_delay"), ("GPUs computing", "gpu_computing"), ("link used", "link_used"))


def _hdas_live(documents: Documents) -> list[str]:
    """Live beside simulated, the verdicts, and the streaming jobs, which have a file of their own."""
    mixes, late = documents["hdas_live"], documents.get("hdas_live-late", {"rows": ()})
    jobs = [row for row in late["rows"] if row["what"].startswith("late binding, ")]
    kept = {row["what"] for row in jobs}
    rows = {row["what"]: row for row in mixes["rows"] if row["what"] not in kept} | {
        row["what"]: row for row in jobs
    }
    lines = [
        _mix_line("", ("time, s", "", "", "delay", "", "GPUs", "", "link", "")),
        _mix_line("mix, policy", ("live", "sim.", "diff.", *("live", "sim.") * 3)),
    ]
    for name, simulated in mixes["series"]["simulated"].items():
        lines.append(_mix_line(*_mix_cells(rows, name.replace(" ", ", "), simulated)))
    return [*lines, "", *_mix_verdicts(rows), *_late(rows), *_alone(rows, mixes["machine"])]


def _mix_line(title: str, cells: Sequence[str]) -> str:
    return (f"{title:16}" + "".join(f" {cell:>7}" for cell in cells)).rstrip()


def _mix_cells(rows: _Rows, name: str, simulated: Mapping[str, Any]) -> tuple[str, list[str]]:
    live_s, simulated_s = rows[f"{name}: makespan"]["value"], simulated["makespan_s"]
    cells = [f"{live_s:.1f}", f"{simulated_s:.1f}", f"{simulated_s / live_s - 1:+.0%}"]
    for what, key in _SHARES:
        cells += [f"{rows[f'{name}: {what}']['value']:.2f}", f"{simulated[key]:.2f}"]
    return name, cells


def _mix_verdicts(rows: _Rows) -> Iterator[str]:
    for what in ("mean error of makespan, simulated against live", "mean error of mean delay"):
        if what in rows:
            yield f"{what}: {rows[what]['value']:.3f}"
    for what, row in rows.items():
        if what.startswith("pairs of policies"):
            yield f"{what}: {row['value']:.0%} of {row['note']}"


def _late(rows: _Rows) -> Iterator[str]:
    for name in MODES.values():
        time, *others = (
            rows.get(f"late binding, {name}: {what}") for what in ("time", "mean delay", "mean wait")
        )
        if time is not None:
            delay, wait = (row["value"] for row in others if row is not None)
            figures = f"{time['value']:.0f} s, mean delay {delay:.2f}, mean wait {wait:.1f} s"
            how, _, rest = name.partition(", ")
            what = f"two streaming jobs {how} late binding{', ' if rest else ''}{rest}"
            yield f"{what}: {figures}; {time['note']}"


def _alone(rows: _Rows, machine: Mapping[str, Any]) -> Iterator[str]:
    overhead_s, link = (
        rows[what]["value"] for what in ("overhead of one task alone", "one reader on an idle link")
    )
    yield (
        f"a task alone, beside its own time: {overhead_s:.3f} s; a link: {link:.1f} MB/s; "
        f"load average when runs began: {machine['load_average']}"
    )


_NAMES = {"lu": "LU", "qr": "QR", "cholesky": "Cholesky"}
_GPU_SIZES = ("1 MB", "4 MB", "16 MB", "50 MB")
_WAYS = {
    "cuSOLVER bare, with copies": "cuSOLVER bare, with copies",
    "in the worker, one at a time": "in the worker, one at a time",
    "pipeline": "through the pipeline, six under way",
    "as many by echo": "the same, only echoed",
}
_ORDERS = (32, 128, 512)


def _gpu(documents: Documents) -> list[str]:
    document, line = documents["gpu"], partial(_line, first=50)
    value = {row["what"]: row["value"] for row in document["rows"]}
    lines = [line(f"{document['machine']['gpu']}, GFLOP/s", _GPU_SIZES)]
    for operation, name in _NAMES.items():
        for way, title in _WAYS.items():
            cells = [f"{value[f'{operation}, {size}: {way}']:,.0f}" for size in _GPU_SIZES]
            lines.append(line(f"{name}, {title}", cells))
    lines += ["", line("small ones (bare: 64 a call), thousand a second", [f"n = {n}" for n in _ORDERS])]
    for operation, name in _NAMES.items():
        for way, title in (("bare, with copies", "bare, with copies"), ("pipeline", "through the pipeline")):
            cells = [f"{value[f'{operation}, order {n}, by 64: {way}'] / 1e3:,.1f}" for n in _ORDERS]
            lines.append(line(f"{name}, {title}", cells))
    lines += ["", line("workers on the GPU", ["1", "2", "4"])]
    for operation, name in _NAMES.items():
        cells = [f"{value[f'workers, {operation}, 1 MB: {n} on the GPU']:,.0f}" for n in (1, 2, 4)]
        lines.append(line(f"{name} of 1 MB, GFLOP/s", cells))
    jpeg = "images, JPEG 256 x 256"
    cells = [f"{value[f'workers, {jpeg}: {n} on the GPU']:,.0f}" for n in (1, 2, 4)]
    cores = document["machine"]["cores"]
    return [
        *lines,
        line("features of JPEG 256 x 256, images a second", cells),
        line(
            f"the same on {cores} cores; nvJPEG's decoding alone",
            [f"{value[f'{jpeg}: {each}']:,.0f}" for each in ("this CPU", "nvJPEG bare, decoding only")],
        ),
        "",
        line(f"order 10,000, the GPU over {cores} cores", _NAMES.values(), 9),
        line(
            "with both copies",
            [f"{value[f'paper, {each}, n = 10000: over this CPU']:.1f}" for each in _NAMES],
            9,
        ),
        line("the paper's", ["8.9", "16.6", "8.0"], 9),
    ]


_OTHERS = (
    ("Hadoop on one machine: up, warm, s", "hadoop", "cluster start, warm (NN, RM, JHS, 4 NM, 4 DN)", ".0f"),
    ("... resident when idle, GiB", "hadoop", "resident memory idle, 11 daemons", ".1f"),
    ("... a job of 8 mappers that do nothing, s", "hadoop", "8-mapper streaming job, overhead", ".0f"),
    ("the application: submit to RUNNING, s", "yarn_master", "submit to RUNNING", ".2f"),
    (
        "... the first time on a cluster, s",
        "yarn_master",
        "submit to RUNNING, the first on this cluster",
        ".1f",
    ),
    ("... master, MiB", "yarn_master", "resident memory of the master", ".0f"),
    ("... agent, MiB", "yarn_master", "resident memory of an agent", ".0f"),
    ("a server killed under load: next answer, s", "yarn_faults", "server: next answer", ".2f"),
    ("... replaced after, s", "yarn_faults", "server: replaced", ".1f"),
    ("... records lost", "yarn_faults", "server: records lost", ".0f"),
    (
        "NameNode calls for one more matrix: a file each",
        "namenode_calls",
        "NameNode calls per record: npz, residual sample",
        ".1f",
    ),
    (
        "... a file for each task",
        "namenode_calls",
        "NameNode calls per record: sequence, residual sample",
        ".1f",
    ),
    ("50,000 images: the job, s", "images", "images: job wall time", ".0f"),
    ("... purity of the clusters", "images", "images: purity", ".2f"),
    ("half an hour of load: requests", "soak", "requests received by the server", ",.0f"),
    ("... wrong answers", "soak", "wrong answers", ".0f"),
    (
        "Torque, 10,000 jobs, 1,000 nodes: a cycle, s",
        "torque",
        "cycle: parse + decide, 10000 jobs, 1,000 nodes",
        ".2f",
    ),
    ("... peak memory, MiB", "torque", "... peak memory, 10000 jobs", ".0f"),
    (
        "a real Torque 6.1.3.h5: event to start, p95, s",
        "torque-real",
        "event to qrun, idle cluster, p95",
        ".2f",
    ),
    ("... starts over those of bare qruns", "torque-real", "... ours over bare", ".2f"),
)
"""Title, file of results, row, form."""
_DOCKER = (
    ("cluster start, warm, s", "cluster start, warm (NN, RM, JHS, 4 NM, 4 DN)", ".1f"),
    ("cluster stop, s", "cluster stop", ".1f"),
    ("resident memory when idle, GiB", "resident memory idle, 11 daemons", ".2f"),
    ("a job of 8 mappers that do nothing, s", "8-mapper streaming job, overhead", ".1f"),
    ("HDFS write of 50 MiB, MB/s", "HDFS native write 50 MiB", ".0f"),
    ("HDFS write of 200 MiB, MB/s", "HDFS native write 200 MiB", ".0f"),
    ("HDFS read of 50 MiB, MB/s", "HDFS native read 50 MiB", ".0f"),
    ("HDFS read of 200 MiB, MB/s", "HDFS native read 200 MiB", ".0f"),
)


def _others(documents: Documents) -> list[str]:
    value = {
        name: {row["what"]: row["value"] for row in documents[name]["rows"]}
        for name in {name for _, name, _, _ in _OTHERS}
    }
    lines = [
        _line(title, [f"{value[name][what]:{form}}"], first=50) + f"   {name}.json"
        for title, name, what, form in _OTHERS
    ]
    return ["median of each                                                       file", *lines]


def _docker(documents: Documents) -> list[str]:
    value = {row["what"]: row["value"] for row in documents["docker_overhead"]["rows"]}
    lines = [_line("the same cluster, medians", ("namespaces", "containers"), 12)]
    for title, what, form in _DOCKER:
        lines.append(_line(title, [f"{value[f'{what}, {mode}']:{form}}" for mode in ("netns", "docker")], 12))
    return lines


def _fair_hdas(documents: Documents) -> list[str]:
    value = {row["what"]: row["value"] for row in documents["fair"]["rows"]}
    what = "hdas+: over the better of fifo and hdas, worst"
    return [
        "hdas+ in 500 worlds drawn at random",
        _line(
            "worlds above 1.05 of the better of fifo and hdas",
            [f"{value['hdas+: above 1.05 of the better of fifo and hdas']:.1%}"],
            first=50,
        ),
        _line("the worst of them over that", [f"{value[what]:.2f}"], first=50),
        _line("mean makespan over fifo's", [f"{value['hdas+: mean makespan over fifo']:.2f}"], first=50),
        _line("mean makespan over hdas's", [f"{value['hdas+: mean makespan over hdas']:.2f}"], first=50),
    ]


_FAIR_NUMBERS = (25, 50, 100, 200)
_FAIR_LINES = (
    ("moves a task", "moves a task", ".2f"),
    ("mean SD over that of fcfs", "mean SD / that of fcfs", ".1f"),
    ("smallest SD over that of fcfs", "smallest SD / that of fcfs", ".2f"),
    ("unfairness as the paper sums it", "unfairness as the paper sums it", ".1f"),
    ("mean deviation over the mean SD", "mean deviation over mean SD", ".2f"),
)
_FAIR_POLICIES = ("mps", "round_robin_at_dispatch", "least_progress")


def _fair_mps(documents: Documents) -> list[str]:
    value = {row["what"]: row["value"] for row in documents["fair"]["rows"]}
    lines = [_line("mps, equal DAGs at once", map(str, _FAIR_NUMBERS))]
    for title, what, form in _FAIR_LINES:
        cells = [f"{value[f'{number} equal DAGs: {what}']:{form}}" for number in _FAIR_NUMBERS]
        lines.append(_line(title, cells))
    lines += ["", _line("mean deviation over the mean SD, 200 worlds", _FAIR_POLICIES, 24)]
    for worlds in ("a chain beside a bag", "random mixes"):
        cells = [f"{value[f'{worlds}, {each}: mean deviation over mean SD']:.2f}" for each in _FAIR_POLICIES]
        lines.append(_line(worlds, cells, 24))
    return lines


def gpu_goals_page() -> str:
    """The page of the goals on a GPU: hits and misses side by side, with the device, from the record."""
    document = _recorded().get("gpu")
    return "\n".join([*_gpu_goals(document), ""])


def _gpu_goals(document: Mapping[str, Any] | None) -> Iterator[str]:
    yield from ("# A GPU: goals met and missed", "")
    if document is None:
        yield "No GPU has been measured yet: `python -m benchmarks gpu --json out/gpu.json` does it."
        return
    machine, rows = document["machine"], document["rows"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    judged = [row for row in rows if row["goal"] and row["n"]]
    n_met = sum(bool(row["ok"]) for row in judged)
    device = "EMULATED, no GPU" if machine["emulated"] else machine["gpu"]
    yield f"**{device}**, {versions}; {machine['cores']} cores."
    yield f"Recorded {document['started_at'][:10]} at commit `{document['commit']}`, {document['state']}."
    yield f"Made from `benchmarks/results/gpu.json`: {n_met} of {len(judged)} goals are met."
    yield from ("", "| figure | measured | goal | met | missed |", "|---|---|---|---|---|")
    for row in judged:
        marks = ("yes", "") if row["ok"] else ("", "**no**")
        cells = (row["what"], f"{_number(row['value'])} {row['unit']}", row["goal"], *marks)
        yield "| {} |".format(" | ".join(cells))
    left = [row for row in rows if not row["n"]]
    cut = [what for whats in document.get("series", {}).get("cut", {}).values() for what in whats]
    if left or cut:
        yield from ("", "## Not measured, or less often than meant", "")
        yield from (f"- {row['what']}: {row['note']}" for row in left)
        yield from (f"- {what}" for what in cut if what not in {row["what"] for row in left})


TABLES: Mapping[str, Callable[[Documents], list[str]]] = {
    "tcp": lambda documents: _echo(documents, "tcp", _TCP),
    "reference": _hdfs,
    "computing": _computing,
    "same-node": lambda documents: _echo(documents, "same node", _SAME_NODE),
    "hdas": _hdas,
    "hdas-live": _hdas_live,
    "mps-live": _mps_live,
    "torque": _torque,
    "gpu": _gpu,
    "others": _others,
    "docker": _docker,
    "fair-hdas": _fair_hdas,
    "fair-mps": _fair_mps,
}
"""Name -> its lines; a KeyError where a result lacks what it shows."""


def rewritten(page: str) -> str:
    """The page with the tables as they are now."""
    documents = _recorded()
    return _BLOCK.sub(lambda found: found[1] + "\n".join(TABLES[found[2]](documents)) + "\n" + found[4], page)


def main(words: Sequence[str]) -> int:
    """Print the tables named, all without a name, or write them into the pages; the exit code."""
    if list(words) == ["--write"]:
        for page in _PAGES:
            page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    unknown = [word for word in words if word not in TABLES]
    if unknown:
        sys.stderr.write(f"no table {unknown[0]}; there are {', '.join(TABLES)}, and --write\n")
        return 2
    documents = _recorded()
    for name in words or TABLES:
        print("\n".join(TABLES[name](documents)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

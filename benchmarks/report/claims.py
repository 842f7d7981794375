"""Every claim of the five papers and the peers, as data: who states what, and which rows judge it.

No figure of ours stands here: it is read from the result's JSON, row by row, by the row's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.grid.cells import GROUPS
from benchmarks.grid.claims import CLAIMS as GRID_CLAIMS
from benchmarks.report.judging import (
    AsRecorded,
    AtLeast,
    AtMost,
    Between,
    Everywhere,
    FirstIsLeast,
    Near,
    Reported,
    Rule,
)


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim.

    Attributes:
        paper: key of `PAPERS`.
        where: section, figure or table.
        claim: in a few words.
        stated: the paper's figure, as it is printed; of peers: what is asked of ours.
        result: name of the file of results, without ``.json``; empty: no benchmark measures it, see `note`.
        rows: names of the result's rows, each after a label.
        rule: how it is judged.
        how: what kind of figure ours is, such as ``simulated``.
        note: what a reader must know beside the rows' own notes.
    """

    paper: str
    where: str
    claim: str
    stated: str
    result: str
    rows: tuple[tuple[str, str], ...]
    rule: Rule
    how: str
    note: str = ""


_EMULATED = "real cluster, emulated kernels"
_SIMULATED = "simulated"
_MEASURED = "measured"
_RECORDED = AsRecorded()


def _yarn(where: str, stated: str, text: str, rule: Rule = _RECORDED) -> Claim:
    rows = (("", f"claim: {text}"),)
    return Claim("yarn", where, text, stated, "yarn_paper", rows, rule, _EMULATED)


def _yarn_claims() -> Iterator[Claim]:
    for name, speedup in (("LU", 8.9), ("QR", 16.6), ("Cholesky", 8.0)):
        rows = (("", f"paper, {name.lower()}, n = 10000: over this CPU"),)
        yield Claim(
            "yarn",
            "Table 2",
            f"{name} of order 10,000 on a GPU over the CPU of the same node",
            f"{speedup} x",
            "gpu",
            rows,
            AtLeast(speedup, speedup),
            _MEASURED,
        )


def _yarn_pipeline() -> Iterator[Claim]:
    stages = tuple(
        (f"{name}, c = {n}", f"efficiency, {name}, 10 MB, c = {n}")
        for name in ("lu", "qr", "cholesky")
        for n in (1, 4)
    )
    what = "reading, computing and writing overlap: slowest stage alone over the wall time"
    yield Claim(
        "yarn",
        "section 2.4",
        f"{what}, by value, 10 MB, c clients",
        "three stages at once",
        "pipeline-stages",
        stages,
        AsRecorded(),
        "measured, CPU kernels",
    )
    hdfs = tuple(
        (size, f"hdfs, {size}, LU in and out: slowest stage alone / wall") for size in ("8 MB", "50 MB")
    )
    yield Claim(
        "yarn",
        "section 2.4",
        f"{what}, in and out of HDFS",
        "three stages at once",
        "pipeline-hdfs",
        hdfs,
        AsRecorded(),
        "measured, CPU kernels",
        "client, server and all of Hadoop share two cores; the row `at most here` says what these allow",
    )


def _yarn_figures() -> Iterator[Claim]:
    figure_5 = "Figure 5, section 3.3"
    yield _yarn(
        figure_5,
        "4-4 about twice 4-2",
        "the speed-up follows the number of GPUs; 4-4 over 4-2 about 2",
        AsRecorded(2.0),
    )
    yield _yarn(figure_5, "rises with intensity, but at 1", "the speed-up grows with the intensity of a task")
    yield _yarn(figure_5, "no correlation", "the speed-up does not depend on the payload")
    yield _yarn(
        figure_5,
        "> 8.9, > 8.0",
        "above the single node's speed-up at intensity 8 (LU, Cholesky), by speculation",
    )
    yield _yarn(figure_5, "curves coincide", "with `paper` 4-3 is no better than 4-2", AsRecorded(1.0))
    yield _yarn("Figure 6", "falls; 4-3 like 4-2", "the image job's time falls with the number of GPUs")
    yield _yarn("section 5", "proposed", "with `container` 4-3 is at least 1.35 x faster than with `paper`")
    yield _yarn("section 5", "proposed", "`weighted` is at least 1.7 x faster than unweighted")
    yield Claim(
        "yarn",
        "Figure 6",
        "50,000 images: features in mappers, K-means in the reducer",
        "picture only",
        "images",
        (
            ("whole job", "images: job wall time"),
            ("map phase", "images: map phase"),
            ("purity", "images: purity"),
        ),
        Reported(),
        "measured, CPU kernels",
    )


def _hdas(where: str, stated: str, what: str, rule: Rule) -> Claim:
    rows = (("S1", f"S1: {what}"), ("S2", f"S2: {what}"))
    return Claim("hdas", where, what, stated, "hdas_paper", rows, rule, _SIMULATED)


def _near(where: str, paper: float, what: str, unit: str = "") -> Claim:
    return _hdas(where, f"{paper:g}{unit}", what, Near(paper))


def _hdas_claims() -> Iterator[Claim]:
    for policy, paper in (("fifo", 14.3), ("model", 17.9), ("hdas", 21.9)):
        yield _near("Figure 6", paper, f"mean speed-up over Hadoop, {policy}", " x")
    yield _near("Figure 6", 31.0, "greatest speed-up, hdas", " x")
    yield _hdas("Figure 6", "<= 2.8 x", "C: speed-up of the best of three", AsRecorded(2.8))
    yield _hdas("Figure 6", "> 21.0 x", "I: speed-up of the worst of three", AsRecorded(21.0))
    yield _hdas("Figure 6", "nearly 0", "I: the three policies differ by", AtMost(0.01))
    for policy, mean, most in (("model", 0.187, 0.357), ("hdas", 0.336, 0.505)):
        yield _near("Figure 8", mean, f"time saved against fifo, {policy}, mean")
        yield _near("Figure 8", most, f"time saved against fifo, {policy}, most")
    yield _near("Figure 1", 0.175, "time saved by the model, mixes of three, mean")
    yield _near("Figure 1", 0.299, "time saved by the model, mixes of three, most")
    yield _near("Figure 1", 0.089, "P: time saved by the model")
    yield _hdas("section 1.2", "yes", "P is the mix of three that the model helps least", AsRecorded())
    for policy, paper in (("model", 1.6), ("hdas", 1.2)):
        yield _near("Figure 9", paper, f"mean delay of 25 mixes, {policy}", " x")
    yield _hdas("Figure 9", "21 of 25", "mixes with a delay of at most 1.06, hdas", AtLeast(21, 21.0))
    for policy, paper in (("fifo", 3.0), ("model", 3.0), ("hdas", 2.9)):
        yield _near("Figure 9", paper, f"C: mean delay, {policy}", " x")
    for policy in ("fifo", "model", "hdas"):
        yield _hdas("Figure 9", "hardly any", f"I: mean delay, {policy}", AsRecorded(1.0))
    for letter in "ABDF":
        yield _hdas(
            "Figure 9", "below fifo's", f"{letter}: mean delay, worse of model and hdas", AsRecorded()
        )
    for letter in "ABCDFIL":
        yield _hdas("section 3.2", "about 1", f"{letter}: hdas over model", AsRecorded(1.0))
    yield _hdas(
        "section 3.2",
        "18 of 18",
        "of the 18 other mixes, hdas clearly faster than model and fifo",
        AtLeast(18, 18.0),
    )
    yield _hdas("section 3.4", "18 of 18", "of the 18 other mixes, delay least under hdas", AtLeast(18, 18.0))


def _hdas_mix_p() -> Iterator[Claim]:
    for app, fifo, model in (("KNN", 4.8, 4.2), ("NB", 2.7, 3.1)):
        yield _near("Figure 2", fifo, f"P: delay of {app} on GPUs, fifo", " x")
        yield _near("Figure 2", model, f"P: delay of {app} on GPUs, model", " x")
    for policy in ("fifo", "model"):
        yield _near("Figure 2", 1.6, f"P: mean delay, {policy}", " x")
    yield _hdas("Figure 2", "about 1", "P: greatest mean delay on CPUs, fifo and model", AsRecorded(1.0))
    yield _hdas("Figure 2", "about 1", "P: delay of BP on GPUs, fifo and model", AsRecorded(1.0))
    yield _hdas("section 1.3", "0", "P: BP's tasks on CPUs, model", AtMost(0))
    yield _hdas("section 3.4", "high", "P: share of NB's tasks on GPUs, hdas", AsRecorded())
    yield _hdas("section 3.4", "0", "P: share of KNN's tasks on GPUs, hdas", AsRecorded())
    for what in ("GPUs that compute", "disk in use"):
        yield _hdas(
            "Figures 3, 4, 10", "fifo < model < hdas", f"P: {what}, figures 3, 4, 10, hdas", AsRecorded()
        )


def _hdas_live() -> Iterator[Claim]:
    live = "real cluster, emulated GPUs"
    for policy, paper in (("model", 0.187), ("hdas", 0.336)):
        yield Claim(
            "hdas",
            "Figure 8",
            f"live, mixes C, K, P: time saved against fifo, {policy}",
            f"{paper:g} over 25 mixes",
            "hdas_live",
            (("", f"time saved against fifo, {policy}"),),
            Reported(paper),
            live,
            "three mixes, not 25, so not judged",
        )
    order = "pairs of policies that differ by > 10% simulated and have the same order live"
    yield Claim(
        "hdas",
        "section 3",
        f"live: {order}",
        "no figure",
        "hdas_live",
        (("", order),),
        AsRecorded(),
        live,
        "whether the simulation that judges the rows above can be believed",
    )


def _mps(
    where: str, claim: str, stated: str, rows: tuple[tuple[str, str], ...], paper: float | None = None
) -> Claim:
    return Claim("mps", where, claim, stated, "mps_paper", rows, AsRecorded(paper), _SIMULATED)


def _against(what: str) -> tuple[tuple[str, str], ...]:
    return tuple((other, f"{what}, mps against {other}") for other in ("mmhs", "round_robin"))


def _mps_claims() -> Iterator[Claim]:
    yield Claim(
        "mps",
        "Figure 3",
        "the worked example: AvgSlowdown and Unfairness of fairness, of mps",
        "0.840, 0.180; 0.904, 0.087",
        "",
        (),
        Reported(),
        "computed",
        "no benchmark: tests/unit/core/dags/test_golden.py compares all six figures",
    )
    yield _mps(
        "Figure 4",
        "one class: mean makespan against others",
        "-7.0 to 10.5 %",
        _against("one class: mean makespan"),
    )
    yield _mps(
        "Figure 5", "one class: unfairness is lower", "-15.5 %", _against("one class: unfairness"), -0.155
    )
    yield _mps(
        "Figure 6",
        "three classes: mean makespan against others",
        "-7.0 to 10.5 %",
        _against("three classes: mean makespan"),
    )


def _mps_classes() -> Iterator[Claim]:
    rows = (("", "three classes: unfairness with 3 DAGs"),)
    yield _mps("Figure 7", "three classes: unfairness is near 1 with 3 DAGs already", "about 1", rows, 1.0)
    rows = (("", "three classes: unfairness with 10 DAGs"),)
    yield _mps("Figure 7", "three classes: unfairness with 10 DAGs", "above 1", rows)
    yield _mps(
        "Figure 8",
        "three classes: utilisation is higher",
        "+7.9 %",
        _against("three classes: utilisation"),
        0.079,
    )
    rows = (("", "preemptive DAG, own makespan 36, mps: makespan"),)
    yield _mps("Figure 9", "makespan of the preemptive DAG, alone 36", "36 to 44", rows)
    rows = (("", "preemptive DAG, own makespan 36, mps: SD"),)
    yield _mps("Figure 10", "slowdown of the preemptive DAG", "0.82 to 1", rows)


def _mps_live() -> Iterator[Claim]:
    rows = (("", "preemption: SD of the preemptive DAG, live"),)
    text = "live: slowdown of a preemptive DAG in a full cluster"
    live = "real cluster, emulated kernels"
    yield Claim("mps", "Figure 10", text, "0.82 to 1", "mps_live", rows, AsRecorded(), live)
    error = (("", "mix: error of the simulated makespan"),)
    text = "live: the simulator's makespan is that of the cluster"
    note = "whether the simulation that judges the rows above can be believed"
    yield Claim("mps", "section 3", text, "no figure", "mps_live", error, AsRecorded(), live, note)
    worlds = tuple((world, f"{world}: makespan, ours / Dask") for world in ("mix", "preemption"))
    text = "makespan of the same DAGs over that of Dask"
    yield Claim("peers", "Dask", text, "<= 1", "mps_live", worlds, AtMost(1, 1.0), live)


_GRID_WHERE = {
    "G1": "Figure 3",
    "G2": "Figures 4, 5",
    "G3": "Figures 4, 5",
    "G4": "section 4",
    "G5": "Figures 4, 5",
    "G6": "Figures 4, 5",
}


def _grid_claims() -> Iterator[Claim]:
    for name, (text, _) in GRID_CLAIMS.items():
        groups = [f"{preset}, lambda {gain:g}" for preset, gain in GROUPS]
        rows = tuple((group, f"{name}, {group}: {text}") for group in groups)
        stated = "most sites" if name.startswith("G3") else "greatly" if name.startswith("G4") else "all"
        yield Claim(
            "grid",
            _GRID_WHERE[name[:2]],
            f"{name}: {text}",
            stated,
            "grid",
            rows,
            AtLeast(0.51) if name.startswith("G3") else Everywhere(),
            "simulated, real log",
        )
    scan = "G7: exponent of the scan's time over the table's length"
    yield Claim("grid", "section 3.2.2", scan, "linear", "grid", (("", scan),), AsRecorded(1.0), _MEASURED)
    modes = [(delay, mode) for delay in ("0.05", "0.5") for mode in ("search", "coallocate")]
    rows = tuple(
        (f"{mode}, {delay} s", f"delay {delay} s, {mode}: G8, double allocations and other faults")
        for delay, mode in modes
    )
    yield Claim(
        "grid",
        "section 3.1",
        "G8: no processor is given twice, with messages that take time",
        "never",
        "grid",
        rows,
        AtMost(0),
        "simulated, real log",
    )


def _torque(
    where: str,
    claim: str,
    stated: str,
    rows: tuple[tuple[str, str], ...],
    rule: Rule = _RECORDED,
    result: str = "torque_balance",
    how: str = _SIMULATED,
) -> Claim:
    return Claim("torque", where, claim, stated, result, rows, rule, how)


def _torque_claims() -> Iterator[Claim]:
    row = "L1: first fit fills node by node"
    yield _torque(
        "Figures 1, 2",
        f"{row}: use of the first node when the second got a job",
        "about 0.70",
        (("least", row),),
    )
    for figure in ("cpu stdev", "cpu range", "memory stdev"):
        rows = tuple(
            (f"over {other}", f"L2: VALUE makes CPU and memory rise together: {figure}, value over {other}")
            for other in ("firstfit", "loadave", "round_robin")
        )
        yield _torque(
            "Figures 3, 4", f"L2: nodes rise together under VALUE: {figure}, over other rules", "below", rows
        )
    row = "L3: GPU jobs on nodes without GPU"
    yield _torque("section 2", row, "0", (("", row),))
    row = "L4: prediction improves as history grows"
    yield _torque("section 3.2", f"{row}: error of the last tenth over the first", "below 1", (("", row),))
    rows = tuple(
        (f"{n} jobs at once", f"L5: shorter total execution time: {n} jobs at once, value over firstfit")
        for n in (40, 120)
    )
    yield _torque("section 1", "L5: shorter total execution time than under first fit", "shorter", rows)
    row = "L6: prediction keeps the load table current between heartbeats, value"
    yield _torque("section 3.2", f"{row}: gain at 300 s over that at 10 s", "decisive", (("", row),))
    row = "L6: the same within bursts, value"
    yield _torque("section 3.2", f"{row}: gain with bursts of 16 over single jobs", "decisive", (("", row),))


def _predictor_claims() -> Iterator[Claim]:
    for stem, log, targets in (
        ("predictor-ctc", "CTC-SP2-1996-3", ("cpu", "runtime")),
        ("predictor-lanl", "LANL-CM5-1994-4", ("cpu", "memory", "runtime")),
    ):
        rows = tuple((target, f"{log}, {target}: chain over seed") for target in targets)
        yield _torque(
            "Algorithm 3.2",
            f"our predictor beside the paper's PREDICT, {log}: error over error",
            "no figure",
            rows,
            AsRecorded(1.0),
            stem,
            "computed, real log",
        )


_TWO_PROCESSES = "a request passes two processes here, the server and its worker; small ones feel it"
_PEERS = ("zmq", "flight", "grpc", "ray", "dask", "triton")


def _peers_claims() -> Iterator[Claim]:
    ratio = "ours over theirs >= 1"
    for carrier in ("tcp", "same node"):
        for size in ("64 KiB", "1 MiB", "8 MiB", "50 MiB"):
            rows = tuple(
                (peer, f"echo, {carrier}, {size}, 1 client, window 4: ours / {peer}") for peer in _PEERS
            )
            yield Claim(
                "peers",
                "echo",
                f"echo of {size}, {carrier}, GB/s",
                ratio,
                "pipeline-echo",
                rows,
                AtLeast(1, 1.0),
                _MEASURED,
                _TWO_PROCESSES,
            )
    for carrier in ("tcp", "unix"):
        rows = tuple((peer, f"latency, 64 B, {carrier}, cores may sleep: {peer} / ours") for peer in _PEERS)
        yield Claim(
            "peers",
            "latency",
            f"round trip of 64 bytes, {carrier}, cores may sleep",
            "theirs over ours >= 1",
            "pipeline-latency",
            rows,
            AtLeast(1, 1.0),
            _MEASURED,
            _TWO_PROCESSES,
        )


def _peer_kernels() -> Iterator[Claim]:
    rows = tuple((name, f"kernel, {name}, n = 2000: worker / bare") for name in ("lu", "qr", "cholesky"))
    yield Claim(
        "peers",
        "kernels",
        "order 2000: rate in the worker over bare LAPACK",
        ">= 0.95",
        "pipeline-kernels",
        rows,
        AtLeast(0.95, 1.0),
        _MEASURED,
        "the worker also looks at each number of its input, beside a server and a client on the same cores",
    )
    rows = (("", "LU n = 32: packing + batching over one frame each"),)
    yield Claim(
        "peers",
        "small",
        "small matrices: packed and batched over one frame each",
        ">= 4",
        "pipeline-small",
        rows,
        AsRecorded(4.0),
        _MEASURED,
    )


def _peer_torque() -> Iterator[Claim]:
    starts = (("starts", "... native over commands"),)
    yield Claim(
        "peers",
        "Torque",
        "starts per second: batch protocol over Torque's commands",
        ">= 3",
        "torque-transport",
        starts,
        AsRecorded(3.0),
        "emulated Torque",
    )
    rows = (("ours", "event to qrun, idle cluster, p95"), ("C pbs_sched", "... C pbs_sched: p95"))
    yield Claim(
        "peers",
        "Torque",
        "from an event to the start of a job, p95",
        "below Torque's own scheduler",
        "torque-real",
        rows,
        FirstIsLeast(),
        "real Torque",
    )


def _peer_referee() -> Iterator[Claim]:
    rows = tuple(
        (policy, f"tie-free 1,000, {policy}: starts that differ from the referee's")
        for policy in ("easy", "conservative")
    )
    yield Claim(
        "peers",
        "pyss",
        "backfilling: starts of 1,000 jobs that differ from the referee's",
        "0",
        "backfill",
        rows,
        AtMost(0),
        "simulated, real log",
    )
    rows = tuple(
        (policy, f"full log, {policy}, user estimates: largest deviation")
        for policy in ("easy", "conservative")
    )
    yield Claim(
        "peers",
        "pyss",
        "CTC SP2, 77,205 jobs: largest deviation from the referee's figures",
        "<= 3 %",
        "backfill",
        rows,
        Between(0, 3),
        "simulated, real log",
    )


CLAIMS: tuple[Claim, ...] = (
    *_yarn_claims(),
    *_yarn_pipeline(),
    *_yarn_figures(),
    *_hdas_claims(),
    *_hdas_mix_p(),
    *_hdas_live(),
    *_mps_claims(),
    *_mps_classes(),
    *_mps_live(),
    *_grid_claims(),
    *_torque_claims(),
    *_predictor_claims(),
    *_peers_claims(),
    *_peer_kernels(),
    *_peer_torque(),
    *_peer_referee(),
)

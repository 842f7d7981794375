"""Recording the class list that the class data archive is dumped from.

Starts a single-node Hadoop, lets it work a little in every role with the JVM writing down each class it
loads, and merges the lists. Maintainers run this when the Hadoop version changes; everybody else uses the
list that the package ships.
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from yarn_accel.adapters.rest import get_json, get_text, request_json
from yarn_accel.hadoop.java import HadoopInstall
from yarn_accel.hadoop.site import HadoopSite
from yarn_accel.hadoop.streaming import (
    NLINE_INPUT_FORMAT,
    SEQUENCE_INPUT_FORMAT,
    SEQUENCE_OUTPUT_FORMAT,
    StreamingJob,
    run_streaming,
)
from yarn_accel.testbed.class_archives import CLASS_LIST
from yarn_accel.testbed.maven import ensure_hadoop
from yarn_accel.testbed.single_node import SingleNode
from yarn_accel.users import login_name


def merge_class_lists(texts: Sequence[str]) -> str:
    """One sorted list out of several; what only one run numbered or generated is dropped.

    ``-XX:DumpLoadedClassList`` may number classes, for the sake of classes of other loaders; those cannot be
    merged, and the classes of the built-in loaders need no number.
    """
    lines = set()
    for text in texts:
        for line in text.splitlines():
            name = line.split(" id: ")[0].strip()
            if not name or name.startswith("#") or " source: " in line or "$$" in name.split(" ")[0]:
                continue
            lines.add(name)
    return "\n".join(sorted(lines)) + "\n"


def record_class_list(install: HadoopInstall, target: Path, report: Callable[[str], None]) -> int:
    """Record the classes of every role into ``target`` (gzip, the same bytes for the same classes).

    Returns:
        The number of entries.

    Raises:
        ClusterError: a daemon did not start.
        JobError: a job failed.
    """
    with tempfile.TemporaryDirectory(prefix="cluster-accel-record-") as name:
        work = Path(name)
        lists = work / "lists"
        lists.mkdir()
        with SingleNode(install, work, report, class_lists=lists) as node:
            _exercise(node, lists, report)
        texts = [path.read_text(errors="replace") for path in sorted(lists.glob("*.lst"))]
        report(f"merging {len(texts)} class lists")
        merged = merge_class_lists(texts)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(merged.encode(), 9, mtime=0))
    return merged.count("\n")


def _exercise(node: SingleNode, lists: Path, report: Callable[[str], None]) -> None:
    """Let every role do what it does in real life: WebHDFS, jobs, REST."""
    site = HadoopSite.load(node.environ)
    files = f"{node.web('namenode')}/webhdfs/v1"
    user = f"user.name={login_name()}"
    request_json("PUT", f"{files}/record/in?op=MKDIRS&{user}")
    local = node.work / "lines.txt"
    local.write_text("one\ntwo\n")
    node.put(local, "/record/in/lines.txt")
    get_text(f"{files}/record/in/lines.txt?op=OPEN&{user}")
    get_json(f"{files}/record?op=LISTSTATUS&{user}")
    for job in _jobs(local, lists):
        options = (f"-XX:DumpLoadedClassList={lists}/client-{job.name}.lst",)
        result = run_streaming(site, job, report, jvm_options=options).check()
        report(f"{job.name}: took {result.wall_s:.0f} s")
    for url in (
        f"{node.web('rm')}/ws/v1/cluster/apps",
        f"{node.web('rm')}/ws/v1/cluster/scheduler",
        f"{node.web('rm')}/ws/v1/cluster/metrics",
        f"{node.web('nm')}/ws/v1/node/info",
        f"{node.web('namenode')}/jmx?qry=java.lang:type=Memory",
    ):
        get_json(url)


def _jobs(local: Path, lists: Path) -> Iterator[StreamingJob]:
    base = "hdfs:///record"
    master_key = "yarn.app.mapreduce.am.command-opts"
    tasks = {"mapred.child.java.opts": f"-Xmx160m -XX:DumpLoadedClassList={lists}/task-@taskid@.lst"}
    yield StreamingJob(
        name="lines",
        mapper="cat",
        reducer="cat",
        inputs=[f"{base}/in"],
        output=f"{base}/lines",
        files=[str(local)],
        properties={
            **tasks,
            master_key: f"-Xmx320m -XX:DumpLoadedClassList={lists}/master-lines.lst",
            "mapreduce.input.lineinputformat.linespermap": "1",
            "mapreduce.map.resource.acct/slot": "1",
        },
        input_format=NLINE_INPUT_FORMAT,
        output_format=SEQUENCE_OUTPUT_FORMAT,
    )
    yield StreamingJob(
        name="records",
        mapper="cat",
        reducer="cat",
        inputs=[f"{base}/lines"],
        output=f"{base}/records",
        properties={
            **tasks,
            master_key: f"-Xmx320m -XX:DumpLoadedClassList={lists}/master-records.lst",
        },
        input_format=SEQUENCE_INPUT_FORMAT,
        output_format=SEQUENCE_OUTPUT_FORMAT,
        io="typedbytes",
    )


@click.command("record-classes")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=CLASS_LIST,
    show_default="the package's own list",
    help="Where to write the list.",
)
def record_command(output: Path) -> None:
    """Record anew which classes the class data archive holds (for maintainers, about a minute)."""

    def report(text: str) -> None:
        click.echo(text, err=True)

    n_classes = record_class_list(ensure_hadoop(report), output, report)
    click.echo(f"{n_classes} classes in {output}")

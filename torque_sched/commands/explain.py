"""``torque-sched explain``: why a job waits or runs where it does, or what there is to know of a node."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from torque_sched.commands._answering import respond
from torque_sched.commands._console import out
from torque_sched.commands.serve import with_options


@click.command()
@with_options
@click.option("--shadow", is_flag=True, help="As the shadow sees it.")
@click.argument("name", metavar="JOB|NODE")
def explain(home: Path | None, config_file: Path | None, shadow: bool, name: str) -> None:
    """Say why JOB waits, node by node, its guaranteed start, what it will use; or all about NODE."""
    respond("explain", home, config_file, {"name": name}, tell, shadow=shadow)


def tell(picture: Any, asked: Mapping[str, Any]) -> None:
    """Print all about a job or a node.

    Raises:
        ConfigError: there is no such one.
    """
    from torque_sched.model.cluster import Job
    from torque_sched.report.picture import find

    found = find(picture.snapshot, asked["name"], picture.viewer)
    if isinstance(found, Job):
        _explain_job(picture, found)
    else:
        _explain_node(picture, found)


def _explain_job(picture: Any, job: Any) -> None:
    from torque_sched.report.past import decisions_about
    from torque_sched.report.promised import changes_table, promise_changes, promise_lines
    from torque_sched.report.tables import past_table

    show_explanation(picture, job)
    for line in promise_lines(picture, job):
        out().print(line, markup=False)
    changes = promise_changes(picture, job)
    if changes:
        out().print(changes_table(changes), markup=False)
    past = decisions_about(picture.journal, job.id) if picture.journal is not None else ()
    if past:
        out().print(past_table(past))


def show_explanation(picture: Any, job: Any) -> None:
    """Print decision, prediction and every node's verdict for a job, also for one that does not exist."""
    from torque_sched.decide.explain import explain as explain_job
    from torque_sched.model.texts import one_line
    from torque_sched.report.explained import share_lines
    from torque_sched.report.replay import words
    from torque_sched.report.tables import evidence_table, job_line, verdict_table

    console = out()
    console.print(job_line(job), markup=False)
    explanation = explain_job(picture.snapshot, picture.settings, picture.context, job)
    if explanation.decision is not None:
        console.print(f"now: {words(explanation.decision)}", markup=False)
    if job.comment:
        console.print(f"its comment: {one_line(job.comment, 2000)}", markup=False)
    for line in share_lines(picture, job):
        console.print(line, markup=False)
    evidence = picture.context.predictions.explain(job)
    if evidence:
        console.print(evidence_table(evidence))
    else:
        console.print("prediction: no job has ended yet, so it counts with what it asks for")
    if job.state.value not in {"C", "E", "R"}:
        console.print(
            verdict_table(explanation.nodes, 1 + max((each.piece for each in explanation.nodes), default=0))
        )


def _explain_node(picture: Any, node: Any) -> None:
    from torque_sched.report.explained import node_facts
    from torque_sched.report.tables import table

    console = out()
    made = table("", "", title=node.name)
    for name, value in node_facts(picture, node):
        made.add_row(name, value)
    console.print(made, markup=False)

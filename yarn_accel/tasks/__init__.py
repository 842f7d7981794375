"""Applications for a task service: read an APP.yaml or a DAG.yaml, check it, and make its tasks.

A DAG is built and submitted with `DagBuilder`.

>>> from pathlib import Path
>>> from yarn_accel.storage import Store
>>> from yarn_accel.tasks import load_app, plan_app
>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = Path(folder, "lines.txt").write_text("one\\ntwo\\n")
...     _ = Path(folder, "app.yaml").write_text(
...         "name: count\\ninput: lines.txt\\noutput: counts\\ncpu: {command: [wc, -l]}\\n"
...     )
...     len(plan_app(load_app(Path(folder, "app.yaml")), Store()).tasks)
1
"""

from yarn_accel.tasks.app_file import AppConfig, load_app, parse_app
from yarn_accel.tasks.dag_builder import DagBuilder
from yarn_accel.tasks.dag_handle import DagHandle
from yarn_accel.tasks.dag_planning import load_dag_file, plan_dag
from yarn_accel.tasks.planning import plan_app

__all__ = [
    "AppConfig",
    "DagBuilder",
    "DagHandle",
    "load_app",
    "load_dag_file",
    "parse_app",
    "plan_app",
    "plan_dag",
]

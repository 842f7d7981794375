"""The core of the ApplicationMaster: `Application.apply(event) -> commands`, pure.

`events` and `commands` are its input and output; `settings` holds the table of containers, and the times.
"""

from yarn_accel.core.application.application import Application, NodeAssignment
from yarn_accel.core.application.settings import (
    ContainerRole,
    NodeSelector,
    RestartPolicy,
    RoleResource,
    RoleTable,
    Settings,
)
from yarn_accel.core.application.views import ClusterSummary

__all__ = [
    "Application",
    "ClusterSummary",
    "ContainerRole",
    "NodeAssignment",
    "NodeSelector",
    "RestartPolicy",
    "RoleResource",
    "RoleTable",
    "Settings",
]

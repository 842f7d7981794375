"""The core of the ApplicationMaster: `Application.apply(event) -> commands`, pure.

`events` and `commands` say what goes in and out, `roles` which containers there are, `settings` how patient
it is.
"""

from yarn_accel.core.application.application import Application, NodeAssignment
from yarn_accel.core.application.roles import (
    ContainerRole,
    NodeSelector,
    RestartPolicy,
    RoleResource,
    RoleTable,
)
from yarn_accel.core.application.settings import Settings
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

"""The core of the ApplicationMaster: `Application.apply(event) -> commands`, pure.

`events` and `commands` say what goes in and out, `roles` which containers there are, `settings` how patient
it is.
"""

from yarn_accel.core.application.application import Answer, Application
from yarn_accel.core.application.roles import Resource, Restart, Role, Roles, Where
from yarn_accel.core.application.settings import Settings

__all__ = ["Answer", "Application", "Resource", "Restart", "Role", "Roles", "Settings", "Where"]

"""The core of the ApplicationMaster: `Application.apply(event) -> commands`, pure.

`events` and `commands` say what goes in and out, `roles` which containers there are, `settings` how patient
it is.
"""

from yarn_accel.core.application.application import Answer, Application
from yarn_accel.core.application.roles import Resource, Restart, Role, Roles, Where
from yarn_accel.core.application.settings import Settings
from yarn_accel.core.application.views import Outline

__all__ = ["Answer", "Application", "Outline", "Resource", "Restart", "Role", "Roles", "Settings", "Where"]

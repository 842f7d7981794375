"""The applications that run now, by the ResourceManager's web service."""

from __future__ import annotations

from yarn_accel.adapters.rest import get_json, listed_applications, newest_first, running_path
from yarn_accel.errors import AccelError
from yarn_accel.hadoop.site import SiteSettings

__all__ = ["APPLICATION_TYPE", "tracking_pages"]

#: What YARN lists our applications as; agents that systemd runs look for it too.
APPLICATION_TYPE = "yarn-accel"
_TIMEOUT_S = 5.0


def tracking_pages(site: SiteSettings, application_type: str) -> tuple[str, ...]:
    """The pages of the running applications of a type, through the ResourceManager's proxy, newest first.

    They stay the same over the attempts of an application.  None where no ResourceManager answers.
    """
    for web in site.resourcemanager_webs():
        try:
            answer = get_json(f"{web}{running_path(application_type)}", timeout_s=_TIMEOUT_S)
        except AccelError:
            continue
        found = newest_first(listed_applications(answer))
        pages = [str(each.get("trackingUrl") or "") for each in found]
        return tuple(page for page in pages if page.startswith(("http://", "https://")))
    return ()

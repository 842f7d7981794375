"""For programs that pack mappers of their own and have `yarn-accel streaming` or Spark run them.

`SiteSettings` is the cluster that HADOOP_CONF_DIR names, `HadoopSite` with its jars. `client_sources`,
`find_sources` and `write_archive` pack a mapper of several modules. Spark's launcher also needs
`issue_job_credential`, `BINDING_FILE`, and the `mapper_environment` that names the application; its master's
pages alone are the `tracking_pages` of `APPLICATION_TYPE`. HDFS and YARN know the caller as `site_user`.
"""

from yarn_accel.adapters.credentials import issue_job_credential
from yarn_accel.client.archive import client_sources, find_sources, write_archive
from yarn_accel.client.task_servers import BINDING_FILE
from yarn_accel.hadoop.rm_client import APPLICATION_TYPE, mapper_environment, site_user, tracking_pages
from yarn_accel.hadoop.site import HadoopSite, SiteSettings

__all__ = [
    "APPLICATION_TYPE",
    "BINDING_FILE",
    "HadoopSite",
    "SiteSettings",
    "client_sources",
    "find_sources",
    "issue_job_credential",
    "mapper_environment",
    "site_user",
    "tracking_pages",
    "write_archive",
]

"""What stands behind ``yarn``, ``mapred``, ``hdfs`` and ``hadoop``: Hadoop's scripts as a table. Pure.

Jars from Maven come without those scripts. Their commands that start daemons are not here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from yarn_accel.errors import ConfigError

_RUN_JAR = "org.apache.hadoop.util.RunJar"
_VERSION = "org.apache.hadoop.util.VersionInfo"
_YARN = "org.apache.hadoop.yarn.client.cli."
_HDFS = "org.apache.hadoop.hdfs.tools."
_SHELL = "org.apache.hadoop.fs.FsShell"

PROGRAMS: Mapping[str, Mapping[str, str]] = {
    "hadoop": {"fs": _SHELL, "jar": _RUN_JAR, "version": _VERSION},
    "hdfs": {
        "balancer": "org.apache.hadoop.hdfs.server.balancer.Balancer",
        "dfs": _SHELL,
        "dfsadmin": _HDFS + "DFSAdmin",
        "ec": _HDFS + "ECAdmin",
        "fsck": _HDFS + "DFSck",
        "getconf": _HDFS + "GetConf",
        "storagepolicies": _HDFS + "StoragePolicyAdmin",
        "version": _VERSION,
    },
    "mapred": {
        "job": "org.apache.hadoop.mapred.JobClient",
        "queue": "org.apache.hadoop.mapred.JobQueueClient",
        "streaming": "org.apache.hadoop.streaming.HadoopStreaming",
        "version": _VERSION,
    },
    "yarn": {
        "app": _YARN + "ApplicationCLI",
        "application": _YARN + "ApplicationCLI",
        "applicationattempt": _YARN + "ApplicationCLI",
        "container": _YARN + "ApplicationCLI",
        "jar": _RUN_JAR,
        "logs": _YARN + "LogsCLI",
        "node": _YARN + "NodeCLI",
        "queue": _YARN + "QueueCLI",
        "rmadmin": _YARN + "RMAdminCLI",
        "top": _YARN + "TopCLI",
        "version": _VERSION,
    },
}
#: The class of these serves several commands and needs its name as the first argument.
_NAMED_FIRST = ("app", "application", "applicationattempt", "container")
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_$][\w$]*)+")


def main_class(program: str, arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the class that a command line of Hadoop's stands for, and the arguments of that class.

    >>> main_class("hdfs", ["dfs", "-ls", "/"])
    ('org.apache.hadoop.fs.FsShell', ['-ls', '/'])

    As with Hadoop's own scripts, the full name of a class does for a command.

    Raises:
        ConfigError: no such command; the cure lists those there are.
    """
    commands = PROGRAMS[program]
    name, rest = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    if name in commands:
        name_first = [name] if program == "yarn" and name in _NAMED_FIRST else []
        return commands[name], name_first + rest
    if _CLASS.fullmatch(name):
        return name, rest
    problem = f"there is no command {program} {name}" if name else f"{program} needs a command"
    raise ConfigError(problem, cure=f"the commands are {', '.join(commands)}, or the full name of a class")

"""The argument list of one Hadoop process. Pure.

The flags are those which make a dozen JVMs bearable on two cores: only the
first compiler tier, the serial collector, and a class data archive that holds the parsed classes of all jars.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from yarn_accel.hadoop.jars import HadoopInstall

MAIN_CLASSES: Mapping[str, str] = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "resourcemanager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "nodemanager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
    "historyserver": "org.apache.hadoop.mapreduce.v2.hs.JobHistoryServer",
    "streaming": "org.apache.hadoop.streaming.HadoopStreaming",
}

# The set which Hadoop's own launcher opens (HADOOP-19310, hadoop-functions.sh).
_OPENED = (
    "java.io",
    "java.lang",
    "java.lang.reflect",
    "java.math",
    "java.net",
    "java.text",
    "java.util",
    "java.util.concurrent",
    "java.util.zip",
    "sun.security.util",
    "sun.security.x509",
)
ADD_OPENS: tuple[str, ...] = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
)

LEAN_FLAGS: tuple[str, ...] = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    # Without libhadoop a NodeManager runs chmod 18 times before each container; so each is one exec, not two.
    "-Djdk.lang.Process.launchMechanism=VFORK",
)

# By default the first heap is 1/64 of the machine's memory, all of which an idle daemon would have touched.
FIRST_HEAP_MIB = 48


def class_path(install: HadoopInstall, conf_dir: Path, extra: Sequence[str | Path] = ()) -> str:
    """Class path text: the jars first (the archive matches a prefix), then ``extra``, then ``conf_dir``."""
    return os.pathsep.join(str(entry) for entry in (install.class_path_jar, *extra, conf_dir))


def archive_options(archive: Path | None) -> list[str]:
    """The JVM options that use a class data archive; none without one.

    The archive is mapped where it was made for: by default JDK 17.0.15 moves it to a random address, which
    writes to nearly all of its pages, so that every JVM has its own copy of 115 MB.
    """
    if archive is None:
        return []
    mapping = ["-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0"]
    return ["-XX:+IgnoreUnrecognizedVMOptions", *mapping, f"-XX:SharedArchiveFile={archive}", "-Xshare:auto"]


def java_argv(
    install: HadoopInstall,
    main_class: str,
    conf_dir: Path,
    *,
    heap_mib: int = 256,
    properties: Mapping[str, str] | None = None,
    archive: Path | None = None,
    extra_class_path: Sequence[str | Path] = (),
    jvm_options: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> list[str]:
    """The argument list that starts one Hadoop process. Pure.

    Args:
        install: the jars and the ``java`` program.
        main_class: a role of :data:`MAIN_CLASSES` or a full class name.
        conf_dir: directory with the ``*-site.xml`` files.
        heap_mib: largest heap in MiB.
        properties: ``-D`` system properties, in order; Hadoop expands ``${name}`` in its settings from them.
        archive: a class data archive that fits the jars, or None.
        extra_class_path: directories or jars that win over ``conf_dir`` (a node's ``node-resources.xml``).
        jvm_options: further options for the JVM, placed last so that they win.
        arguments: arguments of the main class.
    """
    argv = [str(install.java), f"-Xmx{heap_mib}m", *LEAN_FLAGS, *ADD_OPENS, "-Djava.net.preferIPv4Stack=true"]
    argv += [f"-Xms{min(FIRST_HEAP_MIB, heap_mib)}m", *archive_options(archive)]
    argv += [f"-D{name}={value}" for name, value in (properties or {}).items()]
    argv += [*jvm_options, "-cp", class_path(install, conf_dir, extra_class_path)]
    argv += [MAIN_CLASSES.get(main_class, main_class), *arguments]
    return argv

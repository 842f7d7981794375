import json
from pathlib import Path

import pytest

from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.hadoop.java import HADOOP_VERSION
from yarn_accel.hadoop.site import SITE_FILE, HadoopSite, SiteSettings


def hadoop_xml(**properties: str) -> str:
    body = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in properties.items()
    )
    return f"<configuration>{body}</configuration>"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A configuration directory and a HADOOP_HOME, so that nothing is fetched."""
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "core-site.xml").write_text(hadoop_xml(**{"fs.defaultFS": "hdfs://master:9000"}))
    (conf / "yarn-site.xml").write_text(hadoop_xml(**{"yarn.resourcemanager.hostname": "master"}))
    for name in ("common/hadoop-common-3.4.9", "tools/lib/hadoop-streaming-3.4.9"):
        jar = tmp_path / "home" / "share" / "hadoop" / f"{name}.jar"
        jar.parent.mkdir(parents=True)
        jar.write_bytes(b"")
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    return {
        "HADOOP_CONF_DIR": str(conf),
        "HADOOP_HOME": str(tmp_path / "home"),
        "JAVA_HOME": str(tmp_path / "jdk"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }


def conf_dir(environ: dict[str, str]) -> Path:
    return Path(environ["HADOOP_CONF_DIR"])


def test_addresses_come_from_the_configuration_with_hadoops_defaults(environ: dict[str, str]):
    site = HadoopSite.load(environ)
    assert list(map(str, site.resourcemanagers().client)) == ["master:8032"]
    assert site.resourcemanager_webs() == ["http://master:8088"]
    assert site.history_web() == "http://localhost:19888"
    assert site.install.version == "3.4.9"
    assert site.binding_file is None


def test_explicit_addresses_win(environ: dict[str, str]):
    (conf_dir(environ) / "mapred-site.xml").write_text(
        hadoop_xml(**{"mapreduce.jobhistory.address": "old:10020"})
    )
    assert HadoopSite.load(environ).history_web() == "http://old:19888"
    (conf_dir(environ) / "mapred-site.xml").write_text(
        hadoop_xml(**{"mapreduce.jobhistory.webapp.address": "hist:1234"})
    )
    assert HadoopSite.load(environ).history_web() == "http://hist:1234"
    (conf_dir(environ) / "mapred-site.xml").write_text(
        hadoop_xml(**{"mapreduce.jobhistory.webapp.address": "0.0.0.0:1234"})
    )
    assert HadoopSite.load(environ).history_web() == "http://localhost:1234"


def test_several_resourcemanagers(environ: dict[str, str]):
    (conf_dir(environ) / "yarn-site.xml").write_text(
        hadoop_xml(
            **{
                "yarn.resourcemanager.ha.enabled": "true",
                "yarn.resourcemanager.ha.rm-ids": "rm1, rm2",
                "yarn.resourcemanager.hostname.rm1": "a",
                "yarn.resourcemanager.hostname.rm2": "b",
                "yarn.resourcemanager.webapp.address.rm2": "b:99",
            }
        )
    )
    site = HadoopSite.load(environ)
    assert list(map(str, site.resourcemanagers().client)) == ["a:8032", "b:8032"]
    assert site.resourcemanager_webs() == ["http://a:8088", "http://b:99"]


def test_ids_of_a_cluster_without_high_availability_count_nowhere(environ: dict[str, str]):
    """Hadoop reads ``ha.rm-ids`` only where ``ha.enabled`` is true: RPC and pages are of one machine."""
    (conf_dir(environ) / "yarn-site.xml").write_text(
        hadoop_xml(
            **{
                "yarn.resourcemanager.ha.rm-ids": "rm1,rm2",
                "yarn.resourcemanager.hostname": "one",
                "yarn.resourcemanager.hostname.rm1": "a",
                "yarn.resourcemanager.hostname.rm2": "b",
            }
        )
    )
    site = HadoopSite.load(environ)
    assert list(map(str, site.resourcemanagers().client)) == ["one:8032"]
    assert site.resourcemanager_webs() == ["http://one:8088"]


def test_pages_over_tls_follow_the_policy(environ: dict[str, str]):
    """The names stay, because a certificate is for a name."""
    folder = conf_dir(environ)
    (folder / "hosts").write_text("10.0.0.1 master\n")
    (folder / SITE_FILE).write_text("client_hosts_file: hosts\n")
    (folder / "mapred-site.xml").write_text(
        hadoop_xml(
            **{"mapreduce.jobhistory.http.policy": "HTTPS_ONLY", "mapreduce.jobhistory.address": "hist:10020"}
        )
    )
    said = {"yarn.resourcemanager.hostname": "master", "yarn.http.policy": "https_only"}
    (folder / "yarn-site.xml").write_text(hadoop_xml(**said))
    assert HadoopSite.load(environ).resourcemanager_webs() == ["https://master:8090"]
    assert HadoopSite.load(environ).history_web() == "https://hist:19890"
    said["yarn.resourcemanager.webapp.https.address"] = "0.0.0.0:8443"
    said["yarn.resourcemanager.webapp.address"] = "master:99"
    (folder / "yarn-site.xml").write_text(hadoop_xml(**said))
    assert HadoopSite.load(environ).resourcemanager_webs() == ["https://master:8443"]
    said["yarn.http.policy"] = "HTTP_ONLY"
    (folder / "yarn-site.xml").write_text(hadoop_xml(**said))
    assert HadoopSite.load(environ).resourcemanager_webs() == ["http://10.0.0.1:99"]


def test_a_damaged_address_is_named_with_its_file(environ: dict[str, str]):
    (conf_dir(environ) / "yarn-site.xml").write_text(
        hadoop_xml(**{"yarn.resourcemanager.webapp.address": "http://rm:8088"})
    )
    with pytest.raises(ConfigError, match=r"yarn-site\.xml: yarn\.resourcemanager\.webapp\.address"):
        HadoopSite.load(environ).resourcemanager_webs()


def test_the_site_file_is_honoured(environ: dict[str, str]):
    folder = conf_dir(environ)
    (folder / "hosts").write_text("10.0.0.1 master m # the master\n\n10.0.0.2 w1\n")
    (folder / SITE_FILE).write_text(
        "binding_file: binding.json\nmaster_secret_file: /etc/secret\nclient_hosts_file: hosts\n"
        "client_jvm_options: -Da=b '-Dc=d e'\n"
    )
    site = HadoopSite.load(environ)
    assert site.binding_file == folder / "binding.json"
    assert site.master_secret_file == Path("/etc/secret")
    assert site.client_jvm_options == (f"-Djdk.net.hosts.file={folder / 'hosts'}", "-Da=b", "-Dc=d e")
    assert site.resourcemanager_webs() == ["http://10.0.0.1:8088"]
    (folder / SITE_FILE).write_text("client_jvm_options: [-Dx=1]\n")
    assert HadoopSite.load(environ).client_jvm_options == ("-Dx=1",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bindings: x", r"unknown key bindings; known: binding_file, .*master_secret_file"),
        ("[1, 2]", r"yarn-accel-site\.yaml: not a mapping of keys to values"),
        ("a: [", r"yarn-accel-site\.yaml: not YAML: line 1, column 5"),
        (
            "binding_file: a\nmaster_secret_file: b\nbinding_file: c\n",
            r"yarn-accel-site\.yaml: line 3: binding_file was given in line 1 already: keep one of the two",
        ),
        ("client_hosts_file: none", "client_hosts_file .*none cannot be read"),
    ],
)
def test_a_wrong_site_file_is_explained(environ: dict[str, str], text: str, message: str):
    (conf_dir(environ) / SITE_FILE).write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        HadoopSite.load(environ)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", r"yarn-accel-site\.yaml: not YAML: .*utf-8"),
        (b'client_jvm_options: "-Da=\'b"', r"client_jvm_options: a list or one string .*quotation"),
        (b"client_jvm_options: 5", r"client_jvm_options: a list or one string .*int found"),
        (b"client_hosts_file: latin1", r"client_hosts_file .*latin1 cannot be read: .*utf-8"),
    ],
)
def test_what_no_reader_takes_is_named(environ: dict[str, str], content: bytes, message: str):
    (conf_dir(environ) / "latin1").write_bytes(b"10.0.0.1 n\xe9\n")
    (conf_dir(environ) / SITE_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        SiteSettings.read(environ)


def test_an_empty_site_file_is_as_good_as_none(environ: dict[str, str]):
    (conf_dir(environ) / SITE_FILE).write_text("# nothing yet\n")
    assert SiteSettings.read(environ).binding_file is None


@pytest.mark.parametrize("encoding", ["utf-32", "nonesuch"])
def test_an_encoding_that_is_not_known_is_no_traceback(environ: dict[str, str], encoding: str):
    (conf_dir(environ) / "core-site.xml").write_text(f'<?xml version="1.0" encoding="{encoding}"?><a/>')
    with pytest.raises(ConfigError, match=r"core-site\.xml cannot be read as Hadoop configuration"):
        SiteSettings.read(environ)


def test_without_a_configuration_directory_there_is_a_cure(environ: dict[str, str], tmp_path: Path):
    with pytest.raises(StartupError, match=r"HADOOP_CONF_DIR is not set: .*yarn-accel cluster up"):
        HadoopSite.load({"JAVA_HOME": environ["JAVA_HOME"]})
    with pytest.raises(StartupError, match=r"has no core-site.xml"):
        HadoopSite.load({**environ, "HADOOP_CONF_DIR": str(tmp_path)})


def test_hadoop_home_alone_is_enough(environ: dict[str, str]):
    etc = Path(environ["HADOOP_HOME"]) / "etc" / "hadoop"
    etc.mkdir(parents=True)
    (etc / "core-site.xml").write_text(hadoop_xml(**{"fs.defaultFS": "hdfs://other"}))
    environ.pop("HADOOP_CONF_DIR")
    site = HadoopSite.load(environ)
    assert site.conf_dir == etc
    assert site.properties["fs.defaultFS"] == "hdfs://other"


def test_without_a_distribution_and_without_fetched_jars_there_is_a_cure(environ: dict[str, str]):
    environ.pop("HADOOP_HOME")
    with pytest.raises(StartupError, match=r"no Hadoop jars: .*HADOOP_HOME.*yarn-accel hadoop fetch"):
        HadoopSite.load(environ)


def test_fetched_jars_serve_where_there_is_no_distribution(environ: dict[str, str], tmp_path: Path):
    environ.pop("HADOOP_HOME")
    lib = tmp_path / "cache" / "cluster-accel" / f"hadoop-{HADOOP_VERSION}" / "lib"
    lib.mkdir(parents=True)
    for name in ("class-path.jar", "hadoop-streaming-3.4.2.jar"):
        (lib / name).write_bytes(b"12345")
    record = {"version": HADOOP_VERSION, "jars": {"hadoop-streaming-3.4.2.jar": 5}}
    (lib.parent / "install.json").write_text(json.dumps(record))
    install = HadoopSite.load(environ).install
    assert (install.version, install.n_jars, install.n_bytes) == (HADOOP_VERSION, 1, 5)
    assert install.streaming_jar == lib / "hadoop-streaming-3.4.2.jar"
    (lib / "hadoop-streaming-3.4.2.jar").write_bytes(b"1234")
    with pytest.raises(StartupError, match="no Hadoop jars"):
        HadoopSite.load(environ)


def test_missing_java_is_said(environ: dict[str, str], tmp_path: Path):
    with pytest.raises(StartupError, match="openjdk-17"):
        HadoopSite.load({**environ, "JAVA_HOME": str(tmp_path / "nowhere")})

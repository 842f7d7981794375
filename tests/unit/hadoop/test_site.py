import json
from pathlib import Path

import pytest

from yarn_accel.errors import ConfigError, StartupError
from yarn_accel.hadoop.java import HADOOP_VERSION
from yarn_accel.hadoop.site import SITE_FILE, HadoopSite, SiteSettings

RM, HISTORY = "yarn.resourcemanager.", "mapreduce.jobhistory."


def hadoop_xml(properties):
    rows = "".join(f"<property><name>{n}</name><value>{v}</value></property>" for n, v in properties.items())
    return f"<configuration>{rows}</configuration>"


def loaded(environ, yarn=None, mapred=None):
    """The site when these files of it say this."""
    for name, properties in (("yarn", yarn), ("mapred", mapred)):
        if properties is not None:
            (conf_dir(environ) / f"{name}-site.xml").write_text(hadoop_xml(properties))
    return HadoopSite.load(environ)


@pytest.fixture
def environ(tmp_path):
    """A configuration directory and a HADOOP_HOME, so that nothing is fetched."""
    files = {
        "conf/core-site.xml": hadoop_xml({"fs.defaultFS": "hdfs://master:9000"}),
        "conf/yarn-site.xml": hadoop_xml({f"{RM}hostname": "master"}),
        "home/share/hadoop/common/hadoop-common-3.4.9.jar": "",
        "home/share/hadoop/tools/lib/hadoop-streaming-3.4.9.jar": "",
        "jdk/bin/java": "#!/bin/sh\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "jdk/bin/java").chmod(0o755)
    folders = {
        "HADOOP_CONF_DIR": "conf",
        "HADOOP_HOME": "home",
        "JAVA_HOME": "jdk",
        "XDG_CACHE_HOME": "cache",
    }
    return {name: str(tmp_path / folder) for name, folder in folders.items()}


def conf_dir(environ):
    return Path(environ["HADOOP_CONF_DIR"])


def test_addresses_come_from_the_configuration_with_hadoops_defaults(environ):
    site = HadoopSite.load(environ)
    assert list(map(str, site.resourcemanagers().client)) == ["master:8032"]
    assert site.resourcemanager_webs() == ["http://master:8088"]
    assert site.history_web() == "http://localhost:19888"
    assert site.install.version == "3.4.9"
    assert site.binding_file is None


@pytest.mark.parametrize(
    ("key", "address", "web"),
    [
        ("address", "old:10020", "http://old:19888"),
        ("webapp.address", "hist:1234", "http://hist:1234"),
        ("webapp.address", "0.0.0.0:1234", "http://localhost:1234"),
    ],
)
def test_explicit_addresses_win(environ, key, address, web):
    assert loaded(environ, mapred={f"{HISTORY}{key}": address}).history_web() == web


@pytest.mark.parametrize(
    ("is_enabled", "addresses", "webs"),
    [
        ("true", ["a:8032", "b:8032"], ["http://a:8088", "http://b:99"]),
        ("false", ["one:8032"], ["http://one:8088"]),
    ],
)
def test_several_resourcemanagers_count_with_high_availability(environ, is_enabled, addresses, webs):
    """As Hadoop reads ``ha.rm-ids``: RPC and pages are of the same machines."""
    site = loaded(
        environ,
        {
            f"{RM}ha.enabled": is_enabled,
            f"{RM}ha.rm-ids": "rm1, rm2",
            f"{RM}hostname": "one",
            f"{RM}hostname.rm1": "a",
            f"{RM}hostname.rm2": "b",
            f"{RM}webapp.address.rm2": "b:99",
        },
    )
    assert list(map(str, site.resourcemanagers().client)) == addresses
    assert site.resourcemanager_webs() == webs


def test_pages_over_tls_follow_the_policy(environ):
    """The names stay, because a certificate is for a name."""
    (conf_dir(environ) / "hosts").write_text("10.0.0.1 master\n")
    (conf_dir(environ) / SITE_FILE).write_text("client_hosts_file: hosts\n")
    said = {f"{RM}hostname": "master", "yarn.http.policy": "https_only"}
    site = loaded(environ, said, {f"{HISTORY}http.policy": "HTTPS_ONLY", f"{HISTORY}address": "hist:10020"})
    assert site.resourcemanager_webs() == ["https://master:8090"]
    assert site.history_web() == "https://hist:19890"
    said |= {f"{RM}webapp.https.address": "0.0.0.0:8443", f"{RM}webapp.address": "master:99"}
    assert loaded(environ, said).resourcemanager_webs() == ["https://master:8443"]
    said["yarn.http.policy"] = "HTTP_ONLY"
    assert loaded(environ, said).resourcemanager_webs() == ["http://10.0.0.1:99"]


def test_a_damaged_address_is_named_with_its_file(environ):
    site = loaded(environ, {f"{RM}webapp.address": "http://rm:8088"})
    with pytest.raises(ConfigError, match=r"yarn-site\.xml: yarn\.resourcemanager\.webapp\.address"):
        site.resourcemanager_webs()


def test_the_site_file_is_honoured(environ):
    folder = conf_dir(environ)
    (folder / "hosts").write_text("10.0.0.1 master m # the master\n\n10.0.0.2 w1\n")
    (folder / SITE_FILE).write_text(
        "binding_file: binding.json\nmaster_secret_file: /etc/secret\nclient_hosts_file: hosts\n"
        "client_jvm_options: -Da=b '-Dc=d e'\nweb_ca_file: ca.pem\n"
    )
    site = HadoopSite.load(environ)
    assert (site.binding_file, site.master_secret_file) == (folder / "binding.json", Path("/etc/secret"))
    assert site.web_ca_file == folder / "ca.pem"
    assert site.client_jvm_options == (f"-Djdk.net.hosts.file={folder / 'hosts'}", "-Da=b", "-Dc=d e")
    assert site.resourcemanager_webs() == ["http://10.0.0.1:8088"]
    (folder / SITE_FILE).write_text("client_jvm_options: [-Dx=1]\n")
    assert HadoopSite.load(environ).client_jvm_options == ("-Dx=1",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"bindings: x", r"unknown key bindings; known: binding_file, .*master_secret_file"),
        (b"[1, 2]", r"yarn-accel-site\.yaml: not a mapping of keys to values"),
        (b"client_hosts_file: none", "client_hosts_file .*none cannot be read"),
        (b"\xff\xfe", r"yarn-accel-site\.yaml: not YAML: .*utf-8"),
        (b'client_jvm_options: "-Da=\'b"', r"client_jvm_options: a list or one string .*quotation"),
        (b"client_jvm_options: 5", r"client_jvm_options: a list or one string .*int found"),
        (b"client_hosts_file: latin1", r"client_hosts_file .*latin1 cannot be read: .*utf-8"),
    ],
)
def test_a_wrong_site_file_is_explained_in_one_line(environ, content, message):
    (conf_dir(environ) / "latin1").write_bytes(b"10.0.0.1 n\xe9\n")
    (conf_dir(environ) / SITE_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        SiteSettings.read(environ)
    assert "\n" not in str(caught.value)


def test_an_empty_site_file_is_as_good_as_none(environ):
    (conf_dir(environ) / SITE_FILE).write_text("# nothing yet\n")
    assert SiteSettings.read(environ).binding_file is None


@pytest.mark.parametrize("encoding", ["utf-32", "nonesuch"])
def test_an_encoding_that_is_not_known_is_no_traceback(environ, encoding):
    (conf_dir(environ) / "core-site.xml").write_text(f'<?xml version="1.0" encoding="{encoding}"?><a/>')
    with pytest.raises(ConfigError, match=r"core-site\.xml cannot be read as Hadoop configuration"):
        SiteSettings.read(environ)


def test_what_is_missing_has_a_cure(environ, tmp_path):
    for changes, cure in (
        ({"HADOOP_CONF_DIR": "", "HADOOP_HOME": ""}, r"HADOOP_CONF_DIR is not set: .*yarn-accel cluster up"),
        ({"HADOOP_CONF_DIR": str(tmp_path)}, r"has no core-site.xml"),
        ({"HADOOP_HOME": ""}, r"no Hadoop jars: .*HADOOP_HOME.*yarn-accel hadoop fetch"),
        ({"JAVA_HOME": str(tmp_path / "nowhere")}, "openjdk-17"),
    ):
        with pytest.raises(StartupError, match=cure):
            HadoopSite.load({**environ, **changes})


def test_hadoop_home_alone_is_enough(environ):
    etc = Path(environ["HADOOP_HOME"]) / "etc" / "hadoop"
    etc.mkdir(parents=True)
    (etc / "core-site.xml").write_text(hadoop_xml({"fs.defaultFS": "hdfs://other"}))
    environ.pop("HADOOP_CONF_DIR")
    site = HadoopSite.load(environ)
    assert (site.conf_dir, site.properties["fs.defaultFS"]) == (etc, "hdfs://other")


@pytest.mark.parametrize("version", [HADOOP_VERSION, "3.3.6"])
def test_fetched_jars_serve_where_there_is_no_distribution(environ, tmp_path, version):
    environ.pop("HADOOP_HOME")
    if version != HADOOP_VERSION:
        (Path(environ["HADOOP_CONF_DIR"]) / SITE_FILE).write_text(f"hadoop_version: {version}\n")
    lib = tmp_path / "cache" / "cluster-accel" / f"hadoop-{version}" / "lib"
    lib.mkdir(parents=True)
    for name in ("class-path.jar", "hadoop-streaming-3.4.2.jar"):
        (lib / name).write_bytes(b"12345")
    record = {"version": version, "jars": {"hadoop-streaming-3.4.2.jar": 5}}
    (lib.parent / "install.json").write_text(json.dumps(record))
    install = HadoopSite.load(environ).install
    assert (install.version, install.n_jars, install.n_bytes) == (version, 1, 5)
    assert install.streaming_jar == lib / "hadoop-streaming-3.4.2.jar"
    (lib / "hadoop-streaming-3.4.2.jar").write_bytes(b"1234")
    with pytest.raises(StartupError, match=r"no Hadoop jars.*hadoop fetch") as caught:
        HadoopSite.load(environ)
    assert ("--version 3.3.6" in str(caught.value)) == (version == "3.3.6")

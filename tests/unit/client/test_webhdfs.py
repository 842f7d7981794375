"""Against a small web server that answers as a NameNode and a DataNode do, redirects included."""

import json
import ssl
import threading
import traceback
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from yarn_accel.adapters.hadoop_rpc import Token, TokenFile, write_token_file
from yarn_accel.client.token_file import StoredToken
from yarn_accel.client.webhdfs import WebHdfs
from yarn_accel.errors import StorageError

#: The tokens of a job: of another NameNode, and of the one that `secure` serves.
TOKENS = [
    StoredToken(b"other", b"password of another", "HDFS_DELEGATION_TOKEN", "10.9.9.9:8020"),
    StoredToken(b"alice", b"password of alice" * 9, "HDFS_DELEGATION_TOKEN", "127.0.0.1:8020"),
]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, code, body=b"", **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(headers.get("Length", len(body))))
        self.end_headers()
        self.wfile.write(body)

    def fail(self, code, kind, message):
        remote = {"RemoteException": {"exception": kind, "message": message}}
        self.answer(code, json.dumps(remote).encode())

    def parts(self):
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.server.seen.append((self.command, parts.path, query))
        path = unquote(parts.path)
        return path.partition("/webhdfs/v1")[2] or path, query

    def here(self, path):
        query = urlsplit(self.path).query
        shown = "&".join(each for each in query.split("&") if each.startswith("delegation="))
        return f"{self.server.scheme}://127.0.0.1:{self.server.server_port}{path}?{shown}"

    def parse_request(self):
        """A standby refuses all; with a token expected everybody needs that one, and names nobody."""
        if not super().parse_request():
            return False
        query = parse_qs(urlsplit(self.path).query)
        if self.server.is_standby:
            self.fail(403, "StandbyException", "Operation category WRITE is not supported in state standby")
            return False
        if self.server.token and (query.get("delegation") != [self.server.token] or "user.name" in query):
            self.fail(401, "InvalidToken", f"token ({query.get('delegation')}) can't be found in cache")
            return False
        return True

    def do_GET(self):
        path, query = self.parts()
        files = self.server.files
        if path.startswith("/datanode"):
            self.answer(200, files[path[len("/datanode") :]])
        elif path == "/standby":
            self.fail(403, "StandbyException", "Operation category READ is not supported\n\tat org.apache...")
        elif path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"only this")
            self.close_connection = True
        elif path in files and query["op"] == "OPEN":
            self.answer(307, Location=self.here("/datanode" + quote(path)))
        else:
            self.fail(404, "FileNotFoundException", f"File does not exist: {path}\n\tat org.apache...")

    def do_PUT(self):
        path, query = self.parts()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        files = self.server.files
        if path.startswith("/datanode"):
            files[path[len("/datanode") :]] = body
            self.answer(201)
        elif query["op"] == "CREATE":
            self.server.sent_to_namenode += len(body)
            self.answer(307, Location=self.here("/datanode" + quote(path)))
        elif query["op"] == "RENAME" and self.server.is_rename_refused:
            self.fail(403, "AccessControlException", "Permission denied: user=joe")
        else:
            assert query["renameoptions"] == "OVERWRITE"
            files[query["destination"]] = files.pop(path)
            self.answer(200)

    def do_DELETE(self):
        path, _ = self.parts()
        del self.server.files[path]
        self.answer(200, b'{"boolean": true}')


@contextmanager
def serving(context=None, token=""):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.scheme, server.token, server.is_standby = "https" if context else "http", token, False
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.files, server.seen, server.sent_to_namenode, server.is_rename_refused = {}, [], 0, False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server():
    with serving() as running:
        yield running


@pytest.fixture
def hdfs(server):
    address = f"127.0.0.1:{server.server_port}"
    return WebHdfs(environ={"dfs_namenode_http_address": address, "HADOOP_USER_NAME": "joe"})


def test_what_is_written_can_be_read(server, hdfs):
    content = bytes(range(256)) * 1000
    hdfs.create("hdfs://master:8020/out/a b%20c#.npz", content)
    assert server.files == {"/out/a b%20c#.npz": content}
    assert hdfs.open("hdfs://master:8020/out/a b%20c#.npz") == content
    assert server.sent_to_namenode == 0
    users = {query.get("user.name") for _, path, query in server.seen if not path.startswith("/datanode")}
    assert users == {"joe"}


def test_a_file_is_uploaded_to_its_name_as_a_stream(server, hdfs, tmp_path):
    (tmp_path / "spool").write_bytes(bytes(range(256)) * 1000)
    hdfs.upload("hdfs://master:8020/out/_temporary/attempt_1/factors", tmp_path / "spool")
    assert server.files == {"/out/_temporary/attempt_1/factors": bytes(range(256)) * 1000}
    assert server.sent_to_namenode == 0
    assert [query.get("op") for _, _, query in server.seen] == ["CREATE", None]


def test_a_refused_rename_leaves_no_temporary_file(server, hdfs):
    server.is_rename_refused = True
    with pytest.raises(StorageError, match="Permission denied: user=joe") as caught:
        hdfs.create("hdfs://master/out/x", b"content")
    assert not caught.value.transient
    assert server.files == {}


@pytest.mark.parametrize(
    ("path", "said", "is_transient"),
    [
        ("nope", "File does not exist: /nope", False),
        ("standby", "StandbyException", True),
        ("cut", "cut short after 9 bytes", True),
    ],
)
def test_a_failure_says_what_it_is_and_whether_to_try_again(hdfs, path, said, is_transient):
    with pytest.raises(StorageError, match=said) as caught:
        hdfs.open(f"hdfs://master/{path}")
    assert caught.value.transient == is_transient
    assert "org.apache" not in str(caught.value)


def test_a_file_over_the_limit(server, hdfs):
    server.files["/big"] = b"x" * 1000
    with pytest.raises(StorageError, match="limit of 999"):
        hdfs.open("hdfs://master/big", max_bytes=999)
    assert hdfs.open("hdfs://master/big", max_bytes=1000) == b"x" * 1000


def test_nobody_there_is_transient():
    with serving() as gone:
        port = gone.server_port
    with pytest.raises(StorageError, match="did not answer") as caught:
        WebHdfs(f"127.0.0.1:{port}").open("hdfs://master/x")
    assert caught.value.transient


def test_a_wildcard_address_takes_the_host_of_the_uri(server):
    server.files["/x"] = b"1"
    assert WebHdfs(f"0.0.0.0:{server.server_port}").open("hdfs://127.0.0.1:8020/x") == b"1"


@pytest.mark.parametrize("uri", ["s3://bucket/x", "hdfs://host", "relative/path"])
def test_other_uris_are_refused(uri):
    with pytest.raises(StorageError, match=r"only hdfs|absolute"):
        WebHdfs("127.0.0.1:1").open(uri)


def test_without_an_address_the_cure_is_named():
    with pytest.raises(StorageError, match="dfs_namenode_http_address"):
        WebHdfs(environ={}).open("hdfs:///x")


# ---- with two NameNodes


@pytest.fixture
def pair(server):
    """Two NameNodes with the same files, and the client of their name service; tests say which is away."""
    with serving() as other:
        other.files = server.files
        environ = {"fs_defaultFS": "hdfs://my-site", "dfs_ha_namenodes_my_site": "nn1, nn-2"}
        for name, each in (("nn1", server), ("nn_2", other)):
            environ[f"dfs_namenode_http_address_my_site_{name}"] = f"127.0.0.1:{each.server_port}"
        yield [server, other], environ


@pytest.mark.parametrize("active", [0, 1])
@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("root", ["hdfs://my-site", "hdfs://"])
def test_the_active_namenode_is_found(pair, active, is_gone, root):
    servers, environ = pair
    if is_gone:
        name = ("nn_2", "nn1")[active]
        environ[f"dfs_namenode_http_address_my_site_{name}"] = "127.0.0.1:1"
    servers[1 - active].is_standby = True
    hdfs = WebHdfs(environ=environ)
    hdfs.create(f"{root}/out/x", b"content")
    assert hdfs.open(f"{root}/out/x") == b"content"
    with pytest.raises(StorageError, match="File does not exist: /nope") as caught:
        hdfs.open(f"{root}/nope")
    assert not caught.value.transient


def test_without_an_active_namenode_another_try_may_help(pair):
    servers, environ = pair
    for each in servers:
        each.is_standby = True
    for act in (WebHdfs.open, lambda hdfs, uri: hdfs.create(uri, b"1")):
        with pytest.raises(StorageError, match="StandbyException") as caught:
            act(WebHdfs(environ=environ), "hdfs://my-site/x")
        assert caught.value.transient
    environ["dfs_namenode_http_address_my_site_nn1"] = "127.0.0.1:1"
    with pytest.raises(StorageError, match="did not answer"):
        WebHdfs(environ=environ).open("hdfs://my-site/x")


# ---- with Kerberos


@pytest.fixture
def secure(certificate):
    """A NameNode and its DataNodes over TLS, which take the token for 127.0.0.1 alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with serving(context, TOKENS[1].url_form()) as running:
        running.handle_error = lambda *_: None  # A client that refuses the certificate hangs up.
        yield running


@pytest.fixture
def task(secure, certificate, tmp_path):
    """The environment of a task on such a cluster."""
    tokens = {str(number): Token(*token) for number, token in enumerate(TOKENS)}
    (tmp_path / "tokens").write_bytes(write_token_file(TokenFile(tokens)))
    return {
        "hadoop_security_authentication": "kerberos",
        "dfs_http_policy": "HTTPS_ONLY",
        "dfs_namenode_https_address": f"127.0.0.1:{secure.server_port}",
        "fs_defaultFS": "hdfs://127.0.0.1:8020",
        "HADOOP_USER_NAME": "joe",
        "HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "tokens"),
        "ACCEL_CA_FILE": str(certificate / "cert.pem"),
    }


@pytest.mark.parametrize("root", ["hdfs://127.0.0.1:8020", "hdfs://localhost", "hdfs://"])
def test_with_kerberos_the_jobs_token_goes_along_over_tls(secure, task, tmp_path, root):
    (tmp_path / "spool").write_bytes(b"spooled")
    hdfs = WebHdfs(environ=task)
    hdfs.create(f"{root}/out/x", b"content")
    hdfs.upload(f"{root}/out/y", tmp_path / "spool")
    assert secure.files == {"/out/x": b"content", "/out/y": b"spooled"}
    assert hdfs.open(f"{root}/out/x") == b"content"


@pytest.mark.parametrize(
    ("changed", "uri", "said"),
    [
        ({}, "hdfs:///nope", "File does not exist"),
        (
            {
                "fs_defaultFS": "hdfs://site",
                "dfs_ha_namenodes_site": "a",
                "dfs_namenode_https_address_site_a": "h:1",
            },
            "hdfs:///x",
            "no HDFS token for site",
        ),
        ({"HADOOP_TOKEN_FILE_LOCATION": ""}, "hdfs:///x", "no token: HADOOP_TOKEN_FILE_LOCATION"),
        ({"fs_defaultFS": "hdfs://127.0.0.1:9000"}, "hdfs:///x", "no HDFS token for 127.0.0.1:9000"),
        ({"fs_defaultFS": "hdfs://10.9.9.9:8020"}, "hdfs:///x", "can't be found in cache"),
        ({"ACCEL_CA_FILE": ""}, "hdfs:///x", "certificate of WebHDFS is not accepted.*ACCEL_CA_FILE"),
        ({"dfs_namenode_https_address": "127.0.0.1:1"}, "hdfs:///x", "WebHDFS did not answer"),
        ({"dfs_namenode_https_address": "[:1"}, "hdfs:///x", "cannot be read|did not answer"),
        ({"dfs_http_policy": "HTTP_ONLY", "dfs_namenode_http_address": "h:1"}, "hdfs:///x", "without TLS"),
    ],
)
def test_no_failure_shows_the_token(task, changed, uri, said):
    with pytest.raises(StorageError, match=said) as caught:
        WebHdfs(environ={**task, **changed}).open(uri)
    shown = "".join(traceback.format_exception(caught.type, caught.value, caught.tb))
    for token in TOKENS:
        assert token.url_form()[:40] not in shown
        assert "password of" not in shown


@pytest.mark.parametrize(
    "act", [lambda hdfs: hdfs.open("hdfs:///x"), lambda hdfs: hdfs.create("hdfs:///x", b"1")]
)
def test_a_redirect_does_not_lead_out_of_tls(secure, task, act):
    secure.files["/x"] = b"1"
    secure.scheme = "http"
    with pytest.raises(StorageError, match="to a DataNode without TLS"):
        act(WebHdfs(environ=task))


def test_a_file_of_authorities_that_cannot_be_read(task):
    with pytest.raises(StorageError, match=r"ACCEL_CA_FILE .*cannot be read"):
        WebHdfs(environ={**task, "ACCEL_CA_FILE": task["HADOOP_TOKEN_FILE_LOCATION"]})


def test_tls_without_kerberos(secure, task):
    secure.token = ""
    secure.files["/x"] = b"1"
    assert WebHdfs(environ={**task, "hadoop_security_authentication": "simple"}).open("hdfs:///x") == b"1"
    assert secure.seen[0][2]["user.name"] == "joe"

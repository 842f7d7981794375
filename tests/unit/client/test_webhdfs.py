"""Against a small web server that answers as a NameNode and a DataNode do, redirects included."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from yarn_accel.client.webhdfs import WebHdfs
from yarn_accel.errors import StorageError


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
        return f"http://127.0.0.1:{self.server.server_port}{path}"

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
def serving():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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
    return WebHdfs(
        environ={"dfs_namenode_http_address": f"127.0.0.1:{server.server_port}", "HADOOP_USER_NAME": "joe"}
    )


def test_what_is_written_can_be_read(server, hdfs):
    content = bytes(range(256)) * 1000
    hdfs.create("hdfs://master:8020/out/a b%20c#.npz", content)
    assert server.files == {"/out/a b%20c#.npz": content}
    assert hdfs.open("hdfs://master:8020/out/a b%20c#.npz") == content
    assert server.sent_to_namenode == 0
    assert all(
        query.get("user.name") == "joe" for _, path, query in server.seen if not path.startswith("/datanode")
    )


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


def test_a_missing_file_is_final_and_says_which(hdfs):
    with pytest.raises(StorageError, match="File does not exist: /nope") as caught:
        hdfs.open("hdfs://master/nope")
    assert not caught.value.transient
    assert "org.apache" not in str(caught.value)


def test_a_namenode_in_standby_is_transient(hdfs):
    with pytest.raises(StorageError, match="StandbyException") as caught:
        hdfs.open("hdfs://master/standby")
    assert caught.value.transient


def test_a_short_answer_is_noticed(hdfs):
    with pytest.raises(StorageError, match="cut short after 9 bytes") as caught:
        hdfs.open("hdfs://master/cut")
    assert caught.value.transient


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

"""Uploads by content, and what `yarn-accel launch clean` removes of them, and what it must not."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.launch.yarn import rm_client
from yarn_accel.cli import root
from yarn_accel.errors import StartupError
from yarn_accel.hadoop.rm_client import RmClient
from yarn_accel.launch import bootstrap, uploads
from yarn_accel.launch.bootstrap import node_facts
from yarn_accel.launch.config import LaunchConfig
from yarn_accel.launch.packing import Environment, Requirement
from yarn_accel.launch.staging import stage
from yarn_accel.launch.uploads import look
from yarn_accel.storage import Store


@pytest.fixture
def folder_uri(tmp_path):
    return f"file://{tmp_path}/staging"


def test_a_resource_is_what_the_storage_says_of_the_file(pack_small, folder_uri):
    archive = pack_small()
    resource = uploads.upload(Store(), archive, folder_uri)
    assert (resource.uri, resource.name) == (f"{folder_uri}/{archive.name}", archive.name)
    assert uploads.ARCHIVE_PATTERN.fullmatch(resource.name)
    assert resource.n_bytes == archive.stat().st_size
    stamp = Store().stamp(resource.uri)
    assert resource.modified_ms == stamp.modified // 1_000_000
    assert Store().read_bytes(resource.uri, 1 << 20) == archive.read_bytes()


def test_it_is_uploaded_once(pack_small, folder_uri):
    archive = pack_small()
    first = uploads.upload(Store(), archive, folder_uri)
    stamp = Store().stamp(first.uri)
    assert uploads.upload(Store(), archive, f"{folder_uri}/") == first
    assert Store().stamp(first.uri) == stamp


def test_a_file_of_another_length_is_replaced(pack_small, folder_uri):
    archive = pack_small()
    Store().write_atomic(f"{folder_uri}/{archive.name}", [b"half"])
    resource = uploads.upload(Store(), archive, folder_uri)
    assert Store().read_bytes(resource.uri, 1 << 20) == archive.read_bytes()


def test_what_another_start_uploaded_meanwhile_stays(pack_small, folder_uri):
    archive = pack_small()

    class Slow(Store):
        def write_atomic(self, uri, parts):
            Store().write_atomic(uri, [archive.read_bytes()])
            self.stamp_of_other = Store().stamp(uri)
            return super().write_atomic(uri, parts)

    store = Slow()
    resource = uploads.upload(store, archive, folder_uri)
    assert Store().stamp(resource.uri) == store.stamp_of_other
    assert [uri.rpartition("/")[2] for uri in Store().list(folder_uri)] == [archive.name]


def test_an_archive_that_is_gone_is_said(pack_small, folder_uri):
    archive = pack_small()
    archive.unlink()
    with pytest.raises(StartupError, match="pack the environment again"):
        uploads.upload(Store(), archive, folder_uri)


def test_the_bootstrap_is_uploaded_by_its_content_under_one_name(folder_uri):
    resource = uploads.upload_script(Store(), folder_uri)
    assert resource.name == uploads.SCRIPT_NAME
    assert Store().read_bytes(resource.uri, 1 << 20) == Path(bootstrap.__file__).read_bytes()
    assert uploads.upload_script(Store(), folder_uri) == resource


class Storage:
    """A staging folder on this machine."""

    def __init__(self, folder):
        self.folder = folder
        self.uri = f"file://{folder}"
        self.shared = folder / "environments"
        self.shared.mkdir(parents=True)

    def put(self, name, age):
        """A shared file; the larger its age, the older."""
        path = self.shared / name
        path.write_bytes(b"content")
        os.utime(path, (1_700_000_000 - age, 1_700_000_000 - age))
        return name

    def archive(self, digit, age):
        return self.put(f"accel-environment-{digit * 32}.zip", age)

    def script(self, digit, age):
        return self.put(f"accel-start-{digit * 32}.py", age)

    def application(self, number, *names):
        """The folder of an application that uses these files."""
        folder = self.folder / "applications" / f"application_1700000000000_{number:04d}"
        folder.mkdir(parents=True)
        (folder / uploads.USES_FILE).write_text(uploads.uses_document(names))
        return folder

    def look(self, n_keep=1):
        return look(Store(), self.uri, n_keep)

    def names(self):
        return {path.name for path in self.shared.iterdir()}


@pytest.fixture
def storage(tmp_path):
    return Storage(tmp_path / "staging")


def test_what_an_application_names_stays_however_old(storage):
    used, newest = storage.archive("a", 300), storage.archive("c", 100)
    storage.archive("b", 200)
    old_script, script = storage.script("d", 300), storage.script("e", 100)
    storage.application(1, used, old_script)
    survey = storage.look()
    assert [len(each.used_by) for each in survey.found] == [0, 0, 1, 0, 1]
    assert uploads.remove(Store(), survey) == 1
    assert storage.names() == {used, newest, old_script, script}


def test_the_newest_stay_for_the_next_start(storage):
    names = [storage.archive(digit, age) for age, digit in enumerate("abc")]
    assert uploads.remove(Store(), storage.look(n_keep=2)) == 1
    assert storage.names() == set(names[:2])
    assert uploads.remove(Store(), storage.look(n_keep=0)) == 2


@pytest.mark.parametrize("said", [None, "", "[]", "{}", '{"uses": "accel"}'])
def test_nothing_is_removed_while_an_application_does_not_say(storage, said):
    """An older version started it, or its file is damaged: it may use anything."""
    storage.archive("a", 300)
    silent = storage.application(1)
    (silent / uploads.USES_FILE).unlink()
    if said is not None:
        (silent / uploads.USES_FILE).write_text(said)
    survey = storage.look(n_keep=0)
    with pytest.raises(StartupError, match=r"_0001 does not say .*yarn-accel stop"):
        uploads.remove(Store(), survey)
    assert len(storage.names()) == 1


def test_what_is_not_ours_is_not_looked_at(storage):
    (storage.shared / "_tmp").mkdir()
    for name in ("notes.txt", "accel-environment-1.zip", f"accel-environment-{'a' * 32}.zip.bak"):
        storage.put(name, 1)
    assert storage.look(n_keep=0) == uploads.Survey((), ())


def test_what_a_killed_upload_left_goes_unless_it_may_still_be_under_way(storage):
    uploaded, uploading = storage.archive("a", 1), f"accel-environment-{'b' * 32}.zip"
    left = [storage.put(f".{name}.{'0' * 32}.tmp", 1) for name in (uploaded, uploading)]
    forgotten = storage.put(f".accel-environment-{'c' * 32}.zip.{'0' * 32}.tmp", 1)
    foreign = storage.put(f".notes.txt.{'0' * 32}.tmp", 1)
    storage.application(1, uploaded, uploading)
    assert uploads.remove(Store(), storage.look()) == 2
    assert storage.names() == {uploaded, left[1], foreign}
    assert forgotten not in storage.names()


def test_where_nothing_was_started_there_is_nothing(tmp_path):
    assert look(Store(), f"file://{tmp_path}/nowhere", 1) == uploads.Survey((), ())


def test_a_start_names_what_it_uses_before_it_looks_for_it(storage, tmp_path, monkeypatch):
    """Else what is there already might be removed between the look and the start."""
    path = tmp_path / f"accel-environment-{'0a' * 16}.zip"
    path.write_bytes(b"zip")
    packed = Environment(path, "0a" * 16, Requirement(**node_facts()), 3, 10, 1)
    config = LaunchConfig.model_validate({"environment": {"staging_uri": storage.uri}})
    store, looked = Store(), []

    def exists(uri, real=store.exists):
        if "/environments/" in uri:
            looked.append(list((storage.folder / "applications").rglob(uploads.USES_FILE)))
        return real(uri)

    monkeypatch.setattr(store, "exists", exists)
    stage(rm_client(tmp_path), store, config, packed, "application_1700000000000_0007")
    assert looked
    assert all(looked)
    survey = storage.look(n_keep=0)
    assert {Path(each.uri).name: each.used_by for each in survey.found} == {
        path.name: ("application_1700000000000_0007",),
        uploads.stored_script_name(): ("application_1700000000000_0007",),
    }
    assert not survey.unused


def test_the_command_lists_and_removes_only_on_request(storage, tmp_path, monkeypatch):
    monkeypatch.setattr(RmClient, "load", staticmethod(lambda: rm_client(tmp_path)))
    used, old = storage.archive("a", 300), storage.archive("b", 200)
    newest = storage.archive("c", 100)
    storage.application(1, used)
    config = tmp_path / "launch.yaml"
    config.write_text(f"environment: {{staging_uri: '{storage.uri}'}}\n")
    words = ["launch", "clean", "--config", str(config)]
    reported = CliRunner().invoke(root, words).output.splitlines()
    assert [line.partition("(0.0 MB): ")[2] for line in reported[:3]] == [
        "kept",
        "unused",
        "used by application_1700000000000_0001",
    ]
    assert reported[3] == "1 unused (0.0 MB); --apply removes them"
    assert storage.names() == {used, old, newest}
    assert CliRunner().invoke(root, [*words, "--apply"]).output.endswith("removed 1 (0.0 MB)\n")
    assert storage.names() == {used, newest}

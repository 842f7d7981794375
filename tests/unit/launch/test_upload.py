from __future__ import annotations

from pathlib import Path

import pytest

from yarn_accel.errors import StartupError
from yarn_accel.launch import bootstrap
from yarn_accel.launch.upload import ARCHIVE_PATTERN, SCRIPT_NAME, upload, upload_script
from yarn_accel.storage import Store


@pytest.fixture
def folder_uri(tmp_path) -> str:
    return f"file://{tmp_path}/staging"


def test_a_resource_is_what_the_storage_says_of_the_file(pack_small, folder_uri) -> None:
    archive = pack_small()
    resource = upload(Store(), archive, folder_uri)
    assert resource.uri == f"{folder_uri}/{archive.name}"
    assert resource.name == archive.name
    assert ARCHIVE_PATTERN.fullmatch(resource.name)
    assert resource.n_bytes == archive.stat().st_size
    stamp = Store().stamp(resource.uri)
    assert resource.modified_ms == stamp.modified // 1_000_000
    assert Store().read_bytes(resource.uri, 1 << 20) == archive.read_bytes()


def test_it_is_uploaded_once(pack_small, folder_uri) -> None:
    archive = pack_small()
    first = upload(Store(), archive, folder_uri)
    stamp = Store().stamp(first.uri)
    assert upload(Store(), archive, f"{folder_uri}/") == first
    assert Store().stamp(first.uri) == stamp


def test_a_file_of_another_length_is_replaced(pack_small, folder_uri) -> None:
    archive = pack_small()
    Store().write_atomic(f"{folder_uri}/{archive.name}", [b"half"])
    resource = upload(Store(), archive, folder_uri)
    assert Store().read_bytes(resource.uri, 1 << 20) == archive.read_bytes()


def test_an_archive_that_is_gone_is_said(pack_small, folder_uri) -> None:
    archive = pack_small()
    archive.unlink()
    with pytest.raises(StartupError, match="pack the environment again"):
        upload(Store(), archive, folder_uri)


def test_the_bootstrap_is_uploaded_by_its_content_under_one_name(folder_uri) -> None:
    resource = upload_script(Store(), folder_uri)
    assert resource.name == SCRIPT_NAME
    assert Store().read_bytes(resource.uri, 1 << 20) == Path(bootstrap.__file__).read_bytes()
    assert upload_script(Store(), folder_uri) == resource

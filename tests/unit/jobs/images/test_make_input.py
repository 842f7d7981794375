import io
from contextlib import contextmanager

import pytest
from PIL import Image

from jobs.images.make_input import (
    ALL_PHOTOGRAPHS,
    PHOTOGRAPHS,
    PatchPlan,
    Photograph,
    patches,
    photograph_of,
    purity,
    write_files,
)
from yarn_accel.client.sequence_file import SequenceFileReader
from yarn_accel.errors import StartupError


class Folder:
    def __init__(self):
        self.files = {}

    @contextmanager
    def open(self, number):
        stream = io.BytesIO()
        yield stream
        self.files[number] = stream.getvalue()

    def records(self):
        return [
            record
            for number in sorted(self.files)
            for record in SequenceFileReader(io.BytesIO(self.files[number]))
        ]


def test_all_photographs_are_there():
    for photograph in ALL_PHOTOGRAPHS:
        with Image.open(photograph.locate()) as picture:
            assert min(picture.size) >= 300


def test_patches_come_from_their_photograph_and_from_many_places():
    found = list(patches(PatchPlan(40, side_px=48)))
    assert len({encoded for _, encoded in found}) == 40
    for i, (key, encoded) in enumerate(found):
        assert key == f"{PHOTOGRAPHS[i % len(PHOTOGRAPHS)].name}/{i:06d}"
        with Image.open(io.BytesIO(encoded)) as patch:
            assert patch.size == (48, 48)


def test_a_patch_depends_on_seed_and_number_only():
    whole = list(patches(PatchPlan(30)))
    assert list(patches(PatchPlan(30), range(10, 20))) == whole[10:20]
    assert list(patches(PatchPlan(20))) == whole[:20]
    assert list(patches(PatchPlan(30, seed=1))) != whole


def test_files_share_the_patches_and_keep_all_of_them():
    plan, folder, said = PatchPlan(50, n_broken=3), Folder(), []
    n_bytes = write_files(plan, 4, folder.open, said.append, sync_interval_bytes=1000)
    assert folder.records() == list(patches(plan))
    assert n_bytes == sum(len(content) for content in folder.files.values())
    assert len(said) == len(folder.files) == 4
    for content in folder.files.values():
        keys = [key for key, _ in SequenceFileReader(io.BytesIO(content))]
        assert {photograph_of(key) for key in keys} >= {photograph.name for photograph in PHOTOGRAPHS}


def test_broken_patches_are_cut_in_the_middle():
    *_, (key, encoded) = patches(PatchPlan(2, n_broken=1))
    assert key == "broken/000002"
    with Image.open(io.BytesIO(encoded)) as picture, pytest.raises(OSError, match="truncated"):
        picture.load()


def test_a_missing_photograph_names_the_cure():
    for package in ("skimage", "no_such_package"):
        with pytest.raises(StartupError, match="pip install"):
            Photograph("x", package, "data/nothing.png").locate()


def test_patches_larger_than_a_photograph():
    with pytest.raises(StartupError, match="patches of 5000 do not fit"):
        next(patches(PatchPlan(1, side_px=5000)))


def test_purity_counts_the_most_frequent_photograph_of_each_cluster():
    index = {"a/1": 0, "a/2": 0, "b/3": 0, "b/4": 1, "b/5": 1, "c/6": 1}
    found = purity(index)
    assert (found.share, found.n_images, found.n_clusters) == (4 / 6, 6, 2)
    assert found.largest_photograph == 0.5
    assert found.by_photograph == {"a": 1.0, "b": 2 / 3, "c": 0.0}


def test_purity_of_perfect_and_of_no_clusters():
    assert purity({"a/1": 3, "b/2": 7, "b/3": 7}).share == 1.0
    assert purity({}).share == 0.0

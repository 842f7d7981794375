"""``jobs embed``: a model in the place of histograms, with the same records in and out."""

import io

import numpy as np
import pytest
from PIL import Image

from jobs.embed.cli import filters, put_model, result_table, run_both
from jobs.images.job import ImagesJob, run_images
from jobs.images.make_input import PatchPlan, purity, write_files
from jobs.runners.local import InlineRunner
from yarn_accel.client import connect
from yarn_accel.storage import Store


def silent(line):
    """Nobody listens."""


@pytest.fixture(scope="module")
def image_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    plan = PatchPlan(n_images=96, side_px=40, n_broken=2)
    write_files(plan, 2, lambda number: (folder / f"part-{number}.seq").open("wb"), silent)
    return tuple((folder / f"part-{number}.seq").as_uri() for number in range(2))


@pytest.fixture
def runner(tmp_path):
    with InlineRunner(tmp_path / "work") as made:
        yield made


@pytest.fixture
def model(tmp_path):
    return put_model(Store(), (tmp_path / "model.onnx").as_uri())


def test_the_filters_are_a_cosine_transform():
    found = filters()
    brightness = found[:63].sum(axis=1).reshape(63, 64)
    products = brightness @ brightness.T
    assert np.allclose(products, np.diag(np.diag(products)), atol=1e-6)
    assert np.allclose(found.sum(axis=(2, 3)), 0, atol=1e-5), "an even patch has no texture"


def test_an_even_image_is_its_colour(model):
    buffer = io.BytesIO()
    Image.new("RGB", (50, 50), (255, 0, 51)).save(buffer, "PNG")
    with connect("inline") as accel:
        found = accel.infer(model, [buffer.getvalue()], image_size=[64, 64])
    row = found.outputs["embedding"][0]
    assert np.allclose(row[-3:], [0.5, 0, 0.1], atol=1e-5)
    assert np.allclose(row[:-3], 0, atol=1e-2)


def test_images_are_clustered_by_both(runner, image_files, model):
    both = run_both(runner, Store(), image_files, 98, ImagesJob(model=model), silent)
    for found in both:
        assert [(each.key, each.code) for each in found.outcome.rejects] == [
            ("broken/000096", "broken-image"),
            ("broken/000097", "broken-image"),
        ]
        counters = found.outcome.counters
        assert counters["records_in"] == counters["done"] + counters["rejected"] == 98
        assert purity(found.clustering.index).share > 0.5
    assert both[0].clustering.index != both[1].clustering.index
    assert result_table(both).row_count == 5


def test_a_bad_model_rejects_every_image_with_one_reason(runner, image_files, tmp_path):
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"no model")
    job = ImagesJob(model=path.as_uri())
    found = run_images(runner, Store(), image_files, 98, job, silent)
    assert not found.outcome.results
    assert {each.code for each in found.outcome.rejects} == {"not-onnx"}
    assert found.outcome.counters["records_in"] == found.outcome.counters["rejected"] == 98

"""The whole job in this process: typed bytes in, lines out; reference operations stand in for a server."""

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from jobs.images import clustering
from jobs.images.clustering import ClusterOptions, reduce_features
from jobs.images.make_input import DEFAULT_CLUSTERS, PatchPlan, patches, purity
from jobs.images.mapper import ImagesOptions, map_records
from jobs.images.rows import parse_lines
from yarn_accel.client.current_attempt import CurrentAttempt
from yarn_accel.client.fallback import LocalExecutor
from yarn_accel.client.sequence_file import SequenceFileReader
from yarn_accel.client.typed_bytes import TypedBytesReader, encode_typed_pair
from yarn_accel.errors import AccelError, RejectedError, RemoteProtocolError, UnavailableError

ATTEMPT = CurrentAttempt.from_environ({})
SAMPLE = Path(clustering.__file__).parent / "sample"


class Server:
    """Answers calls with the reference operations, the last of each window first, and remembers them."""

    def __init__(self):
        self.calls = []
        self._executor = LocalExecutor()

    def __call__(self, calls):
        waiting = []
        for call in calls:
            self.calls.append(call)
            waiting.append(call)
            if len(waiting) == 3:
                yield self._answer(waiting.pop())
        while waiting:
            yield self._answer(waiting.pop())

    def _answer(self, call):
        try:
            return call, self._executor.call(call)
        except AccelError as error:
            return call, error


class Down:
    def __call__(self, calls):
        for call in calls:
            yield call, UnavailableError("nobody answers")


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def counters():
    return Counter()


@pytest.fixture
def count(counters):
    def add(name, amount):
        counters[name] += amount

    return add


def piped(pairs):
    """The pairs as they arrive on standard input."""
    return TypedBytesReader(io.BytesIO(b"".join(encode_typed_pair(key, value) for key, value in pairs)))


def clustering_of(lines):
    return parse_lines(f"{tag}\t{rest}\n" for tag, rest in lines)


def mapped(pairs, server, count, **options):
    return list(map_records(piped(pairs), server, ATTEMPT, ImagesOptions(**options), count))


def reduced(pairs, server, count, k=DEFAULT_CLUSTERS):
    return clustering_of(reduce_features(piped(pairs), server, ATTEMPT, ClusterOptions(k), count))


@pytest.fixture(scope="module")
def images():
    return list(patches(PatchPlan(160, n_broken=3)))


@pytest.fixture(scope="module")
def features(images):
    return mapped(images, Server(), lambda name, amount: None)


def test_every_record_in_is_done_or_rejected(images, server, counters, count):
    pairs = mapped(images, server, count, batch_images=20)
    assert sorted(key for key, _ in pairs) == sorted(key for key, _ in images)
    assert counters["records_in"] == 163 == counters["done"] + counters["rejected"]
    assert counters["rejected"] == 3
    assert counters["sent"] == len(server.calls) == 9
    assert counters["cpu_fallback"] == counters["done"]
    assert counters["bytes"] == sum(len(image) for _, image in images)


def test_batches_are_bounded_by_count_and_by_bytes(images, server, count):
    mapped(images, server, count, batch_images=50)
    assert [call.inputs[1].spec.shape[0] for call in server.calls] == [50, 50, 50, 13]
    server.calls.clear()
    mapped(images, server, count, batch_bytes=100_000)
    sizes = [call.inputs[0].spec.nbytes for call in server.calls]
    assert all(100_000 <= size < 150_000 for size in sizes[:-1])


def test_keys_of_requests_are_the_same_in_every_attempt_and_unique(images, count):
    first, second = Server(), Server()
    mapped(images, first, count, batch_images=20)
    mapped(images, second, count, batch_images=20)
    keys = [call.key for call in first.calls]
    assert keys == [call.key for call in second.calls]
    assert len(set(keys)) == len(keys)


def test_the_size_of_the_batches_does_not_matter(images, features, server, count):
    assert sorted(mapped(images, server, count, batch_images=7)) == sorted(features)


def test_records_that_are_no_bytes_or_too_large_are_rejected(images, server, counters, count):
    stream = io.BytesIO(
        b"".join(encode_typed_pair(*pair) for pair in [*images[:2], ("text", "x"), ("big", b"x" * 60_000)])
    )
    records = TypedBytesReader(stream, max_bytes=50_000)
    pairs = dict(map_records(records, server, ATTEMPT, ImagesOptions(), count))
    assert pairs["text"] == b"Rwrong-type: expected bytes, found str"
    assert pairs["big"].startswith(b"Rtoo-large: typed bytes: value at offset")
    assert (counters["records_in"], counters["done"], counters["rejected"]) == (4, 2, 2)


def test_nothing_but_bad_records_needs_no_server(count, counters):
    pairs = list(map_records(piped([("a", "x"), ("b", 1)]), Down(), ATTEMPT, ImagesOptions(), count))
    assert [key for key, _ in pairs] == ["a", "b"]
    assert counters["sent"] == 0


def test_strict_names_the_first_bad_record(images, server, count):
    with pytest.raises(RejectedError, match=r"record broken/00016\d \(broken-image\)"):
        mapped(images, server, count, is_strict=True)
    with pytest.raises(RejectedError, match=r"record text \(wrong-type\)"):
        mapped([("text", "x")], server, count, is_strict=True)


def test_a_missing_server_is_not_the_records_fault(images, count):
    with pytest.raises(UnavailableError, match="nobody answers"):
        mapped(images[:3], Down(), count)
    with pytest.raises(UnavailableError):
        list(reduce_features(piped([("a", b"F" + bytes(8))]), Down(), ATTEMPT, ClusterOptions(1), count))


def test_the_index_names_every_image_and_centroids_are_means(features, server, count):
    result = reduced(features, server, count)
    rows = {key: np.frombuffer(value[1:], "<f4") for key, value in features if value[:1] == b"F"}
    assert set(result.index) == set(rows)
    rejects = dict(result.rejects)
    assert set(rejects) == {f"broken/{i:06d}" for i in (160, 161, 162)}
    assert rejects["broken/000160"].code == "broken-image"
    assert len(result.centroids) == DEFAULT_CLUSTERS
    for number, centroid in result.centroids.items():
        members = [rows[key] for key, cluster in result.index.items() if cluster == number]
        assert centroid.n_images == len(members)
        np.testing.assert_allclose(centroid.values, np.mean(members, axis=0), atol=1e-6)
    assert result.summary["n"] == 160


def test_clusters_agree_with_the_photographs(features, server, count):
    found = purity(reduced(features, server, count).index)
    assert found.n_images == 160
    assert found.share >= 0.85
    assert found.largest_photograph == 0.125


def test_the_order_of_arrival_does_not_matter(features, server, count):
    found, turned = (reduced(rows, server, count) for rows in (features, features[::-1]))
    turned.rejects.sort()
    assert turned == found


def test_fewer_images_than_clusters_and_none_at_all(features, server, count):
    assert len(reduced(features[:3], server, count).centroids) == 3
    empty = reduced([], server, count)
    assert (empty.index, empty.centroids, empty.summary["n"]) == ({}, {}, 0)


def test_rows_that_do_not_belong_together(server, count):
    with pytest.raises(RejectedError, match="4, 8 bytes"):
        reduced([("a", b"F" + bytes(4)), ("b", b"F" + bytes(8))], server, count)
    with pytest.raises(RemoteProtocolError, match="'a': neither"):
        reduced([("a", b"F123")], server, count)


def test_a_line_of_garbage_names_its_number():
    with pytest.raises(RejectedError, match=r"line 2: .*'nonsense'"):
        parse_lines(["index\ta\t1\n", "nonsense\n"])
    with pytest.raises(RejectedError, match="line 1"):
        parse_lines(["index\ta\tb\tc\n"])


def test_tabs_and_line_ends_in_keys_cannot_break_the_output(images, server, count):
    result = reduced(mapped([("a\tb\nc", images[0][1]), ("d\te", b"x")], server, count), server, count, k=1)
    assert result.index == {"a b c": 0}
    assert [key for key, _ in result.rejects] == ["d e"]


class Shards:
    """Rounds as a cluster would run them: shards for mappers, two reducers, all through typed bytes."""

    def __init__(self, features, n_shards, count):
        self.shards = [features[i::n_shards] for i in range(n_shards)]
        self.server, self.count = Server(), count

    def start(self, k):
        sample = [pair for shard in self.shards for pair in clustering.sample_rows(piped(shard), 2)]
        return reduced(sample, self.server, self.count, k).centroids

    def round(self, centroids):
        parts = [part for shard in self.shards for part in self.step(shard, centroids)]
        lines = []
        for reducer in range(2):
            lines += clustering.merge_partials(piped(part for part in parts if int(part[0]) % 2 == reducer))
        return clustering_of(lines)

    def step(self, shard, centroids):
        return clustering.step_rows(piped(shard), centroids, self.server, ATTEMPT, self.count)

    def index(self, centroids):
        lines = []
        for shard in self.shards:
            lines += clustering.assign_rows(piped(shard), centroids, self.server, ATTEMPT, self.count)
        return clustering_of(lines)


def lloyd(points, centroids):
    """The plain algorithm, written down once more."""
    while True:
        squares = ((points[:, None, :] - centroids[None]) ** 2).sum(axis=2)
        labels = squares.argmin(axis=1)
        moved = np.array([points[labels == i].mean(axis=0) for i in range(len(centroids))])
        if np.allclose(moved, centroids, atol=1e-12):
            return labels, squares.min(axis=1).sum()
        centroids = moved


def test_rounds_over_shards_end_where_one_computation_ends(features, count, monkeypatch):
    monkeypatch.setattr(clustering, "BATCH_ROWS", 30)
    shards = Shards(features, 3, count)
    start = shards.start(k=8)
    said = []
    ended = clustering.iterate(start, shards.round, max_rounds=100, tolerance=1e-18, report=said.append)
    assert ended.is_converged
    assert len(said) == ended.n_rounds
    result = shards.index(ended.centroids)
    rows = sorted((key, np.frombuffer(value[1:], "<f4")) for key, value in features if value[:1] == b"F")
    points = np.array([row for _, row in rows], dtype=float)
    labels, inertia = lloyd(points, np.array([start[i].values for i in range(8)]))
    assert [result.index[key] for key, _ in rows] == labels.tolist()
    assert result.summary["inertia"] == pytest.approx(inertia, rel=1e-9)
    assert len(result.rejects) == 3


def test_keys_of_requests_differ_from_round_to_round(features, count):
    shards = Shards(features, 1, count)
    start = shards.start(k=8)
    shards.server.calls.clear()
    clustering.iterate(start, shards.round, max_rounds=2, tolerance=0.0, report=lambda line: None)
    keys = [call.key for call in shards.server.calls]
    assert len(keys) == len(set(keys)) == 2


def test_a_cluster_without_images_keeps_its_place(features, count):
    shards = Shards(features, 2, count)
    start = dict(shards.start(k=2))
    far = start[0]._replace(values=tuple(1000.0 for _ in start[0].values))
    ended = clustering.iterate(
        {**start, 2: far}, shards.round, max_rounds=3, tolerance=0.0, report=lambda line: None
    )
    assert ended.centroids[2].values == far.values
    assert ended.centroids[2].n_images == 0
    assert not ended.is_converged or ended.n_rounds <= 3


def test_sums_that_are_none():
    with pytest.raises(RemoteProtocolError, match="'000001'"):
        list(clustering.merge_partials(piped([("000001", b"x" * 23)])))


def test_the_sample_in_the_repository(server, count):
    with (SAMPLE / "images.seq").open("rb") as stream:
        pairs = list(SequenceFileReader(stream))
    result = reduced(mapped(pairs, server, count), server, count, k=4)
    expected = parse_lines((SAMPLE / "expected.tsv").read_text().splitlines())
    assert result.index == expected.index
    # The wording is that of the decoder, the code is ours.
    assert {key: r.code for key, r in result.rejects} == {"broken/000016": "broken-image"}
    assert set(result.rejects) == set(expected.rejects)
    for number, centroid in expected.centroids.items():
        np.testing.assert_allclose(result.centroids[number].values, centroid.values, atol=1e-6)
    assert result.summary["inertia"] == pytest.approx(expected.summary["inertia"], rel=1e-4)

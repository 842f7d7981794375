"""The images mapper: encoded images in, a row of features for each out; the work is done by pipeline servers.

The features are histograms of texture, or what an ONNX model gives for each image.

Images are gathered into batches, so that one request carries many. A record that is no image, is damaged or
too large costs itself only: it goes on as a rejection with its reason, and counters say how many there were
(records_in = done + rejected). Standard library only, Python 3.8.
"""

import struct
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Set, Tuple, Union

from jobs.images.rows import doubled, one_field, pack_features, pack_reject
from yarn_accel.client import Call, CurrentAttempt, Reply, Tensor, TensorSpec, TypedValue
from yarn_accel.errors import AccelError, RejectedError, RemoteProtocolError

Record = Tuple[TypedValue, Union[TypedValue, RejectedError]]
Dispatch = Callable[[Iterable[Call]], Iterator[Tuple[Call, Union[Reply, AccelError]]]]
FALLBACK_DEVICE = "cpu:fallback"


@dataclass(frozen=True)
class ImagesOptions:
    """How the mapper works.

    Attributes:
        batch_images: largest number of images in a request.
        batch_bytes: a request is sent when its images have so many bytes.
        bins: 59 (uniform patterns) or 256.
        is_root: take the square root of every histogram value, so that K-means compares by Hellinger
        distance. is_strict: raise at the first bad record instead of passing it on as a rejection.
        model: URI of an ONNX model that takes the place of histograms; its first output is ``(n, d)``.
        side_px: height and width of the images that it gets.
    """

    batch_images: int = 256
    batch_bytes: int = 16 << 20
    bins: int = 59
    is_root: bool = True
    is_strict: bool = False
    model: str = ""
    side_px: int = 64


def map_records(
    records: Iterable[Record],
    dispatch: Dispatch,
    attempt: CurrentAttempt,
    options: ImagesOptions,
    count: Callable[[str, int], None],
) -> Iterator[Tuple[str, bytes]]:
    """Turn records (key, encoded image) into pairs of key and packed features or rejection; one for each
    record.

    Args:
        records: such as a `TypedBytesReader`.
        dispatch: sends calls and yields each with its answer, in any order.
        attempt: names the requests.
        options: see there.
        count: adds to a counter by name.

    Raises:
        AccelError: a failure that is not a record's fault.
        RejectedError: the first bad record, when strict; names its key.
    """
    pending = _PendingBatches(attempt, options, count)
    for call, answer in dispatch(pending.calls(records)):
        pending.take(call, answer)
        yield from pending.finished()
    yield from pending.finished()


class _PendingBatches:
    """The images that this task has sent and not yet passed on."""

    def __init__(
        self, attempt: CurrentAttempt, options: ImagesOptions, count: Callable[[str, int], None]
    ) -> None:
        self._attempt = attempt
        self._options = options
        self._count = count
        self._keys_sent: Dict[str, List[str]] = {}
        self._rows: Deque[Tuple[str, bytes]] = deque()

    def calls(self, records: Iterable[Record]) -> Iterator[Call]:
        """The records in batches."""
        keys: List[str] = []
        images: List[bytes] = []
        known: Set[str] = set()
        n_bytes = number = 0
        for number, (key, image) in enumerate(records, 1):
            self._count("records_in", 1)
            if not isinstance(image, bytes):
                self._reject(str(key), _no_image(image))
                continue
            name = one_field(key)
            if name in known:
                self._reject(str(key), doubled(name))
                continue
            known.add(name)
            keys.append(str(key))
            images.append(image)
            n_bytes += len(image)
            if len(images) >= self._options.batch_images or n_bytes >= self._options.batch_bytes:
                yield self._call(number, keys, images)
                keys, images, n_bytes = [], [], 0
        if images:
            yield self._call(number, keys, images)

    def take(self, call: Call, answer: Union[Reply, AccelError]) -> None:
        """Note an answer: every image of its batch becomes a row of features or a rejection."""
        keys = self._keys_sent.pop(call.key)
        if isinstance(answer, RejectedError):
            for key in keys:
                self._reject(key, answer)
            return
        if isinstance(answer, AccelError):
            raise answer
        rejected = {int(index): (code, message) for index, code, message in answer.info["rejected"]}
        features = answer.tensors["output_0" if self._options.model else "features"]
        n_row = features.spec.nbytes // max(1, len(keys))
        if features.spec.shape[:1] != (len(keys),) or features.spec.dtype != "<f4":
            raise RemoteProtocolError("features of {} for {} images".format(features.spec, len(keys)))
        data = features.flat()
        for index, key in enumerate(keys):
            if index in rejected:
                self._reject(key, RejectedError(*rejected[index]))
            else:
                self._rows.append((key, pack_features(data[index * n_row : (index + 1) * n_row])))
        n_done = len(keys) - len(rejected)
        self._count("done", n_done)
        if answer.device == FALLBACK_DEVICE:
            self._count("cpu_fallback", n_done)

    def finished(self) -> Iterator[Tuple[str, bytes]]:
        """The pairs that became final since the last call."""
        while self._rows:
            yield self._rows.popleft()

    def _call(self, number: int, keys: List[str], images: List[bytes]) -> Call:
        blob = b"".join(images)
        lengths = struct.pack("<{}q".format(len(images)), *(len(image) for image in images))
        options = self._options
        operation = "features"
        params: Dict[str, Any] = {"bins": options.bins, "root": options.is_root}
        if options.model:
            operation, params = "infer", {"model": options.model, "image_size": [options.side_px] * 2}
        call = Call(
            key=self._attempt.request_key(number, operation),
            operation=operation,
            params=params,
            inputs=(
                Tensor(TensorSpec("|u1", (len(blob),)), blob),
                Tensor(TensorSpec("<i8", (len(images),)), lengths),
            ),
        )
        self._keys_sent[call.key] = keys
        self._count("sent", 1)
        self._count("bytes", len(blob))
        return call

    def _reject(self, key: str, error: RejectedError) -> None:
        if self._options.is_strict:
            raise RejectedError(
                error.code, "record {} ({}): {}".format(key, error.code, error.message), cure=error.cure
            )
        self._count("rejected", 1)
        self._rows.append((key, pack_reject(error)))


def _no_image(value: Union[TypedValue, RejectedError]) -> RejectedError:
    if isinstance(value, RejectedError):
        return value
    return RejectedError("wrong-type", "expected bytes, found {}".format(type(value).__name__))

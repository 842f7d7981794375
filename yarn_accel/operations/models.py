"""Models of `infer` before anything runs them: names, parameters, and what an ONNX file says of itself.

Standard library only. An ONNX file is a protobuf message (``onnx/onnx.proto``). It is walked here without
being unpacked, for three facts: that it is one, the operator sets it needs, and the files beside it that hold
tensors. A file beside a model lies in its folder, or in a folder of that, by a plain name. Any other place is
refused, since a model chooses it and whoever runs it could read it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple, Union

from yarn_accel.errors import RejectedError, UnavailableError
from yarn_accel.operations import checks
from yarn_accel.operations.operation import Params, aligned_bytes
from yarn_accel.wire import TensorSpec

OTHER_FORMATS = {
    ".ckpt": "a checkpoint",
    ".engine": "TensorRT",
    ".gguf": "GGUF",
    ".h5": "Keras",
    ".joblib": "a pickle",
    ".keras": "Keras",
    ".mlmodel": "Core ML",
    ".ort": "onnxruntime's own format",
    ".pb": "TensorFlow",
    ".pkl": "a pickle",
    ".pt": "PyTorch",
    ".pth": "PyTorch",
    ".safetensors": "safetensors",
    ".tflite": "TensorFlow Lite",
    ".torchscript": "TorchScript",
}
"""The meaning of other suffixes, so that the error names it."""
PARAMETERS = (
    *("model", "inputs", "outputs", "output_bytes", "batch"),
    *("image_size", "image_mean", "image_std", "image_layout", "max_pixels"),
)
WITH_MODELS = frozenset(("infer", "chain"))
"""The operations whose parameters may name models."""
LAYOUTS = ("NCHW", "NHWC")
MAX_IMAGE_SIDE = 8192
MAX_OUTPUTS = 64
_IMAGE_PARAMETERS = ("image_mean", "image_std", "image_layout", "max_pixels")
_SPARE_OUTPUT_BYTES = 64 * 1024
_OUTPUT_BYTES_OF_AN_IMAGE = 16 * 1024
_MOST_OUTPUT_BYTES = 1 << 40
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}){0,7}")
_MAX_DEPTH = 64
#: Far more than any model has: so a file of nothing but fields costs a server no more than a second.
_MAX_FIELDS = 1 << 20
_MAX_EXTERNAL_FILES = 64
_EXPORT = "export it as ONNX, such as by torch.onnx.export, tf2onnx or skl2onnx"
_NO_MODEL = "write the model by onnx.save"

# Fields of messages by their numbers, see onnx.proto.
_MODEL_IR_VERSION, _MODEL_GRAPH, _MODEL_OPSETS, _MODEL_FUNCTIONS = 1, 7, 8, 25
_OPSET_DOMAIN, _OPSET_VERSION = 1, 2
_TENSOR_EXTERNAL, _TENSOR_LOCATION = 13, 14
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_EXTERNAL = 1
_SPARSE = {1: "tensor", 2: "tensor"}
_ATTRIBUTE = {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"}
_CHILDREN: Mapping[str, Mapping[int, str]] = {
    "model": {_MODEL_GRAPH: "graph", _MODEL_FUNCTIONS: "function", 20: "training"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": _ATTRIBUTE,
    "sparse": _SPARSE,
}
"""Where tensors may stand: by message and number of a field, the message in it."""
_Content = Union[bytes, memoryview]
_Field = Tuple[int, Union[int, memoryview]]


class ModelFacts(NamedTuple):
    """The facts that an ONNX file states.

    Attributes:
        opsets: the version of each operator set it needs, by domain; empty: ONNX's own.
        external_files: the files beside it with tensors, by their paths from its folder.
    """

    opsets: Mapping[str, int]
    external_files: Tuple[str, ...]


class ModelSource(NamedTuple):
    """Where a model lies, and its limits: the parameter ``model`` as whoever runs it gets it.

    Attributes:
        uri: names it in errors.
        digest: SHA-256 of its files, in hex.
        files: by the path from its folder, empty for the model itself, the path or the bytes of each.
        max_bytes: memory that it may take beyond what the process has.
        max_s: seconds that one run may take.
        n_threads: that it computes with.
    """

    uri: str
    digest: str
    files: Mapping[str, Union[str, bytes]]
    max_bytes: int = 1 << 30
    max_s: float = 60.0
    n_threads: int = 1

    def contents(self) -> Dict[str, bytes]:
        """The files, read.

        Raises:
            UnavailableError: they are no longer what they were; another try finds them.
        """
        found = {}
        for name, file in self.files.items():
            if isinstance(file, bytes):
                found[name] = file
                continue
            try:
                with open(file, "rb") as stream:  # noqa: PTH123 -- a descriptor of the server
                    found[name] = stream.read()
            except OSError:
                found[name] = b""
        if digest_of(found) != self.digest:
            raise UnavailableError("model {}: it was dropped from the server's memory".format(self.uri))
        return found


def digest_of(contents: Mapping[str, Union[bytes, memoryview]]) -> str:
    """SHA-256 of the files of a model, with their names and lengths."""
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update("{} {}\n".format(len(content), name).encode())
        digest.update(content)
    return digest.hexdigest()


# Requests


def check_infer(specs: Sequence[TensorSpec], params: Params) -> None:
    """An ONNX model by its URI and its inputs; or with ``image_size`` encoded images, as `features` has them.

    Raises:
        RejectedError: ``model-format``: the name is one of another format; or as `checks`.
    """
    checks.known(params, PARAMETERS)
    model = params.get("model")
    check_name(str(model["uri"]) if isinstance(model, Mapping) else model)
    _check_names(params, "inputs")
    _check_names(params, "outputs")
    checks.integer(params, "output_bytes", 1, 1, _MOST_OUTPUT_BYTES)
    if not isinstance(params.get("batch", True), bool):
        raise RejectedError(
            "bad-parameter", "batch: expected true or false, found {!r}".format(params["batch"])
        )
    if params.get("image_size") is not None:
        _check_images(specs, params)
        return
    for name in _IMAGE_PARAMETERS:
        if name in params:
            raise RejectedError("bad-parameter", "{}: only together with image_size".format(name))
    if not specs:
        raise RejectedError("wrong-inputs", "expected the inputs of the model, found none")
    names = params.get("inputs")
    if names is not None and len(names) != len(specs):
        raise RejectedError("wrong-inputs", "inputs: {} names for {} arrays".format(len(names), len(specs)))


def check_name(uri: Any) -> None:
    """Refuse a model that is no ONNX by its name.

    Raises:
        RejectedError: ``bad-parameter`` or ``model-format``.
    """
    if not isinstance(uri, str) or not uri or "#" in uri:
        raise RejectedError(
            "bad-parameter", "model: expected the URI of an .onnx file, found {!r}".format(uri)
        )
    name = uri.rpartition("/")[2].lower()
    suffix = "." + name.rpartition(".")[2] if "." in name else ""
    if suffix != ".onnx":
        what = OTHER_FORMATS.get(suffix)
        text = "this is {}".format(what) if what else "its name does not end in .onnx"
        raise RejectedError(
            "model-format", "model {}: {}; only ONNX is taken".format(uri, text), cure=_EXPORT
        )


def model_uris(operation: str, params: Params) -> Tuple[str, ...]:
    """The models that a request names, which the server reads beside its inputs.

    Raises:
        RejectedError: one cannot be a model.
    """
    found = []
    for params_of_one in _with_models(operation, params):
        check_name(params_of_one.get("model"))
        found.append(params_of_one["model"])
    return tuple(found)


def resolved_params(operation: str, params: Params, models: Mapping[str, Any]) -> Dict[str, Any]:
    """The same parameters with each model's URI replaced by where it lies (a `ModelSource`)."""
    if operation == "infer":
        return {**params, "model": models[params["model"]]}
    steps = []
    for step in params.get("steps", ()):
        if any(True for _ in _with_models("chain", {"steps": [step]})):
            step = {**step, "params": resolved_params("infer", step["params"], models)}
        steps.append(step)
    return {**params, "steps": steps}


def output_bytes(specs: Sequence[TensorSpec], params: Params) -> int:
    """An upper bound for all results of a request; what the model gives is known only when it has run."""
    if "output_bytes" in params:
        n_bytes = int(params["output_bytes"])
    elif params.get("image_size") is not None:
        n_bytes = _SPARE_OUTPUT_BYTES + _OUTPUT_BYTES_OF_AN_IMAGE * specs[1].shape[0]
    else:
        n_bytes = _SPARE_OUTPUT_BYTES + 4 * sum([spec.nbytes for spec in specs])
    return aligned_bytes(n_bytes) + aligned_bytes(1) * MAX_OUTPUTS


def _with_models(operation: str, params: Params) -> Iterator[Params]:
    """The parameters of each part of a request that names a model."""
    if operation == "infer":
        yield params
    elif operation == "chain" and isinstance(params.get("steps"), (list, tuple)):
        for step in params["steps"]:
            if isinstance(step, Mapping) and step.get("operation") == "infer":
                given = step.get("params")
                yield given if isinstance(given, Mapping) else {}


def _check_names(params: Params, name: str) -> None:
    names = params.get(name)
    if names is None:
        return
    is_list = isinstance(names, (list, tuple)) and 1 <= len(names) <= MAX_OUTPUTS
    if not is_list or not all(isinstance(each, str) for each in names) or len(set(names)) != len(names):
        raise RejectedError(
            "bad-parameter",
            "{}: expected 1 to {} different names, found {!r}".format(name, MAX_OUTPUTS, names),
        )


def _check_images(specs: Sequence[TensorSpec], params: Params) -> None:
    checks.batch()(specs, {name: params[name] for name in ("max_pixels",) if name in params})
    size = params["image_size"]
    is_pair = isinstance(size, (list, tuple)) and len(size) == 2
    if not is_pair or not all(type(side) is int and 1 <= side <= MAX_IMAGE_SIDE for side in size):
        raise RejectedError(
            "bad-parameter",
            "image_size: expected [height, width] from 1 to {}, found {!r}".format(MAX_IMAGE_SIDE, size),
        )
    for name in ("image_mean", "image_std"):
        values = params.get(name, [1.0] * 3)
        is_three = isinstance(values, (list, tuple)) and len(values) == 3
        if not is_three or not all(type(one) in (int, float) and abs(one) < 1e6 for one in values):
            raise RejectedError(
                "bad-parameter", "{}: expected three numbers, found {!r}".format(name, values)
            )
    if 0 in params.get("image_std", ()):
        raise RejectedError("bad-parameter", "image_std: expected no zero")
    if params.get("image_layout", LAYOUTS[0]) not in LAYOUTS:
        raise RejectedError(
            "bad-parameter",
            "image_layout: expected NCHW or NHWC, found {!r}".format(params.get("image_layout")),
        )
    if params.get("inputs") is not None and len(params["inputs"]) != 1:
        raise RejectedError("wrong-inputs", "inputs: images are one input of the model")


# Files


def model_facts(content: _Content, uri: str) -> ModelFacts:
    """The facts that an ONNX file states.

    Args:
        content: the whole file.
        uri: names it in errors.

    Raises:
        RejectedError: ``not-onnx``: it is none; ``external-data``: a tensor lies where none may lie.
    """
    opsets: Dict[str, int] = {}
    external: Dict[str, None] = {}
    has_version = has_graph = False
    try:
        for number, value in _fields(memoryview(content)):
            has_version = has_version or (number == _MODEL_IR_VERSION and isinstance(value, int))
            has_graph = has_graph or (number == _MODEL_GRAPH and isinstance(value, memoryview))
            if number == _MODEL_OPSETS and isinstance(value, memoryview):
                domain, version = _opset(value)
                opsets[domain] = version
        if not (has_version and has_graph and opsets):
            raise ValueError("no graph, or no operator set")
        for entries in _external_entries(memoryview(content), "model", _MAX_DEPTH, [_MAX_FIELDS]):
            external[_path_of(entries, uri)] = None
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise RejectedError(
            "not-onnx", "model {}: this is no ONNX file ({})".format(uri, error), cure=_NO_MODEL
        ) from None
    if len(external) > _MAX_EXTERNAL_FILES:
        raise RejectedError(
            "external-data",
            "model {}: {} files beside it, at most {} are read".format(
                uri, len(external), _MAX_EXTERNAL_FILES
            ),
            cure="save the tensors in one file: onnx.save(..., all_tensors_to_one_file=True)",
        )
    return ModelFacts(opsets, tuple(external))


def _path_of(entries: Mapping[str, str], uri: str) -> str:
    location = entries.get("location", "")
    if not _PLAIN_PATH.fullmatch(location):
        raise RejectedError(
            "external-data",
            "model {}: a tensor of it lies in {!r}, which is no plain name in its folder".format(
                uri, location[:100]
            ),
            cure="save it by onnx.save(..., save_as_external_data=True, location='NAME')",
        )
    return location


def _opset(message: memoryview) -> Tuple[str, int]:
    domain, version = "", 0
    for number, value in _fields(message):
        if number == _OPSET_DOMAIN and isinstance(value, memoryview):
            domain = bytes(value).decode()
        elif number == _OPSET_VERSION and isinstance(value, int):
            version = value
    return domain, version


def _external_entries(
    message: memoryview, kind: str, depth: int, n_left: List[int]
) -> Iterator[Mapping[str, str]]:
    """The entries of each tensor that lies elsewhere, wherever tensors stand in a message of that kind.

    Args:
        depth: so many messages may lie within it.
        n_left: one number, of the fields that may still be looked at.
    """
    if not depth:
        raise ValueError("graphs within graphs, deeper than {}".format(_MAX_DEPTH))
    children = _CHILDREN.get(kind, {})
    entries: List[memoryview] = []
    is_external = False
    for number, value in _fields(message):
        n_left[0] -= 1
        if n_left[0] < 0:
            raise ValueError("more than {} fields".format(_MAX_FIELDS))
        if kind == "tensor" and number == _TENSOR_LOCATION:
            is_external = value == _EXTERNAL
        elif isinstance(value, memoryview) and number in children:
            yield from _external_entries(value, children[number], depth - 1, n_left)
        elif isinstance(value, memoryview) and kind == "tensor" and number == _TENSOR_EXTERNAL:
            entries.append(value)
    if is_external or entries:
        yield dict(map(_entry, entries))


def _entry(message: memoryview) -> Tuple[str, str]:
    found = {
        number: bytes(value).decode() for number, value in _fields(message) if not isinstance(value, int)
    }
    return found.get(_ENTRY_KEY, ""), found.get(_ENTRY_VALUE, "")


def _fields(message: memoryview) -> Iterator[_Field]:
    """Number and value of each field: an integer, or the bytes of what has a length.

    Raises:
        ValueError, IndexError: it is no protobuf message.
    """
    position, end = 0, len(message)
    while position < end:
        tag, position = _varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if not number:
            raise ValueError("a field without a number")
        if wire_type == 0:
            value, position = _varint(message, position)
            yield number, value
            continue
        if wire_type == 2:
            n_bytes, position = _varint(message, position)
        elif wire_type in (1, 5):
            n_bytes = 8 if wire_type == 1 else 4
        else:
            raise ValueError("a field of an unknown type")
        if position + n_bytes > end:
            raise ValueError("cut short")
        if wire_type == 2:
            yield number, message[position : position + n_bytes]
        position += n_bytes


def _varint(message: memoryview, position: int) -> Tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")

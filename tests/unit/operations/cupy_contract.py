"""What of CuPy and nvImageCodec this project uses, read from its modules, and what the real ones have of it.

The real ones are described by the files of ``tests/golden/cupy`` and ``tests/golden/nvimgcodec``, a line for
each name: ``path(parameters)`` for what is called, `` | `` between several forms, ``path = number`` for a
constant, ``path`` alone for an attribute. ``make test-cuda-emulated`` holds the files to the wheels.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import yarn_accel

PACKAGE = Path(yarn_accel.__file__).parent
FILES = PACKAGE.parent / "tests/golden"
GOLDEN = FILES / "cupy/14.2.0.txt"
CODEC = "nvidia.nvimgcodec"
CODECS = tuple(FILES / f"nvimgcodec/{version}.txt" for version in ("0.5.0.13", "0.9.0.20"))
"""The oldest one that setup.cfg allows, and the newest one that was looked at."""
BLAS, SOLVER = "cupy_backends.cuda.libs.cublas", "cupy_backends.cuda.libs.cusolver"
ARRAY, STREAM, POOL, KERNEL = "cupy.ndarray", "cupy.cuda.Stream", "cupy.cuda.MemoryPool", "cupy.RawKernel"
BY_NAME = {
    "blas": BLAS,
    "solver": SOLVER,
    "stream": STREAM,
    "event": "cupy.cuda.Event",
    "module": "cupy.RawModule",
    **dict.fromkeys(("columns", "scalars", "triangles", "result", "contiguous"), ARRAY),
}
"""What a parameter or a loop's variable of this name is in these modules, wherever nothing else is known."""
DECODING = ("operations/cuda_images.py", "benchmarks/gpu/images.py")
DECODING_NAMES = {"codec": CODEC, "stream": f"{CODEC}.CodeStream"}
DECODING_FIELDS = {"decode": f"{CODEC}.Decoder.decode", "stream_class": f"{CODEC}.CodeStream"}
"""What names and attributes of ``self`` are there."""
GIVES = {
    "cupy_module": "cupy",
    "cupy.cuda.get_current_stream": STREAM,
    "cupy.get_default_memory_pool": POOL,
    "cupy.RawModule.get_function": KERNEL,
    **dict.fromkeys(("kernels", "_kernels"), "cupy.RawModule"),
    **dict.fromkeys(("upload", "unpacked", "multiplied", "addresses"), ARRAY),
    "cupyx.empty_pinned": None,
    "cupy.ndarray.get": None,
    "cupy.ndarray.set": None,
}
"""What a call of CuPy's functions or of ours gives; a class its instance, the rest of ``cupy`` an array."""
CLASSES = (
    *("cupy.cuda.Stream", "cupy.cuda.Event", "cupy.RawModule"),
    *(f"{CODEC}.{name}" for name in ("Decoder", "DecodeParams", "CodeStream")),
)
FORMATTED = ("cupy.cuda.device.get_cublas_handle", "cupy.cuda.device.get_cusolver_handle")
"""Names that are put together when they are used."""
IMAGE_MEMORY = f"{CODEC}.Image.__cuda_array_interface__"
"""By which CuPy takes a decoded image."""


class Use(NamedTuple):
    """A name of CuPy's or nvImageCodec's in a module; where it is called, with how many arguments.

    Attributes:
        n_given: without those that a ``*`` unpacks; -1: it is not called.
        is_open: a ``*`` unpacks more.
    """

    where: str
    path: str
    n_given: int
    keywords: tuple[str, ...] = ()
    is_open: bool = False


def modules() -> dict[str, str]:
    """Name and text of each module that uses CuPy itself; of the benchmark, that which decodes images."""
    texts = {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
    marks = ("import cupy", "cupy_module", '"cupyx"')
    found = {name: text for name, text in texts.items() if any(mark in text for mark in marks)}
    return found | {name: (PACKAGE.parent / name).read_text() for name in DECODING[1:]}


def uses() -> list[Use]:
    """Every use of them."""
    found = []
    for name, text in modules().items():
        reader = _Reader(name, fields=dict(DECODING_FIELDS) if name in DECODING else {})
        tree = ast.parse(text)
        reader.visit(tree)  # The first time for what `self` keeps.
        reader.uses.clear()
        reader.visit(tree)
        found += reader.uses
    return found


@dataclass
class _Reader(ast.NodeVisitor):
    """Follows what comes from these packages through the assignments of one module."""

    module: str
    uses: list[Use] = field(default_factory=list)
    names: dict[str, str | None] = field(default_factory=dict)
    fields: dict[str, str | None] = field(default_factory=dict)

    def path(self, node: ast.AST) -> str | None:
        """What of these packages an expression is."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, self._by_name(node.id))
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                return self.fields.get(node.attr)
            base = self.path(node.value)
            return f"{base}.{node.attr}" if base else None
        if isinstance(node, ast.Subscript):
            return ARRAY if self.path(node.value) == ARRAY else None
        return self._given(node) if isinstance(node, ast.Call) else None

    def _by_name(self, name: str) -> str | None:
        return (BY_NAME | (DECODING_NAMES if self.module in DECODING else {})).get(name)

    def _given(self, call: ast.Call) -> str | None:
        if isinstance(call.func, ast.Name) and call.func.id in GIVES:
            return GIVES[call.func.id]
        if isinstance(call.func, ast.Attribute) and call.func.attr == "import_module":
            name = call.args[0]
            known = isinstance(name, ast.Constant) and ("cupy" in name.value or name.value == CODEC)
            return name.value if known else None
        base = self.path(call.func)
        if base is None or base in CLASSES:
            return base
        is_array = base.startswith((f"{ARRAY}.", "cupy.")) and base.count(".") == (2 if ARRAY in base else 1)
        return GIVES.get(base, ARRAY if is_array else None)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """A scope of its own, which sees those around it."""
        outer = self.names
        own = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
        self.names = {name: path for name, path in outer.items() if name not in own}
        self.generic_visit(node)
        self.names = outer

    def visit_Import(self, node: ast.Import) -> None:
        """``import cupy``."""
        self.names.update({each.name: each.name for each in node.names if each.name.startswith("cupy")})

    def visit_Assign(self, node: ast.Assign) -> None:
        """Names get what the value is."""
        self.generic_visit(node)
        path = self.path(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.names[target.id] = path or self._by_name(target.id)
            elif isinstance(target, ast.Attribute) and path:
                self.fields[target.attr] = path

    def visit_Call(self, node: ast.Call) -> None:
        """A call of what is CuPy's is a use."""
        path = self.path(node.func)
        if path:
            plain = [each for each in node.args if not isinstance(each, ast.Starred)]
            keywords = tuple(each.arg for each in node.keywords if each.arg)
            self._add(node, path, len(plain), keywords, len(plain) < len(node.args))
            for each in (*node.args, *(keyword.value for keyword in node.keywords)):
                self.visit(each)
            self.visit(node.func.value if isinstance(node.func, ast.Attribute) else node.func)
        else:
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """An attribute of what is CuPy's is one, too."""
        path = self.path(node)
        if path:
            self._add(node, path, -1)
        self.visit(node.value)

    def _add(self, node: ast.expr, path: str, *call: object) -> None:
        self.uses.append(Use(f"{self.module}:{node.lineno}", path, *call))


def bindings() -> Iterator[str]:
    """What is called of cuBLAS and cuSOLVER, whose names are put together when they are used."""
    for letter in "sdcz":
        yield from (
            f"{BLAS}.{letter}{routine}" for routine in ("getrfBatched", "getrsBatched", "trsm", "trsmBatched")
        )
        yield from (f"{SOLVER}.{letter}{routine}" for routine in ("potrfBatched", "getrs"))
        if letter in "sd":
            yield from (f"{BLAS}.{letter}{routine}" for routine in ("tpttr", "trttp"))
        of_qr = ("ungqr", "unmqr") if letter in "cz" else ("orgqr", "ormqr")
        for routine in ("getrf", "potrf", "geqrf", *of_qr):
            yield from (f"{SOLVER}.{letter}{routine}{end}" for end in ("", "_bufferSize"))
    yield from (f"{SOLVER}.{routine}{end}" for routine in ("dsgesv", "zcgesv") for end in ("", "_bufferSize"))


def wanted() -> set[str]:
    """Every path of CuPy and nvImageCodec that is used."""
    return {use.path for use in uses()} | set(bindings()) | set(FORMATTED) | {IMAGE_MEMORY}


def golden(*files: Path) -> dict[str, str]:
    """Path -> what follows it in the files; those of CuPy and the newest nvImageCodec without any."""
    found = {}
    lines = [line for file in files or (GOLDEN, CODECS[-1]) for line in file.read_text("utf-8").splitlines()]
    for line in lines:
        path = line.partition("(")[0].partition(" ")[0]
        found[path] = line[len(path) :]
    return found


def misfit(use: Use, known: Mapping[str, str]) -> str:
    """Why a use is none of the real CuPy; empty if it is."""
    if use.path not in known:
        return f"{use.where}: {use.path} is not in tests/golden; make test-cuda-emulated writes a new file"
    rest = known[use.path]
    if use.n_given < 0:
        return ""
    if not rest.startswith("("):
        return f"{use.where}: {use.path} is not called"
    found = ""
    for signature in map(parameters, rest.split(" | ")):
        bind = signature.bind_partial if use.is_open else signature.bind
        try:
            bind(*[None] * use.n_given, **dict.fromkeys(use.keywords))
        except TypeError as error:
            found = f"{use.where}: {use.path}{rest}: {error}"
        else:
            return ""
    return found


def parameters(text: str) -> inspect.Signature:
    """The signature that a line of the file says, such as ``(a, b=..., *c)``."""
    given = ast.parse(f"def f{text}: ...").body[0]
    assert isinstance(given, ast.FunctionDef)
    kinds = inspect.Parameter
    found = []
    n_plain = len(given.args.args) - len(given.args.defaults)
    for i, each in enumerate(given.args.args):
        default = kinds.empty if i < n_plain else None
        found.append(kinds(each.arg, kinds.POSITIONAL_OR_KEYWORD, default=default))
    if given.args.vararg:
        found.append(kinds(given.args.vararg.arg, kinds.VAR_POSITIONAL))
    for each, value in zip(given.args.kwonlyargs, given.args.kw_defaults, strict=True):
        found.append(kinds(each.arg, kinds.KEYWORD_ONLY, default=None if value else kinds.empty))
    if given.args.kwarg:
        found.append(kinds(given.args.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(found)

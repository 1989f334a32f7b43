"""What is compared: operations of the profiler's kinds by shape, and whole programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import UnknownNameError, UserError
from tilewright.kernels.kinds import KINDS, parse_operation
from tilewright.kernels.operation import ElementTypes, Operation, make_operation, parse_types
from tilewright.kernels.shapes import Shape, predefined, read_shapes
from tilewright.kernels.suite import SuiteSelection, make_suite
from tilewright.measure.inputs import InputSet
from tilewright.target import Target

PROGRAM = "program"
PROGRAM_SUFFIXES = (".mlir", ".mlirbc", ".onnx")
_SHAPES = ".json"
_MATMUL = "write MxNxK, such as --matmul 512x1024x768:f32"


@dataclass(frozen=True)
class ComparedWorkload:
    """One thing to compute: an operation of the profiler, by its name, or a program.

    flops, bytes: of one run; 0 for a program, of which they are not known.
    """

    name: str
    kind: str
    flops: int = 0
    bytes: int = 0
    element_type: str = ""
    program: Path | None = None

    @property
    def operation(self) -> Operation | None:
        """None for a program."""
        return None if self.program is not None else parse_operation(self.name)

    @property
    def is_program(self) -> bool:
        return self.program is not None

    @property
    def is_onnx(self) -> bool:
        return self.program is not None and self.program.suffix == ".onnx"


@dataclass(frozen=True)
class ProviderTask:
    """A workload with all that a provider needs to compute it and to have it checked.

    target: what it is compiled for, which is another than was asked for where the compiler refuses
    that one. mlir: the program as IREE takes it, compiled with `flags`; parameters: (scope, file)
    of its weights. expected: a .npz file with the results that are right; reference: whose they
    are, in words. reduction_length, element_types, accumulation_type: as
    :func:`measure.verify.compare` takes them; element_types None: those of the results.
    """

    workload: ComparedWorkload
    target: Target
    mlir: Path
    function: str
    inputs: InputSet
    expected: Path | None
    reference: str
    reduction_length: int
    element_types: tuple[str, ...] | None = None
    accumulation_type: str | None = None
    flags: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = ()


def of_operation(operation: Operation) -> ComparedWorkload:
    """The workload of an operation.

    Args:
        operation: of any kind.
    """
    return ComparedWorkload(
        operation.name,
        operation.kind.name,
        operation.flops,
        operation.bytes,
        operation.types.operand,
    )


def parse_matmul(text: str, option: str = "--matmul") -> ComparedWorkload:
    """A matrix product by its sizes: `512x1024x768:f32` has m, n and k, and the element types (f32
    where they are left out).

    Args:
        text: as a user wrote it.
        option: what it was written for, for messages.

    Raises:
        UserError: it is none.
    """
    sizes, _, types = text.partition(":")
    numbers = sizes.split("x")
    if len(numbers) != 3 or not all(n.isascii() and n.isdigit() and len(n) < 10 for n in numbers):
        raise UserError(f"{option}: '{text}' is no matrix product; {_MATMUL}")
    dims = dict(zip(("m", "n", "k"), map(int, numbers), strict=True))
    kind = KINDS["matmul"]
    given = parse_types(types, option) if types else ElementTypes("f32", "f32")
    return of_operation(make_operation(kind, dims, given, kind.layouts[0], ""))


def find_workloads(
    texts: Iterable[str], matmuls: Iterable[str] = (), types: str | None = None
) -> list[ComparedWorkload]:
    """The workloads that a user named, each once, in their order.

    Args:
        texts: files of shapes (.json), programs (.mlir, .mlirbc, .onnx), names of operations as
            `profile generate` gives them, and names of kinds, which stand for their predefined
            shapes.
        matmuls: see `parse_matmul`.
        types: the element types of shapes that do not say theirs, separated by commas (default:
            f32).

    Raises:
        UserError: something cannot be read or does not exist, or there is nothing.
    """
    given = tuple(parse_types(t.strip()) for t in (types or "f32").split(","))
    found: dict[str, ComparedWorkload] = {}
    for workload in [w for text in texts for w in _named(text, given)] + [
        parse_matmul(text) for text in matmuls
    ]:
        found[workload.name] = workload
    if not found:
        raise UserError(
            "there is nothing to compare; name shape files, programs, operations or kinds, or give "
            "--matmul 512x512x512"
        )
    return list(found.values())


def _named(text: str, types: tuple[ElementTypes, ...]) -> list[ComparedWorkload]:
    path = Path(text)
    if path.suffix in PROGRAM_SUFFIXES:
        if not path.is_file():
            raise UserError(f"{text}: there is no such program")
        return [ComparedWorkload(path.name, PROGRAM, program=path)]
    if path.suffix == _SHAPES:
        return _operations(read_shapes(path), types)
    if text in KINDS:
        return _operations(predefined([KINDS[text]]), types)
    if "_" in text and text.split("_")[0] in {name.split("_")[0] for name in KINDS}:
        return [of_operation(parse_operation(text))]
    raise UnknownNameError("workload", text, (*KINDS, "FILE.json", "PROGRAM.mlir", "MODEL.onnx"))


def _operations(shapes: Sequence[Shape], types: tuple[ElementTypes, ...]) -> list[ComparedWorkload]:
    """Shapes that say their element types keep them; the others get those asked for."""
    found: list[ComparedWorkload] = []
    for shape in shapes:
        selection = SuiteSelection() if shape.types is not None else SuiteSelection(types=types)
        found += [of_operation(o) for o in make_suite(selection, [shape]).operations]
    return found

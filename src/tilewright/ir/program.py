"""The user's program: found, imported where it is no MLIR, freed of configurations, looked into.

PROGRAM is MLIR, as text or bytecode, in any dialect that IREE takes, or a model that `importing`
knows. What the compiler is given is the file itself wherever possible; a copy is made for a model
(weights apart) and for a program that carries code-generation configurations, which would hide the
dispatches they are on from tuning.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from iree.compiler import ir

from tilewright.errors import UnknownNameError, UserError, did_you_mean
from tilewright.files import user_file
from tilewright.ir.configuring import strip
from tilewright.ir.importing import import_program
from tilewright.ir.session import CompileError, CompilerSession
from tilewright.ir.signature import Signature, declared_signature, is_public
from tilewright.ir.walk import string_attribute, walk

# What `--iree-input-type=` takes in IREE 3.13.
INPUT_TYPES = (
    "auto",
    "none",
    "onnx",
    "stablehlo",
    "stablehlo_xla",
    "tm_tensor",
    "torch",
    "tosa",
    "vhlo",
)
_Read = TypeVar("_Read")
_BYTECODE_MAGIC = b"ML\xefR"
_FUNCTIONS = ("func.func", "util.func", "vhlo.func_v1")
# Input dialects by the prefix of their ops, in IREE's words.
_DIALECTS = {
    "chlo": "stablehlo",
    "stablehlo": "stablehlo",
    "vhlo": "stablehlo",
    "tm_tensor": "tm_tensor",
    "torch": "torch",
    "tosa": "tosa",
}


@dataclass(frozen=True)
class Program:
    """A program that IREE has parsed.

    source: the user's file.
    path: what the compiler is given: the same, or a copy.
    dialect: `stablehlo`, `tosa`, `torch`, `onnx`, `tm_tensor`; '' for none of them (linalg).
    input_flags: flags that the compiler needs to read it.
    parameters: (scope, file) of weights that importing put outside the program.
    digest: SHA-256, in hexadecimal, of the content of `path`.
    stripped: how many configurations were removed from the input.
    functions: public functions by name, with their types as the source declares them.
    """

    source: Path
    path: Path
    dialect: str
    input_flags: tuple[str, ...]
    parameters: tuple[tuple[str, Path], ...]
    digest: str
    stripped: int
    functions: Mapping[str, Signature]


@dataclass(frozen=True)
class _Contents:
    """What is read off the module, free of the compiler's objects."""

    functions: dict[str, Signature]
    dialects: frozenset[str]
    stripped: int
    copy: bytes


def load_program(
    path: Path, work: Path, *, function: str | None = None, input_type: str | None = None
) -> Program:
    """Read a program and make it ready for compiling.

    Args:
        path: MLIR, a model that can be imported, or a folder with an imported one.
        work: folder for copies, made when one is needed.
        function: an entry point that must be there.
        input_type: IREE's name of the input dialect; by default IREE finds out itself, which works
            for every dialect as long as they are not mixed.

    Returns:
        The program.

    Raises:
        UserError: a file that cannot be read, a model that cannot be imported, a module that IREE
            does not parse, one without public functions or without this one.
    """
    if input_type is not None and input_type not in INPUT_TYPES:
        raise UnknownNameError("input type", input_type, INPUT_TYPES, "--iree-input-type")
    source = path
    path, parameters = import_program(source, work) or (source, ())
    data = _read(path)
    contents = _inspect(data, path, _contents)
    if not contents.functions:
        raise UserError(f"{source}: the program has no public function to run")
    if function is not None and function not in contents.functions:
        raise _unknown_function(function, contents.functions)
    if contents.stripped:
        path = _write(work, f"{source.stem}.stripped{path.suffix or '.mlir'}", contents.copy)
        data = contents.copy
    return Program(
        source=source,
        path=path,
        dialect=_dialect(source, contents.dialects, input_type),
        input_flags=(f"--iree-input-type={input_type}",) if input_type else (),
        parameters=parameters,
        digest=hashlib.sha256(data).hexdigest(),
        stripped=contents.stripped,
        functions=contents.functions,
    )


def choose_function(entry_points: Mapping[str, Signature], function: str | None) -> str:
    """The entry point to tune, as :func:`pick_function` says.

    Args:
        entry_points: the program's functions by name.
        function: the user's choice.

    Returns:
        Its name.

    Raises:
        UserError: as `pick_function`, or an argument of it is neither a tensor nor a number.
    """
    function = pick_function(entry_points, function)
    for position, argument in enumerate(entry_points[function].inputs):
        if argument.element_type.startswith("!"):
            raise UserError(
                f"--function: argument {position + 1} of '{function}' is {argument}; only tensors "
                "and numbers can be passed"
            )
    return function


def pick_function(entry_points: Mapping[str, Signature], function: str | None) -> str:
    """The function that is named, else the only one there is.

    Args:
        entry_points: the program's functions by name.
        function: the user's choice.

    Returns:
        Its name.

    Raises:
        UserError: there is none, no such one, or several to choose from.
    """
    if not entry_points:
        raise UserError("the program has no public function to run")
    if function is None:
        if len(entry_points) > 1:
            names = ", ".join(entry_points)
            raise UserError(
                f"the program has {len(entry_points)} functions; name one with --function "
                f"(allowed: {names})"
            )
        function = next(iter(entry_points))
    elif function not in entry_points:
        raise _unknown_function(function, entry_points)
    return function


def _unknown_function(name: str, known: Mapping[str, Signature]) -> UserError:
    return UserError(
        f"--function: the program has no public function '{name}'"
        f"{did_you_mean(name, list(known))} (allowed: {', '.join(known)})"
    )


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise UserError(f"{path}: is a directory; give an MLIR, .onnx or .pt2 file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read the program ({error.strerror})") from error
    if not data.strip():
        raise UserError(f"{path}: the file is empty; give an MLIR, .onnx or .pt2 file")
    return data


def _inspect(data: bytes, path: Path, read: Callable[[ir.Operation, bool], _Read]) -> _Read:
    """What `read` says of the program's module, and of whether it is bytecode."""
    try:
        # A session of its own, freed with all its IR on return.
        session = CompilerSession()
        return read(session.parse(data, name=str(path)), data.startswith(_BYTECODE_MAGIC))
    except CompileError as error:
        reason = "".join(c if c.isprintable() else "\ufffd" for c in str(error))
        place = "" if reason.startswith(str(path)) else f"{path}: "
        raise UserError(f"IREE cannot parse the program: {place}{reason}") from None


def _contents(module: ir.Operation, bytecode: bool) -> _Contents:
    functions = {
        string_attribute(op, "sym_name"): declared_signature(op)
        for op in walk(module, lambda op: op.name == "builtin.module")
        if op.name in _FUNCTIONS and is_public(op) and _has_body(op)
    }
    dialects = set()
    for op in walk(module, lambda op: not op.name.startswith("hal.executable")):
        dialects.add("onnx" if _is_onnx(op) else _DIALECTS.get(op.name.partition(".")[0], ""))
    # Executables that the user wrote come with the configuration that their code is made for.
    stripped = strip(module, executables=False).total()
    copy = _serialized(module, bytecode) if stripped else b""
    return _Contents(functions, frozenset(dialects - {""}), stripped, copy)


def strip_program(path: Path) -> tuple[bytes, Mapping[str, int]]:
    """A program without the configurations that it carries, in its executables neither.

    Args:
        path: MLIR of any phase before code generation, as text or bytecode.

    Returns:
        The program, in the form that it had; how many were removed, by the name of the attribute.

    Raises:
        UserError: a file that cannot be read, or that IREE does not parse.
    """
    if path.suffix.lower() == ".onnx":
        raise UserError(f"{path}: an ONNX model carries no configurations; give an MLIR file")

    def contents(module: ir.Operation, bytecode: bool) -> tuple[bytes, Mapping[str, int]]:
        removed = strip(module, marks=True)
        return _serialized(module, bytecode), removed

    return _inspect(_read(path), path, contents)


def _serialized(module: ir.Operation, bytecode: bool) -> bytes:
    buffer = io.BytesIO()
    if bytecode:
        module.write_bytecode(buffer)
    else:
        module.print(file=buffer, binary=True)
    return buffer.getvalue()


def _has_body(function: ir.Operation) -> bool:
    return len(function.regions[0].blocks) > 0


def _is_onnx(operation: ir.Operation) -> bool:
    return operation.name == "torch.operator" and string_attribute(operation, "name").startswith(
        "onnx."
    )


def _dialect(source: Path, dialects: frozenset[str], input_type: str | None) -> str:
    """The input dialect in IREE's words, '' for linalg. Raises UserError for a mixture."""
    # ONNX operators and what torch-mlir partly lowers come as torch programs.
    found = dialects - {"torch"} if dialects & {"onnx", "tm_tensor"} else dialects
    if len(found) > 1 and input_type in (None, "auto"):
        raise UserError(
            f"{source}: the program mixes {' and '.join(sorted(found))} operations, which IREE "
            "only converts one at a time; bring all to one dialect first"
        )
    return min(found, default="")


def _write(work: Path, name: str, data: bytes) -> Path:
    path = work / name
    with user_file(path) as partial:
        work.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
    return path


def set_device(module: ir.Module, declaration: str) -> None:
    """Write a device into a module: for targets that no flag selects.

    Args:
        module: a program, changed in place.
        declaration: the text of a `#hal.device.target` attribute.
    """
    with module.context:
        device = ir.Attribute.parse(declaration)
        module.operation.attributes["hal.device.targets"] = ir.ArrayAttr.get([device])


def declare_device(program: Program, folder: Path, declaration: str) -> Program:
    """The program with its device written into it; see `set_device`.

    Args:
        program: the program.
        folder: where the copy is written.
        declaration: the text of a `#hal.device.target` attribute.

    Returns:
        The program, whose `path` is the copy.
    """
    context = ir.Context()
    context.load_all_available_dialects()
    with context, ir.Location.unknown():
        module = ir.Module.parse(program.path.read_bytes())
        set_device(module, declaration)
        path = folder / "with_device.mlir"
        path.write_text(module.operation.get_asm())
    return replace(program, path=path)

"""Code that was generated for executables, compiled apart from the host that calls them.

Whatever is compiled for a processor, IREE compiles two libraries of functions with it and builds
its pipelines of passes anew: an executable that adds 1 to a tensor takes as long as half of a
product's. So the executables of several programs become functions of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from iree.compiler import ir

from tilewright.ir.kernel_lowering import lower_to_llvm
from tilewright.ir.reference.elements import constant
from tilewright.ir.session import CompilerSession
from tilewright.ir.shared_object import NotLinkable, shared_object
from tilewright.ir.target_info import elf_format, object_target
from tilewright.ir.walk import string_attribute, walk

# The function by which the runtime finds what is in an executable.
_QUERY = "iree_hal_executable_library_query"
_TARGETS = "executable-targets"


class NotSpliceable(Exception):
    """The host code does more than dispatch one executable a fixed number of times; says why."""


class NotJoinable(Exception):
    """Executables that cannot be functions of one; says why."""


@dataclass(frozen=True)
class ExecutableFunction:
    """What is dispatched: the executable that has it, its name and its number there, and workgroups
    in x, y and z."""

    executable: str
    name: str
    ordinal: int
    workgroups: tuple[int, ...]


@dataclass(frozen=True)
class FunctionCode:
    """A function, and the compiled code that it is in, as an attribute."""

    data: Any
    function: ExecutableFunction


@dataclass(frozen=True)
class GeneratedCode:
    """The executables of programs at the `executable-targets` phase.

    programs: for each program what it dispatches, by the names of its executables.
    """

    module: ir.Module
    programs: Sequence[Mapping[str, ExecutableFunction]]

    @staticmethod
    def of(module: ir.Module) -> GeneratedCode:
        """The code of one program.

        Args:
            module: at the `executable-targets` phase.

        Raises:
            NotSpliceable: a number of workgroups is no constant.
        """
        return GeneratedCode(module, (functions(module),))

    def digest(self) -> str:
        """Equal for candidates that become the same program: different tile sizes often end as
        equal code, where a loop does not run as often as they say."""
        return digest_of(self.module)

    def compiled(
        self, session: CompilerSession, objects: Path | None = None
    ) -> list[dict[str, FunctionCode]]:
        """The compiled code. The module is then of no more use.

        Args:
            session: the compiler of its context.
            objects: a folder for temporary files: it is compiled as `objects` does, where that can
                be.

        Returns:
            For each program its binaries, by the names of its executables.

        Raises:
            CompileError: it does not compile.
        """
        if objects is not None:
            with contextlib.suppress(NotLinkable):
                return self.placed(self.objects(session, objects))
        return self.placed(self.binaries(session))

    def placed(self, found: Mapping[str, Any]) -> list[dict[str, FunctionCode]]:
        """Compiled code by program.

        Args:
            found: the code of each executable, as an attribute.

        Returns:
            For each program its binaries, by the names of its executables.
        """
        return [
            {name: FunctionCode(found[one.executable], one) for name, one in program.items()}
            for program in self.programs
        ]

    def binaries(self, session: CompilerSession) -> dict[str, Any]:
        """The compiled code of each executable, as an attribute. The module is then of no more use.

        Args:
            session: the compiler of its context.

        Raises:
            CompileError: it does not compile.
        """
        session.run(self.module.operation, _TARGETS, "hal")
        return _binaries(self.module)

    def objects(self, session: CompilerSession, folder: Path) -> dict[str, Any]:
        """As `binaries`, in half of the time, where the code calls no function of a library: the
        code itself is the same. The module can still be used.

        Args:
            session: the compiler of its context.
            folder: for temporary files.

        Raises:
            CompileError: it does not compile.
            NotLinkable: it is for another processor than x86-64, or calls a function.
        """
        module = self.module.operation.clone()
        found = variants(module)
        if not all(elf_format(variant.attributes["target"]) for variant in found.values()):
            raise NotLinkable("it is for no processor")
        with session.context, _as_objects(found, folder) as paths:
            session.run(module, _TARGETS, "hal", verify=False)
            return {
                name: _bytes(shared_object(path.read_bytes(), f"{name}_library_query", _QUERY))
                for name, path in zip(found, paths, strict=True)
            }


def generated(session: CompilerSession, modules: Sequence[ir.Module]) -> GeneratedCode:
    """The code of several programs, generated together.

    Args:
        session: the compiler of their context.
        modules: at the `executable-sources` phase; of no more use afterwards.

    Returns:
        The code: of one executable that has all of their functions, if that can be.

    Raises:
        CompileError: one of them does not compile.
        NotSpliceable: a number of workgroups is no constant.
        NotJoinable: there are several programs, and they are for different targets or for a GPU, or
            have more than functions.
    """
    programs = [functions(module) for module in modules]
    if sum(map(len, programs)) > 1:
        with session.context, ir.Location.unknown():
            try:
                programs = _joined(modules, programs)
            except NotJoinable:
                if len(modules) > 1:
                    raise
    lower_to_llvm(session, modules[0])
    return GeneratedCode(modules[0], programs)


def digest_of(module: ir.Module) -> str:
    """A digest of a module's content.

    Args:
        module: at any phase.
    """
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    return hashlib.sha256(written.getvalue()).hexdigest()[:20]


def functions(module: Any) -> dict[str, ExecutableFunction]:
    """The only function of each executable of a module, by the executable's name.

    Args:
        module: an operation or a module at any phase that has executables.

    Raises:
        NotSpliceable: there are several in one, or a number of workgroups is no constant.
    """
    found = {}
    for name, executable in executables(module):
        # Not into the kernels, which have thousands of ops.
        below = walk(executable, lambda op: op.name == "hal.executable.variant")
        exports = [op for op in below if op.name == "hal.executable.export"]
        if len(exports) != 1 or not len(exports[0].regions[0].blocks):
            raise NotSpliceable(f"{len(exports)} entry points")
        last = list(exports[0].regions[0].blocks[0].operations)[-1].operation
        counts = []
        for value in last.operands:
            owner = value.owner
            if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
                raise NotSpliceable("a number of workgroups known at run time only")
            counts.append(int(constant(owner.operation.attributes["value"])))
        called = string_attribute(exports[0], "sym_name")
        found[name] = ExecutableFunction(name, called, 0, tuple(counts))
    return found


def variants(module: Any) -> dict[str, Any]:
    """The code of each executable for its target.

    Args:
        module: an operation.
    """
    return {
        name: op
        for name, executable in executables(module)
        for op in walk(executable, lambda _: False)
        if op.name == "hal.executable.variant"
    }


def executables(module: Any) -> list[tuple[str, Any]]:
    """The executables of a module, with their names.

    Args:
        module: an operation.
    """
    return [
        (string_attribute(top.operation, "sym_name"), top.operation)
        for top in module.operation.regions[0].blocks[0].operations
        if top.operation.name == "hal.executable"
    ]


def _joined(
    modules: Sequence[ir.Module], programs: Sequence[Mapping[str, ExecutableFunction]]
) -> list[dict[str, ExecutableFunction]]:
    """Put the functions of all executables into the first one; where they are then.

    Raises NotJoinable before anything is changed.
    """
    found = [[(n, *_parts(n, v)) for n, v in variants(module).items()] for module in modules]
    targets = [v.attributes["target"] for module in modules for v in variants(module).values()]
    if any(target != targets[0] for target in targets) or not elf_format(targets[0]):
        raise NotJoinable("different targets, or none of a processor")
    home, body = found[0][0][0], found[0][0][2]
    made: list[dict[str, ExecutableFunction]] = []
    number = 0
    for program, parts in zip(programs, found, strict=True):
        places = {}
        for name, export, inner, function in parts:
            if inner is not body:
                export = export.clone(ip=ir.InsertionPoint(body))
                function = function.clone(ip=ir.InsertionPoint(body.regions[0].blocks[0]))
            called = f"function_{number}"
            for op in (export, function):
                op.attributes["sym_name"] = ir.StringAttr.get(called)
            export.attributes["ordinal"] = ir.IntegerAttr.get(ir.IndexType.get(), number)
            places[name] = ExecutableFunction(home, called, number, program[name].workgroups)
            number += 1
        made.append(places)
    for name, executable in executables(modules[0]):
        if name != home:
            executable.erase()
    return made


def _parts(name: str, variant: Any) -> tuple[Any, Any, Any]:
    """The export of an executable, the module with its code, and the one function of that."""
    contents = [op.operation for op in variant.regions[0].blocks[0].operations]
    (export,) = (op for op in contents if op.name == "hal.executable.export")
    (inner,) = (op for op in contents if op.name == "builtin.module")
    code = [op.operation for op in inner.regions[0].blocks[0].operations]
    if [op.name for op in code] != ["func.func"]:
        raise NotJoinable(f"'{name}' has more than a function")
    return export, inner, code[0]


@contextlib.contextmanager
def _as_objects(found: Mapping[str, Any], folder: Path) -> Iterator[list[Path]]:
    """Where compiling from the `executable-targets` phase on writes an object file for each of
    these executables; the compiler's context is entered.

    Args:
        found: what `variants` found.
        folder: for temporary files.
    """
    with ir.Location.unknown(), tempfile.TemporaryDirectory(dir=folder) as own:
        paths = [Path(own, f"{number}.o") for number in range(len(found))]
        for variant, path in zip(found.values(), paths, strict=True):
            variant.attributes["target"] = object_target(variant.attributes["target"], path)
        yield paths


def _binaries(module: ir.Module) -> dict[str, Any]:
    """The compiled code of each executable, as an attribute."""
    codes = {}
    for name, executable in executables(module):
        below = walk(executable, lambda _: False)
        found = [op for op in below if op.name == "hal.executable.binary"]
        if len(found) != 1:
            raise NotSpliceable(f"{len(found)} binaries")
        codes[name] = found[0].attributes["data"]
    return codes


def _bytes(data: bytes) -> Any:
    byte = ir.IntegerType.get_signless(8)
    kind = ir.VectorType.get([len(data)], byte)
    return ir.DenseElementsAttr.get(np.frombuffer(data, np.int8), type=kind)

"""Candidates without their host code: the code of executables put into a program compiled before.

All candidates of a dispatch share the code that runs on the host, but for how many workgroups it
asks for; compiling it takes about as long as the dispatch's own. So the host's code is compiled
once up to the `vm` phase, a candidate's executables alone up to the `hal` phase, and their code and
their numbers of workgroups replace those of the host. The result is the program that compiling the
whole would give.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from iree.compiler import ir

from tilewright.files import write_whole
from tilewright.ir.candidate import configure, make_candidate
from tilewright.ir.gpu_constraints import erase_constraints
from tilewright.ir.reference.elements import constant
from tilewright.ir.session import CONFIGURED_PHASE, CompilerSession
from tilewright.ir.shared_object import NotLinkable, shared_object
from tilewright.ir.target_info import bytecode_target, elf_format, object_target
from tilewright.ir.walk import string_attribute, walk
from tilewright.tiling import CompilationInfo

_DISPATCH = "hal.command_buffer.dispatch"
# Its operands: command buffer, executable, function, then workgroups in x, y and z.
_FIRST_COUNT = 3
# What an ELF file is called beside its format.
_ELF_TYPE = "application/x-elf"
# The function by which the runtime finds what is in an executable.
_QUERY = "iree_hal_executable_library_query"
# What the host calls the code of an executable: its name and one of these, by the kind of target.
_FORMATS = (
    "embedded_elf",
    "cuda_nvptx_fb",
    "rocm_hsaco_fb",
    "vulkan_spirv_fb",
    "metal_msl_fb",
)


class NotSpliceable(Exception):
    """The host code does more than dispatch one executable a fixed number of times; says why."""


@dataclass(frozen=True)
class GeneratedCode:
    """A candidate's executables at the `executable-targets` phase, and for each of them, by its
    name, the workgroups in x, y, z."""

    module: ir.Module
    workgroups: Mapping[str, tuple[int, ...]]

    def binaries(self, session: CompilerSession) -> dict[str, Any]:
        """The compiled code of each executable, as an attribute. The module is then of no more use.

        Args:
            session: the compiler of its context.

        Raises:
            CompileError: it does not compile.
        """
        session.run(self.module.operation, "executable-targets", "hal")
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
        variants = _variants(module)
        with session.context, _as_objects(variants, folder) as paths:
            session.run(module, "executable-targets", "hal", verify=False)
            return {
                name: _bytes(shared_object(path.read_bytes(), f"{name}_library_query", _QUERY))
                for name, path in zip(variants, paths, strict=True)
            }

    @staticmethod
    def of(module: ir.Module) -> GeneratedCode:
        """The code of a module.

        Args:
            module: at the `executable-targets` phase.

        Raises:
            NotSpliceable: a number of workgroups is no constant.
        """
        return GeneratedCode(module, _workgroups(module))

    def digest(self) -> str:
        """Equal for candidates that become the same program: different tile sizes often end as
        equal code, where a loop does not run as often as they say."""
        return digest_of(self.module)


def digest_of(module: ir.Module) -> str:
    """A digest of a module's content.

    Args:
        module: at any phase.
    """
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    return hashlib.sha256(written.getvalue()).hexdigest()[:20]


class SplicedHost:
    """The host's code of a program, into which the code of executables is put.

    The compiler must run with `--iree-hal-link-executables=false`, a process-wide option (linking
    would make one binary of all executables).

    module: the program at the executable-configurations phase; it is compiled, in place.
    executables: names of those whose code is exchanged.

    Raises NotSpliceable where sizes are known at run time only, CompileError when the program
    itself does not compile.
    """

    def __init__(
        self, session: CompilerSession, module: ir.Module, executables: Iterable[str]
    ) -> None:
        self._session, self._module = session, module.operation
        names = list(executables)
        _serialize_stubs(session, self._module, names)
        session.run(self._module, "hal", "vm", verify=False)
        self._known = _places(self._module, names)
        for found in self._known.values():
            if len(found.code) != 1 or not found.dispatches:
                raise NotSpliceable(
                    f"{len(found.code)} binaries, {len(found.dispatches)} dispatches"
                )
            for call in found.dispatches:
                for value in list(call.operands)[_FIRST_COUNT : _FIRST_COUNT + 3]:
                    if isinstance(value.owner, ir.Block) or not (
                        value.owner.operation.name.startswith("vm.const.i32")
                    ):
                        raise NotSpliceable("a number of workgroups known at run time only")

    @classmethod
    def read(cls, session: CompilerSession, path: Path) -> Self:
        """A host that was written, whoever compiled it.

        Args:
            session: a compiler with the flags of the one that did.
            path: where it is.
        """
        host = cls.__new__(cls)
        host._session, host._module = session, session.parse(path.read_bytes())
        host._known = {}
        return host

    def write(self, path: Path) -> None:
        """Write the host for others to read.

        Args:
            path: appears whole or not at all.
        """
        written = io.BytesIO()
        self._module.write_bytecode(written)
        write_whole(path, written.getvalue())

    def finish(self, code: GeneratedCode, objects: Path | None = None) -> bytes:
        """The program of a candidate.

        Args:
            code: what was generated of its executables; of no more use afterwards.
            objects: a folder for temporary files; it is compiled as `GeneratedCode.objects` does,
                where that can be.

        Returns:
            The .vmfb.

        Raises:
            CompileError: it does not compile.
        """
        return self._session.compile(self.with_code(code, objects), compile_from="vm")

    def with_code(self, code: GeneratedCode, objects: Path | None = None) -> Any:
        """A candidate's program at the `vm` phase.

        Args:
            code: what was generated of its executables; of no more use afterwards.
            objects: as in `finish`.

        Returns:
            The module operation.

        Raises:
            CompileError: it does not compile.
        """
        session = self._session
        with session.context, ir.Location.unknown():
            binaries = None
            if objects is not None:
                with contextlib.suppress(NotLinkable):
                    binaries = code.objects(session, objects)
            if binaries is None:
                binaries = code.binaries(session)
            for name, places in self._places(code.workgroups).items():
                places.replace(binaries[name], code.workgroups[name])
            return self._module.clone()

    def _places(self, executables: Collection[str]) -> dict[str, _Places]:
        """Where these executables are, which is looked for once."""
        if not self._known.keys() >= set(executables):
            self._known = _places(self._module, executables)
        return {name: self._known[name] for name in executables}


class SplicedTemplate:
    """The program of one dispatch, and candidates made by exchanging the dispatch's code.

    Raises NotSpliceable and CompileError as SplicedHost does.
    """

    def __init__(
        self,
        session: CompilerSession,
        template: bytes,
        executable: str,
        entry: str,
        repeats: int,
        rotations: int = 1,
    ) -> None:
        self._session = session
        self._executable, self._entry = executable, entry
        whole = make_candidate(
            template,
            session.context,
            executable,
            entry,
            None,
            repeats,
            keep_constraints=True,
            rotations=rotations,
        )
        self._alone = _only(whole, executable)
        erase_constraints(whole.operation)
        self.host = SplicedHost(session, whole, (executable,))

    def compile(self, configuration: CompilationInfo | None) -> bytes:
        """The program of a candidate: `generate`, then the host's `finish`.

        Args:
            configuration: None is the compiler's own choice.

        Returns:
            The .vmfb.

        Raises:
            CompileError: it does not compile.
            NotSpliceable: its number of workgroups is no constant.
        """
        return self.host.finish(self.generate(configuration))

    def generate(self, configuration: CompilationInfo | None) -> GeneratedCode:
        """The candidate's code as MLIR hands it to LLVM, which is most of the work still to do.

        Args:
            configuration: None is the compiler's own choice.

        Returns:
            The code, and the workgroups that it is for.

        Raises:
            CompileError: it does not compile.
            NotSpliceable: its number of workgroups is no constant.
        """
        session = self._session
        with session.context, ir.Location.unknown():
            module = self._alone.operation.clone()
            configure(module, self._executable, self._entry, configuration)
            erase_constraints(module)
            session.run(module.operation, CONFIGURED_PHASE, "executable-targets")
            return GeneratedCode.of(module)


def _only(module: ir.Module, executable: str) -> Any:
    """A copy of the module with nothing but one executable."""
    alone = module.operation.clone()
    for top in list(alone.body.operations):
        operation = top.operation
        if operation.name != "hal.executable" or string_attribute(operation, "sym_name") != (
            executable
        ):
            operation.erase()
        elif "sym_visibility" in operation.attributes:
            # One that nothing on the host uses is removed unless it can be seen.
            del operation.attributes["sym_visibility"]
    return alone


@dataclass
class _Places:
    """Where an executable is in the host's code: the constants with its code, the calls that
    dispatch it, and, once these have some of their own, the constants with their workgroups in x,
    y and z."""

    code: list[Any] = field(default_factory=list)
    dispatches: list[Any] = field(default_factory=list)
    _counts: list[list[Any]] = field(default_factory=list)

    def replace(self, code: Any, counts: Sequence[int]) -> None:
        """Put other code here, in the place of what is there.

        Args:
            code: an attribute.
            counts: its workgroups.
        """
        self.code[0].attributes["value"] = code
        i32 = ir.IntegerType.get_signless(32)
        values = [ir.IntegerAttr.get(i32, count) for count in counts]
        if not self._counts:
            self._counts = _own_counts(self.dispatches, values)
        for made in self._counts:
            for op, value in zip(made, values, strict=True):
                op.attributes["value"] = value


def _own_counts(calls: Sequence[Any], values: Sequence[Any]) -> list[list[Any]]:
    """Constants for the workgroups in x, y and z of these calls, right before the first of each
    block."""
    found: list[list[Any]] = []
    block = None
    for call in calls:
        here = ir.InsertionPoint(call)
        if block is None or here.block != block:
            block = here.block
            found.append(
                [
                    ir.Operation.create(
                        "vm.const.i32", results=[value.type], attributes={"value": value}, ip=here
                    )
                    for value in values
                ]
            )
        for axis, one in enumerate(found[-1]):
            call.operands[_FIRST_COUNT + axis] = one.results[0]
    return found


def _places(host: Any, executables: Iterable[str]) -> dict[str, _Places]:
    """The places of executables, by their names."""
    found = {name: _Places() for name in executables}
    prefixes = {name: tuple(f"{_symbol(name)}_{form}" for form in _FORMATS) for name in found}
    for op in walk(host.operation):
        if op.name == "vm.rodata" and "mime_type" in op.attributes:
            symbol = string_attribute(op, "sym_name")
            for name, places in found.items():
                if symbol.startswith(prefixes[name]):
                    places.code.append(op)
        elif op.name == "vm.call.variadic" and _callee(op) == _DISPATCH:
            loaded = _loaded(op.operands[1])
            if loaded in found:
                found[loaded].dispatches.append(op)
    return found


def _symbol(name: str) -> str:
    """A name as the compiler writes it where a file's name may come of it: `main$async` is
    `main_async`."""
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name)


def _loaded(value: Any) -> str:
    """The executable whose global a value is, as the host keeps it; '' where it is another."""
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "vm.global.load.ref":
        return ""
    name = ir.FlatSymbolRefAttr(value.owner.operation.attributes["global"]).value
    # `__device_0_executable_2_` and the executable's name.
    _, _, rest = name.partition("_executable_")
    return str(rest.partition("_")[2])


def _callee(op: ir.Operation) -> str:
    return str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)


def _workgroups(module: Any) -> dict[str, tuple[int, ...]]:
    """The workgroups in x, y and z that the only export of each executable asks for."""
    found = {}
    for name, executable in _executables(module):
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
        found[name] = tuple(counts)
    return found


@contextlib.contextmanager
def _as_objects(variants: Mapping[str, Any], folder: Path) -> Iterator[list[Path]]:
    """Where compiling from the `executable-targets` phase on writes an object file for each of
    these executables; the compiler's context is entered.

    Args:
        variants: what `_variants` found.
        folder: for temporary files.
    """
    with ir.Location.unknown(), tempfile.TemporaryDirectory(dir=folder) as own:
        paths = [Path(own, f"{number}.o") for number in range(len(variants))]
        for variant, path in zip(variants.values(), paths, strict=True):
            variant.attributes["target"] = object_target(variant.attributes["target"], path)
        yield paths


def _serialize_stubs(session: CompilerSession, module: Any, names: Sequence[str]) -> None:
    """Take a host to the `hal` phase without compiling these executables: what they do is exchanged
    anyhow, and compiling them takes as long as all else of a host.

    Args:
        session: the compiler of its context.
        module: of the host at the executable-configurations phase, changed in place.
        names: of executables that are exchanged.

    Raises:
        CompileError: it does not compile.
    """
    with session.context, ir.Location.unknown():
        variants = _variants(module)
        forms = {name: elf_format(v.attributes["target"]) for name, v in variants.items()}
        stubs = {name: v for name, v in variants.items() if name in names and forms[name]}
        if len(stubs) < len(variants) or not _counts_known(module):
            session.run(module, CONFIGURED_PHASE, "executable-targets", verify=False)
        for variant in stubs.values():
            _empty(variant)
        session.run(module, "executable-targets", "hal", verify=False)
        for name, executable in _executables(module):
            for op in walk(executable, lambda _: False):
                if name in stubs and op.name == "hal.executable.binary":
                    op.attributes["format"] = ir.StringAttr.get(forms[name])
                    op.attributes["mime_type"] = ir.StringAttr.get(_ELF_TYPE)


def _counts_known(module: Any) -> bool:
    """Whether the workgroups of all executables are numbers before these are compiled."""
    try:
        _workgroups(module)
    except NotSpliceable:
        return False
    return True


def _empty(variant: Any) -> None:
    """Give an executable bytecode that does nothing for code, which needs no LLVM."""
    contents = [op.operation for op in variant.regions[0].blocks[0].operations]
    variant.attributes["target"] = bytecode_target(variant.attributes["target"])
    body = next(op for op in contents if op.name == "builtin.module").regions[0].blocks[0]
    for op in list(body.operations):
        op.operation.erase()
    names = [op.attributes["sym_name"] for op in contents if op.name == "hal.executable.export"]
    functions = "".join(f"vm.func @{n}() {{ vm.return }} vm.export @{n} " for n in names)
    code = ir.Operation.parse(f"vm.module public @module {{ {functions} }}")
    ir.InsertionPoint(body).insert(code)


def _variants(module: Any) -> dict[str, Any]:
    """The code of each executable for its target."""
    return {
        name: op
        for name, executable in _executables(module)
        for op in walk(executable, lambda _: False)
        if op.name == "hal.executable.variant"
    }


def _executables(module: Any) -> list[tuple[str, Any]]:
    return [
        (string_attribute(top.operation, "sym_name"), top.operation)
        for top in module.operation.regions[0].blocks[0].operations
        if top.operation.name == "hal.executable"
    ]


def _binaries(module: ir.Module) -> dict[str, Any]:
    """The compiled code of each executable, as an attribute."""
    codes = {}
    for name, executable in _executables(module):
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

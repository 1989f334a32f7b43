"""Candidates without their host code: the code of executables put into a program compiled before.

All candidates of a dispatch share the code that runs on the host, but for how many workgroups it
asks for; compiling it takes about as long as the dispatch's own. So the host's code is compiled
once up to the `vm` phase, executables alone up to the `hal` phase (`ir.generated_code`), and their
code and their numbers of workgroups replace those of the host. The result is the program that
compiling the whole would give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from iree.compiler import ir

from tilewright.ir.candidate import configure, isolated_function, make_candidate
from tilewright.ir.generated_code import (
    FunctionCode,
    GeneratedCode,
    NotSpliceable,
    executables,
    functions,
    variants,
)
from tilewright.ir.gpu_constraints import erase_constraints
from tilewright.ir.kernel_calls import KernelCalls, calls_of
from tilewright.ir.reference.elements import constant
from tilewright.ir.session import CONFIGURED_PHASE, CompilerSession
from tilewright.ir.shared_object import NotLinkable
from tilewright.ir.target_info import bytecode_target, elf_format
from tilewright.ir.walk import string_attribute, walk
from tilewright.tiling import CompilationInfo

_DISPATCH, _LOOKUP = "hal.command_buffer.dispatch", "hal.executable.lookup.function"
# Its operands: command buffer, executable, function, then workgroups in x, y and z.
_FUNCTION, _FIRST_COUNT = 2, 3
# What an ELF file is called beside its format.
_ELF_TYPE = "application/x-elf"
# What the host calls the code of an executable: its name and one of these, by the kind of target.
_FORMATS = (
    "embedded_elf",
    "cuda_nvptx_fb",
    "rocm_hsaco_fb",
    "vulkan_spirv_fb",
    "metal_msl_fb",
)


class SplicedHost:
    """The host's code of a program, into which the code of executables is put.

    The compiler must run with `--iree-hal-link-executables=false`, a process-wide option (linking
    would make one binary of all executables).

    module: the program at the `hal` phase (`serialize_stubs`); it is compiled, in place.
    executables: names of those whose code is exchanged.
    sizes: numbers of 64 bits that may be exchanged, wherever they are.

    Raises NotSpliceable where sizes are known at run time only, CompileError when the program
    itself does not compile.
    """

    def __init__(
        self,
        session: CompilerSession,
        module: ir.Module,
        executables: Iterable[str],
        sizes: Iterable[int] = (),
    ) -> None:
        self._session, self._module = session, module.operation
        session.run(self._module, "hal", "vm", verify=False)
        self._places = _places(self._module, list(executables))
        self._sizes = _sizes(self._module, set(sizes))
        for found in self._places.values():
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

    def finish(
        self, binaries: Mapping[str, FunctionCode], sizes: Mapping[int, int] | None = None
    ) -> bytes:
        """The program of a candidate.

        Args:
            binaries: of its executables, by their names.
            sizes: what is in the places of sizes that may be exchanged.

        Returns:
            The .vmfb.

        Raises:
            CompileError: it does not compile.
        """
        return self._session.compile(self.with_code(binaries, sizes), compile_from="vm")

    def with_code(
        self, binaries: Mapping[str, FunctionCode], sizes: Mapping[int, int] | None = None
    ) -> Any:
        """A candidate's program at the `vm` phase.

        Args:
            binaries: of its executables, by their names.
            sizes: what is in the places of sizes that may be exchanged.

        Returns:
            The module operation.
        """
        with self._session.context, ir.Location.unknown():
            for name, binary in binaries.items():
                self._places[name].replace(binary)
            for size, made in self._sizes:
                made.attributes["value"] = ir.IntegerAttr.get(
                    made.results[0].type, (sizes or {}).get(size, size)
                )
            return self._module.clone()


class Host(Protocol):
    """Host code for executables of certain names."""

    def finish(self, binaries: Mapping[str, FunctionCode]) -> bytes:
        """See `SplicedHost.finish`."""

    def with_code(self, binaries: Mapping[str, FunctionCode]) -> Any:
        """See `SplicedHost.with_code`."""


class SplicedTemplate:
    """The program of one dispatch, and candidates made by exchanging the dispatch's code.

    host_of: makes what calls it, where that is all that the program does
        (`calling_host.CallingHost`); without one the compiler makes it.

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
        host_of: Callable[[KernelCalls], Host] | None = None,
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
        self._linkable = True
        erase_constraints(whole.operation)
        calls = calls_of(isolated_function(whole)) if host_of is not None else None
        self.host: Host
        if calls is not None and host_of is not None:
            if repeats > 1:
                calls = replace(calls, repeats=repeats, rotations=rotations)
            self.host = host_of(calls)
        else:
            serialize_stubs(session, whole.operation, (executable,))
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
        return self.finish(self.generate(configuration))

    def finish(self, code: GeneratedCode, objects: Path | None = None) -> bytes:
        """The program of a candidate whose code was generated.

        Args:
            code: of no more use afterwards.
            objects: a folder for temporary files: it is compiled as `GeneratedCode.objects` does,
                if those of earlier candidates could be.

        Returns:
            The .vmfb.

        Raises:
            CompileError: it does not compile.
        """
        found = None
        if objects is not None and self._linkable:
            try:
                found = code.objects(self._session, objects)
            except NotLinkable:
                self._linkable = False
        (binaries,) = code.placed(found or code.binaries(self._session))
        return self.host.finish(binaries)

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
    """Where an executable is in the host's code: the constants with its code, the constants with
    the names by which its functions are asked for, the calls that dispatch it, and, once these have
    some of their own, the constants with the number of its function and its workgroups in x, y and
    z."""

    code: list[Any] = field(default_factory=list)
    names: list[Any] = field(default_factory=list)
    dispatches: list[Any] = field(default_factory=list)
    _constants: list[list[Any]] = field(default_factory=list)

    def replace(self, binary: FunctionCode) -> None:
        """Put other code here, in the place of what is there.

        Args:
            binary: its code and its function.
        """
        self.code[0].attributes["value"] = binary.data
        for op in self.names:
            op.attributes["value"] = ir.StringAttr.get(binary.function.name)
        if not self._constants:
            self._constants = _own_constants(self.dispatches)
        numbers = (binary.function.ordinal, *binary.function.workgroups)
        for made in self._constants:
            for op, number in zip(made, numbers, strict=True):
                op.attributes["value"] = ir.IntegerAttr.get(op.results[0].type, number)


def _own_constants(calls: Sequence[Any]) -> list[list[Any]]:
    """Constants for the function and the workgroups in x, y and z of these calls, right before the
    first of each block."""
    found: list[list[Any]] = []
    block = None
    for call in calls:
        here = ir.InsertionPoint(call)
        if block is None or here.block != block:
            block = here.block
            kinds = [v.type for v in list(call.operands)[_FUNCTION : _FIRST_COUNT + 3]]
            found.append([_constant(kind, here) for kind in kinds])
        for number, one in enumerate(found[-1]):
            call.operands[_FUNCTION + number] = one.results[0]
    return found


def _constant(kind: Any, place: Any) -> Any:
    """A number of the host's code: of 32 bits, or of 64 as functions are counted."""
    return ir.Operation.create(
        f"vm.const.{kind}",
        results=[kind],
        attributes={"value": ir.IntegerAttr.get(kind, 0)},
        ip=place,
    )


def _places(host: Any, executables: Iterable[str]) -> dict[str, _Places]:
    """The places of executables, by their names."""
    found = {name: _Places() for name in executables}
    prefixes = {name: tuple(f"{_symbol(name)}_{form}" for form in _FORMATS) for name in found}
    texts: dict[str, Any] = {}
    asked: list[tuple[str, Any]] = []
    for op in walk(host.operation):
        if op.name == "vm.rodata":
            texts[string_attribute(op, "sym_name")] = op
        if op.name == "vm.rodata" and "mime_type" in op.attributes:
            symbol = string_attribute(op, "sym_name")
            for name, places in found.items():
                if symbol.startswith(prefixes[name]):
                    places.code.append(op)
        elif op.name == "vm.call.variadic" and _callee(op) == _DISPATCH:
            loaded = _loaded(op.operands[1])
            if loaded in found:
                found[loaded].dispatches.append(op)
        elif op.name == "vm.call" and _callee(op) == _LOOKUP:
            asked.append((_loaded(op.operands[0]), op.operands[1]))
    for name, text in asked:
        if name in found:
            symbol = ir.FlatSymbolRefAttr(text.owner.operation.attributes["rodata"]).value
            found[name].names.append(texts[symbol])
    return found


def _sizes(host: Any, wanted: Set[int]) -> list[tuple[int, Any]]:
    """The constants of the host's code that are one of these numbers, each with its number."""
    if not wanted:
        return []
    constants = [op for op in walk(host.operation) if op.name == "vm.const.i64"]
    found = [(int(constant(op.attributes["value"])), op) for op in constants]
    return [(number, op) for number, op in found if number in wanted]


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


def serialize_stubs(session: CompilerSession, module: Any, names: Sequence[str]) -> None:
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
        found = variants(module)
        forms = {name: elf_format(v.attributes["target"]) for name, v in found.items()}
        stubs = {name: v for name, v in found.items() if name in names and forms[name]}
        if len(stubs) < len(found) or not _counts_known(module):
            session.run(module, CONFIGURED_PHASE, "executable-targets", verify=False)
        for variant in stubs.values():
            _empty(variant)
        session.run(module, "executable-targets", "hal", verify=False)
        for name, executable in executables(module):
            for op in walk(executable, lambda _: False):
                if name in stubs and op.name == "hal.executable.binary":
                    op.attributes["format"] = ir.StringAttr.get(forms[name])
                    op.attributes["mime_type"] = ir.StringAttr.get(_ELF_TYPE)


def _counts_known(module: Any) -> bool:
    """Whether the workgroups of all executables are numbers before these are compiled."""
    try:
        functions(module)
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

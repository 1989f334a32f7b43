"""Functions from elsewhere that kernels call: linked as objects and bitcode, or put in as MLIR."""

from __future__ import annotations

import atexit
import functools
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from iree.compiler import ir
from iree.compiler.dialects import arith, func, llvm, memref

from tilewright import scratch
from tilewright.attributes import attribute, attribute_in_braces, print_attribute, quoted
from tilewright.ir.hand_written import index
from tilewright.ir.walk import attribute_of
from tilewright.schedule.codegen import scalars
from tilewright.schedule.codegen.machine import Processor
from tilewright.schedule.codegen.view import BufferView
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Const

# Extensions of x86 processors, by their names here, that compilers of C are told of.
_EXTENSIONS = ("avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512bw", "avx512dq")
# Code for a library without a C library: no guards of the stack, no calls made of loops.
_C_FLAGS = ("-O3", "-fPIC", "-ffreestanding", "-fno-stack-protector", "-fno-exceptions")
_TIMEOUT_S = 120


class ImportedFunctions:
    """The functions that the kernels of a program can call.

    imports: pragmas with their texts. called: the names of functions that code calls now.
    """

    def __init__(self, imports: Sequence[tuple[str, str]], processor: Processor) -> None:
        self._imports = tuple(imports)
        self._processor = processor
        self.called: set[str] = set()

    def call(self, name: str, dtype: str, args: Sequence[Const | tuple[BufferView, int]]) -> None:
        """Emit a call at the insertion point.

        Args:
            name: of the function.
            dtype: of its result, '' for none.
            args: numbers, and regions with offsets in elements.

        Raises:
            ScheduleError: nothing that the target can take has the function, or it takes other
                arguments.
        """
        for kind, text in self._imports:
            if kind == "import_mlir" and _put_in(text, name, args):
                return
        kinds = [kind for kind, _ in self._imports if kind != "import_mlir"]
        if self._processor.is_gpu or not kinds:
            known = ", ".join(sorted({kind for kind, _ in self._imports})) or "nothing"
            raise ScheduleError(
                f"function '{name}' is called on {self._processor.name}, and there is no code of "
                f"it ({known} imported): give it by the pragma import_mlir"
                + ("" if self._processor.is_gpu else ", import_c, import_llvm or import_object")
            )
        self.called.add(name)
        values = [
            scalars.constant(a.dtype, a.value) if isinstance(a, Const) else _pointer(*a)
            for a in args
        ]
        result = ir.Type.parse(dtype) if dtype else None
        self._declare(name, [v.type for v in values], result)
        llvm.CallOp(result, values, [], [], callee=name)

    def link(self, executable: ir.Operation) -> None:
        """Says what an executable is linked with, where its code calls functions.

        Args:
            executable: the `hal.executable.source`.
        """
        if not self.called:
            return
        paths = [_object(k, t, self._flags) for k, t in self._imports if k != "import_mlir"]
        objects = [
            attribute_in_braces("#hal.executable.object", {"path": quoted(str(path))})
            for path in paths
        ]
        targets = (
            attribute("#hal.executable.target", quoted("llvm-cpu"), quoted(f"embedded-elf-{one}"))
            for one in _MACHINES
        )
        listed = {print_attribute(target): objects for target in targets}
        executable.attributes["objects"] = attribute_of(
            attribute_in_braces("#hal.executable.objects", listed)
        )
        self.called.clear()

    @property
    def _flags(self) -> tuple[str, ...]:
        return tuple(f"-m{e}" for e in _EXTENSIONS if e in self._processor.features)

    def _declare(self, name: str, types: Sequence[ir.Type], result: ir.Type | None) -> None:
        """The function's declaration in the kernel's module."""
        owner = ir.InsertionPoint.current.block.owner
        while owner.operation.name != "builtin.module":
            owner = owner.operation.parent
        body = owner.operation.regions[0].blocks[0]
        for known in body.operations:
            named = known.operation.attributes
            if "sym_name" in named and ir.StringAttr(named["sym_name"]).value == name:
                return
        returned = result if result is not None else ir.Type.parse("!llvm.void")
        type_ = llvm.FunctionType.get(returned, list(types))
        with ir.InsertionPoint.at_block_begin(body):
            made = llvm.LLVMFuncOp(name, ir.TypeAttr.get(type_))
        made.operation.attributes["hal.import.static"] = ir.UnitAttr.get()


_MACHINES = ("x86_64", "arm_64", "riscv_64")


def _pointer(view: BufferView, offset: int) -> ir.Value:
    """The address of a region as a pointer of C's."""
    place = arith.AddIOp(view.offset, index(offset)).result if offset else view.offset
    return replace(view, offset=place).pointer()


# -- as MLIR ---------------------------------------------------------------------------------------


def _put_in(text: str, name: str, args: Sequence[Const | tuple[BufferView, int]]) -> bool:
    """Emit the body of a function of a module; False where it has none of that name."""
    where = f"import_mlir, function '{name}'"
    try:
        module = ir.Module.parse(text)
    except ir.MLIRError as error:
        raise ScheduleError(f"import_mlir: {str(error).splitlines()[0]}") from None
    found = [
        f for f in module.body.operations if isinstance(f, func.FuncOp) and f.name.value == name
    ]
    if not found:
        return False
    blocks = found[0].body.blocks
    if len(blocks) != 1:
        raise ScheduleError(
            f"{where}: it has {len(blocks)} blocks; write its loops and branches with scf"
        )
    parameters = list(blocks[0].arguments)
    if len(parameters) != len(args):
        raise ScheduleError(f"{where}: it takes {len(parameters)} arguments, is given {len(args)}")
    for number, (parameter, arg) in enumerate(zip(parameters, args, strict=True)):
        parameter.replace_all_uses_with(_operand(parameter.type, arg, f"{where}, {number}"))
    for operation in list(blocks[0].operations)[:-1]:
        ir.InsertionPoint.current.insert(operation.detach_from_parent())
    return True


def _operand(type_: ir.Type, arg: Const | tuple[BufferView, int], where: str) -> ir.Value:
    """An argument as a function of MLIR wants it: a memref, a number, an index."""
    if isinstance(arg, Const):
        if isinstance(type_, ir.IndexType):
            return index(int(arg.value))
        made = scalars.constant(arg.dtype, arg.value)
    else:
        view, offset = arg
        if offset:
            raise ScheduleError(f"{where}: a region with an offset is a pointer of C's only")
        rank = type_.rank if isinstance(type_, ir.MemRefType) else 0
        lead = len(view.shape) - rank
        if not rank or lead < 0 or any(extent > 1 for extent in view.shape[:lead]):
            raise ScheduleError(f"{where}: it takes {type_}, is given a region {list(view.shape)}")
        made = view.part(view.offset, view.shape[lead:], view.strides[lead:])
        # Which memory it is in only the kernel knows: the function is one for all.
        type_ = ir.MemRefType.get(
            type_.shape,
            type_.element_type,
            layout=type_.layout,
            memory_space=ir.MemRefType(made.type).memory_space,
        )
        if made.type != type_:
            try:
                cast = memref.CastOp(type_, made)
                cast.operation.verify()
            except ir.MLIRError:
                raise ScheduleError(f"{where}: it takes {type_}, is given {made.type}") from None
            made = cast.result
    if made.type != type_:
        raise ScheduleError(f"{where}: it takes {type_}, is given {made.type}")
    return made


# -- as objects and bitcode ------------------------------------------------------------------------


@functools.cache
def _folder() -> Path:
    folder = scratch.create()
    atexit.register(scratch.remove, folder)
    return folder


@functools.cache
def _object(kind: str, text: str, flags: tuple[str, ...]) -> Path:
    """The file that an import is linked as: an object, or LLVM's bitcode.

    Raises:
        ScheduleError: there is no such file, no compiler, or it refuses the source.
    """
    if kind == "import_object":
        path = Path(text).absolute()
        if not path.is_file() or path.suffix not in (".o", ".bc"):
            raise ScheduleError(f"import_object: no file '{text}' (allowed: .o and .bc files)")
        return path
    made = _folder() / hashlib.sha256(f"{kind}{flags}{text}".encode()).hexdigest()[:16]
    if kind == "import_c":
        # TVM's examples say `extern "C"`, which is C++.
        is_cpp = 'extern "C"' in text
        tools = ("c++", "g++", "clang++") if is_cpp else ("cc", "gcc", "clang")
        source, object_ = made.with_suffix(".cc" if is_cpp else ".c"), made.with_suffix(".o")
        return _made(kind, text, source, object_, tools, lambda t: (t, *_C_FLAGS, *flags, "-c"))
    given = Path(text) if len(text) < 4096 and "\n" not in text else None
    if given is not None and given.suffix == ".bc" and given.is_file():
        return given.absolute()
    if given is not None and given.suffix == ".ll" and given.is_file():
        text = given.read_text()
    source, bitcode = made.with_suffix(".ll"), made.with_suffix(".bc")
    return _made(kind, text, source, bitcode, ("llvm-as", "opt"), lambda t: (t,))


def _made(
    kind: str,
    text: str,
    source: Path,
    result: Path,
    tools: Sequence[str],
    command: Callable[[str], Sequence[str]],
) -> Path:
    """What the first tool that there is makes of a source."""
    tool = next((t for t in tools if shutil.which(t)), None)
    if tool is None:
        raise ScheduleError(
            f"{kind}: there is no compiler for it here ({', '.join(tools)}); install one, or give "
            "the function by import_mlir or import_object"
        )
    source.write_text(text)
    run = [*command(tool), str(source), "-o", str(result)]
    try:
        done = subprocess.run(run, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ScheduleError(f"{kind}: {tool} does not come to an end") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["it failed"]
        raise ScheduleError(f"{kind}: {tool}: {lines[0].removeprefix(f'{source}:')}")
    return result

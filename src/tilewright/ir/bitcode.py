"""Executables whose code is LLVM bitcode: a compile links it, and none of its passes walks it.

The passes of a compile walk the operations of all executables that a program has, many times over:
for a network with thirty kernels of our own that takes longer than all the rest. An executable that
has its code as an object (`#hal.executable.object`) costs what LLVM takes to compile it, and the
code that comes out is the same.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from iree.compiler import ir
from iree.compiler.dialects import hal

from tilewright.attributes import (
    ATTRIBUTE,
    BODY,
    TYPED,
    Tree,
    attribute_in_braces,
    items_of,
    parse_attribute,
    quoted,
    unquoted,
)
from tilewright.ir.kernel_lowering import lower_to_llvm
from tilewright.ir.session import CompileError, CompilerSession
from tilewright.ir.target_info import family_target
from tilewright.ir.walk import attribute_of, attribute_tree, string_attribute, walk

#: The flag that names the folder into which a session writes the code that it hands to LLVM.
FOLDER_FLAG = "--iree-hal-dump-executable-intermediates-to"

_SOURCE_END = "hal.executable.source_end"
_LOCAL_MEMORY = "workgroup_local_memory"
_OBJECTS, _OBJECT = "objects", "#hal.executable.object"
# The function as IREE makes it of one without arguments: environment, state, workgroup.
_CALLS = """
llvm.func @{code}(!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32 attributes {{hal.import.bitcode = true}}
llvm.func @{name}(%a: !llvm.ptr, %b: !llvm.ptr, %c: !llvm.ptr) -> i32 {{
  %0 = llvm.call @{code}(%a, %b, %c) : (!llvm.ptr, !llvm.ptr, !llvm.ptr) -> i32
  llvm.return %0 : i32
}}
"""
# No bitcode: IREE writes down what it has generated, reads the objects, and gives up before LLVM,
# of which nothing is needed, has begun.
_UNREADABLE = '[#hal.executable.object<{path = "none.bc", data = dense<0> : vector<1xi8>}>]'


@dataclass(frozen=True)
class Bitcode:
    """data: a module of LLVM's that has the code of an executable's function. local_memory: bytes
    that a workgroup has of its own."""

    data: bytes
    local_memory: int


def bitcode_of(
    session: CompilerSession, folder: Path, executable: bytes, target: ir.Attribute
) -> Bitcode:
    """Compile the code of an executable to bitcode.

    Args:
        session: the compiler; its flags name `folder` behind `FOLDER_FLAG`.
        folder: what is in it is removed.
        executable: a module with one `hal.executable.source` that has one function, as bytecode.
        target: the `#hal.executable.target` that it is compiled for, of the session's context.

    Returns:
        The code.

    Raises:
        CompileError: the compiler does not take it.
    """
    with session.context, ir.Location.unknown():
        source = ir.Module.parse(executable)
        (whole,) = source.body.operations
        name = string_attribute(whole.operation, "sym_name")
        module = _for_target(whole.operation, name, target)
        lower_to_llvm(session, module)
        local_memory = 0
        for op in walk(module.operation, lambda o: o.name != "llvm.func"):
            if op.name == "hal.executable.export" and _LOCAL_MEMORY in op.attributes:
                local_memory = ir.IntegerAttr(op.attributes[_LOCAL_MEMORY]).value
            if op.name == "hal.executable.variant":
                op.attributes[_OBJECTS] = ir.Attribute.parse(_UNREADABLE)
            if op.name == "llvm.func" and string_attribute(op, "sym_name") == name:
                # What is exported is not seen by a linker: the code gets a name of its own.
                ir.SymbolTable.set_symbol_name(op, code_of(name))
                calls = _calls(name)
                _, calling = calls.body.operations
                calling.operation.clone(ip=ir.InsertionPoint(op))
        for old in folder.iterdir() if folder.exists() else ():
            old.unlink()
        try:
            session.run(module.operation, "executable-targets", "hal", verify=False)
        except CompileError:
            if not any(folder.glob("*.codegen.bc")):
                raise
        (written,) = folder.glob("*.codegen.bc")
        return Bitcode(written.read_bytes(), local_memory)


def link(executable: ir.Operation, bitcode: Bitcode, target: ir.Attribute) -> None:
    """Put bitcode in the place of an executable's code.

    Args:
        executable: a `hal.executable.source`; what is noted on its function stays there.
        bitcode: what :func:`bitcode_of` made of it.
        target: what that was compiled for. The code is linked for targets of the same processor
            family; for others the compile fails, since the function is not there.
    """
    name = string_attribute(executable, "sym_name")
    with executable.context, ir.Location.unknown():
        for op in list(walk(executable, lambda o: o.name != "func.func")):
            if op.name == "hal.executable.export" and bitcode.local_memory:
                size = ir.IntegerAttr.get(ir.IndexType.get(), bitcode.local_memory)
                op.attributes[_LOCAL_MEMORY] = size
            if op.name == "func.func":
                calls = _calls(name)
                for made in calls.body.operations:
                    copy = made.operation.clone(ip=ir.InsertionPoint(op)).operation
                    for noted in op.attributes if len(copy.regions[0].blocks) else ():
                        if noted not in ("sym_name", "function_type"):
                            copy.attributes[noted] = op.attributes[noted]
                op.erase()
        bytes_ = f'dense<"0x{bitcode.data.hex().upper()}">'
        data = {TYPED: [bytes_, f"vector<{len(bitcode.data)}xi8>"]}
        linked = {"path": quoted(f"{name}.bc"), "data": data}
        put_objects(
            executable, {str(family_target(target)): [attribute_in_braces(_OBJECT, linked)]}
        )


def objects_of(executable: ir.Operation) -> dict[str, list[Tree]]:
    """What an executable links.

    Args:
        executable: a `hal.executable.source`.

    Returns:
        Its objects by the text of the target that they are for; {} where it has none.
    """
    if _OBJECTS not in executable.attributes:
        return {}
    objects = attribute_tree(executable.attributes[_OBJECTS])
    return {name: list(tree) for name, tree in objects.items() if name not in (ATTRIBUTE, BODY)}


def put_objects(executable: ir.Operation, objects: Mapping[str, Sequence[Tree]]) -> None:
    """Have an executable link objects.

    Args:
        executable: a `hal.executable.source`.
        objects: as :func:`objects_of` returns them.
    """
    given = {name: list(tree) for name, tree in objects.items()}
    executable.attributes[_OBJECTS] = attribute_of(
        attribute_in_braces("#hal.executable.objects", given)
    )


def family_of(executable: ir.Operation) -> str:
    """The family of the processors that an executable's objects are for, as their triple begins.

    Args:
        executable: one with objects.
    """
    (target,) = objects_of(executable)
    config = items_of(parse_attribute(target))[-1]
    return unquoted(config["target_triple"]).partition("-")[0]


def as_bytecode(executable: ir.Operation) -> bytes:
    """An executable in a module of its own.

    Args:
        executable: of any context.
    """
    with executable.context, ir.Location.unknown():
        module, written = ir.Module.create(), io.BytesIO()
        module.body.append(executable.clone(ip=False).operation)
        module.operation.write_bytecode(written)
        return written.getvalue()


def code_of(name: str) -> str:
    """What the function with the code is called that an executable's function calls.

    Args:
        name: of the executable.
    """
    return f"{name}_code"


def _calls(name: str) -> ir.Module:
    """The code's function as another module has it, and the function that calls it."""
    return ir.Module.parse(_CALLS.format(name=name, code=code_of(name)))


def _for_target(source: ir.Operation, name: str, target: ir.Attribute) -> ir.Module:
    """An executable as IREE has it at the executable-sources phase."""
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        whole = hal.ExecutableOp(name)
    with ir.InsertionPoint(whole.body.blocks.append()):
        block = hal.ExecutableVariantOp("code", target).body.blocks.append()
        hal.ExecutableEndOp()
    for op in list(source.regions[0].blocks[0].operations):
        if op.operation.name != _SOURCE_END:
            block.append(op.operation)
    with ir.InsertionPoint(block):
        hal.ExecutableVariantEndOp()
    return module

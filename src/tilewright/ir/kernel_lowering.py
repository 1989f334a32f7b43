"""Code of kernels to LLVM's dialect, by the passes that it needs.

IREE takes an executable from loops over memory to LLVM's dialect by more than seventy passes, most
of them for tensors, linalg and what else a dispatch begins as; on kernels that are loops already
these change nothing, and take a third to half of the time. What consists of operations that none
of them looks at gets the others, in IREE's order; whatever else is in a kernel, IREE's own
pipeline. The object files are the same, byte for byte (tests/ir/test_kernel_lowering.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from iree.compiler import ir

from tilewright.ir.lowering import TRANSLATION_INFO, leaves_code_alone
from tilewright.ir.session import CompilerSession
from tilewright.ir.target_info import elf_format
from tilewright.ir.walk import string_attribute, walk

_SOURCES, _TARGETS = "executable-sources", "executable-targets"
_EXPORT, _FUNCTION = "hal.executable.export", "func.func"
# As in IREE's own pipelines; the first is another by default.
_CLEAN = "canonicalize{region-simplify=normal},cse"
_PASSES = (
    "iree-codegen-reconcile-translation-info",
    "func.func("
    f"{_CLEAN},"
    "iree-convert-bf16-arith-to-f32,"
    "iree-codegen-convert-unsupported-float-to-int-buffers{include-bf16=true},"
    f"{_CLEAN},"
    "iree-codegen-math-transform,"
    "iree-codegen-hoist-statically-bound-allocations,"
    "iree-codegen-vector-transfer-lowering,"
    "iree-codegen-cleanup-buffer-alloc-view,"
    "iree-llvmcpu-assign-workgroup-local-memory,"
    "iree-llvmcpu-check-ir-before-llvm-conversion,"
    f"convert-scf-to-cf,{_CLEAN})",
    "iree-convert-to-llvm",
    "reconcile-unrealized-casts",
    "iree-llvmcpu-synchronize-symbol-visibility",
    _CLEAN,
    "llvm.func(iree-codegen-add-fast-math-flags)",
)
_PIPELINE = (
    f"hal.executable(hal.executable.variant(builtin.module({','.join(_PASSES)}),"
    "iree-codegen-propagate-dispatch-config))"
)
# What the passes that are left out have nothing to do with; floats that are computed with in f32
# and f64 alone, since others are computed in these, or in integers, by passes that are left out.
_CONVERSIONS = frozenset(("arith.extf", "arith.truncf"))
_FLOATS = (
    "addf cmpf divf fptosi fptoui maximumf maxnumf minimumf minnumf mulf negf select sitofp subf "
    "uitofp"
)
_ON_FLOATS = frozenset(f"arith.{name}" for name in _FLOATS.split())
_INTEGERS = (
    "addi andi bitcast cmpi constant divsi divui extsi extui index_cast index_castui maxsi maxui "
    "minsi minui muli ori remsi remui shli shrsi shrui subi trunci xori"
)
_MEMORY = (
    "alloc alloca distinct_objects extract_aligned_pointer_as_index load memory_space_cast "
    "prefetch reinterpret_cast store"
)
_VECTORS = (
    "bitcast broadcast create_mask extract from_elements insert load maskedload maskedstore "
    "shape_cast shuffle store"
)
_KNOWN = frozenset(
    [
        *(f"arith.{name}" for name in _INTEGERS.split()),
        *(f"memref.{name}" for name in _MEMORY.split()),
        *(f"vector.{name}" for name in _VECTORS.split()),
        *(f"scf.{name}" for name in ("for", "if", "yield")),
        *("func.return", "hal.interface.binding.subspan", "hal.interface.workgroup.id"),
    ]
)
_COMPUTED = (ir.F32Type, ir.F64Type)
_CONVERTED = (ir.F16Type, *_COMPUTED)


def lower_to_llvm(session: CompilerSession, module: ir.Module) -> None:
    """Take executables from the executable-sources phase to executable-targets, in place.

    Args:
        session: the compiler of the module's context.
        module: executables alone; where it does not compile, it is of no more use.

    Raises:
        CompileError: the compiler does not take them.
    """
    known = session.has_passes(_PIPELINE)
    with session.context, ir.Location.unknown():
        variants = list(_variants(module)) if known else []
        plain = bool(variants) and all(map(_is_plain, variants))
        for variant in variants if plain else ():
            _configure(variant)
    if plain:
        session.run_passes(module.operation, _PIPELINE)
    else:
        session.run(module.operation, _SOURCES, _TARGETS, verify=False)


def _variants(module: ir.Module) -> Iterator[ir.Operation]:
    for op in walk(module.operation, lambda o: o.name in ("builtin.module", "hal.executable")):
        if op.name == "hal.executable.variant":
            yield op


def _is_plain(variant: ir.Operation) -> bool:
    """Whether its functions are loops for a processor, as many as are exported, of operations that
    are known, and are called with numbers of workgroups that are constants."""
    exports, modules = _parts(variant)
    if not elf_format(variant.attributes["target"]) or len(modules) != 1:
        return False
    inner = [op.operation for op in modules[0].regions[0].blocks[0].operations]
    functions = [op for op in inner if op.name == _FUNCTION]
    if len(functions) != len(exports) or any(_workgroups(export) is None for export in exports):
        return False
    others = (op for op in inner if op.name != _FUNCTION)
    return all(map(_is_known, others)) and all(
        TRANSLATION_INFO in function.attributes
        and leaves_code_alone(function.attributes[TRANSLATION_INFO])
        and all(map(_is_known, walk(function)))
        for function in functions
    )


def _parts(variant: ir.Operation) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """What a variant exports, and the modules with its code."""
    contents = [op.operation for op in variant.regions[0].blocks[0].operations]
    exports = [op for op in contents if op.name == _EXPORT]
    return exports, [op for op in contents if op.name == "builtin.module"]


def _workgroups(export: ir.Operation) -> list[ir.Value] | None:
    """Their numbers in x, y and z, if they are constants."""
    if not len(export.regions[0].blocks):
        return None
    *before, last = (op.operation for op in export.regions[0].blocks[0].operations)
    constants = all(op.name == "arith.constant" for op in before)
    return list(last.operands) if constants else None


def _is_known(op: ir.Operation) -> bool:
    name: str = op.name
    if name in _CONVERSIONS:
        return _floats_are(op, _CONVERTED)
    if name in _ON_FLOATS or name.startswith("math."):
        return _floats_are(op, _COMPUTED)
    return name in _KNOWN or name.startswith("llvm.")


def _floats_are(op: ir.Operation, kinds: tuple[type[ir.Type], ...]) -> bool:
    """Whether all floats that an operation takes and makes, in vectors or alone, are of kinds."""
    for value in (*op.operands, *op.results):
        element = value.type
        if isinstance(element, ir.VectorType):
            element = element.element_type
        if isinstance(element, ir.FloatType) and not isinstance(element, kinds):
            return False
    return True


def _configure(variant: ir.Operation) -> None:
    """Say of each function how many workgroups run it, as a pass of IREE's configuration does: what
    they have of memory is written down there, and from there on the export."""
    exports, (inner,) = _parts(variant)
    for export in exports:
        name = ir.FlatSymbolRefAttr.get(string_attribute(export, "sym_name"))
        made = ir.Operation.create(
            "iree_codegen.dispatch_config",
            attributes={"function_ref": name},
            regions=1,
            ip=ir.InsertionPoint(inner.regions[0].blocks[0]),
        )
        count = export.regions[0].blocks[0]
        *constants, _ = count.operations
        with ir.InsertionPoint(made.regions[0].blocks.append(*(a.type for a in count.arguments))):
            copies = {op.operation.result: op.operation.clone().result for op in constants}
            numbers = [copies[value] for value in _workgroups(export) or ()]
            ir.Operation.create("iree_codegen.yield", operands=numbers)

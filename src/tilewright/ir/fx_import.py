"""Programs of torch.export as MLIR, with their weights outside; also run as a program.

The importer is the one that comes with IREE's compiler, so that what it writes is what this
compiler reads; IREE Turbine wraps the same one.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from iree.compiler import ir
from iree.compiler.dialects import arith, util
from iree.compiler.extras.fx_importer import FxImporter, FxImporterHooks
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.export.graph_signature import ConstantArgument

from tilewright.errors import UserError
from tilewright.ir.importing import PARAMETER_SCOPE
from tilewright.ir.torch_definitions import definitions

# Ops that the compiler's torch dialect has no lowering for, or a worse one than for their parts.
# Attention, convolutions, products and norms of whole layers stay what they are. The list is that
# of IREE Turbine 3.9 (iree/turbine/dynamo/decompositions.py) without what only training needs.
_DECOMPOSED = (
    "_adaptive_avg_pool2d _euclidean_dist _log_softmax _native_batch_norm_legit "
    "_native_batch_norm_legit.no_stats _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training _prelu_kernel _to_copy _unsafe_index.Tensor addmm dot "
    "full grid_sampler_2d im2col index_copy index_copy_ lift_fresh_copy.default "
    "linspace.Tensor_Tensor log_sigmoid_forward masked_fill.Scalar masked_fill.Tensor "
    "native_group_norm native_layer_norm norm.ScalarOpt_dim squeeze.dims t unbind.int "
    "unsafe_split.Tensor upsample_bilinear2d.vec"
)

# MLIR's name for torch's element types, integers without a sign as the compiler has them inside.
ELEMENT_TYPES = {
    torch.bool: "i1",
    torch.uint8: "i8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e4m3fnuz: "f8E4M3FNUZ",
    torch.float8_e5m2: "f8E5M2",
    torch.float8_e5m2fnuz: "f8E5M2FNUZ",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
}


def decomposed(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """A program in ops that the compiler reads.

    Args:
        program: as `torch.export.export` made it.
    """
    aten = torch.ops.aten
    ops = []
    for name in _DECOMPOSED.split():
        packet, _, overload = name.partition(".")
        op = getattr(aten, packet, None)
        ops.append(getattr(op, overload, op) if overload else op)
    table = get_decompositions([op for op in ops if op is not None])
    return program.run_decompositions({**table, **definitions()})


def import_exported(
    program: torch.export.ExportedProgram, path: Path, *, f64: bool = True
) -> dict[str, torch.Tensor]:
    """Write a program as MLIR, its function as `main`, without its weights.

    Args:
        program: as `torch.export.export` made it, or as `decomposed`.
        path: the file to write.
        f64: whether the compiler will be told to compute in f64 what is declared so. Otherwise it
            takes f64 for f32, the bytes of weights as well, so that these have to be f32.

    Returns:
        Parameters, buffers and constant tensors by their names in the program's parameter scope.

    Raises:
        UserError: it has what cannot be imported, or changes its buffers or arguments.
    """
    changed = list(program.graph_signature.buffers_to_mutate.values())
    if changed:
        raise UserError(
            f"the program changes its buffers when it runs ({', '.join(changed[:3])}), which a "
            "compiled program cannot; bring the module to evaluation mode: module.eval()"
        )
    changed = list(program.graph_signature.user_inputs_to_mutate.values())
    if changed:
        raise UserError(
            f"the program changes its arguments when it runs ({', '.join(changed[:3])}), which a "
            "compiled program cannot; have it change copies: x = x.clone()"
        )
    hooks, text = _import(program, f64)
    before: set[str] = set()
    while (others := _unknown_ops(text)) - before:
        # What the compiler's torch dialect does not know is taken apart by PyTorch, if it can; and
        # so is what it makes of it.
        before |= others
        table = {k: v for k, v in core_aten_decompositions().items() if str(k) in others}
        if table:
            program = program.run_decompositions({**table, **definitions()})
            hooks, text = _import(program, f64)
    path.write_bytes(text.get_asm(binary=True, enable_debug_info=False))
    return hooks.weights


def _import(program: torch.export.ExportedProgram, f64: bool) -> tuple[_Outside, ir.Operation]:
    context = ir.Context()
    context.load_all_available_dialects()
    hooks = _Outside({id(t): name for name, t in program.constants.items()}, f64)
    importer = FxImporter(context=context, hooks=hooks)
    signature = program.graph_signature
    results = signature.output_specs
    try:
        # Of what is returned, None and numbers of the module's own are known without running it.
        signature.output_specs = [
            one for one in results if not isinstance(one.arg, ConstantArgument)
        ]
        importer.import_program(program, func_name="main")
    except (NotImplementedError, TypeError, AssertionError, KeyError) as error:
        raise UserError(f"the program cannot be imported: {_line(error)}") from error
    finally:
        signature.output_specs = results
    hooks.module = None
    return hooks, importer.module.operation


def _unknown_ops(module: ir.Operation) -> set[str]:
    """The ops, as torch names them, that the torch dialect has no ops of its own for."""
    found = set()
    for function in module.regions[0].blocks[0].operations:
        if function.operation.name != "func.func":
            continue
        for block in function.operation.regions[0].blocks:
            for op in block.operations:
                if op.operation.name == "torch.operator":
                    name = str(ir.StringAttr(op.operation.attributes["name"]).value)
                    name = name.removeprefix("torch.")
                    found |= {name, f"{name}.default"}
    return found


class _Outside(FxImporterHooks):  # type: ignore[misc]
    """Has the importer load weights from parameters instead of writing them down.

    `constants`: names of constant tensors by their identity. `f64`: as `import_exported` has it.
    """

    def __init__(self, constants: Mapping[int, str], f64: bool) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self.module: Any = None
        self._constants = constants
        self._f64 = f64

    def prepare_module(self, module_op: ir.Operation) -> None:
        self.module = module_op

    def resolve_input(self, gni: Any, value: Any, info: Any) -> ir.Value:
        return self._load(gni, info.input_spec.target, value)

    def resolve_literal(self, gni: Any, literal: Any, info: Any) -> ir.Value | None:
        name = self._constants.get(id(literal))
        # A single number may decide what code there is; it is no weight.
        if name is None or literal.numel() <= 1:
            return None
        return self._load(gni, name, literal)

    def _load(self, gni: Any, name: str, tensor: torch.Tensor) -> ir.Value:
        element_type = ELEMENT_TYPES.get(tensor.dtype)
        if element_type is None or tensor.layout != torch.strided:
            raise UserError(f"weight '{name}' is {tensor.layout} of {tensor.dtype}")
        shortened = tensor.dtype == torch.float64 and not self._f64
        if shortened:
            element_type = ELEMENT_TYPES[torch.float32]
        symbol = f"weight.{name}"
        context = self.module.context
        with context, ir.Location.unknown():
            kind = ir.RankedTensorType.get(list(tensor.shape), ir.Type.parse(element_type))
            if name not in self.weights:
                self.weights[name] = tensor.float() if shortened else tensor
                key = f"{ir.StringAttr.get(PARAMETER_SCOPE)}::{ir.StringAttr.get(name)}"
                outside = ir.Attribute.parse(f"#stream.parameter.named<{key}> : {kind}")
                with ir.InsertionPoint.at_block_begin(self.module.regions[0].blocks[0]):
                    util.GlobalOp(
                        symbol,
                        ir.TypeAttr.get(kind),
                        sym_visibility="private",
                        initial_value=outside,
                    )
            with ir.InsertionPoint(gni._b):
                loaded = util.GlobalLoadOp(kind, symbol).result
                if shortened:
                    wide = ir.RankedTensorType.get(list(tensor.shape), ir.F64Type.get())
                    loaded = arith.ExtFOp(wide, loaded).result
                return ir.Operation.create(
                    "torch_c.from_builtin_tensor",
                    results=[gni._cc.tensor_to_vtensor_type(tensor)],
                    operands=[loaded],
                ).result


def write_weights(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write an archive of a program's weights; nothing where there are none.

    Args:
        weights: by name.
        path: the file.
    """
    from iree.runtime import ParameterIndex

    if not weights:
        return
    index = ParameterIndex()
    for name, tensor in weights.items():
        index.add_buffer(name, as_bytes(tensor))
    index.create_archive_file(str(path))


def as_bytes(tensor: torch.Tensor) -> Any:
    """A tensor's elements row by row as NumPy's bytes, of the same memory where it lies so.

    Args:
        tensor: on the host.
    """
    return tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy()


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"


def main(arguments: list[str]) -> int:
    """Import a file of `torch.export.save`.

    Args:
        arguments: the file, the MLIR and the archive to write.

    Returns:
        The exit status; a message is on stderr where it is not 0.
    """
    model, program, weights = map(Path, arguments)
    warnings.simplefilter("ignore")
    try:
        exported = torch.export.load(model)
        with torch.no_grad():
            write_weights(import_exported(decomposed(exported), program, f64=False), weights)
    except UserError as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:
        # Of what torch may raise only the line is of use to who has given the file.
        print(_line(error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

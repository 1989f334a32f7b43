"""Arguments of a program's function made weights outside it."""

from __future__ import annotations

from collections.abc import Mapping

from iree.compiler import ir
from iree.compiler.dialects import util

from tilewright.errors import UserError
from tilewright.ir.importing import PARAMETER_SCOPE
from tilewright.ir.walk import string_attribute


def with_weights(program: bytes, weights: Mapping[int, str]) -> bytes:
    """A program whose function takes some of its arguments from parameters.

    Args:
        program: MLIR with one public function, of tensors.
        weights: names in the scope of imported weights, by the places of the arguments.

    Returns:
        The program as text.

    Raises:
        UserError: the compiler cannot read it.
    """
    context = ir.Context()
    context.load_all_available_dialects()
    with context, ir.Location.unknown():
        try:
            module = ir.Module.parse(program)
        except ir.MLIRError as error:
            raise UserError(f"IREE cannot read the program: {error}".splitlines()[0]) from error
        functions = [op.operation for op in module.body.operations]
        (function,) = (
            one for one in functions if string_attribute(one, "sym_visibility") in ("", "public")
        )
        block = function.regions[0].blocks[0]
        for place in sorted(weights, reverse=True):
            argument = block.arguments[place]
            key = f"{ir.StringAttr.get(PARAMETER_SCOPE)}::{ir.StringAttr.get(weights[place])}"
            outside = ir.Attribute.parse(f"#stream.parameter.named<{key}> : {argument.type}")
            symbol = f"weight.{weights[place]}"
            with ir.InsertionPoint.at_block_begin(module.body):
                util.GlobalOp(
                    symbol,
                    ir.TypeAttr.get(argument.type),
                    sym_visibility="private",
                    initial_value=outside,
                )
            with ir.InsertionPoint.at_block_begin(block):
                loaded = util.GlobalLoadOp(argument.type, symbol).result
            argument.replace_all_uses_with(loaded)
            block.erase_argument(place)
        kind = ir.TypeAttr(function.attributes["function_type"]).value
        inputs = [one.type for one in block.arguments]
        function.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get(inputs, ir.FunctionType(kind).results)
        )
        if "arg_attrs" in function.attributes:
            # Of use to the framework only: shardings, names.
            del function.attributes["arg_attrs"]
        module.operation.verify()
        asm: bytes = module.operation.get_asm(binary=True, enable_debug_info=False)
        return asm

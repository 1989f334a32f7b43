"""Kernels in one preprocessing transform spec, which plain `iree-compile` takes.

The spec has for each kernel its executables, a function that packs what is constant and dispatches
them, a matcher of the site and the rewrite that puts the function's body in its place:

    hal.executable.source private @tilewright_1f0c… <objects = … LLVM bitcode …> { … calls it … }
    util.func private @tilewright_1f0c…_call(%x: …, %w: …) -> … attributes {tilewright.kernel = …} {
      %0 = tensor.pad %w …   %1 = tensor.expand_shape %0 …   %2 = linalg.transpose ins(%1 …
      %claims = flow.tensor.splat %zero   // where workers share the work, see ir/piece_claims
      %3, %4 = flow.dispatch @tilewright_1f0c…::@tilewright_1f0c…(%claims, %x, %2)
      util.return %3
    }
    transform.named_sequence @__transform_main(%module) {
      %functions = transform.structured.match ops{["util.func"]} in %module
      transform.foreach %functions {
        transform.foreach_match …       // constants beside the ops that use them, see spec/pattern
        transform.foreach_match …       // sites of most ops first: a site may be part of another
        transform.apply_dce
        transform.apply_licm to …       // what packs constants, out of loops
        transform.apply_cse to …        // and there once for all steps of a loop
      }
    }

The body is put in at once (`inline_call`): what packs constants stands in the program then, where
IREE hoists it, and evaluates it when it compiles or loads the program.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, flow, linalg, tensor

from tilewright.errors import UserError
from tilewright.ir.bitcode import code_of, family_of
from tilewright.ir.piece_claims import claim
from tilewright.ir.stages import note_pieces
from tilewright.ir.walk import iterator_types, symbols, walk
from tilewright.schedule.codegen import scalars
from tilewright.schedule.codegen.machine import machine_for
from tilewright.schedule.codegen.module import (
    EmittedKernel,
    call_kernels,
    context,
    emit_kernels,
    tensor_type,
)
from tilewright.schedule.in_place import replaceable
from tilewright.schedule.nest import Buffer, LoopProgram
from tilewright.schedule.splitting import LARGEST
from tilewright.site import KernelChoice
from tilewright.sketch.interface import SketchedKernel
from tilewright.sketch.packing import Matrix, Packing
from tilewright.sketch.requirements import Requirements
from tilewright.spec import library, shared_sequences
from tilewright.spec.kernels import KernelSymbols, store
from tilewright.spec.pattern import Rewrite, SitePattern, call, define_function
from tilewright.target import Target

#: The function of a site's module.
FUNCTION = "main"


@dataclass(frozen=True)
class SpecKernel:
    """A kernel that a spec puts in the place of a site.

    name: that no other kernel of the spec has. site: the site's module, as `Site.module` has it.
    kernel: the schedule. choice: what wrote it. target: what it is for.
    """

    name: str
    site: bytes
    kernel: SketchedKernel
    choice: KernelChoice
    target: Target


@dataclass(frozen=True)
class KernelPart:
    """What a spec has of one kernel.

    name, site: as of a SpecKernel. code: a module, as bytecode, with its executables, its function,
    matcher and rewrite.
    """

    name: str
    site: bytes
    code: bytes


def write_part(
    kernel: SpecKernel, compiled: Callable[[ir.Operation], None] | None = None
) -> KernelPart:
    """What a spec has of a kernel, which takes most of the time that writing the spec takes.

    Args:
        kernel: with its schedule.
        compiled: puts compiled code in the place of an executable's (`sketch.spec_code`); without
            it the code is MLIR.

    Returns:
        For any spec with the kernel.

    Raises:
        UserError: a site that cannot be recognised.
        ScheduleError: a schedule that cannot be code.
    """
    with context(), ir.Location.unknown():
        written = _Written(kernel.name, kernel.site)
        module, code = library.new_module({}), io.BytesIO()
        with ir.InsertionPoint(module.body):
            written.define(kernel, compiled)
        shared_sequences.add_helpers(module)
        module.operation.write_bytecode(code)
        return KernelPart(kernel.name, kernel.site, code.getvalue())


def write_kernel_spec(
    kernels: Sequence[SpecKernel],
    header: Mapping[str, str],
    compiled: Callable[[ir.Operation], None] | None = None,
) -> str:
    """The text of a verified spec that computes sites with kernels.

    Args:
        kernels: each with a name and a site of its own.
        header: kept on the module (`tilewright.spec`).
        compiled: as for :func:`write_part`.

    Returns:
        As :func:`join_parts`.

    Raises:
        UserError: a site that cannot be recognised, or two kernels for one.
        ScheduleError: a schedule that cannot be code.
    """
    return join_parts([write_part(one, compiled) for one in kernels], header)


def join_parts(parts: Sequence[KernelPart], header: Mapping[str, str]) -> str:
    """The text of a verified spec, of what it has of each kernel.

    Args:
        parts: each with a name and a site of its own.
        header: kept on the module (`tilewright.spec`).

    Returns:
        A module of the transform dialect, for `--iree-preprocessing-transform-spec-filename=`; it
        changes nothing where there are no kernels.

    Raises:
        UserError: two kernels are for one site.
    """
    with context(), ir.Location.unknown():
        module = library.new_module(dict(header))
        written: dict[KernelSymbols, _Written] = {}
        for part in parts:
            one = _Written(part.name, part.site)
            if one.symbols in written:
                other = written[one.symbols].name
                raise UserError(f"kernels '{other}' and '{one.name}' are for one site")
            written[one.symbols] = one
            own = ir.Module.parse(part.code)
            for op in own.body.operations:
                if not shared_sequences.is_helper(op.operation):
                    op.operation.clone(ip=ir.InsertionPoint(module.body))
        with ir.InsertionPoint(module.body):
            _define_main(list(written.values()))
        shared_sequences.add_helpers(module)
        module.operation.verify()
        return library.printed(module)


class _Written:
    """A kernel in a module that is being written."""

    def __init__(self, name: str, site: bytes) -> None:
        self.name = name
        # The pattern is made of its ops.
        self._site = ir.Module.parse(site)
        functions = symbols(self._site)
        if FUNCTION not in functions:
            raise UserError(f"site of kernel '{name}': it has no function '{FUNCTION}'")
        try:
            self.pattern = SitePattern(functions[FUNCTION])
        except UserError as error:
            raise UserError(f"site of kernel '{name}': {error}") from error
        self.symbols = KernelSymbols.of(self.pattern.digest)

    def define(self, given: SpecKernel, compiled: Callable[[ir.Operation], None] | None) -> None:
        """Define executables, function, matcher and rewrite."""
        lowered = given.kernel.lower()
        program = lowered.program
        kernels = emit_kernels(
            program,
            machine_for(given.target),
            self.symbols.executable,
            given.kernel.unaligned(program),
        )
        code = [one.function for one in kernels]
        function = define_function(
            self.symbols.call,
            self.pattern.input_types,
            [self.pattern.output_type],
            lambda *values: self._body(given, program, kernels, values),
        )
        texts = {
            "name": given.name,
            "site": self.pattern.describe(),
            "target": given.target.key,
            "sketch": given.choice.sketch,
            "knobs": ", ".join(f"{name} {value}" for name, value in given.choice.knobs.items),
            "needs": Requirements.of(code, given.target).to_text(),
            "loops": lowered.text,
            "python": given.kernel.schedule.trace().to_python(),
        }
        store(function, texts, code)
        if compiled is not None:
            for one, kernel, nest in zip(code, kernels, program.kernels, strict=True):
                whole, pieces = one.parent.parent, kernel.pieces
                # One worker has all the pieces.
                claimed = pieces is not None and pieces.can_be_claimed and given.target.cores > 1
                if pieces is not None:
                    numbers = [kernel.reads.index(b) for b in replaceable(nest)]
                    note_pieces(one, pieces, claimed, numbers)
                compiled(whole)
                if pieces is not None and claimed:
                    calls = _calls(function, kernel)
                    claim(
                        whole,
                        code_of(kernel.name),
                        kernel.bindings,
                        pieces,
                        family_of(whole),
                        calls,
                    )
        self.pattern.define_matcher(self.symbols.matcher)
        handles = [library.any_op(), library.any_value(), library.any_value()]

        def replace(root: ir.Value, inputs: ir.Value, output: ir.Value) -> None:
            parent = ir.Operation.create(
                "transform.util.get_nearest_symbol_table",
                operands=[root],
                results=[library.any_op()],
            ).results[0]
            for kernel in kernels:
                ir.Operation.create(
                    "transform.util.import_symbol",
                    operands=[parent],
                    results=[library.any_op()],
                    attributes={
                        "symbol": ir.FlatSymbolRefAttr.get(kernel.name),
                        "if_undefined": ir.UnitAttr.get(),
                    },
                )
            call(self.symbols.call, self.pattern.ordered(inputs), output, root)

        library.define(self.symbols.action, handles, replace)

    def _body(
        self,
        given: SpecKernel,
        program: LoopProgram,
        kernels: Sequence[EmittedKernel],
        values: Sequence[ir.Value],
    ) -> list[ir.Value]:
        if len(program.inputs) != len(values) or len(program.outputs) != 1:
            raise UserError(
                f"kernel '{self.name}' takes {len(program.inputs)} inputs, its site {len(values)}"
            )
        inputs = []
        for number, (value, buffer) in enumerate(zip(values, program.inputs, strict=True)):
            packing = given.kernel.packings.get(number)
            packed = _packed(value, packing) if packing is not None else value
            inputs.append(self._as(packed, tensor_type(program, buffer), buffer))
        (result,) = call_kernels(program, kernels, inputs)
        return [self._as(result, self.pattern.output_type, program.outputs[0])]

    def _as(self, value: ir.Value, type_: ir.Type, buffer: Buffer) -> ir.Value:
        """The value with another shape of as many elements."""
        if value.type == type_:
            return value
        old, new = ir.RankedTensorType(value.type), ir.RankedTensorType(type_)
        if old.element_type != new.element_type:
            raise UserError(f"kernel '{self.name}': '{buffer.name}' is {new}, in the site {old}")
        return flow.TensorReshapeOp(new, value, [], []).result


def _calls(function: ir.Operation, kernel: EmittedKernel) -> list[ir.Operation]:
    """The dispatches of a kernel in a function."""
    return [
        op
        for op in walk(function)
        if op.name == "flow.dispatch"
        and op.attributes["entry_points"][0] == kernel.executable.entry
    ]


def _packed(value: ir.Value, packing: Packing) -> ir.Value:
    """An operand as a kernel reads it; `Packing.of` in linalg."""
    for dim, matrix in enumerate(packing.matrices):
        if matrix is not None:
            value = _multiplied(value, dim, matrix)
    element = ir.RankedTensorType(value.type).element_type
    padded = [prod(parts) for parts in packing.split]
    if any(packing.pad):
        is_integer = isinstance(element, ir.IntegerType)
        zero = ir.IntegerAttr.get(element, 0) if is_integer else ir.FloatAttr.get(element, 0.0)
        made = tensor.PadOp(
            ir.RankedTensorType.get(padded, element),
            value,
            [],
            [],
            [0] * len(padded),
            list(packing.pad),
        )
        index = ir.IndexType.get()
        with ir.InsertionPoint(made.operation.regions[0].blocks.append(*[index] * len(padded))):
            tensor.YieldOp(arith.ConstantOp(element, zero).result)
        value = made.result
    parts = list(packing.parts)
    if parts != padded:
        numbers = iter(range(len(parts)))
        groups = [[next(numbers) for _ in split] for split in packing.split]
        type_ = ir.RankedTensorType.get(parts, element)
        value = tensor.ExpandShapeOp(type_, value, groups, [], parts).result
    if list(packing.order) != sorted(packing.order):
        empty = tensor.EmptyOp([parts[one] for one in packing.order], element).result
        op = linalg.transpose(value, outs=[empty], permutation=list(packing.order))
        value = op.operation.results[0]
    if len(packing.joined_shape) != len(parts):
        numbers = iter(range(len(parts)))
        joined = [[next(numbers) for _ in group] for group in packing.groups]
        type_ = ir.RankedTensorType.get(list(packing.joined_shape), element)
        value = tensor.CollapseShapeOp(type_, value, joined).result
    return value if packing.terms is None else _split(value, *packing.terms)


def _split(value: ir.Value, count: int, place: int) -> ir.Value:
    """The parts of numbers, in a dimension more; `splitting.split_array` in linalg."""
    shape = list(ir.RankedTensorType(value.type).shape)
    whole = [*shape[:place], count, *shape[place:]]
    axes = [ir.AffineExpr.get_dim(n) for n in range(len(whole))]
    maps = [[*axes[:place], *axes[place + 1 :]], axes]
    type_ = ir.RankedTensorType.get(whole, ir.BF16Type.get())
    made = linalg.GenericOp(
        [type_],
        [value],
        [tensor.EmptyOp(whole, ir.BF16Type.get()).result],
        ir.ArrayAttr.get(
            [ir.AffineMapAttr.get(ir.AffineMap.get(len(axes), 0, results)) for results in maps]
        ),
        iterator_types(["parallel"] * len(axes)),
    )
    own = ir.RankedTensorType(value.type).element_type
    float_, narrow = ir.F32Type.get(), ir.BF16Type.get()
    block = made.operation.regions[0].blocks.append(own, narrow)
    with ir.InsertionPoint(block):
        number = linalg.IndexOp(place).result
        most, least = (arith.ConstantOp(float_, sign * LARGEST).result for sign in (1.0, -1.0))
        one, parts = scalars.cast(block.arguments[0], str(own), "f32"), []
        for n in range(count):
            held = one
            if n < count - 1:
                held = arith.MaximumFOp(arith.MinimumFOp(one, most).result, least).result
            parts.append(arith.TruncFOp(narrow, held).result)
            one = arith.SubFOp(one, scalars.cast(parts[-1], "bf16", "f32")).result
        chosen = parts[-1]
        for n in reversed(range(count - 1)):
            at = arith.ConstantOp(ir.IndexType.get(), n).result
            is_it = arith.CmpIOp(arith.CmpIPredicate.eq, number, at).result
            chosen = arith.SelectOp(is_it, parts[n], chosen).result
        linalg.YieldOp([chosen])
    return made.operation.results[0]


def _multiplied(value: ir.Value, dim: int, matrix: Matrix) -> ir.Value:
    """A dimension of an operand multiplied by a matrix, as a sum of products in linalg."""
    type_ = ir.RankedTensorType(value.type)
    element, shape = type_.element_type, list(type_.shape)
    shape[dim] = len(matrix)
    factors = ir.DenseElementsAttr.get(np.array(matrix, np.float32))
    zero = arith.ConstantOp(element, ir.FloatAttr.get(element, 0.0)).result
    sums = linalg.fill(zero, outs=[tensor.EmptyOp(shape, element).result])
    axes = [ir.AffineExpr.get_dim(n) for n in range(len(shape) + 1)]
    *kept, summed = axes
    made = linalg.GenericOp(
        [ir.RankedTensorType.get(shape, element)],
        [arith.ConstantOp(factors.type, factors).result, value],
        [sums],
        ir.ArrayAttr.get(
            [
                ir.AffineMapAttr.get(ir.AffineMap.get(len(axes), 0, results))
                for results in (
                    [axes[dim], summed],
                    [*kept[:dim], summed, *kept[dim + 1 :]],
                    kept,
                )
            ]
        ),
        iterator_types([*["parallel"] * len(kept), "reduction"]),
    )
    block = made.operation.regions[0].blocks.append(element, element, element)
    with ir.InsertionPoint(block):
        factor, one, total = block.arguments
        product = arith.MulFOp(factor, one).result
        linalg.YieldOp([arith.AddFOp(total, product).result])
    return made.operation.results[0]


def _define_main(kernels: Sequence[_Written]) -> None:
    """The entry point, with what brings constants beside the ops of bodies."""
    rewrites: dict[str, Rewrite] = {}
    for one in kernels:
        for rewrite in one.pattern.rewrites():
            rewrites.setdefault(rewrite.key, rewrite)
    # An op that fits two is to have all its constants brought: those with more of them first.
    ordered = sorted(rewrites.values(), key=lambda r: sum(c is None for c in r.constants))
    pairs = [r.define(f"tilewright_constant_{n}") for n, r in enumerate(ordered)]
    levels: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for one in kernels:
        levels[len(one.pattern.ops)].append((one.symbols.matcher, one.symbols.action))

    def convert(function: ir.Value) -> None:
        for each in (pairs, *(levels[size] for size in sorted(levels, reverse=True))):
            if each:
                function = library.foreach_match(function, each)
                ir.Operation.create("transform.apply_dce", operands=[function])
        library.move_out_of_loops(function)

    def main(module: ir.Value) -> None:
        if kernels:
            library.foreach(library.match(module, [library.FUNCTION]), convert)

    library.define(library.PREPROCESSING_ENTRY_POINT, [library.any_op()], main)

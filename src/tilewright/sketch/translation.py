"""What a translation knows as it goes: what each value of the program is, and its scalars."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir

from tilewright.schedule.expr import Const, Expr, cast, index
from tilewright.schedule.functions import if_then_else
from tilewright.schedule.types import INDEX
from tilewright.sketch.scalar_bodies import translate_scalar
from tilewright.sketch.tensor_values import Indices, TensorValue, Workshop
from tilewright.sketch.untranslatable import Untranslatable, scalar_constant

_YIELDS = ("linalg.yield", "iree_linalg_ext.yield", "tensor.yield", "scf.yield")


def ranked(type_: ir.Type) -> bool:
    """Whether a type is a tensor's."""
    return isinstance(type_, ir.RankedTensorType)


def static_shape(type_: ir.Type, where: str) -> tuple[int, ...]:
    """The shape of a ranked type.

    Args:
        type_: of a tensor, or of a dispatch's binding.
        where: the operation, for the message.

    Raises:
        Untranslatable: a size is known at run time only, or 0.
    """
    shape = tuple(ir.ShapedType(type_).shape)
    if any(n < 0 for n in shape):
        raise Untranslatable(where, "a size that is known at run time only")
    if 0 in shape:
        raise Untranslatable(where, "a tensor without elements")
    return shape


class SiteTranslation:
    """What the values of a program are.

    at: the name of the op that is being translated. workshop: what all tensors share.
    """

    def __init__(self) -> None:
        self.workshop = Workshop()
        self.at = ""
        self.values: dict[ir.Value, TensorValue | Expr] = {}

    def value(self, value: ir.Value) -> TensorValue | Expr:
        """What a value is: a tensor, or a scalar's expression.

        Args:
            value: defined before.
        """
        found = self.values.get(value)
        if found is None:
            found = self.values[value] = self.scalar(value)
        return found

    def tensor(self, value: ir.Value) -> TensorValue:
        """What a tensor is.

        Args:
            value: of a ranked type.
        """
        found = self.value(value)
        assert isinstance(found, TensorValue)
        return found

    def scalar(self, value: ir.Value) -> Expr:
        """The expression of a scalar outside of bodies; made when it is needed.

        Args:
            value: a number, or computed from numbers.
        """
        return ScalarBody(self, (), ()).expression(value)

    def number(self, value: ir.Value) -> int:
        """An integer that the program says.

        Args:
            value: of type index, or an integer.

        Raises:
            Untranslatable: it is known at run time only.
        """
        found = self.value(value)
        assert isinstance(found, Expr)
        if found.dtype == INDEX:
            found = self.workshop.arithmetic.simplify(found)
        if not isinstance(found, Const):
            raise Untranslatable(self.at, "a position or size that is known at run time only")
        return int(found.value)


# -- bodies ----------------------------------------------------------------------------------------


class ScalarBody:
    """The expressions of a block's values, for expressions of its arguments.

    arguments: makes the expression of each argument, when it is first needed. loops: the indices
    that `linalg.index` gives.
    """

    def __init__(
        self,
        translation: SiteTranslation,
        arguments: Sequence[tuple[ir.Value, Callable[[], Expr]]],
        loops: Indices,
    ) -> None:
        self._translation = translation
        self._arguments: dict[ir.Value, Callable[[], Expr]] = dict(arguments)
        self._loops = loops
        self._known: dict[ir.Value, Expr] = {}

    def expression(self, value: ir.Value) -> Expr:
        """The expression of a value of the block, or of a number outside.

        Args:
            value: the value.

        Raises:
            Untranslatable: it is computed by something that has no expression.
        """
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = self._made(value)
        return known

    def _made(self, value: ir.Value) -> Expr:
        make = self._arguments.get(value)
        if make is not None:
            return make()
        outside = self._translation.values.get(value)
        if isinstance(outside, Expr):
            return outside
        if isinstance(value, ir.BlockArgument):
            raise Untranslatable(self._translation.at, "an argument of a block around it")
        op = value.owner
        operation = op.operation if hasattr(op, "operation") else op
        results = self._results(operation)
        self._known.update(zip(operation.results, results, strict=True))
        return self._known[value]

    def _results(self, op: ir.Operation) -> list[Expr]:
        match op.name:
            case "arith.constant":
                return [scalar_constant(op.attributes["value"], op.name)]
            case "linalg.index" | "iree_linalg_ext.index":
                return [self._loops[int(op.attributes["dim"])]]
            case "tensor.dim":
                source, dimension = op.operands
                shape = static_shape(source.type, op.name)
                return [index(shape[self._translation.number(dimension)])]
            case "tensor.extract":
                return [self._extracted(op)]
            case "scf.if":
                return self._branches(op)
            case "iree_tensor_ext.dispatch.workload.ordinal":
                return [self.expression(op.operands[0])]
        return translate_scalar(op, [self.expression(v) for v in op.operands])

    def _extracted(self, op: ir.Operation) -> Expr:
        source, *indices = op.operands
        tensor = self._translation.tensor(source)
        return tensor.read([cast(INDEX, self.expression(i)) for i in indices])

    def _branches(self, op: ir.Operation) -> list[Expr]:
        if any(len(region.blocks) != 1 for region in op.regions):
            raise Untranslatable(op.name, "no else branch")
        condition = self.expression(op.operands[0])
        then, other = (
            [self.expression(v) for v in list(region.blocks[0].operations)[-1].operands]
            for region in op.regions
        )
        return [if_then_else(condition, a, b) for a, b in zip(then, other, strict=True)]


def yielded(block: ir.Block) -> list[ir.Value]:
    """What a block yields.

    Args:
        block: of a structured op, a padding or a branch.
    """
    last = list(block.operations)[-1].operation
    assert last.name in _YIELDS, last.name
    return list(last.operands)


def is_used(value: ir.Value) -> bool:
    """Whether anything uses a value."""
    return next(iter(value.uses), None) is not None

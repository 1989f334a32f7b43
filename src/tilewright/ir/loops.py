"""Which loops of the ops of a dispatch are the same loop.

The ops of a dispatch share loops through the tensors they pass on: the row loop of a bias
addition is the row loop of the matmul that it follows. IREE's own `IterationDimTracker` serves the
same purpose; this is the part of it that the operands' indexing maps decide.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from tilewright.ir.walk import walk


@dataclass(frozen=True)
class OpLoops:
    """The loops of one op, outermost first.

    `extents`: trip counts (-1 unknown); `reduction`: whether the loop combines values;
    `shared`: a number for each loop, equal for loops that are the same in several ops.
    """

    extents: tuple[int, ...]
    reduction: tuple[bool, ...]
    shared: tuple[int, ...]


_RESHAPES = ("tensor.expand_shape", "tensor.collapse_shape")


class _Union:
    def __init__(self) -> None:
        self.parent: list[int] = []

    def new(self) -> int:
        self.parent.append(len(self.parent))
        return len(self.parent) - 1

    def find(self, i: int) -> int:
        while self.parent[i] != i:
            self.parent[i] = self.parent[self.parent[i]]
            i = self.parent[i]
        return i

    def join(self, a: int, b: int) -> None:
        self.parent[self.find(b)] = self.find(a)


def indexing_maps(op: ir.Operation) -> list[ir.AffineMap]:
    """One affine map per operand for ops that have them (linalg ops, attention); else none."""
    if "indexing_maps" in op.attributes:
        return [a.value for a in ir.ArrayAttr(op.attributes["indexing_maps"])]
    from iree.compiler.dialects import linalg

    if op.name.startswith("linalg.") and op.regions and len(op.regions):
        try:
            found = linalg.get_indexing_maps(op)
        except (TypeError, ValueError, RuntimeError):
            return []
        return [a.value for a in found] if found is not None else []
    return []


def iterator_kinds(op: ir.Operation) -> list[bool] | None:
    """For each loop whether it is a reduction, for ops that say so themselves; else None."""
    if "iterator_types" not in op.attributes:
        return None
    kinds = []
    for attribute in ir.ArrayAttr(op.attributes["iterator_types"]):
        kinds.append("reduction" in str(attribute))
    return kinds


def loops_in(expression: ir.AffineExpr) -> set[int]:
    if isinstance(expression, ir.AffineDimExpr):
        return {expression.position}
    if isinstance(expression, ir.AffineBinaryExpr):
        return loops_in(expression.lhs) | loops_in(expression.rhs)
    return set()


def uses_of_loops(map_: ir.AffineMap) -> tuple[set[int], set[int]]:
    """The loops that a map uses, and those of them in an expression with anything else."""
    used: set[int] = set()
    compound: set[int] = set()
    for expression in map_.results:
        loops = loops_in(expression)
        used |= loops
        if not isinstance(expression, ir.AffineDimExpr):
            compound |= loops
    return used, compound


def _maps_of(op: ir.Operation) -> tuple[list[ir.AffineMap], list[ir.Value]]:
    maps = indexing_maps(op)
    operands = list(op.operands)
    return (maps, operands[: len(maps)]) if maps else ([], [])


def _shape(value: ir.Value) -> tuple[int, ...]:
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType):
        return ()
    return tuple(
        -1 if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank)
    )


def find_loops(ops: list[ir.Operation]) -> list[OpLoops]:
    """The loops of every op, with the numbers of those they share.

    An op without indexing maps (pack, unpack, softmax, pad, …) has one parallel loop for each
    dimension of the tensor it iterates over: the source of a pack (its outer result dimensions),
    the result otherwise.
    """
    union = _Union()
    values: list[tuple[ir.Value, list[int]]] = []

    def dims_of(value: ir.Value) -> list[int]:
        for known, dims in values:
            if known == value:
                return dims
        dims = [union.new() for _ in _shape(value)]
        values.append((value, dims))
        owner = value.owner
        if not isinstance(owner, ir.Block) and owner.name in _RESHAPES:
            # Reshapes that only add or drop unit dimensions leave the other loops as they are.
            source = owner.operands[0]
            mine = [(d, s) for d, s in zip(dims, _shape(value), strict=True) if s != 1]
            theirs = [
                (d, s) for d, s in zip(dims_of(source), _shape(source), strict=True) if s != 1
            ]
            if [s for _, s in mine] == [s for _, s in theirs]:
                for (a, _), (b, _) in zip(mine, theirs, strict=True):
                    union.join(a, b)
        return dims

    raw: list[tuple[list[int], list[int], list[bool]]] = []
    for op in ops:
        maps, operands = _maps_of(op)
        if maps:
            count = maps[0].n_dims
            loops = [union.new() for _ in range(count)]
            extents = [-1] * count
            written: set[int] = set()
            for index, (map_, value) in enumerate(zip(maps, operands, strict=False)):
                shape, dims = _shape(value), dims_of(value)
                is_output = index >= len(maps) - max(1, len(op.results))
                for position, expression in enumerate(map_.results):
                    if not isinstance(expression, ir.AffineDimExpr) or position >= len(dims):
                        continue
                    union.join(loops[expression.position], dims[position])
                    extents[expression.position] = shape[position]
                    if is_output:
                        written.add(expression.position)
            kinds = iterator_kinds(op)
            if kinds is None or len(kinds) != count:
                kinds = [i not in written for i in range(count)]
            for result, map_ in zip(op.results, maps[-len(op.results) :], strict=False):
                dims = dims_of(result)
                for position, expression in enumerate(map_.results):
                    if isinstance(expression, ir.AffineDimExpr) and position < len(dims):
                        union.join(loops[expression.position], dims[position])
        else:
            loops, extents, kinds = _without_maps(op, dims_of, union)
        raw.append((loops, extents, kinds))
    return [
        OpLoops(tuple(extents), tuple(kinds), tuple(union.find(i) for i in loops))
        for loops, extents, kinds in raw
    ]


def _without_maps(op: ir.Operation, dims_of, union: _Union):  # type: ignore[no-untyped-def]
    domain = op.results[0] if len(op.results) else op.operands[0]
    shape = list(_shape(domain))
    loops = list(dims_of(domain))
    if op.name in ("linalg.pack", "linalg.unpack"):
        source, result = op.operands[0], op.results[0]
        rank = len(_shape(source)) if op.name == "linalg.pack" else len(_shape(result))
        # A pack iterates over the outer dimensions of its result, an unpack over its result.
        packed = result if op.name == "linalg.pack" else source
        shape = list(_shape(packed))[:rank] if op.name == "linalg.pack" else list(_shape(result))
        loops = [union.new() for _ in range(rank)]
    elif op.name in ("linalg.softmax", "tensor.pad"):
        shape = list(_shape(op.results[0]))
        if op.name == "linalg.softmax":
            for mine, theirs in zip(loops, dims_of(op.operands[0]), strict=True):
                union.join(mine, theirs)
    return loops, shape, [False] * len(loops)


def captured_values(op: ir.Operation) -> list[ir.Value]:
    """Values used inside the op's regions that are defined outside of the op."""
    inside = [inner for inner in walk(op)]
    found: list[ir.Value] = []
    for inner in inside:
        for value in inner.operands:
            owner = value.owner
            if isinstance(owner, ir.Block):
                continue
            if not any(owner == known for known in inside) and all(value != v for v in found):
                found.append(value)
    return found

"""From the root op of a dispatch to a Workload: what it computes, with the roles of its loops.

Roles come from the operands' indexing maps alone, so every layout of a contraction or convolution,
named or `linalg.generic`, is read the same way. A loop that indexes an operand together with
another loop (`d1 * 2 + d4`) is an image or a window loop; of the others, one that both inputs and
the output have is a batch (or group) loop, one that the output shares with the left or right input
is m or n, and one that both inputs have and the output has not is k. A stride alone (`d1 * 2`) is
no window: a strided 1x1 convolution is a matrix product.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from iree.compiler import ir

from tilewright.gpu import DECOMPOSITION_CONFIG
from tilewright.ir.gpu_constraints import erase_constraints
from tilewright.ir.loops import uses_of_loops
from tilewright.ir.lowering import COMPILATION_INFO, LOWERING_CONFIG, ROOT_OP, TRANSLATION_INFO
from tilewright.ir.reference.access import indexing_maps, iterator_kinds, loops_in
from tilewright.ir.sizes import SizeEvaluator
from tilewright.ir.walk import walk
from tilewright.tiling import DispatchTemplate
from tilewright.workload import DYNAMIC, Dim, Workload

_CONFIGURATION_ATTRIBUTES = (
    LOWERING_CONFIG,
    COMPILATION_INFO,
    DECOMPOSITION_CONFIG,
    ROOT_OP,
    TRANSLATION_INFO,
)
_MULTIPLIES = ("arith.mulf", "arith.muli", "complex.mul")
_ADDS = ("arith.addf", "arith.addi", "complex.add")
_CASTS = (
    "arith.bitcast",
    "arith.extf",
    "arith.extsi",
    "arith.extui",
    "arith.fptosi",
    "arith.fptoui",
    "arith.sitofp",
    "arith.truncf",
    "arith.trunci",
    "arith.uitofp",
)
_COPIES = ("linalg.copy", "linalg.fill")


def classify(
    function: ir.Operation,
    ops: Sequence[ir.Operation],
    template: DispatchTemplate,
    sizes: SizeEvaluator | None = None,
) -> Workload:
    """The workload of a configured dispatch function.

    Args:
        function: the function.
        ops: its compute ops, in order.
        template: how the compiler configures them.
        sizes: knows the sizes that the types leave open; the loops that they are of are marked.

    Returns:
        What it computes, as data.
    """
    sizes = sizes or SizeEvaluator()
    root = ops[template.root]
    maps = indexing_maps(root)
    kind, roles = _kind_and_roles(root, maps, ops, template)
    extents = template.root_op.extents
    reductions = template.root_op.reduction
    dims = tuple(
        Dim(role, extent, reduction)
        for role, extent, reduction in zip(roles, extents, reductions, strict=True)
    )
    values = list(root.operands)[: len(maps) or None]
    values = [v for v in values if isinstance(v.type, ir.ShapedType)]
    types = tuple(str(ir.ShapedType(v.type).element_type) for v in values)
    fused = tuple(op.name for i, op in enumerate(ops) if i != template.root)
    return Workload(
        kind=kind,
        dims=dims,
        element_types=types,
        layout=tuple(_strip_map(str(m)) for m in maps),
        body=digest(function),
        root=root.name,
        fused=fused,
        flops=_flops(kind, root, dims),
        bytes=_bytes(function, ops, sizes),
        attributes=_dynamic_loops(root, maps),
    )


def digest(function: ir.Operation) -> str:
    """A digest of all that the dispatch computes, whatever it is called or configured as.

    Args:
        function: a dispatch function.

    Returns:
        16 hexadecimal digits of SHA-256 over its text without name and configuration.
    """
    with function.context, ir.Location.unknown():
        scratch = ir.Module.create()
        operation = function.clone(ip=ir.InsertionPoint(scratch.body)).operation
        operation.attributes["sym_name"] = ir.StringAttr.get("dispatch")
        erase_constraints(operation)
        for op in (operation, *walk(operation)):
            for name in _CONFIGURATION_ATTRIBUTES:
                if name in op.attributes:
                    del op.attributes[name]
        text = operation.get_asm(use_local_scope=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _strip_map(text: str) -> str:
    return text.removeprefix("affine_map<").removesuffix(">")


def _kind_and_roles(
    root: ir.Operation,
    maps: list[ir.AffineMap],
    ops: Sequence[ir.Operation],
    template: DispatchTemplate,
) -> tuple[str, list[str]]:
    reduction = template.root_op.reduction
    plain = ["reduction" if r else "parallel" for r in reduction]
    if root.name == "linalg.pack":
        return "pack", plain
    if root.name == "linalg.unpack":
        return "unpack", plain
    if root.name in ("linalg.mmt4d", "linalg.batch_mmt4d"):
        return "mmt4d", _roles_of_product(maps)
    if root.name in ("iree_linalg_ext.online_attention", "iree_linalg_ext.attention"):
        return "attention", _roles_of_attention(maps, len(plain))
    if not maps:
        return "other", plain
    if is_product_sum(root, maps):
        roles = _roles_of_product(maps)
        if "image" not in roles and "window" not in roles:
            if "k" in roles and all(
                role == "k" for role, is_sum in zip(roles, reduction, strict=True) if is_sum
            ):
                return "contraction", roles
            return "reduction", plain
        if "group" in roles:
            grouped = "k" in roles or "channel" in roles
            return ("grouped_convolution" if grouped else "depthwise_convolution"), roles
        return "convolution", roles
    if root.name.startswith("linalg.pooling") or (any(reduction) and _has_window(maps)):
        return "pooling", _roles_of_pooling(maps, reduction)
    if any(reduction):
        softmax = _uses(root, "math.exp") and sum(any(op.reduction) for op in template.ops) > 1
        return ("softmax" if softmax else "reduction"), plain
    if root.name in _COPIES:
        return "elementwise", plain
    body = list(root.regions[0].blocks[0].operations) if len(root.regions) else []
    if len(body) == 1 and len(maps) == 2 and maps[0] != maps[1]:
        permuted = maps[0].is_projected_permutation and len(maps[0].results) == len(plain)
        return ("transpose" if permuted else "elementwise"), plain
    return "elementwise", plain


def _has_window(maps: list[ir.AffineMap]) -> bool:
    return any(uses_of_loops(m)[1] for m in maps)


def _roles_of_product(maps: list[ir.AffineMap]) -> list[str]:
    (lhs, lhs_compound), (rhs, rhs_compound) = (uses_of_loops(m) for m in maps[:2])
    out, _ = uses_of_loops(maps[-1])
    compound = lhs_compound | rhs_compound
    windowed = bool(compound)
    image_side, filter_side = (lhs, rhs) if lhs_compound or not rhs_compound else (rhs, lhs)
    roles = []
    for loop in range(maps[0].n_dims):
        parallel = loop in out
        if loop in compound:
            role = "image" if parallel else "window"
        elif parallel and loop in lhs and loop in rhs:
            role = "group" if windowed else "batch"
        elif parallel and windowed:
            role = "batch" if loop in image_side else "channel" if loop in filter_side else "batch"
        elif parallel:
            role = "m" if loop in lhs else "n" if loop in rhs else "parallel"
        else:
            role = "k" if loop in lhs and loop in rhs else "reduction"
        roles.append(role)
    return roles


# A loop's role by which of query, key and value it indexes: the first of these that all do.
_ATTENTION_ROLES = (("batch", (0, 1, 2)), ("k1", (0, 1)), ("k2", (1, 2)), ("m", (0,)), ("n", ()))


def _roles_of_attention(maps: list[ir.AffineMap], loops: int) -> list[str]:
    inputs = [uses_of_loops(m)[0] for m in maps[:3]]
    return [
        next(role for role, by in _ATTENTION_ROLES if all(loop in inputs[i] for i in by))
        for loop in range(loops)
    ]


def _roles_of_pooling(maps: list[ir.AffineMap], reduction: tuple[bool, ...]) -> list[str]:
    compound: set[int] = set()
    for map_ in maps:
        compound |= uses_of_loops(map_)[1]
    still = [i for i, is_sum in enumerate(reduction) if not is_sum and i not in compound]
    roles = []
    for loop, is_sum in enumerate(reduction):
        if is_sum:
            roles.append("window")
        elif loop in compound:
            roles.append("image")
        else:
            # All layouts have the batch outermost; a batch of one is often folded away.
            roles.append("batch" if len(still) > 1 and loop == still[0] else "channel")
    return roles


def is_product_sum(root: ir.Operation, maps: Sequence[ir.AffineMap]) -> bool:
    """Whether the body adds the product of the two inputs (casts allowed) to the output.

    Args:
        root: a structured op.
        maps: its indexing maps.
    """
    kinds = iterator_kinds(root)
    if len(maps) != 3 or len(root.regions) != 1 or (kinds is not None and not any(kinds)):
        return False
    block = root.regions[0].blocks[0]
    body = [op.operation for op in block.operations][:-1]
    arithmetic = [op for op in body if op.name not in _CASTS]
    if len(arithmetic) != 2:
        return False
    product, total = arithmetic
    if product.name not in _MULTIPLIES or total.name not in _ADDS:
        return False
    lhs, rhs, out = block.arguments
    return _are(product, lhs, rhs) and _are(total, product.results[0], out)


def _are(op: ir.Operation, *values: ir.Value) -> bool:
    """Whether the operands of a commutative op are these values, in any order, behind casts."""
    found = [_without_casts(v) for v in op.operands]
    return found in (list(values), list(values)[::-1])


def _without_casts(value: ir.Value) -> ir.Value:
    owner = value.owner
    while not isinstance(owner, ir.Block) and owner.name in _CASTS:
        value = owner.operands[0]
        owner = value.owner
    return value


def _uses(root: ir.Operation, name: str) -> bool:
    return any(op.name == name for op in walk(root))


def _flops(kind: str, root: ir.Operation, dims: tuple[Dim, ...]) -> int:
    if any(d.size < 0 for d in dims):
        return 0
    points = math.prod(dim.size for dim in dims)
    if kind == "attention":
        by_role: dict[str, int] = {}
        for dim in dims:
            by_role[dim.role] = by_role.get(dim.role, 1) * dim.size
        common = by_role.get("batch", 1) * by_role.get("m", 1) * by_role.get("k2", 1)
        return 2 * common * (by_role.get("k1", 1) + by_role.get("n", 1))
    if kind in ("pack", "unpack", "transpose", "other"):
        return 0
    if kind == "mmt4d":
        return 2 * points
    operations = [
        op.name
        for op in walk(root)
        if op.name.startswith(("arith.", "math.")) and op.name not in (*_CASTS, "arith.constant")
    ]
    return len(operations) * points


def _dynamic_loops(root: ir.Operation, maps: list[ir.AffineMap]) -> tuple[tuple[str, str], ...]:
    """The loops whose sizes the code does not know, as an attribute of the workload."""
    unknown: set[int] = set()
    for map_, value in zip(maps, root.operands, strict=False):
        if isinstance(value.type, ir.ShapedType):
            for position, expression in enumerate(map_.results):
                if value.type.is_dynamic_dim(position):
                    unknown |= loops_in(expression)
    return ((DYNAMIC, ",".join(map(str, sorted(unknown)))),) if unknown else ()


def _bytes(function: ir.Operation, ops: Sequence[ir.Operation], sizes: SizeEvaluator) -> int:
    """Bytes of every tensor that the dispatch loads or stores, each counted once."""
    total = 0
    for op in walk(function):
        if op.name in ("iree_codegen.load_from_buffer", "iree_tensor_ext.dispatch.tensor.load"):
            total += _value_bytes(op.results[0], sizes)
        elif op.name in ("iree_codegen.store_to_buffer", "iree_tensor_ext.dispatch.tensor.store"):
            total += _value_bytes(op.operands[0], sizes)
    # Copies between buffers work on the buffers themselves.
    buffers = [v for op in ops for v in op.operands if isinstance(v.type, ir.MemRefType)]
    return total + sum(_value_bytes(v, sizes) for v in buffers)


def _value_bytes(value: ir.Value, sizes: SizeEvaluator) -> int:
    """Bytes of a tensor or buffer; 0 for what is neither, or of a size not known."""
    shape = sizes.shape(value)
    if not isinstance(value.type, ir.ShapedType) or any(size < 0 for size in shape):
        return 0
    bits = max(1, element_bits(ir.ShapedType(value.type).element_type))
    return -(-math.prod(shape) * bits // 8)


def element_bits(type_: ir.Type) -> int:
    """Bits of one element; an index counts 64, a complex number both its parts.

    Args:
        type_: an element type.

    Returns:
        The bits; 32 for a type that does not say.
    """
    if isinstance(type_, ir.IndexType):
        return 64
    if isinstance(type_, ir.ComplexType):
        return 2 * element_bits(type_.element_type)
    width = getattr(type_, "width", 32)
    return int(width)

"""Programs, in StableHLO, whose dispatches belong together or do not, and what sites they have.

Each comes with the number of dispatches in each site of several, in their order.
"""

from __future__ import annotations


def tensor(*sizes: int) -> str:
    return f"tensor<{''.join(f'{size}x' for size in sizes)}f32>"


def reduced(value: str, result: str, how: str, source: str, to: str, axis: int) -> str:
    start = "%low" if how == "maximum" else "%zero"
    return (
        f"  {result} = stablehlo.reduce({value} init: {start}) applies stablehlo.{how} "
        f"across dimensions = [{axis}] : ({source}, tensor<f32>) -> {to}\n"
    )


def broadcast(value: str, result: str, source: str, to: str, dims: object) -> str:
    return f"  {result} = stablehlo.broadcast_in_dim {value}, dims = {dims} : ({source}) -> {to}\n"


START = """  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
"""


def softmax(value: str, result: str, shape: tuple[int, ...], log: bool = False) -> str:
    """Along the last axis."""
    full, rows = tensor(*shape), tensor(*shape[:-1])
    axes = list(range(len(shape) - 1))
    n = result
    text = reduced(value, f"{n}_m", "maximum", full, rows, len(shape) - 1)
    text += broadcast(f"{n}_m", f"{n}_a", rows, full, axes)
    text += f"  {n}_s = stablehlo.subtract {value}, {n}_a : {full}\n"
    text += f"  {n}_p = stablehlo.exponential {n}_s : {full}\n"
    text += reduced(f"{n}_p", f"{n}_t", "add", full, rows, len(shape) - 1)
    if log:
        text += f"  {n}_l = stablehlo.log {n}_t : {rows}\n"
        text += broadcast(f"{n}_l", f"{n}_b", rows, full, axes)
        return text + f"  {n} = stablehlo.subtract {n}_s, {n}_b : {full}\n"
    text += broadcast(f"{n}_t", f"{n}_b", rows, full, axes)
    return text + f"  {n} = stablehlo.divide {n}_p, {n}_b : {full}\n"


def layer_norm(value: str, result: str, rows: int, columns: int) -> str:
    """Without gain and bias; `<result>_mean` is the mean."""
    full, one = tensor(rows, columns), tensor(rows)
    n = result
    text = f"  {n}_c = stablehlo.constant dense<{columns}.0> : {one}\n"
    text += f"  {n}_e = stablehlo.constant dense<1.0e-05> : {one}\n"
    text += reduced(value, f"{n}_t", "add", full, one, 1)
    text += f"  {n}_mean = stablehlo.divide {n}_t, {n}_c : {one}\n"
    text += broadcast(f"{n}_mean", f"{n}_a", one, full, [0])
    text += f"  {n}_d = stablehlo.subtract {value}, {n}_a : {full}\n"
    text += f"  {n}_s = stablehlo.multiply {n}_d, {n}_d : {full}\n"
    text += reduced(f"{n}_s", f"{n}_q", "add", full, one, 1)
    text += f"  {n}_v = stablehlo.divide {n}_q, {n}_c : {one}\n"
    text += f"  {n}_w = stablehlo.add {n}_v, {n}_e : {one}\n"
    text += f"  {n}_r = stablehlo.rsqrt {n}_w : {one}\n"
    text += broadcast(f"{n}_r", f"{n}_b", one, full, [0])
    return text + f"  {n} = stablehlo.multiply {n}_d, {n}_b : {full}\n"


def dot(a: str, b: str, result: str, types: tuple[str, str, str], axes: str) -> str:
    one, two, to = types
    return f"  {result} = stablehlo.dot_general {a}, {b}, {axes} : ({one}, {two}) -> {to}\n"


def program(arguments: dict[str, str], body: str, *results: tuple[str, str]) -> str:
    given = ", ".join(f"{name}: {type_}" for name, type_ in arguments.items())
    values = ", ".join(name for name, _ in results)
    types = ", ".join(type_ for _, type_ in results)
    return (
        f"func.func @main({given}) -> ({types}) {{\n{START}{body}  return {values} : {types}\n}}\n"
    )


def attention(batch: int, heads: int, queries: int, keys: int, width: int) -> str:
    """Batches of heads, which become one dimension of the products; with a mask."""
    q, k = tensor(batch, heads, queries, width), tensor(batch, heads, keys, width)
    shape = (batch, heads, queries, keys)
    scores, mask = tensor(*shape), tensor(batch, 1, queries, keys)
    both = "batching_dims = [0, 1] x [0, 1], contracting_dims ="
    body = dot("%q", "%k", "%dots", (q, k, scores), f"{both} [3] x [3]")
    body += broadcast("%mask", "%masks", mask, scores, [0, 1, 2, 3])
    body += f"  %scaled = stablehlo.add %dots, %masks : {scores}\n"
    body += softmax("%scaled", "%weights", shape)
    body += dot("%weights", "%v", "%y", (scores, k, q), f"{both} [3] x [2]")
    return program({"%q": q, "%k": k, "%v": k, "%mask": mask}, body, ("%y", q))


_X = tensor(32, 96)
_RESIDUAL = f"  %x = stablehlo.add %x0, %x1 : {_X}\n" + layer_norm("%x", "%y", 32, 96)
_SQUARE = (_X, tensor(96, 96), _X)
_PRODUCTS = dot("%x", "%w", "%h", _SQUARE, "contracting_dims = [1] x [0]") + dot(
    "%h", "%w", "%y", _SQUARE, "contracting_dims = [1] x [0]"
)
# The mean of rows, then that of columns of what is left.
_ACROSS = (
    reduced("%x", "%m", "add", _X, tensor(32), 1)
    + broadcast("%m", "%a", tensor(32), _X, [0])
    + f"  %d = stablehlo.subtract %x, %a : {_X}\n"
    + reduced("%d", "%y", "add", _X, tensor(96), 0)
)

# What is behind a mean that is returned is computed after it, and together.
PROGRAMS = {
    "attention": (attention(1, 4, 32, 48, 16), [3]),
    "attention of batches": (attention(2, 4, 32, 48, 16), [2, 2, 2, 5]),
    "residual layer norm": (
        program({"%x0": _X, "%x1": _X}, _RESIDUAL, ("%y", _X)),
        [3],
    ),
    "log-softmax": (
        program({"%x": _X}, softmax("%x", "%y", (32, 96), log=True), ("%y", _X)),
        [2],
    ),
    "a mean that is returned": (
        program({"%x": _X}, layer_norm("%x", "%y", 32, 96), ("%y", _X), ("%y_mean", tensor(32))),
        [2],
    ),
    "two products": (program({"%x": _X, "%w": _SQUARE[1]}, _PRODUCTS, ("%y", _X)), []),
    "rows, then columns": (program({"%x": _X}, _ACROSS, ("%y", tensor(96))), []),
}

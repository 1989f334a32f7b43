"""Kernels reach the sites that they are for through plain `iree-compile`, and nothing else."""

from __future__ import annotations

from pathlib import Path

import iree.runtime as rt
import numpy as np
import pytest
from iree.compiler import ir

from kernel_specs import (
    IDENTITY,
    PARALLEL,
    PRODUCT,
    TARGET,
    Compiler,
    add,
    function,
    plain_kernel,
    pointwise,
    product,
    product_kernel,
    programs,
    random,
    same,
    spec_kernel,
    spec_of,
)
from tilewright import te
from tilewright.errors import UserError
from tilewright.ir.walk import symbols, walk
from tilewright.schedule.codegen import executables_for
from tilewright.schedule.codegen.module import context
from tilewright.sketch.interface import SketchedKernel
from tilewright.sketch.packing import Packing

X, W, B = random(24, 16), random(16, 32, seed=1), random(32, seed=2)


def constant(name: str, values: np.ndarray) -> str:
    numbers = np.array2string(values, separator=",", threshold=10**6, floatmode="unique")
    return f"""
      %{name} = arith.constant dense<{numbers}>
        : tensor<{"x".join(map(str, values.shape))}xf32>"""


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path)


TWICE = programs(
    [
        constant("w", W),
        constant("b", B),
        product("y", "%x", "%w", "%b"),
        product("z", "%x2", "%w", "%b"),
        """
      %t = arith.subf %y, %z : tensor<24x32xf32>""",
    ],
    "%x: tensor<24x16xf32>, %x2: tensor<24x16xf32>",
    "%t",
    "tensor<24x32xf32>",
)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "as it is"])
def test_a_kernel_reaches_each_occurrence(compiler: Compiler, packed: bool) -> None:
    spec = spec_of(spec_kernel("dense", PRODUCT, product_kernel(packed)))
    assert compiler.dispatched(TWICE, spec) == {"dense": 2}
    assert not compiler.dispatched(TWICE, None)
    other = random(24, 16, seed=3)
    wanted = np.maximum(X @ W + B, 0) - np.maximum(other @ W + B, 0)
    same(*compiler.run(TWICE, spec, X, other), wanted)


def test_numbers_are_split_ahead_as_they_are_for_trials(compiler: Compiler) -> None:
    spec = spec_of(spec_kernel("dense", PRODUCT, product_kernel(split=True)))
    assert compiler.dispatched(TWICE, spec) == {"dense": 2}
    other = random(24, 16, seed=3)
    wanted = np.maximum(X @ W + B, 0) - np.maximum(other @ W + B, 0)
    # Two parts, as bf16 alone, would be further off.
    same(*compiler.run(TWICE, spec, X, other), wanted)


LOOP = programs(
    [
        constant("w", W),
        constant("b", B),
        """
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c3 = arith.constant 3 : index
      %none = arith.constant dense<0.0> : tensor<24x32xf32>
      %t = scf.for %i = %c0 to %c3 step %c1 iter_args(%sum = %none) -> (tensor<24x32xf32>) {
      %x = tensor.extract_slice %xs[%i, 0, 0] [1, 24, 16] [1, 1, 1]
        : tensor<3x24x16xf32> to tensor<24x16xf32>""",
        product("y", "%x", "%w", "%b"),
        """
      %n = arith.addf %sum, %y : tensor<24x32xf32>
      scf.yield %n : tensor<24x32xf32>
      }""",
    ],
    "%xs: tensor<3x24x16xf32>",
    "%t",
    "tensor<24x32xf32>",
)


def test_what_a_kernel_packs_is_packed_before_a_loop(compiler: Compiler) -> None:
    spec = spec_of(spec_kernel("dense", PRODUCT, product_kernel(True)))
    assert compiler.dispatched(LOOP, spec) == {"dense": 1}
    xs = random(3, 24, 16, seed=5)
    same(*compiler.run(LOOP, spec, xs), sum(np.maximum(x @ W + B, 0) for x in xs))
    module = compiler.module(LOOP, spec, "flow")
    loops = (op for op in walk(module.operation) if op.name == "scf.for")
    inside = [[op.name for op in walk(loop) if op.name == "flow.dispatch"] for loop in loops]
    assert max(map(len, inside)) == 2, "the kernel, and the sum"


SQUARE = [
    "\n      %six = arith.constant 6.0 : f32\n      %half = arith.constant 1.5 : f32",
    pointwise(
        "y",
        "%x",
        """%m = arith.mulf %p, %q : f32
        %n = arith.subf %half, %m : f32
        %r = arith.minimumf %n, %six : f32""",
        inputs=2,
    ),
    """
      %z = tensor.pad %y low[0, 1] high[0, 1] {
      ^bb0(%i: index, %j: index):
        tensor.yield %six : f32
      } : tensor<24x32xf32> to tensor<24x34xf32>""",
]


def square_kernel() -> SketchedKernel:
    x = te.placeholder((24, 32), "f32", name="x")
    y = te.compute((24, 32), lambda i, j: te.minimum(1.5 - x[i, j] * x[i, j], 6.0), name="y")
    inside = lambda j: te.all(j >= 1, j < 33)  # noqa: E731
    six = te.const(6.0, "f32")
    z = te.compute((24, 34), lambda i, j: te.if_then_else(inside(j), y[i, j - 1], six), name="z")
    return plain_kernel(x, z)


def kernel_functions(module: ir.Module) -> list[str]:
    """The code of a module's kernels, whatever they are called, without the spec's mark."""
    found = [op for op in walk(module.operation) if op.name == "func.func"]
    for op in found:
        op.attributes["sym_name"] = ir.StringAttr.get("kernel", op.context)
        if "tilewright.kernel" in op.attributes:
            del op.attributes["tilewright.kernel"]
    return [str(op) for op in found]


@pytest.mark.parametrize("kind", ["packed", "as it is", "several stages"])
def test_a_candidate_has_the_code_that_the_spec_has(kind: str) -> None:
    kernel = square_kernel() if kind == "several stages" else product_kernel(kind == "packed")
    site = (
        PRODUCT
        if kind != "several stages"
        else function("%x: tensor<24x32xf32>", "%z", "tensor<24x34xf32>", *SQUARE)
    )
    program = kernel.lower().program
    with context():
        target = ir.Attribute.parse('#hal.executable.target<"llvm-cpu", "embedded-elf-x86_64">')
        candidate, _ = executables_for(program, TARGET, target, kernel.unaligned(program))
        spec = ir.Module.parse(spec_of(spec_kernel("kernel", site, kernel)))
        tried, shipped = kernel_functions(candidate), kernel_functions(spec)
    assert tried
    assert tried == shipped


CHANGES = {
    "": "",
    "1.5 : f32": "1.25 : f32",
    "6.0 : f32": "7.0 : f32",
    "arith.subf %half, %m": "arith.subf %m, %half",
    "arith.mulf %p, %q": "arith.mulf %p, %p",
    "arith.mulf": "arith.addf",
    "subf %half": "subf %six",
    "%x, %x": "%x, %other",
    "tensor.yield %six": "tensor.yield %half",
    "low[0, 1] high[0, 1]": "low[0, 2] high[0, 0]",
    "minimumf": "minnumf",
    "minimumf %n, %six : f32": "minimumf %n, %six fastmath<fast> : f32",
}


def test_constants_bodies_and_operands_are_compared(compiler: Compiler) -> None:
    site = function("%x: tensor<24x32xf32>", "%z", "tensor<24x34xf32>", *SQUARE)
    spec = spec_of(spec_kernel("square", site, square_kernel()))
    inputs = "%x: tensor<24x32xf32>, %other: tensor<24x32xf32>"
    program = "".join(
        programs(SQUARE, inputs, "%z", "tensor<24x34xf32>", f"f{number}").replace(old, new)
        for number, (old, new) in enumerate(CHANGES.items())
    )
    assert compiler.dispatched(program, spec) == {"square": 1}
    given = random(24, 32), random(24, 32, seed=5)
    names = [f"f{number}" for number in range(len(CHANGES))]
    with_spec, without = (compiler.run(program, one, *given, main=names) for one in (spec, None))
    for found, wanted in zip(with_spec, without, strict=True):
        same(found, wanted)
    same(with_spec[0][:, 1:-1], np.minimum(1.5 - given[0] ** 2, 6))


def test_constants_that_bodies_compute_with_alone_are_compared(compiler: Compiler) -> None:
    body = pointwise(
        "y",
        "%x",
        """%half = arith.truncf %tenth : f32 to f16
        %whole = arith.extf %half : f16 to f32
        %r = arith.mulf %p, %whole : f32""",
    )
    # A number that f16 has not, which the compiler leaves to be rounded.
    tenth = "\n      %tenth = arith.constant 0.1 : f32"
    site = function(f"%x: {OUT}", "%y", OUT, tenth, body)
    x = te.placeholder((24, 32), "f32", name="x")
    y = te.compute((24, 32), lambda i, j: x[i, j] * float(np.float16(0.1)), name="y")
    spec = spec_of(spec_kernel("tenth", site, plain_kernel(x, y)))
    program = "".join(
        programs([tenth.replace("0.1", number), body], f"%x: {OUT}", "%y", OUT, name)
        for name, number in (("same", "0.1"), ("other", "0.3"))
    )
    assert compiler.dispatched(program, spec) == {"tenth": 1}
    given = random(24, 32)
    for found, factor in zip(
        compiler.run(program, spec, given, main=["same", "other"]), (0.1, 0.3), strict=True
    ):
        same(found, given * float(np.float16(factor)))


def test_what_fills_a_tensor_is_compared(compiler: Compiler) -> None:
    """As importers write a mask, whose elements are one number that comes from outside."""
    masked = [pointwise("m", "%x", "", inputs=1).replace("yield %r", "yield %low")]
    masked += [add("y", "%x", "%m")]
    low = "\n      %low = arith.constant -5.0 : f32"
    site = function(f"%x: {OUT}", "%y", OUT, low, *masked)
    x = te.placeholder((24, 32), "f32", name="x")
    kernel = plain_kernel(x, te.compute((24, 32), lambda i, j: x[i, j] - 5.0, name="y"))
    spec = spec_of(spec_kernel("lower", site, kernel))
    bodies = {
        "same": [low, *masked],
        "other": [low.replace("-5.0", "-4.0"), *masked],
        "itself": [low, masked[0].replace("yield %low", "yield %p"), masked[1]],
    }
    program = "".join(
        programs(body, f"%x: {OUT}", "%y", OUT, name) for name, body in bodies.items()
    )
    assert compiler.dispatched(program, spec) == {"lower": 1}
    given = random(24, 32)
    found = compiler.run(program, spec, given, main=list(bodies))
    for one, wanted in zip(found, (given - 5, given - 4, given + given), strict=True):
        same(one, wanted)


# -- where sites meet ------------------------------------------------------------------------------

DOUBLE = "%r = arith.addf %p, %p : f32"
OUT = "tensor<24x32xf32>"
INPUTS = "%x: tensor<24x16xf32>, %w: tensor<16x32xf32>, %b: tensor<32xf32>"


def test_larger_sites_come_first_and_shared_producers_stay(compiler: Compiler) -> None:
    doubled = function(f"%x: {OUT}", "%y", OUT, pointwise("y", "%x", DOUBLE))
    after = [product("d", "%x", "%w", "%b"), pointwise("y", "%d", DOUBLE)]
    both = function(INPUTS, "%y", OUT, *after)
    x = te.placeholder((24, 32), "f32", name="x")
    twice = plain_kernel(x, te.compute((24, 32), lambda i, j: x[i, j] * 2.0, name="y"))
    spec = spec_of(
        spec_kernel("doubled", doubled, twice),
        spec_kernel("dense", PRODUCT, product_kernel()),
        spec_kernel("both", both, product_kernel(factor=2.0)),
    )
    halved = pointwise("z", "%d", "%r = arith.subf %p, %p : f32")
    bodies = {
        "whole": ([*after], "%y"),
        "part": ([after[0]], "%d"),
        # What the whole is made of is used elsewhere as well, and computed for that by its own.
        "shared": ([*after, halved, add("s", "%y", "%z"), add("t", "%s", "%d")], "%t"),
        # The bias goes where the other input of the addition was; the inputs have another order.
        "apart": ([product("d", "%x", "%w", "%b", swapped=True)], "%d"),
    }
    program = "".join(
        programs(body, INPUTS, result, OUT, name) for name, (body, result) in bodies.items()
    )
    assert compiler.dispatched(program, spec) == {"both": 2, "dense": 2}
    found = compiler.run(program, spec, X, W, B, main=list(bodies))
    dense = np.maximum(X @ W + B, 0)
    for one, wanted in zip(found, (2 * dense, dense, 3 * dense, dense), strict=True):
        same(one, wanted)


def test_parts_of_larger_tensors_need_not_be_aligned(compiler: Compiler) -> None:
    """The compiler has kernels write right into the tensor that their result is put into."""
    site = function(f"%x: {OUT}", "%y", OUT, pointwise("y", "%x", DOUBLE))
    x = te.placeholder((24, 32), "f32", name="x")
    y = te.compute((24, 32), lambda i, j: x[i, j] + x[i, j], name="y")
    schedule = te.create_schedule(y)
    _, lanes = schedule[y].split(y.op.axis[1], 8)
    schedule[y].parallel(y.op.axis[0])
    schedule[y].vectorize(lanes)
    spec = spec_of(spec_kernel("doubled", site, SketchedKernel(schedule, (x, y))))
    body = [
        """
      %flat = tensor.collapse_shape %whole [[0, 1]] : tensor<25x32xf32> into tensor<800xf32>
      %cut = tensor.extract_slice %flat[3] [768] [1] : tensor<800xf32> to tensor<768xf32>
      %x = tensor.expand_shape %cut [[0, 1]] output_shape [24, 32]
        : tensor<768xf32> into tensor<24x32xf32>""",
        pointwise("y", "%x", DOUBLE),
        """
      %row = tensor.collapse_shape %y [[0, 1]] : tensor<24x32xf32> into tensor<768xf32>
      %e = tensor.empty() : tensor<800xf32>
      %f = linalg.fill ins(%zero : f32) outs(%e : tensor<800xf32>) -> tensor<800xf32>
      %z = tensor.insert_slice %row into %f[5] [768] [1] : tensor<768xf32> into tensor<800xf32>""",
    ]
    program = programs(body, "%whole: tensor<25x32xf32>", "%z", "tensor<800xf32>")
    assert compiler.dispatched(program, spec) == {"doubled": 1}
    whole, wanted = random(25, 32), np.zeros(800, "f")
    wanted[5:773] = 2 * whole.ravel()[3:771]
    same(*compiler.run(program, spec, whole), wanted)


def test_kernels_of_several_dispatches_and_weights_outside(
    compiler: Compiler, tmp_path: Path
) -> None:
    """One dispatch packs what is not constant, another reads it; the rest comes from a file."""
    spec = spec_of(spec_kernel("dense", PRODUCT, product_kernel(inside=True)))
    program = programs([product("y", "%x", "%w", "%b")], INPUTS, "%y", OUT)
    assert compiler.dispatched(program, spec) == {"dense": 2}
    same(*compiler.run(program, spec, X, W, B), np.maximum(X @ W + B, 0))
    archive = tmp_path / "weights.irpa"
    index = rt.ParameterIndex()
    for name, values in (("w", W), ("b", B)):
        index.add_buffer(name, values.tobytes())
    index.create_archive_file(str(archive))
    outside = "".join(
        f"""
    util.global private @{name} = #flow.parameter.named<"model"::"{name}"> : {type_}"""
        for name, type_ in (("w", "tensor<16x32xf32>"), ("b", "tensor<32xf32>"))
    )
    loads = """
      %w = util.global.load @w : tensor<16x32xf32>
      %b = util.global.load @b : tensor<32xf32>"""
    program = outside + programs(
        [loads, product("y", "%x", "%w", "%b")], "%x: tensor<24x16xf32>", "%y", OUT
    )
    packed = spec_of(spec_kernel("dense", PRODUCT, product_kernel()))
    assert compiler.dispatched(program, packed) == {"dense": 1}
    module = compiler.module(program, packed, "flow")
    (main,) = (f for n, f in symbols(module).items() if n == "main")
    assert [op.name for op in walk(main)].count("flow.dispatch") == 1, "weights are packed ahead"
    same(*compiler.run(program, packed, X, archive=archive), np.maximum(X @ W + B, 0))


def test_a_site_that_cannot_be_recognised_is_refused() -> None:
    negated = "\n      %y = arith.negf %x : tensor<?xf32>"
    dynamic = function("%x: tensor<?xf32>", "%y", "tensor<?xf32>", negated)
    captured = function(
        f"%x: {OUT}, %n: tensor<f32>",
        "%y",
        OUT,
        "\n      %v = tensor.extract %n[] : tensor<f32>",
        pointwise("y", "%x", "%r = arith.addf %p, %v : f32"),
    )
    for site, said in ((dynamic, "known at run time only"), (captured, "a value from outside")):
        with pytest.raises(UserError, match=f"site of kernel 'dense': .*{said}"):
            spec_of(spec_kernel("dense", site, product_kernel()))


def test_which_result_of_an_op_is_used_is_compared(compiler: Compiler) -> None:
    """Importers compute an extreme and where it is by one op, of which one result is read."""
    both = """
      %e = tensor.empty() : tensor<24x32xf32>
      %s:2 = linalg.generic {indexing_maps = [#same, #same, #same], #parallel}
        ins(%x : tensor<24x32xf32>) outs(%e, %e : tensor<24x32xf32>, tensor<24x32xf32>) {
      ^bb0(%p: f32, %o: f32, %n: f32):
        %q = arith.addf %p, %p : f32
        %r = arith.mulf %p, %p : f32
        linalg.yield %q, %r : f32, f32
      } -> (tensor<24x32xf32>, tensor<24x32xf32>)""".replace("#same", IDENTITY)
    both = both.replace("#parallel", PARALLEL)
    one = pointwise("y", "%s#1", "%r = arith.negf %p : f32")
    site = function(f"%x: {OUT}", "%y", OUT, both, one)
    x = te.placeholder((24, 32), "f32", name="x")
    kernel = plain_kernel(x, te.compute((24, 32), lambda i, j: -(x[i, j] * x[i, j]), name="y"))
    spec = spec_of(spec_kernel("square", site, kernel))
    program = "".join(
        programs([both, one.replace("#1", f"#{n}")], f"%x: {OUT}", "%y", OUT, f"f{n}")
        for n in (0, 1)
    )
    assert compiler.dispatched(program, spec) == {"square": 1}
    given = random(24, 32)
    first, second = compiler.run(program, spec, given, main=["f0", "f1"])
    same(first, -2 * given)
    same(second, -(given**2))


@pytest.mark.parametrize(
    ("dtype", "joined", "parts"),
    [
        ("f16", False, 0),
        ("bf16", False, 0),
        ("i8", False, 0),
        ("i8", True, 0),
        ("f16", False, 2),
        ("bf16", False, 1),
    ],
)
def test_packing_of_narrow_types_is_done_ahead(
    compiler: Compiler, dtype: str, joined: bool, parts: int
) -> None:
    """Panels of 8 columns, the last of which is padded; as one dimension with the rows, too; in
    parts of bf16."""
    total = "i32" if dtype == "i8" else "f32"
    zero = "0" if dtype == "i8" else "0.0"
    body = f"""
      %z = arith.constant {zero} : {total}
      %e = tensor.empty() : tensor<8x20x{total}>
      %f = linalg.fill ins(%z : {total}) outs(%e : tensor<8x20x{total}>) -> tensor<8x20x{total}>
      %y = linalg.matmul ins(%x, %w : tensor<8x16x{dtype}>, tensor<16x20x{dtype}>)
        outs(%f : tensor<8x20x{total}>) -> tensor<8x20x{total}>"""
    inputs = f"%x: tensor<8x16x{dtype}>, %w: tensor<16x20x{dtype}>"
    site = function(inputs, "%y", f"tensor<8x20x{total}>", body)
    terms = (parts, 1) if parts else None
    packing = Packing((0, 4), ((16,), (3, 8)), (1, 0, 2), (), (2, 1) if joined else (), terms)
    x = te.placeholder((8, 16), dtype, name="x")
    w = te.placeholder(packing.shape, packing.dtype(dtype), name="w")
    k = te.reduce_axis(16, "k")

    def term(i: te.Expr, j: te.Expr) -> te.Expr:
        place = (j // 8 * 16 + k,) if joined else (j // 8, k)
        if parts:
            weight = sum(w[j // 8, n, k, j % 8].astype("f32") for n in range(parts))
        else:
            weight = te.cast(total, w[(*place, j % 8)])
        return te.cast(total, x[i, k]) * weight

    y = te.compute((8, 20), lambda i, j: te.sum(term(i, j), axis=k), name="y")
    kernel = SketchedKernel(te.create_schedule(y), (x, w, y), {1: packing})
    spec = spec_of(spec_kernel("narrow", site, kernel))
    given = np.random.default_rng(0).integers(-3, 4, (8, 16)).astype(np.int8)
    # Of more bits than a part of bf16 has.
    most = 900 if parts == 2 else 4
    weights = np.random.default_rng(1).integers(-most, most, (16, 20)).astype(np.int16)
    converted = f"""
      %x = arith.truncf %i : tensor<8x16xf32> to tensor<8x16x{dtype}>"""
    cast = "" if dtype == "i8" else converted
    numbers = weights.tolist() if dtype == "i8" else weights.astype(float).tolist()
    constants = f"\n      %w = arith.constant dense<{numbers}> : tensor<16x20x{dtype}>"
    argument = "%x: tensor<8x16xi8>" if dtype == "i8" else "%i: tensor<8x16xf32>"
    program = programs([cast, constants, body], argument, "%y", f"tensor<8x20x{total}>")
    assert compiler.dispatched(program, spec) == {"narrow": 1}
    module = compiler.module(program, spec, "flow")
    main = symbols(module)["main"]
    dispatches = [op.name for op in walk(main)].count("flow.dispatch")
    assert dispatches == (1 if dtype == "i8" else 2), "weights are packed ahead"
    wanted = given.astype(np.int32) @ weights.astype(np.int32)
    same(*compiler.run(program, spec, given.astype("i1" if dtype == "i8" else "f4")), wanted)


def test_constants_are_multiplied_by_matrices_ahead(compiler: Compiler) -> None:
    """Columns of the weights are doubled and in reverse order, which the kernel knows."""
    matrix = tuple(tuple(2.0 * (j == 31 - i) for j in range(32)) for i in range(32))
    x, w = te.placeholder((24, 16), name="x"), te.placeholder((32, 16), name="w")
    b, k = te.placeholder((32,), name="b"), te.reduce_axis(16, "k")
    p = te.compute((24, 32), lambda i, j: te.sum(x[i, k] * w[31 - j, k], axis=k), name="p")
    y = te.compute((24, 32), lambda i, j: te.maximum(0.5 * p[i, j] + b[j], 0.0), name="y")
    packing = Packing((0, 0), ((16,), (32,)), (1, 0), (None, matrix))
    schedule = te.create_schedule(y)
    schedule[p].compute_at(schedule[y], y.op.axis[0])
    kernel = SketchedKernel(schedule, (x, w, b, y), {1: packing})
    spec = spec_of(spec_kernel("dense", PRODUCT, kernel))
    weights = [constant("w", W), constant("b", B), product("y", "%x", "%w", "%b")]
    program = programs(weights, "%x: tensor<24x16xf32>", "%y", OUT)
    assert compiler.dispatched(program, spec) == {"dense": 1}
    module = compiler.module(program, spec, "flow")
    main = symbols(module)["main"]
    assert [op.name for op in walk(main)].count("flow.dispatch") == 1, "it is done ahead"
    same(*compiler.run(program, spec, X), np.maximum(X @ W + B, 0))

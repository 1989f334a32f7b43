"""Kernels of a spec whose workgroups claim their pieces: each piece is done once, whoever asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import iree.runtime as rt
import numpy as np
import pytest

from kernel_specs import TARGET, Compiler, function, pointwise, programs, random, same, spec_kernel
from tilewright import te
from tilewright.ir.piece_claims import Pieces
from tilewright.measure.jobs import WorkerState
from tilewright.sketch.interface import SketchedKernel
from tilewright.sketch.spec import write_kernel_spec
from tilewright.sketch.spec_code import compile_into

CLAIMED = "llvm.atomicrmw"


@pytest.fixture(scope="module")
def state() -> WorkerState:
    return WorkerState()


def scaled(shape: tuple[int, int], *parallel: int) -> tuple[str, SketchedKernel, str]:
    """A site that doubles a matrix, a kernel with so many pieces along each axis, a program that
    does it three times."""
    text = "x".join(map(str, shape))
    type_ = f"tensor<{text}xf32>"
    site = function(
        f"%x: {type_}", "%y", type_, pointwise("y", "%x", "%r = arith.addf %p, %p : f32", text)
    )
    x = te.placeholder(shape, "f32", name="x")
    y = te.compute(shape, lambda i, j: x[i, j] + x[i, j], name="y")
    schedule = te.create_schedule(y)
    stage = schedule[y]
    pairs = [
        stage.split(axis, -(-size // count))
        for axis, size, count in zip(y.op.axis, shape, parallel, strict=False)
    ]
    rest = list(y.op.axis)[len(pairs) :]
    stage.reorder(*(outer for outer, _ in pairs), *(inner for _, inner in pairs), *rest)
    for outer, _ in pairs:
        stage.parallel(outer)
    body = [
        pointwise("a", "%x", "%r = arith.addf %p, %p : f32", text),
        # Something of the compiler's own between, so that the three are not one dispatch.
        f"""
      %b = util.optimization_barrier %a : {type_}""",
        pointwise("c", "%b", "%r = arith.addf %p, %p : f32", text),
        f"""
      %d = util.optimization_barrier %c : {type_}""",
        pointwise("e", "%d", "%r = arith.addf %p, %p : f32", text),
    ]
    program = programs(body, f"%x: {type_}", "%e", type_)
    return site, SketchedKernel(schedule, (x, y), {}), program


def compiled(state: WorkerState, site: str, kernel: SketchedKernel) -> str:
    return write_kernel_spec(
        [spec_kernel("twice", site, kernel)],
        {"target": TARGET.key},
        partial(compile_into, state, TARGET.flags),
    )


# Few pieces, of which the last is smaller; several axes; as many as are handed out one by one with
# empty ones between; as many as there are bits.
@pytest.mark.parametrize(
    ("shape", "parallel"),
    [((7, 32), (2,)), ((24, 32), (3, 2)), ((40, 8), (20,)), ((63, 8), (63,)), ((16, 16), (4, 8))],
)
def test_every_piece_is_done_once_by_any_number_of_workers(
    state: WorkerState, tmp_path: Path, shape: tuple[int, int], parallel: tuple[int, ...]
) -> None:
    site, kernel, program = scaled(shape, *parallel)
    spec = compiled(state, site, kernel)
    assert CLAIMED in spec
    compiler = Compiler(tmp_path)
    assert compiler.dispatched(program, spec) == {"twice": 3}
    binary = compiler.compiled(program, spec)
    for driver in ("local-sync", "local-task"):
        config = rt.Config(driver)
        module = rt.VmModule.copy_buffer(config.vm_instance, binary)
        context = rt.SystemContext(vm_modules=[module], config=config)
        for seed in range(20):
            x = random(*shape, seed=seed)
            same(np.asarray(context.modules.module.main(x).to_host()), 8 * x)


def test_calls_at_the_same_time_do_not_meet(state: WorkerState, tmp_path: Path) -> None:
    site, kernel, program = scaled((48, 64), 8)
    binary = Compiler(tmp_path).compiled(program, compiled(state, site, kernel))
    config = rt.Config("local-task")
    module = rt.VmModule.copy_buffer(config.vm_instance, binary)
    context = rt.SystemContext(vm_modules=[module], config=config)
    main = context.modules.module.main

    def calls(number: int) -> None:
        for seed in range(50):
            x = random(48, 64, seed=100 * number + seed)
            same(np.asarray(main(x).to_host()), 8 * x)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(calls, range(4)))


@pytest.mark.parametrize("pieces", [1, 64])
def test_one_piece_and_very_many_are_handed_out_by_the_runtime(
    state: WorkerState, tmp_path: Path, pieces: int
) -> None:
    site, kernel, program = scaled((64, 8), pieces)
    spec = compiled(state, site, kernel)
    assert CLAIMED not in spec
    x = random(64, 8)
    same(*Compiler(tmp_path).run(program, spec, x), 8 * x)


def test_pieces() -> None:
    assert Pieces((4, 2, 2)).number == 16
    assert [Pieces((n, 1, 1)).can_be_claimed for n in (1, 2, 63, 64)] == [False, True, True, False]

"""A spec whose kernels are compiled code does what the same spec with their MLIR does."""

from __future__ import annotations

import platform
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from iree.compiler import ir

from kernel_specs import (
    PRODUCT,
    TARGET,
    Compiler,
    function,
    plain_kernel,
    pointwise,
    product,
    product_kernel,
    programs,
    random,
    same,
    spec_kernel,
)
from tilewright import te
from tilewright.ir.configuring import DispatchAttributes
from tilewright.ir.template import configured_functions, dispatch_functions
from tilewright.ir.walk import string_attribute
from tilewright.measure.jobs import WorkerState
from tilewright.sketch.interface import SketchedKernel
from tilewright.sketch.spec import SpecKernel, write_kernel_spec
from tilewright.sketch.spec_code import compile_into
from tilewright.spec.join import join_specs
from tilewright.spec.library import MARKER
from tilewright.spec.merge import merge_specs
from tilewright.spec.write import SpecEntry, write_spec
from tilewright.toolchain import Toolchain
from tilewright.tuning.variants import PREPROCESSING_FLAG

X, W, B = random(24, 16), random(16, 32, seed=1), random(32, seed=2)
INPUTS = "%x: tensor<24x16xf32>, %w: tensor<16x32xf32>, %b: tensor<32xf32>"
OUT = "tensor<24x32xf32>"


@pytest.fixture(scope="module")
def state() -> WorkerState:
    return WorkerState()


def compiled_spec(state: WorkerState, *kernels: SpecKernel) -> str:
    return write_kernel_spec(
        kernels, {"target": TARGET.key}, partial(compile_into, state, TARGET.flags)
    )


def own_memory_kernel() -> SketchedKernel:
    """A product whose workgroups keep copies of a row in more memory than a stack has room for."""
    x, b = te.placeholder((24, 16), "f32", name="x"), te.placeholder((32,), "f32", name="b")
    w = te.placeholder((16, 32), "f32", name="w")
    copies = te.compute((24, 16, 1024), lambda i, k, n: x[i, k], name="copies")
    k = te.reduce_axis(16, "k")
    p = te.compute((24, 32), lambda i, j: te.sum(copies[i, k, 32 * j] * w[k, j], axis=k), name="p")
    y = te.compute((24, 32), lambda i, j: te.maximum(p[i, j] + b[j], 0.0), name="y")
    schedule = te.create_schedule(y)
    schedule[p].compute_at(schedule[y], y.op.axis[0])
    schedule[copies].compute_at(schedule[y], y.op.axis[0])
    schedule[y].parallel(y.op.axis[0])
    return SketchedKernel(schedule, (x, w, b, y), {})


@pytest.mark.parametrize(
    ("kernel", "dispatches"),
    [
        (product_kernel(packed=False), 1),
        (product_kernel(inside=True), 2),
    ],
    ids=["one", "two dispatches"],
)
def test_code_is_linked(
    state: WorkerState, tmp_path: Path, kernel: SketchedKernel, dispatches: int
) -> None:
    spec = compiled_spec(state, spec_kernel("dense", PRODUCT, kernel))
    compiler = Compiler(tmp_path)
    program = programs([product("y", "%x", "%w", "%b")], INPUTS, "%y", OUT)
    assert compiler.dispatched(program, spec) == {"dense": dispatches}
    same(*compiler.run(program, spec, X, W, B), np.maximum(X @ W + B, 0))


def test_several_kernels_with_functions_and_workgroups_own_memory(
    state: WorkerState, tmp_path: Path
) -> None:
    """Code that calls a function of a library, and code with memory of a workgroup's own."""
    logarithm = function(f"%x: {OUT}", "%l", OUT, pointwise("l", "%x", "%r = math.log1p %p : f32"))
    x = te.placeholder((24, 32), "f32", name="x")
    log = te.compute((24, 32), lambda i, j: te.log1p(x[i, j]), name="log")
    spec = compiled_spec(
        state,
        spec_kernel("dense", PRODUCT, own_memory_kernel()),
        spec_kernel("log", logarithm, plain_kernel(x, log)),
    )
    assert "workgroup_local_memory" in spec
    assert not [word for word in spec.split() if word.startswith("memref.")], "code left as MLIR"
    again = compiled_spec(state, spec_kernel("dense", PRODUCT, own_memory_kernel()))
    joined = join_specs([again, spec])
    assert joined.entries == ("dense", "log")
    assert joined.duplicates_dropped == ("dense",)
    compiler = Compiler(tmp_path)
    program = programs(
        [
            product("y", "%x", "%w", "%b"),
            pointwise("l", "%y", "%r = math.log1p %p : f32"),
        ],
        INPUTS,
        "%l",
        OUT,
    )
    for text in (spec, joined.text):
        assert compiler.dispatched(program, text) == {"dense": 1, "log": 1}
        same(*compiler.run(program, text, X, W, B), np.log1p(np.maximum(X @ W + B, 0)))


def test_a_tuning_spec_with_passes_leaves_linked_code_alone(
    state: WorkerState, tmp_path: Path
) -> None:
    """A pass of the tuning spec's entry point crashes on functions of LLVM's dialect."""
    kernels = compiled_spec(state, spec_kernel("dense", PRODUCT, product_kernel(packed=False)))
    body = [product("y", "%x", "%w", "%b"), pointwise("l", "%y", "%r = math.log1p %p : f32")]
    program = programs(body, INPUTS, "%l", OUT)
    module = Compiler(tmp_path).module(program, kernels, "executable-configurations")
    (found,) = (one for one in configured_functions(module).values() if one.ops)
    with module.context, ir.Location.unknown():
        attributes = DispatchAttributes.read(found.function, found.ops)
        entry = SpecEntry("log", found.function, attributes)
        text = write_spec([entry])
    # A spec that is merged with one of another's keeps this, and runs its passes once.
    merged = merge_specs([text, text]).text
    for number, spec in enumerate((text, merged)):
        tuning = tmp_path / f"tuning_{number}.mlir"
        tuning.write_text(spec)
        tuned = Compiler(tmp_path, (f"{TARGET.spec_flag}{tuning}",))
        marked = tuned.module(program, kernels, "executable-configurations")
        names = [string_attribute(op, MARKER) for op in dispatch_functions(marked).values()]
        assert sorted(names) == ["", "log"]
        same(*tuned.run(program, kernels, X, W, B), np.log1p(np.maximum(X @ W + B, 0)))


def test_a_spec_for_another_processor_is_refused_by_the_compiler(
    state: WorkerState, tmp_path: Path
) -> None:
    spec, source = tmp_path / "spec.mlir", tmp_path / "program.mlir"
    spec.write_text(compiled_spec(state, spec_kernel("dense", PRODUCT, product_kernel())))
    source.write_text(programs([product("y", "%x", "%w", "%b")], INPUTS, "%y", OUT))
    x86 = platform.machine() in ("x86_64", "AMD64")
    triple = "aarch64-unknown-linux-gnu" if x86 else "x86_64-unknown-linux-gnu"
    flags = (
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        f"--iree-llvmcpu-target-triple={triple}",
        f"{PREPROCESSING_FLAG}={spec}",
    )
    outcome = Toolchain().compile(source, tmp_path / "out", flags, timeout_s=120.0)
    assert not outcome.ok
    assert "undefined symbol" in outcome.log

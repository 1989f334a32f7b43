"""Benchmarks that take their operands from several sets in turn."""

import numpy as np
import pytest

from tilewright.argument import ArgumentType
from tilewright.ir.candidate import make_candidate
from tilewright.ir.session import CONFIGURED_PHASE, CompilerSession
from tilewright.ir.template import dispatch_functions
from tilewright.measure.benchmark_worker import _timed_call, open_device, setup
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.inputs import random_inputs
from tilewright.measure.jobs import WorkerState

FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
SOURCE = """
func.func @main(%a: tensor<16x8xf32>, %b: tensor<8x16xf32>) -> tensor<16x16xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<16x16xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<16x16xf32>) -> tensor<16x16xf32>
  %r = linalg.matmul ins(%a, %b : tensor<16x8xf32>, tensor<8x16xf32>)
    outs(%f : tensor<16x16xf32>) -> tensor<16x16xf32>
  return %r : tensor<16x16xf32>
}
"""
TYPES = (ArgumentType("f32", (16, 8)), ArgumentType("f32", (8, 16)))


@pytest.fixture(scope="module")
def made():
    """The program with `bench` over one set of arguments and over three."""
    from iree.compiler import ir

    session = CompilerSession(FLAGS)
    text = session.compile(SOURCE, compile_to="executable-configurations")
    found = {}
    for sets in (1, 3):
        with session.context:
            module = ir.Module.parse(text, session.context)
            (name,) = dispatch_functions(module)
            executable, entry = name.split("/")
            candidate = make_candidate(
                text, session.context, executable, entry, None, 7, rotations=sets
            )
            assert candidate.operation.verify()
            found[sets] = session.compile(candidate.operation, compile_from=CONFIGURED_PHASE)
    return found


@pytest.fixture
def state():
    opened = WorkerState()
    setup(opened, DeviceOptions("local-sync"))
    return opened


@pytest.mark.parametrize("sets", [1, 3])
def test_every_set_is_used_and_the_result_is_the_programs(made, state, tmp_path, sets):
    program = open_device(state).load(made[sets])
    assert program.argument_count("main") == 2
    assert program.argument_count("bench") == 2 * sets
    inputs = random_inputs(tmp_path, TYPES, seed=0)
    call, executions = _timed_call(state, inputs, program, "main", 7)
    assert executions == 7
    (result,) = program.outputs(call())
    a, b = (argument.load() for argument in inputs.arguments)
    assert np.allclose(result, a @ b, rtol=1e-5)


def test_the_last_dispatch_reads_the_set_whose_turn_it_is(made, state):
    """Seven times over three sets end with the first set again; other data shows it."""
    program = open_device(state).load(made[3])
    rng = np.random.default_rng(0)
    sets = [[rng.normal(size=t.shape).astype(np.float32) for t in TYPES] for _ in range(3)]
    arguments = [open_device(state).upload(array) for one in sets for array in one]
    (result,) = program.outputs(program.bind("bench", arguments)())
    products = [a @ b for a, b in sets]
    close = [np.allclose(result, product, rtol=1e-4, atol=1e-5) for product in products]
    assert sum(close) == 1

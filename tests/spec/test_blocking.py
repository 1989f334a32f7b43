"""Blocked layouts: what is blocked, changes of layout that cancel, numbers that stay right."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import iree.runtime as rt
import numpy as np
import pytest
from iree.compiler import ir

from convolution_networks import Network, Value, network
from tilewright.errors import UserError
from tilewright.ir.session import CompilerSession
from tilewright.ir.walk import walk
from tilewright.spec.blocking import (
    Blocks,
    block_of,
    blockable_ops,
    blocks_of,
    write_blocking_spec,
)
from tilewright.tuning.variants import PREPROCESSING_FLAG

CPU = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
PHASE = "preprocessing"


class Compiler:
    """Compiles with a spec written to a file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "blocked.mlir"

    def session(self, spec: str | None) -> CompilerSession:
        if spec is None:
            return CompilerSession(CPU)
        self.path.write_text(spec)
        return CompilerSession([*CPU, f"{PREPROCESSING_FLAG}={self.path}"])

    def module(self, text: str, spec: str | None, phase: str = PHASE) -> ir.Operation:
        session = self.session(spec)
        return session.parse(session.compile(text, None, phase, "bytecode"))

    def spec(self, text: str, largest: int, least: int = 4) -> str:
        ops = blockable_ops(self.module(text, None))
        return write_blocking_spec({op: blocks_of(op, largest, least) for op in ops})

    def run(self, text: str, spec: str | None) -> np.ndarray:
        vmfb = self.session(spec).compile(text)
        config = rt.Config("local-sync")
        module = rt.VmModule.copy_buffer(config.vm_instance, vmfb)
        main = rt.SystemContext(vm_modules=[module], config=config).modules.module["main"]
        shape = [int(size) for size in text.split("tensor<")[1].split("xf32")[0].split("x")]
        values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        return np.asarray(main(values).to_host())


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path)


def names(module: ir.Operation) -> Counter[str]:
    return Counter(op.name for op in walk(module))


def is_constant(value: ir.Value) -> bool:
    """Whether a value depends on nothing but constants."""
    op = value.owner
    return isinstance(op, ir.Operation | ir.OpView) and all(map(is_constant, op.operands))


def test_a_block_is_the_largest_that_divides() -> None:
    assert [block_of(n, 16, 8) for n in (64, 24, 40, 12, 3, 1000)] == [16, 8, 8, 0, 0, 8]
    assert [block_of(n, 8, 4) for n in (64, 12, 6)] == [8, 4, 0]


def test_ops_are_told_by_shape(compiler: Compiler) -> None:
    ops = blockable_ops(compiler.module(network("nchw"), None))
    first = ops[0]
    assert (first.image_channels, first.result_channels) == (3, 16)
    assert first.packed_sizes(Blocks(0, 8)) == [0, 8, 0, 0, 0, 0, 0]
    kinds = Counter(op.op for op in ops for _ in range(op.count))
    assert kinds["linalg.depthwise_conv_2d_nchw_chw"] == 2
    assert kinds["linalg.pooling_nchw_max"] == kinds["linalg.pooling_nchw_sum"] == 1
    depthwise = next(op for op in ops if "depthwise" in op.op)
    assert depthwise.packed_sizes(blocks_of(depthwise, 8, 4)) == [0, 0, 0, 8, 0, 0]
    assert len(ops) == len(set(ops))


def test_channels_last_programs_have_none(compiler: Compiler) -> None:
    assert blockable_ops(compiler.module(network("nhwc"), None)) == []


@pytest.mark.parametrize("largest", [8, 16, 32])
def test_a_network_is_blocked_from_end_to_end(compiler: Compiler, largest: int) -> None:
    text = network("nchw", seed=0)
    spec = compiler.spec(text, largest)
    module = compiler.module(text, spec)
    assert not any("conv" in name or "pooling" in name for name in names(module))
    packs = [op for op in walk(module) if op.name == "linalg.pack"]
    assert packs
    assert all(is_constant(op.operands[0]) for op in packs)
    # What is left stands behind the last pooling, of one point a channel.
    assert names(module)["linalg.unpack"] <= 1


def test_numbers_stay_right_and_weights_are_packed_in_initializers(compiler: Compiler) -> None:
    net = Network("nchw", np.random.default_rng(0))
    x = Value(net.argument(net.type(3, 16)), 3, 16)
    x = net.biased(net.convolution(x, 8, 3, 2))
    y = net.pooled(net.padded(x, 1, 1, "0xFF800000"), "max", 3, 1, "0xFF800000")
    y = net.biased(net.depthwise(y))
    y = net.sum(net.convolution(y, 8, 1), x)
    y = net.biased(net.convolution(y, 12, 1, 2))
    text = net.program(y.name, net.type(12, 4))
    spec = compiler.spec(text, 8)
    np.testing.assert_allclose(
        compiler.run(text, spec), compiler.run(text, None), rtol=2e-5, atol=2e-5
    )
    module = compiler.module(text, spec, "flow")
    (main,) = (op for op in walk(module) if op.name == "util.func")
    called = [str(op.attributes["entry_points"]) for op in walk(main) if op.name == "flow.dispatch"]
    assert called
    assert not [name for name in called if "pack" in name and "unpack" not in name]


def test_groups_and_odd_channels(compiler: Compiler) -> None:
    net = Network("nchw", np.random.default_rng(0))
    x = Value(net.argument(net.type(12, 10)), 12, 10)
    y = net.biased(net.convolution(x, 20, 3))
    y = net.biased(net.convolution(y, 10, 1))
    text = net.program(y.name, net.type(10, 10))
    ops = blockable_ops(compiler.module(text, None))
    assert [blocks_of(op, 8, 4) for op in ops] == [Blocks(4, 4), Blocks(4, 0)]
    assert names(compiler.module(text, compiler.spec(text, 8)))["linalg.unpack"] == 0
    grouped = """
    func.func @main(%x: tensor<1x2x16x10x10xf32>, %w: tensor<2x24x16x3x3xf32>) -> tensor<1x2x24x8x8xf32> {
      %z = arith.constant 0.0 : f32
      %e = tensor.empty() : tensor<1x2x24x8x8xf32>
      %f = linalg.fill ins(%z : f32) outs(%e : tensor<1x2x24x8x8xf32>) -> tensor<1x2x24x8x8xf32>
      %0 = linalg.conv_2d_ngchw_gfchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
        ins(%x, %w : tensor<1x2x16x10x10xf32>, tensor<2x24x16x3x3xf32>)
        outs(%f : tensor<1x2x24x8x8xf32>) -> tensor<1x2x24x8x8xf32>
      return %0 : tensor<1x2x24x8x8xf32>
    }"""  # noqa: E501
    (op,) = blockable_ops(compiler.module(grouped, None))
    assert blocks_of(op, 16, 4) == Blocks(16, 8)
    assert names(compiler.module(grouped, compiler.spec(grouped, 16)))["linalg.pack"] == 2


def test_a_spec_without_ops_changes_nothing(compiler: Compiler) -> None:
    text = network("nchw")
    changed, default = (compiler.module(text, s).get_asm() for s in (write_blocking_spec({}), None))
    assert changed == default


def test_a_block_that_does_not_divide(compiler: Compiler) -> None:
    op = blockable_ops(compiler.module(network("nchw"), None))[0]
    with pytest.raises(UserError, match="16 channels, which blocks of 5 do not divide"):
        write_blocking_spec({op: Blocks(0, 5)})

"""Chosen convolutions become matrix products, all others stay, and the numbers stay right."""

from __future__ import annotations

from pathlib import Path

import iree.runtime as rt
import numpy as np
import pytest
from iree.compiler import ir

from tilewright.errors import UserError
from tilewright.ir.session import CompilerSession
from tilewright.ir.walk import walk
from tilewright.spec.preprocessing import (
    PHASE,
    ConvSite,
    applied_sites,
    choices,
    conv_sites,
    write_im2col_spec,
)
from tilewright.tuning.variants import PREPROCESSING_FLAG

CPU = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")


def convolution(
    name: str,
    source: str,
    shapes: tuple[str, str, str],
    stride: int = 1,
    op: str = "conv_2d_nhwc_hwcf",
    dilation: int = 1,
) -> str:
    into, filter_, out = (f"tensor<{s}xf32>" for s in shapes)
    return f"""
      %{name}_e = tensor.empty() : {out}
      %{name}_f = linalg.fill ins(%z : f32) outs(%{name}_e : {out}) -> {out}
      %{name}_w = util.unfoldable_constant dense<0.125> : {filter_}
      %{name} = linalg.{op} {{dilations = dense<{dilation}> : vector<2xi64>,
        strides = dense<{stride}> : vector<2xi64>}}
        ins(%{source}, %{name}_w : {into}, {filter_}) outs(%{name}_f : {out}) -> {out}"""


def program(into: str, out: str, result: str, *convolutions: str) -> str:
    return f"""
    func.func @main(%x: tensor<{into}xf32>) -> tensor<{out}xf32> {{
      %z = arith.constant 0.0 : f32{"".join(convolutions)}
      return %{result} : tensor<{out}xf32>
    }}"""


POINTWISE = ("1x8x8x16", "1x1x16x16", "1x8x8x16")
NHWC = program(
    "1x20x20x8",
    "1x4x4x16",
    "f",
    convolution("a", "x", ("1x20x20x8", "3x3x8x16", "1x18x18x16")),
    convolution("b", "a", ("1x18x18x16", "3x3x16x16", "1x8x8x16"), stride=2),
    convolution("c", "b", POINTWISE),
    convolution("d", "c", POINTWISE),
    convolution("e", "d", ("1x8x8x16", "3x3x16", "1x6x6x16"), op="depthwise_conv_2d_nhwc_hwc"),
    convolution("g", "d", ("1x8x8x16", "1x1x16x16", "1x4x4x16"), stride=2),
    convolution("h", "g", ("1x4x4x16", "1x1x16x16", "1x4x4x16"), dilation=2),
    """
      %s = tensor.extract_slice %e[0, 0, 0, 0] [1, 4, 4, 16] [1, 1, 1, 1]
           : tensor<1x6x6x16xf32> to tensor<1x4x4x16xf32>
      %f = arith.addf %s, %h : tensor<1x4x4x16xf32>""",
)
NCHW = program(
    "1x8x18x18",
    "1x16x4x4",
    "b",
    convolution("a", "x", ("1x8x18x18", "16x8x3x3", "1x16x8x8"), stride=2, op="conv_2d_nchw_fchw"),
    convolution("b", "a", ("1x16x8x8", "16x16x1x1", "1x16x4x4"), stride=2, op="conv_2d_nchw_fchw"),
)
BATCH = program(
    "2x18x18x8",
    "2x4x4x16",
    "b",
    convolution("a", "x", ("2x18x18x8", "3x3x8x16", "2x8x8x16"), stride=2),
    convolution("b", "a", ("2x8x8x16", "1x1x16x16", "2x4x4x16"), stride=2),
)
STABLEHLO = """
func.func @main(%x: tensor<1x16x16x8xf32>) -> tensor<1x8x8x16xf32> {
  %w = util.unfoldable_constant dense<0.125> : tensor<1x1x8x16xf32>
  %b = util.unfoldable_constant dense<0.5> : tensor<16xf32>
  %y = stablehlo.tanh %x : tensor<1x16x16x8xf32>
  %0 = stablehlo.convolution(%y, %w)
    dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 2]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x16x16x8xf32>, tensor<1x1x8x16xf32>) -> tensor<1x8x8x16xf32>
  %1 = stablehlo.broadcast_in_dim %b, dims = [3] : (tensor<16xf32>) -> tensor<1x8x8x16xf32>
  %2 = stablehlo.add %0, %1 : tensor<1x8x8x16xf32>
  return %2 : tensor<1x8x8x16xf32>
}
"""


# What the compiler makes of a program alone computes the same in every test.
_AS_IT_IS: dict[str, np.ndarray] = {}


class Compiler:
    """Compiles with a spec written to a file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "im2col.mlir"

    def session(self, spec: str | None) -> CompilerSession:
        if spec is None:
            return CompilerSession(CPU)
        self.path.write_text(spec)
        return CompilerSession([*CPU, f"{PREPROCESSING_FLAG}={self.path}"])

    def module(self, text: str, spec: str | None, phase: str = PHASE) -> ir.Operation:
        session = self.session(spec)
        return session.parse(session.compile(text, None, phase, "bytecode"))

    def sites(self, text: str) -> list[ConvSite]:
        return conv_sites(self.module(text, None))

    def default(self, text: str) -> np.ndarray:
        if text not in _AS_IT_IS:
            _AS_IT_IS[text] = self.run(text, None)
        return _AS_IT_IS[text]

    def run(self, text: str, spec: str | None) -> np.ndarray:
        vmfb = self.session(spec).compile(text)
        config = rt.Config("local-sync")
        module = rt.VmModule.copy_buffer(config.vm_instance, vmfb)
        context = rt.SystemContext(vm_modules=[module], config=config)
        main = context.modules.module["main"]
        shape = [int(s) for s in text.split("tensor<")[1].split("xf32")[0].split("x")]
        values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        return np.asarray(main(values).to_host())


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path)


def count(module: ir.Operation, *names: str) -> int:
    return sum(op.name in names for op in walk(module))


def named_convolutions(module: ir.Operation) -> int:
    return sum("conv" in op.name for op in walk(module))


def test_sites_are_the_shapes_that_can_be_converted(compiler: Compiler) -> None:
    sites = compiler.sites(NHWC)
    assert [(s.key, s.count) for s in sites] == [
        ("nhwc_1x20x20x8_3x3x8x16_s1x1_f32", 1),
        ("nhwc_1x18x18x16_3x3x16x16_s2x2_f32", 1),
        ("nhwc_1x8x8x16_1x1x16x16_s1x1_f32", 2),
        ("nhwc_1x8x8x16_1x1x16x16_s2x2_f32", 1),
    ]
    assert [s.is_strided_1x1 for s in sites] == [False, False, False, True]
    other = compiler.sites(NCHW)
    assert [s.layout for s in other] == ["nchw", "nchw"]
    assert [s.window for s in other] == [(3, 3), (1, 1)]


def test_sets_worth_trying(compiler: Compiler) -> None:
    sites = compiler.sites(NHWC)
    assert choices(sites) == {"strided-1x1": sites[3:], "1x1": sites[2:], "all": sites}
    assert choices(sites[3:]) == {"strided-1x1": sites[3:]}
    assert choices(sites[:2]) == {"all": sites[:2]}
    assert choices([]) == {}


@pytest.mark.parametrize("chosen", [[0], [2], [3], [1, 3], [0, 1, 2, 3]], ids=str)
def test_exactly_the_chosen_shapes_are_converted(compiler: Compiler, chosen: list[int]) -> None:
    sites = [compiler.sites(NHWC)[i] for i in chosen]
    module = compiler.module(NHWC, write_im2col_spec(sites))
    assert applied_sites(module) == {site.key: site.count for site in sites}
    assert count(module, "linalg.matmul") == sum(site.count for site in sites)
    # The others are generic: nothing is left that the pass would take.
    assert named_convolutions(module) == 0
    assert not any("tilewright.im2col" in op.attributes for op in walk(module))


@pytest.mark.parametrize(
    "text",
    [pytest.param(NHWC, marks=pytest.mark.slow), NCHW, BATCH, STABLEHLO],
    ids=["nhwc", "nchw", "batch", "stablehlo"],
)
def test_results_stay_right(compiler: Compiler, text: str) -> None:
    default = compiler.default(text)
    assert np.abs(default).max() > 0.1
    for name, sites in choices(compiler.sites(text)).items():
        spec = write_im2col_spec(sites)
        assert applied_sites(compiler.module(text, spec)).keys() == {s.key for s in sites}, name
        np.testing.assert_allclose(compiler.run(text, spec), default, rtol=2e-5, atol=2e-5)


def test_a_strided_1x1_convolution_is_compiled_as_a_matrix_product(compiler: Compiler) -> None:
    def is_strided(op: ir.Operation) -> bool:
        maps = op.attributes.get("indexing_maps", [])
        return len(maps) == 3 and any("* 2" in str(m) for m in maps)

    default = compiler.module(STABLEHLO, None, "flow")
    assert any(is_strided(op) for op in walk(default))
    spec = write_im2col_spec(compiler.sites(STABLEHLO))
    changed = compiler.module(STABLEHLO, spec, "flow")
    assert not any(is_strided(op) for op in walk(changed))
    assert count(changed, "linalg.matmul") == 1


def test_other_convolutions_compile_as_without_the_spec(compiler: Compiler) -> None:
    def dispatches(spec: str | None) -> set[str]:
        module = compiler.module(text, spec, "flow")
        functions = [op for op in walk(module) if op.name == "func.func"]
        for function in functions:
            function.attributes["sym_name"] = ir.StringAttr.get("f", function.context)
        return {function.get_asm() for function in functions}

    text = program(
        "1x20x20x8",
        "1x16x16x16",
        "b",
        convolution("a", "x", ("1x20x20x8", "3x3x8x16", "1x18x18x16")),
        convolution("b", "a", ("1x18x18x16", "3x3x16x16", "1x16x16x16")),
    )
    sites = compiler.sites(text)
    default = dispatches(None)
    assert len(default) == 2
    for site in sites:
        assert len(dispatches(write_im2col_spec([site])) & default) == 1
    assert not dispatches(write_im2col_spec(sites)) & default


def test_a_spec_without_sites_changes_nothing(compiler: Compiler) -> None:
    spec = write_im2col_spec([])
    changed, default = (compiler.module(NHWC, s).get_asm() for s in (spec, None))
    assert changed == default
    assert applied_sites(compiler.module(NHWC, spec)) == {}


def test_a_spec_for_another_program_is_seen_to_match_nothing(compiler: Compiler) -> None:
    spec = write_im2col_spec(compiler.sites(BATCH))
    module = compiler.module(NHWC, spec)
    assert set(applied_sites(module).values()) == {0}
    assert count(module, "linalg.matmul") == 0
    np.testing.assert_array_equal(compiler.run(NHWC, spec), compiler.default(NHWC))


def test_a_program_without_convolutions_and_with_several_functions(compiler: Compiler) -> None:
    text = """
    func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }
    func.func @g(%a: tensor<4xf32>) -> tensor<4xf32> {
      %0 = arith.addf %a, %a : tensor<4xf32>
      return %0 : tensor<4xf32>
    }
    """
    assert compiler.sites(text) == []
    spec = write_im2col_spec(compiler.sites(NHWC))
    assert set(applied_sites(compiler.module(text, spec)).values()) == {0}


def test_a_site_given_twice(compiler: Compiler) -> None:
    site = compiler.sites(NHWC)[0]
    with pytest.raises(UserError, match=f"'{site.key}' is given twice"):
        write_im2col_spec([site, site])

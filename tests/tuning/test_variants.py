"""Built-in variants are flags that the compiler takes; the user's choices become variants."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import UnknownNameError, UserError
from tilewright.ir.session import CompilerSession
from tilewright.ir.walk import walk
from tilewright.target import PACKED_AHEAD_FLAG
from tilewright.tuning.builds import Build
from tilewright.tuning.effort import EFFORTS, find_effort
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.variants import (
    BUILT_IN,
    PREPROCESSING_FLAG,
    Variant,
    applicable,
    effort_variants,
    find_variant,
    parse_variants,
    read_variants,
    with_spec_flags,
    without_kernels,
)
from tilewright.workload import KINDS

CPU = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
MATMUL = """
func.func @main(%a: tensor<32x64xf32>, %b: tensor<64x48xf32>) -> tensor<32x48xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<32x48xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<32x48xf32>) -> tensor<32x48xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<32x64xf32>, tensor<64x48xf32>)
       outs(%f : tensor<32x48xf32>) -> tensor<32x48xf32>
  return %0 : tensor<32x48xf32>
}
"""
CONVOLUTION = """
func.func @main(%a: tensor<1x10x10x8xf32>, %w: tensor<3x3x8x16xf32>) -> tensor<1x8x8x16xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x8x8x16xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<1x8x8x16xf32>) -> tensor<1x8x8x16xf32>
  %0 = linalg.conv_2d_nhwc_hwcf ins(%a, %w : tensor<1x10x10x8xf32>, tensor<3x3x8x16xf32>)
       outs(%f : tensor<1x8x8x16xf32>) -> tensor<1x8x8x16xf32>
  return %0 : tensor<1x8x8x16xf32>
}
"""
ELEMENTWISE = """
func.func @main(%a: tensor<64xf32>) -> tensor<64xf32> {
  %0 = arith.addf %a, %a : tensor<64xf32>
  return %0 : tensor<64xf32>
}
"""
# What the dispatches of each program are, untuned.
PROGRAMS = {
    "matmul": (MATMUL, {"contraction"}),
    "convolution": (CONVOLUTION, {"convolution"}),
    "elementwise": (ELEMENTWISE, {"elementwise"}),
}


def test_every_built_in_variant_is_described_and_its_own() -> None:
    assert len({v.flags for v in BUILT_IN.values()}) == len(BUILT_IN)
    assert BUILT_IN["default"] == Variant("default", (), BUILT_IN["default"].note)
    for name, variant in BUILT_IN.items():
        assert variant.name == name
        assert variant.note
        assert len(set(variant.flags)) == len(variant.flags)
        assert variant.about <= set(KINDS)
        # A combination has the flags of what it is made of.
        for part in name.split("+"):
            assert set(BUILT_IN[part].flags) <= set(variant.flags)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_compiler_takes_the_flags(name: str) -> None:
    CompilerSession([*CPU, *BUILT_IN[name].flags])


def dispatches(text: str, variant: Variant) -> tuple[str, ...]:
    """The functions of all dispatches, without the target, which names some of the flags."""
    session = CompilerSession([*CPU, *variant.flags])
    module = session.parse(session.compile(text, None, "flow", "bytecode"))
    return tuple(op.get_asm() for op in walk(module) if op.name == "func.func")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_variant_that_is_skipped_gives_nothing_that_is_not_tried(program: str) -> None:
    text, kinds = PROGRAMS[program]
    tried = {dispatches(text, v) for v in BUILT_IN.values() if applicable(v, kinds)}
    skipped = [v for v in BUILT_IN.values() if not applicable(v, kinds)]
    for variant in skipped:
        assert dispatches(text, variant) in tried, variant.name
    assert bool(skipped) == (program != "convolution")


@pytest.mark.parametrize(
    ("program", "variant"),
    [("matmul", "data-tiling"), ("convolution", "im2col"), ("convolution", "im2col+data-tiling")],
)
def test_a_variant_that_applies_changes_the_dispatches(program: str, variant: str) -> None:
    text, kinds = PROGRAMS[program]
    chosen = BUILT_IN[variant]
    assert applicable(chosen, kinds)
    assert dispatches(text, chosen) != dispatches(text, BUILT_IN["default"])


def test_a_variant_about_nothing_in_particular_always_applies() -> None:
    assert applicable(BUILT_IN["default"], set())
    assert applicable(Variant("mine", ("--x",)), {"other"})
    assert applicable(BUILT_IN["im2col"], {"elementwise", "reduction"})
    assert not applicable(BUILT_IN["im2col"], {"elementwise", "contraction"})


@pytest.mark.parametrize("effort", EFFORTS)
def test_every_effort_names_known_variants_and_has_the_default_first(effort: str) -> None:
    chosen = effort_variants(EFFORTS[effort])
    assert chosen[0].name == "default"
    assert tuple(chosen) == TuneOptions(effort=effort).chosen_variants
    assert [v.name for v in effort_variants(EFFORTS["thorough"])] == list(BUILT_IN)
    assert {v.name for v in chosen} <= set(BUILT_IN)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("default", [BUILT_IN["default"]]),
        (" o3 , o3+data-tiling", [BUILT_IN["o3"], BUILT_IN["o3+data-tiling"]]),
        ("mine=--a=1 --b,default", [("mine", ("--a=1", "--b")), BUILT_IN["default"]]),
        ("mine=--a=1,--b,x=-c", [("mine", ("--a=1", "--b")), ("x", ("-c",))]),
        ("mine='--a=1,2 3',o3", [("mine", ("--a=1,2 3",)), BUILT_IN["o3"]]),
        ('mine=--a=\'it"s,x\' "--b= "', [("mine", ('--a=it"s,x', "--b= "))]),
    ],
)
def test_variants_of_a_text(
    text: str, expected: list[Variant | tuple[str, tuple[str, ...]]]
) -> None:
    choices = parse_variants(text)
    assert choices == tuple(
        e if isinstance(e, Variant) else Variant(*e, "given by the user") for e in expected
    )
    assert parse_variants(",".join(map(str, choices))) == choices


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data-tilng", "unknown variant 'data-tilng'; did you mean 'data-tiling'?"),
        ("nothing", "NAME=FLAGS"),
        ("", "a name is missing"),
        ("default,,o3", "a name is missing"),
        ("default,default", "given twice"),
        ("a=--x,a=--y", "given twice"),
        ("o3=--x", "built-in"),
        ("mine=", "no flags"),
        ("mine=x", "'x' is not a flag"),
        ("mine=--a=1,2", "unknown variant '2'"),
        ("mine='--a", "not closed"),
        ("1x=--a", "cannot name a variant"),
        ("--a", "unknown variant '--a'"),
        ("mine=--a\\", "No escaped character"),
    ],
)
def test_what_is_no_list_of_variants(text: str, words: str) -> None:
    with pytest.raises(UserError) as info:
        parse_variants(text)
    assert str(info.value).startswith("--variants: ")
    assert words in str(info.value)
    assert "\n" not in str(info.value)


def test_the_users_choice() -> None:
    text = "im2col+data-tiling,mine=--iree-opt-level=O1 --iree-opt-data-tiling,default"
    options = TuneOptions(effort="quick", variants=parse_variants(text))
    chosen = options.chosen_variants
    assert [v.name for v in chosen] == ["im2col+data-tiling", "mine", "default"]
    assert chosen[0] is BUILT_IN["im2col+data-tiling"]
    assert chosen[1].flags == ("--iree-opt-level=O1", "--iree-opt-data-tiling")
    assert applicable(chosen[1], {"other"})
    assert TuneOptions(variants=()).chosen_variants == ()


def test_values_and_texts_are_read_alike() -> None:
    mine = Variant("mine", ("--x",))
    assert read_variants("default,o3") == read_variants([BUILT_IN["default"], "o3"])
    assert read_variants([mine]) == (mine,)


def test_unknown_names_have_their_nearest_match() -> None:
    with pytest.raises(UserError, match=r"'im2coll'; did you mean 'im2col'\?"):
        parse_variants("im2coll")
    with pytest.raises(UnknownNameError, match=r"--variants: .*'ukernel'; did you mean 'ukernels'"):
        find_variant("ukernel")
    with pytest.raises(UnknownNameError, match=r"'quik'; did you mean 'quick'\?"):
        find_effort("quik")


def test_a_spec_with_kernels_comes_with_what_their_weights_need() -> None:
    spec, packed = f"{PREPROCESSING_FLAG}=kernels.mlir", PACKED_AHEAD_FLAG
    before = ("--iree-opt-data-tiling", f"{PREPROCESSING_FLAG}=layout.mlir")
    assert with_spec_flags(before, [spec]) == ("--iree-opt-data-tiling", packed, spec)
    assert with_spec_flags((*before, packed), [spec]) == ("--iree-opt-data-tiling", packed, spec)
    own = f"{packed.partition('=')[0]}=5"
    assert with_spec_flags((own,), [spec]) == (own, spec)
    assert with_spec_flags(before, ["--tuning=spec.mlir"]) == (*before, "--tuning=spec.mlir")
    build = Build("tuned", Variant("layout", before), preprocessing=Path("kernels.mlir"))
    assert build.as_compiled(()).flags == (spec, packed, "--iree-opt-data-tiling")
    assert build.as_compiled((own,)).flags == (spec, "--iree-opt-data-tiling")
    assert without_kernels(build.as_compiled(()).flags) == ("--iree-opt-data-tiling",)
    assert Build("plain", Variant("layout", before)).as_compiled(()).flags == before

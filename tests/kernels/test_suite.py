"""Which operations a combination of options asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import UnknownNameError, UserError
from tilewright.kernels.kinds import KINDS, parse_operation
from tilewright.kernels.shapes import Shape, dimension_options, read_shapes
from tilewright.kernels.suite import SuiteSelection, make_selection, make_suite, split_kinds


def select(kinds: str | None = None, *, types: str | None = None, layouts: str | None = None,
           variants: str | None = None, **sizes: str) -> SuiteSelection:  # fmt: skip
    known = dimension_options()
    given = {f"--problem-{name}": (known[name][0], text) for name, text in sizes.items()}
    return make_selection(kinds, given, types, layouts, variants)


def names(selection: SuiteSelection, shapes: list[Shape] | None = None) -> list[str]:
    return [operation.name for operation in make_suite(selection, shapes).operations]


def test_without_options_every_kind_in_its_predefined_shapes() -> None:
    suite = make_suite(select())
    assert {o.kind.name for o in suite.operations} == set(KINDS)
    assert {o.types for o in suite.operations if o.kind.name == "matmul"} == set(
        KINDS["matmul"].types("")
    )
    assert all(set(o.layout) == {"t"} for o in suite.operations)
    assert suite.notes == []


def test_all_layouts() -> None:
    suite = make_suite(select("matmul", layouts="all", types="f32", m="8", n="4", k="2"))
    assert [o.layout for o in suite.operations] == ["tt", "tn", "nt", "nn"]


def test_sizes_take_the_place_of_predefined_ones() -> None:
    selection = select("matmul", types="f32", m="768", n="64:192:128", k="1024")
    assert names(selection) == [
        "matmul_768x64x1024_f32t_f32t_f32t",
        "matmul_768x192x1024_f32t_f32t_f32t",
    ]


def test_a_single_dimension_changes_every_predefined_shape() -> None:
    suite = make_suite(select("matmul", types="f32", m="768"))
    shapes = KINDS["matmul"].shapes
    assert [o.sizes for o in suite.operations] == [(768, s["n"], s["k"]) for s in shapes]


def test_a_dimension_leaves_out_kinds_that_do_not_have_it() -> None:
    kinds = {o.kind.name for o in make_suite(select(kh="5", kw="5")).operations}
    assert kinds == {"conv2d", "depthwise_conv2d", "conv2d_bias_relu"}


def test_kinds_that_are_named_stay_whatever_dimensions_they_have() -> None:
    suite = make_suite(select("matmul,softmax", types="f32", k="96"))
    assert {o["k"] for o in suite.operations if o.kind.name == "matmul"} == {96}
    softmax = [o.sizes for o in suite.operations if o.kind.name == "softmax"]
    assert softmax == [(s["m"], s["n"]) for s in KINDS["softmax"].shapes]


def test_one_option_for_both_directions() -> None:
    suite = make_suite(select("conv2d", types="f32", variants="nhwc_hwcf", stride="1,2"))
    assert {(o["sh"], o["sw"]) for o in suite.operations} == {(1, 1), (2, 2)}


def test_any_chain_of_steps() -> None:
    found = names(select("elementwise", types="f16", variants="sub_exp_tanh", m="8", n="9"))
    assert found == ["elementwise_sub_exp_tanh_8x9_f16t_f16t_f16t"]


def test_impossible_sizes_are_left_out_with_a_note() -> None:
    suite = make_suite(select("matmul_splitk", types="f32", m="8", n="8", k="12", slices="3,5"))
    assert [o["slices"] for o in suite.operations] == [3]
    assert suite.notes == ["left out: matmul_splitk: k = 12 cannot be split into 5 equal slices"]
    with pytest.raises(UserError, match="5 equal slices"):
        make_suite(select("matmul_splitk", k="12", slices="5"))


def test_a_shape_file_replaces_the_predefined_shapes() -> None:
    folder = Path(__file__).resolve().parents[2] / "benchmarks" / "shapes"
    shapes = read_shapes(folder / "conv.json")
    found = names(select(), shapes)
    assert len(found) == len(shapes)
    assert "conv2d_nhwc_hwcf_1x56x56x64x64_k3x3_s1x1_d1x1_p1x1_f32t_f32t_f32t" in found
    assert names(select("depthwise_conv2d"), shapes) == found[-2:]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kinds": "matmull"}, r"--kind: unknown kind 'matmull'; did you mean 'matmul'\?"),
        ({"kinds": "matmul,"}, "a name is missing"),
        ({"types": "f31"}, "--types: unknown element type 'f31'"),
        ({"kinds": "softmax", "types": "i8"}, "--types: softmax: unknown element type 'i8'"),
        ({"layouts": "xt"}, "--layouts: unknown layout 'xt'"),
        ({"variants": "nhwc"}, "--variants: unknown variant 'nhwc'; did you mean"),
        ({"kinds": "softmax,reduction", "layouts": "tn"}, "--layouts: softmax, reduction: unknown"),
        ({"kinds": "conv2d", "variants": "sum"}, "--variants: conv2d: unknown variant 'sum'"),
        ({"kinds": "matmul", "variants": "sum"}, "none of the kinds has variants"),
        ({"kinds": "softmax", "k": "8"}, "--problem-k: none of the kinds has that dimension"),
        ({"k1": "8", "kh": "3"}, "no kind has all"),
    ],
)
def test_what_does_not_exist_is_an_error(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        select(**arguments)


def test_types_that_no_shape_has() -> None:
    shape = Shape(KINDS["softmax"], {"m": 8, "n": 8}, KINDS["matmul"].types("")[-1])
    with pytest.raises(UnknownNameError, match="softmax: unknown element type 'i8'"):
        make_suite(select(), [shape])


def test_mistakes_in_a_file_have_their_place(tmp_path: Path) -> None:
    file = tmp_path / "shapes.json"
    good = '{"kind": "softmax", "m": 8, "n": 8}'
    for bad, message in (
        ('{"kind": "matmul", "m": 8}', "shape 2: matmul: dimension 'n' has no size"),
        ('{"kind": "softmax", "m": 8, "n": 8, "types": "i8"}', "shape 2: softmax: unknown element"),
    ):
        file.write_text(f"[{good}, {bad}]")
        with pytest.raises(UserError, match=message):
            make_suite(select(), read_shapes(file))


def test_selecting_operations_that_are_there() -> None:
    matmul = parse_operation("matmul_8x4x2_f32t_f32t_f32t")
    softmax = parse_operation("softmax_8x4_f32t_f32t")
    conv = parse_operation("conv2d_nhwc_hwcf_1x9x9x4x4_k3x3_s2x1_d1x1_p0x0_f32t_f32t_f32t")
    assert select(m="8").contains(matmul)
    assert not select(m="9").contains(matmul)
    assert not select(k="2").contains(softmax)
    assert select("softmax,matmul", k="2").contains(softmax)
    assert not select("matmul").contains(softmax)
    assert select(sh="2").contains(conv)
    assert not select(stride="2").contains(conv), "only one of the strides is 2"


@pytest.mark.parametrize(
    ("kinds", "mode", "slices", "found"),
    [
        ("matmul", None, None, ("matmul", None)),
        ("matmul", None, "1,4,16", ("matmul,matmul_splitk", "4,16")),
        ("batch_matmul", None, "2", ("batch_matmul_splitk", "2")),
        (None, None, "2", ("matmul_splitk,batch_matmul_splitk", "2")),
        ("matmul", "parallel", None, ("matmul_splitk", None)),
        ("matmul_splitk", "N/A", None, ("matmul", None)),
    ],
)
def test_products_in_slices_by_mode_and_number(
    kinds: str | None, mode: str | None, slices: str | None, found: tuple[str, str | None]
) -> None:
    assert split_kinds(kinds, mode, slices) == found


def test_a_mode_that_contradicts_the_slices() -> None:
    for mode, slices in (("parallel", "1,4"), ("none", "4")):
        with pytest.raises(UserError, match=f"slices are not possible with --split-k-mode {mode}"):
            split_kinds("matmul", mode, slices)

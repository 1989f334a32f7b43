"""Merged specs through the compiler: they do what their parts do, the earlier first."""

from __future__ import annotations

from pathlib import Path

import pytest
from iree.compiler import ir
from spec_programs import (
    DATA_TILING,
    KINDS,
    applied,
    changed_configurations,
    configured,
    default_entries,
    matmul,
    new_context,
    reduction,
)

from tilewright.errors import UserError
from tilewright.spec.merge import merge_specs
from tilewright.spec.read import check_spec
from tilewright.spec.write import write_spec

TILES = (
    "distribution = [8, 16, 0], vector_common_parallel = [4, 16, 0], vector_reduction = [0, 0, 2]"
)
OTHER_TILES = TILES.replace("[8, 16, 0]", "[16, 16, 0]")


def own(name: str, prefix: str = "") -> str:
    """A spec of ours with the default configuration of each dispatch of a kind."""
    kind = KINDS[name]
    with new_context():
        module = ir.Module.parse(configured(kind.program, kind.flags))
        return write_spec(default_entries(module, prefix), header={"for": name})


def contraction_matcher(name: str, config: str, m: int = 64) -> str:
    return f"""
  transform.named_sequence @{name}(%op: !transform.any_op {{transform.readonly}})
      -> (!transform.any_op, !transform.any_param) {{
    %b, %m, %n, %k = transform.iree.match.contraction %op,
      lhs_type = f32, rhs_type = f32, output_type = f32 : !transform.any_op -> !transform.param<i64>
    transform.iree.match.dims_equal %m, [{m}] : !transform.param<i64>
    %c = transform.param.constant #iree_codegen.compilation_info<
      lowering_config = #iree_cpu.lowering_config<{config}>,
      translation_info = <pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>
      -> !transform.any_param
    transform.yield %op, %c : !transform.any_op, !transform.any_param
  }}"""


def foreign(config: str = TILES, m: int = 64) -> str:
    """A spec of the form that IREE's own tuner writes, for f32 matmuls with `m` rows."""
    return f"""
module attributes {{transform.with_named_sequence,
                   iree_codegen.tuning_spec_with_default_entrypoint}} {{
  transform.named_sequence @apply(%op: !transform.any_op {{transform.readonly}},
      %config: !transform.any_param {{transform.readonly}}) {{
    transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param
    transform.yield
  }}{contraction_matcher("match", config, m)}
  transform.named_sequence @__kernel_config(%f: !transform.any_op {{transform.consumed}})
      -> !transform.any_op attributes {{iree_codegen.tuning_spec_entrypoint}} {{
    %g = transform.foreach_match in %f @match -> @apply : (!transform.any_op) -> !transform.any_op
    transform.yield %g : !transform.any_op
  }}
}}"""


FORCEFUL = f"""
module attributes {{transform.with_named_sequence}} {{
  transform.named_sequence @match(%op: !transform.any_op {{transform.readonly}})
      -> !transform.any_op {{
    transform.match.operation_name %op ["linalg.matmul"] : !transform.any_op
    transform.yield %op : !transform.any_op
  }}
  transform.named_sequence @apply(%op: !transform.any_op {{transform.readonly}}) {{
    %f = transform.get_parent_op %op <{{op_name = "func.func"}}>
      : (!transform.any_op) -> !transform.any_op
    %t = transform.param.constant #iree_codegen.translation_info<
      pipeline = #iree_cpu.pipeline<DoubleTilingExpert>> -> !transform.any_param
    transform.annotate %f "translation_info" = %t : !transform.any_op, !transform.any_param
    %c = transform.param.constant #iree_cpu.lowering_config<{TILES}> -> !transform.any_param
    transform.annotate %op "lowering_config" = %c : !transform.any_op, !transform.any_param
    transform.yield
  }}
  transform.named_sequence @__kernel_config(%f: !transform.any_op {{transform.consumed}})
      -> !transform.any_op attributes {{iree_codegen.tuning_spec_entrypoint}} {{
    %p = transform.apply_registered_pass "iree-codegen-materialize-device-encoding" to %f
      : (!transform.any_op) -> !transform.any_op
    %g = transform.foreach_match in %p @match -> @apply : (!transform.any_op) -> !transform.any_op
    transform.yield %g : !transform.any_op
  }}
}}"""


def compiled_with(text: str, program: str, path: Path, flags: tuple[str, ...] = ()) -> str:
    path.write_text(text)
    return configured(program, flags, str(path))


def test_two_of_ours_keep_both(tmp_path: Path) -> None:
    merged = merge_specs([own("matmul"), own("reduction"), own("data_tiled_mmt4d")])
    assert len(merged.entries) == 1 + 1 + 3
    assert merged.duplicates_dropped == ()
    assert check_spec(merged.text).ours
    path = tmp_path / "merged.mlir"
    assert len(applied(compiled_with(merged.text, matmul(), path))) == 1
    assert len(applied(compiled_with(merged.text, reduction(), path))) == 1
    assert len(applied(compiled_with(merged.text, matmul(), path, DATA_TILING))) == 3


def test_entries_of_one_name_for_different_dispatches_are_renamed(tmp_path: Path) -> None:
    with new_context():
        modules = [ir.Module.parse(configured(p)) for p in (matmul(), matmul(maps="tb"))]
        specs = [write_spec(default_entries(module)) for module in modules]
    merged = merge_specs(specs)
    name = "main_dispatch_0_matmul_64x48x32_f32"
    assert merged.entries == (name, f"{name} (2)")
    assert any(f"'{name} (2)'" in note for note in merged.notes)
    after = compiled_with(merged.text, matmul(maps="tb"), tmp_path / "merged.mlir")
    assert list(applied(after).values()) == [f"{name} (2)"]


def test_the_same_spec_twice_is_that_spec(tmp_path: Path) -> None:
    once = own("matmul_bias_clamp")
    merged = merge_specs([once, once])
    assert len(merged.entries) == 1
    assert merged.duplicates_dropped == merged.entries
    assert "the same configuration" in merged.notes[-1]
    assert check_spec(merged.text).entries == check_spec(once).entries
    again = merge_specs([merged.text, merged.text, merged.text])
    assert again.entries == merged.entries
    assert len(again.text) == len(merged.text)


def test_a_conflict_is_told_and_the_first_wins(tmp_path: Path) -> None:
    first = own("matmul", "first/")
    second = own("matmul", "second/")
    with new_context():
        module = ir.Module.parse(second)

        def retile(op: ir.Operation) -> ir.WalkResult:
            if op.name == "transform.param.constant" and "distribution" in str(op):
                op.attributes["value"] = ir.Attribute.parse(f"#iree_cpu.lowering_config<{TILES}>")
            return ir.WalkResult.ADVANCE

        module.operation.walk(retile)
        second = str(module)
    assert TILES in second
    for specs, winner in (([first, second], "first/"), ([second, first], "second/")):
        merged = merge_specs(specs)
        assert len(merged.entries) == 1
        assert merged.entries[0].startswith(winner)
        assert "another configuration; kept that of spec 1" in merged.notes[-1]
        after = compiled_with(merged.text, matmul(), tmp_path / "merged.mlir")
        assert list(applied(after).values()) == list(merged.entries)
        assert (TILES in after) == (winner == "second/")


def test_a_foreign_spec_works_beside_ours(tmp_path: Path) -> None:
    path = tmp_path / "merged.mlir"
    for specs in ([own("reduction"), foreign()], [foreign(), own("reduction")]):
        merged = merge_specs(specs)
        assert set(merged.entries) == {"match", "main_dispatch_0_reduction_64x128_f32"}
        assert "tuning_spec_with_default_entrypoint" not in merged.text
        assert TILES in compiled_with(merged.text, matmul(), path)
        assert len(applied(compiled_with(merged.text, reduction(), path))) == 1


@pytest.mark.parametrize("other", [foreign(), FORCEFUL], ids=["compilation_info", "attributes"])
def test_between_ours_and_a_foreign_one_the_first_wins(other: str, tmp_path: Path) -> None:
    path = tmp_path / "merged.mlir"
    before = configured(matmul())
    ours_first = compiled_with(merge_specs([own("matmul"), other]).text, matmul(), path)
    assert len(applied(ours_first)) == 1
    assert changed_configurations(before, ours_first) == []
    foreign_first = compiled_with(merge_specs([other, own("matmul")]).text, matmul(), path)
    assert applied(foreign_first) == {}
    assert TILES in foreign_first


def test_of_two_foreign_specs_the_first_wins(tmp_path: Path) -> None:
    path = tmp_path / "merged.mlir"
    merged = merge_specs([foreign(TILES), foreign(OTHER_TILES)])
    assert len(merged.entries) == 1
    assert "another configuration" in merged.notes[-1]
    assert TILES in compiled_with(merged.text, matmul(), path)
    for specs, tiles in (
        ([foreign(OTHER_TILES), FORCEFUL], OTHER_TILES),
        ([FORCEFUL, foreign(OTHER_TILES)], TILES),
    ):
        merged = merge_specs(specs)
        assert len(merged.entries) == 2
        text = compiled_with(merged.text, matmul(), path)
        assert tiles in text
        assert merge_specs([merged.text, merged.text]).entries == merged.entries


def test_equal_names_of_foreign_specs_do_not_clash(tmp_path: Path) -> None:
    path = tmp_path / "merged.mlir"
    merged = merge_specs([foreign(TILES, 64), foreign(OTHER_TILES, 32)])
    assert merged.entries == ("match", "match_1")
    assert any("@match to @match_1" in note for note in merged.notes)
    assert TILES in compiled_with(merged.text, matmul(), path)
    assert OTHER_TILES in compiled_with(merged.text, matmul(m=32), path)


def test_a_step_that_is_not_understood_is_kept_and_told(tmp_path: Path) -> None:
    by_name = f"""
module attributes {{transform.with_named_sequence}} {{
  transform.named_sequence @__kernel_config(%f: !transform.any_op {{transform.readonly}})
      -> !transform.any_op attributes {{iree_codegen.tuning_spec_entrypoint}} {{
    %ops = transform.structured.match ops{{["linalg.matmul"]}} in %f
      : (!transform.any_op) -> !transform.any_op
    %c = transform.param.constant #iree_codegen.compilation_info<
      lowering_config = #iree_cpu.lowering_config<{TILES}>,
      translation_info = <pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>
      -> !transform.any_param
    transform.foreach %ops : !transform.any_op {{
    ^bb0(%op: !transform.any_op):
      transform.annotate %op "compilation_info" = %c : !transform.any_op, !transform.any_param
    }}
    transform.yield %f : !transform.any_op
  }}
}}"""
    merged = merge_specs([own("reduction"), by_name])
    assert any("spec 2" in note and "'transform.foreach'" in note for note in merged.notes)
    path = tmp_path / "merged.mlir"
    assert TILES in compiled_with(merged.text, matmul(), path)
    assert len(applied(compiled_with(merged.text, reduction(), path))) == 1


def test_nothing_to_merge_gives_a_spec_that_changes_nothing(tmp_path: Path) -> None:
    for texts in ([], [write_spec([])], [write_spec([]), write_spec([])]):
        merged = merge_specs(texts)
        assert merged.entries == ()
        after = compiled_with(merged.text, matmul(), tmp_path / "merged.mlir")
        assert changed_configurations(configured(matmul()), after) == []


def test_what_is_no_spec_is_named() -> None:
    with pytest.raises(UserError, match="spec 2: not a tuning spec"):
        merge_specs([own("matmul"), "module {}"])

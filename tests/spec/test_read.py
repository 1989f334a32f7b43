"""Specs and configured programs read back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from iree.compiler import ir
from spec_programs import (
    KINDS,
    configured,
    default_entries,
    default_entry,
    functions,
    matmul,
    new_context,
)
from test_merge import TILES, foreign

from tilewright.errors import UserError
from tilewright.ir.template import compute_ops
from tilewright.spec.read import check_spec
from tilewright.spec.write import write_spec


def spec(name: str) -> str:
    kind = KINDS[name]
    with new_context():
        module = ir.Module.parse(configured(kind.program, kind.flags))
        return write_spec(default_entries(module), header={"made for": name})


def test_a_spec_of_ours_is_known_with_its_entries_and_header() -> None:
    report = check_spec(spec("data_tiled_mmt4d"))
    assert report.ours
    assert dict(report.header) == {"made for": "data_tiled_mmt4d"}
    assert len(report.entries) == 3
    assert report.entries[0].name == "main_dispatch_0_matmul_64x48x32_f32"
    assert check_spec(write_spec([])).entries == ()


def test_a_foreign_spec_is_known_by_its_matchers() -> None:
    report = check_spec(foreign())
    assert not report.ours
    assert [row.name for row in report.entries] == ["match"]
    assert dict(report.header) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "single top-level operation"),
        ("module {", 'error: "x.mlir":1:7: '),
        ("module {\n  transform.nothing\n}", 'error: "x.mlir":2:3: '),
        ("not MLIR\nat all", 'error: "x.mlir":1:'),
        ("module {}", "'transform.with_named_sequence'"),
        (matmul(), "not a tuning spec"),
        ("module attributes {transform.with_named_sequence} {}", "there is none"),
        (
            "module attributes {transform.with_named_sequence, "
            "iree_codegen.tuning_spec_with_default_entrypoint} {}",
            "Missing named sequence '__kernel_config'",
        ),
        (
            foreign().replace("attributes {iree_codegen.tuning_spec_entrypoint}", ""),
            "Missing attribute 'iree_codegen.tuning_spec_entrypoint'",
        ),
        (foreign().replace("-> @apply", "-> @gone"), "x.mlir"),
    ],
)
def test_what_is_no_spec_gets_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        check_spec(text, "x.mlir")
    assert message in str(error.value)
    assert str(error.value).startswith("x.mlir: ")
    assert "\n" not in str(error.value)


def test_an_entry_of_ours_in_words() -> None:
    (row,) = check_spec(spec("matmul_bias_clamp")).entries
    assert row.name == "main_dispatch_0_matmul_64x48x32_f32"
    assert row.matches == (
        "linalg.fill f32, 64x48xf32; linalg.matmul 64x32xf32, 32x48xf32, 64x48xf32; "
        "linalg.generic 64x48xf32, 48xf32, 64x48xf32"
    )
    assert row.pipeline == "#iree_cpu.pipeline<DoubleTilingExpert>"
    assert row.configuration.startswith("op 0: #iree_cpu.lowering_config<")
    assert "; op 1: #iree_cpu.lowering_config<distribution = [" in row.configuration
    assert "; op 2: #iree_cpu.lowering_config<" in row.configuration


def test_a_foreign_entry_in_words() -> None:
    (row,) = check_spec(foreign()).entries
    assert row.name == "match"
    assert row.matches == "contraction f32, f32, f32; sizes 64"
    assert row.pipeline == "#iree_cpu.pipeline<DoubleTilingExpert>"
    assert row.configuration == f"#iree_cpu.lowering_config<{TILES}>"


def test_pipeline_options_are_shown() -> None:
    with new_context():
        module = ir.Module.parse(configured(matmul()))
        entry = default_entry(functions(module)[0])
        peeled = (
            "#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>, "
            "{enable_loop_peeling}>"
        )
        info = ir.Attribute.parse(peeled)
        attributes = replace(entry.attributes, translation_info=info)
        text = write_spec([replace(entry, attributes=attributes)])
    assert "enable_loop_peeling" in check_spec(text).entries[0].pipeline


def test_compute_ops_are_in_program_order_and_the_function_is_left_as_it_was() -> None:
    with new_context():
        module = ir.Module.parse(configured(KINDS["attention"].program))
        (function,) = functions(module)
        before = str(module)
        ops = compute_ops(function)
        assert str(module) == before
        block = list(function.regions[0].blocks[0].operations)
        positions = [block.index(op.opview) for op in ops]
        assert positions == sorted(positions)
        names = [op.name for op in ops]
        assert names.count("iree_linalg_ext.online_attention") == 1
        assert names[:3] == ["linalg.fill"] * 3
        assert "tensor.empty" not in names

"""What users name becomes workloads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.compare.workloads import find_workloads, parse_matmul
from tilewright.errors import UserError


def test_a_matrix_product_by_its_sizes() -> None:
    workload = parse_matmul("512x1024x768:f16-f32")
    assert workload.name == "matmul_512x1024x768_f16t_f16t_f32t"
    assert workload.flops == 2 * 512 * 1024 * 768
    assert workload.operation is not None
    assert workload.operation["n"] == 1024


def test_without_types_it_is_f32() -> None:
    assert parse_matmul("2x3x4").name == "matmul_2x3x4_f32t_f32t_f32t"


@pytest.mark.parametrize("text", ["512x512", "axbxc", "1x2x3x4", "", "1x2x-3", "2x3x4:f33"])
def test_what_is_no_matrix_product(text: str) -> None:
    with pytest.raises(UserError, match="--matmul"):
        parse_matmul(text)


def test_shape_files_operations_and_kinds(tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.json"
    shapes.write_text(
        json.dumps(
            [
                {"kind": "matmul", "m": 8, "n": 9, "k": 10, "types": ["f32", "f32", "f32"]},
                {"kind": "matmul", "m": 8, "n": 9, "k": 10},
                {"kind": "conv2d_nhwc_hwcf", "n": 1, "h": 8, "w": 8, "ci": 3, "co": 4,
                 "kernel": 3, "stride": 1, "pad": 1},
            ]
        )
    )  # fmt: skip
    found = find_workloads([str(shapes), "softmax", "matvec_4x5_f64t_f64t_f64t"], ["8x9x10"])
    names = [workload.name for workload in found]
    assert names[0] == "matmul_8x9x10_f32t_f32t_f32t"
    assert names.count(names[0]) == 1
    assert names[1].startswith("conv2d_nhwc_hwcf_1x8x8x3x4")
    assert "softmax_384x384_f32t_f32t" in names
    assert "matvec_4x5_f64t_f64t_f64t" in names


def test_types_of_shapes_that_do_not_say() -> None:
    found = find_workloads(["softmax"], types="f16,bf16")
    assert {workload.element_type for workload in found} == {"f16", "bf16"}


def test_a_program_is_a_workload(tmp_path: Path) -> None:
    program = tmp_path / "net.mlir"
    program.write_text("module {}")
    (workload,) = find_workloads([str(program)])
    assert workload.is_program
    assert workload.operation is None
    assert not workload.is_onnx


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("matmull", "matmul"),
        ("there/is/none.mlir", "no such program"),
        ("matmul_3x4_f32", "names no operation"),
        ("none.json", "none.json"),
    ],
)
def test_what_is_not_there(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        find_workloads([text])


def test_nothing_to_compare() -> None:
    with pytest.raises(UserError, match="nothing to compare"):
        find_workloads([])

"""Programs compiled with strategies, up to a phase, and written in all forms."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import UserError
from tilewright.ir.session import PHASES
from tilewright.modules.compiling import compiled_program
from tilewright.modules.module_source import OUTPUT_FORMATS, ModuleOptions
from tilewright.modules.ready_module import open_module
from tilewright.modules.running import run_module, save_outputs
from tilewright.spec.write import write_spec
from tuned_samples import matmul, result_folder, write_halved_spec

# Gives every matmul other tile sizes, by a library's own matcher.
LIBRARY = """
module attributes {transform.with_named_sequence} {
  transform.named_sequence @matches(%op: !transform.any_op {transform.readonly})
      -> !transform.any_op {
    transform.match.operation_name %op ["NAME"] : !transform.any_op
    transform.yield %op : !transform.any_op
  }
  transform.named_sequence @sets(%op: !transform.any_op {transform.readonly}) {
    %info = transform.param.constant #iree_codegen.compilation_info<
        lowering_config = #iree_cpu.lowering_config<distribution = [16, 16, 0],
            vector_common_parallel = [8, 16, 0], vector_reduction = [0, 0, 4]>,
        translation_info = <pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>
        -> !transform.any_param
    transform.annotate %op "compilation_info" = %info : !transform.any_op, !transform.any_param
    transform.yield
  }
  transform.named_sequence @__kernel_config(%root: !transform.any_op {transform.consumed})
      -> !transform.any_op {
    %done = transform.foreach_match in %root @matches -> @sets
        : (!transform.any_op) -> !transform.any_op
    transform.yield %done : !transform.any_op
  }
}
"""

# Generates the code of every matmul itself, from tiling to buffers.
STRATEGY = """
module attributes {transform.with_named_sequence} {
  transform.named_sequence @codegen(%root: !transform.any_op {transform.consumed}) {
    %matmul = transform.structured.match ops{["linalg.matmul"]} in %root
        : (!transform.any_op) -> !transform.any_op
    %fill = transform.structured.match ops{["linalg.fill"]} in %root
        : (!transform.any_op) -> !transform.any_op
    %tiled, %forall = transform.structured.tile_using_forall %matmul tile_sizes [16, 16]
        (mapping = [#gpu.block<y>, #gpu.block<x>])
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %fused, %loop = transform.structured.fuse_into_containing_op %fill into %forall
        : (!transform.any_op, !transform.any_op) -> (!transform.any_op, !transform.any_op)
    WORKGROUPS
    %func = transform.structured.match ops{["func.func"]} in %root
        : (!transform.any_op) -> !transform.any_op
    transform.iree.eliminate_empty_tensors %func : (!transform.any_op) -> ()
    %buffers = transform.iree.bufferize %func : (!transform.any_op) -> !transform.any_op
    transform.iree.forall_to_workgroup %buffers : (!transform.any_op) -> ()
    %done = transform.param.constant #iree_codegen.translation_info<
        pipeline = #iree_codegen.no_pipeline> -> !transform.any_param
    transform.annotate %buffers "translation_info" = %done
        : !transform.any_op, !transform.any_param
    transform.yield
  }
  transform.named_sequence @matches(%op: !transform.any_op {transform.readonly})
      -> !transform.any_op {
    transform.match.operation_name %op ["linalg.matmul"] : !transform.any_op
    transform.yield %op : !transform.any_op
  }
  transform.named_sequence @sets(%op: !transform.any_op {transform.readonly}) {
    %func = transform.get_parent_op %op <{op_name = "func.func"}>
        : (!transform.any_op) -> !transform.any_op
    %info = transform.param.constant #iree_codegen.translation_info<
        pipeline = #iree_codegen.transform_dialect_codegen codegen_spec = @codegen>
        -> !transform.any_param
    transform.annotate %func "translation_info" = %info : !transform.any_op, !transform.any_param
    transform.yield
  }
  transform.named_sequence @choose(%root: !transform.any_op {transform.consumed})
      -> !transform.any_op {
    %done = transform.foreach_match in %root @matches -> @sets
        : (!transform.any_op) -> !transform.any_op
    transform.yield %done : !transform.any_op
  }
}
"""
COUNT = """transform.iree.populate_workgroup_count_region_using_num_threads_slice %loop
        : (!transform.any_op) -> ()"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compiling")
    (path / "matmul.mlir").write_text(matmul())
    write_halved_spec(matmul(), path / "spec.mlir")
    write_halved_spec(matmul(48, 80, 112), path / "other_spec.mlir")
    (path / "library.mlir").write_text(LIBRARY.replace("NAME", "linalg.matmul"))
    (path / "idle_library.mlir").write_text(LIBRARY.replace("NAME", "linalg.conv_2d"))
    (path / "strategy.mlir").write_text(STRATEGY.replace("WORKGROUPS", COUNT))
    (path / "faulty_strategy.mlir").write_text(STRATEGY.replace("WORKGROUPS", ""))
    (path / "unknown_op.mlir").write_text(
        LIBRARY.replace("transform.foreach_match in", "transform.no_such_step in")
    )
    return path


def options(folder: Path, **given) -> ModuleOptions:
    return ModuleOptions(threads=1, **given)


@dataclass(frozen=True)
class Plain:
    """The matrix product as it is: its vmfb, and its result on random data."""

    vmfb: bytes
    result: np.ndarray


@pytest.fixture(scope="module")
def plain(folder: Path) -> Plain:
    with open_module(folder / "matmul.mlir", options(folder)) as module:
        assert module.compiled is not None
        assert module.compiled.changes == ()
        return Plain(module.vmfb.read_bytes(), run_module(module, None).outputs[0])


@pytest.mark.parametrize("name", ["spec.mlir", "library.mlir"])
def test_a_strategy_is_applied_and_proved(folder: Path, plain: Plain, name: str) -> None:
    tuned = options(folder, spec=folder / name)
    with open_module(folder / "matmul.mlir", tuned) as module:
        assert module.compiled is not None
        (change,) = module.compiled.changes
        assert "matmul_64x64x64" in change.function
        assert change.before != change.after
        assert module.vmfb.read_bytes() != plain.vmfb
        (result,) = run_module(module, None).outputs
        assert abs(result - plain.result).max() < 1e-4
    what = "tuning spec" if name == "spec.mlir" else "strategy library"
    assert module.compiled.strategy == f"{what} {folder / name}"


def test_the_folder_of_a_tuning_run_brings_its_variant_along(
    folder: Path, tmp_path: Path, plain: Plain
) -> None:
    tuned = result_folder(tmp_path / "tuned", write_spec([]))
    with open_module(folder / "matmul.mlir", options(folder, spec=tuned)) as module:
        assert module.compiled is not None
        assert module.compiled.changes == ()
        size = len(module.vmfb.read_bytes())
        assert run_module(module, None).outputs[0].shape == (64, 64)
    assert size != len(plain.vmfb), "packing the operands is other code"
    assert module.compiled.strategy.startswith("tuning spec ")


@pytest.mark.slow
def test_a_strategy_of_ones_own_generates_the_code(folder: Path, tmp_path: Path) -> None:
    program, file = folder / "matmul.mlir", tmp_path / "r.npy"
    with open_module(program, options(folder)) as module:
        save_outputs(run_module(module, None), [file])
    for name, right in (("strategy", True), ("faulty_strategy", False)):
        given = options(folder, spec=folder / f"{name}.mlir@choose")
        with open_module(program, given) as module:
            assert module.compiled is not None
            (change,) = module.compiled.changes
            assert "codegen_spec = @codegen" in change.after
            # One that leaves most of the result unwritten is applied too, and found out.
            assert run_module(module, None, expected=[str(file)]).ok is right


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("strategy.mlir@chose", "begins with @chose: it has @codegen, @matches, @sets, @choose"),
        ("other_spec.mlir", "changes no dispatch"),
        ("idle_library.mlir", "the strategy library changes no dispatch"),
        ("unknown_op.mlir", "this compiler cannot parse it"),
        ("none.mlir", "there is no such"),
        (
            "matmul.mlir",
            "strategy library that begins with @__kernel_config: it has no named sequence",
        ),
    ],
)
def test_a_strategy_that_does_nothing_is_an_error(folder: Path, name: str, told: str) -> None:
    with pytest.raises(UserError) as error:  # noqa: SIM117
        with compiled_program(folder / "matmul.mlir", options(folder, spec=folder / name)):
            pass
    assert told in str(error.value)


@pytest.mark.parametrize("name", ["old.mlir", "older.mlir", "no_entry.mlir", "unknown_op.mlir"])
def test_other_forms_are_told_the_form_there_is(folder: Path, modules: Path, name: str) -> None:
    file = next(f for f in (folder / name, modules / name) if f.exists())
    with pytest.raises(UserError) as error:  # noqa: SIM117
        with compiled_program(folder / "matmul.mlir", options(folder, spec=file)):
            pass
    assert "transform.named_sequence @__kernel_config(%root: !transform.any_op" in str(error.value)
    if name.startswith("old"):
        assert "a script in the old form of `transform.sequence`" in str(error.value)


@pytest.mark.parametrize("phase", ["input", "flow", "executable-configurations", "vm"])
def test_the_ir_after_a_phase(folder: Path, tmp_path: Path, phase: str) -> None:
    file = tmp_path / "phase.mlir"
    given = options(folder, compile_to=phase, save=file)
    with compiled_program(folder / "matmul.mlir", given) as compiled:
        assert compiled.vmfb is None
        assert compiled.ir is not None
        assert compiled.ir.read_text() == file.read_text()
    mark = {"input": "util.func", "flow": "flow.executable", "vm": "vm.module"}
    assert mark.get(phase, "lowering_config") in file.read_text()


def test_the_ir_after_every_phase(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("stays")
    given = options(folder, dump_phases=tmp_path)
    with compiled_program(folder / "matmul.mlir", given) as compiled:
        names = [file.name for file in compiled.phases]
    assert len(names) == len(PHASES)
    assert all(any(phase in name for name in names) for phase in PHASES)
    assert "mine.txt" not in names


def test_a_strategy_shows_in_the_ir_of_the_phases(folder: Path, tmp_path: Path) -> None:
    given = options(
        folder, spec=folder / "library.mlir", compile_to="executable-configurations",
        save=tmp_path / "ir.mlir",
    )  # fmt: skip
    with compiled_program(folder / "matmul.mlir", given):
        pass
    assert "distribution = [16, 16, 0]" in (tmp_path / "ir.mlir").read_text()


@pytest.mark.parametrize("form", OUTPUT_FORMATS)
def test_what_is_written(folder: Path, tmp_path: Path, plain: Plain, form: str) -> None:
    file = tmp_path / "written"
    given = options(folder, save=file, output_format=form)
    with compiled_program(folder / "matmul.mlir", given) as compiled:
        assert compiled.vmfb is not None
        assert compiled.vmfb.read_bytes() == plain.vmfb, "what runs is the same"
    data = file.read_bytes()
    if form == "vm-bytecode":
        assert data == plain.vmfb
    else:
        assert (b"iree_vm" if form == "vm-c" else b"vm.module") in data


def test_what_does_not_compile(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.mlir").write_text("func.func @main() { no.such_op }")
    with pytest.raises(UserError, match=r"bad\.mlir"):  # noqa: SIM117
        with compiled_program(tmp_path / "bad.mlir", options(folder)):
            pass
    given = options(folder, iree_flags=("--no-such-flag=1",))
    with pytest.raises(UserError, match="no-such-flag"):  # noqa: SIM117
        with compiled_program(folder / "matmul.mlir", given):
            pass

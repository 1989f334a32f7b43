"""Applying a spec or a result folder, and the proof that it did something."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from iree.compiler import ir

from tilewright.errors import UserError
from tilewright.ir.session import CompilerSession
from tilewright.ir.template import configured_functions, describe
from tilewright.spec.write import write_spec
from tilewright.target import PACKED_AHEAD_FLAG
from tilewright.tuning.apply import AppliedProgram, apply, resolve_tuned
from tilewright.tuning.emit import EmittedProgram, emit
from tuned_samples import HOST, MATMUL_AND_CONVOLUTION, matmul, result_folder, write_halved_spec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("apply")


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    path = folder / "both.mlir"
    path.write_text(MATMUL_AND_CONVOLUTION)
    return path


@pytest.fixture(scope="module")
def spec(folder: Path) -> Path:
    return write_halved_spec(MATMUL_AND_CONVOLUTION, folder / "spec.mlir", {"variant": "default"})


@pytest.fixture(scope="module")
def applied(folder: Path, program: Path, spec: Path) -> AppliedProgram:
    return apply(program, spec, folder / "both.vmfb")


@pytest.fixture(scope="module")
def emitted(folder: Path, program: Path, spec: Path) -> EmittedProgram:
    return emit(program, spec, folder / "configured.mlir")


def test_the_program_is_made_and_the_changes_are_listed(applied: AppliedProgram) -> None:
    assert applied.output is not None
    assert applied.output.stat().st_size > 1000
    assert applied.unused == ()
    assert applied.entries == ("halved_0", "halved_1")
    assert {c.entry for c in applied.changes} == set(applied.entries)
    for change in applied.changes:
        assert change.before != change.after
        assert "distribution " in change.before
        assert "distribution " in change.after
    assert any("matmul_64x64x64_f32" in c.function for c in applied.changes)
    assert f"--iree-codegen-tuning-spec-path={applied.spec}" in applied.command
    assert applied.notes == ()


def test_checking_makes_nothing(program: Path, spec: Path) -> None:
    before = set(program.parent.iterdir())
    checked = apply(program, spec)
    assert len(checked.changes) == 2
    assert checked.output is None
    assert set(program.parent.iterdir()) == before


def test_a_spec_for_another_program_is_an_error_that_names_both(tmp_path: Path, spec: Path) -> None:
    other = tmp_path / "other.mlir"
    other.write_text(matmul(48, 80, 112))
    output = tmp_path / "other.vmfb"
    output.write_bytes(b"an earlier one")
    with pytest.raises(UserError) as info:
        apply(other, spec, output)
    text = str(info.value)
    assert f"{spec}: the spec changes no dispatch of {other}" in text
    assert "halved_0" in text
    assert "64x64xf32" in text
    assert "matmul_48x80x112_f32" in text
    assert output.read_bytes() == b"an earlier one"
    assert set(tmp_path.iterdir()) == {other, output}


def test_entries_without_a_dispatch_are_named(tmp_path: Path, spec: Path) -> None:
    alone = tmp_path / "matmul.mlir"
    alone.write_text(matmul())
    checked = apply(alone, spec)
    assert len(checked.changes) == 1
    assert len(checked.unused) == 1
    assert {*checked.unused, checked.changes[0].entry} == {"halved_0", "halved_1"}


def test_a_spec_without_entries_changes_nothing_and_is_no_error(
    tmp_path: Path, program: Path
) -> None:
    empty = tmp_path / "empty.mlir"
    empty.write_text(write_spec([]))
    done = apply(program, empty, tmp_path / "p.vmfb")
    assert done.changes == ()
    assert (tmp_path / "p.vmfb").exists()


def test_a_result_folder_brings_its_flags_along(tmp_path: Path) -> None:
    program = tmp_path / "matmul.mlir"
    program.write_text(matmul())
    folder = result_folder(tmp_path / "out", write_spec([]))
    done = apply(
        program, folder, tmp_path / "p.vmfb", iree_flags=["--iree-input-demote-i64-to-i32"]
    )
    assert done.variant == "data-tiling"
    for flag in (
        "--iree-opt-data-tiling",
        "--iree-opt-level=O2",
        "--iree-input-demote-i64-to-i32",
        "--iree-llvmcpu-target-cpu=host",
        f"--iree-codegen-tuning-spec-path={folder / 'tuning_spec.mlir'}",
    ):
        assert flag in done.command.split()


def test_what_packed_weights_need_comes_along_once(tmp_path: Path) -> None:
    """Weights are packed ahead only where the compiler may grow them; what the user says holds."""
    program, flag = tmp_path / "matmul.mlir", PACKED_AHEAD_FLAG.partition("=")[0]
    program.write_text(matmul())

    def said(given: Path, *own: str) -> list[str]:
        command = apply(program, given, iree_flags=own).command
        return [one.partition("=")[2] for one in command.split() if one.startswith(f"{flag}=")]

    ours = PACKED_AHEAD_FLAG.partition("=")[2]
    flags = ["--iree-opt-data-tiling", PACKED_AHEAD_FLAG]
    folder = result_folder(tmp_path / "out", write_spec([]), variant_flags=flags)
    assert said(folder) == [ours]
    assert said(folder, f"{flag}=1") == ["1"]
    assert said(folder / "tuning_spec.mlir") == []
    assert said(result_folder(tmp_path / "plain", write_spec([]))) == []


def test_another_compiler_version_is_said(tmp_path: Path) -> None:
    program = tmp_path / "matmul.mlir"
    program.write_text(matmul())
    folder = result_folder(tmp_path / "out", write_spec([]), compiler="3.1.0")
    (note,) = apply(program, folder).notes
    assert "3.1.0" in note


def test_a_bare_spec_of_another_variant_is_said(tmp_path: Path) -> None:
    program, spec = tmp_path / "matmul.mlir", tmp_path / "spec.mlir"
    program.write_text(matmul())
    spec.write_text(write_spec([], header={"variant": "im2col"}))
    (note,) = apply(program, spec).notes
    assert "variant im2col" in note


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda p: None, "there is no such result folder or tuning spec"),
        (lambda p: p.mkdir(), "no manifest.json: it is no result of `tilewright tune`"),
        (lambda p: p.write_text("module {"), "not a valid MLIR module"),
        (lambda p: p.write_text("module {}"), "not a tuning spec"),
        (lambda p: p.write_bytes(b"\xff\xfe"), "not UTF-8 text"),
        (lambda p: result_folder(p, "module {").joinpath("tuning_spec.mlir").unlink(),
         "has no tuning_spec.mlir"),
        (lambda p: result_folder(p, "module {", options={}), "'iree_flags' is missing"),
        (lambda p: result_folder(p, "module {", variant_flags=None), "not as tilewright writes"),
        (lambda p: result_folder(p, "module {").joinpath("manifest.json").write_text("{"),
         "not a result folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_applied(tmp_path: Path, make: object, told: str) -> None:
    program, tuned = tmp_path / "matmul.mlir", tmp_path / "tuned"
    program.write_text(matmul())
    make(tuned)  # type: ignore[operator]
    with pytest.raises(UserError) as info:
        apply(program, tuned, tmp_path / "p.vmfb")
    assert told in str(info.value)
    assert "\n" not in str(info.value)
    assert not (tmp_path / "p.vmfb").exists()


@pytest.mark.parametrize("use", [apply, emit])
def test_an_output_that_cannot_be_written_is_said_first(tmp_path: Path, use: object) -> None:
    with pytest.raises(UserError, match="there is no directory"):
        use("nowhere.mlir", "nowhere", tmp_path / "none" / "x")  # type: ignore[operator]
    with pytest.raises(UserError, match="is a directory"):
        use("nowhere.mlir", "nowhere", tmp_path)  # type: ignore[operator]


def test_a_program_that_is_not_there(tmp_path: Path, spec: Path) -> None:
    with pytest.raises(UserError, match="cannot read the program"):
        apply(tmp_path / "nowhere.mlir", spec, tmp_path / "p.vmfb")


# Configurations on the program's own ops


def test_what_survives_is_carried_and_the_rest_told(emitted: EmittedProgram) -> None:
    (carried,) = emitted.carried
    assert carried.op == "linalg.matmul"
    assert "matmul_64x64x64_f32" in carried.function
    assert re.match(
        "DoubleTilingExpert( enable_loop_peeling)?: distribution ", carried.configuration
    )
    (lost,) = emitted.dropped
    assert "conv" in lost.function
    assert lost.reason


def test_the_emitted_program_has_the_configuration_by_itself(
    emitted: EmittedProgram, applied: AppliedProgram
) -> None:
    """A plain compile of it, without any spec, configures the matmul as the spec does."""
    assert "tuning-spec" not in emitted.command
    session = CompilerSession(HOST)
    text = session.compile(emitted.output.read_bytes(), compile_to="executable-configurations")
    with session.context:
        module = ir.Module.parse(text)
        found = {name: describe(one) for name, one in configured_functions(module).items()}
    by_spec = {c.function: c for c in applied.changes}
    matmul_, conv = (next(name for name in by_spec if kind in name) for kind in ("matmul", "conv"))
    assert found[matmul_] == by_spec[matmul_].after
    assert found[conv] == by_spec[conv].before


def test_nothing_to_carry_writes_nothing(tmp_path: Path, program: Path, spec: Path) -> None:
    empty = tmp_path / "empty.mlir"
    empty.write_text(write_spec([]))
    with pytest.raises(UserError, match="the spec has no entries"):
        emit(program, empty, tmp_path / "e.mlir")
    other = tmp_path / "other.mlir"
    other.write_text(matmul(48, 80, 112))
    with pytest.raises(UserError, match="the spec changes no dispatch of it"):
        emit(other, spec, tmp_path / "e.mlir")
    assert not (tmp_path / "e.mlir").exists()


def test_a_stablehlo_program_cannot_carry_and_says_so(tmp_path: Path) -> None:
    text = """
    func.func @main(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>) -> tensor<64x64xf32> {
      %0 = stablehlo.dot %a, %b : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
      return %0 : tensor<64x64xf32>
    }
    """
    program = tmp_path / "hlo.mlir"
    program.write_text(text)
    spec = write_halved_spec(text, tmp_path / "spec.mlir")
    with pytest.raises(UserError, match=r"comes from stablehlo\.dot, which cannot carry it"):
        emit(program, spec, tmp_path / "e.mlir")


@pytest.mark.parametrize(
    "flag",
    [
        "--iree-hal-preprocess-executables-with=touch executed",
        "--iree-llvmcpu-embedded-linker-path=/tmp/anything",
        "--iree-hal-dump-executable-files-to=/home",
        "--iree-plugin=x",
        "--mlir-pass-pipeline-crash-reproducer=/home/x",
        "-o=/home/x",
        "@file",
    ],
)
def test_a_folder_from_elsewhere_starts_no_program(tmp_path: Path, flag: str) -> None:
    place = result_folder(tmp_path / "out", write_spec([]))
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["variant_flags"] = [flag]
    (place / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="start programs or touch files; give --iree-flag="):
        resolve_tuned(place, None, ())
    # Who gives it too has said so.
    assert resolve_tuned(place, None, (flag,)).variant.flags == (flag,)


def test_flags_of_variants_are_taken(tmp_path: Path) -> None:
    place = result_folder(tmp_path / "out", write_spec([]))
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["variant_flags"] = flags = [
        "--iree-opt-data-tiling",
        f"--iree-preprocessing-transform-spec-filename={place}/preprocessing_spec.mlir",
        "--iree-preprocessing-pass-pipeline=builtin.module(iree-preprocessing-pad-to-intrinsics)",
        "--iree-opt-const-expr-max-size-increase-threshold=1000",
    ]
    (place / "manifest.json").write_text(json.dumps(manifest))
    assert resolve_tuned(place, None, ()).variant.flags == tuple(flags)

"""`inspect`, `apply` and `spec` from the command line: what they print."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tilewright.cli.main import commands
from tilewright.spec.write import write_spec
from tuned_samples import MATMUL_AND_CONVOLUTION, matmul, write_halved_spec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("commands")
    (path / "both.mlir").write_text(MATMUL_AND_CONVOLUTION)
    (path / "matmul.mlir").write_text(matmul())
    write_halved_spec(MATMUL_AND_CONVOLUTION, path / "both_spec.mlir", {"target": "cpu/x"})
    write_halved_spec(matmul(), path / "matmul_spec.mlir")
    (path / "empty_spec.mlir").write_text(write_spec([]))
    return path


CONFIGURATION = """{compilation_info = #iree_codegen.compilation_info<
    lowering_config = #iree_cpu.lowering_config<distribution = [4, 4, 0]>,
    translation_info = #iree_codegen.translation_info<
        pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>}"""


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(commands, list(map(str, args)), prog_name="tilewright")


def words(result: Result) -> str:
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def test_inspect(folder: Path) -> None:
    text = words(run("inspect", folder / "both.mlir", "--threads", "2"))
    assert "functions: main" in text
    assert "variant default" in text
    assert "computes contraction 64x64x64 f32" in text
    assert "computes convolution " in text
    assert re.search("compiler DoubleTilingExpert( enable_loop_peeling)?: distribution", text)
    assert "DoubleTilingExpert (the compiler's): " in text
    assert "knobs distribution_m (" in text
    assert "removed " in text
    assert "interchange" not in text


def test_inspect_as_json(folder: Path) -> None:
    result = run("inspect", folder / "matmul.mlir", "--json")
    (variant,) = json.loads(result.stdout)["variants"]
    assert variant["dispatches"][0]["points"] > 1


def test_apply(folder: Path) -> None:
    output = folder / "matmul.vmfb"
    result = run("apply", folder / "matmul.mlir", folder / "both_spec.mlir", "-o", output)
    text = words(result)
    assert output.exists()
    assert "applied to 1 dispatch of" in text
    assert "(entry halved_0)" in text or "(entry halved_1)" in text
    assert re.search("before DoubleTilingExpert( enable_loop_peeling)?: distribution", text)
    assert re.search("after DoubleTilingExpert( enable_loop_peeling)?: distribution", text)
    assert "entries without a dispatch here: halved_" in text
    assert f"iree-compile {folder / 'matmul.mlir'} " in text


def test_apply_as_json(folder: Path) -> None:
    result = run(
        "apply", folder / "matmul.mlir", folder / "matmul_spec.mlir", "--json",
        "-o", folder / "json.vmfb",
    )  # fmt: skip
    data = json.loads(result.stdout)
    assert data["output"] == str(folder / "json.vmfb")
    assert len(data["changes"]) == 1


def test_emit_mlir(folder: Path) -> None:
    output = folder / "configured.mlir"
    text = words(
        run("apply", folder / "both.mlir", folder / "both_spec.mlir", "--emit-mlir", output)
    )
    assert "compilation_info" in output.read_text()
    assert "on linalg.matmul" in text
    assert "not carried: " in text
    assert "written with 1 configuration" in text


def test_a_spec_that_changes_nothing_is_status_2(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.mlir"
    other.write_text(matmul(48, 80, 112))
    for args in (
        ("apply", other, folder / "both_spec.mlir", "-o", tmp_path / "x.vmfb"),
        ("spec", "check", folder / "both_spec.mlir", "--program", other),
    ):
        result = run(*args)
        assert result.exit_code == 2
        assert "changes no dispatch" in result.stderr
        assert "matmul_48x80x112_f32" in result.stderr
    assert not (tmp_path / "x.vmfb").exists()


def test_spec_show(folder: Path) -> None:
    text = words(run("spec", "show", folder / "both_spec.mlir"))
    assert "target: cpu/x" in text
    assert "halved_0" in text
    assert "halved_1" in text
    assert "64x64xf32" in text
    assert "DoubleTilingExpert" in text


def test_spec_show_as_json(folder: Path) -> None:
    data = json.loads(run("spec", "show", folder / "both_spec.mlir", "--json").stdout)
    assert data["written_by_tilewright"] is True
    assert data["header"] == {"target": "cpu/x"}
    assert [entry["name"] for entry in data["entries"]] == ["halved_0", "halved_1"]


def test_spec_show_of_an_empty_one(folder: Path) -> None:
    assert "no entries" in words(run("spec", "show", folder / "empty_spec.mlir"))


def test_spec_check(folder: Path) -> None:
    text = words(run("spec", "check", folder / "both_spec.mlir"))
    assert text == f"{folder / 'both_spec.mlir'}: a valid tuning spec with 2 entries"
    text = words(run("spec", "check", folder / "both_spec.mlir", "--program", folder / "both.mlir"))
    assert "applied to 2 dispatches" in text


def test_spec_merge(folder: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged.mlir"
    first, second = folder / "matmul_spec.mlir", folder / "both_spec.mlir"
    result = run("spec", "merge", first, second, folder / "empty_spec.mlir", "-o", merged)
    assert words(result) == f"{merged}: 2 entries from 3 specs", "an equal entry is kept once"
    assert f"spec 2 ({second}):" in result.stderr
    text = words(run("spec", "check", merged, "--program", folder / "both.mlir"))
    assert "applied to 2 dispatches" in text


def test_spec_strip(folder: Path, tmp_path: Path) -> None:
    """What carries a configuration is left alone by a spec; without it the spec applies."""
    carrying, plain = tmp_path / "carrying.mlir", tmp_path / "plain.mlir"
    carrying.write_text(matmul().replace("linalg.matmul", f"linalg.matmul {CONFIGURATION}"))
    result = run("spec", "strip", carrying, "-o", plain)
    assert words(result) == f"{plain}: removed 1 compilation_info"
    assert "compilation_info" not in plain.read_text()
    text = words(run("spec", "check", folder / "matmul_spec.mlir", "--program", plain))
    assert "applied to 1 dispatch" in text


def test_spec_strip_of_what_has_none_to_standard_output(folder: Path) -> None:
    result = run("spec", "strip", folder / "matmul.mlir")
    assert result.stdout.startswith("module {")
    assert "there were no configurations to remove" in result.stderr


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["spec", "show", "{d}/matmul.mlir"], "not a tuning spec"),
        (["spec", "strip", "{d}/none.mlir"], "none.mlir: cannot read the program"),
        (["spec", "strip", "model.onnx"], "an ONNX model carries no configurations"),
        (["spec", "check", "{d}/none.mlir"], "none.mlir: cannot read the tuning spec"),
        (["spec", "merge", "{d}/empty_spec.mlir", "{d}/matmul.mlir", "-o", "{d}/x.mlir"],
         "matmul.mlir: not a tuning spec"),
        (["spec", "merge", "{d}/empty_spec.mlir", "-o", "{d}/none/x.mlir"], "cannot write it"),
        (["spec", "check", "{d}/both_spec.mlir", "--program", "{d}/none.mlir"],
         "cannot read the program"),
        (["inspect", "{d}/none.mlir"], "cannot read the program"),
        (["inspect", "{d}/both_spec.mlir"], "no public function"),
    ],
)  # fmt: skip
def test_mistakes(folder: Path, args: list[str], told: str) -> None:
    result = run(*(a.format(d=folder) for a in args))
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (folder / "x.mlir").exists()


@pytest.mark.parametrize(
    "command", [["strip"], ["show"], ["check"], ["merge", "-o", "merged.mlir"]], ids=lambda c: c[0]
)
def test_what_crashes_the_parser_does_not_end_the_command(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    deep = tmp_path / "deep.mlir"
    deep.write_text("module {" * 50_000)
    result = run("spec", *command, deep)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "deep.mlir" in result.stderr
    assert result.stderr.count("\n") == 1

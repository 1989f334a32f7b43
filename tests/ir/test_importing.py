"""Models of other tools: what reads them, and what is said where nothing does."""

from __future__ import annotations

from pathlib import Path

import pytest
from iree.runtime import ParameterIndex

from tilewright.errors import UserError
from tilewright.ir import importing
from tilewright.ir.program import load_program
from tilewright.ir.weight_arguments import with_weights

STABLEHLO = b"""
module {
  func.func public @main(%w: tensor<4x3xf32>, %x: tensor<2x4xf32>) -> tensor<2x3xf32> {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
        : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
}
"""


def test_weights_that_were_arguments_are_parameters(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    folder.mkdir()
    text = with_weights(STABLEHLO, {0: "layer.w"})
    (folder / "program.mlir").write_bytes(text)
    index = ParameterIndex()
    index.add_buffer("layer.w", bytes(48))
    index.create_archive_file(str(folder / "model.irpa"))
    assert b'#stream.parameter.named<"model"::"layer.w"> : tensor<4x3xf32>' in text
    program = load_program(folder, tmp_path / "work")
    assert program.dialect == "stablehlo"
    assert [str(one) for one in program.functions["main"].inputs] == ["2x4xf32"]
    assert program.parameters == (("model", folder / "model.irpa"),)
    assert (program.source, program.path) == (folder, folder / "program.mlir")


def test_mistakes_in_a_program_with_weights_are_one_line() -> None:
    with pytest.raises(UserError, match="IREE cannot read the program") as info:
        with_weights(b"func.func @main( {", {0: "w"})
    assert "\n" not in str(info.value)


def test_tflite_without_and_with_an_importer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(b"TFL3")
    with pytest.raises(UserError, match=r"net\.tflite: .* run: pip install .*tensorflow.* tf2onnx"):
        load_program(path, tmp_path / "work")
    importer = tmp_path / "iree" / "tools" / "tflite" / "scripts" / "iree_import_tflite.py"
    importer.parent.mkdir(parents=True)
    (tmp_path / "tensorflow.py").write_text("")
    importer.write_text("raise NameError('no such function')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UserError, match=r"installed: NameError: no such function; convert .*ONNX"):
        load_program(path, tmp_path / "work")
    importer.write_text(f"import sys; open(sys.argv[3], 'wb').write({STABLEHLO!r})")
    assert load_program(path, tmp_path / "work").functions.keys() == {"main"}


@pytest.mark.parametrize(
    ("name", "install"), [("net.pt2", r"tilewright\[torch\]"), ("net.onnx", r"tilewright\[onnx\]")]
)
def test_what_is_not_installed_is_told(
    name: str, install: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing.importlib.util, "find_spec", lambda package: None)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UserError, match=install):
        load_program(tmp_path / name, tmp_path / "work")


def test_a_folder_without_a_program_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a directory"):
        load_program(tmp_path, tmp_path / "work")

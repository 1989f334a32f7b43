"""Programs of every input dialect are read, and what cannot be read is named in one line."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from iree.compiler import ir

from tilewright.argument import ArgumentType
from tilewright.errors import UserError
from tilewright.ir.program import Program, choose_function, load_program
from tilewright.ir.session import CompilerSession
from tilewright.ir.signature import Signature, entry_points
from tilewright.ir.walk import walk

FLAGS = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]

LINALG = """
func.func @main(%a: tensor<8x16xf32>, %b: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x4xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<8x4xf32>) -> tensor<8x4xf32>
  %0 = linalg.matmul CONFIG ins(%a, %b : tensor<8x16xf32>, tensor<16x4xf32>)
       outs(%f : tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
"""
STABLEHLO = """
func.func @main(%a: tensor<8x16xf32>, %b: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
       : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.tanh %0 : tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}
"""
STABLEHLO_TUPLE = """
func.func @main(%a: tensor<8x4xf32>) -> tuple<tensor<8x4xf32>, tensor<8x4xf32>> {
  %1 = stablehlo.tanh %a : tensor<8x4xf32>
  %2 = stablehlo.tuple %1, %a : tuple<tensor<8x4xf32>, tensor<8x4xf32>>
  return %2 : tuple<tensor<8x4xf32>, tensor<8x4xf32>>
}
"""
TOSA = """
func.func @main(%a: tensor<1x8x4xf32>) -> tensor<1x8x4xf32> {
  %1 = tosa.tanh %a : (tensor<1x8x4xf32>) -> tensor<1x8x4xf32>
  return %1 : tensor<1x8x4xf32>
}
"""
TORCH = """
func.func @main(%a: !torch.vtensor<[8,16],f32>, %b: !torch.vtensor<[16,4],f32>,
                %unused: !torch.vtensor<[?,3],si64>) -> !torch.vtensor<[8,4],f32> {
  %0 = torch.aten.mm %a, %b
       : !torch.vtensor<[8,16],f32>, !torch.vtensor<[16,4],f32> -> !torch.vtensor<[8,4],f32>
  return %0 : !torch.vtensor<[8,4],f32>
}
"""
ONNX_IN_TORCH = """
func.func @main(%a: !torch.vtensor<[8,16],f32>, %b: !torch.vtensor<[16,4],f32>)
    -> !torch.vtensor<[8,4],f32>
    attributes {torch.onnx_meta.ir_version = 8 : si64, torch.onnx_meta.opset_version = 17 : si64} {
  %0 = torch.operator "onnx.MatMul"(%a, %b)
       : (!torch.vtensor<[8,16],f32>, !torch.vtensor<[16,4],f32>) -> !torch.vtensor<[8,4],f32>
  return %0 : !torch.vtensor<[8,4],f32>
}
"""
MANY = """
func.func @main(%a: tensor<?x16xf32>, %s: f32, %i: index, %u: tensor<16x4xui8>, %r: tensor<f32>)
    -> (tensor<?x16xf32>, f32, tensor<f32>) {
  %c0 = arith.constant 0 : index
  %d = tensor.dim %a, %c0 : tensor<?x16xf32>
  %e = tensor.empty(%d) : tensor<?x16xf32>
  %0 = linalg.generic {
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%a : tensor<?x16xf32>) outs(%e : tensor<?x16xf32>) {
    ^bb0(%x: f32, %y: f32):
      %m = arith.mulf %x, %s : f32
      linalg.yield %m : f32
  } -> tensor<?x16xf32>
  return %0, %s, %r : tensor<?x16xf32>, f32, tensor<f32>
}
func.func @predict(%a: tensor<4xi1>) -> tensor<4xi1> { return %a : tensor<4xi1> }
func.func private @helper(%a: tensor<4xi1>) -> tensor<4xi1> { return %a : tensor<4xi1> }
"""
F32 = {n: ArgumentType("f32", s) for n, s in (("a", (8, 16)), ("b", (16, 4)), ("c", (8, 4)))}
MATMUL = Signature((F32["a"], F32["b"]), (F32["c"],))


def load(folder: Path, text: str | bytes, name: str = "p.mlir", **options: str) -> Program:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_program(path, folder / "work", **options)


def signatures(program: Program, declared: bool = True) -> dict[str, Signature]:
    session = CompilerSession([*FLAGS, *program.input_flags])
    flow = session.compile(program.path.read_bytes(), None, "flow", "bytecode")
    return entry_points(session.parse(flow), program.functions if declared else None)


def to_bytecode(text: str) -> bytes:
    return CompilerSession().compile(text, None, "input", "bytecode")


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        (LINALG.replace("CONFIG", ""), ""),
        (STABLEHLO, "stablehlo"),
        (ONNX_IN_TORCH, "onnx"),
    ],
    ids=["linalg", "stablehlo", "onnx"],
)
def test_every_dialect_compiles_and_has_the_same_signature(
    tmp_path: Path, text: str, dialect: str
) -> None:
    program = load(tmp_path, text)
    assert program.dialect == dialect
    assert program.path == program.source == tmp_path / "p.mlir"
    assert program.digest == hashlib.sha256(text.encode()).hexdigest()
    assert program.stripped == 0
    assert not (tmp_path / "work").exists()
    assert signatures(program) == signatures(program, declared=False) == {"main": MATMUL}


def test_tosa_and_tuples(tmp_path: Path) -> None:
    tosa = load(tmp_path, TOSA)
    assert tosa.dialect == "tosa"
    tensor = ArgumentType("f32", (1, 8, 4))
    assert signatures(tosa) == {"main": Signature((tensor,), (tensor,))}
    tuples = load(tmp_path, STABLEHLO_TUPLE)
    assert signatures(tuples) == {"main": Signature((F32["c"],), (F32["c"], F32["c"]))}


def test_torch_functions_are_one_name_and_unused_arguments_keep_their_type(tmp_path: Path) -> None:
    program = load(tmp_path, TORCH)
    assert program.dialect == "torch"
    unused = ArgumentType("i64", (-1, 3))
    assert signatures(program) == {"main": Signature((*MATMUL.inputs, unused), MATMUL.outputs)}
    undeclared = signatures(program, declared=False)["main"]
    assert undeclared.inputs[2] == ArgumentType("!hal.buffer_view", None)
    with pytest.raises(UserError, match=r"argument 3 of 'main' is !hal.buffer_view"):
        choose_function({"main": undeclared}, None)


def test_scalars_dynamic_sizes_and_unused_arguments(tmp_path: Path) -> None:
    found = signatures(load(tmp_path, MANY))
    assert list(found) == ["main", "predict"]
    dynamic = ArgumentType("f32", (-1, 16))
    scalar, rank_0 = ArgumentType("f32", None), ArgumentType("f32", ())
    index, unsigned = ArgumentType("index", None), ArgumentType("ui8", (16, 4))
    assert found["main"] == Signature(
        (dynamic, scalar, index, unsigned, rank_0), (dynamic, scalar, rank_0)
    )
    bits = ArgumentType("i1", (4,))
    assert found["predict"] == Signature((bits,), (bits,))
    assert str(found["predict"]) == "(4xi1) -> (4xi1)"


def test_bytecode_is_read(tmp_path: Path) -> None:
    program = load(tmp_path, to_bytecode(LINALG.replace("CONFIG", "")), "p.mlirbc")
    assert program.path == program.source
    assert signatures(program) == {"main": MATMUL}


CONFIG = (
    "{compilation_info = #iree_codegen.compilation_info<lowering_config = "
    "#iree_cpu.lowering_config<distribution = [4, 4, 0]>, translation_info = "
    "#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>}"
)


@pytest.mark.parametrize("bytecode", [False, True])
def test_configurations_are_stripped_in_a_copy(tmp_path: Path, bytecode: bool) -> None:
    text = LINALG.replace("CONFIG", CONFIG)
    data = to_bytecode(text) if bytecode else text.encode()
    program = load(tmp_path, data, "p.mlirbc" if bytecode else "p.mlir")
    assert program.stripped == 1
    assert program.source.read_bytes() == data
    assert program.path.parent == tmp_path / "work"
    copy = program.path.read_bytes()
    assert program.digest == hashlib.sha256(copy).hexdigest()
    assert copy.startswith(b"ML\xefR") == bytecode
    with ir.Context() as context:
        context.load_all_available_dialects()
        module = ir.Module.parse(copy)
        names = {a for op in walk(module.operation) for a in op.attributes}
    assert not names & {"compilation_info", "lowering_config", "translation_info"}
    assert signatures(program) == {"main": MATMUL}
    assert load_program(program.path, tmp_path / "again").stripped == 0


def test_code_that_the_user_wrote_for_an_executable_keeps_its_configuration(tmp_path: Path) -> None:
    kernel = """
    hal.executable.source public @kernel {
      hal.executable.export public @run ordinal(0) layout(#hal.pipeline.layout<bindings = [
        #hal.pipeline.binding<storage_buffer>]>) count(%d: !hal.device) -> (index, index, index) {
        %c1 = arith.constant 1 : index
        hal.return %c1, %c1, %c1 : index, index, index
      }
      builtin.module {
        func.func @run() attributes {translation_info =
            #iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline>} { return }
      }
    }
    """
    assert load(tmp_path, kernel + LINALG.replace("CONFIG", "")).stripped == 0


def test_which_function(tmp_path: Path) -> None:
    found = signatures(load(tmp_path, MANY))
    assert choose_function(found, "predict") == "predict"
    assert choose_function({"f": MATMUL}, None) == "f"
    with pytest.raises(UserError, match=r"2 functions.*--function.*main, predict"):
        choose_function(found, None)
    with pytest.raises(UserError, match=r"'predikt'; did you mean 'predict'\?.*main, predict"):
        choose_function(found, "predikt")
    with pytest.raises(UserError, match="no public function"):
        choose_function({}, None)


ERRORS = {
    "no such file": (None, {}, "cannot read the program"),
    "empty": ("  \n", {}, "the file is empty"),
    "not MLIR": ("func.func @main( {\n", {}, r"p\.mlir:1:17: expected"),
    "invalid": (
        STABLEHLO.replace("-> tensor<8x4xf32>\n  %1", "-> tensor<7x4xf32>\n  %1"),
        {},
        r"p\.mlir:5:23",
    ),
    "binary": (b"\x00\xff\x01\x02junk\n\x1b[0m", {}, "IREE cannot parse"),
    "cut bytecode": (b"ML\xefR\x0d", {}, "IREE cannot parse"),
    "no function": ("module { func.func private @f() }", {}, "no public function"),
    "wrong function": (MANY, {"function": "mian"}, r"'mian'; did you mean 'main'\?.*predict"),
    "private function": (MANY, {"function": "helper"}, "no public function 'helper'"),
    "wrong input type": (MANY, {"input_type": "stablhlo"}, "did you mean 'stablehlo'"),
    "mixed dialects": (
        TOSA.replace("return", "%2 = stablehlo.tanh %1 : tensor<1x8x4xf32>\n return"),
        {},
        "mixes stablehlo and tosa",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_bad_program_is_one_line(tmp_path: Path, name: str) -> None:
    text, options, message = ERRORS[name]
    path = tmp_path / "p.mlir"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=message) as info:
        load_program(path, tmp_path / "work", **options)
    assert "\n" not in str(info.value)
    assert str(info.value).isprintable()
    assert not (tmp_path / "work").exists()


def test_a_directory_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a directory"):
        load_program(tmp_path, tmp_path / "work")


def test_an_input_type_that_is_given_reaches_the_compiler(tmp_path: Path) -> None:
    program = load(tmp_path, STABLEHLO, input_type="stablehlo")
    assert program.input_flags == ("--iree-input-type=stablehlo",)
    assert signatures(program) == {"main": MATMUL}


def write_onnx(path: Path, operator: str = "Relu", opset: int = 13, width: int = 32) -> None:
    onnx = pytest.importorskip("onnx")
    helper, tensor = onnx.helper, onnx.TensorProto
    values = np.random.default_rng(0).standard_normal((16, width)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node(operator, ["y"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info("x", tensor.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("z", tensor.FLOAT, ["n", width])],
        [onnx.numpy_helper.from_array(values, "w")],
    )
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def test_onnx_model_with_its_weights_outside(tmp_path: Path) -> None:
    write_onnx(tmp_path / "net.onnx")
    program = load_program(tmp_path / "net.onnx", tmp_path / "work")
    weights = tmp_path / "work" / "net.irpa"
    assert program.dialect == "onnx"
    assert program.source == tmp_path / "net.onnx"
    assert program.path == tmp_path / "work" / "net.mlir"
    assert program.parameters == (("model", weights),)
    assert weights.stat().st_size > 16 * 32 * 4
    assert sorted(p.name for p in weights.parent.iterdir()) == ["net.irpa", "net.mlir"]
    shape = {n: ArgumentType("f32", (-1, n)) for n in (16, 32)}
    assert signatures(program) == {"main_graph": Signature((shape[16],), (shape[32],))}


def test_what_is_no_onnx_model(tmp_path: Path) -> None:
    write_onnx(tmp_path / "op.onnx", "Frobnicate")
    (tmp_path / "junk.onnx").write_text("this is no protobuf")
    for name, message in (("op.onnx", "Frobnicate"), ("junk.onnx", "Error parsing message")):
        with pytest.raises(UserError, match=message) as info:
            load_program(tmp_path / name, tmp_path / "work")
        assert str(info.value).startswith(f"{tmp_path / name}: the ONNX model cannot be imported")
        assert "\n" not in str(info.value)
        assert list((tmp_path / "work").iterdir()) == []


def test_without_the_onnx_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "onnx" else find(n))
    (tmp_path / "net.onnx").write_bytes(b"x")
    with pytest.raises(UserError, match=r"pip install 'tilewright\[onnx\]'"):
        load_program(tmp_path / "net.onnx", tmp_path / "work")


def test_a_missing_onnx_file_is_not_imported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the program"):
        load_program(tmp_path / "net.onnx", tmp_path / "work")


def test_reading_a_program_does_not_import_the_onnx_package(tmp_path: Path) -> None:
    (tmp_path / "p.mlir").write_text(STABLEHLO)
    code = (
        "import sys, pathlib; from tilewright.ir.program import load_program; "
        f"load_program(pathlib.Path({str(tmp_path / 'p.mlir')!r}), pathlib.Path('.')); "
        "sys.exit('onnx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

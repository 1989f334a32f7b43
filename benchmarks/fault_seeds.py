"""Good files of every kind that tilewright reads, and files that each try one hostile thing.

Good files are made once, most of them by tilewright's own commands.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np

from fault_commands import REPOSITORY, limit_s, run_command
from tilewright.cluster.certificates import make_certificates
from tilewright.errors import UserError

#: The file that is there once a payload was executed.
EXECUTED = "EXECUTED"

_PRODUCT = """func.func @main(%a: tensor<{m}x{k}xf32>, %b: tensor<{k}x{n}xf32>)
    -> tensor<{m}x{n}xf32> {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{m}x{n}xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %c = linalg.matmul ins(%a, %b : tensor<{m}x{k}xf32>, tensor<{k}x{n}xf32>)
      outs(%f : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  return %c : tensor<{m}x{n}xf32>
}}
"""


def product(m: int, n: int, k: int) -> str:
    """A program of one product of matrices."""
    return _PRODUCT.format(m=m, n=n, k=k)


SMALL = product(16, 8, 24)
# Large enough that its dispatch has most of its time, also on a busy machine.
TUNED = product(192, 160, 256)
WEIGHTS = """util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<8xf32>
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %w = util.global.load @w : tensor<8xf32>
  %r = arith.addf %x, %w : tensor<8xf32>
  return %r : tensor<8xf32>
}
"""
PROJECT = """[tool.tilewright]
effort = "quick"
max-trials = 4
iree-flag = ["--iree-opt-level=O2"]
threads = 1
"""
SHAPES = """[{"kind": "matmul", "m": 8, "n": 8, "k": 8, "types": "f32"}]
"""


class Evil:
    """What is executed where a pickle is read."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {EXECUTED}",)


def hand_made(folder: Path) -> dict[str, list[Path]]:
    """Files that try one thing each, by the kind that they are for.

    Args:
        folder: where they are written.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def put(name: str, content: bytes | str) -> Path:
        data = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(data)
        return folder / name

    evil = np.empty(3, object)
    evil[:] = [Evil(), 1, 2]
    pickled, archive = io.BytesIO(), io.BytesIO()
    np.save(pickled, evil, allow_pickle=True)
    np.savez(archive, header=evil, status=evil)
    huge = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        huge, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 1 << 20)}
    )
    named = '#hal.executable.object<{path = "/etc/passwd"}>'
    deep = "tensor<" + "tuple<" * 50_000
    return {
        "MLIR": [
            put("deep.mlir", f"func.func @main(%a: {deep}"),
            put("regions.mlir", "module {" * 50_000),
            put("attribute.mlir", "module attributes {a = " + "[" * 100_000),
            put("empty.mlir", ""),
            put("zeros.mlir", b"\0" * 65536),
            put("bytecode.mlir", b"ML\xefR" + b"\xff" * 100),
            put("objects.mlir", f"module attributes {{o = {named}}} {{}}"),
            put("big.mlir", "func.func @main() -> tensor<1099511627776x1048576xf32>"),
            put(
                "memory.mlir",
                "func.func @main() -> tensor<68719476736xf32> {\n"
                " %c = arith.constant dense<1.0> : tensor<68719476736xf32>\n"
                " return %c : tensor<68719476736xf32>\n}\n",
            ),
            put(
                "spins.mlir",
                "func.func @main(%n: i32) -> i32 {\n cf.br ^a\n^a:\n cf.br ^a\n}\n",
            ),
        ],
        "ONNX": [put("empty.onnx", b""), put("pickle.onnx", pickle.dumps(Evil()))],
        "PyTorch program": [
            put("empty.pt2", b""),
            put("pickle.pt2", pickle.dumps(Evil())),
            put("pickled.pt2", _archive("pickled/data.pkl", pickle.dumps(Evil()))),
        ],
        "library of specs": [put("index.json", '{"specs": ' + "[" * 200_000)],
        "cluster certificates": [put("ca.pem", "-----BEGIN CERTIFICATE-----\n" + "A" * 100_000)],
        ".npy input": [
            put("pickled.npy", pickled.getvalue()),
            put("huge.npy", huge.getvalue()),
            put("pickle.npy", pickle.dumps(Evil())),
        ],
        "recorded space": [
            put("pickled.npz", archive.getvalue()),
            put("bomb.npz", _bomb()),
        ],
        "schedule": [put("deep.json", "[" * 200_000), put("number.json", "9" * 10_000)],
        "comparison results": [put("deep-results.json", '{"a":' * 200_000)],
        "shapes": [put("deep-shapes.json", "[" * 200_000)],
        "exported results": [put("deep.jsonl", "[" * 200_000), put("long.jsonl", "9" * 10_000)],
        "project options": [put("deep.toml", "a = " + "[" * 100_000)],
        "T4 results": [put("deep-t4.json", "[" * 200_000)],
        "parameters": [
            put("long.safetensors", struct.pack("<Q", 1 << 60) + b"{}"),
            put("deep.safetensors", struct.pack("<Q", 100_000) + b"[" * 100_000),
        ],
    }


def _archive(name: str, content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(name, content)
    return made.getvalue()


def _bomb() -> bytes:
    """An archive whose array is far larger than it."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|u1", "fortran_order": False, "shape": (1 << 31,)}
    )
    made = io.BytesIO()
    with (
        zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file,
        file.open("header.npy", "w") as f,
    ):
        f.write(head.getvalue())
        for _ in range(256):
            f.write(b"\0" * (1 << 20))
    return made.getvalue()


# -- what is good ----------------------------------------------------------------------------------


def make_seeds(folder: Path, runs: bool = True) -> None:
    """Write good files of every kind; what is there stays.

    Args:
        folder: where they go.
        runs: also what it takes runs of tilewright to make.
    """
    if (folder / "done").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "home").mkdir(parents=True)
    shutil.copytree(REPOSITORY / "examples", folder / "examples")
    texts = {
        "small.mlir": SMALL,
        "product.mlir": TUNED,
        "weights.mlir": WEIGHTS,
        "pyproject.toml": PROJECT,
        "shapes.json": SHAPES,
        "auto-scheduler.cfg": (folder / "examples/auto-scheduler.cfg").read_text(),
        "config.json": '{"Env": {"input_file": "small.mlir"}, "SearchStrategy": {"n_trial": 2}}',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    np.save(folder / "a.npy", np.ones((16, 24), np.float32))
    np.save(folder / "ints.npy", np.ones((16, 8), np.int64))
    _make_parameters(folder)
    _make_onnx(folder / "small.onnx")
    _make_schedule(folder / "schedule.json")
    _make_bytecode(folder)
    _make_torch(folder / "small.pt2")
    with contextlib.suppress(UserError):
        make_certificates(folder / "certs")
    shutil.copytree(REPOSITORY / "src/tilewright/specs", folder / "library")
    shutil.copy(
        REPOSITORY / "src/tilewright/replay/data/row_sums_1024x4096.npz", folder / "space.npz"
    )
    if not runs:
        (folder / "done").touch()
        return
    quick = "--effort quick --variants default --time-limit 60s --max-trials 6"
    for line in (
        f"tune product.mlir {quick} --kernels off --db tuned.db --events events.jsonl -o tuned",
        f"tune product.mlir {quick} --kernels only --db kernels.db -o kernels",
        "db export all.jsonl --db tuned.db",
        "compare run --matmul 8x8x8:f32 --providers iree,numpy --rounds 6 --max-time 1s --no-peak "
        "-o compared.json",
        "compare run --matmul 8x8x8:f32 --providers iree,numpy --rounds 6 --max-time 1s --no-peak "
        "-o compared.csv",
        "replay export space.npz --t4 t4.json",
        "profile generate --generated-dir profile --kind matmul --problem-m=8 --problem-n=8 "
        "--problem-k=8 --types f32",
        "profile compile --generated-dir profile",
        "run small.mlir --save small.vmfb",
        "run weights.mlir --compile-to end --save weights.vmfb",
    ):
        found = run_command(line.split(), folder, folder / "home", _limit_s())
        if found.status != 0:
            raise RuntimeError(f"{line}: {found.status}: {found.err}")
    # What is asked of another machine, which never answers.
    asked = f"tune product.mlir {quick} --db asked.db --runner dir:exchange -o asked"
    run_command(asked.split(), folder, folder / "home", _limit_s(), lambda: _asked(folder))
    for path in [folder / "asked.db", *folder.glob("*-wal"), *folder.glob("*-shm")]:
        path.unlink(missing_ok=True)
    shutil.rmtree(folder / "asked", ignore_errors=True)
    (folder / "done").touch()


def _limit_s() -> float:
    """For a run of few trials, on this machine as it is now."""
    return 5 * limit_s()


def _asked(folder: Path) -> bool:
    return any((folder / "exchange").glob("batch_*/manifest.json"))


def _make_parameters(folder: Path) -> None:
    import iree.runtime as rt

    values = np.arange(8, dtype=np.float32)
    index = rt.ParameterIndex()
    index.add_buffer("w", values)
    index.create_archive_file(str(folder / "w.irpa"))
    head = json.dumps({"w": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
    (folder / "w.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + values.tobytes())
    # GGUF, version 3: one tensor of f32, no metadata.
    info = struct.pack("<Q", 1) + b"w" + struct.pack("<IQIQ", 1, 8, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + info
    (folder / "w.gguf").write_bytes(head + b"\0" * (-len(head) % 32) + values.tobytes())


def _make_onnx(path: Path) -> None:
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        path.write_bytes(b"\x08\x08\x12\x00")
        return
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])
    weights = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def _make_torch(path: Path) -> None:
    try:
        import torch
    except ImportError:
        path.write_bytes(b"PK\x05\x06" + bytes(18))
        return
    made = torch.export.export(torch.nn.Linear(8, 4), (torch.ones(2, 8),))
    torch.export.save(made, path)


def _make_schedule(path: Path) -> None:
    from tilewright import te

    a = te.placeholder((16, 24), name="A")
    b = te.placeholder((24, 8), name="B")
    k = te.reduce_axis(24, "k")
    c = te.compute((16, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    schedule = te.create_schedule(c)
    i, j = c.op.axis
    outer, inner = schedule[c].split(i, 4)
    schedule[c].reorder(outer, j, k, inner)
    schedule[c].unroll(inner)
    path.write_text(schedule.trace().to_json())


def _make_bytecode(folder: Path) -> None:
    from iree.compiler import ir

    with ir.Context():
        module = ir.Module.parse(SMALL)
        with (folder / "small.mlirbc").open("wb") as file:
            module.operation.write_bytecode(file)

"""Imports an ONNX model with IREE's own importer, its weights in a parameter file."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from tilewright.errors import UserError

PARAMETER_SCOPE = "model"
# The opset that IREE's importer covers best; a model of a later one is imported as it is.
OPSET = 17
# Above this a protobuf cannot be handled in memory, and the opset cannot be changed.
_LARGE = 2_000_000_000
_TIMEOUT_S = 1800


def import_onnx(model: Path, work: Path) -> tuple[Path, tuple[tuple[str, Path], ...]]:
    """The model as an MLIR file in `work`, and its weights as (scope, file).

    The importer runs in a process of its own: it needs several times the model's size in memory.
    Raises UserError when the `onnx` package is missing or the model cannot be imported.
    """
    if importlib.util.find_spec("onnx") is None:
        raise UserError(
            f"{model}: reading ONNX models needs the onnx package; run: "
            "pip install 'tilewright[onnx]'"
        )
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{work}: cannot make the folder ({error.strerror})") from error
    program, weights = work / f"{model.stem}.mlir", work / f"{model.stem}.irpa"
    if model.stat().st_size > _LARGE:
        failed = _run(model, program, weights, "--large-model")
    else:
        failed = _run(model, program, weights, "--opset-version", str(OPSET))
        # ONNX has no converter for some operators: the model may do in its own opset.
        if "convert_version" in failed:
            failed = _run(model, program, weights)
    if failed:
        raise UserError(f"{model}: the ONNX model cannot be imported: {_reason(failed)}")
    return program, ((PARAMETER_SCOPE, weights),) if weights.exists() else ()


def _run(model: Path, program: Path, weights: Path, *options: str) -> str:
    """Import into the files given; what the importer printed when it failed, else ''."""
    partial = {path: path.with_name(f".{path.name}.part") for path in (program, weights)}
    command = [sys.executable, "-P", "-m", "iree.compiler.tools.import_onnx", str(model), *options]
    command += ["--externalize-params", "--params-scope", PARAMETER_SCOPE]
    command += ["--save-params-to", str(partial[weights]), "-o", str(partial[program])]
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if result.returncode != 0:
            log = result.stderr.decode(errors="replace").strip()
            return log or f"the importer ended with status {result.returncode}, saying nothing"
        for path, written in partial.items():
            if written.exists():
                written.replace(path)
        return ""
    except subprocess.TimeoutExpired:
        return f"the importer took over {_TIMEOUT_S} s"
    finally:
        for written in partial.values():
            written.unlink(missing_ok=True)


def _reason(log: str) -> str:
    """The exception of a Python traceback, in one line: what stands behind its last frame."""
    lines = log.splitlines()
    frames = [i for i, line in enumerate(lines) if line.startswith("  ")]
    traceback = any(line.startswith("Traceback") for line in lines)
    after = lines[frames[-1] + 1 :] if traceback and frames else lines
    said = [line.strip() for line in after if line.strip()] or lines[-1:]
    kind, colon, message = said[0].partition(": ")
    return f"{kind.rpartition('.')[2]}: {message}" if colon and " " not in kind else said[0]

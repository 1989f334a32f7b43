"""Models of other tools made MLIR, each by an importer in a process of its own.

What an importer is given is the user's file; what it makes is a program, and an archive with the
weights where there are any, which stay outside the program.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tilewright.errors import UserError

PARAMETER_SCOPE = "model"
"""The scope of imported weights."""

PROGRAM_NAME, WEIGHTS_NAME = "program.mlir", "model.irpa"
"""In a folder these are an imported program, as `tilewright.torch` and `tilewright.jax` make it."""

# Above this a protobuf cannot be handled in memory, and nothing be changed in it.
_LARGE_MODEL = 2_000_000_000
_IMPORT_TIMEOUT_S = 1800

Imported = tuple[Path, tuple[tuple[str, Path], ...]]
"""A program as MLIR, and its weights as (scope, file)."""


def import_program(model: Path, work: Path) -> Imported | None:
    """A model of another tool as MLIR.

    Args:
        model: the user's file, or a folder with an imported program.
        work: where the program is written; made where it is not there.

    Returns:
        The program with its weights; None for a file that is MLIR itself.

    Raises:
        UserError: what reads it is not installed, or it cannot be imported.
    """
    if model.is_dir() and (model / PROGRAM_NAME).is_file():
        return _with_weights(model / PROGRAM_NAME, model / WEIGHTS_NAME)
    importer = _IMPORTERS.get(model.suffix.lower())
    if importer is None or not model.is_file():
        return None
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{work}: cannot make the folder ({error.strerror})") from error
    return importer(model, work)


def import_onnx(model: Path, work: Path) -> Imported:
    """An ONNX model, read by IREE's importer, which needs several times its size in memory.

    Args:
        model: the model.
        work: a folder that is there.

    Raises:
        UserError: the `onnx` package is missing, or the model cannot be imported.
    """
    _need("onnx", model, "ONNX models", "pip install 'tilewright[onnx]'")
    program, weights = work / f"{model.stem}.mlir", work / f"{model.stem}.irpa"
    large = model.stat().st_size > _LARGE_MODEL
    own = ("--externalize-params", "--params-scope", PARAMETER_SCOPE)
    importer = "iree.compiler.tools.import_onnx" if large else "tilewright.ir.onnx_import"
    failed = _run_importer(
        program,
        weights,
        lambda made, archive: [
            *(importer, str(model), *own, *(["--large-model"] if large else [])),
            *("--save-params-to", str(archive), "-o", str(made)),
        ],
    )
    if failed:
        raise UserError(f"{model}: the ONNX model cannot be imported: {_reason_of_import(failed)}")
    return _with_weights(program, weights)


def import_pt2(model: Path, work: Path) -> Imported:
    """A program that `torch.export.save` wrote.

    Args:
        model: the file.
        work: a folder that is there.

    Raises:
        UserError: PyTorch is missing, or the program cannot be imported.
    """
    _need("torch", model, "programs of torch.export", "pip install 'tilewright[torch]'")
    program, weights = work / f"{model.stem}.mlir", work / f"{model.stem}.irpa"
    failed = _run_importer(
        program,
        weights,
        lambda made, archive: ["tilewright.ir.fx_import", *map(str, (model, made, archive))],
    )
    if failed:
        reason = _reason_of_import(failed)
        raise UserError(f"{model}: the exported program cannot be imported: {reason}")
    return _with_weights(program, weights)


def import_tflite(model: Path, work: Path) -> Imported:
    """A TensorFlow Lite model, read by IREE's importer for them, which needs TensorFlow.

    Args:
        model: the file.
        work: a folder that is there.

    Raises:
        UserError: the importer or TensorFlow is missing, or it cannot read the model.
    """
    convert = (
        "convert the model to ONNX: pip install tf2onnx, then python -m tf2onnx.convert --tflite "
        f"{model} --output {model.stem}.onnx"
    )
    # Not the module itself: where the folder that it is in is missing, that is an error.
    missing = [one for one in _TFLITE_IMPORTER if importlib.util.find_spec(one) is None]
    if missing:
        raise UserError(
            f"{model}: reading TensorFlow Lite models needs IREE's importer and TensorFlow; run: "
            f"pip install {' '.join(_TFLITE_IMPORTER[one] for one in missing)}; or {convert}"
        )
    program, weights = work / f"{model.stem}.mlir", work / f"{model.stem}.irpa"
    module = "iree.tools.tflite.scripts.iree_import_tflite"
    failed = _run_importer(
        program, weights, lambda made, _archive: [module, str(model), "-o", str(made)]
    )
    if failed:
        raise UserError(
            f"{model}: IREE's importer of TensorFlow Lite does not read it with the TensorFlow "
            f"that is installed: {_reason_of_import(failed)}; {convert}"
        )
    return _with_weights(program, weights)


# What has to be importable, with the package that has it.
_TFLITE_IMPORTER = {"iree.tools": "iree-tools-tflite", "tensorflow": "tensorflow-cpu"}
_IMPORTERS: Mapping[str, Callable[[Path, Path], Imported]] = {
    ".onnx": import_onnx,
    ".pt2": import_pt2,
    ".tflite": import_tflite,
}


def _need(package: str, model: Path, what: str, install: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{model}: reading {what} needs the {package} package; run: {install}")


def _with_weights(program: Path, weights: Path) -> Imported:
    return program, ((PARAMETER_SCOPE, weights),) if weights.exists() else ()


def _run_importer(
    program: Path, weights: Path, arguments: Callable[[Path, Path], list[str]]
) -> str:
    """Import into the files given; what the importer printed when it failed, else ''.

    `arguments`: of `python -m`, for a program and an archive.
    """
    partial = {path: path.with_name(f".{path.name}.part") for path in (program, weights)}
    command = [sys.executable, "-P", "-m", *arguments(partial[program], partial[weights])]
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_IMPORT_TIMEOUT_S,
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
        return f"the importer took over {_IMPORT_TIMEOUT_S} s"
    finally:
        for written in partial.values():
            written.unlink(missing_ok=True)


def _reason_of_import(log: str) -> str:
    """The exception of a Python traceback, in one line: what stands behind its last frame."""
    lines = log.splitlines()
    frames = [i for i, line in enumerate(lines) if line.startswith("  ")]
    traceback = any(line.startswith("Traceback") for line in lines)
    after = lines[frames[-1] + 1 :] if traceback and frames else lines
    said = [line.strip() for line in after if line.strip()] or lines[-1:]
    kind, colon, message = said[0].partition(": ")
    return f"{kind.rpartition('.')[2]}: {message}" if colon and " " not in kind else said[0]

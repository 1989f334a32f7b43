"""ONNX models of one operation, and what IREE computes of a model that was imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]

FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)


def operation(
    kind: str,
    inputs: list[str],
    given: Arrays,
    known: Arrays,
    version: int = 17,
    outputs: Sequence[str] = ("y",),
    **how: Any,
) -> Any:
    """A model of one operation."""
    import onnx
    from onnx import helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node(kind, inputs, outputs, **how)],
        "net",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in given.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in known.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def numbers(folder: Path, model: Any, given: Arrays) -> np.ndarray:
    """The first result of a model, with its weights in the program.

    Args:
        folder: gets the model and the program.
        model: whose graph is called `net`.
        given: its inputs.
    """
    import onnx
    from iree import runtime
    from iree.compiler.tools import compile_file

    from tilewright.ir.onnx_import import run

    onnx.save(model, folder / "net.onnx")
    program = folder / "net.mlir"
    run([str(folder / "net.onnx"), "-o", str(program)])
    module = compile_file(str(program), input_type="auto", extra_args=FLAGS)
    loaded = runtime.load_vm_flatbuffer(module, driver="local-sync")
    found = loaded["net"](*given.values())
    return np.asarray((found[0] if isinstance(found, tuple) else found).to_host())


def imported_numbers(program: Path, weights: Sequence[tuple[str, Path]], *given: Any) -> Any:
    """The result of a program whose weights are beside it, as the compiler makes it.

    Args:
        program: the MLIR that an importer wrote, of one function.
        weights: scopes of parameters with their archives.
        given: its inputs.
    """
    from iree import runtime
    from iree.compiler.tools import compile_file

    config = runtime.Config("local-sync")
    modules = []
    for scope, archive in weights:
        index = runtime.ParameterIndex()
        index.load(str(archive))
        provider = index.create_provider(scope)
        modules.append(runtime.create_io_parameters_module(config.vm_instance, provider))
    compiled = compile_file(str(program), input_type="auto", extra_args=FLAGS)
    modules.append(runtime.VmModule.copy_buffer(config.vm_instance, compiled))
    loaded = runtime.SystemContext(vm_modules=modules, config=config).modules.module
    (name,) = [one for one in loaded.vm_module.function_names if one in ("main", "net")]
    return loaded[name](*given).to_host()

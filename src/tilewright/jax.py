"""JAX: functions tuned, as callables on its arrays.

import tilewright.jax

tuned = tilewright.jax.tune(functools.partial(apply, weights), x)
y = tuned(x)
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from iree.runtime import ParameterIndex
from jax import export
from numpy.typing import NDArray

from tilewright import api, scratch
from tilewright.argument import ArgumentType, element_type_of
from tilewright.errors import UserError
from tilewright.files import parse_json, read_text
from tilewright.ir.importing import PARAMETER_SCOPE, PROGRAM_NAME, WEIGHTS_NAME
from tilewright.ir.weight_arguments import with_weights
from tilewright.tuned import TunedProgram, check_results, f64_kept
from tilewright.tuning.options import DEFAULT_OUTPUT
from tilewright.tuning.outputs import check_writable
from tilewright.tuning.result import TuneResult

__all__ = ["TunedFunction", "load", "tune"]

CALLING_FORM = "jax.json"
"""In a result folder: how JAX calls the program."""


class TunedFunction:
    """A function that runs a tuned program on arrays of JAX, which are not copied. It cannot be
    traced: neither `jax.jit` nor `jax.grad` see into it.

    result: what tuning found. folder: where it is.

    Args:
        folder: of `tilewright.jax.tune`.
        weights: by name, instead of those of the folder.
        threads: how many it runs on; by default as measured to be the fastest way.

    Raises:
        UserError: the folder is none of a function.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        weights: Mapping[str, NDArray[Any]] | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        self.folder = Path(folder)
        path = self.folder / CALLING_FORM
        if not path.is_file():
            raise UserError(f"{folder}: no result of tilewright.jax.tune: it has no {path.name}")
        try:
            form = parse_json(read_text(path, "calling form"))
            self._arguments, self._results = (_read_tree(form[k]) for k in ("arguments", "results"))
            self._types = [np.dtype(name) for name in form["types"]]
            self._kept: list[int] = form["kept"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: cannot be read ({error}); tune again") from error
        scoped = None
        if weights is not None:
            scoped = {(PARAMETER_SCOPE, name): one for name, one in weights.items()}
        self.program = TunedProgram(self.folder, scoped, threads=threads)

    @property
    def result(self) -> TuneResult:
        """What tuning found."""
        return self.program.result

    def __call__(self, *args: Any) -> Any:
        """Run the program.

        Args:
            args: as the function takes them.

        Returns:
            What the function returns.

        Raises:
            UserError: an argument is not what the program takes.
        """
        leaves, tree = jax.tree.flatten(args)
        if tree != self._arguments:
            raise UserError(f"the function was tuned for arguments {self._arguments}, not {tree}")
        arrays = [_array(leaves[place]) for place in self._kept]
        results = self.program.call([(one, one.shape, one.dtype) for one in arrays])
        pairs = zip(results, self._types, strict=True)
        typed = [_taken(one if one.dtype == kind else one.astype(kind)) for one, kind in pairs]
        return jax.tree.unflatten(self._results, typed)


def tune(
    function: Callable[..., Any],
    *args: Any,
    output: str | os.PathLike[str] = DEFAULT_OUTPUT,
    **options: Any,
) -> TunedFunction:
    """Tune a function for this machine.

    Arrays that it closes over are its weights: they stay outside the program, and what is computed
    of them alone is computed when it is loaded. So bind what does not change from call to call:
    `functools.partial(apply, weights)`.

    Args:
        function: of arrays and trees of them, jitted or not.
        args: examples: it is tuned for their shapes, and measured on them.
        output: the result folder.
        options: of `tilewright.tune`: effort, time_limit, threads and so on.

    Returns:
        The tuned function; `result` says what was found.

    Raises:
        UserError: it cannot be exported or compiled, or an option is wrong.
    """
    folder = Path(output)
    check_writable(folder)
    leaves, tree = jax.tree.flatten(args)
    closed, results = _closed(function, args)
    weights = {f"weight{i}": one for i, one in enumerate(closed.consts) if _is_weight(one)}
    exported = _exported(closed, leaves)
    # JAX leaves out arguments that are not used.
    kept = list(exported.module_kept_var_idx)
    names = list(weights)
    places = {at: names[one] for at, one in enumerate(kept) if one < len(names)}
    with scratch.folder() as work:
        imported = work / "".join(c for c in _name(function) if c.isidentifier())
        imported.mkdir()
        text = with_weights(exported.mlir_module().encode(), places)
        (imported / PROGRAM_NAME).write_bytes(text)
        arrays = {name: _array(weights[name]) for name in places.values()}
        _write_weights(arrays, imported / WEIGHTS_NAME)
        taken = [one - len(names) for one in kept if one >= len(names)]
        inputs = [_input(_array(leaves[one]), work / f"{one}.bin") for one in taken]
        # Weights are among the arguments here.
        avals = (*exported.in_avals, *exported.out_avals)
        f64 = any(one.dtype in (np.float64, np.complex128) for one in avals)
        with f64_kept(options, f64, _name(function)) as options:
            api.tune(imported, inputs=inputs, output=folder, **options)
    form = {
        "arguments": _write_tree(tree),
        "results": _write_tree(results),
        "types": [str(one.dtype) for one in exported.out_avals],
        "kept": taken,
    }
    (folder / CALLING_FORM).write_text(json.dumps(form, indent=2) + "\n")
    tuned = TunedFunction(folder, arrays)
    found, expected = (jax.tree.leaves(f(*args)) for f in (tuned, function))
    check_results([*map(_array, found)], [*map(_array, expected)], "JAX", folder)
    return tuned


def load(folder: str | os.PathLike[str], *, threads: int | None = None) -> TunedFunction:
    """Load a tuned function.

    Args:
        folder: of `tune`.
        threads: how many it runs on; by default as measured to be the fastest way.

    Returns:
        A callable on arrays of JAX.

    Raises:
        UserError: the folder is none of a function.
    """
    return TunedFunction(folder, threads=threads)


def _closed(function: Callable[..., Any], args: Sequence[Any]) -> tuple[Any, Any]:
    """The function's jaxpr, the arrays that it closes over among its constants, and its results'
    tree."""
    try:
        found, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        flat = jax.tree.leaves(args)
        # Constants of jitted functions inside become the whole's when those are written out.
        closed = jax.make_jaxpr(lambda *given: _written_out(found, given))(*flat)
    except Exception as error:
        # Whatever the function's own code raises when it is traced.
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{_name(function)}: JAX cannot trace it: {said[0]}") from error
    return closed, jax.tree.structure(shapes)


def _written_out(closed: Any, given: Sequence[Any]) -> list[Any]:
    """Evaluate a jaxpr with the bodies of jitted functions in the place of their calls."""
    values = dict(zip(closed.jaxpr.invars, given, strict=True))
    values |= dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values[atom]

    for equation in closed.jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        if equation.primitive.name in ("jit", "pjit"):
            outputs = _written_out(equation.params["jaxpr"], inputs)
        else:
            # A pair before JAX 0.10, with functions that go before the operands.
            bound = equation.primitive.get_bind_params(equation.params)
            functions, params = bound if isinstance(bound, tuple) else ((), bound)
            found = equation.primitive.bind(*functions, *inputs, **params)
            outputs = found if equation.primitive.multiple_results else [found]
        values |= dict(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def _is_weight(value: Any) -> bool:
    """Whether an array goes outside the program: a single number may decide what code there is,
    and unsigned integers have no form as parameters."""
    return bool(np.size(value) > 1 and np.asarray(value).dtype.kind != "u")


def _exported(closed: Any, leaves: Sequence[Any]) -> Any:
    """The program, which takes the weights first."""
    weights = [one for one in closed.consts if _is_weight(one)]

    def program(given: Sequence[Any], *arguments: Any) -> list[Any]:
        rest = iter(given)
        consts = [next(rest) if _is_weight(one) else one for one in closed.consts]
        return _written_out(closed.replace(consts=consts), arguments)

    shapes = [jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.result_type(x)) for x in weights]
    return export.export(jax.jit(program), platforms=["cpu"])(shapes, *leaves)


def _array(value: Any) -> NDArray[Any]:
    return np.asarray(
        value if isinstance(value, jax.Array | np.ndarray) else jax.numpy.asarray(value)
    )


def _taken(result: NDArray[Any]) -> Any:
    """A result as an array of JAX, of the same memory where DLPack knows its type. (`device_put`
    with `may_alias` does not keep the memory alive.)"""
    if result.dtype.isbuiltin != 1 or result.dtype.kind == "b":
        return jax.numpy.array(result)
    return jax.dlpack.from_dlpack(result)


def _input(array: NDArray[Any], path: Path) -> str:
    path.write_bytes(array.tobytes())
    return f"{ArgumentType(element_type_of(array.dtype), array.shape)}=@{path}"


def _write_weights(weights: Mapping[str, NDArray[Any]], path: Path) -> None:
    index = ParameterIndex()
    for name, array in weights.items():
        index.add_buffer(name, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    if weights:
        index.create_archive_file(str(path))


def _name(function: Any) -> str:
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__name__", "function"))


def _write_tree(tree: Any) -> str:
    try:
        return base64.b64encode(tree.serialize_using_proto()).decode()
    except ValueError as error:
        raise UserError(
            "arguments and results must be arrays, or tuples, lists and dictionaries of them: "
            f"{error}"
        ) from error


def _read_tree(text: str) -> Any:
    registry = jax.tree_util.default_registry
    return jax.tree_util.PyTreeDef.deserialize_using_proto(registry, base64.b64decode(text))

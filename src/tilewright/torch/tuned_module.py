"""A tuned program called on PyTorch's tensors, with the weights of a module."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree as pytree

from tilewright.argument import dtype_of
from tilewright.errors import UserError
from tilewright.files import read_text
from tilewright.ir.fx_import import ELEMENT_TYPES, as_bytes, write_weights
from tilewright.ir.importing import PARAMETER_SCOPE, WEIGHTS_NAME
from tilewright.torch.exporting import CallingForm
from tilewright.tuned import TunedProgram
from tilewright.tuning.result import TuneResult

CALLING_FORM = "torch.json"
"""In a result folder: how PyTorch calls the program."""

# NumPy's types of tensors' elements; the compiler's integers have no sign, PyTorch's bytes none.
_DTYPES = {kind: dtype_of(name) for kind, name in ELEMENT_TYPES.items()} | {
    torch.uint8: np.dtype(np.uint8)
}
_UNKNOWN_TO_NUMPY = {
    dtype: (np.dtype(f"i{dtype.itemsize}"), kind)
    for kind, dtype in _DTYPES.items()
    if dtype.isbuiltin != 1
}


class TunedModule(torch.nn.Module):  # type: ignore[misc]
    """A module whose forward is a tuned program. It computes no gradients.

    The weights are the tensors that it was made with, used where they lie; a change of theirs, in
    place, counts from the next call on. Arguments that lie row by row at addresses that are
    multiples of 64, as PyTorch's own do, are not copied, nor are results.

    result: what tuning found. folder: where it is. copied: how many arguments of the last call were
    copied.

    Args:
        folder: of `tilewright.torch.tune`.
        weights: by name, instead of those of the folder.
        threads: how many it runs on; by default as measured to be the fastest way.

    Raises:
        UserError: the folder is none of a module, or a weight is missing.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        weights: Mapping[str, torch.Tensor] | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.form = read_form(self.folder)
        self._weights = {} if weights is None else self._chosen(weights)
        # The module's own tensors: neither parameters of this one nor moved with it.
        self._versions = self._read_versions()
        memory = self._memory() if self._weights else None
        self.program = TunedProgram(self.folder, memory, threads=threads)
        self._argument_tree = pytree.treespec_loads(self.form.argument_tree)
        self._result_tree = pytree.treespec_loads(self.form.result_tree)
        self._result_types: list[torch.dtype | None] = [
            getattr(torch, one, None) if isinstance(one, str) else None for one in self.form.results
        ]

    @property
    def result(self) -> TuneResult:
        """What tuning found."""
        return self.program.result

    @property
    def copied(self) -> int:
        """How many arguments of the last call the runtime could not use where they lay."""
        return self.program.copied

    def set_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Compute with other tensors from now on, such as another module's `state_dict()`.

        Args:
            weights: by the names that the module's have, with their sizes; more do not matter.

        Raises:
            UserError: one is missing, or of another size or type.
        """
        self._weights = self._chosen(weights)
        self._reload()

    def use_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Compute with some other tensors from now on; nothing is done where they are the same.

        Args:
            weights: by name, of the sizes that those have which they take the place of.
        """
        if any(self._weights.get(name) is not one for name, one in weights.items()):
            self.set_weights({**self._weights, **weights})

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Copy the result with the weights as they are now; `load` reads it.

        Args:
            folder: a new one.

        Returns:
            The folder.

        Raises:
            UserError: it is there already.
        """
        path = Path(folder)
        if path.exists():
            raise UserError(f"{path}: it is there already; give a new folder")
        shutil.copytree(self.folder, path)
        if self._weights:
            (path / WEIGHTS_NAME).unlink(missing_ok=True)
            write_weights(self._weights, path / WEIGHTS_NAME)
        return path

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program.

        Args:
            args: as the module takes them.
            kwargs: as it was exported with.

        Returns:
            What the module returns.

        Raises:
            UserError: an argument is not what the program takes, or needs a gradient.
        """
        leaves, tree = pytree.tree_flatten((args, kwargs))
        if tree != self._argument_tree:
            raise UserError(
                f"{self.folder}: the module was tuned for arguments "
                f"{_line(self._argument_tree)}, these are {_line(tree)}"
            )
        given = []
        for place, (leaf, form) in enumerate(zip(leaves, self.form.arguments, strict=True)):
            if form is None:
                given.append(leaf)
            elif form["value"] != leaf:
                raise UserError(
                    f"argument {place + 1}: the module was tuned for {form['value']!r}, "
                    f"this is {leaf!r}"
                )
        found = iter(self.run(given))
        results = [
            form["value"] if isinstance(form, Mapping) else next(found)
            for form in self.form.results
        ]
        return pytree.tree_unflatten(results, self._result_tree)

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the program on the tensors and numbers that it takes.

        Args:
            arguments: in the order of the module's.

        Returns:
            Its results, in the order of the module's.

        Raises:
            UserError: an argument is not what the program takes, or needs a gradient.
        """
        if self._versions and self._versions != self._read_versions():
            self._reload()
        results = self.program.call([tensor_argument(one, i) for i, one in enumerate(arguments)])
        types = [
            one
            for one, form in zip(self._result_types, self.form.results, strict=True)
            if isinstance(form, str)
        ]
        return [_taken(one, kind) for one, kind in zip(results, types, strict=True)]

    def _chosen(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        missing = [name for name in self.form.weights if name not in weights]
        if missing:
            raise UserError(f"{self.folder}: no weight '{missing[0]}' is given")
        return {name: weights[name] for name in self.form.weights}

    def _memory(self) -> dict[tuple[str, str], NDArray[Any]]:
        return {(PARAMETER_SCOPE, name): as_bytes(one) for name, one in self._weights.items()}

    def _read_versions(self) -> list[int]:
        """How often each was written to; what inference mode has made is not counted."""
        return [0 if one.is_inference() else one._version for one in self._weights.values()]

    def _reload(self) -> None:
        self._versions = self._read_versions()
        self.program.reload(self._memory())


def load(
    folder: str | os.PathLike[str],
    weights: Mapping[str, torch.Tensor] | None = None,
    *,
    threads: int | None = None,
) -> TunedModule:
    """Load a tuned module.

    Args:
        folder: of `tune` or `TunedModule.save`.
        weights: such as a module's `state_dict()`; by default those of the folder.
        threads: how many it runs on; by default as measured to be the fastest way.

    Returns:
        A callable on tensors.

    Raises:
        UserError: the folder is none of a module, or a weight is missing.
    """
    return TunedModule(folder, weights, threads=threads)


def read_form(folder: Path) -> CallingForm:
    """How the program of a folder is called.

    Args:
        folder: of `tune`.

    Raises:
        UserError: it is none of a module.
    """
    path = folder / CALLING_FORM
    if not path.is_file():
        raise UserError(
            f"{folder}: no result of tilewright.torch.tune: it has no {CALLING_FORM} "
            "(tilewright.load takes every result, on arrays of NumPy's)"
        )
    try:
        return CallingForm.from_json(read_text(path, "calling form"))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); tune the module again") from error


def tensor_argument(
    argument: Any, place: int
) -> int | float | tuple[NDArray[Any], Sequence[int], np.dtype[Any]]:
    """An argument as the program takes it, without a copy where that goes.

    Args:
        argument: a tensor or a number.
        place: its place, for messages.

    Raises:
        UserError: it is neither, or a tensor that cannot be passed.
    """
    if isinstance(argument, int | float):
        return argument
    if not isinstance(argument, torch.Tensor):
        raise UserError(f"argument {place + 1}: {type(argument).__name__} is no tensor or number")
    if argument.requires_grad and torch.is_grad_enabled():
        raise UserError(
            f"argument {place + 1} needs a gradient, which a tuned program has none of; call it "
            "under torch.no_grad()"
        )
    dtype = _DTYPES.get(argument.dtype)
    if dtype is None or argument.device.type != "cpu" or argument.layout != torch.strided:
        raise UserError(
            f"argument {place + 1} is {argument.layout} of {argument.dtype} on {argument.device}; "
            "tuned programs take strided tensors of plain types on the CPU"
        )
    return as_bytes(argument), argument.shape, dtype


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor as an array of its shape and element type.

    Args:
        tensor: on the host.
    """
    array: NDArray[Any] = as_bytes(tensor).view(_DTYPES[tensor.dtype]).reshape(tensor.shape)
    return array


def _line(tree: Any) -> str:
    return " ".join(str(tree).split())


def _taken(result: Any, dtype: torch.dtype | None) -> Any:
    """A result as the module returns it: of the same memory, unless its type differs."""
    if dtype is None or not isinstance(result, np.ndarray):
        return result
    bits = _UNKNOWN_TO_NUMPY.get(result.dtype)
    if bits is None:
        tensor = torch.from_numpy(result)
    else:
        tensor = torch.from_numpy(result.view(bits[0])).view(bits[1])
    # IREE computes f64 in f32 where it is told to, and has no unsigned results.
    return tensor if tensor.dtype == dtype else tensor.to(dtype)

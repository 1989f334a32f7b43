"""Tuning modules of PyTorch, and finding what has been tuned."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tilewright import api, scratch
from tilewright.argument import ArgumentType, element_type_of
from tilewright.errors import UserError
from tilewright.files import user_folder_file, write_whole
from tilewright.ir.fx_import import import_exported, write_weights
from tilewright.ir.importing import PROGRAM_NAME, WEIGHTS_NAME
from tilewright.measure.measurement_key import compare_measured, measurement_key, why_other
from tilewright.target import parse_target
from tilewright.torch.exporting import (
    CallingForm,
    calling_form,
    computes_f64,
    evaluation,
    export,
    weights_of,
)
from tilewright.torch.tuned_module import (
    CALLING_FORM,
    TunedModule,
    as_array,
    read_form,
    tensor_argument,
)
from tilewright.tuned import check_results, f64_kept
from tilewright.tuning.outputs import MANIFEST, check_writable, read_manifest
from tilewright.tuning.recorded import read_measured_on


def tune(
    module: torch.nn.Module | torch.export.ExportedProgram,
    example_inputs: torch.Tensor | Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    output: str | os.PathLike[str] | None = None,
    **options: Any,
) -> TunedModule:
    """Tune a module for this machine.

    The module is exported in its evaluation mode, its weights stay outside the program: the result
    is right for any values of theirs. The untuned program's outputs are compared with the module's
    own, and those of the tuned one with the untuned one's.

    Args:
        module: on the CPU; or a program of `torch.export`.
        example_inputs: arguments of a call, or the only one: they are what it is measured on.
        kwargs: arguments by name.
        dynamic_shapes: as `torch.export.export` takes it; tuned for the sizes of the examples.
        output: the result folder; by default one of the user's data directory, named by the
            program's digest. `torch.compile(module, backend="tilewright")` finds either.
        options: of `tilewright.tune`: effort, time_limit, threads and so on.

    Returns:
        The tuned module, with the module's own weights; `result` says what was found.

    Raises:
        UserError: the module cannot be exported or compiled, or an option is wrong.
    """
    inputs = (
        (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    )
    program = export(module, inputs, kwargs, dynamic_shapes=dynamic_shapes)
    form = calling_form(program)
    folder = Path(output) if output is not None else _index(form.digest).with_suffix("")
    check_writable(folder)
    leaves = pytree.tree_leaves((inputs, dict(kwargs or {})))
    given = [leaf for leaf, one in zip(leaves, form.arguments, strict=True) if one is None]
    with scratch.folder() as work:
        imported = work / _name(module)
        imported.mkdir()
        weights = import_exported(program, imported / PROGRAM_NAME)
        write_weights(weights, imported / WEIGHTS_NAME)
        inputs_given = _inputs(given, work)
        with f64_kept(options, computes_f64(program), _name(module)) as options:
            api.tune(imported, inputs=inputs_given, output=folder, **options)
    (folder / CALLING_FORM).write_text(form.to_json())
    tuned = TunedModule(folder, weights_of(program))
    try:
        _check(module, inputs, dict(kwargs or {}), tuned)
    except UserError:
        # So that nothing finds it: without its form it is nobody's result.
        (folder / CALLING_FORM).unlink()
        raise
    remember(form.digest, folder)
    return tuned


def _name(module: Any) -> str:
    name = type(module).__name__
    return name if name.isidentifier() else "module"


def _inputs(given: Sequence[Any], work: Path) -> list[str]:
    """The example inputs as options give them."""
    texts = []
    for place, one in enumerate(given):
        plain = one.detach() if isinstance(one, torch.Tensor) else one
        argument = tensor_argument(plain, place)
        if isinstance(argument, int | float):
            texts.append(str(argument))
            continue
        data, shape, dtype = argument
        path = work / f"input{place}.bin"
        path.write_bytes(data.tobytes())
        texts.append(f"{ArgumentType(element_type_of(dtype), tuple(shape))}=@{path}")
    return texts


def _check(
    module: Any, inputs: tuple[Any, ...], kwargs: dict[str, Any], tuned: TunedModule
) -> None:
    """That the program computes what PyTorch does. Raises UserError."""
    eager = module.module() if isinstance(module, torch.export.ExportedProgram) else module
    with torch.no_grad(), evaluation(eager):
        expected = pytree.tree_leaves(eager(*inputs, **kwargs))
        found = pytree.tree_leaves(tuned(*inputs, **kwargs))
    pairs = zip(found, expected, strict=True)
    tensors = [pair for pair in pairs if isinstance(pair[1], torch.Tensor)]
    arrays = [[as_array(one) for one in pair] for pair in tensors]
    check_results([a for a, _ in arrays], [b for _, b in arrays], "PyTorch", tuned.folder)


def _index(digest: str) -> Path:
    """The file that says where a program's result is."""
    return user_folder_file("data", f"torch/{digest[:32]}.json")


def remember(digest: str, folder: Path) -> None:
    """Have `find` know a result.

    Args:
        digest: of its program.
        folder: the result.
    """
    path = _index(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps({"folder": str(folder.absolute())}) + "\n").encode())


@dataclass(frozen=True)
class Found:
    """What there is for a program: a folder, or why there is none that can be used."""

    folder: Path | None
    why: str = ""


def find(form: CallingForm, places: Sequence[Path] = ()) -> Found:
    """A result for a program, made on such a machine with this version of IREE.

    Args:
        form: of the program.
        places: result folders, or folders of them, that are looked into first; then comes what was
            tuned before by this user.

    Returns:
        Its folder; where there is none, what was tuned that comes nearest, and what differs.
    """
    candidates = [p for place in places for p in (place, *sorted(place.glob("*/")))]
    index = _index(form.digest)
    others = sorted(index.parent.glob("*.json"), key=lambda path: path != index)
    for path in others:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            candidates.append(Path(json.loads(path.read_text())["folder"]))
    elsewhere = alike = damaged = ""
    for folder in dict.fromkeys(candidates):
        if not ((folder / CALLING_FORM).is_file() and (folder / MANIFEST).is_file()):
            continue
        try:
            stored = read_form(folder)
        except UserError as error:
            damaged = damaged or str(error)
            continue
        if stored.digest == form.digest:
            differing = _why_not_here(folder)
            if not differing:
                return Found(folder)
            elsewhere = f"what was tuned for it is of another machine or IREE: {differing}"
            elsewhere = f"{elsewhere} ({folder})"
        elif stored.likeness == form.likeness and stored.types:
            sizes = f"arguments {_words(stored.types)}, these are {_words(form.types)}"
            if stored.types == form.types:
                sizes = "weights of other sizes or types"
            alike = alike or f"the same operations were tuned for {sizes} ({folder})"
    return Found(None, elsewhere or alike or damaged or "it was not tuned")


def _words(types: Sequence[str]) -> str:
    return ", ".join(types) or "none"


def _why_not_here(folder: Path) -> str:
    """What of the machine and the compiler is another now, on however many threads; '' if nothing
    is."""
    now = measurement_key(parse_target("cpu"))
    made = read_measured_on(read_manifest(folder))
    return why_other(compare_measured(made, now, apart_from=("threads",)))

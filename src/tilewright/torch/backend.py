"""`torch.compile(model, backend="tilewright")`: what has been tuned, and PyTorch for the rest."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilewright.errors import UnknownNameError, UserError
from tilewright.torch.exporting import calling_form, export, weights_of
from tilewright.torch.tuned_module import TunedModule, read_form
from tilewright.torch.tuning import find, tune

NAME = "tilewright"
_OPTIONS = ("results", "tune")


def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
    """The backend: called by torch.compile with a graph.

    A graph is looked up when it is first called: by its digest among the results that options name,
    and those of `tilewright.torch.tune` and of earlier calls. One that is not found runs as PyTorch
    runs it, with a warning that says so; nothing is tuned unless `options` say `tune`.

    Args:
        graph: of torch operations; weights are among its inputs.
        inputs: examples of these.
        given: `options` of torch.compile: `results`, a result folder or a folder of them; `tune`,
            True or a mapping of options of `tilewright.tune`.

    Returns:
        What runs in the graph's place.

    Raises:
        UserError: an option is not one of these.
    """
    options = dict(given.get("options") or {})
    for name in options:
        if name not in _OPTIONS:
            raise UnknownNameError("option", name, _OPTIONS, f"the backend {NAME}")
    return _Looked(graph, options)


@dataclass(frozen=True)
class _Found:
    """A result for a graph. Of the graph's inputs `weights` are the places by the names that the
    result has for them, `order` those of the others in the order that its program takes them."""

    module: TunedModule
    weights: Mapping[str, int]
    order: Sequence[int]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        self.module.use_weights({name: inputs[place] for name, place in self.weights.items()})
        return self.module.run([inputs[place] for place in self.order])


class _Looked:
    """A graph, looked up when it is first called: one with open sizes for each that there are."""

    def __init__(self, graph: torch.fx.GraphModule, options: Mapping[str, Any]) -> None:
        self._graph = graph
        self._options = options
        self._found: dict[tuple[Any, ...], _Found | None] = {}
        self._told: set[str] = set()

    def __call__(self, *inputs: Any) -> Any:
        if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in inputs):
            self._tell("it is called where gradients are wanted; use torch.no_grad()")
            return self._graph(*inputs)
        if torch.is_autocast_enabled("cpu"):
            self._tell("it is called under torch.autocast, which only PyTorch's own code looks at")
            return self._graph(*inputs)
        open_sizes = any(isinstance(x, int) for x in inputs)
        sizes = tuple(x if isinstance(x, int) else x.shape for x in inputs) if open_sizes else ()
        if sizes not in self._found:
            self._found[sizes] = None
            try:
                self._found[sizes] = self._look(inputs)
            except UserError as error:
                self._tell(str(error))
        found = self._found[sizes]
        return self._graph(*inputs) if found is None else found(inputs)

    def _look(self, inputs: Sequence[Any]) -> _Found | None:
        bound = _Bound(self._graph, inputs)
        examples = tuple(inputs[place] for place in bound.open)
        program = export(bound, examples)
        form = calling_form(program)
        known = find(form, _places(self._options.get("results")))
        folder = known.folder
        wanted = self._options.get("tune")
        if folder is None and wanted:
            more = dict(wanted) if isinstance(wanted, Mapping) else {}
            folder = tune(bound, examples, **more).folder
        if folder is None:
            self._tell(
                f"{known.why}; tilewright.torch.tune tunes it as it is here (digest "
                f'{form.digest[:12]}), or torch.compile(..., options={{"tune": True}})'
            )
            return None
        stored = read_form(folder)
        if len(stored.inputs) < sum(one is None for one in stored.arguments):
            self._tell(f"the module of {folder} takes arguments that it does not use")
            return None
        # What is used first is the same in both, whatever it is called there.
        weights = weights_of(program)
        mine = dict(zip(stored.weights, form.weights, strict=True))
        module = TunedModule(folder, {name: weights[own] for name, own in mine.items()})
        pairs = dict(zip(stored.inputs, form.inputs, strict=True))
        return _Found(
            module,
            {name: bound.places[own] for name, own in mine.items() if own in bound.places},
            [bound.open[pairs[place]] for place in sorted(pairs)],
        )

    def _tell(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            warnings.warn(f"a graph runs as PyTorch runs it: {why}", stacklevel=4)


class _Bound(torch.nn.Module):  # type: ignore[misc]
    """A graph with those of its inputs that are weights bound: a module as it was before. Numbers
    are bound, too: what is tuned is for them.

    open: places of the other inputs. places: of those that are weights, by the name here.
    """

    def __init__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.graph_module = graph
        self.open: list[int] = []
        self.places: dict[str, int] = {}
        self.numbers: dict[int, Any] = {}
        for place, one in enumerate(inputs):
            name = f"w{place}"
            if not isinstance(one, torch.Tensor):
                self.numbers[place] = one
            elif isinstance(one, torch.nn.Parameter):
                self.register_parameter(name, one)
                self.places[name] = place
            elif hasattr(one, "_dynamo_static_input_type"):
                # Dynamo marks so what stays where it is: buffers of modules.
                self.register_buffer(name, one)
                self.places[name] = place
            else:
                self.open.append(place)

    def forward(self, *given: Any) -> Any:
        inputs = self.numbers | dict(zip(self.open, given, strict=True))
        inputs |= {place: getattr(self, name) for name, place in self.places.items()}
        return self.graph_module(*(inputs[place] for place in range(len(inputs))))


def _places(given: Any) -> list[Path]:
    if given is None:
        return []
    several = [given] if isinstance(given, str | os.PathLike) else list(given)
    for one in several:
        if not Path(one).is_dir():
            raise UserError(f"option results: there is no folder {one}")
    return [Path(one) for one in several]


def register() -> None:
    """Have torch.compile know the backend, where the package's entry point is not installed."""
    from torch._dynamo import list_backends, register_backend

    if NAME not in list_backends(exclude_tags=()):
        register_backend(backend, name=NAME)

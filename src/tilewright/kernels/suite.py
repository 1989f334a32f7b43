"""Which operations a user asked for: kinds, shapes, element types, layouts and variants together.

An option that some kinds have no use for (a dimension, a layout or a variant that they do not have)
leaves those kinds out, unless they were named with `--kind`: then it does not concern them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.errors import UnknownNameError, UserError
from tilewright.kernels.kinds import KINDS, find_kinds
from tilewright.kernels.operation import (
    ElementTypes,
    Operation,
    OperationKind,
    make_operation,
    parse_types,
)
from tilewright.kernels.shapes import Shape, SizeChoices, parse_sizes, predefined

ALL = "all"
PARALLEL, NO_SPLIT = "parallel", "none"
# As IREE's first dispatch profiler prints it.
_NOT_SPLIT = "N/A"
SPLIT_K_MODES = (PARALLEL, NO_SPLIT, _NOT_SPLIT)
# Behind the kind of a product that is split along k.
_SPLIT = "_splitk"


@dataclass(frozen=True)
class SuiteSelection:
    """What was asked for; empty: nothing was said of it.

    kinds: named ones. sizes: values of dimensions. types, layouts, variants: those wanted; a layout
    of () is row-major, of None every one.
    """

    kinds: tuple[OperationKind, ...] = ()
    sizes: tuple[SizeChoices, ...] = ()
    types: tuple[ElementTypes, ...] = ()
    layouts: tuple[str, ...] | None = ()
    variants: tuple[str, ...] = ()

    def accepts(self, kind: OperationKind) -> bool:
        """Whether operations of the kind are wanted at all.

        Args:
            kind: any.
        """
        if self.kinds:
            return kind in self.kinds
        return (
            all(sizes.fits(kind) for sizes in self.sizes)
            and (not self.layouts or bool(set(self.layouts) & set(kind.layouts)))
            and (not self.variants or any(v and kind.has_variant(v) for v in self.variants))
            and (not self.types or any(self._types(kind, v) for v in kind.variants))
        )

    def _types(self, kind: OperationKind, variant: str) -> tuple[ElementTypes, ...]:
        have = kind.types(variant)
        return tuple(t for t in self.types if t in have) if self.types else have

    def contains(self, operation: Operation) -> bool:
        """Whether an operation that is there already is one of those asked for.

        Args:
            operation: any.
        """
        kind = operation.kind
        if not self.accepts(kind):
            return False
        for sizes in self.sizes:
            if sizes.fits(kind):
                given = {operation[d] for d in sizes.dimensions}
                if len(given) > 1 or given.isdisjoint(sizes.values):
                    return False
        return not self.types or operation.types in self.types


def make_selection(
    kinds: str | None,
    sizes: Mapping[str, tuple[tuple[str, ...], str]],
    types: str | None = None,
    layouts: str | None = None,
    variants: str | None = None,
) -> SuiteSelection:
    """A selection from the texts of options.

    Args:
        kinds: names separated by commas; None or `all`: nothing is said of them.
        sizes: by option, its dimensions and its text.
        types: as `kinds`.
        layouts: as `kinds`, but that None is row-major.
        variants: as `kinds`.

    Returns:
        What was asked for.

    Raises:
        UserError: something does not exist, or no kind has all of it.
    """
    named = find_kinds(_words(kinds, "--kind"))
    selection = SuiteSelection(
        named,
        tuple(SizeChoices(o, dims, parse_sizes(text, o)) for o, (dims, text) in sizes.items()),
        tuple(map(parse_types, _words(types, "--types"))),
        None if layouts == ALL else _words(layouts, "--layouts"),
        _words(variants, "--variants"),
    )
    _check(selection)
    return selection


def split_kinds(
    kinds: str | None, mode: str | None, slices: str | None, option: str = "--split-k-slices"
) -> tuple[str | None, str | None]:
    """What `--split-k-mode` and `--split-k-slices` make of the kinds that are asked for: products
    and batches of them, in one piece (mode none, one slice) and in slices.

    Args:
        kinds: of `--kind`.
        mode: `parallel`, `none` (or `N/A`), or None where only the slices tell.
        slices: numbers of slices.
        option: what the slices were written for, for messages.

    Returns:
        The kinds, and the numbers of slices that are more than one; None where nothing was said.

    Raises:
        UserError: other kinds are named, or mode and slices contradict each other.
    """
    if mode is None and slices is None:
        return kinds, None
    if mode is not None and mode not in SPLIT_K_MODES:
        raise UnknownNameError("mode", mode, SPLIT_K_MODES, "--split-k-mode")
    splittable = [name for name in KINDS if f"{name}{_SPLIT}" in KINDS]
    named = [name.removesuffix(_SPLIT) for name in _words(kinds, "--kind")] or splittable
    for name in named:
        if name not in splittable:
            raise UserError(
                f"{option}: {name} cannot be split along k (allowed: {', '.join(splittable)})"
            )
    # Without numbers, those of the predefined shapes.
    counts = parse_sizes(slices, option) if slices is not None else ()
    several = [count for count in counts if count > 1]
    if (mode == PARALLEL and 1 in counts) or (mode in (NO_SPLIT, _NOT_SPLIT) and several):
        raise UserError(f"{option}: '{slices}' slices are not possible with --split-k-mode {mode}")
    in_slices = bool(several) or mode == PARALLEL
    whole = 1 in counts or mode in (NO_SPLIT, _NOT_SPLIT)
    found = [n for name in dict.fromkeys(named) for n, wanted in (
        (name, whole), (f"{name}{_SPLIT}", in_slices)) if wanted]  # fmt: skip
    return ",".join(found), ",".join(map(str, several)) or None


def _words(text: str | None, option: str) -> tuple[str, ...]:
    """The names of a list; none of what is left out, or of `all`."""
    if text in (None, ALL):
        return ()
    parts = tuple(part.strip() for part in str(text).split(","))
    if not all(parts):
        raise UserError(f"{option}: '{text}': a name is missing; write names separated by commas")
    return parts


def _check(selection: SuiteSelection) -> None:
    candidates = selection.kinds or tuple(KINDS.values())
    names = ", ".join(kind.name for kind in candidates)
    for sizes in selection.sizes:
        if not any(sizes.fits(kind) for kind in candidates):
            raise UserError(f"{sizes.option}: none of the kinds has that dimension ({names})")
    for types in selection.types:
        _check_names(
            "element type",
            "--types",
            (types.name,),
            candidates,
            lambda kind: [t.name for v in kind.variants for t in kind.types(v)],
        )
    wanted = selection.layouts or ()
    _check_names("layout", "--layouts", wanted, candidates, lambda kind: (ALL, *kind.layouts))
    if selection.variants and not any(any(kind.variants) for kind in candidates):
        raise UserError(f"--variants: none of the kinds has variants ({names})")
    _check_names(
        "variant",
        "--variants",
        selection.variants,
        candidates,
        lambda kind: [
            v for v in (*kind.variants, *selection.variants) if v and kind.has_variant(v)
        ],
    )
    if not any(map(selection.accepts, candidates)):
        raise UserError(
            "no kind has all the dimensions, types, layouts and variants asked for; "
            "`tilewright profile generate --help` lists the kinds, or name one with --kind"
        )


def _check_names(
    what: str,
    option: str,
    wanted: Sequence[str],
    candidates: Sequence[OperationKind],
    names_of: Callable[[OperationKind], Iterable[str]],
) -> None:
    """Every name is one of some kind, and some name is one of the candidates."""
    known = {name for kind in KINDS.values() for name in names_of(kind)}
    for name in wanted:
        if name not in known:
            raise UnknownNameError(what, name, known, option)
    own = {name for kind in candidates for name in names_of(kind)}
    if wanted and own.isdisjoint(wanted):
        where = ", ".join(kind.name for kind in candidates)
        raise UnknownNameError(what, wanted[0], own, f"{option}: {where}")


@dataclass
class Suite:
    """Operations, each once, and remarks on what was left out."""

    operations: list[Operation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def make_suite(selection: SuiteSelection, shapes: Sequence[Shape] | None = None) -> Suite:
    """The operations of a selection.

    Args:
        selection: what was asked for; sizes that it gives for a dimension take the place of that
            dimension's in every shape.
        shapes: the user's own, in place of the predefined ones.

    Returns:
        The operations, and notes on impossible ones where others of their kind are possible.

    Raises:
        UserError: a shape is impossible and its kind has no other, or nothing is left.
    """
    suite = Suite()
    found: dict[str, Operation] = {}
    if shapes is None:
        shapes = predefined(KINDS.values())
    problems: dict[str, list[str]] = {}
    for shape in shapes:
        if not selection.accepts(shape.kind):
            continue
        for dims in _with_sizes(shape, selection):
            for types, layout, variant in _forms(shape, selection):
                try:
                    operation = make_operation(shape.kind, dims, types, layout, variant)
                except UserError as error:
                    place = f"{shape.where}: " if shape.where else ""
                    problems.setdefault(shape.kind.name, []).append(f"{place}{error}")
                    continue
                found[operation.name] = operation
    suite.operations = list(found.values())
    made = {operation.kind.name for operation in suite.operations}
    for kind, reasons in problems.items():
        if kind not in made:
            raise UserError(reasons[0])
        suite.notes += [f"left out: {reason}" for reason in dict.fromkeys(reasons)]
    if not suite.operations:
        raise UserError("no operation has the types, layouts and variants asked for")
    return suite


def _with_sizes(shape: Shape, selection: SuiteSelection) -> Iterator[dict[str, int]]:
    """The shape's dimensions with every combination of the sizes given."""
    fitting = [sizes for sizes in selection.sizes if sizes.fits(shape.kind)]
    for values in itertools.product(*(sizes.values for sizes in fitting)):
        dims = dict(shape.dims)
        for sizes, value in zip(fitting, values, strict=True):
            dims.update(dict.fromkeys(sizes.dimensions, value))
        yield dims


def _forms(shape: Shape, selection: SuiteSelection) -> Iterator[tuple[ElementTypes, str, str]]:
    """Element types, layout and variant: what the shape says, else what is asked for."""
    kind = shape.kind
    if shape.layout:
        layouts: Sequence[str] = [shape.layout]
    elif selection.layouts is None:
        layouts = kind.layouts
    else:
        layouts = [w for w in selection.layouts if w in kind.layouts] or kind.layouts[:1]
    variants = _shape_variants(shape, selection)
    have = {variant: kind.types(variant) for variant in variants}
    if shape.types is not None and all(shape.types not in types for types in have.values()):
        names = {t.name for types in have.values() for t in types}
        place = f"{shape.where}: {kind.name}" if shape.where else kind.name
        raise UnknownNameError("element type", shape.types.name, names, place)
    for variant in variants:
        wanted = [t for t in have[variant] if shape.types in (None, t)]
        if selection.types:
            wanted = [t for t in wanted if t in selection.types]
        yield from itertools.product(wanted, layouts, [variant])


def _shape_variants(shape: Shape, selection: SuiteSelection) -> Sequence[str]:
    if shape.variant:
        return [shape.variant]
    chosen = [v for v in selection.variants if v and shape.kind.has_variant(v)]
    return chosen or shape.kind.variants

"""Whole-program compile choices: those with a name, and those that the user gives as flags.

A variant changes which dispatches there are and in which layout they compute, so none is best for
all programs: on one machine (AVX-512, 2 threads) a ResNet-50 took 139 ms by default, 37 with
im2col and 28 with im2col+data-tiling, a MobileNetV3 1.1 by default and 3.2 with im2col, whose
depthwise convolutions it hurts. They are measured, not guessed; what is guessed, and only where it
is certain, is that a variant cannot change a program that has none of the ops it is about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import UnknownNameError
from tilewright.tuning.effort import EFFORTS, Effort
from tilewright.tuning.parse import VariantChoice

PREPROCESSING_FLAG = "--iree-preprocessing-transform-spec-filename"

_DATA_TILING = ("--iree-opt-data-tiling",)
_UKERNELS = (*_DATA_TILING, "--iree-llvmcpu-enable-ukernels=all")
_O3 = ("--iree-opt-level=O3",)
_IM2COL = ("--iree-global-opt-use-im2col-for-convs",)
_FUSE_PADDING = ("--iree-dispatch-creation-enable-fuse-padding-into-linalg-consumer-ops",)
_TRANSPOSES = ("--iree-opt-aggressively-propagate-transposes",)
_GENERALIZE = ("--iree-opt-generalize-matmul",)

# Kinds of workload (tilewright.workload.KINDS) of an untuned program that a variant is about. With
# all dimensions but one of size one, and where its stride stays in its map, IREE's default makes
# a contraction a plain reduction.
_CONTRACTIONS = frozenset({"contraction", "mmt4d", "reduction", "convolution"})
_CONVOLUTIONS = frozenset({"convolution", "grouped_convolution", "depthwise_convolution"})
_STRIDED = frozenset({*_CONVOLUTIONS, "reduction"})
_PADDED = frozenset({*_CONVOLUTIONS, "pooling"})


@dataclass(frozen=True)
class Variant:
    """A set of flags for the whole program, with a name and a line on what it does.

    `about`: kinds of workload, at least one of which a program must have for the variant to make
    a difference; empty: any program.
    """

    name: str
    flags: tuple[str, ...]
    note: str = ""
    about: frozenset[str] = frozenset()


BUILT_IN: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("default", (), "the compiler's own choices"),
        Variant(
            "data-tiling",
            _DATA_TILING,
            "operands of matrix products are packed into the layout their tiles are read in",
            _CONTRACTIONS,
        ),
        Variant(
            "ukernels",
            _UKERNELS,
            "data tiling, with IREE's hand-written kernels for the packed products",
            _CONTRACTIONS,
        ),
        Variant("o3", _O3, "all of IREE's optimisations, aggressive fusion among them"),
        Variant(
            "im2col",
            _IM2COL,
            "convolutions become matrix products: their input windows are copied into a matrix",
            _STRIDED,
        ),
        Variant(
            "fuse-padding",
            _FUSE_PADDING,
            "padding is computed in the dispatch that reads it, not written to memory first",
            _PADDED,
        ),
        Variant(
            "transposes",
            _TRANSPOSES,
            "transposes are moved through more ops, to where they cancel or can be fused",
            _CONTRACTIONS,
        ),
        Variant(
            "generalize-matmul",
            _GENERALIZE,
            "matrix products are generic ops early on, which more ops can be fused with",
            _CONTRACTIONS,
        ),
        Variant(
            "im2col+data-tiling",
            (*_IM2COL, *_DATA_TILING),
            "convolutions become matrix products of packed operands",
            _STRIDED,
        ),
        Variant(
            "im2col+ukernels",
            (*_IM2COL, *_UKERNELS),
            "convolutions become matrix products, computed by IREE's hand-written kernels",
            _STRIDED,
        ),
        Variant(
            "im2col+o3",
            (*_IM2COL, *_O3),
            "convolutions become matrix products, with all optimisations",
            _STRIDED,
        ),
        Variant(
            "o3+data-tiling",
            (*_O3, *_DATA_TILING),
            "all optimisations, matrix products of packed operands",
            _CONTRACTIONS,
        ),
        Variant(
            "im2col+o3+data-tiling",
            (*_IM2COL, *_O3, *_DATA_TILING),
            "all optimisations, convolutions as matrix products of packed operands",
            _STRIDED,
        ),
        Variant(
            "fuse-padding+data-tiling",
            (*_FUSE_PADDING, *_DATA_TILING),
            "padding is fused, matrix products have packed operands",
            _PADDED,
        ),
    )
}
DEFAULT_VARIANT = BUILT_IN["default"]


def im2col_choices(specs: Mapping[str, Path], effort: str | Effort) -> list[Variant]:
    """Variants that make only some convolutions matrix products, each by a spec of its own.

    `specs`: files by the name of the set of convolutions, as `spec.preprocessing.choices` names
    them. The quick effort tries each with data tiling only, the others without as well.
    """
    name = effort if isinstance(effort, str) else effort.name
    extras = (
        {"+data-tiling": _DATA_TILING}
        if name == "quick"
        else {"": (), "+data-tiling": _DATA_TILING}
    )
    return [
        Variant(
            f"im2col-{chosen}{suffix}",
            (f"{PREPROCESSING_FLAG}={path}", *flags),
            f"the convolutions of the set '{chosen}' become matrix products, the others do not",
            _STRIDED,
        )
        for suffix, flags in extras.items()
        for chosen, path in specs.items()
    ]


def im2col_applies(kinds: Collection[str]) -> bool:
    """Whether a program whose dispatches, untuned, are of these kinds may have convolutions."""
    return not _STRIDED.isdisjoint(kinds)


def relocate_preprocessing(flags: Sequence[str], path: Path) -> tuple[str, ...]:
    """The flags with the preprocessing spec, if there is one, at another path."""
    return tuple(
        f"{PREPROCESSING_FLAG}={path}" if f.startswith(f"{PREPROCESSING_FLAG}=") else f
        for f in flags
    )


def preprocessing_spec(flags: Sequence[str]) -> Path | None:
    """The preprocessing spec that the flags name, if any."""
    found = [f.partition("=")[2] for f in flags if f.startswith(f"{PREPROCESSING_FLAG}=")]
    return Path(found[0]) if found else None


def without_preprocessing(flags: Sequence[str]) -> tuple[str, ...]:
    """Flags for what comes after preprocessing: compiling a single dispatch."""
    return tuple(f for f in flags if not f.startswith(f"{PREPROCESSING_FLAG}="))


def flags_key(flags: Sequence[str]) -> str:
    """What stands in the database for the flags that decide, besides the target's, which code is
    made: '' for none."""
    return hashlib.sha256("\n".join(flags).encode()).hexdigest()[:12] if flags else ""


def variant_of(key: str) -> str:
    """The built-in variant of a :func:`flags_key`; the key itself for flags of the user's own."""
    for variant in BUILT_IN.values():
        if flags_key(without_preprocessing(variant.flags)) == key:
            return variant.name
    return key


def variant_names() -> tuple[str, ...]:
    """The names of the built-in variants."""
    return tuple(BUILT_IN)


def default_variants(effort: str | Effort) -> list[Variant]:
    """The variants that an effort measures, the compiler's default first.

    Raises UnknownNameError for an unknown effort.
    """
    if isinstance(effort, str):
        if effort not in EFFORTS:
            raise UnknownNameError("effort", effort, EFFORTS, "--effort")
        effort = EFFORTS[effort]
    return _built_in(BUILT_IN if effort.variants is None else effort.variants)


def resolve_variants(
    choices: Sequence[VariantChoice] | None, effort: str | Effort
) -> list[Variant]:
    """The variants that the user chose, in that order; None: those of the effort.

    Raises UnknownNameError for a name without flags that is not built in.
    """
    if choices is None:
        return default_variants(effort)
    return [
        _built_in([choice.name])[0]
        if choice.flags is None
        else Variant(choice.name, choice.flags, "given by the user")
        for choice in choices
    ]


def applicable(variant: Variant, kinds: Collection[str]) -> bool:
    """Whether the variant can change a program whose dispatches, untuned, are of these kinds."""
    return not variant.about or not variant.about.isdisjoint(kinds)


def _built_in(names: Iterable[str]) -> list[Variant]:
    for name in names:
        if name not in BUILT_IN:
            raise UnknownNameError("variant", name, BUILT_IN, "--variants")
    return [BUILT_IN[name] for name in names]

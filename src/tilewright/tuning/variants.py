"""Whole-program compile choices: those with a name, and those that the user gives as flags.

A variant changes which dispatches there are and in which layout they compute, so none is best for
all programs: on one machine (AVX-512, 2 threads) a ResNet-50 took 139 ms by default, 37 with
im2col and 28 with im2col+data-tiling, a MobileNetV3 1.1 by default and 3.2 with im2col, whose
depthwise convolutions it hurts. They are measured, not guessed; what is guessed, and only where it
is certain, is that a variant cannot change a program that has none of the ops it is about.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import UnknownNameError, UserError, did_you_mean
from tilewright.target import PACKED_AHEAD_FLAG
from tilewright.tuning.effort import Effort

PREPROCESSING_FLAG = "--iree-preprocessing-transform-spec-filename"
# Passes that change the ops of the whole program, before those of such a spec are matched.
_PASSES_FLAG = "--iree-preprocessing-pass-pipeline"

_KERNELS = "+kernels."

_DATA_TILING = ("--iree-opt-data-tiling",)
_UKERNELS = (*_DATA_TILING, "--iree-llvmcpu-enable-ukernels=all")
_O3 = ("--iree-opt-level=O3",)
_IM2COL = ("--iree-global-opt-use-im2col-for-convs",)
_FUSE_PADDING = ("--iree-dispatch-creation-enable-fuse-padding-into-linalg-consumer-ops",)
_TRANSPOSES = ("--iree-opt-aggressively-propagate-transposes",)
_GENERALIZE = ("--iree-opt-generalize-matmul",)
# The transposes around each convolution are moved through what is between two, until they meet:
# with canonicalisation before, without which the compiler crashes on some networks. A ResNet-50
# from ONNX has 4 transposes of activations left of 75.
_CHANNELS_LAST = (
    f"{_PASSES_FLAG}=builtin.module(util.func("
    "iree-preprocessing-convert-conv-to-channels-last,canonicalize,"
    "iree-global-opt-propagate-linalg-transpose{enable-sink-transpose-through-pad=true},"
    "canonicalize))",
)

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
    a difference; empty: any program. `is_layout`: it changes how tensors lie in memory, and with
    that what kernels of our own can do.
    """

    name: str
    flags: tuple[str, ...]
    note: str = ""
    about: frozenset[str] = frozenset()
    is_layout: bool = False

    def __str__(self) -> str:
        return self.name if self.is_built_in else f"{self.name}={shlex.join(self.flags)}"

    @property
    def is_built_in(self) -> bool:
        """Whether it has its name from here, and not from the user."""
        return BUILT_IN.get(self.name) == self

    @property
    def is_data_tiled(self) -> bool:
        """Whether the compiler packs the operands of products into tiles."""
        return set(_DATA_TILING) <= set(self.flags)


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
            "channels-last",
            _CHANNELS_LAST,
            "convolutions have the channels of a pixel beside each other in memory",
            _STRIDED,
            is_layout=True,
        ),
    )
}


def _combined(name: str, note: str) -> Variant:
    """Variants that are joined by `+` in its name; what the first is about, it is about."""
    parts = [BUILT_IN[part] for part in name.split("+")]
    flags = tuple(flag for part in parts for flag in part.flags)
    return Variant(name, flags, note, next(part.about for part in parts if part.about))


for _name, _note in {
    "im2col+data-tiling": "convolutions become matrix products of packed operands",
    "im2col+ukernels": "convolutions become matrix products, computed by IREE's hand-written "
    "kernels",
    "im2col+o3": "convolutions become matrix products, with all optimisations",
    "o3+data-tiling": "all optimisations, matrix products of packed operands",
    "im2col+o3+data-tiling": "all optimisations, convolutions as matrix products of packed "
    "operands",
    "fuse-padding+data-tiling": "padding is fused, matrix products have packed operands",
}.items():
    BUILT_IN[_name] = _combined(_name, _note)
DEFAULT_VARIANT = BUILT_IN["default"]
CHANNELS_LAST = BUILT_IN["channels-last"]


def im2col_choices(specs: Mapping[str, Path], effort: Effort) -> list[Variant]:
    """Variants that make only some convolutions matrix products, each by a spec of its own.

    Args:
        specs: files by the name of the set of convolutions, as `spec.preprocessing.choices` names
            them.
        effort: quick tries each with data tiling only, the others without as well.

    Returns:
        The variants.
    """
    extras = {"": (), "+data-tiling": _DATA_TILING}
    if effort.name == "quick":
        del extras[""]
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
    """Whether a program whose dispatches, untuned, are of these kinds may have convolutions.

    Args:
        kinds: of `workload.KINDS`.
    """
    return not _STRIDED.isdisjoint(kinds)


def relocate_preprocessing(flags: Sequence[str], path: Path) -> tuple[str, ...]:
    """The flags with the preprocessing spec, if there is one, at another path.

    Args:
        flags: of a variant.
        path: where the spec is from now on.
    """
    return tuple(
        f"{PREPROCESSING_FLAG}={path}" if f.startswith(f"{PREPROCESSING_FLAG}=") else f
        for f in flags
    )


def preprocessing_spec(flags: Sequence[str]) -> Path | None:
    """The preprocessing spec that the flags name, if any.

    Args:
        flags: of a variant.
    """
    found = [f.partition("=")[2] for f in flags if f.startswith(f"{PREPROCESSING_FLAG}=")]
    return Path(found[0]) if found else None


def without_preprocessing(flags: Sequence[str]) -> tuple[str, ...]:
    """Flags for what comes after preprocessing: compiling a single dispatch, or a site, alone.

    Args:
        flags: of a whole program's compile.
    """
    return tuple(f for f in without_spec(flags) if not f.startswith(f"{_PASSES_FLAG}="))


def without_spec(flags: Sequence[str]) -> tuple[str, ...]:
    """Flags of a whole program's compile without its preprocessing spec.

    Args:
        flags: as they are.
    """
    return tuple(f for f in flags if not f.startswith(f"{PREPROCESSING_FLAG}="))


def without_kernels(flags: Sequence[str]) -> tuple[str, ...]:
    """Flags of a whole program's compile without the spec of its kernels, and what comes with it.

    Args:
        flags: as they are.
    """
    return tuple(flag for flag in without_spec(flags) if flag != PACKED_AHEAD_FLAG)


def with_spec_flags(flags: Sequence[str], named: Sequence[str]) -> tuple[str, ...]:
    """Flags with those that name specs behind them. The compiler takes one preprocessing spec.

    Args:
        flags: of a whole program's compile.
        named: flags that name specs; one for preprocessing stands in for that of `flags`, and comes
            with what its kernels need.
    """
    if not any(flag.startswith(f"{PREPROCESSING_FLAG}=") for flag in named):
        return (*flags, *named)
    return (*without_spec(flags), *packed_ahead((*flags, *named)), *named)


def packed_ahead(flags: Sequence[str]) -> tuple[str, ...]:
    """What lets the compiler evaluate ahead what kernels make of constants.

    Args:
        flags: those that are there: where they say how much constants may grow, that holds.
    """
    name = PACKED_AHEAD_FLAG.partition("=")[0]
    return () if any(flag.startswith(f"{name}=") for flag in flags) else (PACKED_AHEAD_FLAG,)


def flags_key(flags: Sequence[str]) -> str:
    """What stands in the database for the flags that decide, besides the target's, which code is
    made: '' for none.

    Args:
        flags: the variant's, then the user's own.
    """
    return hashlib.sha256("\n".join(flags).encode()).hexdigest()[:12] if flags else ""


def kernels_key(key: str, site: str) -> str:
    """What stands in the database for flags where kernels of our own are searched as well.

    Args:
        key: a :func:`flags_key`.
        site: the digest of what the kernels compute.
    """
    return f"{key}{_KERNELS}{site[:8]}"


def variant_of(key: str) -> str:
    """The built-in variant of a :func:`flags_key`; the key itself for flags of the user's own.

    Args:
        key: as the database has it; of a :func:`kernels_key` the variant says `with kernels`.
    """
    key, kernels, _ = key.partition(_KERNELS)
    if kernels:
        return f"{variant_of(key)} with kernels"
    for variant in BUILT_IN.values():
        if flags_key(without_preprocessing(variant.flags)) == key:
            return variant.name
    return key


def effort_variants(effort: Effort) -> list[Variant]:
    """The variants that an effort measures, the compiler's default first.

    Args:
        effort: its `variants` name them; None there: all that are built in.
    """
    return [find_variant(name) for name in effort.variants or BUILT_IN]


def find_variant(name: str) -> Variant:
    """The built-in variant of a name.

    Raises:
        UnknownNameError: there is none of that name.

    Args:
        name: as `--variants` takes it.
    """
    if name not in BUILT_IN:
        raise UnknownNameError("variant", name, BUILT_IN, "--variants")
    return BUILT_IN[name]


def applicable(variant: Variant, kinds: Collection[str]) -> bool:
    """Whether the variant can change a program whose dispatches, untuned, are of these kinds.

    Args:
        variant: built in or the user's.
        kinds: of `workload.KINDS`.
    """
    return not variant.about or not variant.about.isdisjoint(kinds)


# Variants that the user names

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*")


def read_variants(
    value: str | Iterable[str | Variant], option: str = "--variants"
) -> tuple[Variant, ...]:
    """Variants, or texts as :func:`parse_variants` takes them.

    Args:
        value: as the Python API takes it.
        option: for messages.

    Raises:
        UserError: a text is no list of variants.
    """
    parts = [value] if isinstance(value, str) else list(value)
    found = [(p,) if isinstance(p, Variant) else parse_variants(p, option) for p in parts]
    return tuple(variant for each in found for variant in each)


def parse_variants(text: str, option: str = "--variants") -> tuple[Variant, ...]:
    """Variants in the order given: `default,data-tiling,mine=--flag --other`.

    Args:
        text: built-in names and `NAME=FLAGS`, separated by commas; flags are separated by spaces or
            commas. A flag that has a comma or space in it is quoted:
            `mine='--iree-llvmcpu-target-cpu=a,b'`.
        option: for the message.

    Raises:
        UserError: it is something else.
    """
    choices: dict[str, Variant] = {}
    for entry in _entries(text, option):
        name, equals, rest = entry.partition("=")
        name = name.strip()
        if name in choices:
            raise UserError(f"{option}: '{name}' is given twice; keep one")
        if not equals:
            choices[name] = _built_in(name, option)
            continue
        if not _NAME.fullmatch(name):
            raise UserError(
                f"{option}: '{name}' cannot name a variant; begin with a letter and go on with "
                "letters, digits and _ . + -"
            )
        if name in BUILT_IN:
            raise UserError(
                f"{option}: '{name}' is a built-in variant; choose another name for '{entry}'"
            )
        flags = _flags(name, rest, option)
        layout = any(flag.startswith("--iree-preprocessing-") for flag in flags)
        choices[name] = Variant(name, flags, "given by the user", is_layout=layout)
    return tuple(choices.values())


def _built_in(name: str, option: str) -> Variant:
    if name not in BUILT_IN:
        names = sorted(BUILT_IN)
        raise UserError(
            f"{option}: unknown variant '{name}'{did_you_mean(name, names)} (allowed: "
            f"{', '.join(names)}, or NAME=FLAGS; quote a flag that has a comma in it)"
        )
    return BUILT_IN[name]


def _entries(text: str, option: str) -> list[str]:
    """The text split at commas outside quotes; an entry that begins with `-` goes on with flags."""
    entries: list[str] = []
    part, quote = "", ""
    for char in text + ",":
        if char == "," and not quote:
            if part.lstrip().startswith("-") and entries and "=" in entries[-1]:
                entries[-1] += " " + part
            else:
                entries.append(part.strip())
            part = ""
            continue
        if char in "'\"" and quote in ("", char):
            quote = "" if quote else char
        part += char
    if quote:
        raise UserError(f"{option}: '{text}': a quote ({quote}) is not closed")
    if not all(entries):
        raise UserError(f"{option}: '{text}': a name is missing; write names separated by commas")
    return entries


def _flags(name: str, text: str, option: str) -> tuple[str, ...]:
    try:
        flags = tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"{option}: '{name}={text}': {error}") from error
    wrong = [flag for flag in flags if not flag.startswith("-")]
    if wrong or not flags:
        what = f"'{wrong[0]}' is not a flag" if wrong else "no flags are given"
        raise UserError(
            f"{option}: '{name}={text}': {what}; write NAME=--flag or NAME='--flag --other'"
        )
    return flags

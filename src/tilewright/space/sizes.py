"""Candidate tile sizes for a loop: the domains of the tile knobs.

A domain holds the sizes that divide the loop, powers of two and their threefolds, and even splits
over the cores: a few dozen values for any extent, so that what is searched stays a choice between
sensible sizes, and `TileKnob.limit` still lets a user ask for any other.
"""

from __future__ import annotations

from collections.abc import Iterable


def divisors(extent: int) -> list[int]:
    """The divisors of a number from 1 on, ascending."""
    small = [d for d in range(1, int(extent**0.5) + 1) if extent % d == 0]
    return sorted({*small, *(extent // d for d in small)})


def _doubling(start: int, extent: int) -> list[int]:
    sizes = []
    while start <= extent:
        sizes.append(start)
        start *= 2
    return sizes


def _thinned(values: list[int], most: int) -> list[int]:
    """At most `most` of the ascending values, evenly spread, the first and the last among them."""
    if len(values) <= most:
        return values
    if most < 2:
        return values[-most:] if most > 0 else []
    step = (len(values) - 1) / (most - 1)
    return sorted({values[round(i * step)] for i in range(most)})


def _domain(sizes: Iterable[int], extent: int, keep: Iterable[int], most: int) -> tuple[int, ...]:
    """At most `most` sizes within the loop: those to keep, and the others thinned evenly.

    0 (not tiled) is only there when it is to be kept, and comes last.
    """
    kept = {k for k in keep if k > 0}
    others = sorted({s for s in sizes if 1 <= s <= extent} - kept)
    found = sorted({*kept, *_thinned(others, most - len(kept))})
    return (*found, 0) if 0 in set(keep) else tuple(found)


def distribution_sizes(extent: int, cores: int, default: int) -> tuple[int, ...]:
    """Tiles handed to one worker: up to 40 sizes, the whole loop among them.

    Args:
        extent: of the loop.
        cores: of the machine; even splits over them are offered.
        default: the compiler's own size, which is among them.
    """
    if extent <= 16:
        return _domain(range(1, extent + 1), extent, (default,), 40)
    splits = _thinned(sorted({-(-extent // parts) for parts in range(1, 4 * cores + 1)}), 16)
    sizes = {*divisors(extent), *_doubling(4, extent), *_doubling(6, extent)}
    return _domain(sizes, extent, (default, extent, *splits), 40)


def vector_sizes(extent: int, lanes: int, default: int, innermost: bool) -> tuple[int, ...]:
    """Tiles that become vectors and are unrolled: up to 24 sizes.

    The loop that walks memory gets multiples of the vector register; the others small sizes, as
    each is one more register of accumulators.

    Args:
        extent: of the loop.
        lanes: elements in a vector register.
        default: the compiler's own size, which is among them.
        innermost: whether the loop walks the memory of an operand.
    """
    if innermost:
        multiples = {lanes * i for i in (1, 2, 3, 4, 6, 8, 16, 32)}
        sizes = {1, 2, 4, 8, *multiples, *(d for d in divisors(extent) if 4 <= d <= 8 * lanes)}
    else:
        sizes = {*range(1, 9), 10, 12, 14, 16, 20, 24, 32, 64}
        sizes |= {d for d in divisors(extent) if d <= 32}
    sizes = {min(s, extent) for s in sizes}
    return _domain(sizes, extent, (default,), 24)


def reduction_sizes(extent: int, lanes: int, default: int, innermost: bool) -> tuple[int, ...]:
    """Steps of a reduction that are unrolled or vectorised: up to 20 sizes.

    Args:
        extent: of the loop.
        lanes: elements in a vector register.
        default: the compiler's own size, which is among them.
        innermost: whether the loop walks the memory of an operand.
    """
    sizes = {1, 2, 3, 4, 6, 8, 12, 16, 32, *(d for d in divisors(extent) if d <= 32)}
    if innermost:
        sizes |= {lanes, 2 * lanes, 4 * lanes, 8 * lanes}
    return _domain({min(s, extent) for s in sizes}, extent, (default,), 20)


def cache_sizes(extent: int, default: int) -> tuple[int, ...]:
    """Blocks that stay in a cache: 0 (no blocking) and up to 12 sizes from 8 to half the loop."""
    sizes = {s for s in (*_doubling(8, extent), *divisors(extent)) if 8 <= s < extent}
    return _domain(sizes, extent, (0, default), 12)

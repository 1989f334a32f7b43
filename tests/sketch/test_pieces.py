"""Pieces of parallel work: one in all for what takes less time than waking a thread."""

from __future__ import annotations

import pytest

from tilewright import te
from tilewright.schedule.nest import For, Stmt
from tilewright.schedule.walk import nodes
from tilewright.sketch.generators import sketches
from tilewright.sketch.interface import SiteExpression
from tilewright.sketch.pieces import piece_count, pieces_for, pieces_knob, shared_seconds
from tilewright.space.turns import turns
from tilewright.target import Target, parse_target


def target(cores: int) -> Target:
    return parse_target("cpu:znver3", cores)


def pieces_of(site: SiteExpression, name: str, cores: int) -> int:
    """How many workgroups the kernel has that a sketch takes for best."""
    (sketch,) = (one for one in sketches(site, target(cores)) if one.name == name)
    # The last: before it operands are packed.
    *_, kernel = sketch.schedule(sketch.space.default).lower().program.kernels
    found = 1
    body: Stmt = kernel.body
    for node in nodes(body):
        if isinstance(node, For) and node.kind == "parallel":
            found *= node.extent
    return found


def scaled(rows: int, columns: int) -> SiteExpression:
    image = te.placeholder((rows, columns), name="image")
    by = te.placeholder((columns,), name="by")
    return SiteExpression(
        (image, by), (False, False), te.compute((rows, columns), lambda i, j: image[i, j] * by[j])
    )


def sums(rows: int, columns: int) -> SiteExpression:
    image = te.placeholder((rows, columns), name="image")
    k = te.reduce_axis((0, columns), name="k")
    return SiteExpression(
        (image,), (False,), te.compute((rows,), lambda i: te.sum(image[i, k], axis=k))
    )


def product(rows: int, columns: int, depth: int) -> SiteExpression:
    left, right = te.placeholder((rows, depth)), te.placeholder((depth, columns))
    k = te.reduce_axis((0, depth), name="k")
    output = te.compute((rows, columns), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k))
    return SiteExpression((left, right), (False, True), output)


def test_one_core_wakes_nobody() -> None:
    assert pieces_knob(target(1)).values[0] == 1
    assert pieces_knob(target(2)).values[0] == 0
    assert pieces_for(1e-9, 4, target(1)) == 4
    assert shared_seconds(1e-3, 4, target(1), 0.0) == pytest.approx(1e-3)


def test_work_is_shared_out_unless_that_takes_longer_than_doing_it() -> None:
    assert piece_count(0, target(8)) == 1
    assert piece_count(2, target(8)) == 16
    for cores in (2, 8):
        assert pieces_for(1e-6, 2, target(cores)) == 0
        # Alone it would let the other workers fall asleep.
        assert pieces_for(1.2e-5, 2, target(cores)) == 2
        assert pieces_for(1e-4, 2, target(cores)) == 2


@pytest.mark.parametrize(
    ("name", "little", "much"),
    [
        ("elementwise", scaled(49, 72), scaled(3136, 256)),
        ("rows", sums(16, 72), sums(2048, 512)),
        ("tiles", product(4, 32, 32), product(512, 512, 512)),
    ],
)
def test_little_work_is_one_piece(name: str, little: SiteExpression, much: SiteExpression) -> None:
    assert pieces_of(little, name, 2) == 1
    assert pieces_of(much, name, 2) >= 2


@pytest.mark.parametrize("size", [768, 1024, 2048])
def test_a_large_product_keeps_all_cores_busy(size: int) -> None:
    """Also where workers take several pieces at a time."""
    for cores in (2, 4):
        count = pieces_of(product(size, size, size), "tiles", cores)
        assert float(turns(count, cores)) * cores <= 1.13 * count

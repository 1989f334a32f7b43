"""Places are found in locations of every form."""

from __future__ import annotations

from iree.compiler import ir

from tilewright.ir.locations import first_place, places


def test_places_in_locations_of_every_form() -> None:
    with ir.Context():
        one, two, three = (ir.Location.file("a.mlir", line, 1) for line in (1, 11, 111))
        alone = [places(location) for location in (one, two, three)]
        assert [len(found) for found in alone] == [1, 1, 1]
        assert len(frozenset.union(*alone)) == 3
        assert places(ir.Location.file("a.mlir", 11, 1)) == alone[1]
        assert places(ir.Location.file("b.mlir", 11, 1)) != alone[1]
        assert places(ir.Location.name("n", two)) == alone[1]
        assert places(ir.Location.callsite(one, [two])) == alone[0] | alone[1]
        fused = ir.Location.fused([one, ir.Location.name("n", ir.Location.fused([two, three]))])
        assert {first_place(fused)} == alone[0]
        assert places(fused) == alone[0] | alone[1] | alone[2]

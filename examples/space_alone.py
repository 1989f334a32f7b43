"""`tilewright.space` alone: knobs, constraints, how large a space is, and why it rejects a point.

Nothing here knows of IREE; the space is that of a blocked matmul on a processor with 32 vector
registers of 16 floats and 1 MiB of L2 cache.

python examples/space_alone.py
"""

from __future__ import annotations

import numpy as np

from tilewright.errors import UserError
from tilewright.space import (
    BoolKnob,
    ChoiceKnob,
    Constraint,
    SearchSpace,
    TileKnob,
    product_at_most,
)
from tilewright.trial import Configuration

POWERS = tuple(2**i for i in range(11))


def blocked_matmul() -> SearchSpace:
    """Blocks for the cache (mc, nc, kc), a tile for the registers (mr, nr)."""
    knobs = [
        TileKnob("mc", POWERS),
        TileKnob("nc", POWERS),
        TileKnob("kc", POWERS),
        TileKnob("mr", (1, 2, 4, 6, 8, 12, 14, 16)),
        TileKnob("nr", (16, 32, 48, 64)),
        BoolKnob("pack_b"),
        ChoiceKnob("order", ("mnk", "nmk", "kmn")),
    ]
    constraints = [
        # A vectorised check decides whole arrays at once; the reason is told to people.
        Constraint(
            "tile_in_block",
            ("mr", "mc"),
            check=lambda mr, mc: mr <= mc,
            reason=lambda mr, mc: f"a register tile of {mr} rows does not fit a block of {mc}",
            vectorised=True,
        ),
        Constraint(
            "registers",
            ("mr", "nr"),
            check=lambda mr, nr: mr * nr // 16 + nr // 16 + 1 <= 32,
            reason=lambda mr, nr: f"{mr}x{nr} needs {mr * nr // 16 + nr // 16 + 1} of 32 registers",
            vectorised=True,
        ),
        # A bound on a product is counted and sampled exactly over any number of knobs.
        product_at_most("half_of_l2", ("nc", "kc"), 1 << 19, factor=4, unit="bytes"),
    ]
    default = Configuration.of(
        {"mc": 64, "nc": 256, "kc": 256, "mr": 8, "nr": 32, "pack_b": True, "order": "nmk"}
    )
    return SearchSpace("blocked matmul", knobs, constraints, default)


def main() -> None:
    rng = np.random.default_rng(0)
    space = blocked_matmul()
    size = space.size_estimate(rng)
    print(f"{size} valid configurations of {size.total:,} combinations")
    for name, share in space.rejections(rng).items():
        print(f"  {name} rejects {share:.1%}")

    print("three at random, uniform over the valid ones:")
    for configuration in space.sample(rng, 3):
        print(f"  {dict(configuration.items)}")
    print(f"{sum(1 for _ in space.neighbours(space.default, rng))} neighbours of the default")

    wrong = Configuration.of({**space.default.values, "mr": 16, "nr": 64, "mc": 8})
    for violation in space.violations(wrong):
        print(f"rejected by {violation}")
    print(f"the nearest valid one: {dict(space.nearest_valid(wrong).items)}")

    narrowed = space.restrict({"mr": [6, 8], "pack_b": [True]}).space
    print(f"restricted: {narrowed.size_estimate(rng)} configurations")
    try:
        space.restrict({"mr": [5]})
    except UserError as error:
        print(f"not possible: {error}")


if __name__ == "__main__":
    main()

"""The registers of a processor's matrix unit (AMX of x86): what tiles of sums take of them."""

from __future__ import annotations

#: Of a register: rows, bytes of a row, sums of a row.
ROWS, ROW_BYTES, SUMS = 16, 64, 16
#: Registers of the unit.
MOST_TILES = 8


def tiles_taken(m: int, lanes: int, zero: bool = False) -> int:
    """Registers that a tile of sums takes, with what it is computed from: one with rows, and one
    for each of its columns of registers, or one for all where there is one row of registers.

    >>> tiles_taken(32, 32), tiles_taken(16, 64), tiles_taken(64, 16, zero=True)
    (7, 6, 8)

    Args:
        m: rows.
        lanes: sums of a row.
        zero: whether something other than 0 stands for 0.
    """
    high, wide = -(-m // ROWS), lanes // SUMS
    return high * wide + (wide if high > 1 else 1) + 1 + zero * (wide + 1)


def split_tiles_taken(m: int, lanes: int) -> int:
    """Registers that a tile of sums takes whose factors are split: one for each register of rows,
    and one for each of columns.

    >>> split_tiles_taken(32, 32), split_tiles_taken(16, 48)
    (8, 7)

    Args:
        m: rows.
        lanes: sums of a row.
    """
    high, wide = -(-m // ROWS), lanes // SUMS
    return high * wide + high + wide

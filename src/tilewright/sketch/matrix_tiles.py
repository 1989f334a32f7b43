"""Contractions and convolutions of bytes, and contractions of bf16, by a processor's matrix unit
(AMX of x86): the tiles of `dot_tiles` and `dot_windows`, as large as its registers hold."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tilewright.schedule.matrix_shapes import MOST_TILES, ROW_BYTES, ROWS, SUMS, tiles_taken
from tilewright.sketch.dot_tiles import DotTilesSketch
from tilewright.sketch.dot_windows import ByteWindowsSketch
from tilewright.sketch.interface import Sketch
from tilewright.sketch.small_elements import DotProducts
from tilewright.sketch.structure import extent
from tilewright.space.arrays import FloatArray

# Rows of a tile, and sums of a row, that are tried.
_HEIGHTS, _WIDTHS = range(2, 65), (16, 32, 64)
# Cycles until a product is added to its sums, of a load of a register, of a tile beside products.
_LATENCY, _LOAD, _BESIDE = 52.0, 8.0, 150.0
_BYTES = DotProducts("byte_matrix", "bytes by a matrix unit", "i8", "i32", 4, {"amx-int8": 16})
_BF16 = DotProducts("bf16_matrix", "bf16 by a matrix unit", "bf16", "f32", 2, {"amx-bf16": 16})


def _fits(rows: Any, columns: Any, zero: int) -> Any:
    """Whether tiles fit the unit's registers: one, or arrays of them."""
    return np.vectorize(lambda r, c: tiles_taken(r, c, zero != 0) <= MOST_TILES)(rows, columns)


class _MatrixTilesSketch(DotTilesSketch):
    """See `dot_tiles`; tiles have up to 64 rows, and 16, 32 or 64 columns."""

    takes_signed = True

    def _widths(self, columns: int) -> tuple[int, ...]:
        return tuple(n for n in _WIDTHS if n == _WIDTHS[0] or columns >= n)

    def _heights(self) -> range:
        return _HEIGHTS

    def _in_registers(self, rows: Any, columns: Any) -> Any:
        return _fits(rows, columns, self._zero)

    def _steps(self, rows: FloatArray, columns: FloatArray) -> FloatArray:
        """Cycles for each product of a tile, of what they would be if nothing else took any."""
        wide, depth = columns / SUMS, max(1.0, self._row_bytes / ROW_BYTES)
        products, loads = rows * wide, _LOAD * (rows / ROWS + wide)
        step = np.maximum(np.maximum(products, loads), _LATENCY)
        cycles: FloatArray = (step * depth + _BESIDE) / (products * depth)
        return cycles


class ByteMatrixTilesSketch(_MatrixTilesSketch):
    """Products of bytes by the matrix unit, added up in words of 32 bits."""

    name = "byte-matrix-tiles"
    dots = _BYTES


class Bf16MatrixTilesSketch(_MatrixTilesSketch):
    """Products of bf16 by the matrix unit, added up in f32."""

    name = "bf16-matrix-tiles"
    dots = _BF16


class ByteMatrixWindowsSketch(ByteWindowsSketch):
    """Convolutions of bytes by the matrix unit; see `dot_windows`. Tiles have up to 64 points, and
    as many channels as the unit's registers hold beside them."""

    name = "byte-matrix-windows"
    dots = _BYTES

    def _width(self) -> int:
        """Of tiles with the most sums that the registers hold, those with the fewest loads."""
        channels = extent(self._column)

        def worth(width: int) -> tuple[int, int]:
            tallest = max(self._tall(width), default=0)
            return tallest * width, -tallest - width

        return max((n for n in _WIDTHS if n == _WIDTHS[0] or channels >= n), key=worth)

    def _heights(self) -> list[int]:
        return self._tall(self._lanes)

    def _tall(self, width: int) -> list[int]:
        """Points of a tile that the registers hold so many channels of."""
        points = extent(self._point_axis)
        return [n for n in _HEIGHTS if points % n == 0 and _fits(n, width, self._zero)]


_SKETCHES = (ByteMatrixTilesSketch, Bf16MatrixTilesSketch, ByteMatrixWindowsSketch)
# Their kernels ask the system for the unit as Linux wants to be asked.
SKETCHES: tuple[type[Sketch], ...] = _SKETCHES if sys.platform == "linux" else ()

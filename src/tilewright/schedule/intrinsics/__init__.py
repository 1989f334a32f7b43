"""Intrinsics for `tensorize` that come with the language; declare your own with
:func:`tilewright.schedule.intrinsic.decl_tensor_intrin`."""

from __future__ import annotations

from tilewright.schedule.intrinsics.dot import byte_dot
from tilewright.schedule.intrinsics.gemv import gemv
from tilewright.schedule.intrinsics.matrix import wmma
from tilewright.schedule.intrinsics.outer import outer_product

__all__ = ["byte_dot", "gemv", "outer_product", "wmma"]

"""Where ops come from: the places that a location is made of.

The bindings make locations and cannot look into them, the C API behind them can.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from iree.compiler import ir

# The location is passed as the pointer that it holds: of composite ones, how to get their parts.
_PARTS = {
    "mlirLocationIsACallSite": ("mlirLocationCallSiteGetCallee", "mlirLocationCallSiteGetCaller"),
    "mlirLocationIsAName": ("mlirLocationNameGetChildLoc",),
}
_IS_FUSED = "mlirLocationIsAFused"
_FUSED_COUNT, _FUSED_PARTS = "mlirLocationFusedGetNumLocations", "mlirLocationFusedGetLocations"


def places(location: ir.Location) -> frozenset[int]:
    """The places that a location names, itself where it is one.

    Args:
        location: of an op.

    Returns:
        An id for each place in a file, which stands for that place in all modules of the context.
    """
    return frozenset(_places(_pointer(location)))


def first_place(location: ir.Location) -> int:
    """The place that a location names first: of fused ones, that of the op which took others in.

    Args:
        location: of an op.

    Returns:
        Its id, as of `places`.
    """
    return _places(_pointer(location))[0]


def _places(location: int) -> list[int]:
    library = _library()
    if getattr(library, _IS_FUSED)(location):
        parts = (ctypes.c_void_p * getattr(library, _FUSED_COUNT)(location))()
        getattr(library, _FUSED_PARTS)(location, parts)
        return [place for part in parts if part is not None for place in _places(part)]
    for is_one, getters in _PARTS.items():
        if getattr(library, is_one)(location):
            return [p for get in getters for p in _places(getattr(library, get)(location))]
    return [location]


def _pointer(location: ir.Location) -> int:
    capsule = ctypes.py_object(location._CAPIPtr)
    python = ctypes.pythonapi
    python.PyCapsule_GetName.restype = ctypes.c_char_p
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    name = ctypes.c_char_p(python.PyCapsule_GetName(capsule))
    return int(python.PyCapsule_GetPointer(capsule, name))


@functools.cache
def _library() -> Any:
    """IREE's compiler library with these functions declared."""
    from iree.compiler.api import ctypes_dl

    library = ctypes_dl._dylib
    for name in (_IS_FUSED, *_PARTS):
        getattr(library, name).argtypes = [ctypes.c_void_p]
        getattr(library, name).restype = ctypes.c_bool
    for name in (get for getters in _PARTS.values() for get in getters):
        getattr(library, name).argtypes = [ctypes.c_void_p]
        getattr(library, name).restype = ctypes.c_void_p
    getattr(library, _FUSED_COUNT).argtypes = [ctypes.c_void_p]
    getattr(library, _FUSED_COUNT).restype = ctypes.c_uint
    getattr(library, _FUSED_PARTS).argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    getattr(library, _FUSED_PARTS).restype = None
    return library

"""Dataclasses as plain data for JSON, and back."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def fields_of(value: DataclassInstance) -> dict[str, Any]:
    """The fields of a dataclass by their names, as they are.

    Args:
        value: of any dataclass.
    """
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def tupled(data: Any) -> Any:
    """Lists (as JSON has them) as tuples, at any depth.

    Args:
        data: what JSON was.
    """
    return tuple(map(tupled, data)) if isinstance(data, list | tuple) else data

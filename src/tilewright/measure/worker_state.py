"""What a worker keeps from one task to the next."""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar, cast

Kept = TypeVar("Kept")
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class WorkerState:
    """At most one object of each class, for as long as the worker lives.

    A module that keeps something between its tasks has a class for it, so that what one module
    keeps is no other's, and is typed.

    fragile: whether an error may leave the state of no use; the worker is then replaced after one.
    """

    def __init__(self) -> None:
        self.fragile = False
        self._kept: dict[type[Any], object] = {}

    def keep(self, value: object) -> None:
        """Keep an object, in place of the one of its class that was kept before.

        Args:
            value: of the caller's own class.
        """
        self._kept[type(value)] = value

    def get(self, kind: type[Kept]) -> Kept:
        """The object of this class that is kept; the first time it is made, without arguments.

        Raises:
            TypeError: none is kept, and the class has to be given something to be made.

        Args:
            kind: the class.
        """
        if kind not in self._kept:
            self._kept[kind] = kind()
        return cast(Kept, self._kept[kind])

    def drop(self, kind: type[Any]) -> None:
        """Forget the object of this class, if there is one.

        Args:
            kind: the class.
        """
        self._kept.pop(kind, None)


class RecentlyUsed(Generic[Key, Value]):
    """Values by key; where there are more than `limit`, the one used least recently goes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: collections.OrderedDict[Key, Value] = collections.OrderedDict()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made where it is not there: room for it is made first.

        Args:
            key: of the value.
            make: makes it.
        """
        if key not in self._values:
            while len(self._values) >= self._limit:
                self._values.popitem(last=False)
            self._values[key] = make()
        self._values.move_to_end(key)
        return self._values[key]

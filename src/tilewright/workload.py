"""What a dispatch computes, as plain data: the key under which tuning results are kept.

Two dispatches with equal workloads run the same code on data of the same shape, whatever program
they come from, so they are tuned once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import Any

from tilewright.plain_data import fields_of, tupled

KINDS = (
    "contraction",
    "convolution",
    "depthwise_convolution",
    "grouped_convolution",
    "pooling",
    "attention",
    "reduction",
    "softmax",
    "elementwise",
    "transpose",
    "pack",
    "unpack",
    "mmt4d",
    "chain",
    "other",
)
CHAIN = "chain"
"""The kind of several dispatches that compute one thing together."""
LAYOUT_KINDS = frozenset({"transpose", "pack", "unpack"})
"""The kinds that compute nothing and change where elements lie."""

ROLES = (
    "batch",
    "m",
    "n",
    "k",
    "k1",
    "k2",
    "image",
    "channel",
    "group",
    "window",
    "parallel",
    "reduction",
)


# Name of the attribute that lists the loops (their numbers, by commas) whose sizes are known at run
# time only; `Dim.size` is then the size that the dispatch was tuned at.
DYNAMIC = "dynamic"


@dataclass(frozen=True)
class Dim:
    """One loop of the root op, outermost first.

    `role` is one of `ROLES`; `size` is the trip count (-1: not known until run time);
    `reduction` tells a loop that is summed (or otherwise combined) over from a parallel one.
    """

    role: str
    size: int
    reduction: bool = False


@dataclass(frozen=True)
class Workload:
    """The root op of a dispatch (dimensions, element types, layout) and what is fused to it.

    `layout` holds the indexing map of every operand as text, inputs first; `element_types` the
    element type of every operand in the same order; `body` is a digest of everything else that
    decides the generated code (the other ops of the dispatch and their bodies, in program order).
    `flops` and `bytes` are of one execution: arithmetic operations in the root op (a fused
    multiply-add counts two), and the bytes of all operands and results read or written once.
    """

    kind: str
    dims: tuple[Dim, ...]
    element_types: tuple[str, ...]
    layout: tuple[str, ...]
    body: str
    root: str = ""
    fused: tuple[str, ...] = ()
    flops: int = 0
    bytes: int = 0
    encoding: str = ""
    attributes: tuple[tuple[str, str], ...] = field(default=())

    @cached_property
    def key(self) -> str:
        """A short digest of all that identifies the workload: the database's key."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(d.size for d in self.dims)

    @property
    def is_static(self) -> bool:
        return all(d.size >= 0 for d in self.dims)

    @property
    def dynamic_loops(self) -> frozenset[int]:
        """The loops whose sizes the code does not know."""
        listed = dict(self.attributes).get(DYNAMIC, "")
        return frozenset(int(i) for i in listed.split(",") if i)

    @property
    def name(self) -> str:
        """A readable name such as `contraction 1024x512x256 f32*f32->f32 +generic`.

        A size that is known at run time only has a question mark: `64?x512x256`.
        """
        shape = "x".join(
            "?" if d.size < 0 else f"{d.size}{'?' if i in self.dynamic_loops else ''}"
            for i, d in enumerate(self.dims)
        )
        ins, out = self.element_types[:-1], self.element_types[-1:]
        types = "*".join(ins) + ("->" + out[0] if out else "")
        if len(set(self.element_types)) == 1:
            types = self.element_types[0]
        fused = f" +{len(self.fused)} fused" if self.fused else ""
        return f"{self.kind} {shape} {types}{fused}".replace("  ", " ").strip()

    @property
    def points(self) -> int:
        """Number of points of the iteration space (0 when a size is dynamic)."""
        return math.prod(d.size for d in self.dims) if self.is_static else 0

    @property
    def loop_names(self) -> tuple[str, ...]:
        """A short name for every loop: `m`, `n`, `k`; `oh`, `ow`, `oc`, `kh`, `kw`, `ic`; ….

        Loops of a role that occurs more than once are numbered: `m0`, `m1`.
        """
        short = {"batch": "b", "group": "g", "channel": "oc", "parallel": "p", "reduction": "r"}
        spatial = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}
        counts: dict[str, int] = {}
        for dim in self.dims:
            counts[dim.role] = counts.get(dim.role, 0) + 1
        seen: dict[str, int] = {}
        names = []
        for dim in self.dims:
            at = seen.get(dim.role, 0)
            seen[dim.role] = at + 1
            count = counts[dim.role]
            if dim.role in ("image", "window") and count in spatial:
                names.append(("o" if dim.role == "image" else "k") + spatial[count][at])
                continue
            name = short.get(dim.role, dim.role)
            if dim.role == "k" and "window" in counts:
                name = "ic"
            names.append(name if count == 1 else f"{name}{at}")
        return tuple(names)

    def by_role(self, role: str) -> tuple[int, ...]:
        """Loop positions (0 is the outermost) that have this role.

        Args:
            role: one of `ROLES`.
        """
        return tuple(i for i, d in enumerate(self.dims) if d.role == role)

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON; each loop is the list of its fields."""
        return {**fields_of(self), "dims": [astuple(dim) for dim in self.dims]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Workload:
        """The workload of `to_json`; what an older version did not write has its default.

        Args:
            data: what JSON was.
        """
        own = {name: tupled(value) for name, value in data.items()}
        return Workload(**{**own, "dims": tuple(Dim(*dim) for dim in own["dims"])})

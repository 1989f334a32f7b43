"""VectorDistribute for attention where the compiler states no constraints (CUDA).

With matrix instructions, workgroup and reduction tiles and the subgroups that share the rows are
chosen; without, how lanes and subgroups share the products' loops.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from tilewright.argument import dtype_of
from tilewright.attributes import attribute
from tilewright.gpu import DECOMPOSITION_CONFIG, GPU_PIPELINE
from tilewright.space.constraints import Computed
from tilewright.space.gpu_copies import is_shared_out
from tilewright.space.gpu_pipeline import (
    PROMOTE,
    Draft,
    GpuPipeline,
    divisor_sizes,
    multiples,
    powers,
)
from tilewright.space.knobs import TileKnob

SUBGROUPS, LANES, VECTOR = "subgroups", "lanes_n", "vector"
_PRODUCTS = ("qk_attrs", "pv_attrs")
_CONFIG = "lowering_config"


class _Attention(GpuPipeline):
    """What both have in common; `has` is in the configuration of both products."""

    name = "VectorDistribute.attention"
    attribute = attribute(GPU_PIPELINE, "VectorDistribute")
    has = ""

    def declare(self) -> None:
        self.need(
            self.workload.kind == "attention",
            not self.template.programs,
            all(role in self.at for role in ("m", "n", "k1", "k2")),
        )
        parts = self.template.tree(self.template.root, DECOMPOSITION_CONFIG)
        self.need(isinstance(parts, dict) and all(name in parts for name in _PRODUCTS))
        self.products = [parts[name][_CONFIG] for name in _PRODUCTS]
        self.need(*(self.has in product for product in self.products))
        self.sizes = {role: self.workload.dims[i].size for role, i in self.at.items()}
        self.declare_tiles(self.products[1])
        width = self.target.subgroup
        self.threads = (Computed((SUBGROUPS,), lambda s: s * width),)

    @abstractmethod
    def declare_tiles(self, pv: Mapping[str, Any]) -> None:
        """Add the knobs and rules; `pv` is the configuration of the second product."""

    def draft_products(self, draft: Draft) -> list[Any]:
        """The configurations of the products, to be changed."""
        parts = draft.tree(self.template.root, DECOMPOSITION_CONFIG)
        return [parts[name][_CONFIG] for name in _PRODUCTS]


class MatrixAttention(_Attention):
    """Attention by matrix instructions."""

    has = "mma_kind"

    def declare_tiles(self, pv: Mapping[str, Any]) -> None:
        self.need(self.template.own.intrinsics)
        intrinsic = self.template.own.intrinsics[0]
        m_unit, n_unit, k_unit = intrinsic.m, intrinsic.n, intrinsic.k
        subgroups = max(pv["subgroup_basis"][0])
        self.row = pv["subgroup_basis"][0].index(subgroups) if subgroups > 1 else self.at["m"]
        element = dtype_of(self.workload.element_types[0]).itemsize
        for role, level, unit in (
            ("m", "workgroup", m_unit),
            ("n", "workgroup", n_unit),
            # The scores of a step are an output of the first product and an input of the second.
            ("k2", "reduction", max(n_unit, k_unit)),
        ):
            own = self.tree[level][self.at[role]]
            self.tile(f"tile_{role}", multiples(unit, self.sizes[role], 256), own)
        self.knob(TileKnob(SUBGROUPS, values=(1, 2, 3, 4, 6, 8)), subgroups)
        k1, limit = self.sizes["k1"], self.target.workgroup_memory
        registers, threads = self.target.registers, self.target.subgroup

        def memory(m: Any, n: Any, k2: Any) -> Any:
            return element * (m * k1 + k2 * k1 + k2 * n + m * k2)

        self.rule(
            "each subgroup has whole intrinsics of rows",
            ("tile_m", SUBGROUPS),
            lambda m, s: m % (s * m_unit) == 0,
            lambda m, s: f"{m} is no multiple of {s} * {m_unit}",
        )
        self.rule(
            "shared memory",
            ("tile_m", "tile_n", "tile_k2"),
            lambda m, n, k: memory(m, n, k) <= limit,
            lambda m, n, k: f"{memory(m, n, k)} bytes, the device has {limit}",
        )
        self.rule(
            "registers of a thread",
            ("tile_m", "tile_n", "tile_k2", SUBGROUPS),
            lambda m, n, k, s: m * (n + k) <= registers * s * threads,
            lambda m, n, k, s: f"{m * (n + k) // (s * threads)}, more than {registers}",
        )

        # Queries, keys and values, rows by columns, where they go through shared memory.
        copied = self.tree.get(PROMOTE, ())
        for operand, rows, columns in ((0, "tile_m", ""), (1, "tile_k2", ""), (2, "tile_k2", "n")):
            if operand in copied:
                knobs = (rows, *(("tile_n",) if columns else ()), SUBGROUPS)
                self.rule(
                    f"threads share the copy of operand {operand}",
                    knobs,
                    lambda r, *c: is_shared_out(
                        (r, c[0] if len(c) > 1 else k1), c[-1] * threads, 8 * element
                    ),
                    lambda *v: f"{v} cannot be shared out to the threads in whole vectors",
                )

    def write(self, draft: Draft, values: Mapping[str, Any]) -> None:
        config = draft.tree(self.template.root)
        config["workgroup"][self.at["m"]] = values["tile_m"]
        config["workgroup"][self.at["n"]] = values["tile_n"]
        config["reduction"][self.at["k2"]] = values["tile_k2"]
        for product in self.draft_products(draft):
            product["subgroup_basis"][0][self.row] = values[SUBGROUPS]


class ScalarAttention(_Attention):
    """Attention without matrix instructions."""

    has = "lane_basis"

    def declare_tiles(self, pv: Mapping[str, Any]) -> None:
        counts = pv["lane_basis"][0]
        self.key = len(counts) - 1
        bases = [one[b][0] for one in self.products for b in ("lane_basis", "subgroup_basis")]
        self.need(
            # Those with matrix instructions have lanes too.
            any("mma_kind" not in product for product in self.products),
            all(len(basis) == len(counts) for basis in bases),
            "partial_reduction" in self.tree,
        )
        width, k1, registers = self.target.subgroup, self.sizes["k1"], self.target.registers
        own_n = self.tree["workgroup"][self.at["n"]]
        own_k2 = self.tree["partial_reduction"][self.at["k2"]]
        self.tile("tile_n", divisor_sizes(self.sizes["n"], 256), own_n)
        self.tile("tile_k2", divisor_sizes(self.sizes["k2"], 1024), own_k2)
        self.knob(TileKnob(SUBGROUPS, values=(1, 2, 4, 8, 16)), pv["subgroup_basis"][0][self.key])
        self.knob(TileKnob(LANES, values=tuple(powers(width))), counts[self.key - 1])
        self.knob(TileKnob(VECTOR, values=(1, 2, 4, 8)), max(pv["thread"]))
        self.rule(
            "tile_n is whole vectors of the lanes",
            ("tile_n", LANES, VECTOR),
            lambda n, a, v: (n % (a * v) == 0) & (k1 % (a * v) == 0),
            lambda n, a, v: f"{n} or {k1} is no multiple of {a} * {v}",
        )
        self.rule(
            "tile_k2 is whole rows of lanes and subgroups",
            ("tile_k2", LANES, SUBGROUPS),
            lambda k, a, s: k % (width // a * s) == 0,
            lambda k, a, s: f"{k} is no multiple of {width // a} * {s}",
        )
        self.rule(
            "elements of a thread",
            ("tile_n", "tile_k2", SUBGROUPS),
            lambda n, k, s: k * (n + k1) <= registers * 4 * s * width,
            lambda n, k, s: f"{k * (n + k1) // (s * width)}, more than {4 * registers}",
        )

    def write(self, draft: Draft, values: Mapping[str, Any]) -> None:
        config = draft.tree(self.template.root)
        config["workgroup"][self.at["n"]] = values["tile_n"]
        config["partial_reduction"][self.at["k2"]] = values["tile_k2"]
        lanes = values[LANES]
        for product in self.draft_products(draft):
            product["lane_basis"][0][self.key - 1] = lanes
            product["lane_basis"][0][self.key] = self.target.subgroup // lanes
            product["subgroup_basis"][0][self.key] = values[SUBGROUPS]
            product["thread"] = [values[VECTOR] if size else 0 for size in product["thread"]]


PIPELINES: tuple[type[GpuPipeline], ...] = (MatrixAttention, ScalarAttention)

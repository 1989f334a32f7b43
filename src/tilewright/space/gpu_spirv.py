"""The SPIR-V pipelines (Vulkan, Metal): BaseVectorize, BaseDistribute for what is not vectorized
(convolutions, pooling), products with promoted operands, cooperative matrices, and reductions of
rows (products of a matrix and a vector among them).

Their tile sizes are lists by level: workgroup, then subgroup or thread, then reduction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.attributes import attribute, parse_attribute
from tilewright.gpu import SPIRV_PIPELINE, GpuTiles
from tilewright.space.constraints import Computed, product_at_most
from tilewright.space.gpu_pipeline import (
    TILED_LOOPS,
    Draft,
    GpuPipeline,
    divisor_sizes,
    multiples,
    powers,
    tile_number,
)
from tilewright.space.knobs import ChoiceKnob, TileKnob
from tilewright.space.terms import greatest
from tilewright.trial import Configuration

_MAX_THREADS = 256
_MAX_THREAD_TILE = 16
DEPTH, STAGE = "pipeline_depth", "store_stage"


class _SpirvPipeline(GpuPipeline):
    """What they have in common; `serves` are the compiler's choices that it is for."""

    serves: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        cls.attribute = attribute(SPIRV_PIPELINE, cls.name)
        cls.serves = cls.serves or (cls.name,)

    def own_levels(self) -> list[list[int]]:
        """The compiler's tile sizes by level, a size for every loop; raises Unfit."""
        levels = self.tree.get("tile_sizes") if isinstance(self.tree, dict) else None
        self.need(
            self.template.translation.pipeline in self.serves,
            isinstance(levels, list) and all(isinstance(level, list) for level in levels),
        )
        count = len(self.root.extents)
        return [(level + [0] * count)[:count] for level in levels or ()]

    def stages(self, depths: tuple[int, ...]) -> None:
        """Add the knobs of copies in flight, where the compiler sets any."""
        settings = dict(self.template.own.settings)
        for name, values in ((DEPTH, depths), (STAGE, (0, 1))):
            if name in settings:
                self.knob(ChoiceKnob(name, values), int(parse_attribute(settings[name])))

    def write(self, draft: Draft, values: Mapping[str, Any]) -> None:
        draft.tree(self.template.root)["tile_sizes"] = self.levels(values)
        for name in (DEPTH, STAGE):
            if name in values:
                draft.settings[name] = values[name]

    def levels(self, values: Mapping[str, Any]) -> list[list[int]]:
        """The tile sizes by level for values of the knobs; the compiler's own unless overridden."""
        return self.own_levels()


class BaseVectorize(_SpirvPipeline):
    """Thread tiles: elementwise work, and products without anything better."""

    name = "BaseVectorize"
    serves = ("BaseVectorize", "MatmulPromoteVectorize")

    def declare(self) -> None:
        own, root = self.own_levels(), self.root
        is_product = self.workload.kind == "contraction"
        self.start_is_own = self.template.translation.pipeline == self.name
        if not self.start_is_own:
            self.subgroup_size = 0
        names, loops = self.workload.loop_names, range(len(root.extents))
        parallel = [i for i in loops if not root.reduction[i] and root.extents[i] > 1][-3:]
        sums = [i for i in loops if root.reduction[i]]
        self.need(
            own and parallel,
            self.start_is_own or is_product,
            not sums or (is_product and len(sums) == 1),
        )
        threads = own[1] if self.start_is_own and len(own) > 1 else [0] * len(loops)
        for i in parallel:
            self.thread_tiles(i, (256, _MAX_THREAD_TILE), (own[0][i], threads[i]))
            self.divides_loop(self.tiles[i], root.extents[i])
        self.steps = {i: f"reduction_{names[i]}" for i in sums}
        for i, name in self.steps.items():
            self.tile(name, divisor_sizes(root.extents[i], 64), own[-1][i])
            self.divides_loop(name, root.extents[i])
        self.thread_of = {i: f"thread_{names[i]}" for i in parallel}
        self._rules.append(
            product_at_most("registers of a thread", list(self.thread_of.values()), 64)
        )
        self.threads = tuple(
            Computed((self.tiles[i], self.thread_of[i]), lambda w, t: w // t)
            for i in reversed(parallel)
        )
        self.limit_threads(8, _MAX_THREADS)

    def levels(self, values: Mapping[str, Any]) -> list[list[int]]:
        count = len(self.root.extents)
        levels = [[0] * count for _ in range(3 if self.steps else 2)]
        for i in range(count):
            if i in self.steps:
                levels[-1][i] = values[self.steps[i]]
            elif i in self.tiles:
                levels[0][i], levels[1][i] = values[self.tiles[i]], values[self.thread_of[i]]
            else:
                levels[0][i] = levels[1][i] = 1
        return levels

    def write(self, draft: Draft, values: Mapping[str, Any]) -> None:
        super().write(draft, values)
        draft.settings.clear()


class BaseDistribute(_SpirvPipeline):
    """Thread tiles of scalar code; reductions are walked by each thread from end to end."""

    name = "BaseDistribute"

    def declare(self) -> None:
        own, root = self.own_levels(), self.root
        loops = range(len(root.extents))
        self.parallel = [i for i in loops if not root.reduction[i] and root.extents[i] > 1][-3:]
        # IREE 3.13 refuses its own choice for attention ("must be variadic of ranked tensor").
        self.need(self.parallel, len(own) == 2, self.workload.kind != "attention")
        self.need(all(len(level) > self.parallel[-1] for level in self.tree["tile_sizes"]))
        for i in self.parallel:
            largest = (_MAX_THREADS, _MAX_THREAD_TILE)
            self.thread_tiles(i, largest, (own[0][i], own[1][i]))
            self.divides_loop(self.tiles[i], root.extents[i])
        names = self.workload.loop_names
        self.thread_of = {i: f"thread_{names[i]}" for i in self.parallel}
        threads = list(self.thread_of.values())
        self._rules.append(product_at_most("registers of a thread", threads, 64))
        self.threads = tuple(
            Computed((self.tiles[i], self.thread_of[i]), lambda w, t: w // t)
            for i in reversed(self.parallel)
        )
        self.limit_threads(8, _MAX_THREADS)

    def levels(self, values: Mapping[str, Any]) -> list[list[int]]:
        group, thread = (list(level) for level in self.tree["tile_sizes"])
        for i in self.parallel:
            group[i], thread[i] = values[self.tiles[i]], values[self.thread_of[i]]
        return [group, thread]


class PromotedProduct(_SpirvPipeline):
    """MatmulPromoteVectorize: operands go through shared memory; threads share the tile evenly."""

    name = "MatmulPromoteVectorize"

    def declare(self) -> None:
        own, at = self.own_levels(), self.at
        self.need(len(own) == 1, all(role in at for role in ("m", "n", "k")))
        self.own = own[0]
        self.names = {at["m"]: "workgroup_m", at["n"]: "workgroup_n", at["k"]: "reduction_k"}
        for (loop, name), limit in zip(self.names.items(), (256, 256, 64), strict=True):
            self.tile(name, divisor_sizes(self.root.extents[loop], limit), self.own[loop])
        x, y = self.template.own.workgroup_size[:2]
        self.knob(TileKnob("threads_m", values=(1, 2, 4, 8, 16, 32)), y)
        # The compiler refuses a single thread along the rows ("fewer GPU threads than iterations").
        self.knob(TileKnob("threads_n", values=(2, 4, 8, 16, 32)), x)
        self.stages((1, 2, 3))
        self.tiles = {at["m"]: "workgroup_m", at["n"]: "workgroup_n"}
        for loop, name in self.names.items():
            self.divides_loop(name, self.root.extents[loop])
        for axis in ("m", "n"):
            self.rule(
                f"threads share workgroup_{axis} evenly",
                (f"threads_{axis}", f"workgroup_{axis}"),
                lambda t, w: (w % t == 0) & (w // t <= _MAX_THREAD_TILE),
                lambda t, w: f"{w} by {t} threads, at most {_MAX_THREAD_TILE} each",
            )
        # Rows of an operand are copied in vectors of four elements by all threads.
        for a, b in (("workgroup_m", "reduction_k"), ("reduction_k", "workgroup_n")):
            self.rule(
                f"threads copy {a} x {b} evenly",
                (a, b, "threads_m", "threads_n"),
                lambda r, c, tm, tn: (c % 4 == 0) & ((r * c // 4) % (tm * tn) == 0),
                lambda r, c, tm, tn: f"{r} x {c} in vectors of 4 by {tm * tn} threads",
            )
        element, limit = max(1, self.root.element_bits // 8), self.target.workgroup_memory

        def used(m: Any, n: Any, k: Any, *depth: Any) -> Any:
            """Bytes of both operands, as often as steps are in flight, rows padded."""
            copies = greatest(1, depth[0]) if depth else 1
            return ((k + 4) * m + (n + 4) * k) * copies * element

        self.rule(
            "shared memory",
            (*self.names.values(), *((DEPTH,) if DEPTH in self._start else ())),
            lambda *v: used(*v) <= limit,
            lambda *v: f"{used(*v)} bytes of {limit}",
        )
        self.threads = tuple(Computed((f"threads_{axis}",), lambda t: t) for axis in ("n", "m"))
        self.limit_threads(8, _MAX_THREADS)

    def levels(self, values: Mapping[str, Any]) -> list[list[int]]:
        tile = list(self.own)
        for loop, name in self.names.items():
            tile[loop] = values[name]
        return [tile]


class CooperativeMatrices(_SpirvPipeline):
    """CooperativeMatrixVectorize: subgroups share a workgroup's tile, each of whole matrices."""

    name = "CooperativeMatrixVectorize"

    def declare(self) -> None:
        own, at, extents = self.own_levels(), self.at, self.root.extents
        self.need(len(own) == 4, all(role in at for role in ("m", "n", "k")))
        m, n, k = at["m"], at["n"], at["k"]
        group, sub, depth, unit = own
        # A workgroup computes one product of a batch. Of bf16 IREE 3.13 refuses its own choice
        # ("no GPU subgroup mma compute ops generated").
        self.need(
            all(group[i] == 1 for i in range(len(extents)) if i not in (m, n, k)),
            "bf16" not in self.workload.element_types,
        )
        self.unit, self.lengths = unit, [len(level) for level in self.tree["tile_sizes"]]
        self.tile("reduction_k", multiples(unit[k], extents[k], 128), depth[k])
        for axis, loop in (("m", m), ("n", n)):
            subgroups, tiles = f"subgroups_{axis}", f"tiles_{axis}"
            self.knob(TileKnob(subgroups, values=(1, 2, 4)), max(1, group[loop] // sub[loop]))
            self.knob(TileKnob(tiles, values=(1, 2, 4, 8)), max(1, sub[loop] // unit[loop]))
            self.rule(
                f"the tile divides {axis}",
                (subgroups, tiles),
                lambda s, t, size=unit[loop], extent=extents[loop]: extent % (s * t * size) == 0,
                lambda s, t, size=unit[loop], extent=extents[loop]: (
                    f"{s * t * size} does not divide {extent}"
                ),
            )
        self.stages((0, 1, 2))
        element, limit = max(1, self.root.element_bits // 8), self.target.workgroup_memory
        width = self.target.subgroup
        every = ("subgroups_m", "tiles_m", "subgroups_n", "tiles_n", "reduction_k")

        def used(sm: Any, tm: Any, sn: Any, tn: Any, step: Any) -> Any:
            """Bytes of both operands' tiles, of two steps at a time, in the result's type."""
            return 2 * (sm * tm * unit[m] + sn * tn * unit[n]) * step * element

        def evenly(sm: Any, tm: Any, sn: Any, tn: Any, step: Any) -> Any:
            threads = sm * sn * width
            rows, columns = sm * tm * unit[m] * step, sn * tn * unit[n] * step
            return ((rows // 8) % threads == 0) & ((columns // 8) % threads == 0)

        self.rule(
            "shared memory",
            every,
            lambda *v: used(*v) <= limit,
            lambda *v: f"the tiles of two steps take {used(*v)} bytes of {limit}",
        )
        self.rule(
            "threads copy the tiles evenly",
            every,
            evenly,
            lambda sm, tm, sn, tn, step: (
                f"{sm * tm * unit[m]} x {step} or {step} x {sn * tn * unit[n]} in vectors of 8 is "
                f"no multiple of {sm * sn * width} threads"
            ),
        )
        self._rules.append(product_at_most("accumulators", ("tiles_m", "tiles_n"), 16))
        for axis, loop in (("m", m), ("n", n)):
            self.numbers[tile_number(axis)] = Computed(
                (f"subgroups_{axis}", f"tiles_{axis}"), lambda s, t, size=unit[loop]: s * t * size
            )
        self.threads = (
            Computed(("subgroups_n",), lambda s: s * width),
            Computed(("subgroups_m",), lambda s: s),
        )

    def levels(self, values: Mapping[str, Any]) -> list[list[int]]:
        workgroup, subgroup, step, _ = (list(level) for level in self.own_levels())
        for axis in ("m", "n"):
            loop = self.at[axis]
            subgroup[loop] = values[f"tiles_{axis}"] * self.unit[loop]
            workgroup[loop] = subgroup[loop] * values[f"subgroups_{axis}"]
        step[self.at["k"]] = values["reduction_k"]
        return [workgroup[: self.lengths[0]], subgroup[: self.lengths[1]], step, self.unit]

    def tiles_of(self, configuration: Configuration) -> GpuTiles:
        shape = "x".join(str(self.unit[self.at[loop]]) for loop in TILED_LOOPS)
        return replace(super().tiles_of(configuration), intrinsic=f"COOPMATRIX_{shape}")


class SubgroupReduce(_SpirvPipeline):
    """A workgroup for each row, walked in steps of its threads' vectors."""

    name = "SubgroupReduce"

    def declare(self) -> None:
        own = self.own_levels()
        self.need(len(own) == 2)
        along = [i for i, size in enumerate(own[1]) if size]
        self.need(len(along) == 1)
        extent = self.root.extents[along[0]]
        self.step, threads = own[1][along[0]], self.template.own.workgroup_size[0]
        width = self.target.subgroup
        self.tile("threads", (width * i for i in powers(32) if width * i <= 1024), threads)
        self.tile("vector", (1, 2, 4), max(1, self.step // threads))
        self.rule(
            "a step divides the row",
            ("threads", "vector"),
            lambda t, v: extent % (t * v) == 0,
            lambda t, v: f"{t * v} does not divide {extent}",
        )
        self.threads = (Computed(("threads",), lambda t: t),)

    def write(self, draft: Draft, values: Mapping[str, Any]) -> None:
        size = values["threads"] * values["vector"]
        for tree in draft.trees.values():
            own = tree.get("tile_sizes") if isinstance(tree, dict) else None
            if own and len(own) > 1:
                own[1] = [size if old == self.step else old for old in own[1]]


PIPELINES: tuple[type[GpuPipeline], ...] = (
    BaseVectorize,
    BaseDistribute,
    PromotedProduct,
    CooperativeMatrices,
    SubgroupReduce,
)

"""An analytic guess of how long a tiling takes: the prior that steers a search, never forbids.

It counts what decides the speed of dense loop nests on a CPU: vector instructions with their
padding, accumulators against registers and the latency of fused multiply-adds, loads per
multiply-add, bytes moved between cache levels for each operand (a roofline over the memory
hierarchy, after Williams et al., 2009, and Low et al., "Analytical modeling is enough for
high-performance BLIS", 2016), and how evenly the work is shared out. The numbers are ratios of a
common processor; only the order of the guesses matters.
"""

from __future__ import annotations

import math

from tilewright.target import Target
from tilewright.tiling import OpTemplate, Tiling
from tilewright.workload import Workload

_FMA_PER_CYCLE = 2.0
_LOADS_PER_CYCLE = 2.0
_FMA_LATENCY = 4
_L2_BYTES_PER_CYCLE = 48.0
_L3_BYTES_PER_CYCLE = 16.0
_MEMORY_BYTES_PER_CYCLE = 6.0
_WORKGROUP_CYCLES = 1500.0
_DISPATCH_CYCLES = 8000.0
_LOOP_CYCLES = 6.0
_SPILL = 2.0
_UNROLLED = 256
_PAGE_BYTES = 4096


class CostModel:
    """Guesses the cycles of one dispatch for tilings of its root op."""

    def __init__(self, root: OpTemplate, workload: Workload, target: Target) -> None:
        self.extents = [max(1, e) for e in root.extents]
        self.reduction = root.reduction
        self.target = target
        self.bytes = max(1, root.element_bits // 8)
        self.lanes = target.lanes(root.element_bits)
        self.operands = list(root.operand_loops) or [tuple(range(len(self.extents)))]
        self.inner = list(root.operand_inner) or [len(self.extents) - 1]
        self.product = workload.kind in (
            "contraction",
            "convolution",
            "depthwise_convolution",
            "grouped_convolution",
            "mmt4d",
            "attention",
        )

    def prior(self, tiling: Tiling) -> float:
        """Minus the logarithm of the guessed cycles: higher is better."""
        return -math.log(self.cycles(tiling))

    def cycles(self, tiling: Tiling) -> float:
        count = len(self.extents)
        outer = [min(tiling.size("distribution", i) or e, e) for i, e in enumerate(self.extents)]
        vector = []
        for i in range(count):
            level = "vector_reduction" if self.reduction[i] else "vector_common_parallel"
            size = tiling.size(level, i) or tiling.size("vector_inner_parallel", i) or outer[i]
            vector.append(min(size, 2 * outer[i]))
        groups = math.prod(
            -(-e // d) for e, d, r in zip(self.extents, outer, self.reduction, strict=True) if not r
        )
        work = self._compute(outer, vector)
        traffic = self._traffic(outer, vector, tiling)
        per_group = max(work, traffic) + 0.25 * min(work, traffic) + _WORKGROUP_CYCLES
        cores = self.target.cores
        waves = -(-groups // cores)
        cycles = waves * per_group * self._irregular(tiling, outer, vector)
        return cycles + (_DISPATCH_CYCLES if groups > 1 else 0.0)

    def _irregular(self, tiling: Tiling, outer: list[int], vector: list[int]) -> float:
        """A factor for what was seen to cost time in measurements, though no count shows it.

        Tiles that do not divide give masked vectors and tails; blocking for caches and inner
        parallel tiles copy operands without packing them.
        """
        factor = 1.0
        for i, (extent, d, v) in enumerate(zip(self.extents, outer, vector, strict=True)):
            if extent % d:
                factor *= 1.15
            if not self.reduction[i] and d % min(v, d):
                factor *= 1.4
            if self.reduction[i] and extent % v:
                factor *= 1.2
        levels = tiling.by_level
        for level, cost in (
            ("cache_parallel", 1.3),
            ("cache_reduction", 1.3),
            ("vector_inner_parallel", 2.0),
        ):
            if any(levels.get(level, ())):
                factor *= cost
        return factor

    def _steps(self, outer: list[int], vector: list[int]) -> float:
        return math.prod(-(-d // v) for d, v in zip(outer, vector, strict=True))

    def _compute(self, outer: list[int], vector: list[int]) -> float:
        """Cycles of arithmetic and loads in one workgroup."""
        lane_loop = self.inner[-1] if self.inner[-1] >= 0 else len(vector) - 1
        if self.reduction[lane_loop] or vector[lane_loop] == 1:
            widest = max(range(len(vector)), key=lambda i: vector[i] if i in self.inner else 0)
            lane_loop = widest if vector[widest] > 1 else lane_loop
        packed = -(-vector[lane_loop] // self.lanes)
        others = math.prod(v for i, v in enumerate(vector) if i != lane_loop)
        instructions = packed * others
        accumulators = packed * math.prod(
            v for i, v in enumerate(vector) if i != lane_loop and not self.reduction[i]
        )
        steps = self._steps(outer, vector)
        reduction_steps = max(1, instructions // max(1, accumulators))
        if not self.product:
            return steps * (instructions + _LOOP_CYCLES)
        loads = 0.0
        for operand in self.operands[:-1]:
            tile = math.prod(vector[i] for i in operand if not self.reduction[i] and i != lane_loop)
            loads += tile * (packed if lane_loop in operand else 1)
        fma = instructions / _FMA_PER_CYCLE
        load = loads * reduction_steps / _LOADS_PER_CYCLE
        latency = reduction_steps * _FMA_LATENCY if accumulators < 8 else 0.0
        cycles = max(fma, load, latency)
        needed = accumulators + packed + 2
        if needed > self.target.vector_registers:
            spilled = needed - self.target.vector_registers
            cycles = 1.2 * cycles + _SPILL * spilled * reduction_steps
        if instructions > _UNROLLED:
            # Long unrolled bodies miss the instruction caches, and take seconds to compile.
            cycles *= math.sqrt(instructions / _UNROLLED)
        strided = [
            inner
            for inner, operand in zip(self.inner[:-1], self.operands[:-1], strict=False)
            if lane_loop in operand and inner != lane_loop
        ]
        if strided:
            # A vector gathered across the operand's memory is transposed in registers first.
            cycles *= 1.5 if all(i >= 0 and vector[i] >= self.lanes for i in strided) else 4.0
        return steps * (cycles + _LOOP_CYCLES)

    def _traffic(self, outer: list[int], vector: list[int], tiling: Tiling) -> float:
        """Cycles of moving the operands of one workgroup through the caches.

        An operand that lacks a loop is used again in each of its steps; it stays in the cache that
        holds what all operands touch between two uses.
        """
        block = list(outer)
        for i in range(len(block)):
            level = "cache_reduction" if self.reduction[i] else "cache_parallel"
            size = tiling.size(level, i)
            if size:
                block[i] = min(size, block[i])
        total = 0.0
        panel = self._footprint(
            [v if not r else b for v, b, r in zip(vector, block, self.reduction, strict=True)]
        )
        whole = self._footprint(block)
        blocks = math.prod(-(-d // b) for d, b in zip(outer, block, strict=True))
        for operand, inner in zip(self.operands, self.inner, strict=True):
            size = self.bytes * math.prod(block[i] for i in operand)
            again = math.prod(
                -(-block[i] // vector[i])
                for i in range(len(block))
                if i not in operand and not self.reduction[i]
            )
            total += blocks * size / self._rate(self._footprint(outer))
            if again > 1:
                rate = self._rate(panel if panel > self.target.l1_bytes else whole)
                stride = self.bytes * (self.extents[inner] if inner >= 0 else 1)
                rows = math.prod(block[i] for i in operand if i != inner)
                if stride % _PAGE_BYTES == 0 and rows > 64:
                    rate /= 4.0  # rows a power of two apart fall into the same cache sets
                if whole > self.target.l1_bytes // 2:
                    total += blocks * size * (again - 1) / rate
        return total

    def _footprint(self, tile: list[int]) -> int:
        return self.bytes * sum(math.prod(tile[i] for i in operand) for operand in self.operands)

    def _rate(self, footprint: float) -> float:
        if footprint <= self.target.l2_bytes:
            return _L2_BYTES_PER_CYCLE
        if footprint <= self.target.l3_bytes:
            return _L3_BYTES_PER_CYCLE
        return _MEMORY_BYTES_PER_CYCLE

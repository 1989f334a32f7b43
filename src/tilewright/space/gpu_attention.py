"""VectorDistribute for attention where the compiler states no constraints (CUDA).

With matrix instructions, workgroup and reduction tiles and the subgroups that share the rows are
chosen; without, how lanes and subgroups share the products' loops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.argument import dtype_of
from tilewright.gpu import DECOMPOSITION_CONFIG, GpuTemplate
from tilewright.gpu_target import GpuTarget
from tilewright.space.gpu_explicit import Draft, Recipe, fixed, rule, tile_values
from tilewright.space.gpu_member import Computed
from tilewright.space.knobs import TileKnob
from tilewright.trial import Value
from tilewright.workload import Workload

_PIPELINE = "#iree_gpu.pipeline<VectorDistribute>"
SUBGROUPS, LANES, VECTOR = "subgroups", "lanes_n", "vector"
_QK, _PV = "qk_attrs", "pv_attrs"
_CONFIG = "lowering_config"


def attention_recipe(template: GpuTemplate, workload: Workload, target: GpuTarget) -> Recipe | None:
    """None where the dispatch is no attention, or the compiler's constraints are there."""
    if workload.kind != "attention" or template.programs:
        return None
    parts = template.tree(template.root, DECOMPOSITION_CONFIG)
    if not isinstance(parts, dict) or _QK not in parts or _PV not in parts:
        return None
    qk, pv = parts[_QK][_CONFIG], parts[_PV][_CONFIG]
    if "mma_kind" in qk and "mma_kind" in pv:
        return _matrix(template, workload, target, pv)
    if "lane_basis" in qk and "lane_basis" in pv:
        return _scalar(template, workload, target, qk, pv)
    return None


def _roles(workload: Workload) -> dict[str, int]:
    """The last loop of each role."""
    return {dim.role: i for i, dim in enumerate(workload.dims)}


def _matrix(
    template: GpuTemplate, workload: Workload, target: GpuTarget, pv: Mapping[str, Any]
) -> Recipe | None:
    at = _roles(workload)
    sizes = {role: workload.dims[i].size for role, i in at.items()}
    tree = template.tree(template.root)
    shapes = _shapes(template)
    if not shapes or any(role not in at for role in ("m", "n", "k1", "k2")):
        return None
    m_unit, n_unit, k_unit = shapes
    # The scores of a step are an output of the first product and an input of the second.
    k2_unit = max(n_unit, k_unit)
    subgroups = max(pv["subgroup_basis"][0])
    row = pv["subgroup_basis"][0].index(subgroups) if subgroups > 1 else at["m"]
    element = dtype_of(workload.element_types[0]).itemsize
    own: dict[str, Value] = {
        "tile_m": tree["workgroup"][at["m"]],
        "tile_n": tree["workgroup"][at["n"]],
        "tile_k2": tree["reduction"][at["k2"]],
        SUBGROUPS: subgroups,
    }
    knobs = (
        TileKnob("tile_m", values=_of_unit(sizes["m"], m_unit, 256, int(str(own["tile_m"])))),
        TileKnob("tile_n", values=_of_unit(sizes["n"], n_unit, 256, int(str(own["tile_n"])))),
        TileKnob("tile_k2", values=_of_unit(sizes["k2"], k2_unit, 256, int(str(own["tile_k2"])))),
        TileKnob(SUBGROUPS, values=(1, 2, 4, 8)),
    )

    def memory(m: Any, n: Any, k2: Any) -> Any:
        return element * (m * sizes["k1"] + k2 * sizes["k1"] + k2 * n + m * k2)

    threads = target.subgroup
    rules = (
        rule(
            "each subgroup has whole intrinsics of rows",
            ("tile_m", SUBGROUPS),
            lambda m, s: m % (s * m_unit) == 0,
            lambda m, s: f"{m} is no multiple of {s} * {m_unit}",
        ),
        rule(
            "shared memory",
            ("tile_m", "tile_n", "tile_k2"),
            lambda m, n, k: memory(m, n, k) <= target.workgroup_memory,
            lambda m, n, k: f"{memory(m, n, k)} bytes, the device has {target.workgroup_memory}",
        ),
        rule(
            "registers of a thread",
            ("tile_m", "tile_n", "tile_k2", SUBGROUPS),
            lambda m, n, k, s: m * (n + k) <= target.registers * s * threads,
            lambda m, n, k, s: f"{m * (n + k) // (s * threads)}, more than {target.registers}",
        ),
    )

    def write(draft: Draft, values: Mapping[str, Value]) -> None:
        config = draft.tree(template.root)
        config["workgroup"][at["m"]] = values["tile_m"]
        config["workgroup"][at["n"]] = values["tile_n"]
        config["reduction"][at["k2"]] = values["tile_k2"]
        parts = draft.tree(template.root, DECOMPOSITION_CONFIG)
        for part in (_QK, _PV):
            parts[part][_CONFIG]["subgroup_basis"][0][row] = values[SUBGROUPS]

    return Recipe(
        "VectorDistribute.attention",
        _PIPELINE,
        knobs,
        rules,
        own,
        write,
        (Computed((SUBGROUPS,), lambda s: s * threads), fixed(1), fixed(1)),
        is_own=True,
    )


def _scalar(
    template: GpuTemplate,
    workload: Workload,
    target: GpuTarget,
    qk: Mapping[str, Any],
    pv: Mapping[str, Any],
) -> Recipe | None:
    at = _roles(workload)
    if any(role not in at for role in ("m", "n", "k1", "k2")):
        return None
    sizes = {role: workload.dims[i].size for role, i in at.items()}
    tree = template.tree(template.root)
    counts = pv["lane_basis"][0]
    key = len(counts) - 1
    inner = key - 1
    parts = [one[basis][0] for one in (qk, pv) for basis in ("lane_basis", "subgroup_basis")]
    if any(len(part) != len(counts) for part in parts) or "partial_reduction" not in tree:
        return None
    vector = max(pv["thread"])
    own: dict[str, Value] = {
        "tile_n": tree["workgroup"][at["n"]],
        "tile_k2": tree["partial_reduction"][at["k2"]],
        SUBGROUPS: pv["subgroup_basis"][0][key],
        LANES: counts[inner],
        VECTOR: vector,
    }
    width = target.subgroup
    step = int(str(own["tile_k2"]))
    knobs = (
        TileKnob("tile_n", values=tile_values(sizes["n"], 256, int(str(own["tile_n"])))),
        TileKnob("tile_k2", values=tile_values(sizes["k2"], 1024, step)),
        TileKnob(SUBGROUPS, values=(1, 2, 4, 8, 16)),
        TileKnob(LANES, values=tuple(1 << i for i in range(width.bit_length()))),
        TileKnob(VECTOR, values=(1, 2, 4, 8)),
    )
    k1 = sizes["k1"]
    rules = (
        rule(
            "tile_n is whole vectors of the lanes",
            ("tile_n", LANES, VECTOR),
            lambda n, a, v: (n % (a * v) == 0) & (k1 % (a * v) == 0),
            lambda n, a, v: f"{n} or {k1} is no multiple of {a} * {v}",
        ),
        rule(
            "tile_k2 is whole rows of lanes and subgroups",
            ("tile_k2", LANES, SUBGROUPS),
            lambda k, a, s: k % (width // a * s) == 0,
            lambda k, a, s: f"{k} is no multiple of {width // a} * {s}",
        ),
        rule(
            "elements of a thread",
            ("tile_n", "tile_k2", SUBGROUPS),
            lambda n, k, s: k * (n + k1) <= target.registers * 4 * s * width,
            lambda n, k, s: f"{k * (n + k1) // (s * width)}, more than {4 * target.registers}",
        ),
    )

    def write(draft: Draft, values: Mapping[str, Value]) -> None:
        config = draft.tree(template.root)
        config["workgroup"][at["n"]] = values["tile_n"]
        config["partial_reduction"][at["k2"]] = values["tile_k2"]
        lanes = int(str(values[LANES]))
        parts = draft.tree(template.root, DECOMPOSITION_CONFIG)
        for part in (_QK, _PV):
            one = parts[part][_CONFIG]
            one["lane_basis"][0][inner] = lanes
            one["lane_basis"][0][key] = width // lanes
            one["subgroup_basis"][0][key] = values[SUBGROUPS]
            one["thread"] = [values[VECTOR] if size else 0 for size in one["thread"]]

    return Recipe(
        "VectorDistribute.attention",
        _PIPELINE,
        knobs,
        rules,
        own,
        write,
        (Computed((SUBGROUPS,), lambda s: s * width), fixed(1), fixed(1)),
        is_own=True,
    )


def _shapes(template: GpuTemplate) -> tuple[int, int, int] | None:
    """m, n and k of the matrix intrinsic, as its name ends in `16x8x16_F16`."""
    parts = template.tree(template.root, DECOMPOSITION_CONFIG)
    name = str(parts[_PV][_CONFIG]["mma_kind"]).removesuffix(">")
    for word in name.split("_"):
        numbers = word.split("x")
        if len(numbers) == 3 and all(n.isdigit() for n in numbers):
            m, n, k = map(int, numbers)
            return m, n, k
    return None


def _of_unit(extent: int, unit: int, limit: int, own: int) -> tuple[int, ...]:
    """Multiples of the intrinsic's size that divide the loop."""
    sizes = {s for s in range(unit, min(extent, limit) + 1, unit) if extent % s == 0}
    return tuple(sorted({*sizes, own}))

"""Spaces from the compiler's own constraints (`iree_codegen.smt.constraints`).

The knobs that the constraints leave free, under the compiler's names (`wg_0`: workgroup tile of
loop 0, `sg_0`: tiles of the intrinsic for one subgroup, `red_2`: reduction tile, `mma_idx`: the
matrix intrinsic), with every assertion as a constraint, and what the pipelines read beside them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.gpu import GpuCompilationInfo, GpuTemplate
from tilewright.gpu_target import ROCM, GpuTarget
from tilewright.smt_program import Assertion, ConstraintProgram
from tilewright.space.constraints import Constraint
from tilewright.space.gpu_cost import TilePrior, columns
from tilewright.space.gpu_member import WORKGROUP_SIZES, Computed, GpuSpace
from tilewright.space.gpu_rules import (
    ALL_PROMOTED,
    PROMOTE,
    WAVES,
    attention_rules,
    register_rules,
    whole_tile_rules,
)
from tilewright.space.interface import FloatArray
from tilewright.space.knobs import BoolKnob, ChoiceKnob, Knob, TileKnob
from tilewright.space.search_space import PriorMany
from tilewright.space.smt import ConstraintModel
from tilewright.tiling import Translation
from tilewright.trial import Configuration, Value
from tilewright.workload import Workload

# What the constraints call the sizes of the workgroup.
_SIZES = dict(zip(WORKGROUP_SIZES, ("wg_size_x", "wg_size_y", "wg_size_z"), strict=True))

REORDER = "reorder_workgroups"
BANK_CONFLICTS = "reduce_bank_conflicts"

# Workgroups that share columns follow one another where the columns of the result take more cache
# than its rows. The numbers are those of the dies of an MI300X and of the processors of one.
_TRANSPOSE = "#iree_gpu.conditional_transpose<8, 38>"

# Operands of attention (queries, keys, values) that go through shared memory, and how threads copy
# one of them.
_PROMOTED = (ALL_PROMOTED, "1,2")
_THREADS = "#iree_gpu.derived_thread_config"

# Assertions with more combinations of values than this are not looked through for being redundant.
_MAX_LOOK = 1 << 18


class SmtMember:
    """The space of one constraints op of a dispatch.

    Raises ValueError where the constraints leave no configuration, Unbounded where a knob has no
    bound.
    """

    def __init__(
        self,
        program: ConstraintProgram,
        template: GpuTemplate,
        workload: Workload,
        target: GpuTarget,
    ) -> None:
        self.name = name = program.pipeline
        self.program = program
        self.template = template
        self.is_product = workload.kind == "contraction"
        self.is_attention = workload.kind == "attention"
        self.model = ConstraintModel(program)
        if any(not len(domain) for domain in self.model.domains.values()):
            raise ValueError(f"{name}: the constraints leave no configuration")
        self._options = {k.name: k.options for k in program.knobs if k.options}
        self.free = tuple(n for n, d in self.model.domains.items() if len(d) > 1)
        self._fixed = {n: int(d[0]) for n, d in self.model.domains.items() if len(d) == 1}
        if "true" in (options[self._fixed.get(n, 0)] for n, options in self._options.items()):
            # The convolution as a product of matrices: other loops, other knobs.
            self.name = name = f"{name}.igemm"
        self.extras = _extras(self, target)
        knobs: list[Knob] = [self._knob(n) for n in self.free]
        knobs += self.extras
        constraints = [
            *self._constraints(),
            *register_rules(self, target),
            *attention_rules(self, workload, target),
            *reorder_rules(self),
            *whole_tile_rules(self, workload),
        ]
        self.computed = self.computed_sizes
        default = self._default(knobs, constraints)
        self.space = GpuSpace(
            name,
            knobs,
            constraints,
            default,
            computed=self.computed,
            prior_many=self._prior(workload, target),
        )

    # -- knobs ---------------------------------------------------------------------------------

    def _knob(self, name: str) -> Knob:
        domain = tuple(int(v) for v in self.model.domains[name])
        options = self._options.get(name)
        if options:
            return ChoiceKnob(name, tuple(options[i] for i in domain), vocabulary=options)
        return TileKnob(name, values=domain)

    def number(self, name: str, value: Any) -> Any:
        """The integer (or array of them) that the constraints use for a knob's values."""
        options = self._options.get(name)
        if not options:
            return np.asarray(value, dtype=np.int64)
        position = {option: i for i, option in enumerate(options)}
        if isinstance(value, str):
            return np.int64(position[value])
        labels, inverse = np.unique(np.asarray(value).astype(str), return_inverse=True)
        return np.array([position[str(one)] for one in labels], dtype=np.int64)[inverse]

    @property
    def names(self) -> tuple[str, ...]:
        """Every variable with a value of its own, free or fixed."""
        return (*self.free, *self._fixed)

    def shapes(self, knob: str) -> tuple[tuple[int, int, int], ...]:
        """The m, n and k of the intrinsics that a knob chooses from."""
        return next(k.shapes for k in self.program.knobs if k.name == knob)

    def threads(self, values: Mapping[str, Any]) -> Any:
        """Threads of a workgroup, for values of the constraints' variables."""
        name = _SIZES[WORKGROUP_SIZES[0]]
        return values[name] if name in values else self.model.compute(name, values)

    def values(self, names: Sequence[str], columns: Sequence[Any]) -> dict[str, Any]:
        """Values for the constraints from those of some knobs; the fixed ones are added."""
        given = {n: self.number(n, c) for n, c in zip(names, columns, strict=True)}
        return {**{n: np.int64(v) for n, v in self._fixed.items()}, **given}

    # -- constraints ---------------------------------------------------------------------------

    def _constraints(self) -> list[Constraint]:
        found: dict[str, Constraint] = {}
        for assertion in self.program.assertions:
            scope = tuple(n for n in self.model.scope(assertion.node) if n in self.free)
            if not scope or self._always_holds(assertion, scope):
                continue
            name = _name(assertion.message)
            unique = name
            while unique in found:
                unique += "'"
            found[unique] = self._constraint(unique, assertion, scope)
        return list(found.values())

    def _always_holds(self, assertion: Assertion, scope: tuple[str, ...]) -> bool:
        size = int(np.prod([len(self.model.domains[n]) for n in scope]))
        if size > _MAX_LOOK:
            return False
        values = {**{n: np.int64(v) for n, v in self._fixed.items()}, **self.model.grid(scope)}
        return bool(np.all(self.model.holds(assertion, values)))

    def _constraint(self, name: str, assertion: Assertion, scope: tuple[str, ...]) -> Constraint:
        def check(*columns: Any) -> Any:
            return self.model.holds(assertion, self.values(scope, columns))

        def reason(*values: Any) -> str:
            numbers = self.values(scope, values)
            shown = [int(self.model.evaluate(i, numbers)) for i in assertion.shown]
            named = ", ".join(f"{n} {v}" for n, v in zip(scope, values, strict=True))
            return f"{assertion.message.format(*shown)} ({named})"

        return Constraint(name, scope, check, reason, vectorised=True)

    @cached_property
    def computed_sizes(self) -> dict[str, Computed]:
        """The sizes of the workgroup, under the names that a user restricts them by."""
        return {
            ours: self._computed(theirs)
            for ours, theirs in _SIZES.items()
            if theirs in self.model.computed or theirs in self._fixed or theirs in self.free
        }

    def _computed(self, name: str) -> Computed:
        if name in self._fixed:
            value = self._fixed[name]
            return Computed((), lambda: value)
        if name in self.free:
            return Computed((name,), lambda v: v)
        total, divisors = self.model._quotients[name]
        reached = {n for i in (total, *divisors) for n in self.model.scope(i)}
        scope = tuple(n for n in self.free if n in reached)
        return Computed(scope, lambda *c: self.model.compute(name, self.values(scope, c)))

    def _prior(self, workload: Workload, target: GpuTarget) -> PriorMany | None:
        """By the workgroup tiles of the root op's loops, where the constraints name them so."""
        root = self.template.root_op
        threads = self.computed_sizes.get(WORKGROUP_SIZES[0])
        if threads is None or len(workload.dims) != len(self.program.dims):
            return None
        tiles = {i: f"wg_{i}" for i in range(len(workload.dims)) if not workload.dims[i].reduction}
        prior = TilePrior(workload, target, root.operand_loops, root.element_bits, matrix=True)

        def of(configs: Sequence[Configuration]) -> FloatArray:
            values = columns(configs)
            sizes: dict[int, FloatArray] = {}
            for loop, name in tiles.items():
                if name in values:
                    sizes[loop] = np.asarray(values[name], dtype=np.float64)
                elif name in self._fixed:
                    sizes[loop] = np.full(len(configs), float(self._fixed[name]))
            count = threads.compute(*(values[k] for k in threads.knobs))
            return prior(sizes, np.broadcast_to(np.asarray(count, np.float64), (len(configs),)))

        return of

    # -- configurations ------------------------------------------------------------------------

    def _default(self, knobs: Sequence[Knob], constraints: Sequence[Constraint]) -> Configuration:
        """The compiler's own choice where it is a member, else any configuration."""
        own = self._own()
        if own is not None:
            values = dict(own.items)
            inside = all(k.index(values[k.name]) is not None for k in knobs)
            if inside and all(c.holds(values) for c in constraints):
                return own
        free = GpuSpace.of(self.name, knobs, constraints, Configuration(()))
        found = free.sample(np.random.default_rng(0), 1)
        if not found:
            raise ValueError(f"{self.name}: the constraints leave no configuration")
        return found[0]

    @property
    def matches_own(self) -> bool:
        """Whether the compiler's own choice is a member of this space."""
        own = self._own()
        return own is not None and own == self.space.default

    def _own(self) -> Configuration | None:
        assignments = self.template.own.assignments
        if self.program.ordinal >= len(assignments):
            return None
        found = assignments[self.program.ordinal]
        if found is None:
            return None
        numbers = dict(found)
        values: dict[str, Value] = {}
        for name in self.free:
            if name not in numbers:
                return None
            options = self._options.get(name)
            values[name] = options[numbers[name]] if options else numbers[name]
        for knob in self.extras:
            values[knob.name] = _own_extra(knob.name, self)
        return Configuration.of(values)

    def assignment(self, values: Mapping[str, Value]) -> dict[str, int]:
        """A value for every knob of the constraints, as the compiler's functions take it."""
        names = tuple(n for n in self.free if n in values)
        numbers = self.values(names, [values[n] for n in names])
        found = {}
        for knob in self.program.knobs:
            if knob.name in numbers:
                found[knob.name] = int(numbers[knob.name])
            else:
                found[knob.name] = int(self.model.compute(knob.name, numbers))
        return found

    def configure(self, configuration: Configuration) -> GpuCompilationInfo:
        values = dict(configuration.items)
        assignment = self.assignment(values)
        lowering, options, settings = _edits(self, values, assignment)
        shown = [f"{n} {values[n]}" for n in (*self.free, *(k.name for k in self.extras))]
        return GpuCompilationInfo(
            Translation(self.program.pipeline),
            (),
            root=self.template.root,
            ordinal=self.program.ordinal,
            assignment=tuple(sorted(assignment.items())),
            lowering=lowering,
            options=options,
            settings=settings,
            summary="; ".join(shown),
            workgroup_size=tuple(
                assignment.get(n, 1) for n in ("wg_size_x", "wg_size_y", "wg_size_z")
            ),
        )


def _name(message: str) -> str:
    """A short name for an assertion: its message without the numbers shown."""
    text = re.sub(r"\s*\([^()]*\{\}[^()]*\)", "", message)
    return text.strip() or "constraint"


# What the constraints leave free and the pipelines read


def _extras(member: SmtMember, target: GpuTarget) -> list[Knob]:
    names = {k for k, _ in member.program.fixed} | {k.name for k in member.program.knobs}
    knobs: list[Knob] = []
    if "prefetch_num_stages" in names:
        # Only pipelines with pipeline options have these.
        knobs.append(BoolKnob(BANK_CONFLICTS))
    # Of a convolution the workgroups' grid has more dimensions than the constraints' tiles tell.
    if member.is_product and len(_workgroup_loops(member)) == 2:
        knobs.append(ChoiceKnob(REORDER, ("none", "transpose")))
    if target.backend == ROCM:
        knobs.append(ChoiceKnob(WAVES, (0, 1, 2, 4)))
    if member.is_attention and dict(member.program.fixed).get(PROMOTE) == "[0, 1, 2]":
        # The constraints fix it, the pipeline does not: queries can stay in registers.
        knobs.append(ChoiceKnob(PROMOTE, _PROMOTED))
    return knobs


def _workgroup_loops(member: SmtMember) -> list[int]:
    """The loops that workgroups share out, as the constraints number them."""
    names = (n.removeprefix("wg_") for n in member.names if n.startswith("wg_"))
    return sorted(int(n) for n in names if n.isdigit())


def reorder_rules(member: SmtMember) -> list[Constraint]:
    """Only a grid of workgroups in two dimensions can be transposed."""
    if all(knob.name != REORDER for knob in member.extras):
        return []
    loops = _workgroup_loops(member)
    tiles = tuple(f"wg_{i}" for i in loops)
    free = tuple(n for n in tiles if n in member.free)
    sizes = [member.program.dims[i] for i in loops]

    def check(order: Any, *columns: Any) -> Any:
        values = member.values(free, columns)
        several: Any = np.bool_(True)
        for name, size in zip(tiles, sizes, strict=True):
            several = several & (values[name] < size)
        return (np.asarray(order) == "none") | several

    return [
        Constraint(
            "transposed workgroups are a grid",
            (REORDER, *free),
            check,
            lambda *v: "the workgroups are a single row or column",
            vectorised=True,
        )
    ]


def _own_extra(name: str, member: SmtMember) -> Value:
    own = member.template.own
    options = dict(own.options)
    if name == BANK_CONFLICTS:
        return options.get("no_reduce_shared_memory_bank_conflicts") != "true"
    if name == REORDER:
        return "transpose" if "workgroup_reordering_strategy" in dict(own.entries) else "none"
    if name == PROMOTE:
        return ",".join(map(str, own.size(PROMOTE)))
    return 0


def _padding(member: SmtMember, assignment: Mapping[str, int]) -> list[int]:
    """The sizes that a product's tiles are padded to where they do not divide the loops: the
    constraints take sizes rounded up to whole intrinsics. Empty where nothing is left over."""
    if member.program.pipeline != "TileAndFuse" or not member.is_product:
        return []
    depth = member.shapes("mma_idx")[assignment["mma_idx"]][2]
    sizes = []
    for loop in range(len(member.program.dims)):
        step = assignment.get(f"red_{loop}", 0) * depth
        sizes.append(assignment.get(f"wg_{loop}", 0) or step or 1)
    left = any(size % tile for size, tile in zip(member.program.dims, sizes, strict=True))
    return sizes if left else []


def _edits(
    member: SmtMember, values: Mapping[str, Value], assignment: Mapping[str, int]
) -> tuple[Any, Any, Any]:
    """Entries of the lowering configuration, pipeline options, settings of the translation."""
    lowering: list[tuple[str, str]] = []
    options: list[tuple[str, str]] = []
    settings: list[tuple[str, str]] = []
    own = dict(member.template.own.entries)
    if member.template.translation.pipeline == member.program.pipeline:
        lowering += [(k, v) for k, v in own.items() if v == "unit"]
    padding = _padding(member, assignment)
    if padding:
        lowering.append(("padding", f"[{', '.join(map(str, padding))}]"))
    if values.get(BANK_CONFLICTS) is False:
        options.append(("no_reduce_shared_memory_bank_conflicts", "true"))
    if values.get(REORDER) == "transpose":
        lowering.append(("workgroup_reordering_strategy", _TRANSPOSE))
    promoted = values.get(PROMOTE)
    if promoted is not None and promoted != ALL_PROMOTED:
        operands = str(promoted).split(",")
        lowering.append((PROMOTE, f"[{', '.join(operands)}]"))
        lowering.append(("promotion_types", f"[{', '.join([_THREADS] * len(operands))}]"))
    waves = values.get(WAVES)
    if waves:
        settings.append(("llvm_func_attrs", f'{{"amdgpu-waves-per-eu" = "{waves}"}}'))
    return tuple(lowering), tuple(options), tuple(settings)

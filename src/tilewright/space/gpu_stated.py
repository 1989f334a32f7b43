"""What the compiler's constraints on a dispatch (`iree_codegen.smt.constraints`) leave free.

The knobs are those of the compiler, under its names (`wg_0`: workgroup tile of loop 0, `sg_0`:
tiles of the intrinsic for one subgroup, `red_2`: reduction tile, `mma_idx`: the matrix intrinsic),
with every assertion as a constraint, and what the pipelines read beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.attributes import parse_attribute
from tilewright.gpu import Assertion, ConstraintProgram, GpuTemplate
from tilewright.space.constraints import Computed, Constraint, declared
from tilewright.space.gpu_pipeline import (
    BANK_CONFLICTS,
    PROMOTE,
    STAGE_COUNTS,
    STAGES,
    WORKGROUP_SIZES,
    waves_knob,
)
from tilewright.space.knobs import BoolKnob, ChoiceKnob, Knob, TileKnob
from tilewright.space.pipeline import Unfit
from tilewright.space.smt import ConstraintModel
from tilewright.space.terms import Term, evaluator, greatest, look_up, product, term, variables_of
from tilewright.target import ROCM, GpuTarget
from tilewright.workload import Workload

# What the constraints call the sizes of the workgroup.
SIZES = ("wg_size_x", "wg_size_y", "wg_size_z")

REORDER = "reorder_workgroups"
ORDERS = ("none", "transpose")
INTRINSIC = "mma_idx"

# Operands of attention (queries, keys, values) that go through shared memory.
ALL_PROMOTED, KEYS_PROMOTED = "0,1,2", "1,2"

# Assertions with more combinations of values than this are not looked through for being redundant.
_MAX_LOOK = 1 << 18
# What the name of a pipeline ends with that makes a convolution a product of matrices.
AS_PRODUCT = ".igemm"


class StatedKnobs:
    """What the constraints of one op leave free: as knobs, as terms over them, as rules."""

    def __init__(
        self,
        program: ConstraintProgram,
        template: GpuTemplate,
        workload: Workload,
        target: GpuTarget,
    ) -> None:
        self.program, self.template = program, template
        self.workload, self.target = workload, target
        try:
            self.model = ConstraintModel(program)
        except ValueError as error:  # a knob without a bound, or an operation that is not modelled
            raise Unfit(str(error)) from error
        if any(not len(domain) or domain[0] < 0 for domain in self.model.domains.values()):
            raise Unfit(f"{program.pipeline}: the constraints leave no configuration")
        self.options = {k.name: k.options for k in program.knobs if k.options}
        self.free = tuple(n for n, d in self.model.domains.items() if len(d) > 1)
        self.fixed = {n: int(d[0]) for n, d in self.model.domains.items() if len(d) == 1}
        # Every variable with a value of its own, free or fixed.
        self.names = (*self.free, *self.fixed)
        chosen = [options[self.fixed.get(n, 0)] for n, options in self.options.items()]
        # The convolution as a product of matrices has other loops and other knobs.
        self.name = f"{program.pipeline}{AS_PRODUCT}" if "true" in chosen else program.pipeline
        self.extras = tuple(self._extras())
        self.extra_names = tuple(knob.name for knob in self.extras)
        self.computed = {
            ours: self._computed(theirs)
            for ours, theirs in zip(WORKGROUP_SIZES, SIZES, strict=True)
            if theirs in (*self.model.computed, *self.names)
        }

    def knob(self, name: str) -> Knob:
        """The knob for a variable that the constraints leave free."""
        domain = tuple(int(v) for v in self.model.domains[name])
        options = self.options.get(name)
        if options:
            return ChoiceKnob(name, tuple(options[i] for i in domain), vocabulary=options)
        return TileKnob(name, values=domain)

    def _extras(self) -> Iterable[Knob]:
        """What the constraints leave free and the pipelines read."""
        stated = dict(self.program.fixed)
        if STAGES in {*stated, *(k.name for k in self.program.knobs)}:
            # Only pipelines with pipeline options have these.
            yield BoolKnob(BANK_CONFLICTS)
            if self.target.backend == ROCM and STAGES not in self.free:
                # What is copied for a convolution is not known here.
                plain = self.workload.kind == "contraction"
                yield TileKnob(STAGES, STAGE_COUNTS if plain else STAGE_COUNTS[:2])
        # Of a convolution the workgroups' grid has more dimensions than the constraints' tiles say.
        if self.workload.kind == "contraction" and len(self.grid) == 2:
            yield ChoiceKnob(REORDER, ORDERS)
        if self.target.backend == ROCM:
            yield waves_knob()
        if self.workload.kind == "attention" and parse_attribute(stated.get(PROMOTE, "[]")) == [
            0,
            1,
            2,
        ]:
            # The constraints fix it, the pipeline does not: queries can stay in registers.
            yield ChoiceKnob(PROMOTE, (ALL_PROMOTED, KEYS_PROMOTED))

    @cached_property
    def grid(self) -> dict[int, str]:
        """The workgroup tiles of the loops that workgroups share out, by loop."""
        numbers = {n.removeprefix("wg_"): n for n in self.names if n.startswith("wg_")}
        return {int(i): numbers[i] for i in sorted(filter(str.isdigit, numbers), key=int)}

    def number(self, name: str, value: Any) -> Any:
        """The integer (or array of them) that the constraints use for a knob's values."""
        options = self.options.get(name)
        if not options:
            return np.asarray(value, dtype=np.int64)
        labels, inverse = np.unique(np.asarray(value).astype(str), return_inverse=True)
        found = np.array([options.index(str(one)) for one in labels], dtype=np.int64)
        return found[inverse].reshape(np.shape(value))

    def values(self, names: Sequence[str], columns: Sequence[Any]) -> dict[str, Any]:
        """Values for the constraints from those of some knobs; the fixed ones are added."""
        given = {n: self.number(n, c) for n, c in zip(names, columns, strict=True)}
        return {**{n: np.int64(v) for n, v in self.fixed.items()}, **given}

    def _computed(self, name: str) -> Computed:
        """A variable of the constraints as a number that follows from knobs."""
        if name in self.fixed:
            return Computed((), lambda: self.fixed[name])
        if name in self.free:
            return Computed((name,), lambda v: v)
        scope = tuple(n for n in self.free if n in self.model.scope_of(name))
        return Computed(scope, lambda *c: self.model.compute(name, self.values(scope, c)))

    @property
    def in_intrinsics(self) -> bool:
        """Whether steps of the reduction count intrinsics; else elements."""
        return self.program.pipeline == "TileAndFuse" and INTRINSIC in self.names

    @cached_property
    def is_padded(self) -> bool:
        """Whether tiles need not divide their loops; of convolutions those that are products, whose
        loops are those of the convolution's result and one for all of its sums."""
        if self.workload.kind != "convolution":
            return self.workload.kind == "contraction"
        sums = [dim.reduction for dim in self.workload.dims]
        return self.name == f"TileAndFuse{AS_PRODUCT}" and sums == sorted(sums)

    # -- the compiler's constraints as terms and rules over the knobs ----------------------------

    @cached_property
    def terms(self) -> dict[str, Term]:
        """Every variable of the constraints as a term over the free ones."""
        names = (*self.names, *self.model.computed)
        return {name: self.model.variable_term(name) for name in names}

    def scope_of(self, *terms: Term, extras: Sequence[str] = ()) -> tuple[str, ...]:
        """The knobs that terms look at, in their order."""
        used = variables_of(terms)
        return tuple(n for n in (*extras, *self.free) if n in used)

    def at_most(self, name: str, count: Term, limit: int, unit: str) -> list[Constraint]:
        """A limit on a number that follows from variables; none where no knob is among them."""
        scope = self.scope_of(count)
        if not scope:
            return []
        number = evaluator(count, scope)
        return [
            declared(
                name,
                scope,
                count <= limit,
                lambda *v: f"{int(number(*v))}, more than {limit} {unit}",
            )
        ]

    @cached_property
    def thread_count(self) -> Term:
        """Threads of a workgroup, at least 1."""
        sizes = [self.terms[name] for name in SIZES if name in self.terms]
        return term(greatest(1, product(sizes)))

    def intrinsic_size(self, knob: str, axis: int) -> Any:
        """The m, n or k of the intrinsic that a knob chooses."""
        shapes = next(k.shapes for k in self.program.knobs if k.name == knob)
        return look_up(self.terms[knob], [shape[axis] for shape in shapes])

    def stated_rules(self) -> list[Constraint]:
        """Every assertion that can fail, under the message of the compiler."""
        found: dict[str, Constraint] = {}
        for assertion in self.program.assertions:
            scope = tuple(n for n in self.model.scope(assertion.node) if n in self.free)
            if not scope or self._always_holds(assertion, scope):
                continue
            # The message without the numbers shown.
            name = re.sub(r"\s*\([^()]*\{\}[^()]*\)", "", assertion.message).strip() or "constraint"
            while name in found:
                name += "'"
            found[name] = self._stated_rule(name, assertion, scope)
        return list(found.values())

    def _always_holds(self, assertion: Assertion, scope: tuple[str, ...]) -> bool:
        size = int(np.prod([len(self.model.domains[n]) for n in scope]))
        if size > _MAX_LOOK:
            return False
        values = {**self.values((), ()), **self.model.grid(scope)}
        return bool(np.all(self.model.holds(assertion, values)))

    def _stated_rule(self, name: str, assertion: Assertion, scope: tuple[str, ...]) -> Constraint:
        def reason(*values: Any) -> str:
            numbers = self.values(scope, values)
            shown = [int(self.model.evaluate(i, numbers)) for i in assertion.shown]
            named = ", ".join(f"{n} {v}" for n, v in zip(scope, values, strict=True))
            return f"{assertion.message.format(*shown)} ({named})"

        return declared(name, scope, self.model.term(assertion.node), reason)

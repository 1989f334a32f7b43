"""Pipelines for which the compiler states its constraints (`iree_codegen.smt.constraints`).

The knobs are those that the constraints leave free, under the compiler's names (`wg_0`: workgroup
tile of loop 0, `sg_0`: tiles of the intrinsic for one subgroup, `red_2`: reduction tile, `mma_idx`:
the matrix intrinsic), with every assertion as a constraint; what the pipelines read beside them;
and rules that the compiler leaves out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.argument import dtype_of
from tilewright.attributes import ATTRIBUTE, Tree, attribute, parse_attribute, print_attribute
from tilewright.gpu import (
    Assertion,
    ConstraintProgram,
    GpuCompilationInfo,
    GpuTemplate,
    GpuTiles,
)
from tilewright.space.arrays import FloatArray
from tilewright.space.constraints import Computed, Constraint, declared
from tilewright.space.gpu_copies import is_shared_out, is_whole
from tilewright.space.gpu_cost import columns, tile_prior
from tilewright.space.gpu_pipeline import (
    BANK_CONFLICTS,
    MAX_INTRINSICS,
    PROMOTE,
    STAGE_COUNTS,
    STAGES,
    TILED_LOOPS,
    WAVES,
    WORKGROUP_SIZES,
    own_stages,
    tile_number,
    waves_knob,
    waves_setting,
)
from tilewright.space.knobs import BoolKnob, ChoiceKnob, Knob, TileKnob
from tilewright.space.pipeline import Pipeline, Unfit, space_near
from tilewright.space.smt import ConstraintModel
from tilewright.space.terms import (
    Term,
    evaluator,
    greatest,
    look_up,
    product,
    term,
    variable,
    variables_of,
    where,
)
from tilewright.target import ROCM, GpuTarget
from tilewright.tiling import Translation
from tilewright.trial import Configuration, Value
from tilewright.workload import Workload

# What the constraints call the sizes of the workgroup.
_SIZES = ("wg_size_x", "wg_size_y", "wg_size_z")

REORDER = "reorder_workgroups"
_ORDERS = ("none", "transpose")
_INTRINSIC = "mma_idx"

# Workgroups that share columns follow one another where the columns of the result take more cache
# than its rows. The numbers are those of the dies of an MI300X and of the processors of one.
_TRANSPOSE = attribute("#iree_gpu.conditional_transpose", 8, 38)

# Operands of attention (queries, keys, values) that go through shared memory, and how threads copy
# one of them.
_ALL_PROMOTED, _KEYS_PROMOTED = "0,1,2", "1,2"
_PROMOTED_OPERANDS = (1, 2)
_THREADS = {ATTRIBUTE: "#iree_gpu.derived_thread_config"}
_NO_CONFLICTS = "no_reduce_shared_memory_bank_conflicts"

# Assertions with more combinations of values than this are not looked through for being redundant.
_MAX_LOOK = 1 << 18
# What the name of a pipeline ends with that makes a convolution a product of matrices.
_AS_PRODUCT = ".igemm"
# Of a processor of AMD's; each holds some waves of a workgroup.
_EXECUTION_UNITS = 4


class StatedPipeline(Pipeline):
    """The space of one constraints op of a dispatch."""

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
        self._options = {k.name: k.options for k in program.knobs if k.options}
        self.free = tuple(n for n, d in self.model.domains.items() if len(d) > 1)
        self._fixed = {n: int(d[0]) for n, d in self.model.domains.items() if len(d) == 1}
        # Every variable with a value of its own, free or fixed.
        self.names = (*self.free, *self._fixed)
        chosen = [options[self._fixed.get(n, 0)] for n, options in self._options.items()]
        # The convolution as a product of matrices has other loops and other knobs.
        self.name = f"{program.pipeline}{_AS_PRODUCT}" if "true" in chosen else program.pipeline
        extras = {knob.name: knob for knob in self._extras()}
        self._extra_names = tuple(extras)
        self.computed = {
            ours: self._computed(theirs)
            for ours, theirs in zip(WORKGROUP_SIZES, _SIZES, strict=True)
            if theirs in (*self.model.computed, *self.names)
        }
        rules = [
            *self._stated_rules(),
            *self._register_rules(),
            *self._copy_rules(),
            *self._stage_rules(),
            *self._attention_rules(),
            *self._reorder_rules(),
            *self._whole_tile_rules(),
        ]
        self.computed |= self._tiles()
        self.threads = tuple(self.computed[n] for n in WORKGROUP_SIZES if n in self.computed)
        own = self._own()
        threads = self.computed.get(WORKGROUP_SIZES[0])
        by_loop = threads is not None and len(workload.dims) == len(program.dims)
        self.space = space_near(
            self.name,
            [*map(self._knob, self.free), *extras.values()],
            rules,
            own,
            computed=self.computed,
            prior_many=self._prior if by_loop else None,
        )
        self.is_own = own is not None and own == self.space.default

    # -- knobs ---------------------------------------------------------------------------------

    def _knob(self, name: str) -> Knob:
        domain = tuple(int(v) for v in self.model.domains[name])
        options = self._options.get(name)
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
        if self.workload.kind == "contraction" and len(self._grid) == 2:
            yield ChoiceKnob(REORDER, _ORDERS)
        if self.target.backend == ROCM:
            yield waves_knob()
        if self.workload.kind == "attention" and parse_attribute(stated.get(PROMOTE, "[]")) == [
            0,
            1,
            2,
        ]:
            # The constraints fix it, the pipeline does not: queries can stay in registers.
            yield ChoiceKnob(PROMOTE, (_ALL_PROMOTED, _KEYS_PROMOTED))

    @cached_property
    def _grid(self) -> dict[int, str]:
        """The workgroup tiles of the loops that workgroups share out, by loop."""
        numbers = {n.removeprefix("wg_"): n for n in self.names if n.startswith("wg_")}
        return {int(i): numbers[i] for i in sorted(filter(str.isdigit, numbers), key=int)}

    def number(self, name: str, value: Any) -> Any:
        """The integer (or array of them) that the constraints use for a knob's values."""
        options = self._options.get(name)
        if not options:
            return np.asarray(value, dtype=np.int64)
        labels, inverse = np.unique(np.asarray(value).astype(str), return_inverse=True)
        found = np.array([options.index(str(one)) for one in labels], dtype=np.int64)
        return found[inverse].reshape(np.shape(value))

    def values(self, names: Sequence[str], columns: Sequence[Any]) -> dict[str, Any]:
        """Values for the constraints from those of some knobs; the fixed ones are added."""
        given = {n: self.number(n, c) for n, c in zip(names, columns, strict=True)}
        return {**{n: np.int64(v) for n, v in self._fixed.items()}, **given}

    def _computed(self, name: str) -> Computed:
        """A variable of the constraints as a number that follows from knobs."""
        if name in self._fixed:
            return Computed((), lambda: self._fixed[name])
        if name in self.free:
            return Computed((name,), lambda v: v)
        scope = tuple(n for n in self.free if n in self.model.scope_of(name))
        return Computed(scope, lambda *c: self.model.compute(name, self.values(scope, c)))

    def _tiles(self) -> dict[str, Computed]:
        """The tiles of a matrix product's loops in elements, by what they are called."""
        found = {}
        for at, loop in enumerate(self.workload.loop_names[: len(self.program.dims)]):
            name = next((n for n in (f"wg_{at}", f"red_{at}") if n in self.names), None)
            if loop not in TILED_LOOPS or name is None:
                continue
            size: Term = self._terms[name]
            if name.startswith("red_") and self._in_intrinsics:
                size = size * self._shape(_INTRINSIC, 2)
            scope = self._scope(size)
            found[tile_number(loop)] = Computed(scope, evaluator(size, scope))
        return found

    @property
    def tile_names(self) -> Mapping[str, str]:
        numbers = {loop: tile_number(loop) for loop in TILED_LOOPS}
        return {loop: name for loop, name in numbers.items() if name in self.computed}

    @property
    def _in_intrinsics(self) -> bool:
        """Whether steps of the reduction count intrinsics; else elements."""
        return self.program.pipeline == "TileAndFuse" and _INTRINSIC in self.names

    # -- the compiler's constraints ------------------------------------------------------------

    def _stated_rules(self) -> list[Constraint]:
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

    # -- rules that the compiler leaves out ----------------------------------------------------

    @cached_property
    def _terms(self) -> dict[str, Term]:
        """Every variable of the constraints as a term over the free ones."""
        names = (*self.names, *self.model.computed)
        return {name: self.model.variable_term(name) for name in names}

    def _scope(self, *terms: Term, extras: Sequence[str] = ()) -> tuple[str, ...]:
        """The knobs that terms look at, in their order."""
        used = variables_of(terms)
        return tuple(n for n in (*extras, *self.free) if n in used)

    def _at_most(self, name: str, count: Term, limit: int, unit: str) -> list[Constraint]:
        """A limit on a number that follows from variables; none where no knob is among them."""
        scope = self._scope(count)
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
    def _threads(self) -> Term:
        """Threads of a workgroup, at least 1."""
        sizes = [self._terms[name] for name in _SIZES if name in self._terms]
        return term(greatest(1, product(sizes)))

    def _shape(self, knob: str, axis: int) -> Any:
        """The m, n or k of the intrinsic that a knob chooses."""
        shapes = next(k.shapes for k in self.program.knobs if k.name == knob)
        return look_up(self._terms[knob], [shape[axis] for shape in shapes])

    def _register_rules(self) -> list[Constraint]:
        """What one thread holds and what is unrolled for it: a candidate whose accumulators alone
        need more registers than a thread has only spills, and one of thousands of instructions in a
        row takes minutes to compile."""
        parallel = [n for n in self.names if n in ("m_tile", "n_tile") or n.startswith("wg_")]
        parallel = [n for n in parallel if n not in _SIZES]
        sums = [n for n in self.names if n.startswith("red_")]
        intrinsic = next((n for n in ("mma_idx", "qk_mma_idx") if n in self.names), "")
        if WORKGROUP_SIZES[0] not in self.computed or not parallel or not intrinsic:
            return []
        tile = product(self._terms[name] for name in parallel)
        m, n, k = (self._shape(intrinsic, axis) for axis in range(3))
        step = k if self._in_intrinsics else 1
        points = product([tile, *(self._terms[name] for name in sums), step])
        subgroups = greatest(1, self._threads // self.target.subgroup)
        return [
            *self._at_most(
                "accumulators of a thread",
                tile // self._threads,
                self.target.registers,
                "registers",
            ),
            *self._at_most(
                "unrolled intrinsics",
                points // greatest(1, m * n * k * subgroups),
                MAX_INTRINSICS,
                "instructions",
            ),
        ]

    def _copy_rules(self) -> list[Constraint]:
        """Threads share the copies of promoted operands (see `gpu_copies`)."""
        if self.program.pipeline != "VectorDistribute":
            return []
        rules = []
        for operand, shape in self._promoted_tiles().items():
            bits = 8 * dtype_of(self.workload.element_types[operand]).itemsize
            good = is_shared_out(shape, self._threads, bits)
            scope = self._scope(good) if isinstance(good, Term) else ()
            if not scope:
                continue
            # Queries that stay in registers are not copied.
            if operand == 0 and PROMOTE in self._extra_names:
                options = (_ALL_PROMOTED, _KEYS_PROMOTED)
                good = good | (variable(PROMOTE, options) == _KEYS_PROMOTED)
                scope = (PROMOTE, *scope)
            rules.append(
                declared(
                    f"threads share the copy of operand {operand}",
                    scope,
                    good,
                    lambda *v, scope=scope: (
                        "the tile cannot be shared out to the threads in whole vectors ("
                        + ", ".join(f"{n} {one}" for n, one in zip(scope, v, strict=True))
                        + ")"
                    ),
                )
            )
        return rules

    def _stage_rules(self) -> list[Constraint]:
        """Three stages are for copies that all threads share (see `gpu_copies`)."""
        if STAGES not in self._extra_names or self.workload.kind != "contraction":
            return []
        whole = term(True)
        for operand, shape in self._promoted_tiles().items():
            bits = 8 * dtype_of(self.workload.element_types[operand]).itemsize
            whole = whole & is_whole(shape, self._threads, bits)
        condition = (variable(STAGES) <= 2) | whole
        return [
            declared(
                "three stages copy whole tiles",
                self._scope(condition, extras=(STAGES,)),
                condition,
                lambda *v: "some threads have less to copy than others",
            )
        ]

    def _promoted_tiles(self) -> dict[int, list[Any]]:
        """The tiles of promoted operands, outermost loop first, by the operand's position."""
        root = self.template.root_op
        if self.workload.kind == "attention":
            by_role: dict[str, Any] = {d.role: d.size for d in self.workload.dims if d.role == "k1"}
            for role, name in (("m", "m_tile"), ("n", "n_tile"), ("k2", "red_k2")):
                by_role[role] = self._terms.get(name, 1)
            tiles = [by_role.get(dim.role, 1) for dim in self.workload.dims]
        else:
            loops = range(len(self.program.dims))
            depth = self._shape("mma_idx", 2) if self._in_intrinsics else 1
            steps = {i: self._terms[f"red_{i}"] * depth for i in loops if f"red_{i}" in self._terms}
            tiles = [self._terms.get(f"wg_{i}", steps.get(i, 1)) for i in loops]
        found: dict[int, list[Any]] = {}
        count = 3 if self.workload.kind == "attention" else 2
        for operand, _ in enumerate(root.operand_inner[:count]):
            inner = root.operand_inner[operand]
            outer = [loop for loop in root.operand_loops[operand] if loop != inner]
            order = [*outer, inner] if inner >= 0 else outer
            if all(loop < len(tiles) for loop in order):
                found[operand] = [tiles[loop] for loop in order]
        return found

    def _attention_rules(self) -> list[Constraint]:
        """What IREE 3.13's constraints on attention leave out: they bound the shared memory of the
        operands but not that of the scores, which go from one product to the other through it, and
        have score tiles that are smaller than the intrinsic."""
        tiles = ("m_tile", "n_tile", "red_k2")
        if self.workload.kind != "attention" or not set(tiles) <= set(self.names):
            return []
        k1 = {d.role: d.size for d in self.workload.dims}.get("k1", 1)
        element = dtype_of(self.workload.element_types[0]).itemsize
        limit = self.target.workgroup_memory
        m, n, k2 = (self._terms[name] for name in tiles)
        memory = element * (m * k1 + k2 * k1 + k2 * n + m * k2)
        remainder = term(0)
        for knob, axis in (("qk_mma_idx", 1), ("pv_mma_idx", 2)):
            if knob in self.names:
                remainder = remainder + k2 % self._shape(knob, axis)
        rules = [
            *self._at_most("shared memory of scores", memory, limit, "bytes"),
            *self._at_most("red_k2 is a multiple of the intrinsics'", remainder, 0, "left over"),
        ]
        if WAVES not in self._extra_names:
            return rules
        kept: Any = 0
        if PROMOTE in self._extra_names:
            all_in = variable(PROMOTE, (_ALL_PROMOTED, _KEYS_PROMOTED)) == _ALL_PROMOTED
            kept = where(all_in, 0, m * k1 * element)
        waves = variable(WAVES)
        width = _EXECUTION_UNITS * self.target.subgroup
        used = (memory - kept) * waves * width // self._threads
        scope = self._scope(used, extras=(WAVES, PROMOTE))
        number = evaluator(used, scope)
        # More waves than shared memory has room for are not to be had: the code stays the same.
        room = declared(
            "waves have room in shared memory",
            scope,
            (waves <= 1) | (used <= limit),
            lambda *v: f"{v[0]} take {int(number(*v))} of {limit} bytes",
        )
        return [*rules, room]

    def _reorder_rules(self) -> list[Constraint]:
        """Only a grid of workgroups in two dimensions can be transposed."""
        if REORDER not in self._extra_names:
            return []
        several = term(True)
        for loop, name in self._grid.items():
            several = several & (self._terms[name] < self.program.dims[loop])
        condition = (variable(REORDER, _ORDERS) == "none") | several
        return [
            declared(
                "transposed workgroups are a grid",
                self._scope(condition, extras=(REORDER,)),
                condition,
                lambda *v: "the workgroups are a single row or column",
            )
        ]

    def _whole_tile_rules(self) -> list[Constraint]:
        """Tiles that divide the loops of convolutions: the constraints take sizes rounded up to
        whole intrinsics, which needs padding that their configurations do not have. Products are
        padded, and convolutions as products."""
        if self._is_padded:
            return []

        def rule(name: str, size: int) -> list[Constraint]:
            label = f"{name} divides its loop of {size}"
            return self._at_most(label, size % self._terms[name], 0, "left over")

        order = {name: loop for loop, name in self._grid.items()}
        return [
            one
            for name in self.names
            if name in order
            for one in rule(name, self.program.dims[order[name]])
        ]

    def _prior(self, configs: Sequence[Configuration]) -> FloatArray:
        """By the workgroup tiles of the root op's loops."""
        values = {**dict.fromkeys(self._fixed), **columns(configs)}
        tiles = {
            loop: np.asarray(self._fixed.get(name, values[name]), dtype=np.float64)
            for loop, name in self._grid.items()
            if loop < len(self.workload.dims) and not self.workload.dims[loop].reduction
        }
        count = np.asarray(self.computed[WORKGROUP_SIZES[0]].of(values), dtype=np.float64)
        threads = np.broadcast_to(count, (len(configs),))
        root = self.template.root_op
        return tile_prior(self.workload, self.target, root, tiles, threads, matrix=True)

    # -- configurations ------------------------------------------------------------------------

    def _own(self) -> Configuration | None:
        """The compiler's own choice as values of the knobs; None where they cannot give it."""
        assignments = self.template.own.assignments
        found = (
            assignments[self.program.ordinal] if self.program.ordinal < len(assignments) else None
        )
        numbers = dict(found or ())
        if found is None or any(name not in numbers for name in self.free):
            return None
        values: dict[str, Value] = {}
        for name in self.free:
            options = self._options.get(name)
            values[name] = options[numbers[name]] if options else numbers[name]
        own = self.template.own
        extras: dict[str, Value] = {
            BANK_CONFLICTS: dict(own.options).get(_NO_CONFLICTS) != "true",
            REORDER: "transpose"
            if "workgroup_reordering_strategy" in dict(own.entries)
            else "none",
            PROMOTE: ",".join(map(str, own.size(PROMOTE))),
            WAVES: 0,
            STAGES: own_stages(dict(own.options)),
        }
        return Configuration.of(values | {name: extras[name] for name in self._extra_names})

    def assignment(self, values: Mapping[str, Value]) -> dict[str, int]:
        """A value for every knob of the constraints, as the compiler's functions take it."""
        names = tuple(n for n in self.free if n in values)
        numbers = self.values(names, [values[n] for n in names])
        return {
            knob.name: int(
                numbers[knob.name]
                if knob.name in numbers
                else self.model.compute(knob.name, numbers)
            )
            for knob in self.program.knobs
        }

    @cached_property
    def _is_padded(self) -> bool:
        """Whether tiles need not divide their loops; of convolutions those that are products, whose
        loops are those of the convolution's result and one for all of its sums."""
        if self.workload.kind != "convolution":
            return self.workload.kind == "contraction"
        sums = [dim.reduction for dim in self.workload.dims]
        return self.name == f"TileAndFuse{_AS_PRODUCT}" and sums == sorted(sums)

    def _padding(self, assignment: Mapping[str, int]) -> list[int]:
        """The sizes that a product's tiles are padded to where they do not divide the loops: the
        constraints take sizes rounded up to whole intrinsics. Empty where nothing is left over."""
        if self.program.pipeline != "TileAndFuse" or not self._is_padded:
            return []
        shapes = next(k.shapes for k in self.program.knobs if k.name == "mma_idx")
        depth = shapes[assignment["mma_idx"]][2]
        dims = self.program.dims
        steps = [assignment.get(f"red_{i}", 0) * depth for i in range(len(dims))]
        sizes = [assignment.get(f"wg_{i}", 0) or step or 1 for i, step in enumerate(steps)]
        if self.workload.kind == "convolution":
            first = next(i for i, dim in enumerate(self.workload.dims) if dim.reduction)
            dims = (*dims[:first], math.prod(dims[first:]))
            sizes = [*sizes[:first], sizes[-1]]
        return sizes if any(d % size for d, size in zip(dims, sizes, strict=True)) else []

    def tiles_of(self, configuration: Configuration) -> GpuTiles:
        """What a configuration of the pipeline amounts to.

        Args:
            configuration: a member of its space.
        """
        values = dict(configuration.items)
        numbers = self.assignment(values)
        knob = next((k for k in self.program.knobs if k.shapes and k.name in numbers), None)
        name = knob.options[numbers[knob.name]] if knob else ""
        in_intrinsics = knob is not None and self.program.pipeline == "TileAndFuse"
        unit = knob.shapes[numbers[knob.name]][2] if knob and in_intrinsics else 1
        steps = [n for n in numbers if n.startswith("red_")]
        stages = values.get(STAGES, numbers.get(STAGES, 1))
        return GpuTiles(
            tuple(numbers[n] for n in self._grid.values())
            or tuple(numbers[n] for n in ("m_tile", "n_tile") if n in numbers),
            tuple(numbers[n] * unit for n in steps),
            max(1, int(str(stages))),
            name,
        )

    def configure(self, configuration: Configuration) -> GpuCompilationInfo:
        values = dict(configuration.items)
        assignment = self.assignment(values)
        lowering: list[tuple[str, Tree]] = []
        if self.template.translation.pipeline == self.program.pipeline:
            lowering += [(k, v) for k, v in self.template.own.entries if v == "unit"]
        padding = self._padding(assignment)
        if padding:
            lowering.append(("padding", padding))
            if self.workload.kind == "convolution":
                # Of the convolution's own loops: those of the filter are not padded.
                sums = [0 for dim in self.workload.dims if dim.reduction]
                lowering.append(("padding_conv", [*padding[:-1], *sums]))
        if values.get(REORDER) == "transpose":
            lowering.append(("workgroup_reordering_strategy", _TRANSPOSE))
        if values.get(PROMOTE, _ALL_PROMOTED) != _ALL_PROMOTED:
            lowering.append((PROMOTE, list(_PROMOTED_OPERANDS)))
            lowering.append(("promotion_types", [_THREADS for _ in _PROMOTED_OPERANDS]))
        shown = (f"{n} {values[n]}" for n in (*self.free, *self._extra_names))
        return GpuCompilationInfo(
            Translation(self.program.pipeline),
            (),
            root=self.template.root,
            ordinal=self.program.ordinal,
            assignment=tuple(sorted(assignment.items())),
            lowering=tuple((name, print_attribute(tree)) for name, tree in lowering),
            options=(
                *(((_NO_CONFLICTS, "true"),) if values.get(BANK_CONFLICTS) is False else ()),
                *(((STAGES, str(values[STAGES])),) if STAGES in self._extra_names else ()),
            ),
            settings=tuple((n, print_attribute(tree)) for n, tree in waves_setting(values).items()),
            summary="; ".join(shown),
            workgroup_size=tuple(assignment.get(n, 1) for n in _SIZES),
        )

"""How a dispatch is configured on a GPU, as plain data.

IREE's GPU and SPIR-V pipelines carry more in their attributes than tile sizes by level, so a
configuration is kept as the attributes' texts, or as the values from which the compiler itself
makes them (`iree_codegen.smt.constraints`, see `tilewright.gpu`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

from tilewright.attributes import Tree
from tilewright.plain_data import fields_of, tupled
from tilewright.tiling import CompilationInfo, DispatchTemplate, Translation


@dataclass(frozen=True)
class SmtNode:
    """One value. `operands` are positions of earlier nodes.

    `operation`: of integers constant (a number), dim (the size of a loop), variable (a knob or an
    unknown of the constraints' own), add, sub, mul, div, mod, neg, abs, lookup, ite; of truth
    values the comparisons (lt, le, gt, ge), eq, distinct, and, or, not, xor, implies. `value`: the
    number of a constant, the position of a dim; `name`: of a variable; `table`: the (key, value)
    pairs of a lookup.
    """

    operation: str
    operands: tuple[int, ...] = ()
    value: int = 0
    name: str = ""
    table: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Assertion:
    """A truth value that must hold; `message` has a `{}` for each of `shown`, as in Python."""

    node: int
    message: str
    shown: tuple[int, ...] = ()


@dataclass(frozen=True)
class SmtKnob:
    """A knob of the constraints: an integer, or (with `options`) the position of an option.

    `shapes`: of options that are matrix intrinsics, their m, n and k.
    """

    name: str
    options: tuple[str, ...] = ()
    shapes: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class ConstraintProgram:
    """One constraints op: which configurations a pipeline of the compiler takes for a dispatch.

    `ordinal` counts the constraints ops of the dispatch; `dims` are the sizes of the root op's
    loops. `fixed` is what the op says of the configuration beside the knobs, as text by name.
    """

    pipeline: str
    ordinal: int
    dims: tuple[int, ...]
    knobs: tuple[SmtKnob, ...]
    nodes: tuple[SmtNode, ...]
    assertions: tuple[Assertion, ...]
    fixed: tuple[tuple[str, str], ...] = ()

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables in the order of their first node, knobs and unknowns alike."""
        return tuple(dict.fromkeys(n.name for n in self.nodes if n.operation == "variable"))

    def to_json(self) -> dict[str, Any]:
        """Plain data: knobs, nodes and assertions as lists of their fields."""
        data = fields_of(self)
        return data | {name: [astuple(one) for one in data[name]] for name in _PARTS}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ConstraintProgram:
        """The program of `to_json`.

        Args:
            data: what JSON was.
        """
        parts = {
            name: tuple(part(*tupled(one)) for one in data[name]) for name, part in _PARTS.items()
        }
        return ConstraintProgram(**({name: tupled(v) for name, v in data.items()} | parts))


_PARTS: dict[str, type] = {"knobs": SmtKnob, "nodes": SmtNode, "assertions": Assertion}


Entries = tuple[tuple[str, str], ...]
"""Names and the texts of attributes."""

GPU_PIPELINE, SPIRV_PIPELINE = "#iree_gpu.pipeline", "#iree_gpu.spirv_pipeline"
LOWERING_CONFIG = "lowering_config"
# The pipeline option that says how many steps of operands are in flight.
STAGES_OPTION = "prefetch_num_stages"
DECOMPOSITION_CONFIG = "decomposition_config"
EXPLICIT = -1


@dataclass(frozen=True)
class GpuCompilationInfo(CompilationInfo):
    """What a candidate sets on a GPU.

    Written out (`ordinal` is EXPLICIT): `info` is the text of the translation_info, `attributes`
    are (position of the op, name, text). Made by the compiler: `ordinal` counts the constraints ops
    of the dispatch, `assignment` has a value for each of their knobs; then `lowering` entries are
    put into the root op's lowering_config, `options` into the pipeline options and `settings` into
    the translation's dictionary, each over what is there.

    `translation.pipeline` is the pipeline's name and `summary` the configuration, both for people.
    """

    root: int = 0
    info: str = ""
    attributes: tuple[tuple[int, str, str], ...] = ()
    ordinal: int = EXPLICIT
    assignment: tuple[tuple[str, int], ...] = ()
    lowering: Entries = ()
    options: Entries = ()
    settings: Entries = ()
    summary: str = ""
    workgroup_size: tuple[int, ...] = ()

    def describe(self, root: int) -> str:
        return f"{self.translation}: {self.summary}" if self.summary else str(self.translation)

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON, in which tuples become lists."""
        own = fields_of(self)
        del own["translation"], own["tilings"]
        return {"pipeline": self.translation.pipeline, **own}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> GpuCompilationInfo:
        """The configuration of `to_json`.

        Args:
            data: what `to_json` gave.
        """
        own = {name: tupled(value) for name, value in data.items()}
        return GpuCompilationInfo(Translation(own.pop("pipeline")), (), **own)


@dataclass(frozen=True)
class MatrixInstruction:
    """A matrix instruction: its name, the attribute that stands for it, its m, n and k, and the
    element type of its sums."""

    name: str
    attribute: str
    m: int
    n: int
    k: int
    sums: str


@dataclass(frozen=True)
class GpuTiles:
    """What a configuration amounts to, in the words of all pipelines.

    parallel: elements of each parallel loop that a workgroup computes, outermost first. reduction:
    elements of each reduction loop that it takes in one step; 0 where that is all of them. stages:
    steps that are in flight at a time. intrinsic: the matrix intrinsic; '' for none.
    """

    parallel: tuple[int, ...]
    reduction: tuple[int, ...] = ()
    stages: int = 1
    intrinsic: str = ""


@dataclass(frozen=True)
class OwnChoice:
    """The compiler's own choice, read from its attributes.

    `sizes`: the lists of integers in the root op's lowering configuration by name (`workgroup`,
    `thread`, `reduction`, …); `entries` its other entries as text. `assignments` has, for each
    constraint program, the values of its knobs that give this choice, or None where none do.
    `intrinsics`: where it uses a matrix intrinsic, those of the device for the same types, its own
    first.
    """

    workgroup_size: tuple[int, ...] = ()
    subgroup_size: int = 0
    pipeline: str = ""
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    entries: Entries = ()
    options: Entries = ()
    settings: Entries = ()
    assignments: tuple[tuple[tuple[str, int], ...] | None, ...] = ()
    intrinsics: tuple[MatrixInstruction, ...] = ()

    def size(self, name: str) -> tuple[int, ...]:
        """A list of integers in the root op's lowering configuration; empty where there is none.

        Args:
            name: of the list.
        """
        return dict(self.sizes).get(name, ())

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON, in which tuples become lists."""
        own = fields_of(self)
        return {**own, "intrinsics": [astuple(one) for one in self.intrinsics]}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> OwnChoice:
        """The choice of `to_json`.

        Args:
            data: what `to_json` gave.
        """
        own = {name: tupled(value) for name, value in data.items()}
        own["intrinsics"] = tuple(MatrixInstruction(*one) for one in own["intrinsics"])
        return OwnChoice(**own)


@dataclass(frozen=True)
class GpuTemplate(DispatchTemplate):
    """A dispatch as the compiler configures it for a GPU, with the constraints it states."""

    configuration: GpuCompilationInfo = field(
        default_factory=lambda: GpuCompilationInfo(Translation(""), ())
    )
    own: OwnChoice = OwnChoice()
    programs: tuple[ConstraintProgram, ...] = ()
    trees: tuple[tuple[int, str, Tree], ...] = ()

    def tree(self, op: int, name: str = LOWERING_CONFIG) -> Tree:
        """An attribute of one op as lists, dictionaries and numbers; None where it has none.

        Args:
            op: its position among the compute ops.
            name: of the attribute.
        """
        return next((tree for i, n, tree in self.trees if (i, n) == (op, name)), None)

    @property
    def default(self) -> CompilationInfo:
        return self.configuration

    def to_json(self) -> dict[str, Any]:
        """Plain data for JSON; `gpu` tells it from that of a CPU's template."""
        return {
            "gpu": True,
            **super().to_json(),
            "configuration": self.configuration.to_json(),
            "own": self.own.to_json(),
            "programs": [program.to_json() for program in self.programs],
            "trees": [list(one) for one in self.trees],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> GpuTemplate:
        """The template of `to_json`.

        Args:
            data: what `to_json` gave.
        """
        plain = DispatchTemplate.from_json(data)
        return GpuTemplate(
            plain.translation,
            plain.ops,
            plain.root,
            GpuCompilationInfo.from_json(data["configuration"]),
            OwnChoice.from_json(data["own"]),
            tuple(ConstraintProgram.from_json(program) for program in data["programs"]),
            tuple((op, name, tree) for op, name, tree in data["trees"]),
        )

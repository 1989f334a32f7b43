"""Sites of a program that kernels of our own are tried for: found, translated, with their sketches.

What cannot be found or translated keeps the compiler's code: a reason, never the end of a run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path

from tilewright.errors import UserError
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import Job, WorkerFailure, WorkerState
from tilewright.schedule.schedule import create_schedule
from tilewright.schedule.tensor import ComputeOp, IterVar
from tilewright.schedule.types import bits
from tilewright.site import KernelChoice, Site
from tilewright.sketch.generators import sketches
from tilewright.sketch.interface import SiteExpression, Sketch, SketchedKernel
from tilewright.sketch.loops import LoopsSketch
from tilewright.sketch.site_tasks import FindSitesRequest, find_sites
from tilewright.space.search_space import SearchSpace
from tilewright.target import Target
from tilewright.trial import Configuration
from tilewright.tuning.opening import OpenProgram
from tilewright.tuning.variants import Variant
from tilewright.tuning.worker_tasks import parse_module
from tilewright.workload import CHAIN, Dim, Workload

_FIND_TIMEOUT_S = 600.0
_READ_TIMEOUT_S = 120.0
_NO_SKETCH = "no sketch is for what it computes"
# In 30 sites of a DenseNet, a product and a window each, they took 1.4 to 2.4 times as long as the
# compiler's dispatches.
_PLAIN = {LoopsSketch.name}
_PLAIN_ONLY = "no sketch is for what its dispatches compute together"
_COMPUTING = ("linalg.", "iree_linalg_ext.", "tensor.", "arith.", "math.")
_NOTHING_COMPUTED = ("arith.constant", "tensor.empty")
# What makes a larger tensor of another: the compiler fills the result first, in no dispatch, and
# lets who makes the other write right into it.
_FILLED_FIRST = frozenset({"tensor.insert_slice", "tensor.pad"})


@dataclass(frozen=True)
class TunableSite:
    """A site that kernels can be made for.

    expression: what it computes. target: what for. digest: equal for sites that compute the same,
    in whatever program, with as much of it known ahead. exact: whether kernels must compute the
    same sums as it does. best: what each sketch takes for best, and for worth a trial, by its name,
    as far as it is known.
    pads: it makes larger tensors of others, which is in no time of the compiler's dispatches.
    """

    site: Site
    expression: SiteExpression
    target: Target
    digest: str
    exact: bool = True
    best: Mapping[str, Sequence[Configuration]] = field(default_factory=dict)
    pads: bool = False

    @cached_property
    def sketches(self) -> Mapping[str, Sketch]:
        """The sketches that fit, by name."""
        fitting = sketches(self.expression, self.target, exact=self.exact, best=self.best)
        return {one.name: one for one in fitting}

    @cached_property
    def spaces(self) -> Mapping[str, SearchSpace]:
        """Their spaces, by the same names."""
        return {name: one.space for name, one in self.sketches.items()}

    @property
    def is_one_dispatch(self) -> bool:
        """Whether one dispatch computes it, wherever it occurs; not always the same."""
        site = self.site
        return sum(site.all_runs) == site.count

    @property
    def is_padded_dispatch(self) -> bool:
        """Whether it is what one dispatch computes, together with what pads data for it."""
        return self.pads and self.is_one_dispatch

    @property
    def computed(self) -> list[ComputeOp]:
        """The stages of its expression, inputs apart."""
        stages = [s.op for s in create_schedule(self.expression.output.op).stages]
        return [op for op in stages if isinstance(op, ComputeOp)]

    @property
    def workload(self) -> Workload:
        """What it computes, where the compiler makes several dispatches of it."""
        computed = self.computed
        reduced = max(computed, key=lambda op: prod(_extents(op.reduce_axis)))
        dims = [Dim("parallel", size) for size in self.expression.output.shape]
        dims += [Dim("reduction", size, True) for size in _extents(reduced.reduce_axis)]
        tensors = (*self.expression.inputs, self.expression.output)
        site = self.site
        assert site.output is not None
        return Workload(
            kind=CHAIN,
            dims=tuple(dims),
            element_types=tuple(one.element_type for one in (*site.inputs, site.output)),
            layout=(),
            body=self.digest,
            flops=sum(prod(_extents((*op.axis, *op.reduce_axis))) * 2 for op in computed),
            bytes=sum(prod(t.shape) * bits(t.dtype) // 8 for t in tensors),
        )

    def kernel(self, choice: KernelChoice) -> SketchedKernel:
        """The schedule of a choice.

        Args:
            choice: of one of the sketches.
        """
        return self.sketches[choice.sketch].schedule(choice.knobs)


def _extents(axes: Iterable[IterVar]) -> list[int]:
    return [axis.dom.extent for axis in axes if axis.dom is not None]


@dataclass(frozen=True)
class SiteFacts:
    """A site as it is told to people.

    ops: those that compute. tunable: None where no kernel is tried for it; `reason` says why.
    """

    site: Site
    ops: tuple[str, ...] = ()
    tunable: TunableSite | None = None
    reason: str = ""


def sites_folder(opened: OpenProgram, variant: Variant) -> Path:
    """Where the modules of a program's sites go.

    Args:
        opened: the program.
        variant: as which it is compiled.
    """
    return opened.work / variant.name / "sites"


def find_kernel_sites(
    opened: OpenProgram, variant: Variant, known: tuple[Site, ...] | None = None
) -> tuple[SiteFacts, ...]:
    """The sites of a program as a variant compiles it, translated as far as they can be.

    Args:
        opened: the program.
        variant: as which it is compiled.
        known: its sites, where they have been found.

    Returns:
        All of them; none, with a note, where they cannot be found.
    """
    program = opened.program
    request = FindSitesRequest(
        program.path,
        opened.flags(variant),
        sites_folder(opened, variant),
        opened.options.function,
    )
    found: tuple[Site, ...] | WorkerFailure
    found = (
        known if known is not None else opened.compilers.ask(find_sites, request, _FIND_TIMEOUT_S)
    )
    if isinstance(found, WorkerFailure):
        opened.note(f"no kernels of our own: the sites are not found: {found.message}", True)
        return ()
    flags, exact = opened.flags(), opened.options.accuracy == "strict"
    jobs = [
        Job(read_site, ReadSiteRequest(site, flags, opened.target, exact), _READ_TIMEOUT_S, site)
        for site in found
        if not site.reason
    ]
    facts = {site.name: SiteFacts(site, reason=site.reason) for site in found}
    for result in opened.compilers.run(jobs):
        site: Site = result.job.tag
        if result.failure is not None:
            facts[site.name] = SiteFacts(site, reason=result.failure.message)
            continue
        read = result.value
        tunable, reason = None, read.reason
        if read.expression is not None:
            digest = _digest(site)
            pads = not _FILLED_FIRST.isdisjoint(read.ops)
            tunable = TunableSite(
                site, read.expression, opened.target, digest, exact, read.best, pads
            )
            if any(not one.is_exact for one in tunable.sketches.values()):
                # There is more to find than in a run that leaves these sketches out.
                tunable = replace(tunable, digest=f"{tunable.digest}/relaxed")
            if not tunable.sketches:
                tunable, reason = None, _NO_SKETCH
            elif _is_hopeless(tunable):
                tunable, reason = None, _PLAIN_ONLY
        facts[site.name] = SiteFacts(site, read.ops, tunable, reason)
    return tuple(facts.values())


def _is_hopeless(site: TunableSite) -> bool:
    """Whether a kernel for several dispatches would be plain loops around sums."""
    if site.is_one_dispatch or site.sketches.keys() != _PLAIN:
        return False
    return any(op.reduce_axis for op in site.computed)


def _digest(site: Site) -> str:
    text = site.module.read_bytes() + repr(site.constant).encode()
    return hashlib.sha256(text).hexdigest()[:16]


# In the workers


@dataclass(frozen=True)
class ReadSiteRequest:
    """Read the ops of a site as a tensor expression.

    flags: of a compiler that knows its dialects. target, exact: as of a TunableSite.
    """

    site: Site
    flags: tuple[str, ...]
    target: Target
    exact: bool = True


@dataclass(frozen=True)
class ReadSite:
    """A site's ops, and what they compute; `reason` says why that cannot be said. `best`: what each
    sketch that fits takes for best, and for worth a trial."""

    ops: tuple[str, ...]
    expression: SiteExpression | None = None
    reason: str = ""
    best: Mapping[str, Sequence[Configuration]] = field(default_factory=dict)


def read_site(state: WorkerState, request: ReadSiteRequest) -> ReadSite:
    """Task: see ReadSiteRequest.

    Args:
        state: the worker's.
        request: which site.

    Returns:
        Its ops, and its expression or why there is none.
    """
    from tilewright.ir.dispatches import ISOLATED_FUNCTION
    from tilewright.ir.walk import symbols, walk
    from tilewright.sketch.translate import translate
    from tilewright.sketch.untranslatable import Untranslatable
    from tilewright.spec.pattern import SitePattern

    site = request.site
    module = parse_module(session(state, request.flags), site.module.read_bytes())
    outermost = walk(module.operation, lambda op: not op.name.startswith(_COMPUTING))
    ops = tuple(op.name for op in outermost if op.name.startswith(_COMPUTING))
    ops = tuple(name for name in ops if name not in _NOTHING_COMPUTED)
    try:
        expression = translate(module, ISOLATED_FUNCTION, site.constant)
    except Untranslatable as error:
        return ReadSite(ops, reason=str(error))
    try:
        SitePattern(symbols(module)[ISOLATED_FUNCTION])
    except UserError as error:
        # It could be computed, and nothing could put the kernel in its place.
        return ReadSite(ops, reason=str(error))
    # Looking for it takes a tenth of a second and more: here, as many at a time as there are cores.
    fitting = sketches(expression, request.target, exact=request.exact)
    return ReadSite(ops, expression, best={one.name: one.space.anchors for one in fitting})

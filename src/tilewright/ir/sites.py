"""Sites of a program: what a kernel can compute in place of one dispatch, or of several.

They are found at the preprocessing phase: the ops that the compiler makes a dispatch of, in a
module of their own. Dispatches that belong together make one more site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from iree.compiler import ir

from tilewright.ir.session import CompilerSession
from tilewright.ir.site_chains import Chain, chain_of, has_product, has_window
from tilewright.ir.site_dispatches import form_dispatches
from tilewright.ir.site_groups import SiteGroups
from tilewright.ir.site_module import IsolatedSite
from tilewright.ir.site_ops import CONSTANT, ProgramOps, size_in_bits

# Dispatches in one site, at most.
_LONGEST = 8
_NOTHING = "no op of the program was found in it"
_READY = "the program has it as a dispatch already"


@dataclass(frozen=True)
class ProgramSite:
    """A site of a program.

    dispatches: entry points of the dispatches that IREE computes it with, and how often one run
    runs each of them for it. count: how often a run computes it. alone: the site as a module; None
    where `reason` says why there is none. constant: which of its inputs are known before a run. Two
    with the same `alone.digest` and `constant` are the same site.
    """

    dispatches: Mapping[str, int]
    count: int
    alone: IsolatedSite | None
    constant: tuple[bool, ...] = ()
    reason: str = ""


def find_program_sites(
    compiler: CompilerSession, module: ir.Operation, function: str | None = None
) -> list[ProgramSite]:
    """The sites of a program, equal ones counted together.

    Args:
        compiler: a session of whose context `module` is.
        module: the program at the phase `SITE_PHASE`; it is left as it is.
        function: the entry point whose run is counted; by default every public one is run once.

    Returns:
        One for every dispatch of the run, in their order; where none could be found, one with a
        reason and without a module. Then those of several dispatches, which have sites of their own
        too.

    Raises:
        CompileError: the program does not compile.
    """
    ops = ProgramOps(module)
    sites = _Sites(ops, SiteGroups(ops, form_dispatches(compiler, ops, module, function)))
    found: dict[object, ProgramSite] = {}
    for site in (*sites.single(), *sites.merged()):
        key = object() if site.alone is None else (site.alone.digest, site.constant)
        known = found.get(key)
        if known is not None:
            runs = Counter(known.dispatches) + Counter(site.dispatches)
            site = replace(known, dispatches=runs, count=known.count + site.count)
        found[key] = site
    return list(found.values())


class _Sites:
    """Makes sites of groups."""

    def __init__(self, ops: ProgramOps, groups: SiteGroups) -> None:
        self._ops, self._groups = ops, groups
        self._members = groups.members()
        self._count = {group: max(d.count for d in of) for group, of in self._members.items()}
        # The groups with one result, by it.
        self._maker = {values[0]: g for g, values in groups.results.items() if len(values) == 1}

    def single(self) -> Iterator[ProgramSite]:
        """A site for each group."""
        for group, members in self._members.items():
            values = self._groups.results.get(group, [])
            if len(values) == 1:
                alone = self._groups.isolate(values[0], {group})
                yield self._site([group], alone, alone.obstacle)
                continue
            nothing = _READY if members[0].ops is None else _NOTHING
            reason = f"it has {len(values)} results" if values else nothing
            yield self._site([group], None, reason)

    def merged(self) -> Iterator[ProgramSite]:
        """Sites of several groups, none of them a part of another of its kind."""
        found: dict[frozenset[int], tuple[Chain, IsolatedSite]] = {}
        for value, group in self._maker.items():
            for groups, chain, alone in self._grown(value, group):
                found[groups] = (chain, alone)
        for groups, (chain, alone) in found.items():
            if not any(groups < other and chain == found[other][0] for other in found):
                yield self._site(sorted(groups), alone, "")

    def _grown(
        self, value: ir.Value, last: int
    ) -> Iterator[tuple[frozenset[int], Chain, IsolatedSite]]:
        """A group with those before it that belong to it."""
        groups, alone = frozenset({last}), self._groups.isolate(value, {last})
        if alone.obstacle:
            return
        for before in self._before(alone, groups):
            both = self._groups.isolate(value, groups | {before})
            (made,) = self._groups.results[before]
            if self._groups.is_elementwise(value):
                # The compiler has them apart where a transpose or a reshape is between.
                if has_product(both) and size_in_bits(value) <= size_in_bits(made):
                    yield groups | {before}, Chain.PRODUCT, both
            elif self._only_pads(made) and has_window(both):
                yield groups | {before}, Chain.WINDOW, both
        chain = chain_of(alone)
        growing = chain != Chain.NONE
        while growing and len(groups) < _LONGEST:
            growing = False
            for before in self._before(alone, groups):
                longer = self._groups.isolate(value, groups | {before})
                kind = chain_of(longer)
                if longer.obstacle or not _goes_on(chain, kind, self._chain(before)):
                    continue
                groups, alone, chain = groups | {before}, longer, kind
                growing = kind != Chain.ATTENTION
                break
        if len(groups) > 1 and chain in (Chain.ROWS, Chain.ATTENTION):
            yield groups, chain, alone

    def _before(self, alone: IsolatedSite, groups: frozenset[int]) -> Iterator[int]:
        """The groups that make an input of a site, for it alone and as often as it runs."""
        for value in alone.inputs:
            group = self._maker.get(value)
            if group is None or group in groups or not self._groups.is_used_in(value, groups):
                continue
            if all(self._count[group] == self._count[one] for one in groups):
                yield group

    def _chain(self, group: int) -> Chain:
        (value,) = self._groups.results[group]
        return chain_of(self._groups.isolate(value, {group}))

    def _only_pads(self, value: ir.Value) -> bool:
        return value.owner.operation.name == "tensor.pad" and self._groups.is_elementwise(value)

    def _site(self, groups: list[int], alone: IsolatedSite | None, reason: str) -> ProgramSite:
        runs = Counter[str]()
        for group in groups:
            for dispatch in self._members[group]:
                runs[dispatch.entry] += dispatch.count
        known = map(self._ops.known, alone.inputs if alone is not None else ())
        constant = tuple(one == CONSTANT for one in known)
        return ProgramSite(runs, self._count[groups[-1]], alone, constant, reason)


def _goes_on(chain: Chain, longer: Chain, before: Chain) -> bool:
    """Whether a chain is one still with what comes before it.

    What attention takes in on the way is a part of it: not what only prepares an operand.
    """
    if chain == Chain.HALF_ATTENTION:
        parts = (Chain.ROWS, Chain.HALF_ATTENTION)
        return longer in (Chain.HALF_ATTENTION, Chain.ATTENTION) and before in parts
    return longer in (Chain.ELEMENTWISE, Chain.ROWS)

"""Sites of a program: what a kernel can compute in place of one dispatch, or of several.

They are found at the preprocessing phase: the ops that the compiler makes a dispatch of, in a
module of their own. Dispatches that belong together make one more site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

from iree.compiler import ir

from tilewright.ir.session import CompilerSession
from tilewright.ir.site_chains import Chain, chain_of, has_product, has_window, sums_windows
from tilewright.ir.site_dispatches import form_dispatches
from tilewright.ir.site_groups import SiteGroups
from tilewright.ir.site_module import IsolatedSite
from tilewright.ir.site_ops import CONSTANT, ProgramOps, size_in_bits

# Dispatches in one site, at most.
_LONGEST = 8
# What makes one site of several groups.
_WHOLE = (Chain.ROWS, Chain.ATTENTION, Chain.PRODUCT, Chain.MOVES, Chain.BAND, Chain.GATED)
_LOOPS = ("scf.for", "scf.forall", "scf.while")
_NOTHING = "no op of the program was found in it"
_READY = "the program has it as a dispatch already"


@dataclass(frozen=True)
class ProgramSite:
    """A site of a program.

    dispatches: entry points of the dispatches that IREE computes it with, and how often one run
    runs each of them for it. count: how often a run computes it. alone: the site as a module; None
    where `reason` says why there is none. constant: which of its inputs are known before a run. Two
    with the same `alone.digest` and `constant` are the same site. reads: for each place where the
    program has it the loop that it is in, or the sequence of which it is a step that is written
    out, if it is, and what those inputs are made of.
    """

    dispatches: Mapping[str, int]
    count: int
    alone: IsolatedSite | None
    constant: tuple[bool, ...] = ()
    reason: str = ""
    reads: frozenset[tuple[Hashable, tuple[Hashable, ...]]] = frozenset()

    @property
    def again(self) -> int:
        """How many different sets of constants one time around a loop reads, where every place is
        in one: the next time reads the same. 0 where that is not so."""
        loops = Counter(loop for loop, _ in self.reads)
        return 0 if None in loops else max(loops.values(), default=0)


def find_program_sites(
    compiler: CompilerSession,
    module: ir.Operation,
    function: str | None = None,
    copy: ir.Operation | None = None,
) -> list[ProgramSite]:
    """The sites of a program, equal ones counted together.

    Args:
        compiler: a session of whose context `module` is.
        module: the program at the phase `SITE_PHASE`; it is left as it is.
        function: the entry point whose run is counted; by default every public one is run once.
        copy: of the module, for who wants the program at the flow phase, to which it is taken.

    Returns:
        One for every dispatch of the run, in their order; where none could be found, one with a
        reason and without a module. Then those of several dispatches, which have sites of their own
        too.

    Raises:
        CompileError: the program does not compile.
    """
    ops = ProgramOps(module)
    copy = module.operation.clone() if copy is None else copy
    sites = _Sites(ops, SiteGroups(ops, form_dispatches(compiler, ops, copy, function)))
    found: dict[object, ProgramSite] = {}
    for site in (*sites.single(), *sites.merged()):
        key = object() if site.alone is None else (site.alone.digest, site.constant)
        known = found.get(key)
        if known is not None:
            runs = Counter(known.dispatches) + Counter(site.dispatches)
            count, reads = known.count + site.count, known.reads | site.reads
            site = replace(known, dispatches=runs, count=count, reads=reads)
        found[key] = site
    return list(found.values())


class _Sites:
    """Makes sites of groups."""

    def __init__(self, ops: ProgramOps, groups: SiteGroups) -> None:
        self._ops, self._groups = ops, groups
        self._members = groups.members()
        self._count = {group: max(d.count for d in of) for group, of in self._members.items()}
        self._isolated: dict[tuple[ir.Value, frozenset[int]], IsolatedSite] = {}
        self._chains: dict[int, Chain] = {}
        # The groups with one result, by it.
        self._maker = {values[0]: g for g, values in groups.results.items() if len(values) == 1}

    def single(self) -> Iterator[ProgramSite]:
        """A site for each group."""
        for group, members in self._members.items():
            values = self._groups.results.get(group, [])
            if len(values) == 1:
                alone = self._isolate(values[0], frozenset({group}))
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
                if len(groups) > 1 and chain in _WHOLE:
                    found[groups] = (chain, alone)
        for groups, (chain, alone) in found.items():
            if not any(groups < other and chain == found[other][0] for other in found):
                if chain == Chain.MOVES:
                    alone = self._with_parts(alone, groups)
                yield self._site(sorted(groups), alone, "")

    def _grown(
        self, value: ir.Value, last: int
    ) -> Iterator[tuple[frozenset[int], Chain, IsolatedSite]]:
        """A group with those before it that belong to it."""
        alone = self._isolate(value, frozenset({last}))
        if alone.obstacle:
            return
        if self._groups.is_elementwise(value):
            # The compiler has a product apart from what is behind a transpose or a reshape.
            for before, both in self._before(value, alone, frozenset({last})):
                (made,) = self._groups.results[before]
                if has_product(both) and size_in_bits(value) <= size_in_bits(made):
                    yield frozenset({last, before}), Chain.PRODUCT, both
        elif has_product(alone) or has_window(alone):
            groups, chain, moved = self._grow(value, last, alone, Chain.MOVES)
            yield groups, chain, moved
            if sums_windows(alone):
                yield from self._bands(value, groups, moved)
            elif has_product(alone):
                yield from self._gated(value, groups, moved)
        yield self._grow(value, last, alone, chain_of(alone))

    def _bands(
        self, value: ir.Value, groups: frozenset[int], alone: IsolatedSite
    ) -> Iterator[tuple[frozenset[int], Chain, IsolatedSite]]:
        """Windows with the product that makes what they slide over."""
        for before, both in self._before(value, alone, groups):
            (made,) = self._groups.results[before]
            first = self._isolate(made, frozenset({before}))
            if has_product(first) and not sums_windows(first):
                yield groups | {before}, Chain.BAND, both

    def _gated(
        self, value: ir.Value, groups: frozenset[int], alone: IsolatedSite
    ) -> Iterator[tuple[frozenset[int], Chain, IsolatedSite]]:
        """Products with the elementwise ops that make an operand, such as the gates that scale each
        channel of an image."""
        for before, both in self._before(value, alone, groups):
            (made,) = self._groups.results[before]
            if self._groups.is_elementwise(made) and not self._groups.is_moved(made):
                yield groups | {before}, Chain.GATED, both

    def _grow(
        self, value: ir.Value, last: int, alone: IsolatedSite, chain: Chain
    ) -> tuple[frozenset[int], Chain, IsolatedSite]:
        """A group with all those before it with which it is a chain."""
        groups, growing = frozenset({last}), True
        while growing and len(groups) < _LONGEST:
            growing = False
            for before, longer in self._before(value, alone, groups):
                kind = Chain.MOVES if chain == Chain.MOVES else chain_of(longer)
                if self._goes_on(chain, kind, before):
                    groups, alone, chain, growing = groups | {before}, longer, kind, True
                    break
        return groups, chain, alone

    def _goes_on(self, chain: Chain, longer: Chain, before: int) -> bool:
        """Whether a chain is one still with what comes before it."""
        (value,) = self._groups.results[before]
        if chain in (Chain.MOVES, Chain.ATTENTION):
            return longer == chain and self._groups.is_moved(value)
        if chain != Chain.HALF_ATTENTION:
            return longer in (Chain.ELEMENTWISE, Chain.ROWS)
        # What attention takes in on the way is a part of it: not what only prepares an operand.
        on_the_way = self._chain(before) in (Chain.ROWS, Chain.HALF_ATTENTION) or all(
            self._chain(user) in (Chain.ELEMENTWISE, Chain.ROWS)
            for user in self._groups.users(value)
        )
        return longer in (Chain.HALF_ATTENTION, Chain.ATTENTION) and on_the_way

    def _before(
        self, value: ir.Value, alone: IsolatedSite, groups: frozenset[int]
    ) -> Iterator[tuple[int, IsolatedSite]]:
        """The groups that make an input of a site, for it alone and as often as it runs; each with
        the site that they make together."""
        for one in alone.inputs:
            group = self._maker.get(one)
            if group is None or group in groups or not self._groups.users(one) <= groups:
                continue
            if all(self._count[group] == self._count[other] for other in groups):
                longer = self._isolate(value, groups | {group})
                if not longer.obstacle:
                    yield group, longer

    def _with_parts(self, alone: IsolatedSite, groups: frozenset[int]) -> IsolatedSite:
        """A site that reads the parts of a concatenation where they are, not what they make."""
        joins = self._groups.joins(alone.inputs, groups)
        whole = self._groups.isolate(alone.result, groups, joins) if joins else alone
        return alone if whole.obstacle else whole

    def _isolate(self, value: ir.Value, groups: frozenset[int]) -> IsolatedSite:
        if (value, groups) not in self._isolated:
            self._isolated[value, groups] = self._groups.isolate(value, groups)
        return self._isolated[value, groups]

    def _chain(self, group: int) -> Chain:
        if group not in self._chains:
            values = self._groups.results.get(group, [])
            alone = self._isolate(values[0], frozenset({group})) if len(values) == 1 else None
            self._chains[group] = Chain.NONE if alone is None else chain_of(alone)
        return self._chains[group]

    def _site(self, groups: list[int], alone: IsolatedSite | None, reason: str) -> ProgramSite:
        runs = Counter[str]()
        for group in groups:
            for dispatch in self._members[group]:
                runs[dispatch.entry] += dispatch.count
        count = self._count[groups[-1]]
        if alone is None:
            return ProgramSite(runs, count, None, reason=reason)
        constant = tuple(self._ops.known(one) == CONSTANT for one in alone.inputs)
        read = tuple(
            self._ops.constant_of(one)
            for one, known in zip(alone.inputs, constant, strict=True)
            if known
        )
        loop = _loop_of(alone.result.owner.operation) or self._ops.sequence_of(alone.inputs)
        reads = frozenset({(loop, read)})
        return ProgramSite(runs, count, alone, constant, reason, reads)


def _loop_of(op: ir.Operation) -> ir.Operation | None:
    """The innermost loop that an op is in."""
    while op.name not in _LOOPS:
        if op.parent is None:
            return None
        op = op.parent.operation
    return op

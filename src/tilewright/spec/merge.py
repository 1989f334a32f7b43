"""Merge tuning specs, our own and foreign ones, into one that does what they do together.

A spec's `__kernel_config` is taken as a list of steps that hand the function on: passes, our lists
of entries, `foreach_match`, and whatever else somebody wrote. The merged entry point runs the steps
of all specs in the order of the specs. A pass that has run is not run again. Our entries leave a
configured function alone by themselves; a foreign `foreach_match` is kept from functions that an
earlier spec configured by a first pair of its own that takes them up and does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from iree.compiler import ir

from tilewright.errors import UserError
from tilewright.ir.walk import walk
from tilewright.spec import library, shared_sequences
from tilewright.spec.evidence import EntryEvidence
from tilewright.spec.read import (
    entry_id,
    entry_point_steps,
    evidence_of,
    find_entries,
    foreach_pairs,
    header_of,
    is_entry_list,
    parse_spec,
    symbols,
)


@dataclass(frozen=True)
class MergeResult:
    """A merged spec: its text, the names of its entries, those left out, and what to know.

    `duplicates_dropped` names entries that match exactly what an earlier one matches; `notes` says
    of each which one was kept and whether the two configured it differently, and lists what was
    renamed and what could not be promised.
    """

    text: str
    entries: tuple[str, ...]
    duplicates_dropped: tuple[str, ...]
    notes: tuple[str, ...]


def merge_specs(texts: Sequence[str]) -> MergeResult:
    """One working spec from any number of specs; on a dispatch that two fit, the earlier one wins.

    Args:
        texts: the specs; messages call them `spec 1`, `spec 2`, ….

    Returns:
        The merged spec, with what was left out and what to know.

    Raises:
        UserError: A text is no tuning spec.
    """
    with library.new_context(), ir.Location.unknown():
        specs = [parse_spec(text, f"spec {n}") for n, text in enumerate(texts, start=1)]
        merge = _Merge(specs)
        module = merge.build()
        return MergeResult(
            text=library.checked_text(module, "merged"),
            entries=tuple(entry.name for entry in find_entries(module.operation)),
            duplicates_dropped=tuple(merge.dropped),
            notes=tuple(merge.notes),
        )


@dataclass
class _Kept:
    """An entry that the merged spec has: where it came from, and all it does, as text."""

    name: str
    source: str
    whole: str


@dataclass
class _Merge:
    specs: Sequence[ir.Operation]
    dropped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _evidence: dict[str, dict[str, str]] = field(default_factory=dict)
    _ids: set[str] = field(default_factory=set)
    _taken: dict[str, str] = field(default_factory=lambda: {library.ENTRY_POINT: ""})
    _passes: set[str] = field(default_factory=set)
    _configures: bool = False
    _known: Mapping[str, EntryEvidence] = field(default_factory=dict)

    def build(self) -> ir.Module:
        headers = [header_of(spec) for spec in reversed(self.specs)]  # the earliest wins
        module = library.new_module({k: v for header in headers for k, v in header.items()})
        consumed = any(_consumes(symbols(spec)[library.ENTRY_POINT]) for spec in self.specs)

        def steps(func: ir.Value) -> ir.Value:
            for number, spec in enumerate(self.specs, start=1):
                self._known = evidence_of(spec)
                self._rename_symbols(spec, f"spec {number}")
                func = self._take_steps(f"spec {number}", spec, func)
            return func

        with ir.InsertionPoint(module.body):
            config = library.define_entry_point(steps, consumed)
        uses = [use.owner.operation for use in config.regions[0].blocks[0].arguments[0].uses]
        if all(library.is_only_functions(use) for use in uses):
            config.attributes["arg_attrs"] = library.accesses(1, consumes=False)
        for spec in self.specs:
            for op in list(spec.regions[0].blocks[0].operations):
                if library.symbol(op) != library.ENTRY_POINT:
                    op.operation.move_before(config)
        shared_sequences.add_helpers(module)
        library.put_evidence(module.operation, self._evidence)
        return module

    # Steps ---------------------------------------------------------------------------------------

    def _take_steps(self, source: str, spec: ir.Operation, func: ir.Value) -> ir.Value:
        """Move the steps of one spec to the insertion point, on the handle `func`; what they yield.

        Steps that the merged spec has already are left out.
        """
        known = symbols(spec)
        *steps, end = entry_point_steps(spec)
        known[library.ENTRY_POINT].regions[0].blocks[0].arguments[0].replace_all_uses_with(func)
        guard = self._configures
        for step in steps:
            needed = True
            if step.name == "transform.apply_registered_pass" or library.is_only_functions(step):
                key = f"{step.name} {[(name, step.attributes[name]) for name in step.attributes]}"
                needed = key not in self._passes
                self._passes.add(key)
            elif is_entry_list(step):
                needed = self._keep_entries(source, known, step)
            elif step.name == "transform.foreach_match" and len(step.operands) == 1:
                needed = self._keep_pairs(source, known, step, guard)
            elif step.name != "transform.param.constant":
                self._configures = True
                self.notes.append(
                    f"{source}: its {library.ENTRY_POINT} has a step '{step.name}', copied as it "
                    "is; it may configure dispatches that an earlier spec configured"
                )
            if needed:
                ir.InsertionPoint.current.block.append(step)
            else:
                for result in step.results:
                    result.replace_all_uses_with(step.operands[0])
        return end.operands[0]

    def _keep_entries(
        self, source: str, known: dict[str, ir.Operation], step: ir.Operation
    ) -> bool:
        """Leave only those entries in our own list that are new; whether there are any."""
        kept = False
        for include in list(step.regions[0].blocks[0].operations)[:-1]:
            target = library.text(include.operation.attributes["target"])
            sequence = known.get(target)
            if sequence is None:
                raise UserError(f"{source}: includes @{target}, which it does not define")
            name = entry_id(sequence) or target
            if self._keep(source, name, _matching(sequence), _text(sequence)):
                self._claim_id(source, sequence)
                kept = self._configures = True
            else:
                include.operation.erase()
                sequence.erase()
                del known[target]
        return kept

    def _keep_pairs(
        self,
        source: str,
        known: dict[str, ir.Operation],
        step: ir.Operation,
        guard: bool,
    ) -> bool:
        """Leave only those pairs in a `foreach_match` that are new; whether the step is needed.

        `guard`: a step before it keeps it from the functions that are configured when it starts.
        """
        pairs: list[tuple[str, str]] = []
        own = all(matcher.startswith(library.PREFIX) for matcher, _ in foreach_pairs(step))
        for matcher, action in foreach_pairs(step):
            sequence, act = known.get(matcher), known.get(action)
            if sequence is not None and act is not None and not matcher.startswith(library.PREFIX):
                whole = _text(sequence) + _text(act)
                if not self._keep(source, matcher, _matching(sequence), whole):
                    continue
            pairs.append((matcher, action))
        has_entries = any(not matcher.startswith(library.PREFIX) for matcher, _ in pairs)
        if not has_entries and not own and len(step.results) == 1:
            return False
        if guard and not own:
            step.operands[0] = shared_sequences.mark_configured(step.operands[0])
            if shared_sequences.GUARDING_PAIR not in pairs:
                pairs.insert(0, shared_sequences.GUARDING_PAIR)
        self._configures = self._configures or has_entries
        for name, symbols_ in zip(("matchers", "actions"), zip(*pairs, strict=True), strict=True):
            step.attributes[name] = ir.ArrayAttr.get([_reference(s) for s in symbols_])
        return True

    # Entries and names ---------------------------------------------------------------------------

    def _keep(self, source: str, name: str, matching: str, whole: str) -> bool:
        """Whether an entry is new; one that matches what an earlier one does is dropped."""
        earlier = self._kept.get(matching)
        if earlier is None:
            self._kept[matching] = _Kept(name, source, whole)
            return True
        self.dropped.append(name)
        same = "the same" if earlier.whole == whole else "another"
        self.notes.append(
            f"{source}: '{name}' matches what '{earlier.name}' of {earlier.source} matches, with "
            f"{same} configuration; kept that of {earlier.source}"
        )
        return False

    def _claim_id(self, source: str, sequence: ir.Operation) -> None:
        """Make the id that an entry leaves on functions one that no earlier entry leaves."""
        old = entry_id(sequence)
        if not old:
            return
        new, number = old, 2
        while new in self._ids:
            new, number = f"{old} ({number})", number + 1
        self._ids.add(new)
        if old in self._known:
            self._evidence[new] = self._known[old].texts()
        if new == old:
            return
        self.notes.append(f"{source}: entry '{old}' is called '{new}' now")
        for op in walk(sequence):
            if op.name != "transform.annotate":
                continue
            if library.text(op.attributes["name"]) == library.MARKER:
                constant = op.operands[1].owner.operation
                constant.attributes["value"] = ir.StringAttr.get(new)

    def _rename_symbols(self, spec: ir.Operation, source: str) -> None:
        """Give the symbols of `spec` names that no earlier spec uses; equal helpers are shared."""
        renamed: dict[str, str] = {}
        own = symbols(spec)
        for name, op in own.items():
            if name == library.ENTRY_POINT:
                continue
            if name.startswith(library.PREFIX) and self._taken.get(name) == _text(op):
                op.erase()
                continue
            new, number = name, 1
            while new in self._taken or (new != name and new in own):
                new, number = f"{name}_{number}", number + 1
            self._taken[new] = _text(op)
            if new != name:
                renamed[name] = new
        for old, new in renamed.items():
            ir.SymbolTable.set_symbol_name(own[old], new)
            ir.SymbolTable.replace_all_symbol_uses(old, new, spec)
        if renamed and library.HEADER not in spec.attributes:
            names = ", ".join(f"@{old} to @{new}" for old, new in renamed.items())
            self.notes.append(f"{source}: renamed {names}")


def _consumes(entry_point: ir.Operation) -> bool:
    argument = ir.DictAttr(ir.ArrayAttr(entry_point.attributes["arg_attrs"])[0])
    return "transform.consumed" in argument


def _reference(symbol: str) -> ir.Attribute:
    first, *nested = symbol.split("::")
    return ir.SymbolRefAttr.get([first, *nested]) if nested else ir.FlatSymbolRefAttr.get(first)


def _text(op: ir.Operation) -> str:
    """An op as text, whatever it is called."""
    copy = op.clone(ip=False).operation
    copy.attributes["sym_name"] = ir.StringAttr.get("_")
    for inner in walk(copy):
        if inner.name == "transform.annotate" and (
            library.text(inner.attributes["name"]) == library.MARKER
        ):
            inner.operands[1].owner.operation.attributes["value"] = ir.StringAttr.get("_")
    return str(copy.get_asm())


def _matching(sequence: ir.Operation) -> str:
    """What a sequence compares, as text: without what it sets and the values it hands on."""
    copy = sequence.clone(ip=False).operation
    copy.attributes["sym_name"] = ir.StringAttr.get("_")
    for op in list(walk(copy)):
        if op.name == "transform.annotate":
            op.erase()
    for op in list(walk(copy)):
        if op.name != "transform.param.constant":
            continue
        users = [use.owner.operation.name for use in op.results[0].uses]
        if not users:
            op.erase()
        elif set(users) == {"transform.yield"}:
            op.attributes["value"] = ir.UnitAttr.get()
    return str(copy.get_asm())

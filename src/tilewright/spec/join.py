"""Join preprocessing specs into one that does what they do one after the other.

IREE takes one such spec. Each has an entry point that is run on the program's module; the joined
one runs the steps of all, in the order of the specs. Where two have a kernel for one site, the
earlier is kept, since nothing would be left for the later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from iree.compiler import ir

from tilewright.errors import UserError
from tilewright.ir.walk import walk
from tilewright.spec import library
from tilewright.spec.kernels import (
    KERNELS,
    StoredKernel,
    StoredSequence,
    code_functions,
    store,
    store_sequence,
    stored_kernels,
    stored_sequences,
)
from tilewright.spec.merge import MergeResult, merge_specs
from tilewright.spec.read import (
    check_spec,
    evidence_of,
    foreach_pairs,
    header_of,
    parse_preprocessing,
    symbols,
)


def merge_any(texts: Sequence[tuple[str, str]]) -> MergeResult:
    """One spec of several of one sort: tuning specs, or preprocessing specs.

    Args:
        texts: each behind what messages call it.

    Returns:
        The spec, with what was left out and what to know.

    Raises:
        UserError: a text is no spec, or they are of both sorts.
    """
    sorts = {check_spec(text, name).is_preprocessing: name for name, text in reversed(texts)}
    if len(sorts) > 1:
        raise UserError(
            f"{sorts[True]} is a preprocessing spec and {sorts[False]} a tuning spec: iree-compile "
            "takes each by a flag of its own; merge those of one sort"
        )
    return (join_specs if True in sorts else merge_specs)([text for _, text in texts])


def without_sequences(text: str) -> str:
    """A spec whose kernels are dispatches of their own where they follow each other.

    Args:
        text: a spec of either sort.
    """
    with library.new_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        sequences = stored_sequences(module.operation)
        for one in sequences:
            _leave_out(module.operation, one)
        return library.checked_text(module, "merged") if sequences else text


def join_specs(texts: Sequence[str]) -> MergeResult:
    """One preprocessing spec that does what several do.

    Args:
        texts: the specs; messages call them `spec 1`, `spec 2`, ….

    Returns:
        The spec, with the names of its kernels, of those left out, and what to know.

    Raises:
        UserError: a text is no preprocessing spec, or ends without a handle to the module.
    """
    with library.new_context(), ir.Location.unknown():
        specs = [parse_preprocessing(text, f"spec {n}") for n, text in enumerate(texts, start=1)]
        join = _Join(specs)
        module = join.build()
        return MergeResult(
            text=library.checked_text(module, "joined"),
            entries=tuple(one.name for one in stored_kernels(module.operation)),
            duplicates_dropped=tuple(join.dropped),
            notes=tuple(join.notes),
        )


@dataclass
class _Join:
    specs: Sequence[ir.Operation]
    dropped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _taken: dict[str, ir.Operation] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)
    _evidence: dict[str, dict[str, str]] = field(default_factory=dict)

    def build(self) -> ir.Module:
        headers = [header_of(spec) for spec in reversed(self.specs)]  # the earliest wins
        module = library.new_module({k: v for header in headers for k, v in header.items()})
        mains = [symbols(spec)[library.PREPROCESSING_ENTRY_POINT] for spec in self.specs]
        only_read = all(_only_reads(main) for main in mains)

        def steps(handle: ir.Value) -> None:
            for number, (spec, main) in enumerate(zip(self.specs, mains, strict=True), start=1):
                self._take_apart(f"spec {number}", spec)
                handle = _take_steps(f"spec {number}", main, handle)

        with ir.InsertionPoint(module.body):
            main = library.define(library.PREPROCESSING_ENTRY_POINT, [library.any_op()], steps)
        if not only_read:
            del main.attributes["arg_attrs"]
        for spec in self.specs:
            for op in list(spec.regions[0].blocks[0].operations):
                if library.symbol(op) != library.PREPROCESSING_ENTRY_POINT:
                    op.operation.move_before(main)
        library.put_evidence(module.operation, self._evidence)
        return module

    def _take_apart(self, source: str, spec: ir.Operation) -> None:
        """Leave in a spec what no earlier one has, under names that no earlier one uses."""
        names: dict[str, str] = {}
        for kernel in stored_kernels(spec):
            if kernel.symbols.call in self._taken:
                self._drop(source, spec, kernel)
            else:
                names[kernel.name] = self._name(source, spec, kernel)
        _rename_in_sequences(spec, names)
        own = symbols(spec)
        renamed: dict[str, str] = {}
        for name, op in own.items():
            if name == library.PREPROCESSING_ENTRY_POINT:
                continue
            earlier = self._taken.get(name)
            if earlier is not None and _text(earlier) == _text(op):
                op.erase()
                continue
            new, number = name, 1
            while new in self._taken or (new != name and new in own):
                new, number = f"{name}_{number}", number + 1
            self._taken[new] = op
            if new != name:
                renamed[name] = new
        for old, new in renamed.items():
            ir.SymbolTable.set_symbol_name(own[old], new)
            ir.SymbolTable.replace_all_symbol_uses(old, new, spec)

    def _drop(self, source: str, spec: ir.Operation, kernel: StoredKernel) -> None:
        """Take a kernel out of a spec, whose site an earlier one has a kernel for."""
        self.dropped.append(kernel.name)
        self.notes.append(
            f"{source}: kernel '{kernel.name}' is for a site that an earlier spec has a kernel "
            "for; kept that of the earlier"
        )
        _leave_out(spec, kernel)

    def _name(self, source: str, spec: ir.Operation, kernel: StoredKernel) -> str:
        """Give a kernel a name that no earlier one has."""
        old = kernel.name
        new, number = old, 2
        while new in self._names:
            new, number = f"{old} ({number})", number + 1
        self._names.add(new)
        if (known := evidence_of(spec).get(old)) is not None:
            self._evidence[new] = known.texts()
        if new != old:
            code = [f for op in kernel.parts(spec) for f in code_functions(op)]
            store(kernel.function, {**kernel.texts, "name": new}, code)
            self.notes.append(f"{source}: kernel '{old}' is called '{new}' now")
        return new


def _text(op: ir.Operation) -> str:
    # By itself: the short names of attributes are otherwise looked for in all of the module.
    return str(op.get_asm(use_local_scope=True))


def _take_steps(source: str, main: ir.Operation, handle: ir.Value) -> ir.Value:
    """Move the steps of an entry point to the insertion point; the module's handle after them."""
    block = main.regions[0].blocks[0]
    block.arguments[0].replace_all_uses_with(handle)
    *steps, _ = [op.operation for op in block.operations]
    for step in steps:
        ir.InsertionPoint.current.block.append(step)
    return library.handed_on(handle, steps)


def _only_reads(main: ir.Operation) -> bool:
    if "arg_attrs" not in main.attributes:
        return False
    (argument,) = ir.ArrayAttr(main.attributes["arg_attrs"])
    return "transform.readonly" in ir.DictAttr(argument)


def _rename_in_sequences(spec: ir.Operation, names: Mapping[str, str]) -> None:
    """Call kernels by new names; sequences of which one is not there any more are taken out."""
    for sequence in stored_sequences(spec):
        if not names.keys() >= set(sequence.kernels):
            _leave_out(spec, sequence)
            continue
        code = [f for op in sequence.parts(spec) for f in code_functions(op)]
        noted = (f for f in code if KERNELS in f.attributes)
        store_sequence([names[one] for one in sequence.kernels], sequence.function, *noted)


def _leave_out(spec: ir.Operation, one: StoredKernel | StoredSequence) -> None:
    """Take a kernel or a sequence out of a spec, with what tries its matcher."""
    pair = (one.symbols.matcher, one.symbols.action)
    for op in list(walk(spec)):
        if op.name == "transform.foreach_match":
            _keep_pairs(op, [other for other in foreach_pairs(op) if other != pair])
    for op in one.parts(spec):
        op.erase()


def _keep_pairs(step: ir.Operation, pairs: Sequence[tuple[str, str]]) -> None:
    """Leave these pairs in a `foreach_match`; without any it is taken out."""
    if not pairs:
        step.results[0].replace_all_uses_with(step.operands[0])
        step.erase()
        return
    for attribute, names in zip(("matchers", "actions"), zip(*pairs, strict=True), strict=True):
        references = [ir.FlatSymbolRefAttr.get(name) for name in names]
        step.attributes[attribute] = ir.ArrayAttr.get(references)

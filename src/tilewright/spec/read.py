"""Read specs, our own and foreign ones: check them, and say in words what they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import iree_codegen

from tilewright.errors import UserError
from tilewright.ir.walk import walk
from tilewright.spec import library
from tilewright.spec.evidence import EntryEvidence
from tilewright.spec.kernels import stored_kernels, stored_sequences
from tilewright.spec.report import SpecReport, SpecRow


@dataclass(frozen=True)
class FoundEntry:
    """One entry as it stands in a spec: the sequence that matches, and that which acts if apart."""

    name: str
    matcher: ir.Operation
    action: ir.Operation | None = None


def check_spec(text: str, name: str = "tuning spec") -> SpecReport:
    """Parse and verify a tuning or preprocessing spec and say what it is, its entries in words.

    What another's matcher compares is told as far as its ops are known here.

    Args:
        text: MLIR.
        name: what errors call it.

    Returns:
        The report; entries in the order in which they are tried.

    Raises:
        UserError: The text is no valid MLIR (with the compiler's own message), or a module that
            neither `--iree-codegen-tuning-spec-path=` nor
            `--iree-preprocessing-transform-spec-filename=` would take.
    """
    with library.new_context(), ir.Location.unknown():
        module = _parse_library(text, name, "tuning spec")
        if is_preprocessing(module):
            kernels = [kernel.texts for kernel in stored_kernels(module)]
            return SpecReport(
                entries=(*_preprocessing_rows(module), *map(_kernel_row, kernels)),
                ours=library.HEADER in module.attributes,
                header=header_of(module),
                is_preprocessing=True,
                kernels=tuple(kernels),
                evidence=evidence_of(module),
                sequences=tuple(one.kernels for one in stored_sequences(module)),
            )
        module = parse_spec(text, name)
        return SpecReport(
            entries=tuple(_row(entry) for entry in find_entries(module)),
            ours=library.HEADER in module.attributes,
            header=header_of(module),
            evidence=evidence_of(module),
        )


def with_evidence(text: str, name: str, evidence: Mapping[str, EntryEvidence]) -> str:
    """A spec with what is known of its entries.

    Args:
        text: MLIR.
        name: what errors call it.
        evidence: by the names of entries; those that the spec does not have are left out.

    Returns:
        The text of the spec; without entries that anything is known of the text as it is.

    Raises:
        UserError: the text is no spec.
    """
    names = {row.name for row in check_spec(text, name).entries}
    known = {entry: one.texts() for entry, one in evidence.items() if entry in names}
    if not known:
        return text
    with library.new_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        library.put_evidence(module.operation, known)
        return f"{library.printed(module).rstrip()}\n"


def evidence_of(module: ir.Operation) -> dict[str, EntryEvidence]:
    """What a spec knows of its entries.

    Args:
        module: the spec.

    Returns:
        Evidence by the entry's name.
    """
    if library.EVIDENCE not in module.attributes:
        return {}
    return {
        one.name: EntryEvidence.of({e.name: library.text(e.attr) for e in ir.DictAttr(one.attr)})
        for one in ir.DictAttr(module.attributes[library.EVIDENCE])
    }


def _preprocessing_rows(module: ir.Operation) -> Iterator[SpecRow]:
    """The convolutions that a spec of ours makes matrix products."""
    for op in walk(module):
        if op.name == "transform.annotate":
            name = library.text(op.attributes["name"])
            if name.startswith(library.IM2COL):
                yield SpecRow(name.removeprefix(library.IM2COL), "convolution", "im2col", "")


def _kernel_row(texts: Mapping[str, str]) -> SpecRow:
    return SpecRow(texts["name"], texts["site"], f"kernel {texts['sketch']}", texts["knobs"])


def header_of(module: ir.Operation) -> dict[str, str]:
    """What a spec of ours says of itself; nothing for another's.

    Args:
        module: the spec.

    Returns:
        Its header by key.
    """
    if library.HEADER not in module.attributes:
        return {}
    header = ir.DictAttr(module.attributes[library.HEADER])
    return {entry.name: library.text(entry.attr) for entry in header}


def parse_spec(text: str, name: str) -> ir.Operation:
    """The module of a tuning spec, in the current context.

    Args:
        text: MLIR.
        name: what errors call it.

    Returns:
        The module's operation.

    Raises:
        UserError: As :func:`check_spec`.
    """
    module = _parse_library(text, name, "tuning spec")
    marked = [
        op.operation
        for op in module.regions[0].blocks[0].operations
        if library.ENTRY_POINT_ATTR in op.operation.attributes
    ]
    names = [library.symbol(op) for op in marked]
    if names != [library.ENTRY_POINT]:
        found = f"found {', '.join('@' + n for n in names)}" if names else "there is none"
        raise UserError(
            f"{name}: not a tuning spec: expected one sequence @{library.ENTRY_POINT} with the "
            f"attribute '{library.ENTRY_POINT_ATTR}'; {found}"
        )
    return module


def parse_preprocessing(text: str, name: str) -> ir.Operation:
    """The module of a preprocessing spec, in the current context.

    Args:
        text: MLIR.
        name: what errors call it.

    Returns:
        The module's operation.

    Raises:
        UserError: The text is no valid MLIR, or a module that
            `--iree-preprocessing-transform-spec-filename=` would not take.
    """
    module = _parse_library(text, name, "preprocessing spec")
    if not is_preprocessing(module):
        raise UserError(
            f"{name}: not a preprocessing spec: expected a sequence "
            f"@{library.PREPROCESSING_ENTRY_POINT} with one argument"
        )
    return module


def is_preprocessing(module: ir.Operation) -> bool:
    """Whether a library of sequences is run on a program's module, and not on dispatches.

    Args:
        module: the library.
    """
    main = symbols(module).get(library.PREPROCESSING_ENTRY_POINT)
    if main is None or main.name != "transform.named_sequence":
        return False
    blocks = list(main.regions[0].blocks)
    return bool(blocks) and len(blocks[0].arguments) == 1


def _parse_library(text: str, name: str, what: str) -> ir.Operation:
    try:
        module = ir.Operation.parse(text, source_name=name)
        module.operation.verify()
    except ir.MLIRError as error:
        raise UserError(f"{name}: not a valid MLIR module: {library.reason(error)}") from error
    module = module.operation
    if module.name != "builtin.module" or "transform.with_named_sequence" not in module.attributes:
        raise UserError(
            f"{name}: not a {what}: expected a module with the attribute "
            "'transform.with_named_sequence'"
        )
    return module


def symbols(module: ir.Operation) -> dict[str, ir.Operation]:
    """The ops at the top level of a module that define a symbol.

    Args:
        module: a spec.

    Returns:
        The ops by name, in order.
    """
    operations = [op.operation for op in module.regions[0].blocks[0].operations]
    return {library.symbol(op): op for op in operations if library.symbol(op)}


def entry_point_steps(module: ir.Operation) -> list[ir.Operation]:
    """The ops of `__kernel_config`.

    Args:
        module: a spec.

    Returns:
        The ops in order; the last one yields.
    """
    config = symbols(module)[library.ENTRY_POINT]
    return [op.operation for op in config.regions[0].blocks[0].operations]


def is_entry_list(step: ir.Operation) -> bool:
    """Whether a step is our list of entries: a sequence that includes one after the other.

    Args:
        step: of an entry point.

    Returns:
        Whether it is.
    """
    if step.name != "transform.sequence" or len(step.results):
        return False
    inside = [op.operation for op in step.regions[0].blocks[0].operations]
    return all(op.name == "transform.include" and not len(op.results) for op in inside[:-1])


def entry_id(sequence: ir.Operation) -> str:
    """The id that an entry of ours leaves on the functions it configures.

    Args:
        sequence: the entry.

    Returns:
        The id, '' for another's.
    """
    for op in walk(sequence):
        if op.name == "transform.annotate" and library.text(op.attributes["name"]) == (
            library.MARKER
        ):
            return library.text(op.operands[1].owner.operation.attributes["value"])
    return ""


def find_entries(module: ir.Operation) -> Iterator[FoundEntry]:
    """The entries of a spec in the order in which they are tried; foreign ones best effort.

    Args:
        module: the spec.

    Yields:
        Each entry.
    """
    known = symbols(module)
    for step in entry_point_steps(module):
        if is_entry_list(step):
            for include in list(step.regions[0].blocks[0].operations)[:-1]:
                sequence = known.get(library.text(include.operation.attributes["target"]))
                if sequence is not None:
                    name = entry_id(sequence) or library.symbol(sequence)
                    yield FoundEntry(name, sequence)
        elif step.name == "transform.foreach_match":
            for matcher, action in foreach_pairs(step):
                if matcher in known and not matcher.startswith(library.PREFIX):
                    yield FoundEntry(matcher, known[matcher], known.get(action))


def foreach_pairs(step: ir.Operation) -> list[tuple[str, str]]:
    """The pairs of a `transform.foreach_match`.

    Args:
        step: the op.

    Returns:
        (matcher, action) names in the order in which they are tried.
    """
    matchers, actions = (ir.ArrayAttr(step.attributes[n]) for n in ("matchers", "actions"))
    return [(library.text(m), library.text(a)) for m, a in zip(matchers, actions, strict=True)]


def _row(entry: FoundEntry) -> SpecRow:
    pipelines: list[str] = []
    configurations: list[str] = []
    sequences = [entry.matcher] if entry.action is None else [entry.matcher, entry.action]
    for sequence in sequences:
        for op in walk(sequence):
            if op.name != "transform.param.constant":
                continue
            value = op.attributes["value"]
            if isinstance(value, iree_codegen.CompilationInfoAttr):
                pipelines.append(describe_pipeline(value.translation_info))
                configurations.append(str(value.lowering_config))
            elif isinstance(value, iree_codegen.TranslationInfoAttr):
                pipelines.append(describe_pipeline(value))
            else:
                configurations += [f"{where}{value}" for where in _configured_ops(op)]
    return SpecRow(
        name=entry.name,
        matches=describe_matcher(entry.matcher),
        pipeline="; ".join(dict.fromkeys(pipelines)),
        configuration="; ".join(configurations),
    )


def _configured_ops(constant: ir.Operation) -> list[str]:
    """Which ops get the value of `constant` as lowering configuration: `op 2: ` for the third one.

    The position is that in the row's `matches`; an op that is not one of several has no number.
    """
    where: list[str] = []
    for use in constant.results[0].uses:
        user = use.owner.operation
        if user.name != "transform.annotate":
            continue
        if library.text(user.attributes["name"]) != "lowering_config":
            continue
        target = user.operands[0]
        one_of_several = isinstance(target.owner, ir.Operation | ir.OpView) and (
            target.owner.operation.name == "transform.split_handle"
        )
        where.append(f"op {ir.OpResult(target).result_number}: " if one_of_several else "")
    return where


def describe_type(type_: ir.Type) -> str:
    """A type in words.

    Args:
        type_: of an operand.

    Returns:
        A tensor type as `64x32xf32`, another type as MLIR prints it.
    """
    if not isinstance(type_, ir.RankedTensorType):
        return str(type_)
    shaped = ir.RankedTensorType(type_)
    sizes = ["?" if shaped.is_dynamic_dim(d) else str(shaped.shape[d]) for d in range(shaped.rank)]
    return "x".join([*sizes, str(shaped.element_type)])


def describe_pipeline(translation_info: ir.Attribute) -> str:
    """A pipeline in words.

    Args:
        translation_info: a `#iree_codegen.translation_info`.

    Returns:
        Its pipeline, with the options.
    """
    words = [str(translation_info.pass_pipeline)]
    if translation_info.configuration is not None:
        words.append(str(translation_info.configuration))
    return " ".join(words)


def describe_matcher(sequence: ir.Operation) -> str:
    """What a matcher compares: the ops and types it names, in order.

    Args:
        sequence: a named sequence.

    Returns:
        Ops with `; ` between; '' where none is known here.
    """
    parts: list[str] = []
    for op in sequence.regions[0].blocks[0].operations:
        describe = _DESCRIBE.get(op.operation.name)
        words = describe(op.operation) if describe else ""
        if words:
            parts.append(words)
    return "; ".join(parts)


def _structured(op: ir.Operation) -> str:
    """One of our compute ops; the other uses of this op only count something."""
    if "filter_operand_types" not in op.attributes:
        return ""
    names = [library.text(name) for name in ir.ArrayAttr(op.attributes["ops"])]
    types = [describe_type(ir.TypeAttr(t).value) for t in op.attributes["filter_operand_types"]]
    return f"{'|'.join(names)} {', '.join(types)}"


def _operation_name(op: ir.Operation) -> str:
    return "|".join(library.text(name) for name in ir.ArrayAttr(op.attributes["op_names"]))


def _typed(op: ir.Operation) -> str:
    """A matcher of a kind of op (`iree.match.contraction` and others) with the types it wants."""
    kind = op.name.removeprefix("transform.iree.match.")
    names = [name for name in op.attributes if name.endswith("_type")]
    types = [describe_type(ir.TypeAttr(op.attributes[name]).value) for name in sorted(names)]
    return f"{kind} {', '.join(types)}"


def _dims(op: ir.Operation) -> str:
    sizes = ["any" if n == -1 else str(n) for n in op.attributes["expected_values"]]
    return f"sizes {'x'.join(sizes)}" if sizes else ""


def _type(op: ir.Operation) -> str:
    return describe_type(ir.TypeAttr(op.attributes["target_type"]).value)


def _copied(op: ir.Operation) -> str:
    """The tensor ops of a copied dag; what constants and scalar ops it has is detail."""
    parts = []
    for inner in op.regions[0].blocks[0].operations:
        shaped = [v.type for v in inner.operands if isinstance(v.type, ir.ShapedType)]
        if shaped:
            types = ", ".join(describe_type(t) for t in shaped)
            parts.append(f"{inner.operation.name} {types}")
    return ", ".join(parts)


_DESCRIBE: dict[str, Callable[[ir.Operation], str]] = {
    "transform.structured.match": _structured,
    "transform.match.operation_name": _operation_name,
    "transform.iree.match.contraction": _typed,
    "transform.iree.match.convolution": _typed,
    "transform.iree.match.attention": _typed,
    "transform.iree.match.online_attention": _typed,
    "transform.iree.match.dims_equal": _dims,
    "transform.iree.match.cast_compatible_type": _type,
    "transform.iree.match.cast_compatible_dag_from_root": _copied,
}

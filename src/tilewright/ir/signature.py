"""What the entry points of a program take and return.

Two places say it, and both are needed. A module at the flow phase has `hal.tensor.import` and
`hal.tensor.export` where the program uses its arguments, in the types that the runtime checks; an
argument that is returned as it is, or not used at all, is a mere buffer there, and its type is
known from the source's declaration.

In a compiled module the compiler leaves each function's declaration, in its `iree.abi.declaration`
attribute: `sync func @main(%input0: tensor<4xf32>, %input1: i64) -> (%output0: tensor<?xf32>)`.
That is a line for people, not IR; the types in it are MLIR's, and are parsed as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from iree.compiler import ir

from tilewright.argument import ASYNC, ArgumentType
from tilewright.attributes import is_attribute, items_of, parse_type
from tilewright.ir.walk import string_attribute, walk

_ASYNC_MODEL = "iree.abi.model"
_FENCE = "!hal.fence"
_BUFFER = "!hal.buffer_view"


@dataclass(frozen=True)
class Signature:
    """Types of a function's arguments and results.

    Sizes known at run time only are -1. A type that is neither a tensor nor a number is a scalar
    whose element type is MLIR's name of it (`!util.list<?>`), which begins with `!`.
    """

    inputs: tuple[ArgumentType, ...]
    outputs: tuple[ArgumentType, ...]

    def __str__(self) -> str:
        inputs, outputs = (", ".join(map(str, types)) for types in (self.inputs, self.outputs))
        return f"({inputs}) -> ({outputs})"


def entry_points(
    flow_module: ir.Module | ir.Operation, declared: Mapping[str, Signature] | None = None
) -> dict[str, Signature]:
    """The functions that can be called, by name, in the module's order.

    flow_module: the program at the flow phase (any from `abi` to `flow` will do).
    declared: what the source declares (`Program.functions`), for arguments and results that the
        module itself does not give a type; these are `!hal.buffer_view` without it.

    An `f$async` function, which waits for and signals fences, is folded into the `f` that IREE
    makes for those who have none. Initializers are no functions.
    """
    functions = {
        string_attribute(op.operation, "sym_name"): op.operation
        for op in flow_module.operation.regions[0].blocks[0].operations
        if op.operation.name == "util.func" and is_public(op.operation)
    }
    found = {}
    for name, function in functions.items():
        waits = name.endswith(ASYNC) and _ASYNC_MODEL in function.attributes
        if waits and name.removesuffix(ASYNC) in functions:
            continue
        body = functions.get(name + ASYNC, function)
        found[name] = _merged(_signature(body), (declared or {}).get(name))
    return found


def is_public(operation: ir.Operation) -> bool:
    """Whether a symbol can be seen from outside its module."""
    return string_attribute(operation, "sym_visibility") in ("", "public")


def declared_signature(function: ir.Operation) -> Signature:
    """The types of a function of the source, before any conversion."""
    if "function_type" not in function.attributes:
        return Signature((), ())
    attribute = function.attributes["function_type"]
    type_ = attribute.value if isinstance(attribute, ir.TypeAttr) else None
    # VHLO has a function type of its own, of which only the compiler knows the inside.
    if not isinstance(type_, ir.FunctionType):
        return Signature((), ())
    return Signature(
        tuple(argument_type(t) for t in _flat(type_.inputs)),
        tuple(argument_type(t) for t in _flat(type_.results)),
    )


def demotes_f64(declared: Signature | None, compiled: Signature) -> bool:
    """Whether an f64 argument or result of the source is an f32 one of the compiled program."""
    if declared is None:
        return False
    pairs = [(declared.inputs, compiled.inputs), (declared.outputs, compiled.outputs)]
    return any(
        (ours.element_type, theirs.element_type) == ("f64", "f32")
        for one, other in pairs
        for ours, theirs in zip(one, other, strict=False)
    )


def _flat(types: Sequence[ir.Type]) -> Iterator[ir.Type]:
    """The types with tuples taken apart, as IREE does."""
    for type_ in types:
        if isinstance(type_, ir.TupleType):
            yield from _flat([type_.get_type(i) for i in range(type_.num_types)])
        else:
            yield type_


def argument_type(type_: ir.Type) -> ArgumentType:
    """An MLIR type (of the builtin or torch dialect) as the type of an argument."""
    if isinstance(type_, ir.RankedTensorType):
        sizes = tuple(
            -1 if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank)
        )
        return ArgumentType(str(type_.element_type), sizes)
    return _torch_tensor(type_) or ArgumentType(str(type_), None)


def _torch_tensor(type_: ir.Type) -> ArgumentType | None:
    """`!torch.vtensor<[2,?],f32>`; the bindings have no class for the types of this dialect."""
    tree = parse_type(str(type_))
    if not any(is_attribute(tree, name) for name in ("!torch.vtensor", "!torch.tensor")):
        return None
    sizes, element = [*items_of(tree), None, None][:2]
    if not isinstance(sizes, list):
        return None
    # Torch's integers are signed; the runtime's have no sign.
    element = element.removeprefix("s") if element.startswith("si") else element
    return ArgumentType(element, tuple(-1 if size == "?" else size for size in sizes))


def _signature(function: ir.Operation) -> Signature:
    block = function.regions[0].blocks[0]
    arguments = [a for a in block.arguments if str(a.type) != _FENCE]
    exported: dict[int, ArgumentType] = {}
    returned: Sequence[ir.Value] = ()
    for op in walk(function):
        if op.name == "util.return" and op.parent.name == function.name:
            returned = list(op.operands)
    for position, value in enumerate(returned):
        owner = value.owner
        if isinstance(owner, ir.Block):
            if str(value.type) == _BUFFER:
                exported[position] = _imported(value)
        elif owner.operation.name == "hal.tensor.export":
            exported[position] = _encoding(owner.operation, "source_encoding")
    return Signature(
        tuple(_imported(a) if str(a.type) == _BUFFER else argument_type(a.type) for a in arguments),
        tuple(exported.get(i, argument_type(v.type)) for i, v in enumerate(returned)),
    )


def _imported(argument: ir.Value) -> ArgumentType:
    """The type that an argument is imported as; `!hal.buffer_view` where it never is."""
    for use in argument.uses:
        if use.owner.operation.name == "hal.tensor.import":
            return _encoding(use.owner.operation, "target_encoding")
    return ArgumentType(_BUFFER, None)


def _encoding(operation: ir.Operation, name: str) -> ArgumentType:
    return argument_type(ir.TypeAttr(operation.attributes[name]).value)


def _merged(seen: Signature, declared: Signature | None) -> Signature:
    if declared is None:
        return seen
    return Signature(_fill(seen.inputs, declared.inputs), _fill(seen.outputs, declared.outputs))


def _fill(
    seen: tuple[ArgumentType, ...], declared: tuple[ArgumentType, ...]
) -> tuple[ArgumentType, ...]:
    """What was seen, with the declared type where that is only a buffer."""
    # Nothing is declared for VHLO, and a conversion may add or drop arguments.
    if len(seen) != len(declared):
        return seen
    return tuple(d if s.element_type == _BUFFER else s for s, d in zip(seen, declared, strict=True))


_OPEN, _CLOSE = "([{<", ")]}>"
# The letters of a calling convention (`0rI_r`) for values that are passed as they are.
_LETTERS = {"i": "i32", "I": "i64", "f": "f32", "F": "f64"}
#: Element type of an argument of which no more is known than that it is a reference.
UNKNOWN = "!vm.ref<?>"


def read_signature(declaration: str, convention: str) -> Signature:
    """The types of a compiled function.

    Args:
        declaration: the function's `iree.abi.declaration`; may be empty.
        convention: its calling convention (`0rI_r`), which alone makes every tensor `UNKNOWN`.

    Returns:
        The types; one that does not parse, which no compiler writes, is `UNKNOWN` too.
    """
    if declaration:
        inputs, outputs = _parts(declaration)
        context = ir.Context()
        # Types of IREE's own dialects are only names here.
        context.allow_unregistered_dialects = True
        with context:
            return Signature(
                tuple(_type(part) for part in inputs), tuple(_type(part) for part in outputs)
            )
    before, _, after = convention.removeprefix("0").partition("_")
    return Signature(_plain(before), _plain(after))


def _plain(letters: str) -> tuple[ArgumentType, ...]:
    return tuple(ArgumentType(_LETTERS.get(c, UNKNOWN), None) for c in letters if c != "v")


def _type(part: str) -> ArgumentType:
    """`%input0: tensor<4xf32> {attributes}` as a type."""
    text = next(_split(part.partition(": ")[2], " "), "")
    try:
        # The parser crashes on an empty text.
        return argument_type(ir.Type.parse(text)) if text else ArgumentType(UNKNOWN, None)
    except ir.MLIRError:
        return ArgumentType(UNKNOWN, None)


def _parts(declaration: str) -> tuple[list[str], list[str]]:
    """The arguments and the results, each as it is written."""
    rest = declaration.partition("@")[2]
    # A name with odd characters is in quotes.
    rest = rest[rest.find('"', 1) :] if rest.startswith('"') else rest
    groups = [g for g in _split(rest.lstrip('"'), " ") if g.endswith(")")]
    lists = [g[g.index("(") + 1 : -1] for g in groups]
    inputs, outputs = [*lists, "", ""][:2]
    return [p.strip() for p in _split(inputs, ",")], [p.strip() for p in _split(outputs, ",")]


def _split(text: str, separator: str) -> Iterator[str]:
    """The parts of a text between separators that are not in brackets or quotes."""
    depth, quoted, start = 0, False, 0
    for place, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE and text[place - 1 : place + 1] != "->":
            depth -= 1
        elif char == separator and depth == 0:
            if place > start:
                yield text[start:place]
            start = place + 1
    if len(text) > start:
        yield text[start:]

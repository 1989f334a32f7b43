"""How kernels of our own stand in a preprocessing spec: their names, and what is told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iree.compiler import ir

from tilewright.ir.walk import string_attribute, symbols
from tilewright.spec import library

#: On the function that stands for a kernel: a dictionary of strings (:class:`StoredKernel`). On the
#: functions of its executables: its name.
KERNEL = "tilewright.kernel"
#: On the function that stands for a sequence of kernels, and on that of its executable: their
#: names, in the order in which they run.
KERNELS = "tilewright.kernels"

_PREFIX = "tilewright_"
_CALL = "_call"


@dataclass(frozen=True)
class KernelSymbols:
    """The symbols of the kernel of a site, all of which begin with `executable`.

    executable: the name of its first executable, others have a number behind it. call: the function
    that packs and dispatches. matcher, action: sequences.
    """

    executable: str

    @staticmethod
    def of(digest: str) -> KernelSymbols:
        """The symbols for a site.

        Args:
            digest: of the site, always of one length: so no name is the beginning of another.
        """
        return KernelSymbols(f"{_PREFIX}{digest}")

    @property
    def call(self) -> str:
        """The function that packs what is constant and dispatches the executables."""
        return f"{self.executable}{_CALL}"

    @property
    def matcher(self) -> str:
        """The sequence that recognises the site."""
        return f"{self.executable}_is"

    @property
    def action(self) -> str:
        """The sequence that puts the function's body in its place."""
        return f"{self.executable}_replace"


@dataclass(frozen=True)
class StoredKernel:
    """A kernel of a spec.

    function: what stands for it. texts: `name`, `site` (its ops and types in words), `sketch`,
    `knobs`, `target`, `loops`, `python` (the schedule's steps as a function), `needs`
    (`sketch.requirements.Requirements`).
    """

    function: ir.Operation
    texts: Mapping[str, str]

    @property
    def name(self) -> str:
        """Its name, which no other kernel of the spec has."""
        return self.texts["name"]

    @property
    def symbols(self) -> KernelSymbols:
        """Its symbols."""
        return KernelSymbols(library.symbol(self.function).removesuffix(_CALL))

    def parts(self, module: ir.Operation) -> list[ir.Operation]:
        """All top-level operations of a spec that belong to it.

        Args:
            module: the spec.
        """
        own = self.symbols.executable
        return [op for name, op in symbols(module).items() if name.startswith(own)]


def store(function: ir.Operation, texts: Mapping[str, str], code: Sequence[ir.Operation]) -> None:
    """Note on a kernel's function what is told of it, and on its executables' functions its name.

    Args:
        function: what stands for the kernel.
        texts: as `StoredKernel` has them.
        code: the functions of its executables.
    """
    function.attributes[KERNEL] = library.texts(texts)
    for one in code:
        one.attributes[KERNEL] = ir.StringAttr.get(texts["name"])


def stored_kernels(module: ir.Operation) -> list[StoredKernel]:
    """The kernels of a spec, in the order in which they stand there.

    Args:
        module: the spec.
    """
    found = []
    for op in symbols(module).values():
        if op.name == library.FUNCTION and KERNEL in op.attributes:
            texts = {one.name: library.text(one.attr) for one in ir.DictAttr(op.attributes[KERNEL])}
            found.append(StoredKernel(op, texts))
    return found


@dataclass(frozen=True)
class StoredSequence:
    """Kernels of a spec that are one dispatch where they follow each other.

    function: what stands for them. kernels: their names, in the order in which they run.
    """

    function: ir.Operation
    kernels: tuple[str, ...]

    @property
    def symbols(self) -> KernelSymbols:
        """Its symbols."""
        return KernelSymbols(library.symbol(self.function).removesuffix(_CALL))

    def parts(self, module: ir.Operation) -> list[ir.Operation]:
        """All top-level operations of a spec that belong to it.

        Args:
            module: the spec.
        """
        own = self.symbols.executable
        return [op for name, op in symbols(module).items() if name.startswith(own)]


def store_sequence(names: Sequence[str], *functions: ir.Operation) -> None:
    """Note on functions of a sequence which kernels it has.

    Args:
        names: of the kernels, in the order in which they run.
        functions: what stands for the sequence, and what has its code.
    """
    for one in functions:
        one.attributes[KERNELS] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in names])


def stored_sequences(module: ir.Operation) -> list[StoredSequence]:
    """The sequences of a spec, in the order in which they stand there.

    Args:
        module: the spec.
    """
    return [
        StoredSequence(op, _names(op))
        for op in symbols(module).values()
        if op.name == library.FUNCTION and KERNELS in op.attributes
    ]


def _names(function: ir.Operation) -> tuple[str, ...]:
    """The kernels whose code a function has, or stands for."""
    if KERNELS in function.attributes:
        return tuple(map(library.text, ir.ArrayAttr(function.attributes[KERNELS])))
    name = string_attribute(function, KERNEL)
    return (name,) if name else ()


def executables_of(module: ir.Operation) -> dict[str, tuple[str, ...]]:
    """The executables that are kernels of ours, in a spec or in a program compiled with one.

    Args:
        module: the spec; or the program, until its executables are code.

    Returns:
        The kernels' names by those of the executables; several of a sequence.
    """
    found = {}
    for symbol, op in symbols(module).items():
        if op.name.startswith("hal.executable"):
            found[symbol] = next(filter(None, map(_names, code_functions(op))), ())
    return {symbol: names for symbol, names in found.items() if names}


def code_functions(executable: ir.Operation) -> list[ir.Operation]:
    """The functions of an executable, in all its variants.

    Args:
        executable: of a program or a spec.
    """
    found = []
    for region in executable.regions:
        for block in region.blocks:
            for op in block.operations:
                if op.operation.name in ("func.func", "llvm.func"):
                    found.append(op.operation)
                elif op.operation.name in ("builtin.module", "hal.executable.variant"):
                    found += code_functions(op.operation)
    return found

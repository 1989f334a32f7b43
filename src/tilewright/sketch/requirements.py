"""What a processor must have for the code of a kernel: kept in specs, checked before they apply."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from iree.compiler import ir

from tilewright.errors import UserError
from tilewright.files import parse_json
from tilewright.ir.walk import string_attribute, walk
from tilewright.schedule.codegen.machine import machine_for
from tilewright.schedule.dot_products import EXTENSIONS
from tilewright.schedule.matrix_products import MATRIX_EXTENSIONS
from tilewright.target import Target


@dataclass(frozen=True)
class Requirements:
    """What a kernel's code was made for.

    vector_bytes: of a vector register; with smaller ones the code runs, and its accumulators do not
    fit. memory_bytes: of the cache that a workgroup's own memory is in, 0 where the code has none;
    the runtime grants no more than there is. extensions: any one of each of these is needed.
    """

    vector_bytes: int
    memory_bytes: int
    extensions: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(functions: Iterable[ir.Operation], target: Target) -> Requirements:
        """The requirements of code.

        Args:
            functions: with the code.
            target: what it was made for.
        """
        ops = [op for function in functions for op in walk(function)]
        called = {string_attribute(op, "intrin") for op in ops if op.name == "llvm.call_intrinsic"}
        known = {**EXTENSIONS, **MATRIX_EXTENSIONS}
        own_memory = any(op.name == "memref.alloc" for op in ops)
        return Requirements(
            target.vector_bytes,
            target.l2_bytes if own_memory else 0,
            tuple(sorted({known[name] for name in called if name in known})),
        )

    def to_text(self) -> str:
        """As it is kept in a spec."""
        return json.dumps([self.vector_bytes, self.memory_bytes, self.extensions])

    @staticmethod
    def from_text(text: str) -> Requirements:
        """What `to_text` wrote.

        Args:
            text: from a spec.
        """
        vector_bytes, memory_bytes, extensions = parse_json(text)
        return Requirements(vector_bytes, memory_bytes, tuple(map(tuple, extensions)))

    def lacking(self, target: Target) -> str:
        """What a target does not have of it, in words; '' where it has all.

        Args:
            target: that the code is to run on.
        """
        if target.is_gpu:
            return f"it is for processors, {target.name} is a GPU"
        has = machine_for(target).features
        for names in self.extensions:
            if has.isdisjoint(names):
                return f"it needs {' or '.join(names)}, which {target.name} does not have"
        if target.vector_bytes < self.vector_bytes:
            return (
                f"it is made for vectors of {self.vector_bytes} bytes, those of {target.name} have "
                f"{target.vector_bytes}"
            )
        if target.l2_bytes < self.memory_bytes:
            return (
                f"its workgroups have memory in a cache of {self.memory_bytes} bytes, that of "
                f"{target.name} has {target.l2_bytes}"
            )
        return ""


def check_kernels(kernels: Iterable[Mapping[str, str]], target: Target, where: str) -> None:
    """Raise UserError for kernels that a target lacks something for.

    Args:
        kernels: what a spec tells of them (`spec.kernels.StoredKernel.texts`).
        target: that the spec is to be applied for, with what its processor has.
        where: the spec, for the message.

    Raises:
        UserError: names the first kernel with what is missing, and what to do.
    """
    for texts in kernels:
        lacking = Requirements.from_text(texts["needs"]).lacking(target)
        if lacking:
            raise UserError(
                f"{where}: kernel '{texts['name']}' was made for {texts['target']}: {lacking}; "
                "tune the program for this target, or name the right one with --target"
            )

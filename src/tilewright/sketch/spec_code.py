"""The code of a spec's kernels, compiled to what programs link, and kept for the next spec."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilewright import scratch
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import RecentlyUsed, WorkerState
from tilewright.sketch.candidate_tasks import compile_flags, target_of

if TYPE_CHECKING:
    from iree.compiler import ir


class _Folder:
    """Where the compiler writes bitcode, for as long as the worker lives."""

    def __init__(self) -> None:
        self.path = scratch.create()
        self.code = self.path / "code"
        self.code.mkdir()
        weakref.finalize(self, scratch.remove, self.path)


class _Known(RecentlyUsed[tuple[str, str], Any]):
    """Bitcode, by the target and a digest of the executable: variants share it."""

    def __init__(self) -> None:
        super().__init__(512)


def compile_into(state: WorkerState, flags: Sequence[str], executable: ir.Operation) -> None:
    """Compile an executable of a spec, and put bitcode in the place of its code. Runs in workers.

    Args:
        state: what the worker keeps.
        flags: of the compiles that the spec is for.
        executable: a `hal.executable.source` with one function; changed in place.

    Raises:
        CompileError: the compiler does not take the code.
    """
    from tilewright.ir.bitcode import FOLDER_FLAG, as_bytecode, bitcode_of, link

    folder = state.get(_Folder).code
    plain = (*compile_flags(tuple(flags)), f"{FOLDER_FLAG}={folder}")
    compiler = session(state, plain)
    target = target_of(state, compiler)
    source = as_bytecode(executable)
    bitcode = state.get(_Known).get(
        (str(target), hashlib.sha256(source).hexdigest()),
        lambda: bitcode_of(compiler, folder, source, target),
    )
    link(executable, bitcode, target)

"""Programs of TVM's tensor expressions, as they are: `python -m tilewright.tvm_compat program.py`.

`import tvm` in the program finds this module's `tvm`: `tvm.te` is `tilewright.te`, `tvm.lower` and
`tvm.build` are its functions with TVM's arguments, `tvm.tir` has what expressions and calls take,
`tvm.nd`, `tvm.cpu` and `tvm.testing` what a tutorial runs its kernels with.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright import te
from tilewright.errors import UserError
from tilewright.measure.timing import TimingPolicy

# TVM's names of targets, and ours: of GPUs the first that IREE was made for.
_TARGETS = {
    "llvm": "cpu",
    "c": "cpu",
    "cuda": "cuda:sm_80",
    "rocm": "rocm:gfx942",
    "vulkan": "vulkan:ampere",
}


def lower(
    inputs: te.Schedule,
    args: Sequence[Any],
    name: str = "main",
    binds: Any = None,
    simple_mode: bool = False,
) -> te.Lowered:
    """`tvm.lower`: the loops of a schedule, unrolled ones written out.

    Args:
        inputs: the schedule.
        args: its tensors.
        name: of the function.
        binds, simple_mode: accepted for TVM's sake.

    Returns:
        The loops, to be printed or built.
    """
    return te.lower(inputs, args, name, expand=True)


def build(
    inputs: te.Schedule | te.Lowered,
    args: Sequence[Any] | None = None,
    target: Any = "llvm",
    target_host: Any = None,
    name: str = "main",
    binds: Any = None,
) -> CompiledFunction:
    """`tvm.build`: compiles a schedule for a target.

    Args:
        inputs: the schedule, or what `lower` made of it.
        args: its tensors.
        target: TVM's name of a target (`llvm`, `llvm -mcpu=znver3`, `cuda -arch=sm_90`), or ours.
        target_host, binds: accepted for TVM's sake.
        name: of the function.

    Returns:
        The function.

    Raises:
        UserError: the target is none of those, or the schedule cannot be compiled for it.
    """
    return CompiledFunction(te.build(inputs, args, target_name(target), name))


def target_name(target: Any) -> str:
    """Our name of a target of TVM's.

    Args:
        target: its name with options, one of ours, or None for this processor.

    Returns:
        A name that `te.build` takes.

    Raises:
        UserError: it has options that mean nothing here.
    """
    kind, *options = (str(target) if target is not None else "llvm").split() or ["llvm"]
    which = ""
    for option in options:
        name, _, which = option.partition("=")
        if name not in ("-mcpu", "-arch") or not which:
            raise UserError(f"target '{target}': option '{option}' (allowed: -mcpu=, -arch=)")
    ours = _TARGETS.get(kind, kind)
    return f"{ours.partition(':')[0]}:{which}" if which and kind in _TARGETS else ours


class CompiledFunction:
    """What `tvm.build` gives: called with all arrays, it fills those of the outputs."""

    def __init__(self, function: te.Function) -> None:
        self.function = function
        self.entry_name = function.lowered.program.name

    def __call__(self, *arrays: Any) -> Any:
        return self.function(*arrays)

    def get_source(self) -> str:
        """The machine code as text."""
        return self.function.assembly()

    def time_evaluator(
        self, func_name: str = "main", dev: Any = None, number: int = 10, repeat: int = 1
    ) -> Callable[..., EvaluatedTime]:
        """What times calls, given the arrays.

        Args:
            func_name, dev: accepted for TVM's sake.
            number, repeat: samples are `repeat` at least; how many calls one has, the clock says.
        """

        def timed(*arrays: Any) -> EvaluatedTime:
            policy = TimingPolicy(min_samples=max(repeat, 5))
            return EvaluatedTime(tuple(self.function.benchmark(*arrays, policy=policy).samples))

        return timed


@dataclass(frozen=True)
class EvaluatedTime:
    """Seconds of a call, sample by sample."""

    results: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return float(np.mean(self.results))

    @property
    def median(self) -> float:
        """Their median."""
        return float(np.median(self.results))


class HostArray(np.ndarray[Any, Any]):
    """`tvm.nd.array`: an array of NumPy with TVM's names."""

    def numpy(self) -> NDArray[Any]:
        """The array."""
        return np.asarray(self)

    asnumpy = numpy


def _array(values: Any, device: Any = None) -> HostArray:
    return np.array(values).view(HostArray)


def _empty(shape: Any, dtype: str = "float32", device: Any = None) -> HostArray:
    return np.zeros(shape, dtype).view(HostArray)


def _device(kind: str = "cpu", index: int = 0) -> str:
    return f"{kind}:{index}"


def _evaluate(call: Any) -> Any:
    return call


def modules() -> dict[str, ModuleType]:
    """What `import tvm` and `import tvm.…` find, by name."""
    made = {
        name: ModuleType(name, __doc__)
        for name in ("tvm", "tvm.tir", "tvm.nd", "tvm.testing", "tvm.target", "tvm.runtime")
    }
    tvm = made["tvm"]
    # Older tutorials have the functions of te in tvm itself, and some of them are in tir.
    for home in (tvm, made["tvm.tir"]):
        vars(home).update({name: getattr(te, name) for name in te.__all__ if name != "intrinsics"})
    vars(made["tvm.tir"]).update(
        Select=te.select, Cast=te.cast, Var=te.var, pow=te.power, Evaluate=_evaluate
    )
    vars(made["tvm.nd"]).update(array=_array, empty=_empty, NDArray=HostArray)
    vars(made["tvm.testing"]).update(assert_allclose=_assert_allclose)
    vars(made["tvm.target"]).update(Target=str)
    vars(made["tvm.runtime"]).update(NDArray=HostArray)
    made["tvm.te"] = te
    for name, module in made.items():
        if name != "tvm":
            setattr(tvm, name.removeprefix("tvm."), module)
    tvm.__path__ = []
    vars(tvm).update(
        lower=lower,
        build=build,
        device=_device,
        **{kind: (lambda index=0, kind=kind: _device(kind, index)) for kind in ("cpu", *_GPUS)},
    )
    return made


_GPUS = ("cuda", "gpu", "rocm", "vulkan")


def _assert_allclose(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 1e-7) -> None:
    np.testing.assert_allclose(actual, desired, rtol=rtol, atol=atol)


def run(program: str) -> dict[str, Any]:
    """Runs a program of TVM's.

    Args:
        program: its path.

    Returns:
        The names that it leaves.
    """
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "tvm"}
    for name in before:
        del sys.modules[name]
    made = modules()
    sys.modules.update(made)
    try:
        return runpy.run_path(program, run_name="__main__")
    finally:
        for name in made:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def main(arguments: Sequence[str]) -> int:
    """`python -m tilewright.tvm_compat PROGRAM [ARGUMENT...]`.

    Args:
        arguments: the program's path, and its own arguments.

    Returns:
        The exit status: 1 where the program asks for what there is not, in one line.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m tilewright.tvm_compat PROGRAM [ARGUMENT...]", file=sys.stderr)
        return 0 if arguments else 2
    program, sys.argv = arguments[0], list(arguments)
    if not Path(program).is_file():
        print(f"error: no file '{program}'", file=sys.stderr)
        return 1
    try:
        run(program)
    except (UserError, ImportError, AttributeError) as error:
        said = str(error)
        if not isinstance(error, UserError):
            if "tvm" not in said and "tilewright.te" not in said:
                raise
            said += (
                " (there is no more of TVM than tensor expressions: te, tir, nd, lower, build; "
                "docs/tvm.md says what differs)"
            )
        lines = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == program]
        where = f"{program}:{lines[-1].lineno}: " if lines else ""
        print(f"{where}error: {said}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

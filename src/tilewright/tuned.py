"""A tuned program as a callable of this process: NumPy's arrays in, NumPy's arrays out.

What lies in memory as the runtime takes it (row by row, at an address that is a multiple of 64) is
not copied: arguments and weights are used where they are, and results, but for small ones, are the
runtime's own memory.
"""

from __future__ import annotations

import atexit
import contextlib
import operator
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.argument import element_type_of
from tilewright.errors import UncompilableError, UserError
from tilewright.files import parse_json
from tilewright.measure.device_options import DeviceOptions, Parameters, as_batch
from tilewright.measure.huge_pages import have_huge_pages, huge_pages_allowed
from tilewright.measure.runtime import ALIGNMENT, Device, LoadedProgram, owned
from tilewright.measure.verify import compare
from tilewright.target import parse_target
from tilewright.toolchain import KEEP_F64
from tilewright.tuning.outputs import VMFB, read_manifest
from tilewright.tuning.programs import PROGRAM_REDUCTION_LENGTH
from tilewright.tuning.result import TuneResult, result_of

# What a program keeps in memory, about: its constants and weights, which kernels read in an order
# of their own, filled up to whole tiles; and what a call computes.
_OF_FILES, _LEAST_BYTES = 1.3, 8 << 20
# Copies of arguments up to so many bytes keep their memory for the next call; what is copied faster
# than Python tells an address, behind a program that leaves nothing else in the caches.
_KEPT_BYTES, _SMALL_BYTES = 16 << 20, 256 << 10

# Not `int | float`, which makes a type in each call.
_NUMBERS = (int, float)

Given = tuple[NDArray[Any], Sequence[int], np.dtype[Any]]
"""A tensor: its elements row by row in an array of any type, its shape, the type of its
elements."""


class TunedProgram:
    """The program of a result folder, loaded into this process. It can be called from one thread at
    a time.

    folder: where its result is. result: what tuning found. function: what is called. copied: how
    many arguments of the last call were copied, since the runtime could not use them where they
    lay.

    Args:
        folder: of `tilewright tune`.
        weights: instead of the archives that the folder names, by scope and name; they are kept.
        threads: how many it runs on; by default as measured to be the fastest way.

    Raises:
        UserError: it is no result folder, or cannot be loaded.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        weights: Mapping[tuple[str, str], NDArray[Any]] | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.copied = 0
        manifest = read_manifest(self.folder)
        try:
            summary = parse_json((self.folder / "summary.json").read_text())
            self.result: TuneResult = result_of(summary, self.folder)
            self.function = str(manifest["program"]["function"])
            archives = [_archive(a, self.folder) for a in manifest["program"]["runtime_parameters"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.folder}: the result cannot be read ({error}); tune the program again"
            ) from error
        way = way_to_run(self.result, manifest, threads)
        # As advised or not: this process asks for them itself, `have_huge_pages`.
        way = replace(way, huge_pages=huge_pages_allowed())
        self._device = _device(way)
        self._archives = Parameters(tuple(archives) if weights is None else ())
        self._copies: dict[int, _Copy] = {}
        self.reload(weights or {})

    def reload(self, weights: Mapping[tuple[str, str], NDArray[Any]]) -> None:
        """Load the program with other weights.

        Args:
            weights: by scope and name, [shape] as those that it was tuned with.

        Raises:
            UserError: one is missing, or is of another size.
        """
        given = {name: usable(array)[0] for name, array in weights.items()}
        vmfb = str(self.folder / VMFB)
        try:
            files = (vmfb, *(path for _, path in self._archives.archives))
            read = sum(map(os.path.getsize, files)) + sum(one.nbytes for one in given.values())
            have_huge_pages(int(_OF_FILES * read) + _LEAST_BYTES)
            self._program: LoadedProgram = self._device.load(vmfb, self._archives, given)
        except (ValueError, RuntimeError, OSError) as error:
            raise UserError(f"{vmfb}: cannot be loaded: {reason(error)}") from error
        # Who waits awake is woken by nobody.
        sleeps = not self._program.polls(self.function)
        self._batch = sleeps and self._device.options.schedules_batch
        # The program does not keep them, and until now the one before it read its own.
        self._weights = given
        # The last call's arguments, and that call of the program.
        self._bound: tuple[list[Any], Callable[[], Any]] | None = None
        self._last: _LastCall | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the program.

        Args:
            arguments: arrays, or what NumPy makes arrays of; numbers where it takes numbers.

        Returns:
            The result, or a tuple of several; the memory of an array is the runtime's, and lives as
            long as the array or a view of it.

        Raises:
            UserError: an argument is not what the program takes.
        """
        last = self._last
        borrowed = None if last is None else last.place(arguments)
        if last is None or borrowed is None:
            invoke, borrowed = self._bind([_given(argument) for argument in arguments])
            self._last = self._repeatable(arguments, borrowed, invoke)
        else:
            invoke, self.copied = last.invoke, last.copied
        results = self._run(invoke, borrowed)
        return results[0] if len(results) == 1 else tuple(results)

    def call(self, arguments: Sequence[int | float | Given]) -> list[Any]:
        """Run the program on memory.

        Args:
            arguments: numbers and tensors.

        Returns:
            Its results: arrays, and numbers.

        Raises:
            UserError: an argument is not what the program takes.
        """
        return self._run(*self._bind(arguments))

    def _bind(
        self, arguments: Sequence[int | float | Given]
    ) -> tuple[Callable[[], Any], list[NDArray[Any]]]:
        """A call of the program with these arguments, and the memory that it reads."""
        packed: list[Any] = []
        borrowed: list[NDArray[Any]] = []
        self.copied = 0
        for place, argument in enumerate(arguments):
            if isinstance(argument, _NUMBERS):
                packed.append(argument)
                continue
            data, view = self._argument(place, argument)
            borrowed.append(data)
            packed.append(view)
        bound = self._bound
        if bound is None or not _same(bound[0], packed):
            try:
                bound = self._bound = packed, self._program.bind(self.function, packed)
            except (ValueError, RuntimeError) as error:
                raise UserError(f"{self.function}: the call failed: {reason(error)}") from error
        return bound[1], borrowed

    def _run(self, invoke: Callable[[], Any], borrowed: Sequence[NDArray[Any]]) -> list[Any]:
        """The results of a call that has its arguments, which use this memory. Little of Python's
        is in the caches behind the program, so that few steps are left for then."""
        try:
            results = as_batch(self._batch, invoke)
        except (ValueError, RuntimeError) as error:
            raise UserError(f"{self.function}: the call failed: {reason(error)}") from error
        view = self._device.bindings.HalBufferView
        found: list[Any] = []
        for place in range(len(results)):
            try:
                one = results.get_as_object(place, view)
            except ValueError:
                found.append(results.get_variant(place))  # a number
            else:
                found.append(self._result(one, borrowed))
        return found

    def _repeatable(
        self,
        arguments: Sequence[Any],
        borrowed: Sequence[NDArray[Any]],
        invoke: Callable[[], Any],
    ) -> _LastCall | None:
        """A call with arguments of which the next one may be given the very same; None where one is
        no array, or its memory is not to be kept."""
        if any(type(one) is not np.ndarray for one in arguments):
            return None
        again = []
        for place, (one, data) in enumerate(zip(arguments, borrowed, strict=True)):
            kept = self._copies.get(place)
            if data is not one and (kept is None or kept.data is not data):
                return None
            own = None if data is one else data
            again.append((weakref.ref(one), one.shape, one.strides, one.dtype, own))
        return _LastCall(again, invoke, self.copied)

    def _argument(self, place: int, given: Given) -> tuple[NDArray[Any], Any]:
        """An argument as the runtime can use it, to be kept until the call has ended, and the
        runtime's view of it. A copy that is not large is made where the last call's was."""
        array, shape, dtype = given
        kept = self._copies.get(place)
        # Where small ones lie is not asked once one was copied: that takes as long as a copy.
        if kept is not None and (array.nbytes <= _SMALL_BYTES or _lies_badly(array)):
            data = kept.data
            was = data.shape, data.dtype, kept.shape, kept.dtype
            if was == (array.shape, array.dtype, shape, dtype):
                data[...] = array
                self.copied += 1
                return data, kept.view
        data, copied = usable(array)
        view = self._device.borrow(data, shape, dtype)
        self.copied += copied
        if copied and data.nbytes <= _KEPT_BYTES:
            self._copies[place] = _Copy(data, shape, dtype, view)
        return data, view

    def _result(self, view: Any, borrowed: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """An array of the runtime's memory, or of its own: of small ones, and where a program hands
        back what it was given, since that goes with the call."""
        array = self._device.download(view, False)
        lent = array.base is not None and any(np.may_share_memory(array, one) for one in borrowed)
        return array.copy() if lent else array


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether they are the very same, in order: of 0.0 and -0.0, which are equal, both count."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


@dataclass(frozen=True, slots=True)
class _LastCall:
    """A call that can be made again where its arguments are the very same arrays. Between two calls
    of a program little of Python's code stays in the caches, and steps that are left out count.

    arguments: each array, its shape, strides and type (in place it may get others, or be elsewhere
    then), and where it is copied to. copied: how many are.
    """

    arguments: list[tuple[weakref.ref[NDArray[Any]], Any, Any, Any, NDArray[Any] | None]]
    invoke: Callable[[], Any]
    copied: int

    def place(self, arguments: Sequence[Any]) -> list[NDArray[Any]] | None:
        """The memory that the program reads, with the arguments in it; None: they are others."""
        if len(arguments) != len(self.arguments):
            return None
        borrowed: list[NDArray[Any]] = []
        for one, (array, shape, strides, dtype, own) in zip(arguments, self.arguments, strict=True):
            last: Any = array()
            if one is not last or one.shape != shape or one.strides != strides:
                return None
            if one.dtype is not dtype:
                return None
            if own is not None:
                own[...] = one
            borrowed.append(one if own is None else own)
        return borrowed


@dataclass(frozen=True)
class _Copy:
    """An argument that was copied: where to, as what, and the runtime's view of it."""

    data: NDArray[Any]
    shape: Sequence[int]
    dtype: np.dtype[Any]
    view: Any


def load(
    folder: str | os.PathLike[str],
    *,
    weights: Mapping[str, NDArray[Any]] | None = None,
    threads: int | None = None,
) -> TunedProgram:
    """Load a tuned program into this process, to be called on arrays of NumPy's.

    Args:
        folder: of `tilewright tune`.
        weights: instead of those that it was tuned with, by their names in the scope `model`.
        threads: how many it runs on; by default as measured to be the fastest way.

    Returns:
        The program, a callable.

    Raises:
        UserError: it is no result folder, or cannot be loaded.
    """
    scoped = None if weights is None else {("model", name): w for name, w in weights.items()}
    return TunedProgram(folder, scoped, threads=threads)


def usable(array: NDArray[Any]) -> tuple[NDArray[Any], bool]:
    """An array as the runtime can use it.

    Args:
        array: of any type and layout.

    Returns:
        Elements row by row at an address that is a multiple of ALIGNMENT, which may be written;
        whether they had to be copied.
    """
    if not array.size:
        return np.empty(ALIGNMENT, np.uint8)[:0], False
    if not _lies_badly(array):
        # The runtime borrows only what may be written, and writes to no argument.
        return array if array.flags.writeable else owned(array), False
    space = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    begin = -space.__array_interface__["data"][0] % ALIGNMENT
    place: NDArray[Any] = np.ndarray(array.shape, array.dtype, space, begin)
    place[...] = array
    return place, True


def _lies_badly(array: NDArray[Any]) -> bool:
    """Whether the runtime cannot use an array where it lies."""
    address: int = array.__array_interface__["data"][0]
    return not array.flags.c_contiguous or address % ALIGNMENT != 0


def check_results(
    found: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]], whose: str, folder: Path
) -> None:
    """See that a compiled program computes what the framework does that it comes from.

    Args:
        found: its results.
        expected: the framework's, of the same element types.
        whose: the framework's name.
        folder: where the result is.

    Raises:
        UserError: one is out of the bound that tuning holds programs to.
    """
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        if other.dtype.kind == "c":
            one, other = (np.stack([x.real, x.imag], -1) for x in (one, other))
        kind = element_type_of(other.dtype)
        exact = other.dtype.kind in "biu"
        got, want = (x if exact else x.astype(np.float64) for x in (one, other))
        compared = compare(got, want, kind, PROGRAM_REDUCTION_LENGTH)
        if not compared.ok:
            raise UserError(
                f"result {place + 1} of the compiled program is not {whose}'s: {compared} "
                f"(what was tuned is in {folder})"
            )


@contextlib.contextmanager
def f64_kept(options: Mapping[str, Any], computed: bool, name: str) -> Iterator[dict[str, Any]]:
    """Options of a run that computes in f64 what the framework does, which IREE otherwise computes
    in f32: then neither arguments nor results are of the types that the program declares.

    Args:
        options: of `tilewright.tune`; a flag of the user's about it stays.
        computed: whether there is any f64 in the program.
        name: of what is tuned, for messages.

    Yields:
        The options for the run.

    Raises:
        UncompilableError: the run's own, with what can be done about f64.
    """
    flags = list(options.get("iree_flags", ()))
    if not computed or any("demote-f64" in flag for flag in flags):
        yield dict(options)
        return
    try:
        yield {**options, "iree_flags": [*flags, KEEP_F64]}
    except UncompilableError as error:
        raise UncompilableError(
            f"{name} computes in f64, for which IREE has no code of some functions (tanh, erf, "
            f"sin): make it f32. {error}"
        ) from error


def reason(error: BaseException) -> str:
    """What an error of the runtime says, without where in its sources.

    Args:
        error: as it was raised.
    """
    said = str(error).strip().splitlines() or [type(error).__name__]
    return said[0].rpartition(".c:")[2].partition(": ")[2].partition("; while")[0] or said[0]


def _given(argument: Any) -> int | float | Given:
    if isinstance(argument, _NUMBERS):
        return argument
    array = np.asarray(argument)
    return array, array.shape, array.dtype


def _archive(flag: str, folder: Path) -> tuple[str, str]:
    """An archive of weights: where it was, or beside the program where the folder was moved."""
    scope, _, path = flag.removeprefix("--parameters=").partition("=")
    beside = folder / Path(path).name
    return scope, str(beside if beside.is_file() else path)


def way_to_run(
    result: TuneResult, manifest: Mapping[str, Any], threads: int | None = None
) -> DeviceOptions:
    """How to run what a run on a CPU handed back: as advised, else on what it was tuned for.

    Args:
        result: the run's.
        manifest: of its folder.
        threads: instead of those that are advised.

    Raises:
        UserError: it was tuned for a GPU.
    """
    options = manifest["options"]
    target = parse_target(options["target"], threads or options["threads"])
    if target.is_gpu:
        raise UserError(
            f"{result.output}: it was tuned for {target.name}; only programs for CPUs run here"
        )
    advised = next((run for run in result.runs if run.advised), None)
    if threads is not None or advised is None:
        return DeviceOptions.cpu(target.cores)
    plain = DeviceOptions.cpu(advised.threads)
    return replace(
        plain,
        pinned=advised.pinned,
        batch=advised.batch,
        spin_us=advised.spin_us,
        polls=advised.polls,
    )


@atexit.register
def _close_devices() -> None:
    # The bindings complain of what is still there when the interpreter is gone.
    _device.cache_clear()


@cache
def _device(options: DeviceOptions) -> Device:
    """One for each number of threads: their threads are the device's."""
    return as_batch(options.schedules_batch, lambda: Device(options, shared=False))

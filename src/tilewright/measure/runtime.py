"""Running compiled programs on a device, in this process.

Programs are called through the VM directly. The runtime's high-level Python wrapper costs about
4 us more for each call (5.6 us against 1.8 us for an empty function on local-sync).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.argument import ASYNC
from tilewright.errors import UserError
from tilewright.measure.device_options import NO_PARAMETERS, DeviceOptions, Parameters
from tilewright.measure.huge_pages import keep_freed_memory
from tilewright.measure.inputs import InputFile, InputSet, ScalarInput
from tilewright.measure.polling import polled

# Results up to so many bytes are copied where their memory may be handed out: behind a program of
# milliseconds, which leaves nothing else in the caches, an owner for it takes 40 us to be made.
_SMALL_BYTES = 64 << 10


ALIGNMENT = 64
"""What addresses of memory that the runtime borrows are multiples of: `iree_hal_heap_buffer`'s, and
what the compiler's vector loads count on."""


@dataclass(frozen=True)
class ExportedFunction:
    """A function that a compiled module exports.

    convention: the calling convention, one letter for each argument and result (`0rI_r`: a
    reference and an i64, a reference). attributes: what the compiler says of it, such as its types
    as `iree.abi.declaration`.
    """

    name: str
    convention: str
    attributes: Mapping[str, str]


class Device:
    """An open device. One for each process, as the runtime's flags are process-wide, but for those
    that are `shared=False`: these have threads of their own, as many as `options` says.

    Raises UserError if it cannot be opened.
    """

    def __init__(self, options: DeviceOptions, shared: bool = True) -> None:
        import iree.runtime as runtime

        self.options = options
        self.bindings: Any = runtime
        kinds, usages = runtime.MemoryType, runtime.BufferUsage
        self._borrowed = (
            int(kinds.DEVICE_LOCAL | kinds.HOST_VISIBLE),
            int(usages.DEFAULT | usages.MAPPING),
        )
        self._mappable = int(usages.MAPPING_SCOPED), int(kinds.HOST_VISIBLE)
        self._all_mappable = options.uri.startswith("local-")
        self._element_types: dict[np.dtype[Any], int] = {}
        self._dtypes: dict[int, np.dtype[Any]] = {}
        keep_freed_memory()
        # What another device of this process asked for would count.
        before = ["--task_topology_group_count=0"] if options.pinned else []
        flags = [*before, "--task_worker_spin_us=0", *options.flags, *options.worker_flags]
        try:
            runtime.flags.parse_flags(*flags)
        except ValueError as error:
            raise UserError(f"runtime flags {' '.join(flags)}: {_first_line(error)}") from None
        self.instance: Any = runtime.VmInstance()
        try:
            self.hal: Any = runtime.get_device(options.uri, cache=shared)
        except (ValueError, RuntimeError) as error:
            drivers = ", ".join(sorted(runtime.query_available_drivers()))
            raise UserError(
                f"device '{options.uri}' cannot be opened: {_first_line(error)} "
                f"(drivers of this build: {drivers}){options.advice}"
            ) from None

    def upload(self, array: NDArray[Any]) -> Any:
        """A buffer view on the device with the array's shape, element type and data.

        Args:
            array: of any element type that the runtime takes.
        """
        # A copy of a memory-mapped array: the runtime wants a plain, C-contiguous buffer.
        return self.bindings.asdevicearray(self.hal, np.array(array, order="C"))._buffer_view

    def borrow(self, data: NDArray[Any], shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """A buffer view on memory of the host, which no copy is made of: a CPU's device only.

        Args:
            data: the elements row by row, of any type, writable, at an address that is a multiple
                of ALIGNMENT; to be kept until no call reads it, which the view does not do.
            shape: of the view.
            dtype: of its elements.

        Raises:
            ValueError: the device cannot use this memory.
        """
        runtime = self.bindings
        buffer = self.hal.allocator.import_host_allocation(data, *self._borrowed)
        element_type = self._element_types.get(dtype)
        if element_type is None:
            element_type = int(runtime.array_interop.map_dtype_to_element_type(dtype))
            self._element_types[dtype] = element_type
        return runtime.HalBufferView(buffer, list(shape), element_type)

    def arguments(self, inputs: InputSet) -> list[Any]:
        """The arguments of a call, tensors on the device.

        Args:
            inputs: as they were stored.
        """
        made: list[Any] = []
        for argument in inputs.arguments:
            if isinstance(argument, InputFile):
                made.append(self.upload(argument.load()))
            else:
                made.append(_scalar(argument))
        return made

    def download(self, view: Any, copy: bool = True) -> NDArray[Any]:
        """The contents of a buffer view, in its element type (bf16 and f8 by ml_dtypes).

        Args:
            view: a buffer view of this device.
            copy: whether the array has memory of its own, as small ones have; else it is the
                buffer's, which it keeps alive with this device, where the host can see that.
        """
        shape, element_type = view.shape, view.element_type
        kind = self._dtypes.get(element_type)
        if kind is None:
            kind = np.dtype(self.bindings.HalElementType.map_to_dtype(element_type))
            self._dtypes[element_type] = kind
        if 0 in shape:
            return np.empty(shape, kind)
        host: NDArray[Any] = np.ndarray(shape, kind, self._mapped(view))
        return host.copy() if copy or host.nbytes <= _SMALL_BYTES else owned(host, self)

    def _mapped(self, view: Any) -> Any:
        """What the host sees of a view's memory, or of a copy of it that the host can see."""
        if self._all_mappable:
            return view.map()
        buffer, (usage, memory) = view.get_buffer(), self._mappable
        if buffer.allowed_usage() & usage and buffer.memory_type() & memory:
            return buffer.map()
        return self._staged(buffer, view.byte_length).map()

    def _staged(self, source: Any, size: int) -> Any:
        """A copy of a buffer in memory that the host can map.

        `DeviceArray.to_host` of IREE 3.13 has the device write into an array of NumPy's instead,
        which Vulkan refuses where the array does not begin at a page.
        """
        runtime = self.bindings
        staging = self.hal.allocator.allocate_buffer(
            memory_type=int(runtime.MemoryType.HOST_LOCAL | runtime.MemoryType.DEVICE_VISIBLE),
            allowed_usage=int(
                runtime.BufferUsage.TRANSFER_TARGET | runtime.BufferUsage.MAPPING_SCOPED
            ),
            allocation_size=size,
        )
        semaphore = self.hal.create_semaphore(0)
        done = runtime.HalFence.create_at(semaphore, 1)
        self.hal.queue_copy(
            source,
            staging,
            wait_semaphores=runtime.HalFence.create_at(semaphore, 0),
            signal_semaphores=done,
        )
        done.wait()
        return staging

    def semaphore(self) -> Any:
        """A timeline of the device's, at 0."""
        return self.hal.create_semaphore(0)

    def fence(self, semaphore: Any, value: int) -> Any:
        """What is passed when a timeline has come to a value.

        Args:
            semaphore: the timeline.
            value: that it must have come to.
        """
        return self.bindings.HalFence.create_at(semaphore, value)

    def exported(self, vmfb: str) -> list[ExportedFunction]:
        """The functions of a compiled module, in its order, without loading its code.

        Args:
            vmfb: path of the file.

        Raises:
            UserError: it is no compiled module that this runtime can load.
        """
        try:
            module = self.bindings.VmModule.mmap(self.instance, vmfb)
        except (ValueError, RuntimeError, OSError) as error:
            raise UserError(
                f"{vmfb}: not a compiled module that this runtime can load "
                f"({_first_line(error).rpartition('; ')[2]}); compile the program anew"
            ) from None
        found = []
        for name in module.function_names:
            function = module.lookup_function(name)
            # The bindings show the convention only in the function's text: `<VmFunction f(0r_r), …`
            convention = str(function).partition(f" {name}(")[2].partition(")")[0]
            found.append(ExportedFunction(name, convention, dict(function.reflection)))
        return found

    def load(
        self,
        vmfb: str | bytes,
        parameters: Parameters | None = None,
        weights: Mapping[tuple[str, str], NDArray[Any]] | None = None,
    ) -> LoadedProgram:
        """Load a compiled program from a file or from memory, with its parameters.

        Args:
            vmfb: path of the file, or its bytes.
            parameters: archives of its weights.
            weights: those that lie in memory, by scope and name, as `borrow` takes data, to be kept
                as long as the program: what it does not transform when it is loaded it reads there
                in every call.
        """
        return LoadedProgram(self, vmfb, parameters or NO_PARAMETERS, weights or {})


class LoadedProgram:
    """A loaded program. Its state, parameters included, is freed with it."""

    def __init__(
        self,
        device: Device,
        vmfb: str | bytes,
        parameters: Parameters,
        weights: Mapping[tuple[str, str], NDArray[Any]],
    ) -> None:
        runtime = device.bindings
        self._device = device
        if device.options.huge_pages and not isinstance(vmfb, bytes):
            vmfb = Path(vmfb).read_bytes()
        if isinstance(vmfb, bytes):
            self._module: Any = runtime.VmModule.copy_buffer(device.instance, vmfb)
        else:
            self._module = runtime.VmModule.mmap(device.instance, vmfb)
        modules = [runtime.create_hal_module(device.instance, device.hal)]
        if parameters.archives or weights:
            modules.append(_parameters_module(runtime, device.instance, parameters, weights))
        self._context: Any = runtime.VmContext(device.instance, [*modules, self._module])
        self._functions: dict[str, Any] = {}

    def has(self, function: str) -> bool:
        """Whether there is such a function.

        Args:
            function: its name.
        """
        return self._module.lookup_function(function) is not None

    def argument_count(self, function: str) -> int:
        """How many arguments a function takes; 0 if there is none.

        Args:
            function: its name.
        """
        found = self._module.lookup_function(function)
        # The bindings show the convention only in the function's text: `<VmFunction f(0rI_r), …`
        convention = str(found).partition("(0")[2].partition(")")[0]
        return len(convention.partition("_")[0]) if found is not None else 0

    def bind(self, function: str, arguments: Sequence[Any]) -> Callable[[], Any]:
        """A call of a function with these arguments, ready to be timed.

        It returns when the results are complete, with the list of the results.

        Args:
            function: its name.
            arguments: on the device; numbers as they are.

        Raises:
            ValueError: there is no such function.
        """
        if self.polls(function):
            prepare = self._fenced(function + ASYNC, arguments)
            device = self._device
            return polled(prepare, device.semaphore, device.fence, device.options.schedules_batch)
        found, packed = self._function(function), self._packed(arguments)
        invoke, new_list = self._context.invoke, self._device.bindings.VmVariantList

        def call() -> Any:
            results = new_list(1)
            invoke(found, packed, results)
            return results

        return call

    def bind_fenced(self, function: str, arguments: Sequence[Any]) -> Callable[[Any, Any], Any]:
        """A call that takes a fence to wait for and one to signal, and returns before its results
        are complete, with their list: of a program whose functions take fences, which IREE calls
        the execution model `async-external`.

        Args:
            function: its name.
            arguments: on the device; numbers as they are.

        Raises:
            ValueError: there is no such function.
        """
        prepare = self._fenced(function, arguments)

        def call(after: Any, done: Any) -> Any:
            begin, results = prepare(after, done)
            begin()
            return results

        return call

    def polls(self, function: str) -> bool:
        """Whether the end of its calls is waited for awake (`measure/polling`).

        Args:
            function: its name.
        """
        return self._device.options.can_poll and self.has(function + ASYNC)

    def _fenced(
        self, function: str, arguments: Sequence[Any]
    ) -> Callable[[Any, Any], tuple[Callable[[], object], Any]]:
        """What begins a call of a function that takes two fences, and the list for its results."""
        found = self._function(function)
        invoke, new_list = self._context.invoke, self._device.bindings.VmVariantList

        def prepare(after: Any, done: Any) -> tuple[Callable[[], object], Any]:
            results = new_list(1)
            return partial(invoke, found, self._packed([*arguments, after, done]), results), results

        return prepare

    def _function(self, name: str) -> Any:
        if name in self._functions:
            return self._functions[name]
        found = self._module.lookup_function(name)
        if found is None:
            names = ", ".join(n for n in self._module.function_names if not n.startswith("__"))
            raise ValueError(f"the program has no function '{name}' (it has: {names})")
        self._functions[name] = found
        return found

    def _packed(self, arguments: Sequence[Any]) -> Any:
        packed = self._device.bindings.VmVariantList(len(arguments))
        for argument in arguments:
            if isinstance(argument, int):
                packed.push_int(argument)
            elif isinstance(argument, float):
                packed.push_float(argument)
            else:
                packed.push_ref(argument)
        return packed

    def outputs(self, results: Any) -> list[NDArray[Any]]:
        """The results of a call as arrays; scalars have shape () and type int64 or float64.

        Args:
            results: the list that a call gave.
        """
        runtime = self._device.bindings
        arrays: list[NDArray[Any]] = []
        for position in range(len(results)):
            value = results.get_variant(position)
            if isinstance(value, int | float):
                arrays.append(np.asarray(value))
            else:
                arrays.append(self._device.download(value.deref(runtime.HalBufferView)))
        return arrays


def _scalar(argument: ScalarInput) -> int | float:
    whole = argument.type.dtype.kind in "iub"
    return int(argument.value) if whole else float(argument.value)


def _parameters_module(
    runtime: Any,
    instance: Any,
    parameters: Parameters,
    weights: Mapping[tuple[str, str], NDArray[Any]],
) -> Any:
    scopes: dict[str, Any] = {}
    for (scope, name), data in weights.items():
        scopes.setdefault(scope, runtime.ParameterIndex()).add_buffer(name, data)
    for scope, path in parameters.archives:
        index = scopes.setdefault(scope, runtime.ParameterIndex())
        try:
            index.load(path)
        except (ValueError, RuntimeError, OSError) as error:
            raise UserError(f"--parameters {path}: cannot be read: {_first_line(error)}") from None
    providers = [index.create_provider(scope=scope) for scope, index in scopes.items()]
    return runtime.create_io_parameters_module(instance, *providers)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(": ")


def owned(array: NDArray[Any], behind: object = None) -> NDArray[Any]:
    """The memory of an array as one whose views keep that memory alive.

    The runtime's bindings tie a buffer to the array object that they return, not to its base, and
    NumPy's views skip that object: `array[0]` would be of memory that is free as soon as `array` is
    gone.

    Args:
        array: whose elements lie row by row; it may not be writeable.
        behind: what the memory belongs to, which goes when the memory has gone: a buffer that is
            freed after its device ends the process.
    """
    memory = _Memory(array, behind)
    return np.asarray(memory).view(array.dtype).reshape(array.shape)


class _Memory:
    """The bytes of an array, writeable, as what NumPy makes an array of and keeps."""

    def __init__(self, array: NDArray[Any], behind: object) -> None:
        # In the order in which they go.
        self.owner, self.behind = array, behind
        self.__array_interface__ = {
            "version": 3,
            "shape": (array.nbytes,),
            "typestr": "|u1",
            "data": (array.__array_interface__["data"][0], False),
        }

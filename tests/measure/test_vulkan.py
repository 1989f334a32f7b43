"""Programs on a Vulkan device, where the runtime finds one (Mesa's llvmpipe will do)."""

import numpy as np
import pytest
from measured_programs import ADD

from tilewright.argument import ArgumentType
from tilewright.ir.session import CompilerSession
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.benchmark_worker import VerifyRequest
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.devices import drivers
from tilewright.measure.inputs import random_inputs, write_outputs
from tilewright.measure.runtime import Device
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import TimingPolicy
from tilewright.target import parse_target

POLICY = TimingPolicy(max_s=0.05, prime=True)


@pytest.fixture(scope="module")
def device():
    found = next((d.devices for d in drivers() if d.name == "vulkan"), ())
    if not found:
        pytest.skip("the runtime finds no Vulkan device")
    return found[0].uri


@pytest.fixture(scope="module")
def add(device, tmp_path_factory):
    path = tmp_path_factory.mktemp("vulkan") / "add.vmfb"
    path.write_bytes(CompilerSession(parse_target("vulkan:ampere").flags).compile(ADD))
    return str(path)


def test_arrays_come_back_as_they_went(device):
    opened = Device(DeviceOptions(device))
    for array in (
        np.arange(15, dtype=np.float32).reshape(3, 5),
        np.array([True, False, True]),
        np.float32(2.5),
        np.zeros((0, 4), np.float16),
        # Not a whole number of pages, at no particular address.
        np.arange(100_003, dtype=np.int8),
    ):
        back = opened.download(opened.upload(array))
        assert back.shape == np.shape(array)
        np.testing.assert_array_equal(back, array)


def test_a_program_is_run_verified_and_timed(device, add, tmp_path):
    types = (ArgumentType("f32", (4, 8)),) * 2
    inputs = random_inputs(tmp_path / "in", types, seed=0)
    a, b = (argument.load() for argument in inputs.arguments)
    write_outputs(tmp_path / "expected.npz", [a + b])
    with Benchmark(DeviceOptions(device)) as bench:
        (result,) = bench.run(add, inputs, tmp_path / "out.npz")
        np.testing.assert_array_equal(result, a + b)
        (verdict,) = bench.verify(VerifyRequest(add, inputs, str(tmp_path / "expected.npz"), 1))
        assert verdict.ok
        measured = bench.time(add, inputs, policy=POLICY)
        assert isinstance(measured, Measurement)
        assert measured.time_s > 0

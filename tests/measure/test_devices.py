"""Drivers are asked one by one: one that crashes or hangs leaves the others."""

from __future__ import annotations

import pytest
import worker_faults as faults

from tilewright.measure import devices
from tilewright.measure.devices import CompilerTargets, Driver, drivers, targets


def test_the_cpu_is_a_device_of_two_drivers() -> None:
    found = {driver.name: driver for driver in drivers()}
    for name in ("local-sync", "local-task"):
        assert [device.uri for device in found[name].devices] == [name]
        assert found[name].error == ""


def test_the_compiler_knows_its_backends_and_this_processor() -> None:
    known = targets()
    assert isinstance(known, CompilerTargets)
    assert {"llvm-cpu", "vmvx"} <= set(known.backends)
    assert known.processor
    assert known.features
    assert known.vector_bytes in (16, 32, 64)


def test_a_driver_that_crashes_or_hangs_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "driver_devices", faults.devices_of)
    monkeypatch.setattr(devices, "_TIMEOUT_S", 3.0)
    found: dict[str, Driver] = {driver.name: driver for driver in drivers()}
    assert "SIGABRT" in found["local-sync"].error
    assert "no answer within 3 s" in found["local-task"].error
    assert [device.name for device in found["vulkan"].devices] == ["fine"]

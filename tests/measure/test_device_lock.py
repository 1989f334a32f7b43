"""One measurement at a time on a device."""

import fcntl
import os
import subprocess
import sys
import time

import pytest

from tilewright.measure.device_lock import DeviceLock, device_name

HOLD = """
import sys, time
from pathlib import Path
from tilewright.measure.device_lock import DeviceLock
with DeviceLock("local-sync", Path(sys.argv[1])).held() as had:
    print(had, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("local-sync", "cpu"),
        ("local-task", "cpu"),
        ("cuda", "cuda-0"),
        ("cuda://0", "cuda-0"),
        ("cuda://GPU-1/2", "cuda-GPU-1_2"),
    ],
)
def test_a_device_has_one_lock_whatever_it_is_called(uri, name):
    assert device_name(uri) == name


def test_the_lock_of_a_process_is_free_when_it_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "True\n"
        with DeviceLock("local-task", tmp_path).held(patience_s=0.05) as had:
            assert not had
        with DeviceLock("cuda://0", tmp_path).held(patience_s=0.05) as had:
            assert had
        holder.kill()
        with DeviceLock("local-task", tmp_path).held(patience_s=30) as had:
            assert had


def test_compiling_is_shared_and_keeps_measuring_away(tmp_path):
    one, two = DeviceLock("local-task", tmp_path), DeviceLock("local-task", tmp_path)
    with one.held(shared=True) as first, two.held(shared=True, patience_s=0) as second:
        assert first
        assert second
        with DeviceLock("local-sync", tmp_path).held(patience_s=0) as measuring:
            assert not measuring


def test_who_waits_is_before_who_comes_again(tmp_path):
    """A holder that lets go and wants it at once stands behind who waited."""
    lock = DeviceLock("local-task", tmp_path)
    with lock.held():
        waiting = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        gate = os.open(tmp_path / "tilewright-cpu.gate", os.O_RDONLY)
        while True:
            try:
                fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(gate, fcntl.LOCK_UN)
                time.sleep(0.01)
            except BlockingIOError:
                break
        os.close(gate)
    with lock.held(patience_s=0.2) as had:
        assert not had
    assert waiting.stdout.readline() == "True\n"
    waiting.kill()
    waiting.wait()
    waiting.stdout.close()


def test_without_a_place_for_locks_there_is_none(tmp_path):
    with DeviceLock("local-task", tmp_path / "nowhere").held() as had:
        assert not had

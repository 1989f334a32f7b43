"""Measuring on another machine: the folder, both sides of it, and what can go wrong between."""

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tilewright.argument import ArgumentType
from tilewright.errors import UserError
from tilewright.measure import benchmark_worker as tasks
from tilewright.measure.benchmark_worker import TimeRequest, VerifyRequest
from tilewright.measure.comparison import ComparisonPolicy
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.encoding import decode, encode, make_entry
from tilewright.measure.exchange import Exchange, station_name
from tilewright.measure.inputs import random_inputs, write_inputs, write_outputs
from tilewright.measure.jobs import Job, WorkerFailure
from tilewright.measure.remote import FolderBenchmark, Stopped, Transport, parse_runner
from tilewright.measure.station import Station, main
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import InterleavedBaseline, TimingPolicy

TENSOR = ArgumentType("f32", (4, 8))
QUICK = TimingPolicy(max_s=0.01, min_samples=3, max_samples=6, warmup_max_s=0.0)
SYNC = DeviceOptions("local-sync")


@pytest.fixture
def inputs(tmp_path):
    return random_inputs(tmp_path / "inputs", (TENSOR, TENSOR), seed=0)


class Here(Transport):
    """Measures at once, in this process's own workers."""

    rounds = 0

    def measure(self, batch, keys, stop):
        self.rounds += 1
        Station(self.exchange, SYNC).run()


@pytest.fixture
def remote(tmp_path):
    return FolderBenchmark(Here(Exchange(tmp_path / "exchange")), QUICK)


def expected(tmp_path, inputs):
    a, b = (argument.load() for argument in inputs.arguments)
    path = tmp_path / "sum.npz"
    write_outputs(path, [a + b])
    return path


def test_requests_come_back_from_json(tmp_path, vmfb, inputs):
    exchange = Exchange(tmp_path / "exchange")
    request = TimeRequest(vmfb["add"], inputs, QUICK, 4, best_s=0.5)
    data = json.loads(json.dumps(encode(request, exchange.files)))
    found = decode(data, exchange.files)
    assert (found.policy, found.repeats, found.best_s) == (QUICK, 4, 0.5)
    assert found.vmfb.startswith(str(exchange.folder / "files"))
    for ours, theirs in zip(inputs.arguments, found.inputs.arguments, strict=True):
        assert np.array_equal(ours.load(), theirs.load())


def test_a_request_is_known_by_what_it_asks_for(tmp_path, vmfb, inputs):
    exchange = Exchange(tmp_path / "exchange")
    copy = tmp_path / "elsewhere.vmfb"
    copy.write_bytes(Path(vmfb["add"]).read_bytes())

    def key(path, repeats=1):
        payload = TimeRequest(str(path), inputs, QUICK, repeats)
        return make_entry(Job(tasks.time_program, payload), exchange.files).key

    assert key(vmfb["add"]) == key(copy)
    assert key(vmfb["add"]) != key(vmfb["subtract"])
    assert key(vmfb["add"]) != key(vmfb["add"], repeats=2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"class": "Popen", "args": ["ls"]}, "Popen"),
        ({"class": "ArgumentType", "color": "red"}, "color"),
        ({"file": "../../etc/passwd"}, "is no name of a file"),
        ({"file": "0123.vmfb"}, "missing"),
    ],
)
def test_what_is_read_makes_nothing_else(tmp_path, data, message):
    with pytest.raises(UserError, match=message):
        decode(data, Exchange(tmp_path).files)


def test_a_program_is_timed_verified_and_run(tmp_path, remote, vmfb, inputs):
    measured = remote.time(vmfb["add"], inputs, repeats=4)
    assert isinstance(measured, Measurement)
    assert measured.time_s > 0
    wanted = str(expected(tmp_path, inputs))
    (verdict,) = remote.verify(VerifyRequest(vmfb["add"], inputs, wanted, 1))
    assert verdict.ok
    (wrong,) = remote.verify(
        VerifyRequest(vmfb["subtract"], inputs, str(expected(tmp_path, inputs)), 1)
    )
    assert not wrong.ok
    (result,) = remote.run(vmfb["add"], inputs, tmp_path / "out.npz")
    a, b = (argument.load() for argument in inputs.arguments)
    assert np.array_equal(result, a + b)


def test_finalists_are_compared(remote, vmfb, inputs):
    policy = ComparisonPolicy(rounds=5, max_s=0.2, min_sample_s=1e-4)
    judged = remote.compare_interleaved([vmfb["add"], vmfb["subtract"]], inputs, policy=policy)
    assert len(judged) == 2


def test_what_was_measured_is_not_measured_again(remote, vmfb, inputs):
    first = remote.time(vmfb["add"], inputs)
    assert remote.transport.rounds == 1
    assert remote.time(vmfb["add"], inputs) == first
    again = FolderBenchmark(Here(remote.exchange), QUICK)
    assert again.time(vmfb["add"], inputs) == first
    assert again.transport.rounds == 0


def test_many_are_measured_in_one_round(tmp_path, remote, vmfb, inputs):
    def ask():
        return [
            (
                remote.time(vmfb[name], inputs),
                remote.verify(VerifyRequest(vmfb[name], inputs, str(path), 1)),
            )
            for name in ("add", "subtract")
        ]

    path = expected(tmp_path, inputs)
    with remote.ahead("both"):
        ask()
    assert remote.transport.rounds == 1
    found = ask()
    assert remote.transport.rounds == 1
    assert [verdicts[0].ok for _, verdicts in found] == [True, False]
    (batch,) = remote.exchange.batches()
    assert batch.label == "both"


def test_drift_is_corrected_within_a_round(remote, vmfb, inputs):
    baseline = InterleavedBaseline(vmfb["add"], every=0, reference_s=1e3, limit=1.25)
    with remote.ahead():
        for name in ("add", "subtract"):
            remote.time(vmfb[name], inputs, baseline=baseline, best_s=1.0)
    measured = [
        remote.time(vmfb[name], inputs, baseline=baseline, best_s=1.0)
        for name in ("add", "subtract")
    ]
    assert remote.transport.rounds == 1
    # The default takes far less than its time at the reference: corrected as far as it goes.
    assert [one.drift for one in measured] == [0.8, 0.8]


def test_a_crash_is_a_result_and_the_others_go_on(tmp_path, remote, vmfb, inputs):
    broken = tmp_path / "broken.vmfb"
    broken.write_bytes(b"not a module")
    with remote.ahead():
        remote.time(str(broken), inputs)
        remote.time(vmfb["add"], inputs)
    assert isinstance(remote.time(str(broken), inputs), WorkerFailure)
    assert isinstance(remote.time(vmfb["add"], inputs), Measurement)


def test_a_program_that_hangs_is_ended(tmp_path, remote, vmfb):
    count = write_inputs(tmp_path / "forever", (ArgumentType("i64", None),), [np.asarray(-1)])
    failure = remote.time(vmfb["spin"], count, timeout_s=1.0)
    assert isinstance(failure, WorkerFailure)
    assert failure.kind == "timeout"


def test_a_line_that_was_cut_off_is_measured_again(remote, vmfb, inputs):
    remote.time(vmfb["add"], inputs)
    (batch,) = remote.exchange.batches()
    (path,) = batch.folder.glob("results*.jsonl")
    path.write_text(path.read_text()[:-20])
    assert not batch.results()
    assert Station(remote.exchange, SYNC).run().done == 1
    assert len(batch.results()) == 1


def test_only_what_has_no_result_is_measured(remote, vmfb, inputs):
    remote.time(vmfb["add"], inputs)
    assert Station(remote.exchange, SYNC).run().done == 0


def test_stations_that_share_a_folder_measure_nothing_twice(tmp_path, vmfb, inputs):
    remote = FolderBenchmark(Transport(Exchange(tmp_path / "exchange")), QUICK)
    batch = remote.exchange.new_batch(timings(remote, vmfb, inputs, 8), "")
    devices = (SYNC, DeviceOptions("local-task", 1))
    stations = [Station(Exchange(remote.exchange.folder), one) for one in devices]
    threads = [threading.Thread(target=one.run) for one in stations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [
        json.loads(line)["key"]
        for path in batch.folder.glob("results*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert sorted(lines) == sorted(entry.key for entry in batch.entries)
    assert sum(one.counts.done for one in stations) == 8


def timings(remote, vmfb, inputs, count):
    return [
        make_entry(
            Job(tasks.time_program, TimeRequest(vmfb["add"], inputs, QUICK, repeats)),
            remote.exchange.files,
        )
        for repeats in range(1, count + 1)
    ]


def test_a_claim_is_one_stations_until_that_is_gone(tmp_path, vmfb, inputs):
    remote = FolderBenchmark(Transport(Exchange(tmp_path / "exchange")), QUICK)
    (entry,) = timings(remote, vmfb, inputs, 1)
    batch = remote.exchange.new_batch([entry], "")
    ours = station_name()
    assert batch.claim(entry, ours)
    assert not batch.claim(entry, station_name())
    assert Station(remote.exchange, SYNC).run().elsewhere == 1
    batch.release(entry)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = ours.partition("-")[0]
    assert batch.claim(entry, f"{host}-{ended.pid}-00000000")
    assert Station(remote.exchange, SYNC).run().done == 1


def test_the_claim_of_another_machine_ends_with_its_time(tmp_path, vmfb, inputs):
    remote = FolderBenchmark(Transport(Exchange(tmp_path / "exchange")), QUICK)
    (entry,) = timings(remote, vmfb, inputs, 1)
    batch = remote.exchange.new_batch([entry], "")
    assert batch.claim(entry, "elsewhere-1-00000000")
    assert not batch.claim(entry, station_name())
    claim = batch.folder / "claims" / entry.key
    os.utime(claim, (0, claim.stat().st_mtime - 3600))
    assert batch.claim(entry, station_name())


def test_the_default_is_timed_once_for_several_candidates(remote, vmfb, inputs, monkeypatch):
    baseline = InterleavedBaseline(vmfb["add"], every=0, reference_s=1e-3)
    with remote.ahead():
        for repeats in (1, 1, 1, 1):
            remote.time(vmfb["subtract"], inputs, repeats=repeats, baseline=baseline)
            remote.time(vmfb["add"], inputs, repeats=repeats, baseline=baseline)
    answers = [data["value"] for _, data in remote.exchange.answered()]
    assert len({one["baseline_before_s"] for one in answers}) == 1


def test_a_run_waits_for_the_other_side(tmp_path, vmfb, inputs):
    said = []
    remote = FolderBenchmark(Transport(Exchange(tmp_path / "exchange"), said.append), QUICK)
    command = [str(tmp_path / "exchange"), "--device", "local-sync", "--watch", "--quiet"]
    station = threading.Thread(target=main, args=(command,))
    (tmp_path / "exchange").mkdir()
    station.start()
    measured = remote.time(vmfb["add"], inputs)
    remote.close()
    station.join(30)
    assert isinstance(measured, Measurement)
    assert not station.is_alive()
    assert any("tilewright measure" in text for text in said)


def test_a_run_that_is_stopped_finds_its_round_again(tmp_path, vmfb, inputs):
    remote = FolderBenchmark(Transport(Exchange(tmp_path / "exchange")), QUICK)
    remote.stop = lambda: True
    with pytest.raises(Stopped):
        remote.time(vmfb["add"], inputs)
    assert Station(remote.exchange, SYNC).run().done == 1
    later = FolderBenchmark(Transport(remote.exchange), QUICK)
    later.stop = lambda: True
    assert isinstance(later.time(vmfb["add"], inputs), Measurement)
    assert len(later.exchange.batches()) == 1


@pytest.mark.parametrize("text", ["dir:", "ftp:there", ""])
def test_runners_that_there_are_not(text):
    with pytest.raises(UserError, match="dir:PATH"):
        parse_runner(text)


def test_ssh_says_what_to_use_instead():
    with pytest.raises(UserError, match="--cluster"):
        parse_runner("ssh:gpu.example:work")


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
    (tmp_path / "batch_0001").mkdir()
    (tmp_path / "batch_0001" / "manifest.json").write_text('{"format": 99}')
    assert main([str(tmp_path), "--device", "local-sync"]) == 2
    assert "format 99" in capsys.readouterr().err


def test_a_manifest_names_tasks_of_the_benchmark_only(tmp_path):
    exchange = Exchange(tmp_path)
    folder = tmp_path / "batch_0001"
    folder.mkdir()
    request = {"key": "k", "task": "os:system", "payload": "true", "timeout_s": None}
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "requests": [request]}))
    with pytest.raises(UserError, match="os:system"):
        Station(exchange, SYNC).run()


def test_a_file_that_is_not_whole_is_not_run(remote, vmfb, inputs):
    remote.transport = Transport(remote.exchange)
    remote.stop = lambda: True
    with pytest.raises(Stopped):
        remote.time(vmfb["add"], inputs)
    (program,) = remote.exchange.files.folder.glob("*.vmfb")
    whole = program.read_bytes()
    program.write_bytes(whole[:-100])
    station = Station(Exchange(remote.exchange.folder), SYNC)
    with pytest.raises(UserError, match="not what was written"):
        station.run()
    (batch,) = remote.exchange.batches()
    assert not batch.results()
    program.write_bytes(whole)
    assert Station(Exchange(remote.exchange.folder), SYNC).run().done == 1


def test_a_disk_that_is_full_is_said(remote, vmfb, inputs, monkeypatch):
    remote.time(vmfb["add"], inputs)
    (batch,) = remote.exchange.batches()

    def full(_file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        batch.add_result({"key": "one", "value": 1})

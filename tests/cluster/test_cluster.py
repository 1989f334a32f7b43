"""A cluster of processes that talk by TLS: measured as here, and what can go wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import measured_programs
import numpy as np
import psutil
import pytest

from cluster_processes import ClusterProcesses, cluster_processes, older_iree
from tilewright.argument import ArgumentType
from tilewright.cluster.certificates import make_certificates, security_of
from tilewright.cluster.connecting import ClusterNeeds, open_cluster
from tilewright.cluster.dispatching import CPU
from tilewright.cluster.facts import facts_of
from tilewright.cluster.handing_out import ClusterBenchmark
from tilewright.cluster.place import parse_place
from tilewright.cluster.scheduler import worker_states
from tilewright.errors import UserError
from tilewright.ir.session import CompilerSession
from tilewright.measure.benchmark_worker import VerifyRequest
from tilewright.measure.comparison import ComparisonPolicy
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.inputs import InputSet, random_inputs, write_inputs, write_outputs
from tilewright.measure.jobs import WorkerFailure
from tilewright.measure.measurement_key import measurement_key
from tilewright.measure.statistics import Measurement
from tilewright.measure.timing import CAREFUL, TimingPolicy
from tilewright.measure.ways import WaysRequest, time_ways
from tilewright.target import parse_target

pytest.importorskip("distributed", reason="Dask is not installed (extra `cluster`)")

NEEDS = ClusterNeeds(CPU, ("local-sync",))
DEVICE = ("--role", "device", "--device", "local-sync")
TENSOR = ArgumentType("f32", (4, 8))
QUICK = TimingPolicy(max_s=0.01, min_samples=3, max_samples=6, warmup_max_s=0.0)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("programs")
    compiler = CompilerSession(measured_programs.CPU_FLAGS)
    for name in ("ADD", "SUBTRACT", "SPIN"):
        (folder / name).with_suffix(".vmfb").write_bytes(
            compiler.compile(getattr(measured_programs, name))
        )
    return {p.stem.lower(): str(p) for p in folder.glob("*.vmfb")}


@pytest.fixture
def inputs(tmp_path: Path) -> InputSet:
    return random_inputs(tmp_path / "inputs", (TENSOR, TENSOR), seed=0)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with cluster_processes(tmp_path_factory.mktemp("farm")) as made:
        made.worker("steady", *DEVICE)
        made.said("steady", "(connected)")
        yield made


def children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_a_device_of_a_cluster_measures_as_one_of_this_machine(
    farm: ClusterProcesses, programs: dict[str, str], inputs: InputSet, tmp_path: Path
) -> None:
    a, b = (one.load() for one in inputs.arguments)  # type: ignore[union-attr]
    write_outputs(tmp_path / "sum.npz", [a + b])
    policy = ComparisonPolicy(rounds=5, max_s=0.2, min_sample_s=1e-4)
    with open_cluster(parse_place(farm.url), NEEDS, tmp_path, certs=farm.certs) as cluster:
        bench = ClusterBenchmark(cluster, CPU, policy=QUICK)
        with bench.ahead("both"):
            for name in ("add", "subtract"):
                bench.time(programs[name], inputs)
                bench.verify(VerifyRequest(programs[name], inputs, str(tmp_path / "sum.npz"), 1))
        handed_out = cluster.dispatcher._next
        assert isinstance(bench.time(programs["add"], inputs), Measurement)
        verdicts = [
            bench.verify(VerifyRequest(programs[name], inputs, str(tmp_path / "sum.npz"), 1))
            for name in ("add", "subtract")
        ]
        assert [one[0].ok for one in verdicts] == [True, False]  # type: ignore[index]
        # What was measured in the round is not measured again.
        assert cluster.dispatcher._next == handed_out
        outputs = bench.run(programs["add"], inputs, tmp_path / "out.npz")
        assert np.array_equal(outputs[0], a + b)  # type: ignore[index]
        judged = bench.compare_interleaved(
            [programs["add"], programs["subtract"]], inputs, policy=policy
        )
        assert len(judged) == 2  # type: ignore[arg-type]
        found = bench.ask(
            time_ways, WaysRequest(programs["add"], inputs, "main", 1, 1, policy, 60.0)
        )
        assert not isinstance(found, WorkerFailure)
        assert found[0].device == DeviceOptions.cpu(1)
        assert found[0].samples
        target = parse_target("cpu", 1)
        assert bench.measurement_key(target) == measurement_key(target)
        count = write_inputs(tmp_path / "n", (ArgumentType("i64", None),), [np.asarray(-1)])
        hung = bench.time(programs["spin"], count, timeout_s=1.0)
        assert isinstance(hung, WorkerFailure)
        assert hung.kind == "timeout"
    from tilewright.cluster.certificates import security_of

    (state,) = worker_states(farm.url, security_of(farm.certs, "client"))
    assert state["name"] == "steady"
    assert CPU in state["labels"]
    assert state["done"] >= 6
    assert state["builds"]["iree-base-runtime"]


def test_a_worker_that_is_killed_costs_its_chunk_and_leaves_nothing_behind(
    farm: ClusterProcesses, programs: dict[str, str], inputs: InputSet, tmp_path: Path
) -> None:
    names = ("one", "two")
    pair = {name: farm.worker(name, *DEVICE, "--label", "pair", "--label", name) for name in names}
    for name in names:
        farm.said(name, "(connected)")
    said: list[str] = []
    place, needs = parse_place(farm.url), ClusterNeeds("pair", ())
    with open_cluster(place, needs, tmp_path, said.append, certs=farm.certs) as cluster:
        bench = ClusterBenchmark(cluster, "pair", policy=QUICK)
        killed: list[psutil.Process] = []

        def kill_what_is_busy() -> bool:
            for chunk in cluster.dispatcher.running:
                labels = cluster.workers[chunk.address].labels
                (process,) = [pair[name] for name in names if name in labels]
                if not killed and children(process.pid):
                    killed.extend(children(process.pid))
                    os.kill(process.pid, signal.SIGKILL)
            return False

        bench.stop = kill_what_is_busy
        policies = [replace(QUICK, max_samples=n) for n in range(6, 36)]
        with bench.ahead():
            for policy in policies:
                bench.time(programs["add"], inputs, policy=policy)
        assert killed
        results = [bench.time(programs["add"], inputs, policy=policy) for policy in policies]
        assert all(isinstance(one, Measurement) for one in results)
    assert any(text.startswith("lost a device worker") for text in said)
    psutil.wait_procs(killed, timeout=10)
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in killed)


def test_what_hangs_is_ended_when_its_worker_dies(
    farm: ClusterProcesses, programs: dict[str, str], tmp_path: Path
) -> None:
    doomed = farm.worker("hanging", *DEVICE, "--label", "hanging")
    farm.said("hanging", "(connected)")
    needs = ClusterNeeds("hanging", ())
    count = write_inputs(tmp_path / "n", (ArgumentType("i64", None),), [np.asarray(-1)])
    with open_cluster(parse_place(farm.url), needs, tmp_path, certs=farm.certs) as cluster:
        bench = ClusterBenchmark(cluster, "hanging", policy=QUICK)
        left: list[psutil.Process] = []

        def kill_when_it_spins() -> bool:
            spinning = [p for p in children(doomed.pid) if p.cpu_times().user > 1.5]
            if spinning:
                left.extend(children(doomed.pid))
                os.kill(doomed.pid, signal.SIGKILL)
            return bool(left)

        bench.stop = kill_when_it_spins
        with bench.ahead():
            bench.time(programs["spin"], count, timeout_s=60.0)
            bench.time(programs["spin"], count, timeout_s=60.0, policy=CAREFUL)
    _, alive = psutil.wait_procs(left, timeout=20)
    assert left
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


def test_builds_that_differ_are_named_before_anything_is_done(
    farm: ClusterProcesses, tmp_path: Path
) -> None:
    farm.worker("older", *DEVICE, **older_iree(tmp_path / "older"))
    farm.said("older", "(connected)")
    place = parse_place(farm.url)
    with (
        pytest.raises(UserError, match=r"iree-base-runtime 3\.13\.99.*this machine"),
        open_cluster(place, NEEDS, tmp_path, certs=farm.certs),
    ):
        pass
    farm.processes[-1].terminate()
    farm.processes[-1].wait(20)


def test_another_machine_that_comes_later_does_not_measure_for_the_run(
    farm: ClusterProcesses, tmp_path: Path
) -> None:
    here = facts_of("device", "local-sync", ["kind"])
    other = replace(here, machine={**here.machine, "memory_gib": 3})
    said: list[str] = []
    with open_cluster(
        parse_place(farm.url), NEEDS, tmp_path, said.append, certs=farm.certs
    ) as cluster:
        cluster.workers = {"a": here}
        assert cluster.measures_on("kind") == here.machine
        assert cluster.why_not(here) == ""
        assert cluster.why_not(other) == "the run's other devices have another memory gib"
        assert cluster.why_not(replace(other, labels=("elsewhere",))) == ""
        cluster.workers = {"a": here, "b": other}
        assert cluster.measures_on("kind") is None
        assert "differ in memory gib" in said[-1]


def test_a_certificate_of_another_authority_is_refused(
    farm: ClusterProcesses, tmp_path: Path
) -> None:
    make_certificates(tmp_path / "theirs")
    with (
        pytest.raises(UserError, match="its certificate is of another authority"),
        open_cluster(parse_place(farm.url), NEEDS, tmp_path, certs=tmp_path / "theirs"),
    ):
        pass
    with pytest.raises(UserError, match="its certificate is of another authority"):
        worker_states(farm.url, security_of(tmp_path / "theirs", "client"))
    place = ("--scheduler", farm.url, "--certs", str(tmp_path / "theirs"))
    worker = farm.start("stranger", "worker", *place, "--role", "compile")
    farm.said("stranger", "(its certificate is of another authority)")
    worker.terminate()
    # Whoever knocks does not fill the scheduler's log.
    assert (farm.folder / "scheduler.log").read_text() == f"scheduler at {farm.url}\n"
    with (
        pytest.raises(UserError, match="tilewright cluster certs"),
        open_cluster(parse_place(farm.url), NEEDS, tmp_path, certs=tmp_path / "nowhere"),
    ):
        pass


def test_a_device_that_nobody_has_is_said(
    farm: ClusterProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.cluster.connecting._JOIN_S", 0.5)
    with (
        pytest.raises(UserError, match="no worker with device 'cuda'"),
        open_cluster(parse_place(farm.url), ClusterNeeds("cuda", ()), tmp_path, certs=farm.certs),
    ):
        pass

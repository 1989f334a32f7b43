"""What is stored is read back equal, counted right, and found by what identifies it."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from store_samples import ODD_VALUES, key, result, run_record, trial

from tilewright.database_address import ServerAddress, default_database
from tilewright.errors import UserError
from tilewright.store import Database, Filter, RunStatus
from tilewright.store.stored_tables import RUNS, TRIALS
from tilewright.trial import Configuration, Status, Trial


def test_a_trial_round_trips_exactly(store: Database) -> None:
    run_id, task_id = store.begin_run(run_record()), store.task_id(key())
    full = Trial(
        configuration=Configuration.of(ODD_VALUES),
        status=Status.OK,
        time_s=1.2345678901234567e-05,
        samples=(0.1, 1e-300, 3.0000000000000004e-5),
        message="größe\nline two\0",
        binary="abc",
        origin="random",
        phase_s={"compile": 0.25, "run": 1e-9},
    )
    assert store.record_trial(run_id, task_id, full)
    (back,) = store.trials(run_id)
    if isinstance(store.place, ServerAddress):  # PostgreSQL has no text with NUL in it
        full = dataclasses.replace(full, message="größe\nline two\\x00")
    assert back == full
    kinds = {name: type(value) for name, value in back.configuration.items}
    assert kinds == {name: type(value) for name, value in ODD_VALUES.items()}


@pytest.mark.parametrize("status", list(Status))
def test_every_status_is_kept(store: Database, status: Status) -> None:
    run_id, task_id = store.begin_run(run_record()), store.task_id(key())
    store.record_trial(run_id, task_id, Trial(Configuration.of({}), status))
    assert [t.status for t in store.trials(run_id, task_id)] == [status]


def test_garbage_of_a_candidate_does_not_stop_the_run(store: Database) -> None:
    run_id, task_id = store.begin_run(run_record()), store.task_id(key())
    junk = trial(
        0,
        time_s=math.nan,
        samples=(math.inf, math.nan, 1.0),
        message="\udcff" + "x" * 10**6,
        phase_s={"run": math.inf},
    )
    assert store.record_trial(run_id, task_id, junk)
    (back,) = store.trials(run_id)
    assert back.time_s is None
    assert math.isnan(back.samples[0])
    assert back.samples[2] == 1.0
    assert len(back.message) < 20_000
    assert not back.ok


def test_a_configuration_is_stored_once_whatever_its_order(store: Database) -> None:
    run_id, task_id = store.begin_run(run_record()), store.task_id(key())
    first = Trial(Configuration((("a", 1), ("b", 2))), Status.OK, 1.0)
    again = Trial(Configuration((("b", 2), ("a", 1))), Status.CRASHED)
    assert store.record_trial(run_id, task_id, first)
    assert not store.record_trial(run_id, task_id, again)
    assert store.trials(run_id) == [first]
    # The same configuration of another task, or in another run, is another trial.
    assert store.record_trial(run_id, store.task_id(key(128)), again)
    assert store.record_trial(store.begin_run(run_record()), task_id, again)


def test_true_and_one_are_different_configurations(store: Database) -> None:
    run_id, task_id = store.begin_run(run_record()), store.task_id(key())
    both = [Trial(Configuration.of({"x": v}), Status.OK, 1.0) for v in (True, 1)]
    assert store.record_trials(run_id, task_id, both) == 2


def test_a_value_of_a_wrong_type_is_refused_by_name(store: Database) -> None:
    run_id, task_id = store.begin_run(run_record()), store.task_id(key())
    for value in (1.5, None, [1], (1.5,)):
        bad = Trial(Configuration((("knob", value),)), Status.OK)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="knob"):
            store.record_trials(run_id, task_id, [trial(1), bad])
    assert store.count_trials(run_id) == 0  # all or nothing


def test_ordinals_count_the_trials_of_a_run_over_its_tasks(store: Database) -> None:
    run_id = store.begin_run(run_record())
    tasks = [store.task_id(key(m)) for m in (64, 128)]
    for n in range(6):
        store.record_trial(run_id, tasks[n % 2], trial(n))
        store.record_trial(run_id, tasks[n % 2], trial(n))  # a repeat takes no number
    records = store.trial_records(run_id)
    assert [r.ordinal for r in records] == list(range(6))
    assert [r.trial for r in records] == [trial(n) for n in range(6)]
    assert store.count_trials(run_id) == 6
    assert store.trials(task_id=tasks[1]) == [trial(n) for n in (1, 3, 5)]
    assert len(store.trials()) == 6


def test_tasks_are_equal_by_workload_target_compiler_and_flags(store: Database) -> None:
    first = store.task_id(key(), default_s=0.5)
    assert store.task_id(key()) == first
    assert store.task(first).key == key()
    assert store.task(first).default_s == 0.5
    others = [key(128), key(target="cuda"), key(compiler="3.14.0"), key(flags="g")]
    assert len({first, *(store.task_id(k) for k in others)}) == 5


def test_a_result_is_reused_only_for_the_same_task(store: Database, place: Path | str) -> None:
    run_id = store.begin_run(run_record())
    store.record_result(store.task_id(key()), result(), run_id)
    with Database.open(place, create=False) as other:
        found = other.result_for(key())
        assert found is not None
        assert found.configuration == result().configuration
        assert (found.speedup, found.trials, found.run_id) == (2.0, 64, run_id)
        others = [key(128), key(target="cuda"), key(compiler="3.13.1"), key(flags="g")]
        assert [other.result_for(k) for k in others] == [None] * 4


def test_the_last_result_stays_even_when_it_keeps_the_default(place: Path | str) -> None:
    with Database.open(place, clock=lambda: 5.0) as store:  # and even at the same instant
        task_id = store.task_id(key())
        store.record_result(task_id, result(3.0))
        store.record_result(task_id, result(1.0, configuration=None))
        found = store.result_for(key())
        assert found is not None
        assert found.configuration is None
        assert found.speedup == 1.0


def test_checkpoints_and_measurements(store: Database) -> None:
    runs = [store.begin_run(run_record()) for _ in range(2)]
    store.put_state(runs[0], "search", {"asked": [1, 2], "rng": "x", "best": None})
    store.put_state(runs[0], "search", {"asked": [1, 2, 3]})
    assert store.get_state(runs[0], "search") == {"asked": [1, 2, 3]}
    assert store.get_state(runs[0], "other") is None
    assert store.get_state(runs[1], "search") is None
    store.record_measurement(runs[0], "variant", "default", {"ms": 1.0, "samples": [math.nan]})
    store.record_measurement(runs[0], "program", "tuned", 2)
    assert [m.data for m in store.measurements(runs[0])] == [{"ms": 1.0, "samples": [None]}, 2]
    assert [m.name for m in store.measurements(runs[0], "program")] == ["tuned"]
    assert store.measurements(runs[1]) == []


def test_the_last_run_of_a_program(store: Database) -> None:
    assert store.last_run("p", ("cpu",), "3.13.0") is None
    first, second = (store.begin_run(run_record()) for _ in range(2))
    store.finish_run(first)
    for other in [("q", ("cpu",), "3.13.0"), ("p", ("cuda",), "3.13.0"), ("p", ("cpu",), "3")]:
        assert store.last_run(*other) is None
    found = store.last_run("p", ("cuda", "cpu"), "3.13.0")
    assert found is not None
    assert (found.id, found.options) == (second, {"effort": "quick", "seed": 3})


def test_an_unfinished_run_is_found_again_and_a_finished_one_is_not(store: Database) -> None:
    where = ("p", "cpu", "3.13.0", "o")
    assert store.find_resumable(*where) is None
    run_id = store.begin_run(run_record())
    store.finish_run(run_id, RunStatus.INTERRUPTED)
    for other in [("q", *where[1:]), ("p", "cuda", "3.13.0", "o"), (*where[:3], "other")]:
        assert store.find_resumable(*other) is None
    found = store.find_resumable(*where)
    assert found is not None
    assert (found.id, found.options, found.seed) == (run_id, {"effort": "quick", "seed": 3}, 3)
    assert store.resume_run(run_id).status is RunStatus.RUNNING
    store.finish_run(run_id)
    assert store.find_resumable(*where) is None
    with pytest.raises(UserError, match="finished"):
        store.resume_run(run_id)
    with pytest.raises(UserError, match="no run 99"):
        store.resume_run(99)


def test_a_run_that_goes_on_in_another_process_is_not_taken_over(place: Path | str) -> None:
    """Two processes in one run would break its order; once the other is killed it can be had."""
    text = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from store_samples import run_record; from tilewright.store import Database\n"
        "store = Database.open(sys.argv[1]); print(store.begin_run(run_record()), flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", text, str(place), str(Path(__file__).parent)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin
    assert child.stdout
    try:
        run_id = int(child.stdout.readline())
        with Database.open(place) as store:
            with pytest.raises(UserError, match=f"still going on in process {child.pid}"):
                store.resume_run(run_id)
            mine = store.begin_run(run_record())
            store.finish_run(mine, RunStatus.INTERRUPTED)
            store.begin_run(run_record(program_digest="other"))
            child.kill()
            if os.name == "posix":  # still a zombie here, and dead all the same
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            found = store.find_resumable("p", "cpu", "3.13.0", "o")
            assert found is not None
            assert found.id == mine  # the newest
            assert store.resume_run(run_id).id == run_id
    finally:
        child.kill()
        child.communicate()


def test_a_run_of_another_machine_goes_on_as_long_as_it_stores(place: Path | str) -> None:
    with Database.open(place) as store:
        run_id, task_id = store.begin_run(run_record()), store.task_id(key())
        store.record_trial(run_id, task_id, trial(0))
        with store.connection.transaction() as connection:
            connection.execute(sa.update(RUNS.table).values(owner="elsewhere/7/1.0"))
        if isinstance(place, Path):  # a file is used on one machine, whatever its name is now
            assert store.resume_run(run_id).id == run_id
            return
        with pytest.raises(UserError, match="still going on in process 7 on elsewhere"):
            store.resume_run(run_id)
        assert store.prune(target="cpu").runs == 0
        with store.connection.transaction() as connection:
            for table in (RUNS.table, TRIALS.table):
                connection.execute(sa.update(table).values(created=table.c.created - 3600))
        assert store.resume_run(run_id).id == run_id


def test_a_store_serves_several_threads(store: Database) -> None:
    run_id, task_id = store.begin_run(run_record()), store.task_id(key())

    def work(first: int) -> None:
        for n in range(first, first + 25):
            store.record_trial(run_id, task_id, trial(n))

    threads = [threading.Thread(target=work, args=(25 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [r.ordinal for r in store.trial_records(run_id)] == list(range(100))


def test_listing(place: Path | str) -> None:
    now = 100.0
    with Database.open(place, clock=lambda: now) as store:
        for m in (64, 128):
            run_id, task_id = store.begin_run(run_record()), store.task_id(key(m))
            store.record_trials(
                run_id, task_id, [trial(m), trial(0), trial(1, status=Status.CRASHED, time_s=None)]
            )
            now += 100.0
        store.record_result(store.task_id(key(64)), result())
        rows = store.listing()
        assert [r.workload for r in rows] == [
            "contraction 64x32x16 f32",
            "contraction 128x32x16 f32",
        ]
        assert (rows[1].trials, rows[1].ok, rows[1].runs, rows[1].best_s) == (3, 2, 1, 0.001)
        assert rows[0].result is not None
        assert rows[1].result is None
        assert [r.last for r in store.listing(Filter(workload="128X32"))] == [200.0]
        assert len(store.listing(Filter(target="cpu", since=250.0))) == 1
        assert store.listing(Filter(target="cuda")) == []
        assert store.listing(Filter(compiler="3.12")) == []


def test_default_database() -> None:
    home = Path.home()
    assert default_database({"TILEWRIGHT_DB": "/a/b.db", "XDG_DATA_HOME": "/x"}) == Path("/a/b.db")
    assert default_database({"TILEWRIGHT_DB": "~/b.db"}) == home / "b.db"
    assert default_database({"XDG_DATA_HOME": "/x"}) == Path("/x/tilewright/tilewright.db")
    local = home / ".local/share/tilewright/tilewright.db"
    assert default_database({}, "linux") == local
    assert default_database({"XDG_DATA_HOME": "relative"}, "linux") == local
    assert default_database({"TILEWRIGHT_DB": ""}, "linux") == local
    assert "Application Support" in str(default_database({}, "darwin"))


def test_open_makes_the_directories_of_the_default_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DB", str(tmp_path / "a/b/c d?x=1#.db"))
    with Database.open() as store:
        store.begin_run(run_record())
    assert (tmp_path / "a/b/c d?x=1#.db").is_file()


def test_tasks_of_other_shapes_of_the_same_kind(store: Database) -> None:
    mine = store.task_id(key(64), space={"pipeline": "P"})
    other = store.task_id(key(128), space={"pipeline": "Q"})
    store.task_id(key(256))
    store.task_id(key(512, target="cpu2"), space={"pipeline": "P"})
    found = store.similar_tasks(key(64))
    assert [(task.id, task.space) for task in found] == [(other, {"pipeline": "Q"})]
    assert store.task(mine).space == {"pipeline": "P"}


def test_what_a_space_is_made_from_survives_export(store: Database, tmp_path: Path) -> None:
    store.task_id(key(64), 0.5, {"pipeline": "P"})
    store.export(tmp_path / "all.jsonl")
    with Database.open(tmp_path / "copy.db") as copy:
        copy.import_(tmp_path / "all.jsonl")
        assert copy.task(copy.task_id(key(64))).space == {"pipeline": "P"}

"""A server that goes away in the middle of a run: it goes on, and nothing is lost or doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_samples import key, result, run_record, trial

from postgresql_server import LocalServer, find_programs, local_server
from tilewright.errors import UserError
from tilewright.store import Database, RunStatus, steady
from tilewright.store.steady import SteadyDatabase, open_database


@pytest.fixture(scope="module")
def fragile() -> Iterator[LocalServer]:
    """A server that tests may stop."""
    programs = find_programs()
    if isinstance(programs, str):
        pytest.skip(programs)
    with local_server(programs) as started:
        yield started


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "_FIRST_S", 0.0)
    monkeypatch.setattr(steady, "_LAST_S", 0.0)


def configurations(url: str, run_id: int) -> list[object]:
    with Database.open(url, create=False) as store:
        records = store.trial_records(run_id)
        assert [one.ordinal for one in records] == list(range(len(records)))
        return [one.trial.configuration for one in records]


def wanted(count: int) -> list[object]:
    return [trial(n).configuration for n in range(count)]


def test_a_run_goes_on_while_the_server_is_away(fragile: LocalServer, tmp_path: Path) -> None:
    url, told = fragile.make("away"), list[str]()
    with open_database(url, told.append, tmp_path) as store:
        run_id, task_id = store.begin_run(run_record()), store.task_id(key(), 0.5)
        for n in range(5):
            assert store.record_trial(run_id, task_id, trial(n))
        fragile.stop(signal.SIGQUIT)  # as a crash: what it had not written out is lost with it
        try:
            for n in range(5, 10):
                assert store.record_trial(run_id, task_id, trial(n))
            assert not store.record_trial(run_id, task_id, trial(3))
            other = store.task_id(key(128), 0.25)
            assert store.record_trial(run_id, other, trial(0))
            store.put_state(run_id, "search", {"asked": 10})
            store.record_result(other, result(), run_id)
            assert store.result_for(key()) is None
            assert store.similar_tasks(key()) == []
            assert store.count_trials(run_id) == 11
            assert [one.trial.time_s for one in store.trial_records(run_id, other)] == [0.001]
            assert store.task(other).key == key(128)
            assert len(told) == 1
            assert "the run goes on" in told[0]
        finally:
            fragile.start()
        assert store.record_trial(run_id, other, trial(1))
        assert "is back" in told[1]
        store.finish_run(run_id)
    assert list(tmp_path.iterdir()) == []
    assert configurations(url, run_id) == [*wanted(10), *wanted(2)]
    with Database.open(url, create=False) as store:
        assert store.run(run_id).status is RunStatus.FINISHED
        assert store.get_state(run_id, "search") == {"asked": 10}
        found = store.result_for(key(128))
        assert found is not None
        assert found.run_id == run_id


def test_what_a_server_has_not_taken_is_told_and_delivered_later(
    fragile: LocalServer, tmp_path: Path
) -> None:
    url, told = fragile.make("later"), list[str]()
    with open_database(url, told.append, tmp_path) as store:
        run_id, task_id = store.begin_run(run_record()), store.task_id(key())
        store.record_trial(run_id, task_id, trial(0))
        fragile.stop()
        try:
            store.record_trials(run_id, task_id, [trial(n) for n in range(1, 4)])
            store.finish_run(run_id)
            store.close()
        finally:
            fragile.start()
    (file,) = tmp_path.glob("*.db")
    assert str(file) in told[-1]
    assert "4 trials" in told[-1]
    assert configurations(url, run_id) == wanted(1)
    with open_database(url, told.append, tmp_path):
        assert "3 trials of an earlier run" in told[-1]
    assert configurations(url, run_id) == wanted(4)
    assert list(tmp_path.iterdir()) == []


def test_a_run_begun_while_the_server_is_away_is_there_afterwards(
    fragile: LocalServer, tmp_path: Path
) -> None:
    url = fragile.make("begun")
    with open_database(url, folder=tmp_path) as store:
        fragile.stop()
        try:
            assert store.last_run("p", ("cpu",), "3.13.0") is None
            run_id, task_id = store.begin_run(run_record()), store.task_id(key())
            store.record_trials(run_id, task_id, [trial(n) for n in range(3)])
        finally:
            fragile.start()
        store.record_trial(run_id, task_id, trial(3))
        assert store.count_trials(run_id) == 4
        store.finish_run(run_id, RunStatus.INTERRUPTED)
    with open_database(url, folder=tmp_path) as store:
        found = store.find_resumable("p", "cpu", "3.13.0", "o")
        assert found is not None
        assert store.resume_run(found.id).uid == found.uid
        assert [one.configuration for one in store.trials(found.id)] == wanted(4)
        store.record_trial(found.id, store.task_id(key()), trial(4))
    assert configurations(url, found.id) == wanted(5)


def test_a_server_that_stops_answering_is_not_waited_for_for_ever(
    fragile: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steady, "_ANSWER_S", 0.5)
    monkeypatch.setattr(steady, "_FIRST_S", 3600.0)
    url, told = fragile.make("frozen"), list[str]()
    with open_database(url, told.append, tmp_path) as store:
        assert isinstance(store, SteadyDatabase)
        run_id, task_id = store.begin_run(run_record()), store.task_id(key())
        fragile.freeze(True)
        try:
            store.record_trial(run_id, task_id, trial(0))
        finally:
            fragile.freeze(False)
        assert "the run goes on" in told[0]
    assert configurations(url, run_id) == wanted(1)


def test_the_file_of_a_killed_process_is_delivered_by_the_next(
    fragile: LocalServer, tmp_path: Path
) -> None:
    url = fragile.make("killed")
    text = (
        "import sys; sys.path.insert(0, sys.argv[3]); from pathlib import Path\n"
        "from store_samples import key, run_record, trial\n"
        "from tilewright.store.steady import open_database\n"
        "store = open_database(sys.argv[1], folder=Path(sys.argv[2]))\n"
        "run, task = store.begin_run(run_record()), store.task_id(key())\n"
        "print(run, flush=True); sys.stdin.readline()\n"
        "store.record_trials(run, task, [trial(n) for n in range(3)])\n"
        "print('stored', flush=True); sys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", text, url, str(tmp_path), str(Path(__file__).parent)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin
    assert child.stdout
    run_id = int(child.stdout.readline())
    fragile.stop()
    try:
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "stored\n"
    finally:
        child.kill()
        child.communicate()
        fragile.start()
    assert configurations(url, run_id) == []
    with open_database(url, folder=tmp_path) as store:
        assert store.run(run_id).status is RunStatus.INTERRUPTED
    assert configurations(url, run_id) == wanted(3)


def test_no_password_in_what_is_said(fragile: LocalServer, tmp_path: Path) -> None:
    fragile.make("secret")
    url, told = fragile.url("secret", password="ge:h@im/1"), list[str]()
    with open_database(url, told.append, tmp_path) as store:
        assert "geh" not in str(store.place) + repr(store.place)
        fragile.stop()
        try:
            store.begin_run(run_record())
            store.close()
            with pytest.raises(UserError, match="no connection to the server") as info:
                Database.open(url)
        finally:
            fragile.start()
    said = [*told, str(info.value), repr(info.value.__cause__), *map(str, tmp_path.iterdir())]
    assert len(told) == 2
    assert not any("ge:h" in one or "im/1" in one or "ge%3Ah" in one for one in said)
    assert os.listdir(tmp_path)

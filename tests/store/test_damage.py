"""Attacks on the promise that nothing is lost: kills, races, full disks, wrong files."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from store_samples import key, result, run_record, trial

from tilewright.errors import UserError
from tilewright.store import Database, RunStatus, schema
from tilewright.store.sqlite import FileConnection
from tilewright.store.stored_tables import RUNS

PRELUDE = (
    "import sys; sys.path.insert(0, sys.argv[1])\n"
    "from store_samples import key, run_record, trial\n"
    "from tilewright.store import Database\n"
    "store = Database.open(sys.argv[2])\n"
)


def child(body: str, path: Path | str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + body, str(Path(__file__).parent), str(path)]
        + [str(a) for a in arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


def check(path: Path | str) -> None:
    if isinstance(path, str):
        return  # a server checks its constraints itself
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    raw.close()


def driver_of(store: Database) -> sqlite3.Connection:
    assert isinstance(store.connection, FileConnection)
    return store.connection.driver


def one_line(info: pytest.ExceptionInfo[UserError], path: object) -> None:
    assert "\n" not in str(info.value)
    assert str(path) in str(info.value)


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_killed_run_has_every_trial_it_reported_and_goes_on(place: Path | str) -> None:
    body = (
        "found = store.find_resumable('p', 'cpu', '3.13.0', 'o')\n"
        "run_id = store.resume_run(found.id).id if found else store.begin_run(run_record())\n"
        "task_id, n = store.task_id(key()), store.count_trials(run_id)\n"
        "while True:\n"
        "    assert store.record_trial(run_id, task_id, trial(n, message='x' * 5000))\n"
        "    print(n, flush=True)\n"
        "    n += 1\n"
    )
    reported: list[int] = []
    for stop_after in (1, 37, 150):
        process = child(body, place)
        assert process.stdout
        for line in process.stdout:
            reported.append(int(line))
            if len(reported) >= stop_after:
                break
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()  # reported before the kill reached it
        reported += [int(n) for n in rest.split("\n")[:-1]]
        process.wait()
    check(place)
    with Database.open(place, create=False) as store:
        (run,) = store.runs()
        stored = [r.trial.configuration["tile"] for r in store.trial_records(run.id)]
    # The reports go on where the killed process stopped: at most one trial was stored but not
    # yet reported, and none is missing, repeated or out of order.
    assert stored == [(n, 8) for n in range(len(stored))]
    assert set(reported) <= set(range(len(stored)))
    assert len(reported) == len(set(reported))
    assert len(stored) - len(reported) <= 3


def test_several_processes_write_at_once(place: Path | str) -> None:
    """Four processes make the file together, then write to their own run and a shared one."""
    body = (
        "mine, task_id = store.begin_run(run_record()), store.task_id(key())\n"
        "print(mine, flush=True); shared = int(sys.stdin.readline())\n"
        "new = 0\n"
        "for n in range(60):\n"
        "    store.record_trial(mine, task_id, trial(n))\n"
        "    new += store.record_trial(shared, task_id, trial(n))\n"
        "print(new, flush=True)\n"
    )
    children = [child(body, place) for _ in range(4)]
    runs = [int(c.stdout.readline()) for c in children if c.stdout]
    assert len(set(runs)) == 4
    with Database.open(place) as store:
        shared = store.begin_run(run_record(program_digest="shared"))
    for process in children:
        assert process.stdin
        process.stdin.write(f"{shared}\n")
        process.stdin.flush()
    new = [int(process.communicate()[0]) for process in children]
    assert [process.returncode for process in children] == [0] * 4
    assert sum(new) == 60
    with Database.open(place, create=False) as store:
        for run_id in runs:
            assert store.trials(run_id) == [trial(n) for n in range(60)]
        records = store.trial_records(shared)
        assert [r.ordinal for r in records] == list(range(60))
        assert {r.trial.configuration for r in records} == {
            trial(n).configuration for n in range(60)
        }
        assert len(store.listing()) == 1
    check(place)


def test_a_full_disk_ends_in_one_line_and_an_intact_database(path: Path) -> None:
    with Database.open(path) as store:
        run_id, task_id = store.begin_run(run_record()), store.task_id(key())
        sqlite = driver_of(store)
        pages = sqlite.execute("PRAGMA page_count").fetchone()[0]
        sqlite.execute(f"PRAGMA max_page_count = {pages + 20}")
        stored = 0

        def fill() -> None:
            nonlocal stored
            for n in range(1000):
                store.record_trial(run_id, task_id, trial(n, message="x" * 4000))
                stored += 1

        with pytest.raises(UserError, match=r"disk is full.*--resume") as info:
            fill()
        one_line(info, path)
        assert stored > 0
        assert store.count_trials(run_id) == stored
        check(path)
        sqlite.execute("PRAGMA max_page_count = 1000000")  # some space is freed
        assert store.record_trial(run_id, task_id, trial(stored))
    with Database.open(path, create=False) as store:
        assert [r.ordinal for r in store.trial_records(run_id)] == list(range(stored + 1))


def test_a_new_database_on_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        schema, "MIGRATIONS", [("PRAGMA max_page_count = 1", *schema.MIGRATIONS[0])]
    )
    with pytest.raises(UserError, match="disk is full") as info:
        Database.open(path)
    one_line(info, path)


def test_an_error_halfway_through_a_transaction_leaves_nothing(store: Database) -> None:
    run_id, task_id = store.begin_run(run_record()), store.task_id(key())

    def trials() -> object:
        yield trial(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.record_trials(run_id, task_id, trials())  # type: ignore[arg-type]
    assert store.count_trials(run_id) == 0
    assert store.record_trial(run_id, task_id, trial(0))


def test_a_newer_version_is_refused_and_not_touched(path: Path) -> None:
    Database.open(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute("PRAGMA user_version = 999")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"version is 999.*up to 3; update tilewright") as info:
        Database.open(path)
    one_line(info, path)
    assert path.read_bytes() == before


def test_a_database_of_version_1_is_brought_to_this_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        connection = FileConnection(path, create=True)
        connection.driver.execute(
            "INSERT INTO tasks (workload_key, target, compiler, flags, workload, name)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (
                key().workload.key,
                key().target,
                key().compiler,
                key().flags,
                json.dumps(key().workload.to_json()),
                "old",
            ),
        )
        connection.driver.commit()
        connection.close()
    with Database.open(path) as store:
        task_id = store.task_id(key(), space={"pipeline": "P"})
        assert store.task(task_id).space == {"pipeline": "P"}
        assert len(store.listing()) <= 1


def test_a_database_that_an_earlier_tilewright_made(path: Path) -> None:
    """As version 0.1.0 wrote it on 22 November 2026, before there were machines."""
    with sqlite3.connect(path) as raw:
        raw.executescript((Path(__file__).parent / "data" / "version_2.sql").read_text())
        raw.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        raw.execute("PRAGMA user_version = 2")
    raw.close()
    with Database.open(path) as store:
        assert [(one.id, one.status, one.machine) for one in store.runs()] == [
            (1, RunStatus.FINISHED, ""),
            (2, RunStatus.INTERRUPTED, ""),
        ]
        assert store.trials(1)[:3] == [trial(n) for n in range(3)]
        assert store.trials(1)[3].configuration["tuple"] == (1, 2, 3)
        assert store.get_state(2, "search") == {"asked": [1, 2]}
        assert [one.data for one in store.measurements(1)] == [{"ms": 3}]
        # It is not known where it was measured: no machine may take it for its own.
        assert store.result_for(key(), "some machine") is None
        (known,) = store.results_of(key())
        assert (known.result.speedup, known.result.run_id, known.measured_on) == (2.0, 1, None)
        # A run here has a result of its own beside it.
        run_id = store.begin_run(run_record(machine="here"))
        store.record_result(store.task_id(key()), result(3.0), run_id)
        assert len(store.results_of(key())) == 2
        here = store.result_for(key(), "here")
        assert here is not None
        assert here.speedup == 3.0
    check(path)


def test_an_older_version_is_migrated_with_its_contents(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database.open(path) as store:
        run_id = store.begin_run(run_record())
        store.record_trial(run_id, store.task_id(key()), trial(0))
    added = ("ALTER TABLE runs ADD COLUMN colour TEXT NOT NULL DEFAULT 'unknown'",)
    broken = [*schema.MIGRATIONS, added, ("DROP TABLE trials", "no such statement")]
    monkeypatch.setattr(schema, "MIGRATIONS", broken)
    with pytest.raises(sa.exc.OperationalError):
        Database.open(path)
    monkeypatch.setattr(schema, "MIGRATIONS", broken[:-1])
    with Database.open(path) as store:
        assert store.trials(run_id) == [trial(0)]  # the broken migration was undone as a whole
        with store.connection.snapshot() as connection:
            assert schema.version_of(connection) == len(broken) - 1
        colours = store.connection.query(sa.text("SELECT colour FROM runs"))
        assert [row[0] for row in colours] == ["unknown"]


@pytest.mark.parametrize("content", [b"hello", b"x" * 5000, b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_file_that_is_no_database(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"not a database|damaged|cannot be opened") as info:
        Database.open(path)
    one_line(info, path)
    assert path.read_bytes() == content


def test_a_damaged_database(path: Path) -> None:
    with Database.open(path) as store:
        run_id, task_id = store.begin_run(run_record()), store.task_id(key())
        store.record_trials(run_id, task_id, [trial(n, message="x" * 2000) for n in range(100)])
    content = bytearray(path.read_bytes())
    content[4096 : len(content) - 4096] = b"\xee" * (len(content) - 8192)
    path.write_bytes(content)

    def use() -> None:
        with Database.open(path) as store:
            store.trials()

    with pytest.raises(UserError, match="damaged") as info:
        use()
    one_line(info, path)


def test_the_database_of_another_program_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE bookmarks (url TEXT)")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(UserError, match="another program") as info:
        Database.open(path)
    one_line(info, path)
    assert path.read_bytes() == before


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "x.db", tmp_path, Path("/proc/none/x.db")):
        with pytest.raises(UserError) as info:
            Database.open(path)
        one_line(info, path)
        assert "--db" in str(info.value)


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_a_database_without_write_permission(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    Database.open(path).close()
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    if os.access(path, os.W_OK):  # root may write anything: have SQLite itself refuse
        Database.open(path).close()
        uri = path.as_uri() + "?mode=ro"
        connect = sqlite3.connect
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sqlite3, "connect", lambda _, **kw: connect(uri, uri=True, **kw))
            with pytest.raises(UserError, match=r"no permission|cannot be opened") as info:
                Database.open(path)
    else:
        with pytest.raises(UserError, match=r"no permission|cannot be opened") as info:
            Database.open(path)
    tmp_path.chmod(0o755)
    one_line(info, path)


def test_open_without_create_makes_nothing(path: Path) -> None:
    with pytest.raises(UserError, match="no such file") as info:
        Database.open(path, create=False)
    one_line(info, path)
    assert not path.exists()


def test_a_lock_that_is_never_released(place: Path | str) -> None:
    with Database.open(place) as blocker, Database.open(place, busy_timeout_s=0.05) as store:
        run_id, task_id = store.begin_run(run_record()), store.task_id(key())
        with blocker.connection.transaction() as connection:
            connection.execute(sa.update(RUNS.table).values(seed=1))
            with pytest.raises(UserError, match="another process keeps it locked") as info:
                store.record_trial(run_id, task_id, trial(0))
        one_line(info, store.place)
        assert store.record_trial(run_id, task_id, trial(0))


def test_readers_are_not_blocked_by_a_writer(place: Path | str) -> None:
    with Database.open(place) as writer, Database.open(place, busy_timeout_s=0.05) as reader:
        run_id, task_id = writer.begin_run(run_record()), writer.task_id(key())
        with writer.connection.transaction():
            assert reader.trials(run_id, task_id) == []


def test_a_transaction_that_a_signal_left_open_does_not_block_the_next(tmp_path):
    with Database.open(tmp_path / "t.db") as store:
        driver_of(store).execute("BEGIN IMMEDIATE")
        run = store.begin_run(run_record())
        assert store.run(run).id == run


def test_a_name_in_the_schema_that_is_another_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    Database.open(path).close()
    path.write_bytes(path.read_bytes().replace(b"speedup_low", b"speedup_lou"))
    with Database.open(path) as store, pytest.raises(UserError, match="damaged"):
        store.listing()


@pytest.mark.parametrize("column", ["flags", "target", "name"])
def test_a_task_without_what_every_task_has_is_damage(path: Path, column: str) -> None:
    with Database.open(path) as store:
        run_id, task_id = store.begin_run(run_record()), store.task_id(key())
        store.record_trials(run_id, task_id, [trial(1)])
    with sqlite3.connect(path) as raw:
        # As bits that flipped in the file leave it.
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = 'tasks'",
            (f"{column} TEXT NOT NULL", f"{column} TEXT"),
        )
    with sqlite3.connect(path) as raw:
        raw.execute(f"UPDATE tasks SET {column} = NULL")
    with Database.open(path) as store, pytest.raises(UserError, match=f"damaged.*no {column}"):
        store.listing()


def test_trials_of_a_task_that_has_gone_are_no_fault_of_ours(path: Path) -> None:
    with Database.open(path) as store:
        run_id, task_id = store.begin_run(run_record()), store.task_id(key())
        with sqlite3.connect(path) as raw:
            raw.execute("DELETE FROM tasks")
        with pytest.raises(UserError, match="not there: another process deleted it") as info:
            store.record_trials(run_id, task_id, [trial(1)])
    one_line(info, path)

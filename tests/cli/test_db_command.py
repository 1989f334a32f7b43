"""`tilewright db`: the database listed, moved about and pruned from the command line."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tilewright.cli.main import commands
from tilewright.store import Database, RunRecord, TaskKey, TaskResult
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.variants import BUILT_IN, flags_key
from tilewright.workload import Dim, Workload

DAY_S = 86_400.0
NOW = 1_000 * DAY_S


def matmul(size: int) -> Workload:
    dims = (Dim("m", size), Dim("n", size), Dim("k", size, True))
    return Workload("contraction", dims, ("f32",) * 3, ("", "", ""), "b", flops=2 * size**3)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """Two runs: one 100 days ago by compiler 3.12, tuned; one now by 3.13, the default kept."""
    path = tmp_path / "t.db"
    now = [NOW - 100 * DAY_S]
    chosen = Configuration.of({"tile_m": 8})
    with Database.open(path, clock=lambda: now[0]) as store:
        tiled = flags_key(BUILT_IN["data-tiling"].flags)
        for size, compiler, winner, flags in (
            (64, "3.12.0", chosen, ""),
            (128, "3.13.0", None, tiled),
        ):
            run = store.begin_run(RunRecord("p.mlir", "digest", "cpu/x", compiler))
            task = store.task_id(TaskKey(matmul(size), "cpu/x", compiler, flags), 4e-3)
            store.record_trial(run, task, Trial(chosen, Status.OK, 2e-3, (2e-3,)))
            store.record_trial(run, task, Trial(Configuration.of({"tile_m": 9}), Status.CRASHED))
            tuned_s = 2e-3 if winner else 4e-3
            store.record_result(task, TaskResult(winner, 4e-3, tuned_s, 1.9, 2.1), run)
            store.finish_run(run)
            now[0] = NOW
    return path


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(commands, ["db", *map(str, args)], prog_name="tilewright")


def words(result: Result) -> str:
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def test_list(db: Path) -> None:
    text = words(run("list", "--db", db))
    assert "contraction 64x64x64 f32 default 4.00 2.00 2.00x 2 1" in text
    assert "contraction 128x128x128 f32 data-tiling 4.00 4.00 default kept 2 1" in text
    assert text.index("128x128x128") < text.index("64x64x64"), "the last used first"
    assert f"2 workloads in {db}" in text


def test_list_of_some(db: Path) -> None:
    assert "128x" not in words(run("list", "--db", db, "--workload", "64x64x64"))
    assert "64x64" not in words(run("list", "--db", db, "--compiler", "3.13.0"))
    assert words(run("list", "--db", db, "--target", "elsewhere")) == f"{db}: nothing that fits"


def test_list_as_json(db: Path) -> None:
    result = run("list", "--db", db, "--json")
    newest, oldest = json.loads(result.stdout)
    assert newest["workload"] == "contraction 128x128x128 f32"
    assert newest["result"]["configuration"] is None
    assert oldest["result"]["configuration"] == {"tile_m": 8}
    assert oldest["result"]["speedup"] == 2.0


def test_the_database_may_come_from_the_environment(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DB", str(db))
    assert f"2 workloads in {db}" in words(run("list"))


def test_export_and_import(db: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "all.jsonl", tmp_path / "other.db"
    text = words(run("export", file, "--db", db))
    assert text == f"{file}: 2 runs, 2 tasks, 4 trials, 2 results, 0 measurements"
    text = words(run("import", file, "--db", other))
    assert text == f"{file}: 2 runs, 2 tasks, 4 trials, 2 results, 0 measurements new in {other}"
    text = words(run("import", file, file, "--db", other))
    assert text.count("0 runs, 0 tasks, 0 trials") == 2
    assert words(run("list", "--db", other)).startswith("workload")


def test_export_of_some(db: Path, tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    assert "1 run, 1 task, 2 trials" in words(
        run("export", file, "--db", db, "--workload", "64x64x64")
    )


def test_prune_says_first_what_would_go(db: Path) -> None:
    text = words(run("prune", "--db", db, "--not-compiler", "3.13.0", "--dry-run"))
    assert text == (f"{db}: 1 run, 0 tasks, 2 trials, 0 results, 0 measurements would be deleted")
    assert f"2 workloads in {db}" in words(run("list", "--db", db))
    text = words(run("prune", "--db", db, "--not-compiler", "3.13.0", "--results"))
    assert text == f"{db}: 1 run, 1 task, 2 trials, 1 result, 0 measurements deleted"
    assert f"1 workload in {db}" in words(run("list", "--db", db))


def test_merge(db: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    text = words(run("merge", db, db, "--db", other))
    assert text.startswith(f"{db}: 2 runs, 2 tasks, 4 trials, 2 results, 0 measurements new in")
    assert text.count("0 runs, 0 tasks, 0 trials") == 1


def test_gc_keeps_what_serves(db: Path) -> None:
    with Database.open(db) as store:
        store.finish_run(store.begin_run(RunRecord("p.mlir", "digest", "cpu/x", "3.13.0")))
        store.task_id(TaskKey(matmul(32), "cpu/x", "3.13.0"))
        store.put_machine("nobody's", {"processor": "x"})
    expected = "1 run, 1 task, 0 trials, 0 results, 0 measurements"
    assert words(run("gc", "--db", db, "--dry-run")) == f"{db}: {expected} would be deleted"
    assert words(run("gc", "--db", db)) == f"{db}: {expected} deleted"
    assert "0 runs, 0 tasks" in words(run("gc", "--db", db))
    assert f"2 workloads in {db}" in words(run("list", "--db", db))


def test_verify_names_what_cannot_be_read(db: Path) -> None:
    assert words(run("verify", "--db", db)) == f"{db}: all is well"
    with sqlite3.connect(db) as raw:
        raw.execute("UPDATE trials SET status = 'fine' WHERE id = 1")
        raw.execute("UPDATE tasks SET workload_key = 'other' WHERE id = 2")
        raw.execute("UPDATE trials SET ordinal = 0 WHERE run_id = 2")
    raw.close()
    found = run("verify", "--db", db)
    assert found.exit_code == 3
    assert "trials: row 1 cannot be read" in found.stdout
    assert "tasks: row 2 cannot be read (its digest is not that of its workload)" in found.stdout
    assert "run 2 has number 0 twice" in found.stdout
    assert "3 faults" in found.stdout


def test_explain_compares_every_field(db: Path) -> None:
    found = json.loads(run("explain", "64x64x64", "--db", db, "--json").stdout)
    (one,) = found
    assert "only a hint" in one["verdict"]
    fields = {field["field"]: (field["recorded"], field["now"]) for field in one["compared"]}
    assert fields["compiler version"][0] == "3.12.0"
    assert fields["workload"][0] == fields["workload"][1] == "contraction 64x64x64 f32"
    assert {"stepping", "extensions", "memory gib", "driver", "flags", "threads"} <= fields.keys()
    text = words(run("explain", str(one["task"]), "--db", db))
    assert "! compiler version 3.12.0" in text
    assert "= workload" in text


def test_the_password_of_a_server_is_not_shown(tmp_path: Path) -> None:
    url = "postgresql+psycopg://me:s3cret@127.0.0.1:1/x"
    found = run("list", "--db", url)
    assert found.exit_code == 2
    assert "no connection to the server" in found.stderr
    assert "me@127.0.0.1:1/x" in found.stderr
    assert "s3cret" not in found.output + found.stderr
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["prune"], "say which runs to delete"),
        (["prune", "--older-than", "long"], "--older-than: 'long' is not a duration"),
        (["export", "{tmp}/none/x.jsonl"], "cannot write it"),
        (["import", "{tmp}/none.jsonl"], "cannot read it"),
        (["import", "{tmp}/other.txt"], "line 1"),
        (["import"], "FILE"),
        (["list", "--db", "{tmp}/other.txt"], "other.txt"),
        (["list", "--db", "mysql://me:s3cret@host/x"], "'mysql://' is no kind of database"),
        (["list", "--db", "postgresql://me:s3@cret@host/x"], "write them as %40"),
        (["explain", "nothing"], "'nothing' is no file"),
    ],
)
def test_mistakes(db: Path, tmp_path: Path, args: list[str], told: str) -> None:
    (tmp_path / "other.txt").write_text("something else")
    given = [a.format(tmp=tmp_path) for a in args]
    result = run(*given, *([] if "--db" in given else ["--db", db]))
    assert result.exit_code == 2
    assert told in result.stderr
    assert "cret" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_mistyped_name_makes_no_database(tmp_path: Path) -> None:
    for command in ("list", "export", "prune"):
        extra = {"export": [tmp_path / "x.jsonl"], "prune": ["--older-than", "1d"]}
        assert run(command, *extra.get(command, []), "--db", tmp_path / "no.db").exit_code == 2
    assert os.listdir(tmp_path) == []

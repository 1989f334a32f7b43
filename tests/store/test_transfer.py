"""Export, import and prune."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from store_samples import ODD_VALUES, key, result, run_record, trial

from tilewright.errors import UserError
from tilewright.store import Database, Filter, RowCounts, RunStatus
from tilewright.trial import Configuration, Status, Trial


def fill(store: Database, m: int = 64, **others: str) -> int:
    run_id, task_id = store.begin_run(run_record()), store.task_id(key(m, **others), 0.25)
    odd = Trial(Configuration.of(ODD_VALUES), Status.OK, 0.125, (0.125,), "m", "b", "o", {"c": 1.5})
    store.record_trials(run_id, task_id, [trial(0), odd, trial(1, status=Status.CRASHED)])
    store.record_result(task_id, result(), run_id)
    store.record_measurement(run_id, "variant", "default", {"ms": 3})
    return run_id


def test_an_export_imported_elsewhere_is_the_same_and_adds_nothing_twice(
    store: Database, tmp_path: Path
) -> None:
    first, second = fill(store), fill(store, 128)
    store.finish_run(first)
    out = tmp_path / "x.jsonl"
    everything = RowCounts(runs=2, tasks=2, trials=6, results=2, measurements=2)
    assert store.export(out) == everything
    with Database.open(tmp_path / "other.db") as other:
        other.begin_run(run_record())  # so that the ids differ
        assert other.import_(out) == everything
        assert other.import_(out) == RowCounts()
        copies = other.runs()[1:]
        assert [r.uid for r in copies] == [r.uid for r in store.runs()]
        for ours, theirs in zip((first, second), copies, strict=True):
            assert other.trials(theirs.id) == store.trials(ours)
            assert [m.data for m in other.measurements(theirs.id)] == [{"ms": 3}]
        here, there = store.result_for(key()), other.result_for(key())
        assert here is not None
        assert there is not None
        assert vars(there) | {"run_id": 0} == vars(here) | {"run_id": 0}
        assert other.task(other.task_id(key())).default_s == 0.25
        # An unfinished run came without its checkpoints.
        assert [r.status for r in copies] == [RunStatus.FINISHED, RunStatus.IMPORTED]
        store.finish_run(second)
        assert store.record_trial(second, store.task_id(key(128)), trial(7))
        store.export(out)
        assert other.import_(out) == RowCounts(trials=1)
        assert [r.status for r in other.runs()[1:]] == [RunStatus.FINISHED] * 2
        back = tmp_path / "back.jsonl"
        other.export(back)
        assert store.import_(back) == RowCounts(runs=1)  # only the run that was begun there


def test_the_newer_of_two_results_stays(tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    with Database.open(tmp_path / "old.db", clock=lambda: 10.0) as old:
        fill(old)
        old.export(out)
    for when, expected in ((5.0, 2.0), (20.0, 4.0)):
        with Database.open(tmp_path / f"{when}.db", clock=lambda when=when: when) as store:
            store.record_result(store.task_id(key()), result(4.0))
            assert store.import_(out).results == (when < 10.0)
            found = store.result_for(key())
            assert found is not None
            assert found.speedup == expected


def test_every_line_of_an_export_is_strict_json(store: Database, tmp_path: Path) -> None:
    run_id = fill(store)
    store.record_trial(run_id, store.task_id(key()), trial(9, samples=(float("nan"),)))
    store.export(tmp_path / "x.jsonl")

    def refuse(text: str) -> object:
        raise AssertionError(text)

    lines = (tmp_path / "x.jsonl").read_text().splitlines()
    kinds = [json.loads(line, parse_constant=refuse).get("type") for line in lines]
    assert kinds == [None, "run", "task", *["trial"] * 4, "result", "measurement"]


@pytest.mark.parametrize(
    ("which", "tasks"),
    [
        (Filter(target="cuda"), 1),
        (Filter(compiler="3.13.0"), 2),
        (Filter(workload="256x"), 1),
        (Filter(since=0.0), 3),
        (Filter(since=1e12), 0),
        (Filter(target="none"), 0),
    ],
)
def test_a_filter_exports_what_belongs_together(
    store: Database, tmp_path: Path, which: Filter, tasks: int
) -> None:
    fill(store)
    fill(store, target="cuda", compiler="9")
    fill(store, 256)
    expected = RowCounts(tasks, tasks, 3 * tasks, tasks, tasks)
    assert store.export(tmp_path / "x.jsonl", which) == expected
    with Database.open(tmp_path / "other.db") as other:
        assert other.import_(tmp_path / "x.jsonl") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("{}", "line 1: it is not an export"),
        ("not json", "line 1"),
        ("[1]", "line 1: not an object"),
        ('{"format": "tilewright-db", "version": 3}', "reads versions up to 2"),
        ('HEAD\n{"type": "nonsense"}', "line 2: unknown type 'nonsense'"),
        ('HEAD\n{"type": "run"}', "line 2: 'status' is missing"),
        ('HEAD\n{"type": "trial", "run": "x"', "line 2"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_a_bad_file_is_named_with_its_line(
    store: Database, tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "x.jsonl"
    head = '{"format": "tilewright-db", "version": 1}'
    file.write_bytes(text.replace("HEAD", head).encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=message) as info:
        store.import_(file)
    assert str(file) in str(info.value)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("trial", "configuration", {"x": 1.5}),
        ("trial", "configuration", {"x": [1, "a"]}),
        ("trial", "configuration", None),
        ("trial", "status", "fine"),
        ("trial", "run", "unknown"),
        ("trial", "task", 77),
        ("trial", "samples", 3),
        ("task", "workload", {}),
        ("task", "target", 5),
        ("run", "created", "yesterday"),
        ("run", "status", "odd"),
        ("result", "tuned_s", None),
    ],
)
def test_one_bad_line_imports_nothing(
    store: Database, tmp_path: Path, kind: str, field: str, value: object
) -> None:
    fill(store)
    file = tmp_path / "x.jsonl"
    store.export(file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    bad = max(i for i, line in enumerate(lines) if line.get("type") == kind)
    lines[bad][field] = value
    file.write_text("\n".join(map(json.dumps, lines)))
    with Database.open(tmp_path / "other.db") as other:
        with pytest.raises(UserError, match=f"line {bad + 1}: .*nothing was imported"):
            other.import_(file)
        assert other.runs() == []
        assert other.listing() == []


def test_export_to_a_place_that_cannot_be_written(store: Database, tmp_path: Path) -> None:
    for out in (tmp_path / "none" / "x.jsonl", tmp_path):
        with pytest.raises(UserError, match="cannot write"):
            store.export(out)
    assert sorted(p.name for p in tmp_path.iterdir() if "part" in p.name) == []
    with pytest.raises(UserError, match="cannot read"):
        store.import_(tmp_path / "none.jsonl")


def test_prune(place: Path | str) -> None:
    now = 1000.0
    with Database.open(place, clock=lambda: now) as store:
        old = fill(store)
        store.finish_run(old)
        gone = fill(store, 128, compiler="3.12.0")
        store.finish_run(gone, RunStatus.INTERRUPTED)
        now = 2000.0
        alive, new = fill(store, 256), fill(store, 512)
        store.finish_run(new)
        with pytest.raises(UserError, match="say which"):
            store.prune()
        assert store.prune(older_than_s=5000.0) == RowCounts()
        expected = RowCounts(runs=2, tasks=0, trials=6, results=0, measurements=2)
        assert store.prune(older_than_s=500.0, dry_run=True) == expected
        assert len(store.runs()) == 4
        assert store.prune(older_than_s=500.0) == expected
        assert [r.id for r in store.runs()] == [alive, new]
        kept = store.result_for(key())
        assert kept is not None
        assert kept.run_id is None
        # The run that goes on is never pruned, nor is its result.
        now = 9000.0
        pruned = store.prune(older_than_s=1.0, keep_results=False)
        assert (pruned.runs, pruned.results) == (1, 3)
        assert [r.id for r in store.runs()] == [alive]
        assert store.result_for(key(256)) is not None
        assert store.result_for(key()) is None
        store.finish_run(alive)
        assert store.prune(compiler="3.12.0") == RowCounts(tasks=3)  # left over from before
        assert store.prune(not_compiler="3.13.0", target="cpu") == RowCounts()
        assert store.prune(target="cpu", keep_results=False) == RowCounts(1, 1, 3, 1, 1)
        assert store.listing() == []

"""Generating and compiling: only what changed, nothing lost, no failure another's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from profiled import (
    COMPILE,
    NO_PROGRAM,
    OTHER,
    SQUARE,
    TARGET,
    dispatches,
    make,
    sabotage,
)

from tilewright.errors import UserError
from tilewright.kernels import parse_operation
from tilewright.measure.pool import WorkerPool
from tilewright.profiler import (
    ConfigurationChoice,
    GeneratedFolder,
    GenerateOptions,
    compile_dispatches,
    generate,
    parse_configs,
    parse_configuration,
)
from tilewright.profiler.compiling import CompileSummary, dispatch_key, is_current
from tilewright.profiler.folder import MANIFEST, CompileRecord, Selected
from tilewright.target import parse_target
from tilewright.trial import Status


def compile_all(generated: GeneratedFolder) -> CompileSummary:
    return compile_dispatches(generated, dispatches(generated), COMPILE)


def test_the_folder_of_an_operation(ready: Path) -> None:
    folder = ready / "generated" / "linalg" / "matmul" / SQUARE
    files = {path.name for path in folder.iterdir()}
    dispatch = f"{SQUARE}_tile_config_default"
    assert files == {
        f"{SQUARE}.mlir",
        f"{dispatch}.mlir",
        f"{dispatch}.vmfb",
        "compile.log",
        MANIFEST,
        "reference",
    }
    assert f"== {dispatch}: ok" in (folder / "compile.log").read_text()


def test_only_what_changed_is_compiled(pair: GeneratedFolder, tmp_path: Path) -> None:
    before = [d.vmfb.stat().st_mtime_ns for d in dispatches(pair)]
    assert compile_all(pair) == CompileSummary(kept=2)
    make(tmp_path, SQUARE, OTHER)
    assert compile_all(pair) == CompileSummary(kept=2), "generated again, the same"
    assert [d.vmfb.stat().st_mtime_ns for d in dispatches(pair)] == before
    (folder, _) = pair.operations()
    folder.program.write_text(folder.program.read_text() + "// changed\n")
    assert compile_all(pair) == CompileSummary(compiled=1, kept=1)


def test_all_that_decides_makes_another_compile(pair: GeneratedFolder) -> None:
    dispatch, _ = dispatches(pair)
    dispatch.vmfb.unlink()
    key = dispatch_key(dispatch, COMPILE)
    flags = replace(COMPILE, iree_flags=("--iree-opt-level=O2",))
    processor = replace(COMPILE, target=parse_target("cpu:znver4"))
    assert len({key, dispatch_key(dispatch, flags), dispatch_key(dispatch, processor)}) == 3
    assert dispatch_key(dispatch, replace(COMPILE, jobs=7, timeout_s=1.0)) == key
    dispatch.entry.compiled = CompileRecord(key, Status.OK)
    assert not is_current(dispatch, key), "there is no vmfb"
    dispatch.vmfb.touch()
    assert is_current(dispatch, key)
    assert not is_current(dispatch, "another")


def test_a_failure_is_recorded_and_disturbs_no_other(pair: GeneratedFolder) -> None:
    sabotage(pair, SQUARE, NO_PROGRAM)
    assert compile_dispatches(pair, dispatches(pair), replace(COMPILE, force=True)) == (
        CompileSummary(compiled=2, failed=1)
    )
    bad, good = dispatches(pair)
    assert bad.entry.compiled is not None
    assert bad.entry.compiled.status is Status.COMPILE_ERROR
    assert f"{SQUARE}.mlir:1:17" in bad.entry.compiled.message
    assert bad.entry.compiled.message in bad.folder.log.read_text()
    assert not bad.vmfb.exists(), "that of before is gone"
    assert good.entry.compiled is not None
    assert good.entry.compiled.ok
    assert compile_all(pair) == CompileSummary(kept=2, failed=1), "an error stands"


def test_flags_that_the_compiler_does_not_take_lose_nothing(pair: GeneratedFolder) -> None:
    wrong = replace(COMPILE, iree_flags=("--no-such-flag",))
    with pytest.raises(UserError, match="no-such-flag"):
        compile_dispatches(pair, dispatches(pair), wrong)
    assert compile_all(pair) == CompileSummary(kept=2)


def test_what_does_not_link_says_why_and_keeps_its_program(tmp_path: Path) -> None:
    """IREE needs fmaxf of a C library here, as processors without f16 arithmetic do."""
    generated = make(tmp_path, "softmax_4x8_f16t_f16t")
    plain = ("--iree-llvmcpu-target-cpu=generic",
             "--iree-llvmcpu-target-triple=x86_64-unknown-unknown-eabi-elf")  # fmt: skip
    options = replace(COMPILE, iree_flags=plain)
    assert compile_dispatches(generated, dispatches(generated), options).failed == 1
    (dispatch,) = dispatches(generated)
    assert dispatch.entry.compiled is not None
    assert "undefined symbol: fmaxf" in dispatch.entry.compiled.message
    assert "undefined symbol: fmaxf" in dispatch.folder.log.read_text()
    assert dispatch.configured.is_file()


def test_what_timed_out_is_tried_again(pair: GeneratedFolder) -> None:
    hasty = replace(COMPILE, timeout_s=1e-4, force=True)
    assert compile_dispatches(pair, dispatches(pair)[:1], hasty).failed == 1
    dispatch, _ = dispatches(pair)
    assert dispatch.entry.compiled is not None
    assert dispatch.entry.compiled.status is Status.COMPILE_TIMEOUT
    assert compile_all(pair) == CompileSummary(compiled=1, kept=1)


def test_changed_programs_are_to_be_compiled_again(pair: GeneratedFolder, tmp_path: Path) -> None:
    sabotage(pair, SQUARE, "module {}")
    make(tmp_path, SQUARE)
    changed, other = dispatches(pair)
    assert changed.entry.compiled is None
    assert other.entry.compiled is not None


def test_configurations_come_from_the_search_space(tmp_path: Path) -> None:
    generated = make(tmp_path, SQUARE, configs="sample:3,default")
    (folder,) = generated.operations()
    assert len(folder.dispatches) == 4
    for name, entry in folder.dispatches.items():
        parsed = parse_configuration(name)
        assert (parsed is None) == (entry.tuned is None)
        if parsed is not None and entry.tuned is not None:
            assert entry.tuned.configuration.translation == parsed.translation
            assert parsed.tiling in dict(entry.tuned.configuration.tilings).values()
            assert entry.tuned.knobs
    again = make(tmp_path / "again", SQUARE, configs="sample:3,default")
    assert list(again.operations()[0].dispatches) == list(folder.dispatches), "one seed, one sample"


def test_all_operations_are_configured_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job after the other would leave all workers but one idle."""
    batches: list[list[str]] = []
    run = WorkerPool.run

    def spy(self, jobs, *args, **kwargs):
        given = list(jobs)
        batches.append([job.task.__name__ for job in given])
        return run(self, given, *args, **kwargs)

    monkeypatch.setattr(WorkerPool, "run", spy)
    generated = make(tmp_path, SQUARE, OTHER, configs="sample:1")
    assert [len(folder.dispatches) for folder in generated.operations()] == [1, 1]
    assert batches == [
        ["emit_programs"],
        ["read_user_program"] * 2,
        ["extract_dispatches"] * 2,
        ["configure_dispatch"] * 2,
    ]


def test_the_best_comes_from_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.store import Database, TaskResult
    from tilewright.store.column_values import configuration_from_json

    sampled = make(tmp_path / "a", SQUARE, configs="sample:1")
    ((name, entry),) = sampled.operations()[0].dispatches.items()
    assert entry.tuned is not None
    db = tmp_path / "t.db"
    # The key under which a tuning run would store it is the one that is looked up.
    keys = []
    original = Database.result_for

    def spy(self, key):
        keys.append(key)
        return original(self, key)

    monkeypatch.setattr(Database, "result_for", spy)
    options = GenerateOptions(TARGET, parse_configs("best"), db=db)
    with Database.open(db) as store:
        said = generate(tmp_path / "b", [parse_operation(SQUARE)], options)
        assert "no result" in said.notes[0]
        winner = configuration_from_json(dict(entry.tuned.knobs))
        store.record_result(store.task_id(keys[0]), TaskResult(winner, 2e-3, 1e-3, 1.9, 2.1))
    generate(tmp_path / "c", [parse_operation(SQUARE)], options)
    (folder,) = GeneratedFolder(tmp_path / "c").operations()
    assert list(folder.dispatches) == [name]


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("default", (ConfigurationChoice("default"),)),
        ("sample:7,best", (ConfigurationChoice("sample", 7), ConfigurationChoice("best"))),
        ("all,all", (ConfigurationChoice("all"),)),
    ],
)
def test_choices_of_configurations(text: str, choices: tuple[ConfigurationChoice, ...]) -> None:
    assert parse_configs(text) == choices


@pytest.mark.parametrize(
    "text", ["", "sample", "sample:", "sample:0", "sample:x", "al", "best:2", "sample:99999"]
)
def test_wrong_choices_of_configurations(text: str) -> None:
    with pytest.raises(UserError, match="--configs"):
        parse_configs(text)


def test_too_many_configurations(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--configs all: .* ask for sample:N"):
        make(tmp_path, "matmul_512x512x512_f32t_f32t_f32t", configs="all")


def test_one_process_at_a_time(pair: GeneratedFolder) -> None:
    with pair.locked(), pytest.raises(UserError, match="another tilewright"):
        compile_all(pair)
    compile_all(pair)


def test_without_dispatches(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tilewright profile generate"):
        GeneratedFolder(tmp_path).operations()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"format": 99}', '{"format": 1, "operation": "x", "dispatches": {}}'],
)
def test_damaged_manifests_say_what_to_do(pair: GeneratedFolder, content: str) -> None:
    (folder, _) = pair.operations()
    (folder.path / MANIFEST).write_text(content)
    with pytest.raises(UserError, match="generate it again"):
        pair.operations()


def test_names_too_long_for_a_file_are_cut(pair: GeneratedFolder) -> None:
    (folder, _) = pair.operations()
    long, other = ("tile_config_" + "_".join(["123x" * 40, tail]) for tail in "ab")
    assert len(Selected(folder, long).vmfb.name) < 230
    assert Selected(folder, long).vmfb != Selected(folder, other).vmfb


_COMPILE_SLOWLY = """
import sys
from pathlib import Path
from tilewright.profiler import *
from tilewright.target import parse_target
generated = GeneratedFolder(Path(sys.argv[1]))
chosen = [Selected(f, name) for f in generated.operations() for name in f.dispatches]
options = CompileOptions(parse_target("cpu", 1), jobs=1)
compile_dispatches(generated, chosen, options, lambda *_: print("done", flush=True))
"""


@pytest.mark.slow
def test_a_killed_compile_is_gone_on_with(tmp_path: Path) -> None:
    """Killed after two of several dispatches: these are not compiled again."""
    sizes = (16, 20, 24, 28)
    generated = make(tmp_path, *(f"matmul_{n}x{n}x{n}_f32t_f32t_f32t" for n in sizes))
    command = [sys.executable, "-c", _COMPILE_SLOWLY, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == b"done\n"
        os.kill(process.pid, signal.SIGKILL)
    made = {d.name: d.vmfb.stat().st_mtime_ns for d in dispatches(generated) if d.entry.compiled}
    assert len(made) >= 2
    # What a killed writer leaves behind.
    (generated.operations()[0].path / "half.vmfb.123.part").write_bytes(b"x")
    deadline = time.monotonic() + 30
    while True:
        try:
            summary = compile_all(generated)
            break
        except UserError:
            assert time.monotonic() < deadline, "the lock outlived its process"
            time.sleep(0.05)
    assert summary.kept == len(made)
    assert summary.compiled == len(sizes) - len(made)
    assert made
    assert len(dispatches(generated)) == len(sizes)
    for dispatch in dispatches(generated):
        assert dispatch.vmfb.is_file()
        if dispatch.name in made:
            assert dispatch.vmfb.stat().st_mtime_ns == made[dispatch.name]
    assert not list(tmp_path.rglob("*.part"))
    manifests = list(tmp_path.rglob(MANIFEST))
    assert len(manifests) == len(sizes)
    for manifest in manifests:
        json.loads(manifest.read_text())

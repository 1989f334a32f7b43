"""Modules run once: their functions, inputs, results, and what a program may do to its worker."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tilewright.errors import UserError
from tilewright.modules.module_source import ModuleOptions, read_options
from tilewright.modules.ready_module import OpenModule, open_module
from tilewright.modules.running import (
    Tolerance,
    check_outputs,
    run_module,
    save_outputs,
)

ONE_THREAD = ModuleOptions(threads=1)


@pytest.fixture(scope="module")
def many(modules: Path):
    with open_module(modules / "many.vmfb", ONE_THREAD) as module:
        yield module


@pytest.fixture(scope="module")
def one(modules: Path):
    with open_module(modules / "one.vmfb", ONE_THREAD) as module:
        yield module


@pytest.fixture(scope="module")
def narrow(modules: Path):
    with open_module(modules / "narrow.vmfb", ONE_THREAD) as module:
        yield module


def test_functions_and_their_types_are_read_from_the_module(many: OpenModule) -> None:
    shown = {name: str(f.signature) for name, f in many.functions.items()}
    assert shown == {
        "add": "(4xf32, f32) -> (4xf32)",
        "two": "(i32) -> (i32, 2x2xi32)",
        "constant": "() -> (3xi64)",
        "also": "() -> (2xf32)",
    }
    assert [n for n, f in many.functions.items() if f.takes_nothing] == ["constant", "also"]


def test_inputs_in_ireess_syntax(many: OpenModule) -> None:
    result = run_module(many, "add", ["4xf32=[1 2 3 4]", "f32=-2"])
    assert result.outputs[0].tolist() == [-1, 0, 1, 2]
    result = run_module(many, "two", ["-7"])
    assert int(result.outputs[0]) == -7
    assert result.outputs[0].dtype == np.int32
    assert result.outputs[1].tolist() == [[-7, -7], [-7, -7]]


def test_the_only_function_is_found_and_dynamic_sizes_come_from_the_input(
    one: OpenModule, tmp_path: Path
) -> None:
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save(tmp_path / "data.npy", data)
    for text in (f"@{tmp_path}/data.npy", f"{tmp_path}/data.npy"):
        result = run_module(one, None, [text])
        assert (result.function, result.outputs[0].tolist()) == ("double", (2 * data).tolist())
    # Sizes alone ask for random data.
    assert run_module(one, None, ["5x2xf32"]).outputs[0].shape == (5, 2)


def test_random_data_follows_the_seed(many: OpenModule) -> None:
    a, b, c = (run_module(many, "add", seed=seed).outputs[0] for seed in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert len(np.unique(a)) > 1


@pytest.mark.parametrize(
    ("function", "inputs", "told"),
    [
        (None, [], "has 4 functions; name one with --function (allowed: add, two, constant, also)"),
        ("ad", [], "no public function 'ad'; did you mean 'add'? (allowed: add, two"),
        ("__init", [], "no public function '__init'"),
        ("add", ["4xf32"], "1 given, the program takes 2 (4xf32, f32)"),
        ("add", ["3xf32=1", "f32=1"], "argument 1 of the program is 4xf32"),
        ("add", ["4xf64=1", "f32=1"], "argument 1 of the program is 4xf32"),
        ("add", ["4xf32=1,2", "f32=1"], "2 values (allowed: 1 or 4 values for 4xf32)"),
        ("two", ["4xi32"], "argument 1 of the program is i32"),
        ("two", ["1.5"], "argument 1 is i32"),
        ("constant", ["1"], "1 given, the program takes 0 (none)"),
    ],
)
def test_what_does_not_fit_is_told(
    many: OpenModule, function: str | None, inputs: list[str], told: str
) -> None:
    with pytest.raises(UserError) as error:
        run_module(many, function, inputs)
    assert told in str(error.value)
    # The worker is none the worse for it.
    assert run_module(many, "constant").outputs[0].tolist() == [1, 2, 3]


def test_sizes_that_nobody_gives(one: OpenModule) -> None:
    with pytest.raises(UserError, match=r"no data for \?x2xf32: give the dynamic sizes"):
        run_module(one, None)


# -- results ---------------------------------------------------------------------------------------


def test_results_are_saved_and_compared(many: OpenModule, tmp_path: Path) -> None:
    file = tmp_path / "r.npy"
    result = run_module(many, "two", ["3"])
    save_outputs(result, [file])
    assert run_module(many, "two", ["3"], expected=[str(file)]).ok
    other = run_module(many, "two", ["4"], expected=[str(file)])
    assert [c.ok for c in other.comparisons] == [False, False]
    assert "4 of 4 elements differ" in other.comparisons[1].reason
    a, b = tmp_path / "a.npy", tmp_path / "b.npy"
    save_outputs(result, [a, b])
    assert np.load(b).tolist() == [[3, 3], [3, 3]]
    assert run_module(many, "two", ["3"], expected=["3", f"@{b}"]).ok


def test_types_that_numpy_does_not_know_go_there_and_back(
    narrow: OpenModule, tmp_path: Path
) -> None:
    inputs = ["4xbf16=1,-2,0.5,3", "2xcomplex<f32>=1+2j,3"]
    result = run_module(narrow, None, inputs)
    assert result.outputs[0].dtype == ml_dtypes.bfloat16
    assert result.outputs[1].tolist() == [1 + 2j, 3]
    assert result.outputs[2].tolist() == [True, False, True, True]
    assert result.outputs[3] == np.float32(0.1)
    save_outputs(result, [tmp_path / "r.npy"])
    assert run_module(narrow, None, inputs, expected=[str(tmp_path / "r.npy")]).ok
    told = ["4xbf16=2,-4,1,6", "2xcomplex<f32>=1+2j,3+1j", "4xi1=1,0,1,1", "0.1"]
    compared = run_module(narrow, None, inputs, expected=told)
    assert [c.ok for c in compared.comparisons] == [True, False, True, True]


def test_the_tolerance_is_the_types_or_the_users(many: OpenModule) -> None:
    inputs = ["4xf32=1,2,3,4", "f32=0"]
    near = ["4xf32=1,2,3,4.0001"]
    far = ["4xf32=1,2,3,4.5"]

    def ok(expected: list[str], tolerance: Tolerance | None = None) -> bool:
        return run_module(many, "add", inputs, expected=expected, tolerance=tolerance).ok

    assert ok(near)
    assert not ok(far)
    assert not ok(near, Tolerance())
    assert ok(near, Tolerance(relative=1e-4))
    assert not ok(near, Tolerance(absolute=1e-5))
    assert ok(far, Tolerance(absolute=0.5))
    assert not ok(["4xf32=nan"], Tolerance(absolute=1e9))


def test_nan_and_infinity_are_right_where_they_are_expected(many: OpenModule) -> None:
    inputs = ["4xf32=nan,inf,-inf,1", "f32=0"]
    for tolerance in (None, Tolerance(1.0, 1.0)):
        same = run_module(many, "add", inputs, expected=[inputs[0]], tolerance=tolerance)
        assert same.ok
        other = ["4xf32=nan,-inf,-inf,1"]
        assert not run_module(many, "add", inputs, expected=other, tolerance=tolerance).ok


@pytest.mark.parametrize(
    ("expected", "told"),
    [
        (["2xf32=1"], "shape [3] where [2] is expected"),
        (["3xi64=1,2,4"], "1 of 3 elements differ"),
    ],
)
def test_what_differs_is_said(many: OpenModule, expected: list[str], told: str) -> None:
    result = run_module(many, "constant", expected=expected)
    assert not result.ok
    assert told in result.comparisons[0].reason


def test_expected_results_that_cannot_be_compared(many: OpenModule) -> None:
    with pytest.raises(UserError, match="2 given, 'constant' has 1 results"):
        run_module(many, "constant", expected=["3xi64=1", "3xi64=1"])
    with pytest.raises(UserError, match="it has no values"):
        run_module(many, "constant", expected=["3xi64"])
    with pytest.raises(UserError, match=r"--rtol: -1\.0 is not a number of at least 0"):
        Tolerance(relative=-1.0)


def test_places_that_cannot_be_written(many: OpenModule, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no directory"):
        check_outputs([tmp_path / "none" / "r.npy"])
    with pytest.raises(UserError, match=r"must be a \.npy file"):
        check_outputs([tmp_path / "r.txt"])
    result = run_module(many, "two", ["3"])
    with pytest.raises(UserError, match="3 files for the 2 results of 'two'"):
        save_outputs(result, [tmp_path / f"{i}.npy" for i in range(3)])


# -- modules and programs --------------------------------------------------------------------------


def test_a_crash_is_an_error_and_the_next_call_works(modules: Path) -> None:
    with open_module(modules / "crash.vmfb", ONE_THREAD) as module:
        assert int(run_module(module, None, ["4"]).outputs[0]) == 250
        with pytest.raises(UserError, match="'divide' crashed: the worker died of SIGFPE"):
            run_module(module, None, ["0"])
        assert int(run_module(module, None, ["8"]).outputs[0]) == 125


def test_a_program_that_does_not_end_is_an_error(modules: Path) -> None:
    options = ModuleOptions(threads=1, timeout_s=1.0)
    with open_module(modules / "spin.vmfb", options) as module:
        with pytest.raises(UserError, match=r"'spin' gave no answer within 1 s; .* --timeout"):
            run_module(module, None, ["-1"])
        assert int(run_module(module, None, ["3"]).outputs[0]) == 0


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none.vmfb", "cannot read the module (No such file or directory)"),
        ("text.vmfb", "not a compiled module"),
        ("broken.vmfb", "not a compiled module that this runtime can load"),
        ("", "is a directory"),
    ],
)
def test_files_that_are_no_modules(modules: Path, name: str, told: str) -> None:
    with pytest.raises(UserError) as error, open_module(modules / name, ONE_THREAD):
        pass
    assert told in str(error.value)


def test_a_device_that_there_is_not(modules: Path) -> None:
    options = ModuleOptions(device="no-such-driver")
    with pytest.raises(UserError, match=r"device 'no-such-driver' cannot be opened.*local-task"):  # noqa: SIM117
        with open_module(modules / "many.vmfb", options):
            pass
    with pytest.raises(UserError, match="--device: a program is compiled for this CPU"):  # noqa: SIM117
        with open_module(modules / "many.mlir", ModuleOptions(device="cuda")):
            pass


def test_a_program_is_compiled_first_and_its_indices_stay_in_their_table(modules: Path) -> None:
    with open_module(modules / "gather.mlir", ModuleOptions(threads=1)) as module:
        (result,) = run_module(module, None).outputs
        assert set(result.tolist()) == {1.0, 2.0, 4.0}


def test_weights_come_from_files(modules: Path, tmp_path: Path) -> None:
    import iree.runtime as runtime

    archive = tmp_path / "w.irpa"
    index = runtime.ParameterIndex()
    index.add_buffer("w", np.array([10, 20, 30, 40], np.float32).tobytes())
    index.create_archive_file(str(archive))
    options = read_options({"threads": "1", "parameters": (f"model={archive}",)})
    with open_module(modules / "weights.vmfb", options) as module:
        (result,) = run_module(module, None, ["4xf32=1"]).outputs
        assert result.tolist() == [11, 21, 31, 41]
    with open_module(modules / "weights.vmfb", ONE_THREAD) as module:
        error = pytest.raises(UserError, match="'main' failed")
        with error:
            run_module(module, None, ["4xf32=1"])


def test_nothing_is_left_behind(modules: Path, tmp_path: Path, monkeypatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with open_module(modules / "many.mlir", ONE_THREAD) as module:
        run_module(module, "constant")
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []

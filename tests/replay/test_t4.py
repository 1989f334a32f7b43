"""Trials as T4 results, ours and those of other tools."""

import gzip
import json

import numpy as np
import pytest
from replay_support import foreign, recording, trial

from tilewright.errors import UserError
from tilewright.replay.t4 import read_t4, recording_to_t4, to_t4, violations, write_t4
from tilewright.trial import Configuration, Status, Trial


def result(**changes):
    """A result as Kernel Tuner writes it."""
    return {
        "timestamp": "2026-01-01 00:00:00+00:00",
        "configuration": {"block_size_x": 16, "use_padding": 0},
        "times": {
            "compilation": 661.5,
            "benchmark": 393.9,
            "framework": 53.1,
            "search_algorithm": 0,
            "validation": 0,
            "runtimes": [12.25, 12.5],
        },
        "invalidity": "correct",
        "correctness": 1,
        "measurements": [
            {"name": "GFLOP/s", "value": 615.6, "unit": ""},
            {"name": "time", "value": 12.3, "unit": "ms"},
        ],
        "objectives": ["time"],
        **changes,
    }


def failed(x, invalidity="compile"):
    return result(
        configuration={"block_size_x": x, "use_padding": 1},
        invalidity=invalidity,
        measurements=[{"name": "time", "value": "CompilationFailedConfig", "unit": "ms"}],
        times={"compilation": 5.0, "framework": 1.0},
    )


def saved(folder, *results, **more):
    path = folder / "t4.json"
    path.write_text(json.dumps({"schema_version": "1.0.0", "results": list(results), **more}))
    return path


@pytest.mark.parametrize("made", [recording(noise=0.3), foreign([1.0, None, 3.0, 4.0])])
def test_a_recording_comes_back_whole(made, tmp_path):
    write_t4(tmp_path / "t4.json", recording_to_t4(made))
    data = json.loads((tmp_path / "t4.json").read_text())
    assert not list(violations(data))
    found = read_t4(tmp_path / "t4.json")
    assert found.name == made.name
    assert found.configurations == made.configurations
    assert found.knobs == made.knobs
    assert (found.default, found.subject, found.facts) == (made.default, made.subject, made.facts)
    assert np.array_equal(found.status, made.status)
    assert np.allclose(found.time_s, made.time_s, equal_nan=True)
    assert np.allclose(found.samples, made.samples)
    assert np.array_equal(found.offsets, made.offsets)
    assert np.allclose(found.compile_s, made.compile_s)
    assert len(set(found.program.tolist())) == len(set(made.program.tolist()))


def test_without_our_own_part_the_times_come_back(tmp_path):
    made = recording(noise=0.3)
    data = recording_to_t4(made)
    del data["tilewright"]
    for one in data["results"]:
        del one["tilewright"]
    write_t4(tmp_path / "t4.json", data)
    found = read_t4(tmp_path / "t4.json")
    assert found.subject is None
    assert np.allclose(found.time_s, made.time_s, equal_nan=True)
    # Tuples are lists in JSON; values are the same.
    assert found.configurations == made.configurations


@pytest.mark.parametrize("status", list(Status))
def test_every_status_has_a_word_and_comes_back_as_a_failure_or_not(status, tmp_path):
    config = Configuration.of({"a": 1})
    good = Trial(Configuration.of({"a": 2}), Status.OK, 1e-3)
    one = Trial(config, status, 2e-3 if status is Status.OK else None)
    data = to_t4([(one, "now"), (good, "now")])
    assert not list(violations(data))
    write_t4(tmp_path / "t4.json", data)
    assert read_t4(tmp_path / "t4.json").trial(0).ok == (status is Status.OK)


def test_kernel_tuners_results(tmp_path):
    path = saved(tmp_path, result(), failed(16), failed(32, "runtime"))
    found = read_t4(path, name="convolution")
    assert found.name == "convolution"
    assert [found.trial(i).status for i in range(3)] == [
        Status.OK,
        Status.COMPILE_ERROR,
        Status.RUN_ERROR,
    ]
    first = found.trial(0)
    assert first.time_s == pytest.approx(12.3e-3)
    assert first.samples == pytest.approx((12.25e-3, 12.5e-3))
    assert first.phase_s == pytest.approx({"compile": 0.6615, "measure": 0.3939})
    assert found.kind == "foreign"
    assert found.default is None


def test_measuring_takes_as_long_as_its_samples_where_the_file_does_not_say(tmp_path):
    times = {"compilation": 1000.0, "runtimes": [12.25, 12.75]}
    found = read_t4(saved(tmp_path, result(times=times)))
    assert found.trial(0).phase_s == pytest.approx({"compile": 1.0, "measure": 25e-3})


def test_compressed_files(tmp_path):
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(saved(tmp_path, result()).read_bytes()))
    assert len(read_t4(path)) == 1
    assert read_t4(path).name == "a"


def test_units(tmp_path):
    for unit, scale in (("s", 1.0), ("us", 1e-6), ("ns", 1e-9), ("", 1e-3)):
        measured = [{"name": "time", "value": 4.0, "unit": unit}]
        found = read_t4(saved(tmp_path, result(measurements=measured)))
        assert found.time_s[0] == pytest.approx(4.0 * scale)
        assert found.samples[0] == pytest.approx(12.25 * scale)


def test_another_objective(tmp_path):
    measured = [
        {"name": "time", "value": 1, "unit": "ms"},
        {"name": "t2", "value": 7, "unit": "ms"},
    ]
    path = saved(tmp_path, result(measurements=measured))
    assert read_t4(path, objective="t2").time_s[0] == pytest.approx(7e-3)
    with pytest.raises(UserError, match=r"no measurement t3 \(there are: time, t2"):
        read_t4(path, objective="t3")


def test_the_first_of_equal_configurations_counts(tmp_path):
    slow = result(measurements=[{"name": "time", "value": 99.0, "unit": "ms"}])
    found = read_t4(saved(tmp_path, result(), slow, failed(1)))
    assert len(found) == 2
    assert found.time_s[0] == pytest.approx(12.3e-3)
    assert found.facts["duplicates"] == 1


def test_values_of_all_kinds(tmp_path):
    values = {"a": 2.0, "b": 0.5, "c": True, "d": "x", "e": [1, 2], "f": None}
    found = read_t4(saved(tmp_path, result(configuration=values)))
    assert dict(found.configurations[0].items) == {
        "a": 2,
        "b": "0.5",
        "c": True,
        "d": "x",
        "e": (1, 2),
        "f": "null",
    }


@pytest.mark.parametrize(
    ("results", "told"),
    [
        ([], "no results in it"),
        ([{}], "'configuration' is missing"),
        ([result(times=[])], r"results\[0\].times: an object is needed, not \[\]"),
        ([result(), result(invalidity="slow")], r"results\[1\].invalidity: 'slow' is not one of"),
        ([result(correctness="yes")], "correctness: a number is needed"),
        ([result(correctness=True)], "correctness: a number is needed"),
        ([result(measurements=[3])], r"measurements\[0\]: an object is needed"),
        ([result(configuration=[1])], "configuration: an object"),
        ([result(objectives=["GFLOP/s"], measurements=[
            {"name": "GFLOP/s", "value": 3, "unit": "GFLOP/s"}])], "is in GFLOP/s; only times"),
        ([result(measurements=[])], "no measurement time"),
        ([result(measurements=[{"name": "time", "value": 0, "unit": "ms"}])], "which is no time"),
        ([result(), result(configuration={"x": 1})], "differ in their parameters"),
    ],
)  # fmt: skip
def test_what_is_no_t4_is_one_line(results, told, tmp_path):
    with pytest.raises(UserError, match=told) as error:
        read_t4(saved(tmp_path, *results))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\x1f\x8bnope", b"\xff\xfe", b"null"])
def test_other_files_are_refused(content, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.json: not "):
        read_t4(path)
    with pytest.raises(UserError, match="cannot read"):
        read_t4(tmp_path / "nowhere.json")


def test_versions(tmp_path):
    with pytest.raises(UserError, match="schema_version: 'one' is not of the form"):
        read_t4(saved(tmp_path, result(), schema_version="one"))
    data = recording_to_t4(recording())
    data["tilewright"]["version"] = 99
    write_t4(tmp_path / "new.json", data)
    with pytest.raises(UserError, match="install a newer one"):
        read_t4(tmp_path / "new.json")
    del data["tilewright"]["knobs"]
    data["tilewright"]["version"] = 1
    write_t4(tmp_path / "new.json", data)
    with pytest.raises(UserError, match="its part for tilewright is damaged"):
        read_t4(tmp_path / "new.json")


def test_samples_that_are_no_numbers_do_not_stop_an_export():
    config = Configuration.of({"a": (1, 0)})
    rng = np.random.default_rng(0)
    odd = Trial(config, Status.OK, 1.0, (1.0, float("nan")), phase_s={"compile": float("inf")})
    data = to_t4([(odd, ""), (trial(Configuration.of({"a": (0, 1)}), 1.0, 0.1, rng), "")])
    json.dumps(data, allow_nan=False)
    assert data["results"][0]["configuration"] == {"a": [1, 0]}

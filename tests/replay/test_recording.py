"""Recorded spaces as files: what is read equals what was written, and damage is one line."""

import json

import numpy as np
import pytest
from replay_support import foreign, recording, written

from tilewright.errors import UserError
from tilewright.replay.recording import (
    VERSION,
    Recording,
    knob_values,
    read_recording,
    write_recording,
)
from tilewright.trial import Configuration, Status, Trial


def same(one: Recording, other: Recording) -> bool:
    arrays = ("indices", "status", "time_s", "samples", "offsets", "program")
    return (
        (one.name, one.knobs, one.default, one.subject, one.facts)
        == (other.name, other.knobs, other.default, other.subject, other.facts)
        and all(
            np.array_equal(getattr(one, a), getattr(other, a), equal_nan=a == "time_s")
            for a in arrays
        )
        and np.allclose(one.compile_s, other.compile_s)
        and np.allclose(one.measure_s, other.measure_s)
    )


@pytest.mark.parametrize("made", [recording(noise=0.1), foreign([1.0, 2.0, None, 4.0])])
def test_what_is_read_is_what_was_written(made, tmp_path):
    found = read_recording(written(tmp_path, made))
    assert same(found, made)
    assert found.configurations == made.configurations
    assert found.trial(0).status is made.trial(0).status


def test_a_thousand_configurations_are_small(tmp_path):
    rng = np.random.default_rng(0)
    trials = [
        Trial(Configuration.of({"a": i}), Status.OK, 1e-3, tuple(rng.random(16) + 1e-3))
        for i in range(1000)
    ]
    made = Recording.of("big", knob_values([t.configuration for t in trials]), trials)
    path = written(tmp_path, made)
    assert path.stat().st_size < 300_000
    assert same(read_recording(path), made)


def test_a_trial_that_took_over_a_result_costs_what_was_measured():
    first = Trial(Configuration.of({"a": 1}), Status.OK, 1.0, (1.0,), binary="x",
                  phase_s={"compile": 1.0, "measure": 3.0})  # fmt: skip
    again = Trial(Configuration.of({"a": 2}), Status.OK, 1.0, (1.0,), binary="x",
                  phase_s={"compile": 1.0})  # fmt: skip
    other = Trial(Configuration.of({"a": 3}), Status.CRASHED, phase_s={"compile": 1.0})
    trials = [again, first, other]
    made = Recording.of("r", knob_values([t.configuration for t in trials]), trials)
    assert made.measure_s.tolist() == [3.0, 3.0, 0.0]
    assert made.program[0] == made.program[1] != made.program[2]


def test_every_truncated_file_is_one_line(tmp_path):
    whole = written(tmp_path, recording()).read_bytes()
    path = tmp_path / "cut.npz"
    for length in (0, 1, 10, len(whole) // 3, len(whole) // 2, len(whole) - 40, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"cut\.npz") as told:
            read_recording(path)
        assert "\n" not in str(told.value)


def test_changed_bytes_are_noticed_or_harmless(tmp_path):
    made = recording()
    whole = bytearray(written(tmp_path, made).read_bytes())
    path = tmp_path / "changed.npz"
    rng = np.random.default_rng(0)
    noticed = 0
    for at in rng.integers(len(whole), size=150).tolist():
        changed = whole.copy()
        changed[at] ^= 0x55
        path.write_bytes(changed)
        try:
            assert same(read_recording(path), made)
        except UserError:
            noticed += 1
    assert noticed > 100


def rewritten(path, change):
    """The file with other arrays."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    header = json.loads(arrays["header"].tobytes())
    change(header, arrays)
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    np.savez_compressed(path, **arrays)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda h, a: h.update(version=VERSION + 1), "install a newer one"),
        (lambda h, a: h.update(version="x"), "its version is 'x'"),
        (lambda h, a: h.update(format="other"), "its format is 'other'"),
        (lambda h, a: h.pop("knobs"), "knobs"),
        (lambda h, a: h["statuses"].__setitem__(0, "splendid"), "splendid"),
        (lambda h, a: h["knobs"][0].__setitem__(1, [1]), "has no value number"),
        (lambda h, a: h["subject"]["template"].update(root=7), "root op 7 of 1"),
        (lambda h, a: h["subject"]["target"].pop("cores"), "cores"),
        (lambda h, a: a.pop("status"), "status"),
        (lambda h, a: a["status"].__setitem__(0, 200), "unknown status"),
        (lambda h, a: a["time_s"].__setitem__(0, -1.0), "has no time"),
        (lambda h, a: a["time_s"].__setitem__(0, np.inf), "has no time"),
        (lambda h, a: a["status"].__setitem__(slice(None), 1), "has a time"),
        (lambda h, a: a["samples"].__setitem__(0, np.nan), "no time"),
        (lambda h, a: a["lengths"].__setitem__(0, 3), "samples"),
        (lambda h, a: a.update(time_s=a["time_s"][:-1]), "time_s"),
        (lambda h, a: a.update(indices=a["indices"][:, :-1]), "indices"),
        (lambda h, a: a["indices"].__setitem__(0, a["indices"][1]), "twice"),
        (lambda h, a: a["measure_s"].__setitem__(0, -1), "no possible time"),
    ],
)
def test_what_is_wrong_is_named(change, told, tmp_path):
    path = written(tmp_path, recording())
    rewritten(path, change)
    with pytest.raises(UserError, match=told) as error:
        read_recording(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read_recording(tmp_path / "nowhere.npz")
    with pytest.raises(UserError, match="cannot read"):
        read_recording(tmp_path)
    text = tmp_path / "text.npz"
    text.write_text("hello")
    with pytest.raises(UserError, match="not a recorded space"):
        read_recording(text)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(UserError, match="not a recorded space"):
        read_recording(tmp_path / "one.npy")


def test_more_values_than_a_byte_can_number(tmp_path):
    trials = [Trial(Configuration.of({"a": i}), Status.OK, 1.0) for i in range(400)]
    made = Recording.of("wide", knob_values([t.configuration for t in trials]), trials)
    assert read_recording(written(tmp_path, made)).configurations == made.configurations


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(UserError, match="cannot write"):
        write_recording(tmp_path / "no" / "where.npz", recording())
    assert list(tmp_path.iterdir()) == []


def test_true_and_one_are_different_values():
    configurations = [Configuration.of({"a": True}), Configuration.of({"a": False})]
    made = Recording.of(
        "b", knob_values(configurations), [Trial(c, Status.OK, 1.0) for c in configurations]
    )
    assert [dict(c.items)["a"] for c in made.configurations] == [True, False]
    assert all(type(dict(c.items)["a"]) is bool for c in made.configurations)

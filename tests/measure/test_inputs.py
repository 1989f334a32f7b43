"""Random data, files of every element type, and the syntax of --input."""

import errno
import resource
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tilewright.argument import ELEMENT_TYPES, ArgumentType
from tilewright.errors import UserError
from tilewright.measure.input_syntax import parse_input, resolve_inputs
from tilewright.measure.inputs import (
    Bounds,
    InputFile,
    InputSet,
    ScalarInput,
    random_array,
    random_inputs,
    read_outputs,
    save_array,
    write_inputs,
    write_outputs,
)


def tensor(element_type, *shape):
    return ArgumentType(element_type, shape)


@pytest.mark.parametrize("name", sorted(ELEMENT_TYPES))
def test_random_data_is_reproducible_and_not_degenerate(name):
    kind = tensor(name, 32, 32)
    one, again, other, reseeded = (
        random_array(kind, seed, operand) for seed, operand in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    assert one.dtype == ELEMENT_TYPES[name]
    assert one.shape == (32, 32)
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one, reseeded)
    values = set(one.astype(np.complex128).ravel().tolist())
    assert len(values) >= 2 if name == "i1" else len(values) >= 8
    if ELEMENT_TYPES[name].kind == "i":
        assert one.min() < 0 < one.max()


def test_long_sums_in_half_precision_neither_overflow_nor_vanish():
    a = random_array(tensor("f16", 64, 32768), 0, 0)
    b = random_array(tensor("f16", 32768, 64), 0, 1)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(exact).max() < 1000
    assert np.median(np.abs(exact)) > 1
    assert np.isfinite(np.exp(a.astype(np.float64)).sum(axis=1).astype(np.float16)).all()


def test_indices_stay_within_their_bounds():
    indices = random_array(tensor("i32", 1000), 0, 0, Bounds(0, 5))
    assert set(indices.tolist()) == {0, 1, 2, 3, 4}
    assert random_array(ArgumentType("index", None), 0, 0).min() >= 0
    floats = random_array(tensor("f32", 1000), 0, 0, Bounds(1, 2))
    assert floats.min() >= 1
    assert floats.max() <= 2


def test_dynamic_sizes_need_an_input():
    with pytest.raises(UserError, match=r"\?x4xf32.*--input"):
        random_array(tensor("f32", -1, 4), 0, 0)


@pytest.mark.parametrize("name", sorted(ELEMENT_TYPES))
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4)])
def test_files_keep_every_element_type(tmp_path, name, shape):
    inputs = random_inputs(tmp_path, [tensor(name, *shape)])
    (stored,) = inputs.arguments
    assert isinstance(stored, InputFile)
    loaded = stored.load()
    assert loaded.dtype == ELEMENT_TYPES[name]
    assert np.array_equal(loaded, random_array(tensor(name, *shape), 0, 0))


def test_scalars_and_keys(tmp_path):
    types = [ArgumentType("index", None), ArgumentType("f32", None), tensor("i1", 3)]
    a = write_inputs(
        tmp_path / "a", types, [np.array(7), np.float32(1.5), np.array([True, False, True])]
    )
    assert [x.value for x in a.arguments if isinstance(x, ScalarInput)] == [7, 1.5]
    b = write_inputs(
        tmp_path / "b", types, [np.array(8), np.float32(1.5), np.array([True, False, True])]
    )
    assert a.key != b.key


def test_values_of_the_wrong_type_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"--input 1: the program takes 2x2xf32, 2x3xf32"):
        write_inputs(tmp_path, [tensor("f32", 2, 2)], [np.zeros((2, 3), np.float32)])
    with pytest.raises(UserError, match=r"2x2xf32, 2x2xf64"):
        write_inputs(tmp_path, [tensor("f32", 2, 2)], [np.zeros((2, 2))])


@pytest.mark.parametrize("write", [save_array, lambda path, array: write_outputs(path, [array])])
def test_a_full_disk_is_said_to_be_one(tmp_path, write):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match=r"too large|No space") as raised:
            write(tmp_path / "a.npz", np.ones(1 << 16))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.errno in (errno.ENOSPC, errno.EFBIG)


def test_outputs_round_trip(tmp_path):
    outputs = [
        np.array([1, 2.5], ml_dtypes.bfloat16),
        np.array(3.5, np.float64),
        np.array([[True, False]]),
    ]
    write_outputs(tmp_path / "out.npz", outputs)
    back = read_outputs(tmp_path / "out.npz")
    assert [b.dtype for b in back] == [o.dtype for o in outputs]
    assert all(np.array_equal(b, o) for b, o in zip(back, outputs, strict=True))


def values(text):
    (one,) = parse_input(text)
    return one.values


def test_iree_syntax(tmp_path):
    assert np.array_equal(values("2x3xf32=1"), np.ones((2, 3), np.float32))
    want = np.array([[1, 2], [3, 4]], np.int32)
    for text in ("2x2xi32=1,2,3,4", "2x2xi32=1 2 3 4", "2x2xi32=[[1 2][3 4]]", "2x2xi32=1, 2,3, 4"):
        assert np.array_equal(values(text), want)
        assert values(text).dtype == np.int32
    assert values("f32=1.5").shape == ()
    assert values("2xbf16=1.5,-2").dtype == ml_dtypes.bfloat16
    assert values("2xi1=true,0").tolist() == [True, False]
    assert values("2xcomplex<f32>=1+2j").tolist() == [1 + 2j, 1 + 2j]
    assert values("2xi32=0x10,-3").tolist() == [16, -3]
    assert values("2.5") == 2.5
    (typed,) = parse_input("3x5xf16")
    assert typed.values is None
    assert typed.type == tensor("f16", 3, 5)
    (tmp_path / "raw.bin").write_bytes(want.tobytes())
    assert np.array_equal(values(f"2x2xi32=@{tmp_path}/raw.bin"), want)
    with (tmp_path / "two.npy").open("wb") as file:
        np.save(file, want)
        np.save(file, np.zeros(3))
    assert [g.values.shape for g in parse_input(f"@{tmp_path}/two.npy")] == [(2, 2), (3,)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("3x5xf33=1", "did you mean"),
        ("3x5xf32=1,2", "1 or 15 values"),
        ("3xaxf32=1", "size 'a'"),
        ("-3xf32=1", "size '-3'"),
        ("2xi8=300,1", "i8"),
        ("2xi32=1.5,2", "1.5"),
        ("2xi1=maybe,1", "maybe"),
        ("hello", "neither a number nor a tensor type"),
        ("", "empty"),
        ("foo=1", "no tensor type"),
        ("@missing.npy", "cannot be read"),
        ("2xf32=@missing.bin", "cannot be read"),
        ("2xf32=", "0 values"),
    ],
)
def test_bad_inputs_name_the_option_and_what_is_allowed(text, says):
    with pytest.raises(UserError, match=r"^--input") as error:
        parse_input(text)
    assert says in str(error.value)
    assert "allowed" in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_are_not_what_they_seem(tmp_path):
    (tmp_path / "text.npy").write_text("hello")
    (tmp_path / "empty.npy").write_text("")
    (tmp_path / "short.bin").write_bytes(b"123")
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name in ("text.npy", "empty.npy", "object.npy"):
        with pytest.raises(UserError, match="--input @"):
            parse_input(f"@{tmp_path / name}")
    with pytest.raises(UserError, match="3 bytes"):
        parse_input(f"2xf32=@{tmp_path}/short.bin")


def resolved(texts, types):
    return resolve_inputs([g for t in texts for g in parse_input(t)], types)


def test_inputs_take_the_types_of_the_program():
    types = [tensor("f32", -1, 4), ArgumentType("index", None), ArgumentType("f32", None)]
    data, index, scalar = resolved(["3x4xf32", "7", "2"], types)
    assert data.shape == (3, 4)
    assert data.std() > 0.1
    assert (index.dtype, int(index)) == (np.int64, 7)
    assert (scalar.dtype, float(scalar)) == (np.float32, 2.0)
    (unsigned,) = resolved(["2xi8=1,2"], [tensor("ui8", 2)])
    assert unsigned.dtype == np.uint8
    assert [v.shape for v in resolve_inputs([], [tensor("f32", 2), tensor("f32", 3)])] == [
        (2,),
        (3,),
    ]


@pytest.mark.parametrize(
    ("texts", "types", "says"),
    [
        (["1", "2"], [tensor("f32", 2)], "2 given, the program takes 1"),
        (["3xf32=1"], [tensor("f32", 2)], "2xf32"),
        (["2xf64=1"], [tensor("f32", 2)], "2xf32"),
        (["1"], [tensor("f32", 2)], "is a tensor"),
        (["1.5"], [ArgumentType("i32", None)], "whole number"),
    ],
)
def test_inputs_that_do_not_fit_the_program(texts, types, says):
    with pytest.raises(UserError, match=says):
        resolved(texts, types)


def test_example_files_are_not_touched(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(4, dtype=np.float32))
    before = path.read_bytes()
    (given,) = parse_input(f"@{path}")
    given.values[:] = 0
    assert Path(path).read_bytes() == before


MIB = 1 << 20


@pytest.mark.parametrize(
    ("shape", "beside", "turns"),
    [
        ((512, 512), 8 * MIB, 8),
        ((512, 512), 0, 1),
        ((512, 512), 3 * MIB // 2, 1),
        ((512, 512), 1000 * MIB, 16),
        ((4096, 4096), 1000 * MIB, 2),
        ((64, 64), 8 * MIB, 1),
    ],
    ids=["as many as are read", "not said", "no more", "many", "large ones", "small ones"],
)
def test_constants_take_turns_where_a_program_has_more_of_them(shape, beside, turns):
    kept, given = InputFile("w.npy", tensor("f32", *shape)), InputFile("x.npy", tensor("f32", 8))
    assert InputSet("k", (given, kept), (1,), beside).turns == turns


def test_what_is_no_constant_takes_no_turns():
    given = InputFile("x.npy", tensor("f32", 512, 512))
    assert InputSet("k", (given, given), (), 64 * MIB).turns == 1


def test_nothing_stands_in_for_indices():
    weights, indices = (InputFile("a.npy", tensor(t, 1024, 1024)) for t in ("i8", "i32"))
    assert InputSet("k", (weights,), (0,), 64 * MIB).turns == 16
    assert InputSet("k", (weights, indices), (0, 1), 64 * MIB).turns == 1

"""Which configurations are recorded."""

import pytest
from hand_made import convolution, matmul

from tilewright.errors import UserError
from tilewright.replay.choose import select
from tilewright.space.union import MEMBER_KNOB


def values(selection, knob):
    return {dict(c.items)[knob] for c in selection.members}


@pytest.mark.parametrize("points", [60, 300, 1000])
@pytest.mark.parametrize("make", [lambda: matmul(512, 256, 128), lambda: convolution(56, 64, 64)])
def test_lists_of_our_own_make_about_as_many_as_asked_for(make, points):
    dispatch = make()
    found = select(dispatch, {}, points, seed=0)
    assert points / 2 <= len(found.members) <= points
    assert found.rejected == 0
    assert dispatch.default in found.members
    assert all(dispatch.space.contains(c) for c in found.members)
    assert values(found, MEMBER_KNOB) == {dispatch.own}
    assert sum(len(v) > 1 for v in found.lists.values()) >= 3


def test_the_same_seed_chooses_the_same():
    one, other = (select(matmul(512, 256, 128), {}, 200, 3) for _ in range(2))
    assert (one.lists, one.members) == (other.lists, other.members)


def test_the_users_lists_and_the_compilers_value():
    dispatch = matmul(256, 128, 64)
    found = select(
        dispatch, {"vector_reduction_k": "2, 4", "enable_loop_peeling": "false,true"}, 0, 0
    )
    assert found.lists["vector_reduction_k"] == (1, 2, 4)
    assert len(found.members) == 6 == found.combinations
    assert dispatch.default in found.members
    assert found.notes == ("vector_reduction_k: the compiler's own value 1 is recorded as well",)


def test_invalid_combinations_are_no_members_and_counted():
    found = select(
        matmul(256, 128, 64),
        {"distribution_m": "8,64", "vector_common_parallel_m": "8,16,32"},
        0,
        0,
    )
    assert found.combinations == 6
    assert found.rejected == 2
    assert len(found.members) == 4


def test_another_pipeline():
    dispatch = convolution(28, 32, 32)
    found = select(dispatch, {MEMBER_KNOB: "DoubleTilingExpert", "distribution_oh": "1,2"}, 0, 0)
    assert values(found, MEMBER_KNOB) == {"DoubleTilingExpert", "ConvTileAndDecomposeExpert"}
    assert len(found.members) == 4
    assert dispatch.default in found.members


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"vector_m": "1"}, "unknown knob 'vector_m'; did you mean 'vector_"),
        ({"distribution_m": "0"}, "'0' is not allowed"),
        ({"distribution_m": "9999"}, r"'9999' is not allowed \(allowed: 1 to 256"),
        ({"distribution_m": "a"}, "'a' is not allowed"),
        ({"distribution_m": "8,,16"}, "separated by commas"),
        ({"enable_loop_peeling": "yes"}, "allowed: False, True"),
        ({"interchange": "0"}, "unknown knob 'interchange'"),
        ({"pipeline": "Mmt4d"}, "Mmt4d"),
        (
            {f"{k}_{d}": ",".join(map(str, range(1, 65))) for k in ("distribution",) for d in "mn"}
            | {"vector_reduction_k": ",".join(map(str, range(1, 65)))},
            "at most 100,000",
        ),
    ],
)
def test_a_wrong_list_is_one_line(given, told):
    with pytest.raises(UserError, match=told) as error:
        select(matmul(256, 128, 64), given, 0, 0)
    assert "\n" not in str(error.value)

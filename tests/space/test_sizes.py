"""The domains of tile sizes."""

import pytest

from tilewright.space import sizes

EXTENTS = (2, 3, 5, 8, 16, 17, 49, 64, 196, 1000, 1024, 12544, 1000003)


def ascending(domain):
    """Ascending, with 0 (not tiled) only at the end."""
    tiled = [s for s in domain if s]
    return tiled == sorted(set(tiled)) and 0 not in domain[:-1]


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("default", [0, 1, 7, 64])
@pytest.mark.parametrize("cores", [1, 2, 64])
def test_domains_hold_the_default_and_stay_small(extent, default, cores):
    domains = {
        40: sizes.distribution_sizes(extent, cores, default),
        24: sizes.vector_sizes(extent, 16, default, innermost=True),
        -24: sizes.vector_sizes(extent, 16, default, innermost=False),
        20: sizes.reduction_sizes(extent, 16, default, innermost=True),
        -20: sizes.reduction_sizes(extent, 16, default, innermost=False),
        12: sizes.cache_sizes(extent, default),
    }
    for most, domain in domains.items():
        assert default in domain
        assert ascending(domain)
        # 0 and a default beyond the loop come on top.
        assert len(domain) <= abs(most) + 1
        assert all(s <= extent or s == default for s in domain)


def test_work_can_be_shared_out_evenly_or_not_at_all():
    domain = sizes.distribution_sizes(1000, 3, 8)
    assert {1000, 500, 334, 250} <= set(domain)


def test_small_loops_have_every_size():
    assert sizes.distribution_sizes(7, 2, 4) == tuple(range(1, 8))


def test_the_loop_through_memory_gets_whole_vectors():
    assert {16, 32, 64} <= set(sizes.vector_sizes(1024, 16, 8, innermost=True))
    assert {5, 6, 7} <= set(sizes.vector_sizes(1024, 16, 8, innermost=False))
    assert {16, 32} <= set(sizes.reduction_sizes(1024, 16, 4, innermost=True))


def test_blocking_is_optional_and_splits_the_loop():
    assert sizes.cache_sizes(6, 0) == (0,)
    domain = sizes.cache_sizes(256, 0)
    assert domain[-1] == 0
    assert all(8 <= s < 256 for s in domain[:-1])


def test_divisors():
    assert sizes.divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert sizes.divisors(1) == [1]

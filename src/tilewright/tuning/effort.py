"""How much a run spends: the values of `--effort`."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import UnknownNameError


@dataclass(frozen=True)
class Effort:
    """How much a run may spend; `--max-trials` and `--time-limit` overrule it.

    - `trials_per_dispatch`: candidates for one dispatch on average; those that promise more get
      more of the sum.
    - `max_trials`: candidates in the whole run at most.
    - `min_share`: a dispatch with a smaller share of the program's time is left alone, but for
      the largest where all have less.
    - `variants`: built-in variants to measure; None: all there are.
    - `blocked_layouts`: layouts with blocks of channels for which kernels are tried, the most
      promising blocks first.
    - `tuned_variants`: how many of the fastest variants are tuned further.
    - `finalists`: candidates of a dispatch that are re-measured against the default.
    - `confirm_rounds`: interleaved rounds of that re-measurement, each of every finalist.
    - `company`: finalists of each hot dispatch that are tried in the whole program; of one that
      is most of the program, all.
    - `program_rounds`: interleaved rounds when whole programs are compared.
    """

    name: str
    trials_per_dispatch: int
    max_trials: int
    min_share: float
    variants: tuple[str, ...] | None
    blocked_layouts: int
    tuned_variants: int
    finalists: int
    confirm_rounds: int
    company: int
    program_rounds: int


# A trial takes about 0.2 s on two cores, so quick is a minute or two for a small program; standard
# gives a lone matmul the 64 trials after which random search has found most of what it will find,
# and thorough four times that.
EFFORTS = {
    effort.name: effort
    for effort in (
        Effort(
            name="quick",
            trials_per_dispatch=16,
            max_trials=160,
            min_share=0.03,
            variants=("default", "channels-last", "im2col+data-tiling", "data-tiling", "im2col"),
            blocked_layouts=0,
            tuned_variants=1,
            finalists=3,
            confirm_rounds=13,
            company=1,
            program_rounds=7,
        ),
        Effort(
            name="standard",
            trials_per_dispatch=64,
            max_trials=1500,
            min_share=0.01,
            variants=(
                "default",
                "channels-last",
                "im2col+data-tiling",
                "data-tiling",
                "ukernels",
                "o3",
                "im2col",
                "fuse-padding",
            ),
            blocked_layouts=1,
            tuned_variants=2,
            finalists=5,
            confirm_rounds=21,
            company=2,
            program_rounds=15,
        ),
        Effort(
            name="thorough",
            trials_per_dispatch=256,
            max_trials=10_000,
            min_share=0.003,
            variants=None,
            blocked_layouts=3,
            tuned_variants=3,
            finalists=8,
            confirm_rounds=31,
            company=3,
            program_rounds=25,
        ),
    )
}


def find_effort(name: str) -> Effort:
    """The effort of a name.

    Raises:
        UnknownNameError: there is none of that name.
    """
    if name not in EFFORTS:
        raise UnknownNameError("effort", name, EFFORTS, "--effort")
    return EFFORTS[name]

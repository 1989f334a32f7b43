"""What steps of a run that are to come will take, by what they and others took before.

Steps are noted with the run's deadlines, by the names that are here.
"""

from __future__ import annotations

import math

from tilewright.tuning.context import RunContext

# Steps of which the deadlines know what they take: compiling it, and with a spec with kernels.
PLAIN, WITH_KERNELS = "compiling the program", "compiling the program with kernels"
# Finding which of its kernels follow each other, of compiling the program with kernels while that
# is not known (an Inception-like network 3 s, compiled in 21).
SEQUENCING, _SEQUENCING_SHARE = "putting kernels in sequence", 0.15
COMPARING = "comparing programs"
READING = "reading the dispatches"
# Finding those of the compiler's own variant, which is compiled to the end beside it.
FIRST_FINDING = "finding the dispatches of the untuned program"
# A run of the program as the compiler makes it, of which each comparison takes so many at least.
RUNNING, _RUNS = "running the program by default", 7
# Comparisons of two programs that the last one takes the time of at most.
_LAST = 4
# What summaries, the files of the result and the report take beside what is compiled and compared:
# seconds, and a part of what reading the dispatches took, since it is about each of them (a product
# 3 s, a MobileNetV3 6 s where reading it took 12).
_WRITING_S, _WRITING_SHARE = 2.0, 0.35
# How much longer compiling a program takes with kernels than without, until that is known, beside
# what they add themselves: specs are written and matched (in all 0.9 times for a SwinV2, 1.1 for a
# MaxViT and a ResNet-50, 1.5 for a YOLOv8 with 75 kernels). And what proving it takes, which is
# compiled to where dispatches are configured, with its specs and without: 0.2, 0.4 and 0.4 of
# compiling it.
_KERNELS_FACTOR, _PROOF_FACTOR = 1.3, 0.5
# Of what reading the dispatches takes, which is about each of them: what compiling them takes at
# most as far as kernels leave it. A compiler that takes longer is at code that these take the place
# of: windows of bytes are so (a quantised MobileNetV2 took 20 s, with kernels 12, read in 5; a
# Swin-T takes 26 with kernels, read in 10).
_PLAIN_OF_READING = 2.5
# As well, of what finding the dispatches alone takes, which is a compile to where LLVM begins (a
# ResNet-18 whose windows of bytes are all kernels: 3.7 s, 9 with kernels, 9 to 15 as it is).
EXTRACTING, _PLAIN_OF_EXTRACTING = "finding the dispatches", 2.5
# Of compiling the program: what a compile for judging roundings adds to one with kernels beside it.
_BESIDE = 0.4
# Of the time limit, for one comparison of programs.
_COMPARISON_SHARE = 0.04
_COMPARISON_LEAST_S = 2.0


def comparison_s(context: RunContext) -> float:
    """Seconds that a comparison of programs may take at most, by the time limit.

    Args:
        context: the run.
    """
    limit = context.options.time_limit_s
    return math.inf if limit is None else max(_COMPARISON_LEAST_S, _COMPARISON_SHARE * limit)


def comparing_s(context: RunContext) -> float:
    """What comparing programs takes of the run's time, once.

    Args:
        context: the run.
    """
    deadlines = context.deadlines
    least = min(_COMPARISON_LEAST_S, comparison_s(context))
    return max(deadlines.each(COMPARING, least), _RUNS * deadlines.each(RUNNING, 0.0))


def end_s(context: RunContext, kernels: bool) -> tuple[float, float]:
    """What is to come when the search is over, of compiling and comparing programs.

    Args:
        context: the run; it has compiled the program.
        kernels: whether winners may be kernels of our own.

    Returns:
        Seconds for the winners of one variant in the program, and for the result.
    """
    compile_s = context.deadlines.each(PLAIN, 1.0)
    if kernels:
        compile_s = with_kernels_s(context, _KERNELS_FACTOR * _replaced_s(context))
    compare_s = comparing_s(context)
    # In the last comparison are all that there is, and the compiler's own.
    last_s = min(comparison_s(context), _LAST * compare_s)
    proven_s = 0.0 if kernels and _is_proven_beside(context) else _proof_s(context)
    return compile_s + 2 * compare_s, proven_s + last_s + _writing_s(context)


def _is_proven_beside(context: RunContext) -> bool:
    """Whether what proves a program with kernels is compiled beside it, where it is alone."""
    return context.target.cores > 1 and not context.rounds


def _proof_s(context: RunContext) -> float:
    """What proving a program takes where nothing was compiled for that beside the program."""
    return _PROOF_FACTOR * context.deadlines.each(PLAIN, 1.0)


def later_proof_s(context: RunContext, kernels: bool) -> float:
    """What proving the best of several programs takes beyond what `end_s` says of the end, which
    expects one alone.

    Args:
        context: the run; it has compiled the program.
        kernels: whether they may have kernels of our own.
    """
    return _proof_s(context) if kernels and _is_proven_beside(context) else 0.0


def with_kernels_s(context: RunContext, otherwise: float) -> float:
    """What making a program with kernels takes, those that follow each other in sequence.

    Args:
        context: the run.
        otherwise: seconds that compiling it is expected to take while none has been.
    """
    compile_s = context.deadlines.each(WITH_KERNELS, otherwise)
    return compile_s + context.deadlines.each(SEQUENCING, _SEQUENCING_SHARE * compile_s)


def start_s(context: RunContext, kernels_s: float = 0.0) -> float:
    """What a program with kernels is expected to take at least until it can be handed back.

    Args:
        context: the run; it has compiled the program.
        kernels_s: what its kernels add to compiling it, while no other with kernels has told.

    Returns:
        Seconds for compiling it, comparing it, proving it and writing it down.
    """
    plain_s = _replaced_s(context)
    compile_s = with_kernels_s(context, _KERNELS_FACTOR * plain_s + kernels_s)
    if context.rounds:
        beside = 1.0 if context.target.cores == 1 else _BESIDE
        compile_s += beside * context.deadlines.each(PLAIN, 1.0)
    proven_s = 0.0 if _is_proven_beside(context) else _PROOF_FACTOR * plain_s
    return compile_s + comparing_s(context) + proven_s + _writing_s(context)


def _replaced_s(context: RunContext) -> float:
    """What compiling the program takes without what kernels take the place of."""
    each = context.deadlines.each
    plain_s = each(PLAIN, 1.0)
    reading_s, extracting_s = each(READING, plain_s), each(EXTRACTING, plain_s)
    return min(plain_s, _PLAIN_OF_READING * reading_s, _PLAIN_OF_EXTRACTING * extracting_s)


def _writing_s(context: RunContext) -> float:
    return _WRITING_S + _WRITING_SHARE * context.deadlines.each(READING, 0.0)

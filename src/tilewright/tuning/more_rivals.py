"""Programs that are made at the end beside those that were found, as far as there is time.

They have more kernels, or each kernel as a dispatch of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilewright.tuning.company import Company, build_apart, build_companies
from tilewright.tuning.context import RunContext
from tilewright.tuning.estimates import end_s, with_kernels_s
from tilewright.tuning.programs import Programs

# How much longer a kernel may take alone than the compiler's code does: a product of 12544x16x32
# took 1.24 times as long on operands from memory, and 0.6 times on those that were in a cache.
_NEAR = 1.3


def more_rivals(programs: Programs, rivals: Sequence[Company]) -> list[Company]:
    """Other programs for what may be handed back, as many as there is time for.

    Args:
        programs: of the run: compiles and checks the program.
        rivals: what may be handed back.

    Returns:
        Programs that give the right results.
    """
    made = []
    for make in (with_more_kernels, _apart):
        for company in rivals:
            one = make(programs, company) if _has_time(programs.context) else None
            made += [one] if one is not None else []
    return made


def _has_time(context: RunContext) -> bool:
    """Whether one more program with kernels can be made, compared and proven."""
    left = context.left_for("finish")
    needed_s = with_kernels_s(context, 0.0) + end_s(context, kernels=True)[1]
    return left is None or left >= needed_s


def with_more_kernels(programs: Programs, company: Company) -> Company | None:
    """A program's choices with kernels for dispatches that are left to the compiler, too.

    Where a kernel is almost as fast alone, it can be faster between others: it is a stage of their
    sequence then, and finds in a cache what they wrote, which trials do not.

    Args:
        programs: of the run: compiles and checks the program.
        company: the choices, with a program that compiled.

    Returns:
        The choices with more kernels, and a program that gives the right results; None where there
        are no more, or there is none.
    """
    prepared, more = company.prepared, {}
    taken = {*company.choices, *company.covered}
    # What stands for several dispatches comes first, since it leaves these out.
    for task in sorted(prepared.tasks, key=lambda one: not one.is_chain):
        parts = {one.identity for one in prepared.parts_of(task)} if task.is_chain else set()
        if {task.identity, *parts} & taken:
            continue
        kernels = [t for t in task.trials if t.ok and task.kernel(t.configuration) is not None]
        best = min(kernels, key=lambda t: t.time_s or math.inf, default=None)
        if best is not None and (best.time_s or math.inf) < _NEAR * (task.default_s or 0.0):
            more[task.identity] = best.configuration
            taken |= {task.identity, *parts}
    if not more or company.build.preprocessing is None:
        return None
    stem = f"{company.build.name}_more"
    built = build_companies(programs, prepared, [company.choices | more], stem)
    return replace(built[0], dropped=company.dropped) if built else None


def _apart(programs: Programs, company: Company) -> Company | None:
    """A program's choices with each kernel as a dispatch of its own; None where no kernels are in
    sequence, or it does not give the right results."""
    if company.build.apart is None:
        return None
    build, wrong = build_apart(programs, company.build)
    return None if wrong else replace(company, build=build)

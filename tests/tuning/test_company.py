"""Choices in company: what does not hold up is dropped, and nothing that fails ends the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from played_programs import PlayedRun

from tilewright.measure.comparison import Finalist
from tilewright.measure.statistics import Interval, Measurement, Verdict
from tilewright.site import Site
from tilewright.toolchain import CompileOutcome
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning import confirm
from tilewright.tuning.builds import Build
from tilewright.tuning.company import Company, affordable, build_companies, try_in_company
from tilewright.tuning.confirm import Confirmed, FinalCandidate, entry_name, record_choices
from tilewright.tuning.deadlines import Deadlines
from tilewright.tuning.estimates import PLAIN
from tilewright.tuning.variants import DEFAULT_VARIANT, Variant


@pytest.fixture
def run(tmp_path: Path) -> PlayedRun:
    return PlayedRun(tmp_path, effort="standard")


def confirmed(run: PlayedRun, name: str, *faster: str, share: float = 0.5) -> Confirmed:
    """A task whose candidates, best first, beat the default."""
    task = run.task(name, share=share)
    found = Finalist(Measurement((0.5,)), Interval(0.5, 0.5, 0.5, 0.95), Verdict.FASTER)
    candidates = [
        FinalCandidate(one, task.folder / f"{one}.vmfb", finalist=found) for one in faster
    ]
    return Confirmed(task, candidates, 1.0)


def tried(
    run: PlayedRun,
    *outcomes: Confirmed,
    within_s: float | None = None,
    base: Company | None = None,
) -> Company:
    base = base or Company(run.prepared, run.default)
    return try_in_company(run.programs, outcomes, base, within_s)


def test_how_many_programs_there_is_time_for() -> None:
    assert affordable(None, 10.0) is None
    assert affordable(35.0, 10.0) == 3
    assert affordable(0.0, 10.0) == 1
    assert affordable(35.0, 10.0, 12.0) == 2


def test_compiling_takes_what_it_took_with_nothing_beside(
    run: PlayedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.context.target = replace(run.context.target, cores=2)
    seconds = iter([9.0, 9.0, 4.0, 7.0, 7.0])

    def compiled(*_: object, **__: object) -> CompileOutcome:
        return CompileOutcome(True, next(seconds), "")

    monkeypatch.setattr(run, "compile", compiled)
    a, b = (Build(name, Variant(name, ("--x",))) for name in "ab")
    run.context.deadlines = Deadlines(None, 0.0)
    run.programs.build_all([a, b])
    assert run.context.deadlines.each(PLAIN, 1.0) == 9.0, "as long as there is nothing else"
    run.context.deadlines = Deadlines(None, 0.0)
    run.programs.build_all([a])
    run.programs.build_all([a, b])
    assert run.context.deadlines.each(PLAIN, 1.0) == 4.0


def test_without_winners_the_plain_program_stays(run: PlayedRun) -> None:
    company = tried(run, confirmed(run, "a"))
    assert (company.build, company.choices, company.entries()) == (run.default, {}, ())
    assert run.compiled == ["default.vmfb"]


def test_the_winners_are_taken_where_they_make_the_program_faster(run: PlayedRun) -> None:
    run.seconds["default_company_0"] = 0.5
    company = tried(run, confirmed(run, "a", "x"), confirmed(run, "b", "y"))
    assert company.choices == {"a": "x", "b": "y"}
    assert company.dropped == set()
    assert company.build.spec is not None
    assert company.build.spec.read_text() == " ".join(one.name for one in company.entries())


def test_winners_that_make_the_program_slower_are_dropped(run: PlayedRun) -> None:
    for index in range(3):
        run.seconds[f"default_company_{index}"] = 1.5
    company = tried(run, confirmed(run, "a", "x"), confirmed(run, "b", "y"))
    assert (company.build, company.choices) == (run.default, {})
    assert company.dropped == {"a", "b"}
    assert "do not make the whole program faster" in run.notes


def test_a_runner_up_and_an_omission_that_do_better_are_put_together(run: PlayedRun) -> None:
    # In this order: the winners, `a` with its runner-up, without `a`, `b` without.
    run.seconds |= {
        "default_company_0": 0.9,
        "default_company_1": 0.7,
        "default_company_2": 0.95,
        "default_company_3": 0.8,
        "default_together_0": 0.6,
    }
    company = tried(run, confirmed(run, "a", "x", "z", share=0.6), confirmed(run, "b", "y"))
    assert company.choices == {"a": "z"}
    assert company.dropped == {"b"}
    assert company.build.name == "default_together_0"


@pytest.mark.parametrize(("share", "chosen"), [(0.6, "w"), (0.5, "z")])
def test_of_what_is_most_of_the_program_all_finalists_are_tried_in_it(
    run: PlayedRun, share: float, chosen: str
) -> None:
    """Of other dispatches as many as the effort says: the winner and one more."""
    run.seconds |= {f"default_company_{at}": 0.9 - 0.1 * at for at in range(4)}
    run.seconds["default_company_3"] = 0.6 if share > 0.5 else 1.0
    company = tried(run, confirmed(run, "a", "x", "z", "v", "w", share=share))
    assert company.choices == {"a": chosen}


def test_together_they_must_be_faster_too(run: PlayedRun) -> None:
    run.seconds |= {
        "default_company_0": 0.9,
        "default_company_1": 0.7,
        "default_company_3": 0.8,
        "default_together_0": 0.95,
    }
    company = tried(run, confirmed(run, "a", "x", "z", share=0.6), confirmed(run, "b", "y"))
    assert company.choices == {"a": "x", "b": "y"}


@pytest.mark.parametrize("failing", ["spec", "compile", "results"])
def test_where_no_program_with_the_winners_works_the_default_stays(
    run: PlayedRun, failing: str
) -> None:
    names = [f"default_company_{index}" for index in range(3)]
    if failing == "spec":
        run.specs_fail = dict.fromkeys(names, "it cannot be matched")
    elif failing == "compile":
        run.fails = dict.fromkeys(names, "it hangs")
    else:
        run.wrong = set(names)
    company = tried(run, confirmed(run, "a", "x"), confirmed(run, "b", "y"))
    assert (company.build, company.choices) == (run.default, {})
    assert company.dropped == {"a", "b"}
    reason = {"spec": "it cannot be matched", "compile": "it hangs"}.get(failing, "is wrong")
    assert reason in run.notes
    assert "no program with the winners' spec compiled and ran right" in run.notes


def test_a_program_that_fails_leaves_the_others(run: PlayedRun) -> None:
    run.specs_fail["default_company_0"] = "it cannot be matched"
    run.wrong.add("default_company_1")
    run.seconds["default_company_2"] = 0.5
    company = tried(run, confirmed(run, "a", "x"), confirmed(run, "b", "y"))
    assert company.choices == {"a": "x"}
    assert company.dropped == {"b"}
    assert "default_company_0.vmfb" not in run.compiled


def test_what_cannot_be_compared_is_not_taken(run: PlayedRun) -> None:
    run.seconds["default_company_0"] = 0.5
    run.comparing_fails = "the device is gone"
    company = tried(run, confirmed(run, "a", "x"))
    assert (company.build, company.choices, company.dropped) == (run.default, {}, {"a"})
    assert "the device is gone" in run.notes


def test_only_the_winners_are_tried_where_there_is_no_time(run: PlayedRun) -> None:
    run.seconds["default_company_0"] = 0.5
    run.programs.seconds_each = 10.0
    tried(run, confirmed(run, "a", "x", "z"), confirmed(run, "b", "y"), within_s=1.0)
    assert run.compiled == ["default.vmfb", "default_company_0.vmfb"]


@pytest.mark.parametrize(
    ("within_s", "kernels", "programs"), [(45.0, True, 1), (65.0, True, 3), (35.0, False, 3)]
)
def test_several_programs_are_tried_where_there_is_time_to_prove_the_best(
    run: PlayedRun, within_s: float, kernels: bool, programs: int
) -> None:
    """One with kernels alone is compiled to its proof meanwhile; without, the end has time for
    it."""
    run.context.target = replace(run.context.target, cores=2)
    run.context.deadlines = Deadlines(None, 0.0)
    run.context.deadlines.took(PLAIN, 60.0)
    run.programs.seconds_each = 10.0
    run.seconds |= {f"default_company_{n}": 0.5 for n in range(programs)}
    outcomes = [confirmed(run, "a", "x", "z"), confirmed(run, "b", "y")]
    outcomes[0].task.data = object() if kernels else None
    tried(run, *outcomes, within_s=within_s)
    built = [name for name in run.compiled if name.startswith("default_company")]
    assert len(built) == programs


def chain(run: PlayedRun, name: str, winner: str, *parts: str) -> Confirmed:
    """A site of several dispatches with a kernel that takes their place."""
    outcome = confirmed(run, name, winner, share=0.9)
    site = Site(name, parts, 1, Path(__file__), (), (), None)
    outcome.task.default_s = outcome.task.own_s = 1.5
    outcome.task.is_chain = True
    outcome.task.site = SimpleNamespace(
        site=site,
        pads=False,
        is_one_dispatch=False,
        is_padded_dispatch=False,
        target=run.context.target,
    )
    return outcome


def test_a_kernel_for_several_dispatches_takes_the_place_of_their_winners(run: PlayedRun) -> None:
    # In this order: the kernel alone, then its parts' winners without it.
    run.seconds |= {"default_company_0": 0.5, "default_company_1": 0.7}
    company = tried(run, confirmed(run, "a", "x"), chain(run, "c", "k", "a", "b"))
    assert company.choices == {"c": "k"}
    assert company.covered == {"a": "c"}
    assert company.dropped == set()
    assert [entry.name for entry in company.entries()] == [entry_name(run.prepared.tasks[1])]


def test_its_parts_winners_are_back_where_they_do_better(run: PlayedRun) -> None:
    run.seconds |= {"default_company_0": 0.7, "default_company_1": 0.5}
    company = tried(run, confirmed(run, "a", "x"), chain(run, "c", "k", "a", "b"))
    assert company.choices == {"a": "x"}
    assert (company.covered, company.dropped) == ({}, {"c"})


def started(run: PlayedRun, **choices: str) -> Company:
    """The program that the search went on from, with kernels for tasks of the run."""
    build = run.programs.build(Build("start", DEFAULT_VARIANT, preprocessing=run.context.work))
    for task in run.prepared.tasks:
        if task.identity in choices:
            task.trials.append(Trial(choices[task.identity], Status.OK, time_s=0.7))
    return Company(run.prepared, build, choices)


def test_winners_go_into_the_program_that_the_search_went_on_from(run: PlayedRun) -> None:
    outcomes = [confirmed(run, "a", "x"), confirmed(run, "b")]
    base = started(run, a="k", b="l")
    run.seconds |= {"start": 0.6, "default_company_0": 0.5}
    company = tried(run, *outcomes, base=base)
    # The one change is the winner's; without it the program is the one there was.
    assert (company.choices, company.dropped) == ({"a": "x", "b": "l"}, set())
    assert run.compiled == ["default.vmfb", "start.vmfb", "default_company_0.vmfb"]


def test_the_program_that_the_search_went_on_from_stays_where_it_is_faster(run: PlayedRun) -> None:
    outcomes = [confirmed(run, "a", "x"), confirmed(run, "b", "y")]
    base = started(run, a="k")
    run.seconds |= {"start": 0.4, **{f"default_company_{n}": 0.5 for n in range(3)}}
    company = tried(run, *outcomes, base=base)
    assert (company.build, company.choices) == (base.build, {"a": "k"})
    assert company.dropped == {"b"}
    assert "than default with kernels; it stays" in run.notes


def test_without_anything_new_nothing_is_compiled(run: PlayedRun) -> None:
    outcome = confirmed(run, "a", "k")
    base = started(run, a="k")
    assert tried(run, outcome, base=base) is base
    assert run.compiled == ["default.vmfb", "start.vmfb"]


def test_many_winners_are_left_out_by_halves_where_there_is_little_time(run: PlayedRun) -> None:
    outcomes = [confirmed(run, name, "x") for name in "abcd"]
    # In this order: all four; b and d, without the first half; a and c.
    run.seconds |= {
        "default_company_0": 0.8,
        "default_company_1": 0.9,
        "default_company_2": 0.5,
    }
    run.programs.seconds_each = 10.0
    company = tried(run, *outcomes, within_s=35.0)
    assert company.choices == {"a": "x", "c": "x"}
    assert company.dropped == {"b", "d"}
    assert len(run.compiled) == 4


def test_a_program_that_has_choices_stays_where_there_is_no_time_for_another(
    run: PlayedRun,
) -> None:
    run.programs.seconds_each = 10.0
    run.seconds |= {"default_company_0": 0.5}
    base = started(run, a="k")
    known = list(run.compiled)
    assert tried(run, confirmed(run, "a", "x"), base=base, within_s=5.0) is base
    assert run.compiled == known
    assert tried(run, confirmed(run, "b", "x"), within_s=5.0).choices == {"b": "x"}, "without any"


def in_doubt(run: PlayedRun, low: float) -> Confirmed:
    """A task whose kernel takes 0.5 to 0.6 of the default's time, and a configuration not less than
    the given part."""
    outcome = confirmed(run, "a", "kernel", "tiles")
    outcome.task.kernel = lambda one: one if one == "kernel" else None
    outcome.task.target = run.context.target
    outcome.task.site = SimpleNamespace(
        site=SimpleNamespace(digest="s", module=Path(__file__)), expression=None, digest="s" * 8
    )
    for one, ends in zip(outcome.faster, ((0.5, 0.6), (low, 0.9)), strict=True):
        ratio = Interval(sum(ends) / 2, *ends, 0.95)
        one.finalist = Finalist(Measurement((1.0,)), ratio, Verdict.FASTER)
    return outcome


@pytest.mark.parametrize(("low", "taken"), [(0.55, "tiles"), (0.7, "kernel")])
def test_a_kernel_that_is_not_certainly_faster_has_to_be_in_the_program(
    tmp_path: Path, low: float, taken: str
) -> None:
    # Runners-up of a dispatch are not tried with so little effort.
    run = PlayedRun(tmp_path, effort="quick")
    run.seconds |= {"default_company_0": 0.6, "default_company_1": 0.5}
    assert tried(run, in_doubt(run, low)).choices == {"a": taken}


def started_with_a_kernel(run: PlayedRun, *choices: str) -> list[Company]:
    """Programs of a task that have these choices; `kernel` is one of our own."""
    in_doubt(run, 0.7)
    return build_companies(run.programs, run.prepared, [{"a": one} for one in choices], "start")


def test_kernels_that_follow_each_other_are_compiled_in_sequence_at_once(run: PlayedRun) -> None:
    run.sequences = 1
    (built,) = started_with_a_kernel(run, "kernel")
    assert built.build.name == "default_start_0_in_sequence"
    apart = run.programs.folder / "default_start_0.preprocessing.mlir"
    assert built.build.apart == apart
    assert built.build.preprocessing != apart
    assert "default_start_0.vmfb" not in run.compiled
    assert "default_start_0_in_sequence.vmfb" in run.compiled


def test_without_kernels_in_sequence_the_spec_is_what_it_was(run: PlayedRun) -> None:
    (built,) = started_with_a_kernel(run, "kernel")
    assert built.build.name == "default_start_0"
    assert built.build.apart is None


@pytest.mark.parametrize("how", ["wrong", "not compiled"])
def test_where_a_program_in_sequence_fails_its_kernels_stand_apart(
    run: PlayedRun, how: str
) -> None:
    run.sequences = 1
    name = "default_start_0_in_sequence"
    if how == "wrong":
        run.wrong.add(name)
    else:
        run.fails[f"{name}.vmfb"] = "no"
    (built,) = started_with_a_kernel(run, "kernel")
    assert built.build.name == f"{name}_apart"
    assert built.build.preprocessing == run.programs.folder / "default_start_0.preprocessing.mlir"
    assert "with kernels in sequence was dropped" in run.notes


def test_what_proves_a_program_is_compiled_beside_it_where_it_is_alone(run: PlayedRun) -> None:
    """Where several are compiled there are no idle cores, and most are not handed back."""
    run.context.target = replace(run.context.target, cores=2)
    (built,) = started_with_a_kernel(run, "kernel")
    assert built.build.configured is not None
    assert built.build.configured.name in run.compiled
    several = started_with_a_kernel(run, "kernel", "other")
    assert [one.build.configured for one in several] == [None, None]
    run.context.target = replace(run.context.target, cores=1)
    (built,) = started_with_a_kernel(run, "kernel")
    assert built.build.configured is None


def test_a_program_that_cannot_be_compiled_to_its_proof_is_proven_later(run: PlayedRun) -> None:
    run.context.target = replace(run.context.target, cores=2)
    run.fails["default_start_0.configured.mlir"] = "no"
    (built,) = started_with_a_kernel(run, "kernel")
    assert built.build.configured is None


def test_nor_does_it_stay_where_it_was_only_for_being_there(run: PlayedRun) -> None:
    outcome = in_doubt(run, 0.55)
    run.seconds |= {"start": 0.6, "default_company_0": 0.5}
    assert tried(run, outcome, base=started(run, a="kernel")).choices == {"a": "tiles"}


def test_doubts_wait_where_there_is_no_time(run: PlayedRun) -> None:
    outcome = in_doubt(run, 0.55)
    run.seconds |= {"start": 0.6, "default_company_0": 0.5}
    run.programs.seconds_each = 10.0
    base = started(run, a="kernel")
    known = list(run.compiled)
    assert tried(run, outcome, base=base, within_s=5.0) is base
    assert run.compiled == known


def test_a_guess_stays_until_trials_refute_it(run: PlayedRun) -> None:
    first, second, third = (run.task(name) for name in ("a", "b", "c"))
    guess = Configuration.of({"knob": 1})
    choices = {task.identity: guess for task in (first, second, third)}
    run.prepared.guesses = dict.fromkeys(choices, (guess, 0.001))
    (base,) = build_companies(run.programs, run.prepared, [choices], "start")
    first.default_s = second.default_s = 2e-3
    first.trials.append(Trial(guess, Status.OK, time_s=1.5e-3))
    assert tried(run, base=base) is base
    second.trials.append(Trial(guess, Status.OK, time_s=2.5e-3))
    third.trials.append(Trial(guess, Status.WRONG_RESULT))
    run.seconds["default_company_0"] = 0.5
    assert tried(run, base=base).choices == {first.identity: guess}


def test_a_guess_that_was_not_tried_is_no_result(
    run: PlayedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    guess, other = (Configuration.of({"knob": one}) for one in (1, 2))
    kept: list[Configuration | None] = []
    monkeypatch.setattr(confirm, "_record_result", lambda _, __, one, *___: kept.append(one))
    task = run.task("a", best=None)
    run.prepared.guesses = {task.identity: (guess, 0.1)}
    task.trials.append(Trial(other, Status.OK, time_s=2.0))
    record_choices(run.context, run.prepared, {task.identity: guess}, [])
    assert kept == []
    task.trials.append(Trial(guess, Status.OK, time_s=0.5))
    record_choices(run.context, run.prepared, {task.identity: guess}, [])
    assert kept == [guess]

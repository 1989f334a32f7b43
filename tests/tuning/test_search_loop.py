"""The search loop with stages made up for the purpose: it keeps its promises for any of them."""

import errno

import pytest

from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.search_loop import SearchLoop
from tilewright.tuning.stages import CompiledCandidate, Stages


def config(i):
    return Configuration.of({"tile": i})


class Source:
    """Proposes 0, 1, 2, … up to a limit, or exactly the batches it is given."""

    def __init__(self, limit=100, batches=None):
        self.proposals = iter(range(limit))
        self.batches = batches
        self.asked = []
        self.told = []

    def ask(self, n):
        self.asked.append(n)
        if self.batches is not None:
            return [config(i) for i in (self.batches.pop(0) if self.batches else [])]
        return [config(i) for _, i in zip(range(n), self.proposals, strict=False)]

    def tell(self, trials):
        self.told.append(list(trials))


class World:
    """Compiles and measures, and writes down what happened in which order.

    `compile_fails` and `run_fails` map a tile to a status; `digests` to a program's digest.
    """

    def __init__(self, compile_fails=None, run_fails=None, digests=None):
        self.log = []
        self.compile_fails = compile_fails or {}
        self.run_fails = run_fails or {}
        self.digests = digests or {}

    def compile(self, configurations):
        made = []
        for c in configurations:
            tile = c["tile"]
            self.log.append(("compile", tile))
            status = self.compile_fails.get(tile, Status.OK)
            digest = "" if status is not Status.OK else self.digests.get(tile, f"p{tile}")
            message = "" if status is Status.OK else "no"
            made.append(CompiledCandidate(c, status, f"vmfb{tile}", digest, message, 0.5))
        return made

    def measure(self, compiled, best_s):
        tile = compiled.configuration["tile"]
        self.log.append(("measure", tile))
        status = self.run_fails.get(tile, Status.OK)
        time_s = 100.0 - tile if status is Status.OK else None
        return Trial(compiled.configuration, status, time_s, binary=compiled.digest)

    def record(self, trial):
        self.log.append(("record", trial.configuration["tile"]))

    def discard(self, compiled):
        self.log.append(("discard", compiled.configuration["tile"]))

    def of(self, what):
        return [tile for kind, tile in self.log if kind == what]


def loop(world, source=None, **more):
    stages = Stages(source or Source(), world, world)
    return SearchLoop(stages, world.record, discard=world.discard, **more)


def test_a_batch_is_compiled_together_and_measured_one_after_the_other():
    world, source = World(), Source()
    trials = loop(world, source).batch(2)
    assert world.log == [
        ("compile", 0),
        ("compile", 1),
        ("measure", 0),
        ("discard", 0),
        ("record", 0),
        ("measure", 1),
        ("discard", 1),
        ("record", 1),
    ]
    assert source.told == [trials]


def test_every_trial_is_stored_before_the_next_is_measured():
    world = World()
    loop(world).batch(5)
    order = [(kind, tile) for kind, tile in world.log if kind in ("measure", "record")]
    assert order == [(kind, tile) for tile in range(5) for kind in ("measure", "record")]


def test_failures_are_trials():
    compile_fails = {0: Status.COMPILE_ERROR, 1: Status.COMPILE_TIMEOUT, 2: Status.CRASHED}
    run_fails = {3: Status.RUN_ERROR, 4: Status.RUN_TIMEOUT, 5: Status.CRASHED}
    run_fails[6] = Status.WRONG_RESULT
    world, source = World(compile_fails, run_fails), Source()
    run = loop(world, source)
    trials = run.batch(8)
    assert [t.status for t in trials] == [*compile_fails.values(), *run_fails.values(), Status.OK]
    assert world.of("record") == list(range(8))
    assert world.of("measure") == [3, 4, 5, 6, 7]
    assert trials[0].message == "no"
    assert trials[0].phase_s == {"compile": 0.5}
    assert source.told == [trials]
    assert run.best_s == 93.0


class TestNothingTwice:
    def test_within_a_batch(self):
        world = World()
        loop(world, Source(batches=[[1, 1, 2], [3]])).batch(3)
        assert world.of("compile") == [1, 2, 3]

    def test_between_batches(self):
        world, source = World(), Source(batches=[[1, 2], [2, 3], [4]])
        run = loop(world, source)
        run.batch(2)
        run.batch(2)
        assert world.of("compile") == [1, 2, 3, 4]
        # The source learns again what it seems to have forgotten.
        assert [[t.configuration["tile"] for t in told] for told in source.told] == [
            [1, 2],
            [2],
            [3, 4],
        ]

    def test_after_resuming(self):
        world = World()
        known = [Trial(config(1), Status.OK, 5.0), Trial(config(2), Status.COMPILE_ERROR)]
        run = loop(world, Source(batches=[[1, 2, 3], []]), known=known)
        assert [t.configuration["tile"] for t in run.batch(3)] == [3]
        assert world.of("record") == [3]
        assert len(run.trials) == 3

    def test_a_source_that_only_repeats_itself_is_exhausted(self):
        class Stuck:
            def ask(self, n):
                return [config(1)]

            def tell(self, trials):
                pass

        world = World()
        run = loop(world, Stuck())
        assert len(run.batch(4)) == 1
        assert not run.exhausted
        assert run.batch(4) == []
        assert run.exhausted
        assert world.of("compile") == [1]


class TestEqualPrograms:
    def test_are_measured_once(self):
        world = World(digests={1: "same", 2: "same", 3: "same"})
        run = loop(world)
        trials = run.batch(5)
        assert world.of("measure") == [0, 1, 4]
        assert world.of("record") == [0, 1, 2, 3, 4]
        assert [t.time_s for t in trials[1:4]] == [99.0] * 3
        assert [t.configuration["tile"] for t in trials] == [0, 1, 2, 3, 4]
        assert trials[2].origin == "same program as an earlier trial"

    @pytest.mark.parametrize("status", [Status.WRONG_RESULT, Status.RUN_TIMEOUT, Status.CRASHED])
    def test_fail_alike(self, status):
        world = World(run_fails={0: status}, digests={0: "same", 1: "same"})
        trials = loop(world).batch(2)
        assert [t.status for t in trials] == [status, status]
        assert world.of("measure") == [0]

    def test_of_an_earlier_part_of_the_run(self):
        world = World(digests={5: "same"})
        known = [Trial(config(9), Status.OK, 7.0, binary="same")]
        (trial,) = loop(world, Source(batches=[[5]]), known=known).batch(1)
        assert (trial.time_s, world.of("measure")) == (7.0, [])

    def test_programs_without_a_digest_are_each_their_own(self):
        world = World(digests={0: "", 1: ""})
        loop(world).batch(2)
        assert world.of("measure") == [0, 1]


class TestBest:
    def test_is_the_fastest_right_one_and_is_passed_on(self):
        seen = []

        class Measured(World):
            def measure(self, compiled, best_s):
                seen.append(best_s)
                return super().measure(compiled, best_s)

        world = Measured(run_fails={1: Status.WRONG_RESULT})
        told = []
        run = loop(world, observe=lambda trial, best: told.append(best))
        run.batch(3)
        assert seen == [None, 100.0, 100.0]
        assert told == [100.0, 100.0, 98.0]
        assert run.best_s == 98.0

    def test_includes_what_is_known(self):
        run = loop(World(), known=[Trial(config(50), Status.OK, 1.0)])
        run.batch(2)
        assert run.best_s == 1.0


class TestStopping:
    def test_ends_between_candidates_and_throws_the_rest_away(self):
        world, source = World(), Source()
        run = loop(world, source, stop=lambda: len(world.of("record")) >= 2)
        trials = run.batch(5)
        assert [t.configuration["tile"] for t in trials] == [0, 1]
        assert world.of("measure") == [0, 1]
        assert sorted(world.of("discard")) == [0, 1, 2, 3, 4]
        assert source.told == [trials]
        assert not run.exhausted

    def test_before_the_first_candidate_tells_nothing(self):
        world, source = World(), Source()
        assert loop(world, source, stop=lambda: True).batch(3) == []
        assert source.told == []
        assert world.of("record") == []

    def test_exhausted_when_nothing_more_is_proposed(self):
        run = loop(World(), Source(limit=3))
        assert len(run.batch(2)) == 2
        assert len(run.batch(2)) == 1
        assert not run.exhausted
        assert run.batch(2) == []
        assert run.exhausted


class TestErrors:
    """What is no candidate's fault ends the run, with nothing half-known."""

    def test_a_full_disk(self):
        world, source = World(), Source()

        def record(trial):
            if trial.configuration["tile"] == 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            world.record(trial)

        run = SearchLoop(Stages(source, world, world), record, discard=world.discard)
        with pytest.raises(OSError, match="No space left"):
            run.batch(4)
        assert world.of("measure") == [0, 1]
        assert [t.configuration["tile"] for t in run.trials] == [0]
        assert source.told == []
        assert sorted(world.of("discard")) == [0, 1, 2, 3]

    def test_an_interrupt_while_measuring(self):
        class Interrupted(World):
            def measure(self, compiled, best_s):
                if compiled.configuration["tile"] == 1:
                    raise KeyboardInterrupt
                return super().measure(compiled, best_s)

        world = Interrupted()
        run = loop(world)
        with pytest.raises(KeyboardInterrupt):
            run.batch(3)
        assert world.of("record") == [0]
        assert sorted(world.of("discard")) == [0, 1, 2]


def test_configurations_of_the_callers_own_say_where_they_come_from():
    world, source = World(), Source()
    trials = loop(world, source).try_all([config(7)], origin="another dispatch")
    assert [t.origin for t in trials] == ["another dispatch"]
    assert source.asked == []
    assert source.told == [trials]


def test_seconds_are_told_apart():
    run = loop(World())
    run.batch(2)
    assert set(run.seconds) == {"compile", "measure", "search"}
    assert all(s >= 0 for s in run.seconds.values())

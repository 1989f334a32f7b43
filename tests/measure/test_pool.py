"""A candidate can do nothing to the pool: every fault is a result, and nothing is left behind."""

import importlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import worker_faults as faults

from tilewright.errors import UserError
from tilewright.measure.pool import Job, WorkerFailure, WorkerPool, WorkerStartError

HERE = str(Path(__file__).parent)

LIMIT_S = 20.0


@pytest.fixture
def pool():
    with WorkerPool(1, timeout_s=LIMIT_S, memory_limit=1 << 30) as pool:
        yield pool


def only(pool, task, payload=None, **options):
    (result,) = pool.run([Job(getattr(faults, task), payload, **options)])
    return result


def still_works(pool):
    return [r.value for r in pool.run([Job(faults.echo, i) for i in range(3)])] == [0, 1, 2]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return state != "Z"


def eventually(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_results_stream_in_completion_order_and_return_in_job_order():
    with WorkerPool(2, timeout_s=LIMIT_S) as pool:
        seen = []
        jobs = [Job(faults.echo, i, tag=f"job {i}") for i in range(20)]
        results = pool.run(jobs, seen.append)
        assert [r.value for r in results] == list(range(20))
        assert [r.job.tag for r in results] == [j.tag for j in jobs]
        assert sorted(r.value for r in seen) == list(range(20))


def test_slow_job_does_not_hold_back_the_results_of_others():
    with WorkerPool(2, timeout_s=LIMIT_S) as pool:
        pool.submit(Job(faults.hang, None, timeout_s=0.6), *(Job(faults.echo, i) for i in range(5)))
        order = []
        while pool.pending:
            order += [r.failure.kind if r.failure else r.value for r in pool.poll()]
        assert order == [0, 1, 2, 3, 4, "timeout"]


def test_poll_without_work_and_without_waiting(pool):
    assert pool.poll() == []
    pool.submit(Job(faults.hang, None, timeout_s=5))
    # Who waited for the job would have its timeout.
    assert pool.poll(0) == []
    assert pool.poll(0.1) == []
    assert pool.pending == 1


def test_state_lives_as_long_as_the_worker(pool):
    assert only(pool, "recall").value[0] is None
    only(pool, "remember", "hello")
    greeting, pid = only(pool, "recall").value
    assert greeting == "hello"
    only(pool, "segfault")
    greeting, other = only(pool, "recall").value
    assert greeting is None
    assert other != pid


def test_setup_runs_in_every_new_worker():
    with WorkerPool(1, setup=Job(faults.remember, "warm")) as pool:
        first = pool.run([Job(faults.recall, None)])[0].value
        pool.run([Job(faults.abort, None)])
        second = pool.run([Job(faults.recall, None)])[0].value
        assert first[0] == second[0] == "warm"
        assert first[1] != second[1]


@pytest.mark.parametrize(
    ("task", "signal_name", "text"),
    [
        ("abort", "SIGABRT", "LLVM ERROR: out of registers"),
        ("segfault", "SIGSEGV", "Segmentation fault"),
        ("stack_overflow", "SIGSEGV", ""),
        ("leave", None, "exited with status 7"),
    ],
)
def test_a_crash_is_a_result(pool, task, signal_name, text):
    for _ in range(2):
        result = only(pool, task)
        assert result.failure is not None
        assert result.failure.kind == "crashed"
        assert result.failure.signal == signal_name
        assert text in result.failure.message
        assert "\n" not in result.failure.message
    assert still_works(pool)


def test_the_message_is_of_this_job_only(pool):
    only(pool, "abort")
    failure = only(pool, "leave").failure
    assert "LLVM" not in failure.log


@pytest.mark.parametrize("task", ["hang", "hang_in_native_code"])
def test_a_hang_ends_at_its_deadline(pool, task):
    failure = only(pool, task, timeout_s=0.3).failure
    assert failure.kind == "timeout"
    assert "0.3 s" in failure.message
    assert still_works(pool)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no proc(5)")


@needs_proc
def test_a_limit_on_processor_time_does_not_count_what_others_took(pool):
    # Little of it, that a busy machine has it before the pool gives up waiting.
    used_and_stopped = (0.2, 1.5)
    (kept,) = pool.run([Job(faults.work, used_and_stopped, timeout_s=1.2, processor_time=True)])
    (ended,) = pool.run([Job(faults.work, used_and_stopped, timeout_s=1.2)])
    assert kept.value == "done"
    assert ended.failure.kind == "timeout"


@needs_proc
@pytest.mark.parametrize("task", ["hang", "work_forever"])
def test_a_limit_on_processor_time_ends_a_hang_and_endless_work(pool, task):
    failure = only(pool, task, timeout_s=0.3, processor_time=True).failure
    assert failure.kind == "timeout"
    assert still_works(pool)


def test_a_timeout_ends_what_the_job_started(pool, tmp_path):
    note = tmp_path / "pids"
    assert only(pool, "hang_with_child", str(note), timeout_s=1.0).failure.kind == "timeout"
    worker, child = map(int, note.read_text().split())
    assert eventually(lambda: not alive(worker) and not alive(child))


def test_an_exception_keeps_the_worker(pool):
    before = only(pool, "recall").value[1]
    failure = only(pool, "raise_error").failure
    assert (failure.kind, failure.error_type) == ("error", "ValueError")
    assert failure.message == "the tile does not fit"
    assert "raise_error" in failure.log
    assert only(pool, "recall").value[1] == before


def test_an_error_ends_a_worker_whose_state_may_be_spoilt():
    with WorkerPool(1, setup=Job(faults.be_fragile, None), timeout_s=LIMIT_S) as pool:
        recall = Job(faults.recall, None)
        jobs = [recall, recall, Job(faults.raise_error, None), recall]
        first, second, failed, last = pool.run(jobs)
    assert first.value == second.value
    assert failed.failure.kind == "error"
    assert "tile does not fit" in failed.failure.message
    assert last.value != first.value


def test_a_task_that_the_worker_cannot_find_is_an_error(pool, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def task(state, request):\n    return request\n")
    monkeypatch.syspath_prepend(tmp_path)
    task = importlib.import_module("only_here").task
    (result,) = pool.run([Job(task, None)])
    assert result.failure.error_type == "ModuleNotFoundError"
    (result,) = pool.run([Job(lambda state, request: request, None)])
    assert "cannot be sent to a worker" in result.failure.message
    assert still_works(pool)


def test_one_job_is_asked_for_its_reply(pool):
    assert pool.ask(faults.echo, 3) == 3
    failure = pool.ask(faults.hang, None, 0.3)
    assert isinstance(failure, WorkerFailure)
    assert failure.kind == "timeout"


def test_a_result_without_a_value_says_why(pool):
    with pytest.raises(ValueError, match="the tile does not fit"):
        _ = only(pool, "raise_error").value


def test_output_never_reaches_the_protocol(pool):
    assert only(pool, "garbage_on_stdout", 42).value == 42


def test_the_log_is_bounded():
    with WorkerPool(1, timeout_s=LIMIT_S, log_limit=1 << 20) as pool:
        long, short = pool.run([Job(faults.flood, 1.8), Job(faults.flood, 0.0)])
        written, left = long.value
        assert left < written / 1.5
        assert short.value == (0, 0)


def test_garbage_on_the_channel_is_a_crash(pool):
    failure = only(pool, "garbage_on_the_channel", timeout_s=10).failure
    assert failure.kind == "crashed"
    assert "no frame" in failure.message
    assert still_works(pool)


def test_the_log_is_bounded_where_the_worker_cannot_see_to_it(monkeypatch):
    monkeypatch.setattr("tilewright.measure.pool._LOG_CHECK_S", 0.2)
    with WorkerPool(1, timeout_s=LIMIT_S, log_limit=1 << 16) as pool:
        result = only(pool, "flood_holding_the_lock", 0.8)
        # Between two looks of the pool it is not.
        assert result.value < 3 << 30
        sizes = [os.fstat(worker._log.fileno()).st_size for worker in pool._workers]
        assert eventually(lambda: max(sizes) < result.value or result.value < 1 << 20)
        assert still_works(pool)


def test_an_error_that_cannot_be_read_is_a_crash(pool):
    failure = only(pool, "garbage_as_error", timeout_s=10).failure
    assert failure.kind == "crashed"
    assert "cannot be read" in failure.message
    assert still_works(pool)


def test_a_candidate_that_forks_answers_once(pool):
    for number in range(5):
        assert only(pool, "fork_and_answer", number).value == number
    assert still_works(pool)


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell")
def test_what_a_good_job_leaves_running_takes_nobodys_time(pool):
    left = only(pool, "leave_a_child").value
    assert still_works(pool)
    assert eventually(lambda: not alive(left))


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc")
def test_what_has_left_the_group_ends_with_its_worker(pool, tmp_path):
    note = tmp_path / "pid"
    assert only(pool, "leave_a_daemon", str(note)).failure.kind == "crashed"
    # Killed it is, but the system takes a moment until it has no memory and then no state any more.
    assert eventually(lambda: not alive(int(note.read_text())))
    assert still_works(pool)


def test_what_a_failed_job_leaves_on_disk_goes_with_its_worker(pool):
    first, files = only(pool, "kept_files").value
    assert files == []
    assert only(pool, "fill_the_disk").failure.error_type == "OSError"
    second, files = only(pool, "kept_files").value
    assert (second != first, files) == (True, [])


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("error_of_another_job", "which it was not given"),
        ("remove_the_temporary_folder", "where is it?"),
    ],
)
def test_an_error_whose_worker_has_no_folder_any_more(pool, task, says):
    assert says in only(pool, task, timeout_s=20).failure.message
    assert still_works(pool)


def test_jobs_are_given_the_time_in_which_this_process_was_stopped():
    body = """
        import time, worker_faults as faults
        from tilewright.measure.pool import Job, WorkerPool
        with WorkerPool(1, timeout_s=1.6) as pool:
            pool.run([Job(faults.echo, 1)])
            print("begins", flush=True)
            (result,) = pool.run([Job(faults.work, (0.2, 2.4))])
            print(result.outcome, flush=True)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([HERE, *filter(None, sys.path)])}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(body)],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdout.readline() == "begins\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.4)
    process.send_signal(signal.SIGCONT)
    assert process.stdout.read() == "done\n"
    assert process.wait() == 0


@pytest.mark.parametrize(
    ("task", "text"), [("unpicklable", "cannot be sent back"), ("unreadable", "cannot be read")]
)
def test_results_that_cannot_travel(pool, task, text):
    failure = only(pool, task).failure
    assert failure.kind == "error"
    assert text in failure.message
    assert still_works(pool)


def test_a_payload_that_cannot_travel(pool):
    (bad, good) = pool.run([Job(faults.echo, lambda: None), Job(faults.echo, 1)])
    assert bad.failure.kind == "error"
    assert good.value == 1


def test_memory_explosion_ends_the_worker_not_the_machine(pool):
    before = only(pool, "recall").value[1]
    failure = only(pool, "explode").failure
    assert failure.kind == "crashed"
    assert "memory" in failure.message
    assert only(pool, "recall").value[1] != before


def test_large_payloads_and_results(pool):
    data = os.urandom(1 << 24)
    assert pool.run([Job(faults.echo, data)])[0].value == data


def test_a_late_crash_is_not_blamed_on_the_next_job(pool):
    only(pool, "poison")
    assert only(pool, "late_crash", "innocent").value == "innocent"


def test_many_faults_at_once_with_several_workers():
    tasks = ["abort", "segfault", "leave", "raise_error", "unpicklable", "echo"] * 4
    with WorkerPool(3, timeout_s=LIMIT_S) as pool:
        results = pool.run([Job(getattr(faults, t), "fine") for t in tasks])
        assert [r.failure is None for r in results] == [t == "echo" for t in tasks]
        assert len(pool.process_ids) == 3


def test_close_while_busy_leaves_no_process(tmp_path):
    note = tmp_path / "pids"
    pool = WorkerPool(2, timeout_s=LIMIT_S)
    pool.submit(Job(faults.hang_with_child, str(note)), Job(faults.hang, None), Job(faults.echo, 1))
    # Jobs go to workers that are up, which is noticed in a poll.
    assert eventually(lambda: not pool.poll(0.05) and note.exists() and " " in note.read_text())
    pids = [*pool.process_ids, *map(int, note.read_text().split())]
    pool.close()
    assert eventually(lambda: not any(map(alive, pids)))
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(Job(faults.echo, 1))
    pool.close()


def test_setup_that_fails_is_the_users_to_mend():
    with (
        WorkerPool(1, setup=Job(faults.raise_error, None)) as pool,
        pytest.raises(WorkerStartError, match="the tile does not fit") as error,
    ):
        pool.run([Job(faults.echo, 1)])
    assert isinstance(error.value, UserError)


def test_setup_that_always_crashes_does_not_loop():
    with (
        WorkerPool(2, setup=Job(faults.abort, None)) as pool,
        pytest.raises(WorkerStartError, match="in a row"),
    ):
        pool.run([Job(faults.echo, 1)])


def test_setup_that_crashes_at_first_is_tried_again(tmp_path):
    with WorkerPool(1, setup=Job(faults.crash_once, str(tmp_path / "count"))) as pool:
        assert still_works(pool)


def test_waiting_costs_no_processor_time():
    with WorkerPool(2, timeout_s=LIMIT_S) as pool:
        pool.run([Job(faults.echo, 0), Job(faults.echo, 1)])
        before, started = time.process_time(), time.monotonic()
        pool.run([Job(faults.hang, None, timeout_s=1.0) for _ in range(2)])
        assert time.process_time() - before < 0.5 * (time.monotonic() - started)


@pytest.mark.parametrize("task", ["hang", "hang_in_native_code"])
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_parent(tmp_path, task, ending):
    note = tmp_path / "pids"
    program = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {HERE!r})
        import worker_faults as faults
        from pathlib import Path
        from tilewright.measure.pool import Job, WorkerPool
        pool = WorkerPool(2, timeout_s=60)
        pool.run([Job(faults.echo, 0), Job(faults.echo, 1)])
        pool.submit(Job(faults.{task}, None), Job(faults.{task}, None))
        pool.poll(0.2)
        Path({str(note)!r}).write_text(" ".join(map(str, pool.process_ids)) + " .")
        pool.poll()
        """
    )
    # A killed parent cannot remove its scratch folder: let it have it under the test's own.
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        assert eventually(lambda: note.exists() and note.read_text().endswith("."))
        pids = [int(p) for p in note.read_text().split()[:-1]]
        assert list(map(alive, pids)) == [True, True]
        parent.send_signal(ending)
        parent.wait(10)
        assert eventually(lambda: not any(map(alive, pids)))
    finally:
        parent.kill()
        parent.wait()


def test_the_first_job_of_a_worker_may_take_longer():
    with WorkerPool(1) as pool:
        given = {"processor_time": True, "first_s": 60.0}
        pool.run([Job(faults.echo, 1)])
        # Not the first: ended at its limit, and a new worker comes.
        assert only(pool, "work_forever", None, timeout_s=0.3, **given).failure.kind == "timeout"
        assert only(pool, "work", (0.6, 0.01), timeout_s=0.3, **given).value == "done"

"""The Python API of `tilewright tune`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from tilewright.database_address import ServerAddress
from tilewright.tuning.config_file import ConfigFile
from tilewright.tuning.events import Listener, Note, ignore
from tilewright.tuning.goals import Goal
from tilewright.tuning.options import DEFAULT_OUTPUT
from tilewright.tuning.parse import ParameterFile
from tilewright.tuning.request import make_request
from tilewright.tuning.result import TuneResult
from tilewright.tuning.variants import Variant

Path = str | os.PathLike[str]


def tune(
    program: Path | None,
    *,
    target: str = "cpu",
    effort: str = "standard",
    max_trials: int | None = None,
    time_limit: str | float | None = None,
    strategy: str | None = None,
    strategy_options: Mapping[str, object] | Iterable[str] = (),
    seed: int = 0,
    function: str | None = None,
    stop_at: str | Iterable[str | Goal] = (),
    inputs: Iterable[str] = (),
    parameters: Mapping[str, Path] | Iterable[str | ParameterFile] = (),
    iree_flags: Iterable[str] = (),
    variants: str | Iterable[str | Variant] | None = None,
    kernels: str = "on",
    accuracy: str = "strict",
    only: str | None = None,
    threads: int | None = None,
    config: Path | ConfigFile | None = None,
    iree_bin: Path | None = None,
    db: Path | ServerAddress | None = None,
    resume: bool = False,
    start_spec: Iterable[str] = (),
    keep_start: bool = False,
    library: str | None = None,
    fresh: bool = False,
    keep_candidates: Path | None = None,
    no_verify: bool = False,
    verbose: bool = False,
    output: Path = DEFAULT_OUTPUT,
    runner: str | None = None,
    cluster: str | None = None,
    cluster_certs: str | os.PathLike[str] | None = None,
    device: str | None = None,
    on_event: Listener | None = None,
) -> TuneResult:
    """Find faster code for the hot dispatches of a program, prove it, and write it to `output`.

    program: MLIR (text or bytecode, any input dialect of IREE), an .onnx model or a .pt2 file; None
        when `config`, or a file `auto-scheduler.cfg` in the working directory, names it.
    target: `cpu` (this machine), or such as `cpu:znver4`, `cuda:sm_80`, `rocm:gfx942`.
    effort: `quick`, `standard` or `thorough`.
    max_trials: candidates in the whole run, earlier parts of a resumed run included.
    time_limit: such as `"10m"`, or seconds.
    stop_at: ends the search earlier: `"2x"`, `"90%peak"`, `"no-gain:5m"`, several with commas.
    strategy: how to search; seed: one seed, one order of candidates.
    strategy_options: options of the strategy, `{"plan_size": 64}` or `["plan_size=64"]`.
    function: the entry point (default: the only one).
    inputs: in IREE's syntax, `"3x5xf32=1"` or `"@file.npy"` (default: random data).
    parameters: weights outside the program, `{scope: file}` or `"scope=file"`.
    iree_flags: flags given to every compile.
    variants: whole-program variants to try, `"default,data-tiling,mine=--flag"`.
    kernels: `"on"` for kernels of our own beside the compiler's configurations, `"only"`, `"off"`.
    accuracy: `"relaxed"` lets kernels compute by other algorithms with other rounding (Winograd's
        for convolutions), still within the bound that every result is checked against.
    only: a regular expression; other dispatches are left alone.
    threads: threads that the program may run on (default: all cores); a short program that the
        calling thread runs faster alone is tuned for one.
    config: a configuration file of the system that this project succeeds.
    db: the database, a file or a server's URL (default: `$TILEWRIGHT_DB`, else the user's data
        directory).
    resume: go on with the last unfinished run; fresh: do not reuse earlier results.
    start_spec: specs or result folders to begin with, whoever tuned them; `"iree"`: the compiler's.
    keep_start: take what that result folder has for settled, and search the rest alone.
    library: a folder or URL of specs to begin with; `"own"`: tilewright's.
    keep_candidates: a folder for every candidate's MLIR and compile command.
    iree_bin: IREE's tools, which must be of the installed version (default: the installed ones).
    no_verify: check no results; everything that is written out says so.
    verbose: tell each trial in full (`TrialDone.detail`).
    output: a folder that is new or holds an earlier result.
    runner: where to measure when not on this machine, `dir:PATH`.
    cluster: workers that compile and measure, `tls://HOST:PORT` or `local:N`; cluster_certs: the
        folder with its certificates.
    device: the device there, as IREE's `--device=` takes it (default: the target's).
    on_event: called with every :class:`tilewright.tuning.events.Event`, in this thread.

    The result is what the command prints; nothing that beats the compiler's defaults is a result
    too (`result.improved` is False). Raises UserError for what the caller can mend; then nothing
    is written. To stop a run early, use :class:`tilewright.tuning.session.TuningSession` and its
    `request_stop`; it takes stages of one's own, and with a compile stage alone measures nothing.
    """
    given = dict(locals())  # the arguments: nothing else is local yet
    from tilewright.tuning.session import TuningSession

    listener = on_event or ignore
    del given["program"], given["on_event"]
    given["time_limit_s"] = given.pop("time_limit")
    request = make_request(program, given)
    for text in request.notes:
        listener(Note(text))
    for text in request.warnings:
        listener(Note(text, warning=True))
    result = TuningSession(request.program, request.options, listener).run()
    assert isinstance(result, TuneResult)
    return result

"""`tilewright profile generate`, `compile` and `run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tilewright import words
from tilewright.cli import output as out
from tilewright.cli.tuning_options import tuning_options
from tilewright.database_address import read_database
from tilewright.errors import TilewrightError, UserError
from tilewright.files import check_writable_file
from tilewright.target import Target, parse_target, usable_cores
from tilewright.toolchain import Toolchain, check_versions
from tilewright.tuning.parse import parse_count, parse_duration

if TYPE_CHECKING:
    from tilewright.kernels import SuiteSelection
    from tilewright.measure.device_options import DeviceOptions
    from tilewright.profiler import ProfileOutcome, Selected
    from tilewright.profiler.folder import CompileRecord
    from tilewright.profiler.peaks import Peaks
    from tilewright.profiler.report import Numbers
    from tilewright.profiler.running import RunOptions

F = TypeVar("F", bound=Callable[..., Any])

# Exit status of a sweep in which a kernel computed something wrong, crashed or hung.
FAULTS = 3
# So many dispatches are shown in full; of more there is a table.
_IN_FULL = 4

_PATH = click.Path(path_type=Path)
_DISPATCHES = "Only dispatches with these regular expressions in their name, such as matmul_.*f16t."


def _option(flag: str, metavar: str, help: str, **more: Any) -> Callable[[F], F]:
    return click.option(flag, metavar=metavar, default=None, help=help, **more)


def _check_tools(_context: click.Context, option: click.Parameter, given: str | None) -> None:
    """UserError unless the tools that a user names are of the installed version."""
    if given is not None:
        asker = f"{option.opts[0]} {given}"
        folder = Path(given).expanduser()
        tools = folder / "tools" if option.name == "build_dir" else folder
        Toolchain(tools, asker).check_same(asker)


def _which(function: F) -> F:
    """The options that all three commands share: where the dispatches are, and which."""
    from tilewright.kernels.kinds import KINDS
    from tilewright.kernels.shapes import dimension_options

    for name, (_, about) in reversed(dimension_options().items()):
        function = _option(f"--problem-{name}", "SIZES", f"{about[:1].upper()}{about[1:]}.")(
            function
        )
    function = _option("--split-k-slices", "SIZES", "Products (matmul, batch_matmul) in so many"
                       " slices along k; 1: in one piece.")(function)  # fmt: skip
    function = _option("--split-k-mode", "MODE", "How products are split along k: parallel (slices,"
                       " then their sum), none.")(function)  # fmt: skip
    function = _option("--iree-bin", "DIR", "IREE's tools, which must be of the installed version:"
                       " candidates are compiled with that.", expose_value=False,
                       callback=_check_tools)(function)  # fmt: skip
    function = _option("--build-dir", "DIR", "The same, of a build of IREE: they are in DIR/tools.",
                       expose_value=False, callback=_check_tools)(function)  # fmt: skip
    which = f"Only these kinds, separated by commas: {', '.join(KINDS)}."
    function = _option("--kind", "LIST", which)(function)
    return click.option(
        "--generated-dir",
        "directory",
        metavar="DIR",
        type=_PATH,
        default=Path(),
        help="The folder that `generated` is in (default: this one).",
    )(function)


def _selection(given: dict[str, Any], **more: str | None) -> SuiteSelection:
    """The selection of the shared options; takes them out of `given`."""
    from tilewright.kernels.shapes import dimension_options
    from tilewright.kernels.suite import make_selection, split_kinds

    option = "--split-k-slices"
    kinds, slices = split_kinds(
        given.pop("kind"), given.pop("split_k_mode"), given.pop("split_k_slices"), option
    )
    sizes: dict[str, tuple[tuple[str, ...], str]] = {}
    if slices is not None:
        sizes[option] = (("slices",), slices)
    for name, (dimensions, _) in dimension_options().items():
        text = given.pop(f"problem_{name}")
        if text is not None:
            sizes[f"--problem-{name}"] = (dimensions, text)
    return make_selection(kinds, sizes, **more)


@click.command(name="generate")
@_which
@_option("--types", "LIST", "Element types, such as f32,i8,f16-f32 (default: all of each kind).")
@_option("--layouts", "LIST", "Layouts by a letter for each operand, t row-major and n transposed,"
         " such as tt,nt; or all (default: row-major).")  # fmt: skip
@_option("--variants", "LIST", "Variants of kinds, such as nhwc_hwcf, sum or mul_add_relu.")
@_option(
    "--shapes", "FILE", "Shapes from a JSON file, in place of the predefined ones.", type=_PATH
)
@_option("--configs", "LIST", "Configurations: default, sample:N (at random), all, best (from the"
         " database), names such as tile_config_128x128_32x5_tensorcore_mmasync, files of them,"
         " classic (the first profiler's for tensor cores), or several of these (default: default,"
         " and on GPUs classic).")  # fmt: skip
@_option("--jobs", "N", "Workers (default: one for each core).")
@_option("--seed", "N", "One seed, one sample of configurations (default: 0).")
@tuning_options("target", "threads", "iree_flags", "db")
def generate(directory: Path, **given: Any) -> None:
    """Write programs and configurations of dispatches under DIR/generated.

    SIZES are numbers: 768, a list 64,128, or start:end:step such as 64:1024:128, the end included
    where the steps reach it. They take the place of that dimension in the predefined shapes (or
    those of --shapes). Kinds that do not have a dimension, layout, type or variant that is asked
    for are left out, unless --kind names them.

    What is there already stays.
    """
    from tilewright.kernels.shapes import read_shapes
    from tilewright.kernels.suite import make_suite
    from tilewright.profiler.configurations import parse_configs
    from tilewright.profiler.generating import GenerateOptions
    from tilewright.profiler.generating import generate as run

    forms = {name: given.pop(name) for name in ("types", "layouts", "variants")}
    selection = _selection(given, **forms)
    target = _target(given)
    usual = "default,classic" if target.is_gpu else "default"
    options = GenerateOptions(
        target,
        parse_configs(given["configs"] or usual),
        given["iree_flags"],
        _jobs(given["jobs"]),
        _count(given["seed"], "--seed", 0),
        read_database(given["db"]) if given["db"] else None,
    )
    shapes = read_shapes(given["shapes"]) if given["shapes"] else None
    suite = make_suite(selection, shapes)
    check_versions()
    done = run(directory, suite.operations, options, click.echo)
    for note in (*suite.notes, *done.notes):
        click.echo(f"note: {note}", err=True)
    click.echo(
        f"{words.plural(done.operations, 'operation')} ({done.written:,} written), "
        f"{words.plural(done.dispatches, 'dispatch', 'dispatches')} ({done.new:,} new)"
    )


@click.command(name="compile")
@_which
@click.option("--dispatches", "--dispatch", "dispatches", metavar="LIST", help=_DISPATCHES)
@_option("--jobs", "N", "Dispatches compiled at a time (default: one for each core).")
@_option("--timeout", "DURATION", "Time for one dispatch (default: 60s).")
@click.option("--force", is_flag=True, help="Compile what has not changed, too.")
@tuning_options("target", "iree_flags")
def compile_(directory: Path, **given: Any) -> None:
    """Compile the generated dispatches that changed since they were compiled.

    What decides: the program, the configuration, the flags, the compiler's version, and for the
    host its processor. A dispatch that does not compile is recorded in its operation's manifest and
    compile.log, and disturbs no other.
    """
    from tilewright.profiler.compiling import CompileOptions, compile_dispatches
    from tilewright.profiler.folder import GeneratedFolder

    generated = GeneratedFolder(directory)
    selected = _selected(generated, given)
    timeout_s = parse_duration(given["timeout"], "--timeout") if given["timeout"] else 60.0
    options = CompileOptions(
        _target(given, selected),
        given["iree_flags"],
        _jobs(given["jobs"]),
        timeout_s,
        given["force"],
    )
    check_versions()
    done = 0

    def say(dispatch: Selected, compiled: CompileRecord) -> None:
        nonlocal done
        done += 1
        reason = f": {compiled.message}" if compiled.message else ""
        click.echo(f"[{done}] {dispatch.name}: {compiled.status}{reason}")

    summary = compile_dispatches(generated, selected, options, say)
    click.echo(
        f"{words.plural(len(selected), 'dispatch', 'dispatches')}: {summary.compiled:,} compiled, "
        f"{summary.kept:,} up to date, {summary.failed:,} failed"
    )


@click.command(name="run")
@_which
@click.option("--dispatches", "--dispatch", "dispatches", metavar="LIST", help=_DISPATCHES)
@click.option("--verify/--no-verify", default=True, help="Compare results with NumPy's.")
@click.option("--profile/--no-profile", default=True, help="Measure run times.")
@click.option("--verification-enabled", metavar="true|false", type=bool, default=None,
              help="The same as --verify or --no-verify.")  # fmt: skip
@click.option("--profiling-enabled", metavar="true|false", type=bool, default=None,
              help="The same as --profile or --no-profile.")  # fmt: skip
@_option("--repetitions", "N", "Samples of each time (default: until the median is steady).")
@_option("--output", "FILE", "Write a CSV file.", type=_PATH)
@click.option("--append", is_flag=True, help="Add to the CSV file.")
@_option("--tags", "LIST", "Columns for the CSV file, as key:value,key:value.")
@click.option("--dry-run", is_flag=True, help="Print each dispatch's commands; run nothing.")
@_option("--save-commands", "FILE", "Write a script that compiles, runs and times the dispatches"
         " with IREE's own tools.", type=_PATH)  # fmt: skip
@_option("--jobs", "N", "Workers that compute references (default: one for each core).")
@_option("--timeout", "DURATION", "Time for running one dispatch (default: 2m).")
@_option("--seed", "N", "One seed, one set of input data (default: 0).")
@click.option("--device", metavar="URI", help="The runtime's device for dispatches for a GPU, such"
              " as cuda://1 (default: the first).")  # fmt: skip
@tuning_options("target", "threads")
def run(directory: Path, **given: Any) -> int:
    """Verify and time compiled dispatches.

    Results are compared with NumPy's in higher precision, on random data that differs between
    operands: integers must be equal, floats within what rounding allows. A wrong result is reported
    with its worst element, and is not timed; the sweep goes on.

    Exit status 3: some dispatch had a wrong result, crashed or hung.
    """
    from tilewright.profiler.commands import dispatch_commands, save_commands
    from tilewright.profiler.folder import GeneratedFolder
    from tilewright.profiler.report import parse_tags
    from tilewright.profiler.running import check_compiled, make_inputs

    tags = parse_tags(given["tags"]) if given["tags"] else {}
    _check_output(given)
    for option in ("output", "save_commands"):
        if given[option] is not None:
            check_writable_file(given[option], f"--{option.replace('_', '-')}")
    selected = _selected(GeneratedFolder(directory), given)
    target = _target(given, selected)
    options = _run_options(given, target)
    device = options.device
    check_versions()
    if given["dry_run"]:
        for dispatch in selected:
            for line in dispatch_commands(dispatch, device, target.flags):
                click.echo(line)
        status = 0
    else:
        check_compiled(selected)
        status = _run(selected, options, target, given["output"], tags, given["append"])
    if given["save_commands"] is not None:
        make_inputs(selected, options)
        save_commands(given["save_commands"], selected, device, target.flags)
        click.echo(f"{given['save_commands']}: the commands", err=True)
    return status


def _check_output(given: dict[str, Any]) -> None:
    """Raises UserError for options of the CSV file where there is none."""

    for option in ("append", "tags"):
        if given[option] and given["output"] is None:
            raise UserError(f"--{option}: is for a CSV file; name it with --output FILE")


def _run(
    selected: list[Selected],
    options: RunOptions,
    target: Target,
    path: Path | None,
    tags: dict[str, str],
    append: bool,
) -> int:
    from contextlib import ExitStack

    from tilewright.profiler.peaks import vector_instructions
    from tilewright.profiler.report import ProfileCsv, block_lines, csv_row, numbers
    from tilewright.profiler.running import run_dispatches

    instructions = "" if target.is_gpu else vector_instructions(target)
    done: list[tuple[ProfileOutcome, Numbers | None]] = []
    with ExitStack() as stack:
        report = stack.enter_context(ProfileCsv(path, tags, append)) if path is not None else None
        peaks = _peaks(options)
        try:
            for outcome in run_dispatches(selected, options):
                found = numbers(outcome, peaks)
                done.append((outcome, found))
                if report is not None:
                    report.add(csv_row(outcome, found, instructions))
                if len(selected) <= _IN_FULL:
                    for line in block_lines(outcome, found):
                        click.echo(line)
                else:
                    click.echo(_progress(outcome, len(done), len(selected)), err=True)
        finally:
            # After a Ctrl-C, too: what was done is done.
            if done and len(selected) > _IN_FULL:
                _print_table(done)
            if done:
                _print_summary([outcome for outcome, _ in done])
    if path is not None:
        click.echo(f"{path}: {words.plural(len(done), 'row')}")
    return FAULTS if any(outcome.is_fault for outcome, _ in done) else 0


def _peaks(options: RunOptions) -> Peaks | None:
    """The machine's peaks; None where they are not needed or cannot be measured."""
    from tilewright.measure.peak import cached_peak
    from tilewright.profiler.peaks import Peaks

    if not options.profile or options.gpu is not None:
        return None
    if cached_peak(options.threads) is None:
        click.echo("note: the machine's peak is measured first, once", err=True)
    try:
        return Peaks(options.threads)
    except TilewrightError as error:
        click.echo(f"note: {error}", err=True)
        return None


def _progress(outcome: ProfileOutcome, done: int, total: int) -> str:
    from tilewright.profiler.report import verification

    measured = outcome.measurement
    time = f", {words.milliseconds(measured.median_s)} ms" if measured is not None else ""
    reason = f": {outcome.message}" if outcome.message else ""
    return f"[{done}/{total}] {outcome.dispatch.name}: {verification(outcome)}{time}{reason}"


def _print_table(done: list[tuple[ProfileOutcome, Numbers | None]]) -> None:
    from tilewright.profiler.report import outcomes_table

    out.print_table(outcomes_table(done))
    for outcome, _ in done:
        if outcome.message:
            click.echo(f"{outcome.dispatch.name}: {outcome.message}")


def _print_summary(outcomes: list[ProfileOutcome]) -> None:
    from tilewright.profiler.running import Verification

    counts = dict.fromkeys(Verification, 0)
    for outcome in outcomes:
        counts[outcome.verification] += 1
    shown = ", ".join(f"{number:,} {word}" for word, number in counts.items() if number)
    click.echo(f"{words.plural(len(outcomes), 'dispatch', 'dispatches')}: {shown}")


def _selected(generated: Any, given: dict[str, Any]) -> list[Selected]:
    from tilewright.profiler.selecting import select

    selected, notes = select(generated, _selection(given), given["dispatches"])
    for note in notes:
        click.echo(f"note: {note}", err=True)
    return selected


def _run_options(given: dict[str, Any], target: Target) -> RunOptions:
    from tilewright.profiler.running import RunOptions

    repetitions = given["repetitions"]
    return RunOptions(
        threads=target.cores,
        verify=_switch(given["verify"], given["verification_enabled"]),
        profile=_switch(given["profile"], given["profiling_enabled"]),
        repetitions=None if repetitions is None else _count(repetitions, "--repetitions"),
        jobs=_jobs(given["jobs"]),
        seed=_count(given["seed"], "--seed", 0),
        timeout_s=parse_duration(given["timeout"], "--timeout") if given["timeout"] else 120.0,
        gpu=_gpu_device(given["device"], target),
    )


def _gpu_device(uri: str | None, target: Target) -> DeviceOptions | None:
    """What dispatches for a GPU run on; None for the CPU."""
    from tilewright.measure.device_options import DeviceOptions

    if not target.is_gpu:
        if uri is not None:
            raise UserError(f"--device: '{uri}' is for GPUs; the dispatches are for {target.name}")
        return None
    return DeviceOptions(uri or target.device, advice="; such dispatches can be compiled here only")


def _switch(plain: bool, spelled: bool | None) -> bool:
    """A switch that may have been written with its value."""
    return plain if spelled is None else spelled


def _target(given: dict[str, Any], selected: Sequence[Selected] = ()) -> Target:
    """The target that is named, else that for which the dispatches were generated."""
    threads = given.get("threads")
    count = None if threads is None else _count(threads, "--threads")
    own = dict.fromkeys(dispatch.folder.target for dispatch in selected)
    target = parse_target(given["target"] or next(iter(own), "cpu"), count)
    for name in own:
        if name != target.name and (target.is_gpu or parse_target(name).is_gpu):
            raise UserError(
                f"--target: the dispatches were generated for {', '.join(own)}, which "
                f"{target.name} is not; choose among them with --kind and --dispatches, or "
                "generate others"
            )
    return target


def _jobs(text: str | None) -> int:

    return usable_cores() if text is None else _count(text, "--jobs")


def _count(text: str | None, option: str, least: int = 1) -> int:
    """A number of at least `least`; `least` itself when the option was not given."""

    return least if text is None else parse_count(text, option, least)

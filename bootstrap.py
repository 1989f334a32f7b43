"""Runs a command of this checkout in a virtual environment of its own, made when first needed.

    python3 bootstrap.py tilewright tune examples/bottleneck.mlir --effort quick
    python3 bootstrap.py --dev python -m pytest -n 2

Needs nothing but Python 3.11 or newer with its standard library. The environment is `.venv` beside
this file: tilewright in editable mode with what it depends on, and with --dev the tools for working
on it. It is brought up to date when pyproject.toml has changed; else a second run starts at once
and needs no network. Variables of the caller that begin with PYTHON do not reach it.

Written for any Python 3, so that an old one can look for a newer one or say plainly what is wrong.
"""

import hashlib
import os
import subprocess
import sys

OLDEST = (3, 11)
NEWER = ("python3.13", "python3.12", "python3.11", "python3.14")
ROOT = os.path.dirname(os.path.abspath(__file__))
VENV = os.path.join(ROOT, ".venv")
STAMP = os.path.join(VENV, "tilewright-bootstrap")
WINDOWS = os.name == "nt"
SCRIPTS = os.path.join(VENV, "Scripts" if WINDOWS else "bin")
PYTHON = os.path.join(SCRIPTS, "python.exe" if WINDOWS else "python")
# They would send what pip installs somewhere else.
PIP_VARIABLES = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")


def main(arguments):
    dev = arguments[:1] == ["--dev"]
    command = arguments[1:] if dev else arguments
    if not command or command[0].startswith("-"):
        stop("usage: python3 bootstrap.py [--dev] COMMAND [ARGUMENT...]")
    if sys.version_info[:2] < OLDEST:
        hand_over(arguments)
    environment = clean_environment()
    if not up_to_date(dev, environment):
        install(dev, environment)
    program = find_program(command[0])
    if WINDOWS:
        sys.exit(subprocess.call([program, *command[1:]], env=environment))
    sys.stdout.flush()
    os.execve(program, [program, *command[1:]], environment)


def stop(message):
    sys.exit("bootstrap: " + message)


def hand_over(arguments):
    """Go on with a newer Python, if this machine has one."""
    for name in NEWER:
        check = f"import sys; sys.exit(sys.version_info[:2] < {OLDEST!r})"
        try:
            if subprocess.call([name, "-c", check], stderr=subprocess.DEVNULL) == 0:
                sys.exit(subprocess.call([name, os.path.abspath(__file__), *arguments]))
        except OSError:
            continue
    have, need = (".".join(map(str, v)) for v in (sys.version_info[:2], OLDEST))
    stop(
        "Python {} or newer is needed; this is {} ({}), and none of {} is on the PATH".format(
            need, have, sys.executable, ", ".join(NEWER)
        )
    )


def clean_environment():
    """The caller's variables without those that change what Python or pip do, .venv first."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON") and name not in PIP_VARIABLES
    }
    kept["VIRTUAL_ENV"] = VENV
    kept["PATH"] = os.pathsep.join([SCRIPTS, kept.get("PATH", os.defpath)])
    return kept


def stamp(dev):
    """What decides whether the environment is up to date: where it is, and what it must hold."""
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    return f"{ROOT}\n{digest}\n{'dev' if dev else 'run'}\n"


def read_stamp():
    try:
        with open(STAMP) as file:
            return file.read()
    except OSError:
        return ""


def up_to_date(dev, environment):
    # An environment for development has all that is needed to run.
    return read_stamp() in (stamp(dev), stamp(True)) and works(environment)


def works(environment):
    """Whether .venv has a Python with pip that starts and is new enough."""
    check = f"import sys; import pip; sys.exit(sys.version_info[:2] < {OLDEST!r})"
    try:
        return (
            subprocess.call([PYTHON, "-c", check], env=environment, stderr=subprocess.DEVNULL) == 0
        )
    except OSError:
        return False


def install(dev, environment):
    say("installing into .venv (once; a few hundred megabytes with IREE)")
    # The scripts of an environment hold its path: one that was moved is made anew.
    moved = read_stamp().partition("\n")[0] not in ("", ROOT)
    if moved or not works(environment):
        make_environment(environment)
    package = f"{ROOT}[dev]" if dev else ROOT
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.call([*pip, "--editable", package], env=environment) != 0:
        stop("pip could not install tilewright; its message is above")
    with open(STAMP, "w") as file:
        file.write(stamp(dev))


def make_environment(environment):
    free = not os.path.lexists(VENV) or (os.path.isdir(VENV) and not os.listdir(VENV))
    if not free and not os.path.isfile(os.path.join(VENV, "pyvenv.cfg")):
        stop(f"{VENV} is in the way: it is no virtual environment; move it away")
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        stop(
            f"{sys.executable} comes without ensurepip, which virtual environments need; "
            "install it (Debian and Ubuntu: apt install python3-venv)"
        )
    made = subprocess.call([sys.executable, "-m", "venv", "--clear", VENV], env=environment)
    if made != 0:
        stop(f"{sys.executable} cannot make the virtual environment {VENV}")


def find_program(name):
    for suffix in (".exe", "") if WINDOWS else ("",):
        program = os.path.join(SCRIPTS, name + suffix)
        if os.path.isfile(program):
            return program
    stop(f"there is no command '{name}' in {SCRIPTS}")


def say(message):
    sys.stderr.write("bootstrap: " + message + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main(sys.argv[1:])

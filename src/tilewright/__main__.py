"""`python -m tilewright`, and the console script."""

import sys


def main() -> None:
    """Run a command. `measure` is found without the libraries that the others need: the machine
    with the device may have nothing but the runtime and NumPy."""
    if sys.argv[1:2] == ["measure"]:
        from tilewright.measure.station import main as measure

        sys.exit(measure(sys.argv[2:]))
    from tilewright.cli.main import main as commands

    commands()


if __name__ == "__main__":
    main()

"""Groups of commands that are imported when they are used: starting must not load NumPy."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from tilewright.errors import UnknownNameError


class CommandPlace(NamedTuple):
    """Where a command is, and its line in the overview."""

    module: str
    attribute: str
    summary: str


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used, listed in the order of `places`."""

    def __init__(self, *args: Any, places: Mapping[str, CommandPlace], **more: Any) -> None:
        super().__init__(*args, **more)
        self.places = dict(places)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of their places.

        Args:
            ctx: click's context.
        """
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command.

        Args:
            ctx: click's context.
            cmd_name: its name.
        """
        place = self.places.get(cmd_name)
        if place is None:
            return None
        command: click.Command = getattr(importlib.import_module(place.module), place.attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does.

        Args:
            ctx: click's context.
            args: the name and what follows.

        Raises:
            UnknownNameError: there is no such command.
        """
        if args and not args[0].startswith("-") and args[0] not in self.places:
            raise UnknownNameError("command", args[0], self.places)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview, without importing the commands.

        Args:
            ctx: click's context.
            formatter: click's.
        """
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.summary) for name, place in self.places.items()])

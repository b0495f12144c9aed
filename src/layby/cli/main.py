"""The `layby` command. Each command lives in a module of its own and is only listed here.

Exit codes are the same everywhere: 0 it worked, 1 it ran and the answer is no, 2 it could not
run, 130 it was interrupted. What can be expected to go wrong is one line on stderr.
"""

from typing import Any

import click

import layby
from layby.cli.demo import demo
from layby.cli.doctor import doctor
from layby.cli.serve import serve
from layby.errors import LaybyError

HELP = """Durable Python tasks that hold no slot while they wait.

\b
New here? Try:
  layby demo             see it work, in a few seconds
  layby doctor FILE      check that a layby file is sound
"""
EPILOG = """
\b
Exit codes:
  0    it worked
  1    it ran, and the answer is no (doctor: a violation was found)
  2    it could not run: wrong usage, or a file that cannot be used
  130  interrupted
"""


class Commands(click.Group):
    """Shows expected failures as one line, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LaybyError as error:
            click.echo(f"layby: {error}", err=True)
            ctx.exit(2)
        except KeyboardInterrupt:
            click.echo("layby: interrupted", err=True)
            ctx.exit(130)


@click.group(
    cls=Commands,
    help=HELP,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(layby.__version__, prog_name="layby")
def cli() -> None:
    """The group; what it says about itself is HELP."""


cli.add_command(demo)
cli.add_command(doctor)
cli.add_command(serve)


def main() -> None:
    cli(prog_name="layby")

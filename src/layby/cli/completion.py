"""`layby completion`: the script by which a shell completes `layby` commands and options."""

import click
from click.shell_completion import get_completion_class

from layby.errors import UsageError

INSTALL = {
    "bash": '~/.bashrc:                        eval "$(layby completion bash)"',
    "zsh": '~/.zshrc:                         eval "$(layby completion zsh)"',
    "fish": "~/.config/fish/config.fish:       layby completion fish | source",
}


@click.command(
    epilog="\b\nAdd one line to your shell's configuration:\n"
    + "\n".join(f"  {line}" for line in INSTALL.values())
)
@click.argument("shell", type=click.Choice(list(INSTALL)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    root = ctx.find_root().command
    script = get_completion_class(shell)
    if script is None:
        raise UsageError(f"click has no completion for {shell}: upgrade click")
    where, _, line = INSTALL[shell].partition(":")
    click.echo(f"# To have this in every shell, add this to {where}:  {line.strip()}")
    click.echo(script(root, {}, "layby", "_LAYBY_COMPLETE").source())

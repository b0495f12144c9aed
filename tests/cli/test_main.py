"""The front door: it helps, it fails in one line, and its exit codes mean something."""

import subprocess
import sys

import click
import pytest

import layby
from layby.cli.main import cli
from layby.errors import StoreOwned


def run(*arguments: str, **options) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "layby.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_it_says_its_version():
    """For bug reports."""
    done = run("--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"layby, version {layby.__version__}")


def test_help_names_every_command_and_the_exit_codes():
    """Somebody who types nothing but `layby` must find the next step."""
    done = run("--help")
    assert done.returncode == 0
    for part in ("layby demo", "layby doctor FILE", "Exit codes", "130"):
        assert part in done.stdout


def test_a_wrong_command_is_one_line_and_exit_2():
    """No traceback, and the way to help."""
    done = run("doctr")
    assert done.returncode == 2
    assert "No such command 'doctr'" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_plain_install_leaves_out_is_named():
    """With what to type, not with a traceback."""
    plain = "import sys; sys.modules['prometheus_client'] = None; import layby.cli.main as it"
    command = [sys.executable, "-c", f"{plain}; sys.argv[1:] = ['serve']; it.main()"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "layby: `layby serve` needs prometheus_client, which a plain install does not include: "
        "pip install 'layby[server]'\n"
    )


@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        (StoreOwned("a.db is in use by process 7: stop it"), 2, "layby: a.db is in use by"),
        (KeyboardInterrupt(), 130, "layby: interrupted"),
    ],
)
def test_expected_failures_are_one_line(monkeypatch, capsys, failure, code, said):
    """What layby raises on purpose is said on stderr, without a traceback."""

    @click.command()
    def fail() -> None:
        raise failure

    monkeypatch.setitem(cli.commands, "fail", fail)
    with pytest.raises(SystemExit) as left:
        cli(["fail"], prog_name="layby")
    captured = capsys.readouterr()
    assert left.value.code == code
    assert captured.out == ""
    assert captured.err.startswith(said)
    assert captured.err.count("\n") == 1


def test_a_bug_is_shown_as_a_bug(monkeypatch):
    """Only failures we expect are shortened: a traceback is what a bug report needs."""

    @click.command()
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(cli.commands, "fail", fail)
    with pytest.raises(ZeroDivisionError):
        cli(["fail"], prog_name="layby")

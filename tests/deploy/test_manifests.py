"""What deploy/ and its pages say exists: flags, variables, paths, and times that fit together."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from layby.cli.main import cli
from layby.server import server_config
from layby.server.app import PROBES
from layby.server.server_config import KEYS

ROOT = Path(__file__).parents[2]
DEPLOY, DOCS = ROOT / "deploy", ROOT / "docs"
TEXTS = {
    path.name: path.read_text()
    for path in (
        DEPLOY / "Dockerfile",
        DEPLOY / "compose.yaml",
        DEPLOY / "haproxy.cfg",
        DOCS / "containers.md",
        DOCS / "kubernetes.md",
    )
}
COMPOSE: dict[str, Any] = yaml.safe_load(TEXTS["compose.yaml"])
MANIFESTS: list[dict[str, Any]] = [
    each
    for block in re.findall(r"```yaml\n(.*?)```", TEXTS["kubernetes.md"], re.DOTALL)
    for each in yaml.safe_load_all(block)
]
UNSET_BY_KUBERNETES = "LAYBY_PORT"
"""What the page says that Kubernetes would set."""


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None, name
    return found


def default(name: str, option: str) -> str:
    [found] = [each for each in command(name).params if option in each.opts]
    return str(found.default)


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", text).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Those of the page, with the specs of their pods."""
    for each in MANIFESTS:
        if (template := each.get("spec", {}).get("template")) is not None:
            for container in template["spec"]["containers"]:
                yield template["spec"], container


def command_lines() -> list[str]:
    """All that is given to `layby`."""
    image = [json.loads(each) for each in re.findall(r"\nCMD (.*)", TEXTS["Dockerfile"])]
    ours = [each for each in COMPOSE["services"].values() if each["image"] == "layby"]
    page = [
        json.loads(each) for each in re.findall(r"^CMD (.*)$", TEXTS["containers.md"], re.MULTILINE)
    ]
    typed = re.findall(
        r"(?:\$ .*?\blayby|docker run --rm layby|`layby) ([a-z].*?)[`\n]",
        TEXTS["containers.md"] + TEXTS["kubernetes.md"],
    )
    lines = [
        *image,
        *page,
        *[each["command"] for each in ours],
        *[container["args"] for _, container in containers()],
        *[each.split() for each in typed if not each.startswith("serves ")],
    ]
    return sorted({" ".join(each) for each in lines})


@pytest.mark.parametrize("line", command_lines())
def test_commands_and_flags_exist(line: str):
    """Whatever containers are told to run can be run."""
    name, *rest = line.split()
    known = {option for each in command(name).params for option in each.opts}
    assert [word for word in rest if word.startswith("--") and word not in known] == []


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_variables_exist(name: str):
    """Each is a setting of a server, or one of the three that commands read."""
    known = {key.variable for key in KEYS.values()} | {"LAYBY_URL", "LAYBY_DB", "LAYBY_TOKEN"}
    used = set(re.findall(r"LAYBY_[A-Z_]+", TEXTS[name]))
    assert used - known - {UNSET_BY_KUBERNETES} == set()


def test_settings_that_are_named_exist():
    named = set(re.findall(r"`((?:server|poll|tasks|auth)\.[a-z_]+)`", "".join(TEXTS.values())))
    assert named
    assert named <= KEYS.keys()


def test_servers_of_compose_are_configured_validly():
    """With values instead of the secrets: the server reads its variables as they stand there."""
    for name in ("server-1", "server-2"):
        environment: dict[str, str] = COMPOSE["services"][name]["environment"]
        filled = {key: re.sub(r"\$\{.*?\}", "ab" * 32, each) for key, each in environment.items()}
        config = server_config.load({"server.host": "0.0.0.0"}, filled)
        assert config.db == "postgresql://layby@postgres/shop"
        assert config.auth.api_keys[0].is_admin


def test_what_is_stopped_has_enough_time():
    """Longer than what layby takes at most."""
    grace, shutdown = seconds(default("worker", "--grace")), KEYS["server.shutdown_timeout"].default
    shutdown_s = shutdown / 1000 if isinstance(shutdown, int) else float(shutdown)
    assert seconds(COMPOSE["services"]["worker"]["stop_grace_period"]) > grace
    for name in ("server-1", "server-2"):
        assert seconds(COMPOSE["services"][name]["stop_grace_period"]) > shutdown_s
    for pod, container in containers():
        allowed = pod.get("terminationGracePeriodSeconds", 30)
        if container["args"][0] == "worker":
            given = container["args"][container["args"].index("--grace") + 1]
            assert allowed > seconds(given)
        elif container["args"][0] == "serve":
            waits = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
            assert allowed > shutdown_s + waits


def test_probes_ask_for_what_is_served():
    """Whether it is ready, not only whether it is there; only death is judged by /health."""
    [(_, server)] = [each for each in containers() if each[1]["args"][0] == "serve"]
    paths = {kind: server[f"{kind}Probe"]["httpGet"]["path"] for kind in ("readiness", "liveness")}
    assert paths == {"readiness": "/ready", "liveness": "/health"}
    assert set(paths.values()) <= set(PROBES)
    [port] = server["ports"]
    assert port["containerPort"] == KEYS["server.port"].default
    assert ":8001/ready" in str(COMPOSE["services"]["server-1"]["healthcheck"]["test"])
    assert "httpchk GET /ready" in TEXTS["haproxy.cfg"]


def test_nothing_runs_as_root_or_from_a_moving_tag():
    images = [each["image"] for each in COMPOSE["services"].values() if each["image"] != "layby"]
    images += re.findall(r"^ARG PYTHON=(\S+)", TEXTS["Dockerfile"], re.MULTILINE)
    assert len(images) == 3
    assert all(re.search(r":\d+\.\d+(\.\d+)?-", each) for each in images)
    users = re.findall(r"^USER (\S+)", TEXTS["Dockerfile"], re.MULTILINE)
    assert users[-1].split(":")[0].isdigit()
    assert all(
        pod["securityContext"]["runAsNonRoot"] for pod, each in containers() if "ports" in each
    )


def test_the_balancer_knows_every_server():
    servers = {name for name in COMPOSE["services"] if name.startswith("server-")}
    known = re.findall(r"^ +server (\S+) (\S+):8001", TEXTS["haproxy.cfg"], re.MULTILINE)
    assert {name for name, host in known if name == host} == servers


def test_what_the_image_is_made_of_is_sent_to_the_builder():
    """Each source of a COPY is let through by Dockerfile.dockerignore, and exists."""
    kept = re.findall(r"^!(\S+)", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    lines = re.findall(r"^COPY (?!--from)(.+)$", TEXTS["Dockerfile"], re.MULTILINE)
    sources = {source for line in lines for source in line.split()[:-1]}
    assert sources == set(kept)
    assert all((ROOT / source).exists() for source in sources)

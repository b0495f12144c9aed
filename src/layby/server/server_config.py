"""The settings of a server: from layby.toml, LAYBY_* variables and flags; later ones win."""

import re
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from layby.client.secret import Secret
from layby.core.settings import LONGEST_RETENTION_MS, Lineage, RetentionPolicy, Settings
from layby.errors import UsageError
from layby.server import auth_config
from layby.server.auth_config import ApiKey, AuthConfig
from layby.server.config_keys import Key, Setting, keys_of
from layby.server.config_sources import (
    GivenSetting,
    from_environment,
    from_file,
    from_flags,
    ignored_variables,
)
from layby.server.config_values import (
    Choice,
    DurationValue,
    Number,
    SecretText,
    Size,
    Tables,
    Text,
    Texts,
    Url,
    YesNo,
)
from layby.server.networks import is_host_or_network
from layby.server.push_token import FORMS, parse_token_host
from layby.server.trigger_config import TriggersConfig, trigger_conflicts
from layby.store.postgres_address import is_postgres

Durability = Literal["full", "normal"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "text", "json"]
PushAuth = Literal["none", "bearer"]

KEPT_FOR: Final = DurationValue(0, LONGEST_RETENTION_MS, needs_unit=True)
"""What is pruned by mistake is gone: 7 could mean seconds or days."""
MIN_KEY_CHARS: Final = 32
ANYWHERE: Final = ("0.0.0.0", "::", "")  # noqa: S104 - recognised, not bound


def _is_origin(text: str) -> bool:
    return re.fullmatch(r"\*|https?://[^/?#\s]+", text) is not None


class HttpConfig(Struct, frozen=True, kw_only=True):
    host: Annotated[
        str,
        Setting(Text("a host name or address"), "Address to listen on; `0.0.0.0` for all networks"),
    ] = "127.0.0.1"
    port: Annotated[
        int, Setting(Number(0, 65_535), "Port to listen on; `0` for any that is free")
    ] = 8001
    url: Annotated[
        str | None,
        Setting(Url(), "Where workers reach this server; by default `http://HOST:PORT`"),
    ] = None
    metrics_port: Annotated[
        int,
        Setting(Number(0, 65_535), "Another port for `/metrics` alone; `0` for none"),
    ] = 0
    max_body: Annotated[
        int, Setting(Size(64 * 1024), "Largest request body; a larger one gets 413")
    ] = 8 * 2**20
    max_connections: Annotated[
        int, Setting(Number(1), "Maximum of open connections; more get 503")
    ] = 20_000
    read_timeout: Annotated[
        float, Setting(DurationValue(100), "How long a request may take to arrive whole")
    ] = 30.0
    write_timeout: Annotated[
        float,
        Setting(
            DurationValue(100),
            "A reader that takes nothing of an answer for this long is disconnected",
        ),
    ] = 30.0
    shutdown_timeout: Annotated[
        float,
        Setting(DurationValue(0), "How long requests under way may take to end after SIGTERM"),
    ] = 10.0

    def url_at(self, port: int) -> str:
        """The URL of this server in `execute` messages, once its port is known."""
        if self.url is not None:
            return self.url
        host = "localhost" if self.host in ANYWHERE else self.host
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def is_local(self) -> bool:
        """Only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


class LogConfig(Struct, frozen=True, kw_only=True):
    level: Annotated[
        LogLevel,
        Setting(
            Choice(("debug", "info", "warning", "error")),
            "How much to log; `debug` shows every request",
        ),
    ] = "info"
    format: Annotated[
        LogFormat,
        Setting(
            Choice(("auto", "text", "json")),
            "`text` for people, `json` lines for programs; `auto` is text on a terminal",
        ),
    ] = "auto"


class CorsConfig(Struct, frozen=True, kw_only=True):
    origins: Annotated[
        tuple[str, ...],
        Setting(
            Texts("* or an origin such as https://app.example.org", _is_origin),
            "Web pages from elsewhere that may call this server; `*` for any",
        ),
    ] = ()


class TasksConfig(Struct, frozen=True, kw_only=True):
    retry_timeout: Annotated[
        float,
        Setting(
            DurationValue(100),
            "How soon `execute` is sent again if no worker has acquired the task",
        ),
    ] = 30.0
    max_crashes: Annotated[
        int,
        Setting(
            Number(1), "A task whose worker died this often while it ran fails with WorkerLost"
        ),
    ] = 5


class RetentionConfig(Struct, frozen=True, kw_only=True):
    completed: Annotated[
        float | None,
        Setting(KEPT_FOR, "How long runs are kept after they have completed; by default for ever"),
    ] = None
    failed: Annotated[
        float | None,
        Setting(KEPT_FOR, "The same for runs that failed, were cancelled or passed their deadline"),
    ] = None
    ids: Annotated[
        float | None,
        Setting(KEPT_FOR, "How long the ids of pruned runs answer; by default for ever"),
    ] = None

    @property
    def policy(self) -> RetentionPolicy | None:
        """None when everything is kept."""
        lengths = (self.completed, self.failed, self.ids)
        if all(each is None for each in lengths):
            return None
        return RetentionPolicy(*(None if each is None else round(each * 1000) for each in lengths))


class PollConfig(Struct, frozen=True, kw_only=True):
    max_connections: Annotated[
        int, Setting(Number(1), "Maximum of open `/poll` streams; more get 503")
    ] = 10_000
    buffer: Annotated[
        int,
        Setting(Number(1, 100_000), "Messages one stream may hold back; others wait in the outbox"),
    ] = 100
    ping: Annotated[
        float,
        Setting(
            DurationValue(100), "How often a comment is sent on a stream that is silent otherwise"
        ),
    ] = 15.0
    patience: Annotated[
        float,
        Setting(DurationValue(100), "A reader that takes nothing for this long is disconnected"),
    ] = 30.0


class PushConfig(Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool, Setting(YesNo(), "Deliver messages to `http://` and `https://` addresses")
    ] = True
    allow: Annotated[
        tuple[str, ...],
        Setting(
            Texts("a host, an address or a network such as 10.0.0.0/8", is_host_or_network),
            "Private hosts and networks that may be pushed to; public ones always may",
        ),
    ] = ()
    concurrency: Annotated[int, Setting(Number(1, 100_000), "Maximum of pushes under way")] = 256
    connect_timeout: Annotated[
        float, Setting(DurationValue(), "How long connecting to an address may take")
    ] = 10.0
    request_timeout: Annotated[float, Setting(DurationValue(), "How long one push may take")] = (
        180.0
    )
    auth: Annotated[
        PushAuth,
        Setting(
            Choice(("none", "bearer")), "`bearer` sends `push.token` along to `push.token_hosts`"
        ),
    ] = "none"
    token: Annotated[
        Secret | None, Setting(SecretText(), "Where the token is kept: `env:NAME` or `file:PATH`")
    ] = None
    token_hosts: Annotated[
        tuple[str, ...],
        Setting(
            Texts(FORMS, parse_token_host),
            "Hosts that get it: `a.example`, `*.example:8443`, `https://a.example`; `*` for all",
        ),
    ] = ()
    header: Annotated[
        str,
        Setting(
            Text("the name of a header", r"[A-Za-z0-9-]+"),
            "The header that carries the token",
        ),
    ] = "Authorization"


class HooksConfig(Struct, frozen=True, kw_only=True):
    url: Annotated[
        str | None,
        Setting(Url(), "Where people reach this server by links; by default `server.url`"),
    ] = None
    secret: Annotated[
        Secret | None,
        Setting(
            SecretText(),
            "Where the key that signs links is kept: `env:NAME` or `file:PATH`; by "
            "default one is made and kept in `db`",
        ),
    ] = None


class ServerConfig(Struct, frozen=True, kw_only=True):
    db: Annotated[
        str,
        Setting(
            Text("an address such as sqlite:layby.db"),
            "Where everything is stored: `sqlite:PATH` or `postgresql://…`",
        ),
    ] = "sqlite:layby.db"
    durability: Annotated[
        Durability,
        Setting(
            Choice(("full", "normal")),
            "`full`: acknowledged means on disk; `normal`: a power cut may lose the last moment",
        ),
    ] = "full"
    debug: Annotated[
        bool,
        Setting(YesNo(), "Accept `debug.*` requests, which can stop time and delete everything"),
    ] = False
    strict: Annotated[
        bool, Setting(YesNo(), "Apply both strict rules below, as the specification does")
    ] = False
    strict_lineage: Annotated[
        Lineage | None,
        Setting(
            Choice(("off", "dot", "colon")),
            "What must follow the id in a lineage tag: `colon`, `dot` or `off`; "
            "`colon` when `strict`, else `off`",
        ),
    ] = None
    strict_external: Annotated[
        bool | None,
        Setting(
            YesNo(),
            "Refuse waits for internal promises, whose deadlines nobody enforces; on when `strict`",
        ),
    ] = None
    server: HttpConfig = HttpConfig()
    log: LogConfig = LogConfig()
    auth: AuthConfig = AuthConfig()
    cors: CorsConfig = CorsConfig()
    tasks: TasksConfig = TasksConfig()
    retention: RetentionConfig = RetentionConfig()
    poll: PollConfig = PollConfig()
    push: PushConfig = PushConfig()
    triggers: TriggersConfig = TriggersConfig()
    hooks: HooksConfig = HooksConfig()

    @property
    def lineage(self) -> Lineage:
        return self.strict_lineage or ("colon" if self.strict else "off")

    @property
    def is_external_strict(self) -> bool:
        return self.strict if self.strict_external is None else self.strict_external

    @property
    def settings(self) -> Settings:
        """The settings that core's rules depend on."""
        return Settings(
            retry_ms=round(self.tasks.retry_timeout * 1000),
            max_crashes=self.tasks.max_crashes,
            retention=self.retention.policy,
            strict_lineage=self.lineage,
            strict_external=self.is_external_strict,
        )

    def __repr__(self) -> str:
        return f"ServerConfig({', '.join(f'{name}={text}' for name, text in shown(self))})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return list(shown(self))


_AUTH: Final[dict[str, Setting]] = {
    "auth.public_key": Setting(
        Text("a PEM text, the path of a PEM file, or none", r"[^\0]+", is_hidden=True),
        "Key that verifies tokens (JWT): PEM text or a path; `none` trusts all, for tests",
    ),
    "auth.issuer": Setting(Text("a text"), "Tokens must have this `iss`"),
    "auth.audience": Setting(Text("a text"), "Tokens must have this `aud`"),
    "auth.api_keys": Setting(
        Tables(ApiKey, "tables with name, key or key_sha256, and role or prefix, groups"),
        "Long-lived tokens, one table each: `[[auth.api_keys]]`",
    ),
}
KEYS: Final[dict[str, Key]] = {key.name: key for key in keys_of(ServerConfig, _AUTH)}


_DEFAULTS: Final = ServerConfig()


def load(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    cwd: Path = Path(),
) -> ServerConfig:
    """Later sources win: defaults, the file, the environment, flags (by dotted key).

    Reports all problems at once. Reads the process's environment only if it is passed in.
    """
    environ = environ or {}
    sources = (
        from_file(file, cwd, KEYS),
        from_environment(environ, KEYS),
        from_flags(flags or {}, KEYS),
    )
    found = [each for source in sources for each in source]
    given = {each.key.name: each for each in found if isinstance(each, GivenSetting)}
    values = {name: each.value(environ) for name, each in given.items()}
    wrong = [each for each in (*found, *values.values()) if isinstance(each, UsageError)]
    _raise_if_any(wrong)
    config = _build(values)
    _raise_if_any(_conflicts(config))
    return config


def shown(config: ServerConfig) -> Iterator[tuple[str, str]]:
    """Every setting that is not at its default, without secrets."""
    for key in KEYS.values():
        value = attrgetter(key.name)(config)
        if value != key.default:
            yield key.name, key.shown(value)


def warnings(config: ServerConfig, environ: Mapping[str, str]) -> Iterator[str]:
    """Settings that work but may not be what was intended."""
    yield from ignored_variables(environ, KEYS)
    is_open = config.auth.public_key is None and not config.auth.api_keys
    if is_open and not config.server.is_local:
        where = f"server.host is {config.server.host} and there is no auth"
        yield f"{where}: anybody who can reach port {config.server.port} can do everything"
    if is_open and "*" in config.cors.origins:
        yield "cors.origins is * and there is no auth: any web page can do everything"
    if config.debug:
        yield "debug is on: any client can stop time and delete everything"


def _build(values: Mapping[str, object]) -> ServerConfig:
    changed: dict[str, Any] = {}
    for name, value in values.items():
        section, dot, field = name.partition(".")
        before = changed.get(section, getattr(_DEFAULTS, section))
        changed[section] = replace(before, **{field: value}) if dot else value
    return replace(_DEFAULTS, **changed)


def _conflicts(config: ServerConfig) -> Iterator[str | UsageError]:
    """Settings that are fine on their own but not together."""
    if config.server.port and config.server.port == config.server.metrics_port:
        yield "server.metrics_port is server.port, which has /metrics anyway: set it to 0"
    if config.debug and is_postgres(config.db):
        yield "debug stops time and deletes everything, and other servers share this db: use a file"
    if config.push.auth == "bearer" and config.push.token is None:
        yield "push.auth is bearer and there is no push.token: give env:NAME or file:PATH"
    if config.push.auth == "none" and config.push.token is not None:
        yield "push.token is not used unless push.auth is bearer: give both or none"
    if config.push.auth == "bearer" and not config.push.token_hosts:
        yield (
            "push.token has no recipient: list in push.token_hosts which hosts get it "
            "(* is any host a promise names, including one that only wants the token)"
        )
    if config.push.auth == "none" and config.push.token_hosts:
        yield "push.token_hosts is not used unless push.auth is bearer: give both or none"
    yield from trigger_conflicts(config.triggers)
    if config.hooks.secret is not None and len(config.hooks.secret.reveal()) < MIN_KEY_CHARS:
        yield f"hooks.secret must have at least {MIN_KEY_CHARS} characters, or links can be forged"
    try:
        auth_config.check(config.auth)
    except UsageError as error:
        yield error


def _raise_if_any(wrong: Iterable[str | UsageError]) -> None:
    if problems := "; ".join(map(str, wrong)):
        raise UsageError(problems)

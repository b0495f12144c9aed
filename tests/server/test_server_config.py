"""What a server is told: every source, every sort of value, and every way to get it wrong."""

import re
from pathlib import Path

import pytest

from layby.core.settings import Settings
from layby.errors import UsageError
from layby.server import server_config as configuration
from layby.server.auth_config import AuthConfig
from layby.server.server_config import KEYS, HttpConfig, PushConfig, ServerConfig, load

PAGE = Path(__file__).parents[2] / "docs" / "server.md"
KEY = "layby_0123456789abcdef0123"


def write(folder: Path, text: str) -> Path:
    path = folder / "layby.toml"
    path.write_text(text)
    return path


# --- sources -----------------------------------------------------------------------------


def test_without_any_source_the_defaults_stand(tmp_path):
    """An empty folder and environment give the documented defaults."""
    config = load(cwd=tmp_path)
    assert config == ServerConfig()
    assert (config.db, config.server.host, config.server.port) == (
        "sqlite:layby.db",
        "127.0.0.1",
        8001,
    )


def test_later_sources_win(tmp_path):
    """Defaults, then the file, then the environment, then flags; each setting by itself."""
    write(tmp_path, "[server]\nport = 1\nhost = 'file'\nurl = 'http://file'\n")
    environ = {"LAYBY_SERVER__PORT": "2", "LAYBY_SERVER__HOST": "variable"}
    config = load({"server.port": 3}, environ, cwd=tmp_path)
    assert config.server == HttpConfig(port=3, host="variable", url="http://file")


def test_a_flag_that_was_not_given_changes_nothing(tmp_path):
    """None and an empty list are what a command line has for options nobody used."""
    write(tmp_path, "[server]\nport = 1\n[cors]\norigins = ['*']\n")
    config = load({"server.port": None, "cors.origins": ()}, cwd=tmp_path)
    assert (config.server.port, config.cors.origins) == (1, ("*",))


def test_a_named_file_is_read_instead_of_the_one_at_hand(tmp_path):
    """`--config FILE` takes the place of layby.toml."""
    write(tmp_path, "db = 'sqlite:here.db'\n")
    other = tmp_path / "other.toml"
    other.write_text("db = 'sqlite:there.db'\n")
    assert load(file=other, cwd=tmp_path).db == "sqlite:there.db"


def test_a_named_file_must_be_there(tmp_path):
    """Only layby.toml itself may be missing."""
    with pytest.raises(UsageError, match=r"none\.toml: cannot be read \(No such file"):
        load(file=tmp_path / "none.toml")


def test_a_file_that_is_no_toml_is_named_with_the_place(tmp_path):
    """The reader's own words say where."""
    path = write(tmp_path, "port = = 1\n")
    with pytest.raises(UsageError, match=rf"{path}: this is not TOML: .*line 1"):
        load(cwd=tmp_path)
    path.write_bytes(b"db = '\xff'")
    with pytest.raises(UsageError, match="this is not TOML"):
        load(cwd=tmp_path)


# --- names -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        (
            "[server]\nprot = 1",
            "layby.toml: there is no setting server.prot: did you mean server.p",
        ),
        ("port = 1", "layby.toml: there is no setting port: did you mean server.port?"),
        ("[pull]\nping = 1", "there is no setting pull.ping: did you mean poll.ping?"),
        ("zzz = 1", "layby.toml: there is no setting zzz"),
        ("server = 1", "layby.toml: server is a table: write [server]"),
        ("[server.port]\nx = 1", "server.port cannot be {'x': 1}: give a whole number"),
    ],
)
def test_an_unknown_name_in_the_file_is_refused_with_a_close_one(tmp_path, toml, told):
    """A typing error must not pass in silence."""
    write(tmp_path, toml)
    with pytest.raises(UsageError, match=re.escape(told)):
        load(cwd=tmp_path)


def test_an_unknown_variable_is_refused_with_a_close_one():
    """A name with `__` is meant for us."""
    told = "LAYBY_SERVER__PROT: there is no such setting: did you mean LAYBY_SERVER__PORT?"
    with pytest.raises(UsageError, match=re.escape(told)):
        load(environ={"LAYBY_SERVER__PROT": "1"})


def test_variables_of_others_are_left_alone_and_likely_mistakes_told():
    """Kubernetes and clients have LAYBY_ variables too, so only doubts are told."""
    environ = {
        "LAYBY_PORT": "tcp://10.0.0.1:8001",
        "LAYBY_PORT_8001_TCP": "tcp://10.0.0.1:8001",
        "LAYBY_SERVICE_HOST": "10.0.0.1",
        "LAYBY_URL": "http://elsewhere",
        "PORT": "1",
    }
    config = load(environ=environ)
    assert config == ServerConfig()
    [told] = configuration.warnings(config, environ)
    assert told == "LAYBY_PORT is not a setting and was ignored: did you mean LAYBY_SERVER__PORT?"


def test_an_unknown_flag_is_refused():
    """A command that made up a key is told which there are."""
    with pytest.raises(UsageError, match=r"no setting port: did you mean server\.port\?"):
        load({"port": 1})


def test_everything_wrong_is_told_at_once(tmp_path):
    """One start shows all that has to be mended, each with its place."""
    write(tmp_path, "nonsense = 1\n[server]\nport = 'x'\n")
    with pytest.raises(UsageError) as failure:
        load({"log.level": "loud"}, {"LAYBY_POLL__BUFFER": "0"}, cwd=tmp_path)
    places = [tmp_path / "layby.toml", tmp_path / "layby.toml", "LAYBY_POLL__BUFFER", "--log-level"]
    assert [each.split(": ")[0] for each in str(failure.value).split("; ")] == list(
        map(str, places)
    )


# --- values ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "raw", "value"),
    [
        ("server.port", "0", 0),
        ("server.port", 65_535, 65_535),
        ("debug", "true", True),
        ("debug", "ON", True),
        ("debug", "0", False),
        ("debug", False, False),
        ("strict_lineage", "dot", "dot"),
        ("server.max_body", "512KiB", 2**19),
        ("server.max_body", "1 MB", 10**6),
        ("server.max_body", "70001", 70_001),
        ("server.max_body", 70_000, 70_000),
        ("server.shutdown_timeout", "1m30s", 90.0),
        ("server.shutdown_timeout", "500ms", 0.5),
        ("server.shutdown_timeout", "0s", 0.0),
        ("server.shutdown_timeout", 2, 2.0),
        ("server.shutdown_timeout", 2.5, 2.5),
        ("server.shutdown_timeout", "2.25", 2.25),
        ("server.url", "https://layby.example.org/", "https://layby.example.org"),
        ("cors.origins", "http://a, https://b:1", ("http://a", "https://b:1")),
        ("cors.origins", ["*"], ("*",)),
        ("push.allow", "localhost,10.0.0.0/8,::1", ("localhost", "10.0.0.0/8", "::1")),
        ("push.allow", "", ()),
        ("push.token_hosts", "*.example.org, [::1]:80", ("*.example.org", "[::1]:80")),
    ],
)
def test_values_are_read_from_text_and_from_toml(key, raw, value):
    """A variable holds text; TOML and flags also numbers, lists and truths."""
    read = KEYS[key].read(raw, {})
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("key", "raw", "allowed"),
    [
        ("server.port", "65536", "a whole number from 0 to 65535"),
        ("server.port", -1, "a whole number from 0 to 65535"),
        ("server.port", True, "a whole number"),
        ("server.port", 1.0, "a whole number"),
        ("server.port", "8_001", "a whole number"),
        ("server.port", "٨", "a whole number"),
        ("server.host", "", "a host name or address"),
        ("server.host", 1, "a host name or address"),
        ("db", "a\0b", "an address such as sqlite:layby.db"),
        ("debug", "maybe", "true or false"),
        ("debug", 1, "true or false"),
        ("durability", "some", "full or normal"),
        ("log.format", "xml", "auto, text or json"),
        ("server.max_body", "8 bytes", "a size such as 512KiB or 8MiB, from 64KiB to 1024GiB"),
        ("server.max_body", "1KiB", "from 64KiB"),
        ("server.max_body", 1.5, "a size"),
        ("server.shutdown_timeout", "ten", "a duration such as 1m30s, or a number of seconds"),
        ("retention.completed", "7", "a duration with its unit, such as 12h or 7d"),
        ("retention.failed", 7, "a duration with its unit, such as 12h or 7d"),
        ("retention.ids", "36501d", "from 0s to 36500d"),
        ("server.shutdown_timeout", "-1s", "from 0s to 365d"),
        ("server.shutdown_timeout", "366d", "from 0s to 365d"),
        ("server.shutdown_timeout", "nan", "a duration"),
        ("server.shutdown_timeout", float("inf"), "a duration"),
        ("server.shutdown_timeout", True, "a duration"),
        ("poll.ping", "0s", "from 100ms to 365d"),
        ("push.connect_timeout", 0, "from 1ms"),
        ("server.url", "layby.example.org", "a URL such as https://layby.example.org"),
        ("server.url", "ftp://x", "a URL"),
        ("cors.origins", ["example.org"], "a list, each item * or an origin"),
        ("cors.origins", "http://a/path", "a list"),
        ("cors.origins", [1], "a list"),
        ("cors.origins", [""], "a list"),
        ("cors.origins", {"a": 1}, "a list"),
        ("push.allow", "10.0.0.0/99", "a host, an address or a network such as 10.0.0.0/8"),
        ("push.allow", "http://localhost", "a host"),
        ("push.allow", "1.2.3", "a host"),
        ("push.token_hosts", "https://hooks.example.org/path", "a host such as hooks.example.org"),
        ("push.token_hosts", ["hooks.example.org:0"], "a host such as hooks.example.org"),
        ("push.header", "X: y", "the name of a header"),
    ],
)
def test_a_value_that_cannot_be_is_told_with_place_and_remedy(key, raw, allowed):
    """Place, setting, what was given, and what to give instead."""
    is_text = isinstance(raw, str)
    where = KEYS[key].variable if is_text else KEYS[key].flag
    with pytest.raises(UsageError) as failure:
        load(environ={where: raw}) if is_text else load({key: raw})
    told = str(failure.value)
    assert told.startswith(f"{where}: {key} cannot be {raw!r}: give ")
    assert allowed in told


# --- together ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"server.port": 9, "server.metrics_port": 9}, "server.metrics_port is server.port"),
        ({"push.auth": "bearer"}, "push.auth is bearer and there is no push.token"),
        ({"push.token": "env:TOKEN"}, "push.token is not used unless push.auth is bearer"),
        (
            {"push.auth": "bearer", "push.token": "env:TOKEN"},
            "push.token has no recipient: list in push.token_hosts which hosts get it",
        ),
        ({"push.token_hosts": ["a.org"]}, "push.token_hosts is not used unless push.auth"),
        ({"auth.issuer": "me"}, "auth.issuer protects nothing without auth.public_key"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(flags, told):
    """Each is fine alone."""
    with pytest.raises(UsageError, match=re.escape(told)):
        load(flags, {"TOKEN": "x"})


@pytest.mark.parametrize(
    ("flags", "lineage", "external"),
    [
        ({}, "off", False),
        ({"strict": True}, "colon", True),
        ({"strict": True, "strict_lineage": "dot"}, "dot", True),
        ({"strict": True, "strict_lineage": "off", "strict_external": False}, "off", False),
        ({"strict_external": True}, "off", True),
    ],
)
def test_strict_means_both_unless_one_is_given(flags, lineage, external):
    """What is said of one of them counts more than what is said of all."""
    config = load(flags)
    assert (config.lineage, config.is_external_strict) == (lineage, external)


def test_core_gets_its_numbers():
    """Seconds outside, milliseconds inside."""
    settings = load({"tasks.retry_timeout": "1.5", "tasks.max_crashes": "2"}).settings
    assert (settings.retry_ms, settings.max_crashes) == (1_500, 2)


@pytest.mark.parametrize(
    ("server", "url"),
    [
        (HttpConfig(), "http://127.0.0.1:5"),
        (HttpConfig(host="0.0.0.0"), "http://localhost:5"),
        (HttpConfig(host="::"), "http://localhost:5"),
        (HttpConfig(host="::1"), "http://[::1]:5"),
        (HttpConfig(url="https://layby.example.org"), "https://layby.example.org"),
    ],
)
def test_workers_are_told_a_url_they_can_use(server, url):
    """The configured one, or host and the port that was really taken."""
    assert server.url_at(5) == url


def test_an_open_door_is_told():
    """Listening beyond this machine without auth works, and is said aloud."""
    everywhere = load({"server.host": "0.0.0.0", "debug": True})
    open_door, debug = configuration.warnings(everywhere, {})
    assert "there is no auth: anybody who can reach port 8001 can do everything" in open_door
    assert "debug is on" in debug
    [pages] = configuration.warnings(load({"cors.origins": "*"}), {})
    assert pages.startswith("cors.origins is * and there is no auth")
    guarded = load({"server.host": "0.0.0.0", "auth.public_key": "none", "cors.origins": "*"})
    for config in (guarded, load({"server.host": "localhost"}), load({"server.host": "::1"})):
        assert list(configuration.warnings(config, {})) == []


# --- secrets -----------------------------------------------------------------------------


@pytest.fixture
def secret_file(tmp_path):
    path = tmp_path / "token"
    path.write_text("hush\n")
    return path


def test_a_secret_is_read_from_where_it_is_kept(secret_file):
    """From a variable or a file, without the newline of an editor."""
    for place in ("env:MY_TOKEN", f"file:{secret_file}"):
        flags = {"push.auth": "bearer", "push.token": place, "push.token_hosts": "*"}
        config = load(flags, {"MY_TOKEN": "hush"})
        token = config.push.token
        assert token is not None
        assert (token.reveal(), token.reference) == ("hush", place)


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("hush", "do not write a secret here: give env:NAME"),
        ("vault:hush", "do not write a secret here: give env:NAME"),
        ("env:", "do not write a secret here: give env:NAME"),
        ("env:NONE", "env:NONE is not set: set the variable NONE"),
        ("env:EMPTY", "env:EMPTY is empty"),
        ("file:/none/there", "file:/none/there cannot be read (No such file"),
    ],
)
def test_a_secret_that_cannot_be_had_is_refused_and_not_repeated(reference, told):
    """What is no reference may be the secret itself."""
    environ = {"EMPTY": "", "LAYBY_PUSH__TOKEN": reference}
    with pytest.raises(UsageError, match=re.escape(f"LAYBY_PUSH__TOKEN: push.token: {told}")) as f:
        load({"push.auth": "bearer"}, environ)
    assert "hush" not in str(f.value)


def test_no_secret_is_shown(tmp_path):
    """Not when the configuration is printed, and not when it is wrong."""
    write(
        tmp_path,
        f"""
        db = "postgresql://me:hush@host/db"
        [auth]
        public_key = "none"
        [[auth.api_keys]]
        name = "ci"
        key = "{KEY}"
        role = "admin"
        [push]
        auth = "bearer"
        token = "env:MY_TOKEN"
        token_hosts = ["hooks.example.org"]
        """,
    )
    config = load(environ={"MY_TOKEN": "hush"}, cwd=tmp_path)
    hosts = ("hooks.example.org",)
    assert config.push == PushConfig(auth="bearer", token=config.push.token, token_hosts=hosts)
    for text in (repr(config), str(config), str(dict(config.__rich_repr__()))):
        assert "hush" not in text
        assert KEY not in text
        assert "postgresql://me:***@host/db" in text
    for part in (config.push, config.push.token, config.auth):
        assert "hush" not in f"{part}{part!r}"
        assert KEY not in f"{part}{part!r}"
    write(tmp_path, f"[[auth.api_keys]]\nname = 'ci'\nkey = '{KEY}'\nrolle = 'admin'\n")
    with pytest.raises(UsageError, match=r"auth\.api_keys: .*unknown field `rolle`") as failure:
        load(cwd=tmp_path)
    assert KEY not in str(failure.value)
    with pytest.raises(UsageError, match=r"auth\.public_key cannot be the given value"):
        load({"auth.public_key": ["hush"]})


def test_api_keys_come_as_tables_or_as_json():
    """A variable cannot hold tables, so it holds the same as JSON."""
    config = load(environ={"LAYBY_AUTH__API_KEYS": f'[{{"name":"a","key":"{KEY}","prefix":"x"}}]'})
    assert [(key.name, key.prefix) for key in config.auth.api_keys] == [("a", "x")]
    with pytest.raises(UsageError, match=r"LAYBY_AUTH__API_KEYS: .*JSON is malformed.*: give"):
        load(environ={"LAYBY_AUTH__API_KEYS": KEY})


# --- one source --------------------------------------------------------------------------


def test_every_setting_reads_its_own_default():
    """What the table shows as default can be written, and means the default."""
    for key in KEYS.values():
        if key.default not in (None, ()):
            assert key.read(key.shown(key.default), {}) == key.default, key.name


def test_names_of_flags_and_variables_are_unique():
    """Two settings never share a name anywhere."""
    for names in ([key.flag for key in KEYS.values()], [key.variable for key in KEYS.values()]):
        assert len(set(names)) == len(names)


def test_the_settings_of_auth_are_those_of_its_struct():
    """The gate's struct and our descriptions of it do not drift apart."""
    ours = {name.removeprefix("auth.") for name in KEYS if name.startswith("auth.")}
    assert ours == set(AuthConfig.__struct_fields__)


def table() -> str:
    """The page's table, from the code."""
    rows = [
        f"| `{key.name}` | {f'`{default}`' if (default := key.shown(key.default)) else ''} "
        f"| {key.description} |"
        for key in KEYS.values()
    ]
    return "\n".join(("| setting | default | what it is |", "|---|---|---|", *rows))


def test_the_page_shows_every_setting():
    """docs/server.md has exactly the table of the code."""
    assert table() in PAGE.read_text(), f"paste this into {PAGE}:\n{table()}"


def test_strict_reaches_the_rules():
    """One switch for both; each of them can be set by itself."""
    assert load({"strict": True}).settings == Settings.strict()
    alone = load({"strict": True, "strict_external": False}).settings
    assert (alone.strict_lineage, alone.strict_external) == ("colon", False)
    assert load({}).settings == Settings()

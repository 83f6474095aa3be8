"""`python -m pipeline repository`: what its flags mean, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.cli import repository as module
from pipeline.errors import InitError, PortInUseError


@pytest.fixture
def settings_of(monkeypatch):
    """The settings of the server, which does not run."""
    settings = []
    monkeypatch.setattr(module, "serve", settings.append)

    def run(*flags):
        settings.clear()
        assert module.repository(["--model-repository=/r", *flags]) == 0
        return settings[0]

    return run


def test_the_defaults_are_tritons(settings_of):
    settings = settings_of()
    assert settings.server["http_port"] == 8000
    assert settings.server["rpc_port"] == 8001
    assert settings.server["dag"]["prometheus_port"] == 8002
    assert settings.server["stop_grace_period"] == 30_000
    control = settings.control
    assert control.log_file == ""
    assert control.repositories == (Path("/r"),)
    assert (control.mode, control.models, control.poll_s) == ("none", (), 15)
    assert control.completes
    assert control.is_strict
    assert control.exits


@pytest.mark.parametrize(
    ("flags", "json_bytes", "message_bytes"),
    [
        ((), 64 * 2**20, 256 * 2**20),
        (("--http-max-input-size=1000",), 1000, 256 * 2**20),
        ((f"--http-max-input-size={2**29}",), 2**29, 2**29),
    ],
)
def test_the_size_of_inputs_is_that_of_json(settings_of, flags, json_bytes, message_bytes):
    server = settings_of(*flags).server
    assert (server["max_json_bytes"], server["max_message_bytes"]) == (json_bytes, message_bytes)


@pytest.mark.parametrize(
    ("flags", "edge", "over_http"),
    [
        ((), "auto", "embedded"),
        (("--edge=embedded",), "embedded", "embedded"),
        (("--edge=gateway",), "gateway", "gateway"),
    ],
)
def test_flags_select_the_edge(settings_of, flags, edge, over_http):
    server = settings_of(*flags).server
    assert (server["edge"], server["http_server"]) == (edge, over_http)


def test_flags_with_and_without_an_equals_sign(settings_of):
    settings = settings_of(
        "--model-repository",
        "/more",
        "--model-control-mode=EXPLICIT",
        "--load-model=a",
        "--load-model",
        "b",
        "--strict-readiness=false",
        "--exit-on-error=0",
        "--strict-model-config=true",
        "--allow-http=false",
        "--allow-metrics=no",
        "--log-file=/logs/server",
        "--grpc-header-forward-pattern=x-.*",
    )
    control = settings.control
    assert control.repositories == (Path("/r"), Path("/more"))
    assert (control.mode, control.models) == ("explicit", ("a", "b"))
    assert (control.completes, control.is_strict, control.exits) == (False, False, False)
    assert control.log_file == "/logs/server"
    assert settings.closed == ("http_port",)
    assert settings.server["dag"] == {"forward_headers": "(?:x-.*)"}


@pytest.mark.parametrize(
    ("flags", "files"),
    [
        ((), {}),
        (("--grpc-use-ssl=1",), {"certificate": "c", "key": "k", "grpc_only": True}),
        (
            ("--grpc-use-ssl-mutual=1",),
            {"certificate": "c", "key": "k", "client_ca": "r", "grpc_only": True},
        ),
    ],
)
def test_tls_is_that_of_grpc(settings_of, flags, files):
    named = ("--grpc-server-cert=c", "--grpc-server-key=k", "--grpc-root-cert=r")
    assert settings_of(*named, *flags).server["tls"] == files
    assert settings_of(*named, *flags, "--allow-grpc=false").server["tls"] == {}


def test_the_beginning_of_a_flag_is_enough_if_no_other_begins_like_it(settings_of):
    assert not settings_of("--log-warn=false").kinds.warning


def test_a_repository_that_is_named_twice_is_one(settings_of):
    assert settings_of("--model-repository=/r/", "--model-store=/s").control.repositories == (
        Path("/r"),
        Path("/s"),
    )


def test_each_port_has_its_own_address(settings_of):
    server = settings_of("--http-address=127.0.0.1", "--grpc-address=127.0.0.2").server
    assert (server["http_host"], server["rpc_host"]) == ("127.0.0.1", "127.0.0.2")
    assert server["dag"]["prometheus_host"] == "127.0.0.1", "that of HTTP, as in Triton"
    server = settings_of("--metrics-address=127.0.0.3", "--allow-grpc=false")
    assert server.server["dag"]["prometheus_host"] == "127.0.0.3"
    assert server.closed == ("rpc_port",)
    server = settings_of("--http-address=-47", "--allow-http=false")
    assert server.server["dag"]["prometheus_host"] == "::", "the address of HTTP is not used"


def test_ports_are_shared_with_other_servers_if_one_of_them_is(settings_of):
    assert not settings_of().server["reuse_port"]
    assert settings_of("--reuse-http-port=true").server["reuse_port"]
    assert settings_of("--reuse-grpc-port=true").server["reuse_port"]


def test_flags_without_effect_are_accepted(settings_of):
    settings_of(
        "--http-thread-count=8", "--allow-gpu-metrics", "false", "--grpc-infer-thread-count=128"
    )
    settings_of("--metrics-config", "histogram_latencies=true", "--trace-config=triton,rate=100")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--nonsense=1"], "unknown: --nonsense=1"),
        (["--http-max-input-size=0"], "--http-max-input-size must be greater than 0."),
        (["--grpc-use-ssl=1"], "--grpc-use-ssl: it needs --grpc-server-cert, --grpc-server-key"),
        (
            ["--grpc-use-ssl-mutual=1", "--grpc-server-cert=c", "--grpc-server-key=k"],
            "--grpc-server-key and --grpc-root-cert",
        ),
        *(
            (["--grpc-use-ssl=1", "--grpc-server-cert=c", "--grpc-server-key=k", *flags], text)
            for flags, text in [
                (["--replicas=2"], "--grpc-use-ssl: the gateway must serve gRPC alone: "),
                (["--edge=gateway"], "without --replicas, --edge=embedded or --edge=gateway"),
                (["--allow-http=0", "--edge=embedded"], "the gateway must serve gRPC alone"),
            ]
        ),
        (["--trace-config", "level=FULL"], "invalid value for trace level option: FULL"),
    ],
)
def test_an_invalid_flag_is_refused(settings_of, capsys, flags, text):
    assert module.repository(["--model-repository=/r", *flags]) == 1
    assert text in capsys.readouterr().err


def test_configurations_have_a_name_and_loads_are_tried_again(settings_of):
    control = settings_of("--model-config-name=small", "--model-load-retry-count=2").control
    assert (control.config_name, control.load_retries) == ("small", 2)


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--model-config-name=", "'' is not the name of a file"),
        ("--model-config-name=../a", "'../a' is not the name of a file"),
        ("--model-load-retry-count=-1", "expected a whole number from 0, found '-1'"),
    ],
)
def test_a_name_that_is_no_file_and_a_count_below_0_are_refused(settings_of, capsys, flag, text):
    with pytest.raises(SystemExit):
        settings_of(flag)
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("count", ["-1", "0", "1", "129", "many"])
def test_as_many_threads_as_triton_takes_are_accepted(settings_of, capsys, count):
    with pytest.raises(SystemExit):
        settings_of(f"--grpc-infer-thread-count={count}")
    text = "invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128."
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pattern", "matches"), [("(?-i)X-.*", False), ("(?i)X-.*", True), ("X-.*", True)]
)
def test_a_pattern_of_headers_may_begin_with_flags(settings_of, pattern, matches):
    of_headers = settings_of(f"--grpc-header-forward-pattern={pattern}").server["dag"][
        "forward_headers"
    ]
    assert bool(re.fullmatch(of_headers, "x-a", re.IGNORECASE)) == matches


@pytest.mark.parametrize(
    ("flag", "kind"), [("http-restricted-api", "api"), ("grpc-restricted-protocol", "protocol")]
)
@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (["health:k=v", "metadata,health:k2=v2"], "'health' can not be specified in multiple"),
        (["health,health:k=v"], "'health' can not be specified in multiple"),
    ],
)
def test_a_part_of_v2_is_restricted_once(settings_of, capsys, flag, kind, groups, text):
    flags = [f"--{flag}={group}" for group in groups]
    assert module.repository(["--model-repository=/r", *flags]) == 1
    assert f"restricted {kind} {text} config groups" in capsys.readouterr().err


def test_deprecated_flags_get_tritons_warnings(settings_of, capsys):
    settings_of("--disable-auto-complete-config", "--model-repository", "trace-rate")
    assert capsys.readouterr().err == ""
    settings_of("--strict-model=false", "--disable-auto-complete-config", "--trace-ra", "5")
    assert capsys.readouterr().err.splitlines() == [
        "Warning: '--strict-model-config' has been deprecated! Please use "
        "'--disable-auto-complete-config' instead.",
        "Warning: '--trace-rate' has been deprecated! Please use "
        "'--trace-config rate=<rate value>' instead.",
        "Warning: Overriding deprecated '--strict-model-config' from False to True in favor of "
        "'--disable-auto-complete-config'!",
    ]


def test_a_server_that_cannot_start_prints_the_reason(monkeypatch, capsys):
    def serve(settings):
        raise InitError("creating server: Internal - failed to load all models")

    monkeypatch.setattr(module, "serve", serve)
    assert module.repository(["--model-repository=/r"]) == 1
    assert capsys.readouterr().err.endswith("Internal - failed to load all models\n")


def refused(capsys, *flags):
    assert module.repository(["--model-repository=/r", *flags]) == 1
    return capsys.readouterr().err


def test_flags_configure_the_cache(settings_of, capsys):
    assert settings_of("--cache-config=local,size=1048576").server["cache"] == {
        "local": {"size": 1048576}
    }
    assert settings_of("--response-cache-byte-size", "9").server["cache"] == {"local": {"size": 9}}
    assert settings_of().server["cache"] == {}
    redis = settings_of("--cache-config", "redis,host=h", "--cache-config", "redis,port=1")
    assert redis.server["cache"] == {"redis": {"host": "h", "port": 1}}
    both = refused(capsys, "--cache-config=local,size=1", "--cache-config=redis,host=h")
    assert "multiple cache configurations" in both
    both = refused(capsys, "--cache-config=local,size=1", "--response-cache-byte-size=1")
    assert "Incompatible flags" in both
    assert "Must at a minimum specify" in refused(capsys, "--cache-config=redis,port=1")
    assert "No cache specified" in refused(capsys, "--cache-config=size")
    assert "option format is" in refused(capsys, "--cache-config=local,size")


def test_flags_configure_resources(settings_of, capsys):
    server = settings_of("--rate-limit=EXECUTION_COUNT", "--rate-limit-resource=r:4").server
    assert server["rate_limit"] == {
        "mode": "execution_count",
        "resources": [{"name": "r", "count": 4}],
    }
    (of_device,) = settings_of("--rate-limit-resource=r:4:1").server["rate_limit"]["resources"]
    assert of_device == {"name": "r", "count": 4, "device": 1}
    for wrong in ("r", "r:", "r:x", "r:1:2:3"):
        text = refused(capsys, f"--rate-limit-resource={wrong}")
        assert f"Got {wrong}" in text


def test_the_time_to_stop_is_whole_milliseconds(settings_of):
    grace = settings_of("--exit-timeout-secs=1.5").server["stop_grace_period"]
    assert (grace, type(grace)) == (1500, int)


@pytest.mark.parametrize(
    ("key", "socket"),
    [
        ("rpc_port", "GRPC service: Unavailable - Socket '0.0.0.0:7'"),
        ("http_port", "HTTP service: Unavailable - Socket '127.0.0.1:7'"),
        ("dag.prometheus_port", "Metrics service: Unavailable - Socket '127.0.0.1:7'"),
    ],
)
def test_a_port_in_use_is_reported_in_tritons_form(monkeypatch, capsys, key, socket):
    def serve(settings):
        error = PortInUseError("it is")
        error.key, error.port = key, 7
        raise error

    monkeypatch.setattr(module, "serve", serve)
    assert module.repository(["--model-repository=/r", "--http-address=127.0.0.1"]) == 1
    assert capsys.readouterr().err == f"error: failed to start {socket} already in use\n"

"""RedisCache against a real Redis server, where there is one, and its client."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from doubles import on_loop, wait_until
from served import free_port, is_open

from pipeline.caches.redis import RedisCache, RedisOptions
from pipeline.errors import InitError

pytest.importorskip("redis", reason="the client is not installed: the extra redis")
if shutil.which("redis-server") is None:
    pytest.skip("there is no redis-server", allow_module_level=True)

KEY, OTHER = b"\0" * 16, b"\1" * 16


class RedisServer:
    """A Redis server of our own, which can be stopped."""

    def __init__(self, folder, *more):
        self.port = free_port()
        self._command = ["redis-server", "--port", str(self.port), "--save", "", *more]
        self._folder = folder
        self.start()

    def start(self):
        self._process = subprocess.Popen(
            self._command, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(lambda: is_open(self.port))

    def stop(self):
        self._process.kill()
        self._process.wait()


@pytest.fixture
def redis_server(tmp_path):
    server = RedisServer(tmp_path)
    yield server
    server.stop()


def options(server, **more):
    return RedisOptions(host="127.0.0.1", port=server.port, timeout_ms=5000, **more)


@on_loop
async def test_two_servers_share_cached_values(redis_server):
    one, other = RedisCache(options(redis_server)), RedisCache(options(redis_server))
    await one.open()
    await other.open()
    value = bytes(range(256)) * 1000
    await one.insert(KEY, value)
    assert await other.lookup(KEY) == value
    assert await other.lookup(OTHER) is None
    await one.close()
    await other.close()


@on_loop
async def test_an_unavailable_server_is_tried_again_later(redis_server):
    now = [0.0]
    cache = RedisCache(options(redis_server), clock=lambda: now[0])
    await cache.open()
    await cache.insert(KEY, b"1")
    redis_server.stop()
    with pytest.raises(Exception, match="Connection"):
        await cache.lookup(KEY)
    redis_server.start()
    assert await cache.lookup(KEY) is None, "it is not asked so soon"
    await cache.insert(KEY, b"2")
    now[0] += 2.0
    assert await cache.lookup(KEY) is None, "that was not kept"
    await cache.insert(KEY, b"3")
    assert await cache.lookup(KEY) == b"3"
    await cache.close()


@on_loop
async def test_a_cached_value_expires(redis_server):
    cache = RedisCache(options(redis_server, ttl_s=1000))
    await cache.open()
    await cache.insert(KEY, b"1")
    assert 0 < await cache._ask("TTL", b"pipeline:" + KEY) <= 1000
    await cache.close()


@on_loop
async def test_a_missing_server_is_an_error(tmp_path):
    nobody = RedisOptions(host="127.0.0.1", port=free_port())
    with pytest.raises(InitError, match=r"failed to connect to Redis \(127.0.0.1:\d+\): .*refused"):
        await RedisCache(nobody).open()


@pytest.mark.parametrize(("password", "text"), [(None, "NOAUTH"), ("no", "WRONGPASS"), ("s", "")])
def test_a_password_is_needed_where_there_is_one(tmp_path, monkeypatch, password, text):
    monkeypatch.delenv("TRITONCACHE_REDIS_PASSWORD", raising=False)
    server = RedisServer(tmp_path, "--requirepass", "s")

    @on_loop
    async def connect():
        cache = RedisCache(options(server, password=password))
        await cache.open()
        await cache.close()

    try:
        if text:
            with pytest.raises(InitError, match=text):
                connect()
        else:
            connect()
            monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", "s")
            password = None
            connect()
    finally:
        server.stop()

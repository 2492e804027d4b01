"""The names by which a server may be called: no page of another site reaches it by a name that leads here."""

from __future__ import annotations

import http.client

import pytest
from serving import Running, post, running, settings
from test_workers import PATH, RECORD

from hbc.serve.failures import Failure
from hbc.serve.hosts import Hosts, hosts_of

GOOD = (
    "localhost",
    "LOCALHOST:80",
    "localhost.",
    "a.localhost:8000",
    "127.0.0.1",
    "127.0.0.1:8000",
    "[::1]",
    "[::1]:8000",
    "10.1.2.3",
    "",
)
BAD = (
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example:",
    "notlocalhost",
    "localhost@evil.example",
    "127.0.0.1, evil.example",
    "evil.example:127.0.0.1",
    "::1",
    "[evil.example]",
    "127.1",
    "0x7f.1",
    "localhost:8000:9",
    ".",
    " localhost",
    "ｌocalhost",
)


@pytest.mark.parametrize("host", GOOD)
def test_names_that_lead_here(host: str) -> None:
    hosts = Hosts()
    for _ in range(2):
        hosts.require(host)


@pytest.mark.parametrize("host", BAD)
def test_names_of_others(host: str) -> None:
    hosts = Hosts(["models.example"])
    for _ in range(2):
        with pytest.raises(Failure) as found:
            hosts.require(host)
        assert found.value.status == 403
    hosts.require("Models.example:8000")
    Hosts(["*"]).require(host)


def test_where_the_rule_holds() -> None:
    assert hosts_of(["127.0.0.1", "::1"], None, []) is not None
    assert hosts_of(["127.0.0.1"], "secret", []) is None
    assert hosts_of(["0.0.0.0"], None, []) is None
    assert hosts_of(["127.0.0.1", "10.0.0.1"], None, []) is None
    assert hosts_of(["fe80::1%eth0"], "secret", ["models.example"]) is not None


def test_both_ways_of_http_look_at_the_host() -> None:
    """The short way, again with a head that is known, and the long one; also for health and the page, which need no token."""
    with running(settings(allowed_hosts=[])) as server:
        for _ in range(3):
            good = post(PATH, RECORD).replace(b"Host: x", b"Host: localhost:1")
            assert server.raw(good).startswith(b"HTTP/1.1 200")
            bad = server.raw(post(PATH, RECORD).replace(b"Host: x", b"Host: evil.example"))
            assert bad.startswith(b"HTTP/1.1 403")
            assert b"--allowed-host" in bad
        for path in ("/", "/v2", "/v2/health/live", "/metrics", "/overview"):
            assert [asked(server, path, host) for host in ("evil.example", "localhost:1")] == [403, 200]
        rebound = {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"}
        assert server.ask("POST", PATH, RECORD, rebound)[0] == 403


def asked(server: Running, path: str, host: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", path, headers={"Host": host})
    status = connection.getresponse().status
    connection.close()
    return status

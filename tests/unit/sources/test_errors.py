"""What git says when a server fails: whether it is asked again, and what the user is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core import web
from builder.core.errors import FetchError
from builder.sources import git
from builder.sources.git import GitError, UpstreamLacksError, fetch_error
from support.faults import Handler, answering, cut, nothing, serving, with_tls
from support.mirrored import Mirrored
from support.upstreams import Upstream

pytestmark = pytest.mark.usefixtures("no_waiting")
A = "a" * 40
ACCESS = "fatal: unable to access 'https://git.invalid/x/': "
SSH = """
fatal: Could not read from remote repository.

Please make sure you have the correct access rights
and the repository exists."""
# As git 2.39 and newer ones, curl 7.88 and 8, ssh and servers print them.
TEXTS = {
    "does not answer": [
        ACCESS + "OpenSSL SSL_connect: SSL_ERROR_SYSCALL in connection to git.invalid:443",
        ACCESS + "gnutls_handshake() failed: Error in the pull function.",
        ACCESS + "gnutls_handshake() failed: The TLS connection was non-properly terminated.",
        ACCESS + "GnuTLS recv error (-54): Error in the pull function.",
        ACCESS + "GnuTLS recv error (-9): Error decoding the received TLS packet.",
        ACCESS + "OpenSSL SSL_read: error:0A000126:SSL routines::unexpected eof while reading, "
        "errno 0",
        ACCESS + "TLS connect error: error:00000000:lib(0)::reason(0), unexpected eof",
        ACCESS + "gnutls_handshake() failed: A TLS packet with unexpected length was received.",
        "Connection to git.invalid closed by remote host." + SSH,
        ACCESS + "HTTP/2 stream 1 was not closed cleanly: PROTOCOL_ERROR (err 1)",
        ACCESS + "Error in the HTTP2 framing layer",
        ACCESS + "The requested URL returned error: 502",
        ACCESS + "The requested URL returned error: 504 Gateway Time-out",
        ACCESS + "The requested URL returned error: 429",
        ACCESS + "CONNECT tunnel failed, response 503",
        ACCESS + "Received HTTP code 502 from proxy after CONNECT",
        ACCESS + "Proxy CONNECT aborted",
        ACCESS + "Recv failure: Connection reset by peer",
        ACCESS + "transfer closed with 966 bytes remaining to read",
        "error: RPC failed; HTTP 504 curl 22 The requested URL returned error: 504\n"
        "fatal: expected flush after ref listing",
        "error: RPC failed; result=22, HTTP code = 503\nfatal: expected 'packfile'",
        "error: RPC failed; curl 92 HTTP/2 stream 5 was not closed cleanly: CANCEL (err 8)\n"
        "error: 1022 bytes of body are still expected\nfatal: early EOF",
        "fatal: the remote end hung up unexpectedly",
        "fatal: early EOF",
        "ssh: connect to host git.invalid port 22: Connection timed out" + SSH,
        "kex_exchange_identification: read: Connection reset by peer" + SSH,
        "client_loop: send disconnect: Broken pipe" + SSH,
    ],
    "its TLS certificate is not trusted": [
        ACCESS + "SSL certificate problem: self-signed certificate in certificate chain",
        ACCESS + "SSL certificate problem: unable to get local issuer certificate",
        ACCESS + "SSL certificate problem: certificate has expired",
        ACCESS + "server certificate verification failed. CAfile: none CRLfile: none",
        ACCESS + "SSL: no alternative certificate subject name matches target host name 'x'",
        ACCESS + "SSL: certificate subject name (x) does not match target host name 'y'",
        ACCESS + "Problem with the SSL CA cert (path? access rights?)",
        ACCESS + "error setting certificate verify locations:  CAfile: /x CApath: none",
        ACCESS + "error setting certificate file: /x",
        ACCESS + "Peer's Certificate issuer is not recognized.",
    ],
    "the proxy wants a login": [
        ACCESS + "CONNECT tunnel failed, response 407",
        ACCESS + "Received HTTP code 407 from proxy after CONNECT",
        "fatal: unable to access 'http://x/': The requested URL returned error: 407",
    ],
    "the proxy refuses": [
        ACCESS + "CONNECT tunnel failed, response 403",
        ACCESS + "Received HTTP code 404 from proxy after CONNECT",
    ],
    "its name does not resolve": [
        ACCESS + "Could not resolve host: git.invalid",
        ACCESS + "Couldn't resolve host 'git.invalid'",
        ACCESS + "Could not resolve proxy: proxy.invalid",
        "ssh: Could not resolve hostname x: Temporary failure in name resolution" + SSH,
        "fatal: unable to look up x (port 9418) (Name or service not known)",
    ],
    "authentication failed": [
        "fatal: could not read Username for 'https://github.com': terminal prompts disabled",
        "remote: HTTP Basic: Access denied\nfatal: Authentication failed for 'https://x/'",
        ACCESS + "The requested URL returned error: 403",
        "git@github.com: Permission denied (publickey)." + SSH,
    ],
    "gone": [
        f"fatal: remote error: upload-pack: not our ref {A}",
        f"error: Server does not allow request for unadvertised object {A}",
        "fatal: couldn't find remote ref refs/pull/6/head",
        f"fatal: remote error: want {A} not valid",
        "remote: Not Found\nfatal: repository 'https://x/y/' not found",
        ACCESS + "The requested URL returned error: 410",
        "error: RPC failed; HTTP 404 curl 22 The requested URL returned error: 404\n"
        "fatal: the remote end hung up unexpectedly",
        "fatal: '/x' does not appear to be a git repository" + SSH,
        "ERROR: Repository not found." + SSH,
        "The requested repository either does not exist or you do not have access." + SSH,
        "remote: TF401019: The Git repository with name or identifier x does not exist or you do "
        "not have permissions for the operation you are attempting.",
        "ERROR: The project you were looking for could not be found or you don't have permission"
        " to view it." + SSH,
    ],
    "the repository could not be read": [
        "Host key verification failed." + SSH,
        "fatal: detected dubious ownership in repository at '/x'" + SSH,
        "fatal: protocol error: bad line length character: <!DO",
        "error: cannot open '/x/FETCH_HEAD': Permission denied",
        ACCESS + "gnutls_handshake() failed: An unexpected TLS packet was received.",
        ACCESS + "error:0A00010B:SSL routines::wrong version number",
        ACCESS + "The requested URL returned error: 400",
        "fatal: remote error: access denied or repository not exported: /x",
        "something that nobody has seen yet",
    ],
}


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in TEXTS.items() for text in texts]
)
def test_only_a_server_that_says_so_lacks_a_commit(kind: str, text: str) -> None:
    error = GitError("fetch", 128, text)
    told = fetch_error("https://git.invalid/x", A, error)
    assert error.is_temporary == (kind == "does not answer")
    assert isinstance(told, UpstreamLacksError) == (kind == "gone")
    assert kind == "gone" or kind in told.what, told
    assert text.splitlines()[0] in told.why


@pytest.mark.parametrize(
    ("kind", "again"),
    [
        ("untrusted", False),
        ("another name", False),
        ("cut", True),
        ("closed in the handshake", True),
        ("proxy 407", False),
        ("proxy 403", False),
        ("proxy 503", True),
        ("no proxy", False),
        ("closed proxy", False),
    ],
)
def test_real_git_meets_real_faults(
    kind: str,
    again: bool,
    upstream: Upstream,
    mirrored: Mirrored,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("https_proxy", "http_proxy", "all_proxy", "no_proxy", "GIT_SSL_CAINFO"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    handler: Handler = nothing
    if kind in {"untrusted", "another name", "cut"}:
        name = "other.invalid" if kind == "another name" else "127.0.0.1"
        handler, authority = with_tls(name, cut)
        if kind != "untrusted":
            authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
            monkeypatch.setenv("GIT_SSL_CAINFO", str(tmp_path / "ca.pem"))
    elif kind.startswith("proxy"):
        handler = answering(f"{kind[6:]} Reason")
    with serving(handler) as (port, count):
        url = f"https://127.0.0.1:{port}/engine.git"
        if "proxy" in kind:
            url = "https://git.example.invalid/engine.git"
            where = "proxy.example.invalid" if kind == "no proxy" else f"127.0.0.1:{port}"
            where = "127.0.0.1:9" if kind == "closed proxy" else where
            monkeypatch.setenv("HTTPS_PROXY", f"http://{where}")
        with pytest.raises(FetchError) as caught:
            mirrored.export(url, upstream.head())
    assert not isinstance(caught.value, UpstreamLacksError)
    assert len(count) >= web.ATTEMPTS if again else len(count) <= 1
    wanted = {
        "untrusted": "GIT_SSL_CAINFO",
        "another name": "http.sslCAInfo",
        "proxy 407": "needs user and password",
        "proxy 403": "HTTPS_PROXY and NO_PROXY",
        "no proxy": "HTTPS_PROXY",
        "closed proxy": "the proxy is wrong: check HTTPS_PROXY",
    }
    assert wanted.get(kind, "again later") in caught.value.hint


def test_git_itself_says_what_it_does_not_have(upstream: Upstream, mirrored: Mirrored) -> None:
    """The words of the git on this machine, for an object and for a repository."""
    assert git.version() is not None
    for url, commit in ((upstream.url, A), (f"{upstream.url}-gone", upstream.head())):
        with pytest.raises(UpstreamLacksError):
            mirrored.export(url, commit)

"""Packages of npm, made in the test, and a registry on loopback that has them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from support.loopback import Quiet, serving_with

ELSEWHERE = "https://registry.invalid"
"""The registry that locks name: nothing may ask it."""


def package(name: str, version: str, files: Mapping[str, str], **more: Any) -> bytes:
    """The file of a package; ``more`` goes into its package.json."""
    out = io.BytesIO()
    about = json.dumps({"name": name, "version": version, **more})
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for path, text in {"package.json": about, **files}.items():
            info = tarfile.TarInfo(f"package/{path}")
            info.size, info.mode = len(text.encode()), 0o755 if path.endswith(".js") else 0o644
            tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


def entry(name: str, version: str, content: bytes, **more: Any) -> dict[str, Any]:
    """What a lock says of a package."""
    digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    file = f"{name.rpartition('/')[2]}-{version}.tgz"
    url = f"{ELSEWHERE}/{name}/-/{file}"
    return {"version": version, "resolved": url, "integrity": f"sha512-{digest}", **more}


def lock(packages: Mapping[str, Mapping[str, Any]], **root: Any) -> bytes:
    """A package-lock.json; ``root`` is its entry of the tree itself."""
    found = {"": {"name": "page", **root}, **{f"node_modules/{n}": e for n, e in packages.items()}}
    return json.dumps({"name": "page", "lockfileVersion": 3, "packages": found}).encode()


@dataclass
class Registry:
    """Files by path; ``asked`` are the paths of its requests."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def put(self, name: str, version: str, content: bytes) -> None:
        """Offer a package where registries have it."""
        file = f"{name.rpartition('/')[2]}-{version}.tgz"
        self.files[f"/npm/{name}/-/{file}"] = content


class Handler(Quiet):
    """The registry's answers."""

    registry: Registry

    def do_GET(self) -> None:
        self.registry.asked.append(self.path)
        content = self.registry.files.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")


@contextmanager
def served() -> Iterator[Registry]:
    """An empty registry."""
    registry = Registry()
    with serving_with(type("Own", (Handler,), {"registry": registry})) as address:
        registry.url = f"http://{address}/npm/"
        yield registry


BUILD = """
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { word } from 'tiny';
if (existsSync('node_modules/tiny/owned')) throw new Error('an install script ran');
const socket = connect({ host: '192.0.2.1', port: 80, timeout: 5000 });
const reached = await new Promise((done) => {
    socket.on('connect', () => done('reached'));
    socket.on('timeout', () => done('no answer'));
    socket.on('error', (error) => done(error.code));
});
if (reached !== 'ENETUNREACH') throw new Error(`a network: ${reached}`);
mkdirSync('dist', { recursive: true });
const made = [word, process.env.LLAMA_BUILD_NUMBER, Date.now(), new Date().toISOString()];
writeFileSync('dist/bundle.js', `document.title = ${JSON.stringify(made)};`);
writeFileSync('dist/index.html', '<script src="./bundle.js"></script>');
"""
"""Fails where an install script ran or there is a network; writes the time into the page."""


def page_source(registry: Registry, folder: str = "tools/ui/") -> dict[str, str]:
    """The files of a tree's page, by path; its package is in the registry."""
    script = {"install": "touch owned"}
    tiny = package(
        *("tiny", "1.0.0", {"index.js": "export const word = 'tiny';"}),
        type="module",
        main="index.js",
        scripts=script,
    )
    registry.put("tiny", "1.0.0", tiny)
    about = {"name": "page", "type": "module", "dependencies": {"tiny": "1.0.0"}}
    needs = entry("tiny", "1.0.0", tiny, hasInstallScript=True)
    return {
        f"{folder}package.json": json.dumps({**about, "scripts": {"build": "node build.js"}}),
        f"{folder}package-lock.json": lock(
            {"tiny": needs}, dependencies=about["dependencies"]
        ).decode(),
        f"{folder}build.js": BUILD,
        "scripts/ui-assets.cmake": 'set(SRC_DIST_DIR "${UI_SOURCE_DIR}/dist")\n',
    }

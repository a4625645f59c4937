"""A world that is broken: no engine, no buildx, a full disk, an engine that dies."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.measure.setup import engine_settings
from builder.plan.plan import BasePlan
from support.catalogs import rendered
from support.commands import Builder
from support.smoke_tests import docker
from support.variants import Begin, edit, wait_for_log

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("variant")]


def plain(text: str) -> str:
    assert "Traceback" not in text
    return text


def test_no_engine(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    done = builder("build", "hello-sm120")
    assert done.returncode == 4
    assert "Docker does not answer" in plain(done.stderr)
    assert "-> start it" in done.stderr
    assert builder("doctor").returncode == 4
    assert builder("show", "hello-sm120").returncode == 0


@pytest.fixture
def bare_client(tmp_path: Path) -> Path:
    """A directory with a ``docker`` that knows no buildx."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "docker").write_text(
        "#!/bin/sh\necho \"docker: '$1' is not a command\" >&2\nexit 1\n"
    )
    (folder / "docker").chmod(0o755)
    return folder


def test_a_client_without_buildx_is_passed_over(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, bare_client: Path
) -> None:
    monkeypatch.setenv("PATH", f"{bare_client}:{os.environ['PATH']}")
    found = {item["what"]: item for item in json.loads(builder("doctor", "--json").stdout)}
    assert found["buildx"]["state"] == "ok"
    assert str(bare_client) not in found["buildx"]["found"]


def test_only_a_client_without_buildx(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, bare_client: Path
) -> None:
    monkeypatch.setenv("PATH", str(bare_client))
    done = builder("build", "hello-sm120")
    assert done.returncode == 4
    assert "docker has no buildx plugin" in plain(done.stderr)
    assert str(bare_client) in done.stderr


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory with two megabytes of room."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_too_full_to_begin(
    builder: Builder,
    one_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny_disk: Path,
) -> None:
    monkeypatch.setenv("BUILDER_CACHE_DIR", str(tiny_disk))
    done = builder("build", "variant", "--catalog", one_file)
    assert done.returncode == 10
    assert f"is on the disk mounted at {tiny_disk}, which has 0.0" in plain(done.stderr)
    edit(one_file, "disk = 1.0", "disk = 1999.0")
    monkeypatch.delenv("BUILDER_CACHE_DIR")
    done = builder("build", "variant", "--catalog", one_file)
    assert done.returncode == 10
    assert "the build of variant-0.1.0 needs 1999.0 GiB" in plain(done.stderr)


@pytest.fixture
def own_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[subprocess.Popen[bytes]]:
    """A second engine, that may be killed."""
    folder = Path("/run") / f"builder-test-{os.getpid()}"
    folder.mkdir()
    (folder / "daemon.json").write_text(engine_settings(10**11))
    socket = folder / "docker.sock"
    # In a network of its own: else it would remove the real engine's bridge.
    command = [
        "unshare",
        "--net",
        "dockerd",
        f"--config-file={folder}/daemon.json",
        f"--host=unix://{socket}",
    ]
    command += [f"--data-root={tmp_path}/data", f"--exec-root={folder}/exec"]
    command += [f"--pidfile={folder}/pid", "--bridge=none", "--iptables=false", "--ip6tables=false"]
    with (tmp_path / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{socket}")
    try:
        for _ in range(150):
            ready = subprocess.run(["docker", "version"], capture_output=True, check=False)
            if ready.returncode == 0:
                break
            time.sleep(0.2)
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM) if process.poll() is None else None
        process.wait(30)
        subprocess.run(["pkill", "-9", "-f", str(folder)], check=False)
        time.sleep(1)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in mounts:
            if mount.startswith((str(folder), str(tmp_path))):
                subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.usefixtures("own_engine")
def test_a_new_engine_deletes_layers_before_a_compiler_cache() -> None:
    shown = docker("buildx", "inspect")
    rules = re.findall(r"Filters: *(\S*)\n *Keep Bytes: (\S+)GiB", shown)
    *layers, (filters, size) = rules
    assert [kind for kind, _ in layers] == ["type==regular", "type==source.local"]
    assert filters == "", "the last rule is for compiler caches, too"
    assert all(float(size) > float(each) for _, each in layers)


@pytest.fixture
def lasting_base(small_root: str, tmp_path: Path) -> Path:
    """A tar of a base in which a compile takes a minute."""
    file, program = tmp_path / "base.tar", b"#!/bin/sh\nexec sleep 60\n"
    container = docker("create", small_root, "none")
    docker("export", f"--output={file}", container)
    docker("rm", container)
    with tarfile.open(file, "a") as tar:
        for name in ("bin/cmake", "bin/nproc", "local/cuda/bin/ptxas"):
            member = tarfile.TarInfo(f"usr/{name}")
            member.mode, member.size = 0o755, len(program)
            tar.addfile(member, io.BytesIO(program))
    return file


def import_bases(catalog: Path, tar: Path) -> None:
    """Give the engine the bases of the engine ``variant``."""
    base: BasePlan | None = rendered(catalog, "variant-0.1.0").base
    while base is not None:
        labels = [f"--change=LABEL {name}={json.dumps(text)}" for name, text in base.labels.items()]
        for reference in base.references.values():
            docker("import", "--platform=linux/amd64", *labels, str(tar), reference)
        base = base.base


def test_an_engine_that_dies_during_the_build(
    one_file: Path,
    begin: Begin,
    lasting_base: Path,  # of the first engine: before the second one is this test's
    own_engine: subprocess.Popen[bytes],
    tmp_path: Path,
) -> None:
    import_bases(one_file, lasting_base)
    with begin(one_file) as process:
        wait_for_log(tmp_path / "state", "RUN --network=none")
        own_engine.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 4, errors
    assert "Docker went away" in plain(errors)

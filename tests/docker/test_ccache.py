"""The compiler cache of the engine: out of its mount into a file, and back, as ccache sees it."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from builder.build import ccache
from builder.build.build import build_image
from builder.build.ccache import ID
from builder.build.log import BuildLog
from builder.core.errors import BuildError, WorldError
from builder.docker import buildx
from builder.sources.gather import BuildContext
from support.catalogs import rendered
from support.ccaches import Mount
from support.commands import Builder
from support.environment import REPOSITORY

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("bisect")]


def test_what_was_compiled_on_one_machine_is_known_on_another(mount: Mount, tmp_path: Path) -> None:
    file = tmp_path / "a,b" / "kept.tar"
    assert mount.compiled() == {"direct_cache_hit": 0, "cache_miss": 1}
    kept = ccache.save(mount.image, file, mount.fresh(), 1.0, identifier=mount.name)
    assert kept == file.stat().st_size
    assert mount.compiled() == {"direct_cache_hit": 1, "cache_miss": 0}, "it stays where it is"

    mount.drop()
    assert mount.run("ls -A /ccache") == "", "the engine has forgotten it"
    link = tmp_path / "link.tar"
    link.symlink_to(file)
    taken = ccache.load(mount.image, link, mount.fresh(), identifier=mount.name)
    assert taken == kept
    assert mount.compiled() == {"direct_cache_hit": 1, "cache_miss": 0}


def test_of_too_much_the_newest_is_kept(mount: Mount, tmp_path: Path) -> None:
    # The names of ccache's results, each used a minute after the one before.
    mount.run(
        "mkdir -p /ccache/a/b /ccache/tmp /ccache/lock; for n in 1 2 3 4 5 6 7 8; do "
        "head -c 100000 /dev/urandom >/ccache/a/b/$n; touch -d @$((1700000000 + n * 60)) "
        "/ccache/a/b/$n; done; touch /ccache/a/stats /ccache/tmp/x /ccache/lock/y"
    )
    file = tmp_path / "kept.tar"
    limit = 350_000 / 2**30
    ccache.save(mount.image, file, mount.fresh(), limit, identifier=mount.name)
    with tarfile.open(file) as tar:
        files = {member.name: member.mtime for member in tar if member.isfile()}
    assert {name.lstrip("./") for name in files} == {"a/b/6", "a/b/7", "a/b/8"}
    assert max(files.values()) == 1700000000 + 8 * 60, "when it was used is kept, too"


def test_a_file_that_is_not_whole_or_not_ours_is_refused(mount: Mount, tmp_path: Path) -> None:
    mount.run(
        "mkdir -p /ccache/a/b; head -c 100000 /dev/urandom | tee /ccache/a/b/x >/ccache/a/b/y"
    )
    file = tmp_path / "kept.tar"
    ccache.save(mount.image, file, mount.fresh(), 1.0, identifier=mount.name)
    content = file.read_bytes()
    with tarfile.open(file) as tar:
        parts = [member.offset for member in tar]
    mount.drop()
    beside = io.BytesIO()
    with tarfile.open(fileobj=beside, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("hostname"))
    linked = io.BytesIO()
    with tarfile.open(fileobj=linked, mode="w") as tar:
        link = tarfile.TarInfo("a/b/x")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    cut = [content[:end] for end in (*parts, len(content) * 2 // 3)]
    tail = content.rstrip(b"\0") + b"\0" * 511 + b"no header" * 200
    for wrong in (*cut, tail, b"no tar at all", beside.getvalue(), linked.getvalue()):
        file.write_bytes(wrong)
        with pytest.raises(WorldError, match=r"kept\.tar is no compiler cache"):
            ccache.load(mount.image, file, mount.fresh(), identifier=mount.name)
    assert mount.run("ls -A /ccache") == ""
    with pytest.raises(WorldError, match="is no compiler cache"):
        ccache.load(mount.image, tmp_path / "gone.tar", mount.fresh())


def test_what_cannot_be_kept_leaves_the_file_that_was_there(mount: Mount, tmp_path: Path) -> None:
    file = tmp_path / "kept.tar"
    file.write_text("of the last night")
    with pytest.raises(BuildError, match="cannot keep the compiler cache"):
        ccache.save("builder-test/none:of-this-name", file, mount.fresh(), 1.0)
    assert file.read_text() == "of the last night"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["kept.tar"]


def test_a_full_disk_of_an_older_run_is_not_todays(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "base-x.log"
    file.parent.mkdir()
    file.write_text("#9 1.0 cp: error writing 'x': No space left on device\n")
    (tmp_path / "Dockerfile").write_text("FROM scratch AS image\nCOPY nothing /\n")
    log = BuildLog(file)
    with pytest.raises(BuildError, match="the build of builder-test/none failed"):
        build_image(
            BuildContext(tmp_path, {}, {}, {}, {"image": ("linux/amd64",)}, 0),
            "image",
            "builder-test/none",
            {},
            log,
            lambda _: None,
            buildx.builder(),
        )


def test_the_command_finds_the_cache_that_recipes_compile_with(
    builder: Builder, images: dict[str, str], tmp_path: Path
) -> None:
    assert images["devel"]  # so hello-sm120 has been compiled, now or earlier
    assert f"id={ID},target=/ccache" in rendered(REPOSITORY, "hello-sm120-0.1.0").text
    file = tmp_path / "kept.tar"
    done = builder("ci", "ccache", "save", "hello-sm120", file, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"file": str(file), "size": file.stat().st_size}
    assert tarfile.is_tarfile(file)
    taken = builder("ci", "ccache", "load", "hello-sm120", file, "--json")
    assert json.loads(taken.stdout) == json.loads(done.stdout)

"""The bill of materials of a real image, and of images that can have none."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from builder.core.errors import UntriedError
from builder.publish.sbom import STATUS, Dpkg, Package, installed
from support.bills import faults, package, purl, relations
from support.commands import Builder

pytestmark = pytest.mark.docker


def test_the_packages_are_those_of_dpkg(
    hello: dict[str, Any],
    images: dict[str, str],
    builder: Builder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BUILDER_STATE_DIR", str(hello["state"]))
    listing = subprocess.run(
        [
            *("docker", "run", "--rm", "--network=none", "--entrypoint=dpkg-query"),
            *(images["good"], "-W", "-f", "${Package} ${Version} ${Architecture}\n"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    installed_packages = set(listing.stdout.splitlines())
    assert len(installed_packages) > 50
    done = builder("sbom", "hello-sm120")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert faults(document) == []
    assert document["packages"][0]["checksums"][0]["checksumValue"] in hello["digest"]
    role = relations(document)
    listed = {
        f"{each['name']} {each['versionInfo']} {re.search('arch=([a-z0-9]+)', purl(each))[1]}"
        for each in document["packages"]
        if purl(each).startswith("pkg:deb/") and role[each["name"]] == "CONTAINS"
    }
    assert listed == installed_packages
    # The image's own label has the base's digest.
    (digest,) = hello["base"].values()
    assert f"builder:image: {digest}" in package(document, "cuda-13.0")["comment"]


def imported(name: str, file: str, content: bytes) -> str:
    """An image of one file."""
    packed, member = io.BytesIO(), tarfile.TarInfo(file)
    member.size = len(content)
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(member, io.BytesIO(content))
    subprocess.run(["docker", "import", "-", name], input=packed.getvalue(), check=True)
    return name


def test_an_image_without_dpkg_or_release_says_so(made: set[str], tmp_path: Path) -> None:
    made.update({"builder-test/without-dpkg:1", "builder-test/without-release:1"})
    assert installed(imported("builder-test/without-dpkg:1", "alone", b""), tmp_path) is None
    status = b"Package: x\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n"
    name = imported("builder-test/without-release:1", STATUS.lstrip("/"), status)
    assert installed(name, tmp_path) == Dpkg("debian", "", (Package("x", "1", "all", "x", "1"),))
    with pytest.raises(UntriedError, match="cannot read"):
        installed("builder-test/that-is-not-there:1", tmp_path)


def test_there_is_no_bill_of_what_was_not_verified(builder: Builder) -> None:
    done = builder("sbom", "hello-sm120", "--format", "provenance")
    assert done.returncode == 4
    assert "there is no verified image" in done.stderr
    assert done.stdout == ""

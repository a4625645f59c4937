"""`pin lock`: requirements become the exact wheels of linux x86_64, whatever Python runs here."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from support.commands import Builder

BASE = """
name    = "wheels"
summary = "Python packages"
license = "MIT"
family  = "python-wheels"
base    = "cuda-13.0"

[python]   # kept
lock         = "locks/wheels.toml"
requirements = {requirements}
"""


def write(catalog: Path, *requirements: str) -> Path:
    text = BASE.format(requirements=json.dumps(requirements))
    (catalog / "recipes" / "bases" / "wheels.toml").write_text(text)
    return catalog / "recipes" / "bases" / "locks" / "wheels.toml"


@pytest.mark.network
def test_requirements_become_wheels(builder: Builder, catalog: Path) -> None:
    # The second is wanted only for the other side of its marker, Python 3.12 and newer.
    file = write(catalog, "markupsafe==3.0.2", 'six==1.16.0; python_version >= "3.12"')
    done = builder("pin", "lock", "wheels", "--catalog", catalog, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert not file.exists()
    done = builder("pin", "lock", "wheels", "--catalog", catalog)
    assert done.returncode == 0, done.stderr
    assert "for CPython 3.13 on linux x86_64" in done.stderr
    assert "markupsafe added -> 3.0.2" in done.stdout
    assert "wheels.toml: 2 files" in done.stdout
    locked = tomllib.loads(file.read_text())
    assert locked["python"] == "3.13"
    digests = {entry["name"]: entry["sha256"] for entry in locked["runtime"]}
    # From the index's page: MarkupSafe-3.0.2-cp313-cp313-manylinux_2_17_x86_64...whl.
    assert digests == {
        "markupsafe": "15ab75ef81add55874e7ab7055e9c397312385bd9ced94920f2802310c930396",
        "six": "8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254",
    }
    build = '[[build]]\nname = "wheel"\nversion = "1"\nsha256 = "' + "0" * 64 + '"\n'
    file.write_text(file.read_text() + build)
    builder("pin", "lock", "wheels", "--catalog", catalog)
    assert tomllib.loads(file.read_text())["build"][0]["name"] == "wheel"  # it is kept
    again = builder("pin", "lock", "wheels", "--catalog", catalog)
    assert "no changes" in again.stdout
    other = builder("pin", "lock", "wheels", "--catalog", catalog, "--python", "3.12", "--json")
    (made,) = json.loads(other.stdout)
    files = {entry["name"]: entry["sha256"] for entry in made["files"]}
    assert files["six"] == digests["six"]
    assert files["markupsafe"] != digests["markupsafe"]


@pytest.mark.network
def test_what_cannot_be_locked(builder: Builder, catalog: Path) -> None:
    file = write(catalog, "markupsafe==3.0.2", "markupsafe<2")
    done = builder("pin", "lock", "wheels", "--catalog", catalog)
    assert done.returncode == 3
    assert "no compatible versions for CPython 3.13" in done.stderr
    assert not file.exists()
    file.parent.mkdir(exist_ok=True)
    file.write_text("half a lo")
    write(catalog, "six==1.16.0")
    done = builder("pin", "lock", "wheels", "--catalog", catalog)
    assert done.returncode == 0, done.stderr
    assert "wheels.toml is invalid; writing a new one" in done.stderr
    file.unlink()
    write(catalog, 'idna; python_version < "3"')
    done = builder("pin", "lock", "wheels", "--catalog", catalog)
    assert done.returncode == 3
    assert "no requirement of wheels applies to CPython" in done.stderr
    assert not file.exists()
    done = builder("pin", "lock", "wheels", "--catalog", catalog, "--python", "2.7")
    assert done.returncode == 2
    done = builder("pin", "lock", "cuda-13.0", "--only", "python", "--catalog", catalog)
    assert done.returncode == 3
    assert "cuda-13.0 has no Python requirements to lock" in done.stderr
    done = builder("pin", "lock", "nothing", "--catalog", catalog)
    assert done.returncode == 3
    assert "no recipe is named nothing" in done.stderr


@pytest.mark.network
def test_debian_packages_of_a_root_are_signed_and_complete(builder: Builder, catalog: Path) -> None:
    lock = catalog / "recipes" / "bases" / "locks" / "debian-trixie.debian.toml"
    lock.unlink()
    done = builder("pin", "lock", "debian-trixie", "--catalog", catalog)
    assert done.returncode == 0, done.stderr
    locked = tomllib.loads(lock.read_text())
    assert locked["suite"] == "trixie"
    assert [install["architecture"] for install in locked["install"]] == ["amd64", "arm64"]
    for install in locked["install"]:
        names = {file["path"].rpartition("/")[2].split("_")[0] for file in install["files"]}
        # Essential packages, a required one, apt, and the one that the base asks for.
        assert {"base-files", "dpkg", "passwd", "apt", "ca-certificates", "libc6"} <= names

"""Locks: requirements become the exact wheels of linux x86_64, whatever Python runs here."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from builder.errors import RecipeError
from builder.recipes import lockfile
from builder.tools.python.wheel_tags import rank
from support.commands import Builder
from support.smoke_tests import docker

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


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("a-1-cp313-cp313-manylinux_2_28_x86_64.whl", "a-1-cp313-cp313-manylinux_2_17_x86_64.whl"),
        ("a-1-cp313-cp313-manylinux_2_17_x86_64.whl", "a-1-cp38-abi3-manylinux_2_35_x86_64.whl"),
        ("a-1-cp38-abi3-manylinux_2_35_x86_64.whl", "a-1-py3-none-any.whl"),
        ("a-1-2-py3-none-any.whl", "a-1-1-py3-none-any.whl"),
        ("a-1-py3-none-any.whl", None),
        ("a-1-cp313-cp313-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", None),
    ],
)
def test_the_wheel_that_fits_best(better: str, worse: str | None) -> None:
    first = rank(better, "3.13")
    assert first is not None
    if worse is not None:
        second = rank(worse, "3.13")
        assert second is not None
        assert first < second


@pytest.mark.parametrize(
    "name",
    [
        "a-1-cp312-cp312-manylinux_2_28_x86_64.whl",
        "a-1-cp313-cp313t-manylinux_2_28_x86_64.whl",
        "a-1-cp313-cp313-manylinux_2_28_aarch64.whl",
        "a-1-cp313-cp313-musllinux_1_2_x86_64.whl",
        "a-1-cp313-cp313-win_amd64.whl",
        "a-1-cp313-cp313-manylinux_2_99_x86_64.whl",
        "a-1.tar.gz",
        "a.whl",
    ],
)
def test_a_wheel_that_does_not_fit(name: str) -> None:
    assert rank(name, "3.13") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[runtime]]\nname = "a"\nversion = "1"\n', "3: runtime.0.sha256: is missing"),
        ('[[runtime]]\nname = "a"\nversion = "1"\nsha256 = "x"\n', "6: runtime.0.sha256: 'x'"),
        ('[[build]]\nnome = "a"\n', "4: build.0.nome: unknown key; did you mean name?"),
        ("\n[[runtime]\n", "4: not TOML: "),
    ],
)
def test_what_is_wrong_in_a_lock_is_named_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "a.toml"
    file.write_text(f'# a lock\npython = "3.13"\n{text}')
    with pytest.raises(RecipeError, match=r"a\.toml is invalid") as caught:
        lockfile.read(file)
    assert f"{file}:{said}" in caught.value.why


@pytest.mark.network
def test_requirements_become_wheels(builder: Builder, catalog: Path) -> None:
    # Of the second only the marker's side for another Python than 3.11 is wanted.
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
    # Of the index's page: MarkupSafe-3.0.2-cp313-cp313-manylinux_2_17_x86_64...whl.
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
    files = {entry["name"]: entry["sha256"] for entry in json.loads(other.stdout)["files"]}
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
    done = builder("pin", "lock", "cuda-13.0", "--catalog", catalog)
    assert done.returncode == 3
    assert "cuda-13.0 has no requirements to lock" in done.stderr
    done = builder("pin", "lock", "nothing", "--catalog", catalog)
    assert done.returncode == 3
    assert "no recipe is named nothing" in done.stderr


@pytest.mark.docker
def test_a_tag_becomes_a_digest(
    builder: Builder, catalog: Path, registry: str, made: set[str]
) -> None:
    image = f"{registry}/seen/image:1"
    made.add(image)
    output = f"--output=type=image,name={image}"
    docker("buildx", "build", "--provenance=false", output, "-", text="FROM scratch\nWORKDIR /a\n")
    docker("push", "--quiet", image)
    digest = json.loads(docker("image", "inspect", image))[0]["Id"]
    file = catalog / "recipes" / "bases" / "seen.toml"
    text = 'name = "seen"\nsummary = "x"   # kept\nlicense = "MIT"\nfamily = "published"\n'
    text += f'\n[published]\nimage = "{image}"\nnote  = "not yet"\n'
    file.write_text(text)
    done = builder("pin", "image", "seen", "--catalog", catalog, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f'+digest = "{digest}"' in done.stdout
    assert file.read_text() == text
    builder("pin", "image", "seen", "--catalog", catalog)
    written = file.read_text()
    assert "# kept" in written
    assert tomllib.loads(written)["published"] == {"image": image, "digest": digest}
    done = builder("pin", "image", "seen", "--catalog", catalog)
    assert "seen is already pinned to this digest" in done.stdout
    file.write_text(text.replace(registry, "127.0.0.1:9"))
    done = builder("pin", "image", "seen", "--catalog", catalog)
    assert done.returncode == 5
    assert "no registry answers for 127.0.0.1:9/seen/image:1" in done.stderr

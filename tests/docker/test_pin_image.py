"""`pin image` writes the digest of a tag."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from support.commands import Builder
from support.smoke_tests import docker


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
    assert "127.0.0.1:9 does not answer: 127.0.0.1:9/seen/image:1" in done.stderr

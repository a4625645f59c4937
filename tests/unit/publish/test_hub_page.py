"""A repository's page on Docker Hub: its contents, its limits, and `hub describe`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from builder.build import record
from builder.build.record import Record
from builder.checks.verdict import Check, DeviceUse, Verdict
from builder.image.code_paths import CodePaths
from builder.publish.hub import CUT, cut_page, describe_repository, shortened
from builder.publish.verdicts import PublicSigner
from support.catalogs import load
from support.commands import Builder
from support.environment import REPOSITORY
from support.hub import DockerHub, Fault
from support.hub_login import NAME, SECRET
from support.platforms import write_recipe
from support.sigstore import ISSUER, WORKFLOW

HELLO = (REPOSITORY / "recipes" / "hello-sm120-0.1.0.toml").read_text()
HEAD = "2374b99c16937cf00d327c93b1d2d12d708d4f30"
PATCH = f"""
[[patch]]
pull      = 6
git       = "https://github.com/somebody/engine"
base      = "2e81dc5f634501c744b69a65a8eeb84ba42e82ee"
head      = "{HEAD}"
why       = "it aborts in <float> *without* it"
drop_when = "the pin contains it"

[cuda]
"""


@pytest.fixture
def recipes(catalog: Path) -> Path:
    """Two versions of hello, the newer one with a patch and a tag that moves; one that is named
    after a commit, and one that moves every night."""
    folder = catalog / "recipes"
    (folder / "hello-sm120-0.1.0.toml").write_text(HELLO)
    newer = HELLO.replace('"0.1.0"', '"0.10.0"').replace("\n[cuda]\n", PATCH)
    newer = newer.replace("\nfamily ", '\nnotes = ["--flag is new"]\nfamily ')
    newer = newer.replace('["0.10.0"]\n', '["0.10.0"]\nmoving = ["latest"]\n')
    (folder / "hello-sm120-0.10.0.toml").write_text(newer)
    commit = HELLO.replace('"0.1.0"', '"9c0ffee"')
    (folder / "hello-sm120-9c0ffee.toml").write_text(commit)
    track = '[track]\nbranch = "main"\nchannel = "nightly"\n\n[cuda]'
    nightly = HELLO.replace('"0.1.0"', '"nightly"').replace("\n[cuda]", f"\n{track}", 1)
    nightly = nightly.replace('["nightly"]\n', '["nightly"]\nmoving = ["nightly"]\n')
    (folder / "hello-sm120-nightly.toml").write_text(nightly)
    return catalog


def describe(builder: Builder, catalog: Path, *options: str, expect: int = 0) -> Any:
    done = builder("hub", "describe", "hello-sm120-0.1.0", *options, "--catalog", catalog)
    assert done.returncode == expect, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stderr + done.stdout
    return done


def test_a_page_is_written_of_what_has_a_tag(
    hub: DockerHub, builder: Builder, recipes: Path
) -> None:
    done = describe(builder, recipes)
    assert "described  me/hello-sm120, from hello-sm120-0.1.0" in done.stdout
    page = hub.pages[NAME]
    assert (
        page.description == "The smallest engine: shows whether images built here run on your GPU"
    )
    assert "### `0.1.0`" in page.full_description
    assert "0.10.0" not in page.full_description
    page.tags += ["0.10.0", "latest"]
    told = json.loads(describe(builder, recipes, "--json").stdout)
    assert told["recipes"] == ["hello-sm120-0.10.0", "hello-sm120-0.1.0"]
    assert told["full"] == page.full_description
    assert page.full_description.index("`0.10.0`, `latest` (moves)") < page.full_description.index(
        "### `0.1.0`"
    )


def test_a_dry_run_asks_nobody(hub: DockerHub, builder: Builder, recipes: Path) -> None:
    told = json.loads(describe(builder, recipes, "--dry-run", "--json").stdout)
    printed = describe(builder, recipes, "--dry-run").stdout
    assert told["short"] in printed
    assert told["full"] in printed
    assert told["written"] is False
    versions = ("0.10.0", "0.1.0", "9c0ffee", "nightly")
    assert told["recipes"] == [f"hello-sm120-{version}" for version in versions]
    assert hub.requests == []
    assert hub.pages[NAME].full_description == "# old"


def test_what_a_page_says(recipes: Path) -> None:
    text = describe_repository(load(recipes), "hello-sm120", NAME).full
    for said in (
        "# hello-sm120\n\nThe smallest engine",
        "compute capability 12.0 (GeForce RTX 50xx)",
        f"$ docker run --rm --gpus all -p 127.0.0.1:8080:8080 \\\n    {NAME}:0.10.0",
        "The server is ready when `/health` answers",
        "### `0.10.0`, `latest` (moves)",
        f"patched with [pull 6](https://github.com/somebody/engine/pull/6) at {HEAD}: "
        "it aborts in \\<float> \\*without\\* it (until the pin contains it)",
        "### `nightly` (moved nightly to the head of `main`)",
        "- --flag is new (0.10.0)\n",
        "- libhello-cuda.so is there, has code for sm_120,",
        "- at most 500 MB to download\n- at most 750 MB unpacked",
        "- MIT: hello-sm120\n",
        "- LicenseRef-NVIDIA-CUDA-EULA: cuda-13.0",
    ):
        assert said in text
    # What holds for all is said once, without the versions.
    assert text.count("has greedy, random") == 1


def test_a_page_says_which_gpus_each_platform_is_for(recipes: Path) -> None:
    write_recipe(recipes)
    page = describe_repository(load(recipes), "builder-test/two", "me/two").full
    gpus = "12.0 (GeForce RTX 50xx), on linux/amd64, and 12.1 (GB10), on linux/arm64. Every"
    assert f"For NVIDIA GPUs of compute capability {gpus} image" in page
    assert "- for linux/amd64 and linux/arm64\n" in page


def test_a_page_has_the_figures_of_the_simulated_card(recipes: Path, tmp_path: Path) -> None:
    use = DeviceUse("RTX 5090", 1 << 30, 1 << 21, 1 << 20, {}, {"k": 3}, {"sm_120": 3}, {}, 1)
    check = Check.of("runs", "x", "y", "z", True)
    code = (CodePaths("/opt/lib_a.so", native=21_000_000, compiled=1_000_000, card="12.0"),)
    kept = Record(
        recipe="hello-sm120-0.1.0",
        key="k" * 64,
        contract="",
        references=(),
        digest="sha256:x",
        verdict=Verdict("sha256:x", (check,), 1, 1, device=use, code=code),
        created="",
        seconds={},
    )
    record.write(tmp_path, kept)
    text = describe_repository(load(recipes), "hello-sm120", NAME, state=tmp_path).full
    assert text.count("- on a simulated card: 3 launches of 1 kernels") == 1
    sums = "21.0 MB runs as it is, the driver compiles 1.0 MB at the first use (lib_a.so)"
    assert text.count(f"- device code: {sums}, 0.0 MB never runs\n") == 1


def test_the_catalogs_own_pages_are_within_the_limits() -> None:
    found = load(REPOSITORY)
    names = {entry.recipe.image.repository for entry in found.engines.values() if entry.recipe}
    for name in names:
        told = describe_repository(found, name, f"me/{name}")
        assert 0 < len(told.short.encode()) <= 100
        assert len(told.full.encode()) <= 25_000
        assert "left out" not in told.full
        versions = [each for each in told.recipes if found.engines[each].recipe is not None]
        assert all(
            f"`{found.engines[each].recipe.image.tags[0]}`" in told.full for each in versions
        )


def test_a_page_that_is_too_long_ends_after_a_paragraph(
    hub: DockerHub, builder: Builder, recipes: Path
) -> None:
    for number in range(200):
        text = HELLO.replace('"0.1.0"', f'"0.{number}.1"')
        (recipes / "recipes" / f"hello-sm120-0.{number}.1.toml").write_text(text)
        hub.pages[NAME].tags.append(f"0.{number}.1")
    describe(builder, recipes)
    text = hub.pages[NAME].full_description
    assert 24_000 < len(text.encode()) <= 25_000
    assert text.endswith("left out: a page has at most 25000 bytes.)*\n")
    last = text.split("\n\n")[-2]
    assert last.startswith("- The smallest engine")
    assert last.endswith("of the farm's repository")


def test_a_page_is_cut_at_its_marks() -> None:
    page = f"# A\n\none\n{CUT}\n- two\n{CUT}- drei äöü\n{CUT}\n## B\n\n{'four ' * 40}\n"
    whole = cut_page(page, 1000)
    assert whole == "# A\n\none\n\n- two\n- drei äöü\n\n## B\n\n" + "four " * 40 + "\n"
    size = len(whole.encode())
    assert cut_page(page, size) == whole
    cut = cut_page(page, size - 1)
    assert cut.startswith("# A\n\none\n\n- two\n- drei äöü\n\n*(1 more paragraph left out")
    assert "four" not in cut
    assert "## B" not in cut


def test_a_short_text_is_cut_at_a_word() -> None:
    assert shortened("a b", 100) == "a b"
    assert shortened("word " * 20 + "end", 100) == "word " * 18 + "word..."
    assert shortened("x" * 200, 100) == "x" * 97 + "..."
    for text in ("ä" * 200, "one, two; " * 20):
        assert len(shortened(text, 100).encode()) <= 100
    assert shortened("one, two, three, four", 14) == "one, two..."


@pytest.mark.parametrize(
    ("user", "secret", "said"),
    [
        ("me", "wrong", "authentication failed as me: log in"),
        ("me", "pushes", "access denied: insufficient scope"),
        ("you", SECRET, "permission denied"),
    ],
)
def test_who_may_not_is_told_at_once(
    hub: DockerHub,
    builder: Builder,
    recipes: Path,
    monkeypatch: pytest.MonkeyPatch,
    user: str,
    secret: str,
    said: str,
) -> None:
    monkeypatch.setenv("DOCKERHUB_USERNAME", user)
    monkeypatch.setenv("DOCKERHUB_TOKEN", secret)
    done = describe(builder, recipes, expect=12)
    assert said in done.stderr
    assert "Read, Write and Delete" in done.stderr
    assert hub.count("auth/token") == 1
    assert hub.count("PATCH") <= 1
    assert hub.pages[NAME].full_description == "# old"


def test_without_a_login_nothing_is_asked(
    hub: DockerHub, builder: Builder, recipes: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DOCKERHUB_TOKEN")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "none"))
    done = describe(builder, recipes, expect=12)
    assert "set DOCKERHUB_USERNAME and DOCKERHUB_TOKEN" in done.stderr
    assert hub.requests == []


def test_what_has_no_description(
    hub: DockerHub, builder: Builder, recipes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.pages[NAME].tags.clear()
    assert "has none of the tags that recipes name" in describe(builder, recipes, expect=12).stderr
    monkeypatch.setenv("BUILDER_NAMESPACE", "")
    assert "BUILDER_NAMESPACE is not set" in describe(builder, recipes, expect=12).stderr
    monkeypatch.setenv("BUILDER_NAMESPACE", "ghcr.io/me")
    for options in ([], ["--dry-run"]):
        done = describe(builder, recipes, *options, expect=12)
        assert "ghcr.io/me/hello-sm120 cannot have a description" in done.stderr
        assert "ghcr.io is not Docker Hub" in done.stderr


def test_who_asks_for_hours_is_not_waited_for(
    hub: DockerHub, builder: Builder, recipes: Path
) -> None:
    for after in ("9999", str(int(time.time()) + 9999)):
        hub.faults = [Fault("PATCH", 429, 9, {"Retry-After": after})]
        before = hub.count("PATCH")
        done = describe(builder, recipes, expect=5)
        assert "Docker Hub asks to wait: PATCH" in done.stderr
        assert "429 Too Many Requests; it asks to wait 3 hours" in done.stderr
        assert hub.count("PATCH") == before + 1


def test_a_summary_shows_what_cannot_be_seen(recipes: Path) -> None:
    file = recipes / "recipes" / "hello-sm120-0.10.0.toml"
    file.write_text(file.read_text().replace("The smallest engine", "The smallest \\u200bone"))
    told = describe_repository(load(recipes), "hello-sm120", NAME)
    assert told.short.startswith("The smallest \\u200bone")
    assert "The smallest \\\\u200bone" in told.full
    assert (told.short + told.full).replace("\n", "").isprintable()


def test_a_page_names_the_signer_and_the_commands_that_verify(recipes: Path) -> None:
    pem = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"
    signers = (PublicSigner(key=pem), PublicSigner("", WORKFLOW, ISSUER))
    page = describe_repository(load(recipes), "hello-sm120", NAME, signers=signers).full
    for said in (
        "## Verify it",
        f"```\n{pem.strip()}\n```",
        f"$ cosign verify --insecure-ignore-tlog=true --key=cosign.pub {NAME}:0.10.0\n",
        f"signed by the workflow `{WORKFLOW}`",
        f"--certificate-identity={WORKFLOW} --certificate-oidc-issuer={ISSUER} {NAME}:0.10.0",
    ):
        assert said in page
    assert page.count("## Verify it") == 1
    assert "## Verify it" not in describe_repository(load(recipes), "hello-sm120", NAME).full

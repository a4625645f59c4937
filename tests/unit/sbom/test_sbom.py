"""Bills of materials and provenance: valid, complete, the same every time, and telling nothing of
the machine that wrote them."""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
import tarfile
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from builder import sbom
from builder.errors import UntriedError
from builder.plan.inputs import Plan
from builder.plan.rendered import BaseImage, EngineImage
from builder.platforms import Platforms
from builder.recipes.lockfile import PinnedFile
from builder.records.record import Record
from builder.sbom.addresses import commit_purl, image_purl, public
from builder.sbom.debian import Dpkg, installed, parse
from builder.sbom.provenance import LOCAL, platform
from builder.smoke.verdict import Verdict
from support.catalogs import AMD64, rendered
from support.commands import Builder
from support.environment import REPOSITORY

docker_test = pytest.mark.docker
ENGINES = sorted(file.stem for file in (REPOSITORY / "recipes").glob("*.toml"))
DIGEST = "sha256:" + "ab" * 32
CREATED = "2026-11-21T13:58:33+00:00"
RELEASE = 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nVERSION_ID="13"\nID=debian\n'
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Source: glibc
Version: 2.41-12+deb13u1
Description: GNU C Library: Shared libraries
 Contains the standard libraries.
 .
 Version: 9 is no version here.

Package: libgcc-s1
Status: install ok installed
Architecture: amd64
Source: gcc-14 (14.2.0-19)
Version: 1:14.2.0-19+b1

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0

Package: ca-certificates
Status: install ok installed
Architecture: all
Version: 20250419
"""
DPKG = parse(STATUS, RELEASE)


@cache
def of_catalog(name: str, platforms: Platforms = AMD64) -> EngineImage:
    return rendered(REPOSITORY, name, platforms)


def record_of(made: EngineImage, **changed: Any) -> Record:
    name = made.plan.name
    kept = Record(
        recipe=name,
        key=made.key,
        contract="c0" * 32,
        references=(f"me/{name}:1-{made.short_key}", f"me/{name}:1"),
        digest=DIGEST,
        verdict=Verdict(DIGEST, (), 1, 1),
        created=CREATED,
        seconds={"plan": 9.0, f"fetch {name}": 1.5, f"build {name}": 60.0, "smoke": 9.0},
        log="/somewhere/private/build.log",
    )
    return kept.model_copy(update=changed)


@cache
def texts(name: str, dpkg: Dpkg | None = DPKG) -> dict[str, str]:
    made = of_catalog(name)
    return sbom.documents(made, record_of(made), dpkg)


def cyclonedx(name: str, dpkg: Dpkg | None = DPKG) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(texts(name, dpkg)[sbom.CYCLONEDX])
    return found


def spdx(name: str, dpkg: Dpkg | None = DPKG) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(texts(name, dpkg)[sbom.SPDX])
    return found


def provenance(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(texts(name)[sbom.PROVENANCE])
    return found


def engine_of(document: dict[str, Any]) -> dict[str, Any]:
    (found,) = [each for each in document["components"] if each["type"] == "application"]
    return dict(found)


def scopes(document: dict[str, Any]) -> dict[str, str]:
    """The scope of each component by its name."""
    return {each["name"]: each["scope"] for each in document["components"]}


def properties(component: dict[str, Any]) -> set[tuple[str, str]]:
    return {(each["name"], each["value"]) for each in component.get("properties", [])}


@pytest.mark.parametrize("dpkg", [DPKG, None], ids=["packages", "none"])
@pytest.mark.parametrize("name", ENGINES)
def test_every_document_is_valid(name: str, dpkg: Dpkg | None) -> None:
    found = texts(name, dpkg)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(found[sbom.CYCLONEDX]) is None
    references = re.findall('"bom-ref": "(.*)"', found[sbom.CYCLONEDX])
    assert len(references) == len(set(references))
    parsed = JsonLikeDictParser().parse(json.loads(found[sbom.SPDX]))
    assert [each.validation_message for each in validate_full_spdx_document(parsed)] == []


@pytest.mark.parametrize("name", ENGINES)
def test_every_pin_and_every_patch_is_in_both(name: str) -> None:
    recipe = tomllib.loads((REPOSITORY / "recipes" / f"{name}.toml").read_text())
    documents = (texts(name)[sbom.CYCLONEDX], texts(name)[sbom.SPDX])
    source = recipe["source"]
    pins = {source[key] for key in ("commit", "sha256", "path") if key in source}
    reasons = {step["why"] for step in recipe.get("start", [])}
    for patch in recipe.get("patch", []):
        if patch.get("expect") == "absent":
            continue
        reasons.add(patch["why"])
        kinds = (patch, patch.get("pick", {}), patch.get("script", {}), patch.get("add", {}))
        commits = {kind.get(key) for kind in kinds for key in ("base", "head", "commit", "to")}
        pins |= {commit for commit in commits if commit and re.fullmatch("[0-9a-f]{40}", commit)}
    wheels = set()
    below: EngineImage | BaseImage | None = of_catalog(name)
    while below is not None:
        wheels |= {file.sha256 for files in below.plan.packages.values() for file in files}
        below = below.base
    for document in documents:
        assert {pin for pin in pins | wheels if pin not in document} == set()
        assert {why for why in reasons if json.dumps(why) not in document} == set()
    applied = [
        each
        for each in json.loads(documents[1])["relationships"]
        if each["relationshipType"] == "PATCH_APPLIED"
    ]
    assert len(applied) == len(reasons)


@pytest.mark.parametrize("name", ENGINES)
def test_provenance_has_what_its_specification_asks_for(name: str) -> None:
    statement = provenance(name)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert statement["subject"] == [{"name": f"me/{name}", "digest": {"sha256": "ab" * 32}}]
    definition = statement["predicate"]["buildDefinition"]
    made = of_catalog(name)
    assert definition["externalParameters"]["recipe"] == name
    assert definition["internalParameters"]["key"] == made.key
    assert not definition["externalParameters"].keys() & definition["internalParameters"].keys()
    known = {"name", "uri", "digest", "annotations"}
    for each in definition["resolvedDependencies"]:
        assert each.keys() <= known
        assert each.get("uri") or each.get("digest"), "a descriptor without either is none"
        assert all(
            re.fullmatch("[0-9a-f]{40,64}", value) for value in each.get("digest", {}).values()
        )
    details = statement["predicate"]["runDetails"]
    assert details["builder"]["id"] == LOCAL
    assert details["metadata"] == {
        "startedOn": "2026-11-21T13:58:33Z",
        "finishedOn": "2026-11-21T13:59:34Z",
    }


def test_what_is_not_known_of_a_build_is_not_told() -> None:
    made = of_catalog("hello-sm120-0.1.0")
    began = {"startedOn": "2026-11-21T13:58:33Z"}
    for record, told in (
        (record_of(made, seconds={"smoke": 3.0}), began),
        (record_of(made, seconds={}, created="2026-11-21T15:58:33+02:00"), began),
        (record_of(made, created=""), {}),
    ):
        document = json.loads(sbom.documents(made, record, DPKG)[sbom.PROVENANCE])
        assert document["predicate"]["runDetails"]["metadata"] == told


def test_one_image_has_one_text_and_another_image_another_number() -> None:
    made = of_catalog("atomic-b8995")
    first, again = (sbom.documents(made, record_of(made), DPKG) for _ in range(2))
    assert first == again
    other = sbom.documents(made, record_of(made, digest="sha256:" + "cd" * 32), DPKG)
    assert isinstance(made.plan, Plan)
    patched, *others = made.plan.patches
    reworded = patched.patch.model_copy(update={"why": "it is better said so"})
    plan = replace(made.plan, patches=(replace(patched, patch=reworded), *others))
    same_image = sbom.documents(replace(made, plan=plan), record_of(made), DPKG)
    all_three = (first, other, same_image)
    numbers = {json.loads(each[sbom.CYCLONEDX])["serialNumber"] for each in all_three}
    spaces = {json.loads(each[sbom.SPDX])["documentNamespace"] for each in all_three}
    assert (len(numbers), len(spaces)) == (3, 3), "what says something else is another document"
    assert json.loads(first[sbom.CYCLONEDX])["metadata"]["timestamp"] == CREATED
    assert json.loads(first[sbom.SPDX])["creationInfo"]["created"] == "2026-11-21T13:58:33Z"


def test_a_pull_request_is_the_engines_pedigree() -> None:
    before = "2e81dc5f634501c744b69a65a8eeb84ba42e82ee"
    after = "2374b99c16937cf00d327c93b1d2d12d708d4f30"
    home = "https://github.com/AtomicBot-ai/atomic-llama-cpp-turboquant"
    purl = f"pkg:github/atomicbot-ai/atomic-llama-cpp-turboquant@{before}"
    engine = engine_of(cyclonedx("atomic-b8995"))
    assert engine["purl"] == purl
    (ancestor,) = engine["pedigree"]["ancestors"]
    assert ancestor["purl"] == purl
    assert "pedigree" not in ancestor
    (commit,) = engine["pedigree"]["commits"]
    assert (commit["uid"], commit["url"]) == (after, f"{home}/pull/6")
    (patch,) = engine["pedigree"]["patches"]
    assert patch["type"] == "cherry-pick"
    assert patch["diff"]["url"] == f"{home}/compare/{before}...{after}.diff"
    assert patch["resolves"][0]["references"] == [f"{home}/pull/6"]
    dependencies = provenance("atomic-b8995")["predicate"]["buildDefinition"][
        "resolvedDependencies"
    ]
    assert [(each["uri"], each["digest"]) for each in dependencies[:2]] == [
        (f"git+{home}@{commit}", {"gitCommit": commit}) for commit in (before, after)
    ]
    document = spdx("atomic-b8995")
    (package,) = [each for each in document["packages"] if each["name"] == "pull 6"]
    assert package["homepage"] == f"{home}/pull/6"
    assert package["versionInfo"] == after
    (relation,) = [
        each for each in document["relationships"] if each["relationshipType"] == "PATCH_APPLIED"
    ]
    (patched,) = [
        each for each in document["packages"] if each["SPDXID"] == relation["relatedSpdxElement"]
    ]
    assert patched["downloadLocation"] == f"git+{home}@{before}"


def test_a_file_of_ours_is_told_with_its_text_and_what_is_absent_only_as_an_input() -> None:
    (patch,) = engine_of(cyclonedx("vllm-0.19.1"))["pedigree"]["patches"]
    assert patch["type"] == "unofficial"
    text = (REPOSITORY / "patches" / "vllm-0.19-fla-tma.patch").read_bytes()
    assert base64.b64decode(patch["diff"]["text"]["content"]) == text
    assert "patch_tolist_cudagraph" not in texts("vllm-0.19.1")[sbom.CYCLONEDX]
    assert "patch_tolist_cudagraph" not in texts("vllm-0.19.1")[sbom.SPDX]
    predicate = provenance("vllm-0.19.1")["predicate"]
    applied = {
        each["name"]: each["annotations"]["builder_applied"]
        for each in predicate["buildDefinition"]["resolvedDependencies"]
        if each["annotations"]["builder_kind"] == "patch"
    }
    assert applied == {
        "file vllm-0.19-fla-tma.patch": True,
        "script patches/patch_tolist_cudagraph.py": False,
    }


def test_what_is_patched_at_every_start_is_told_as_such() -> None:
    patches = engine_of(cyclonedx("vllm-0.20.0-genesis"))["pedigree"]["patches"]
    assert sorted(patch["type"] for patch in patches) == ["monkey", "unofficial", "unofficial"]
    assert scopes(cyclonedx("vllm-0.20.0-genesis"))["start.py"] == "required"
    assert scopes(cyclonedx("vllm-0.20.2"))["start.py"] == "excluded"


def test_what_only_took_part_in_the_build_is_told_apart() -> None:
    shipped = {"nvidia-cublas", "nvidia-cuda-runtime", "libc6", "cuda-13.0", "healthcheck"}
    left = {"nvidia-cuda-nvcc", "nvidia-nvvm", "g++", "cmake", "jobs"}
    document = cyclonedx("llama-cpp-python-0.3.36")
    found = scopes(document)
    assert {found[name] for name in shipped | {"fastapi"}} == {"required"}
    assert {found[name] for name in left | {"scikit_build_core"}} == {"excluded"}
    names = {each["SPDXID"]: each["name"] for each in spdx("llama-cpp-python-0.3.36")["packages"]}
    relations = spdx("llama-cpp-python-0.3.36")["relationships"]
    built_with = {
        names[each["spdxElementId"]]
        for each in relations
        if each["relationshipType"] == "BUILD_DEPENDENCY_OF"
    }
    assert built_with == {name for name, scope in found.items() if scope == "excluded"}
    (image,) = [
        each
        for each in document["dependencies"]
        if each["ref"] == document["metadata"]["component"]["bom-ref"]
    ]
    required = {each["bom-ref"] for each in document["components"] if each["scope"] == "required"}
    assert set(image["dependsOn"]) == required


def test_a_wheel_of_both_the_build_and_the_image_stands_there_once_as_the_images() -> None:
    found = of_catalog("llama-cpp-python-0.3.36")
    both = (PinnedFile("both", "1.0", "12" * 32),)
    for contexts in (["build-wheels", "runtime-wheels"], ["runtime-wheels", "build-wheels"]):
        plan = replace(found.plan, packages=dict.fromkeys(contexts, both))
        made = replace(found, plan=plan)
        document = json.loads(sbom.documents(made, record_of(made), DPKG)[sbom.CYCLONEDX])
        wheels = [each for each in document["components"] if each["name"] == "both"]
        assert [each["scope"] for each in wheels] == ["required"]


def test_of_a_cross_build_the_targets_libraries_are_in_the_image() -> None:
    made = of_catalog("hello-sm120-0.1.0", Platforms("arm64"))
    document = json.loads(sbom.documents(made, record_of(made), DPKG)[sbom.CYCLONEDX])
    found = {
        each["scope"]: each["hashes"][0]["content"]
        for each in document["components"]
        if each["name"] == "nvidia-cublas"
    }
    wheels = tomllib.loads((REPOSITORY / "recipes/bases/cuda-13.0.toml").read_text())["wheel"]
    (cublas,) = [wheel["sha256"] for wheel in wheels if wheel["name"] == "nvidia-cublas"]
    assert found == {"required": cublas["amd64"], "excluded": cublas["arm64"]}
    assert "pkg:deb/debian/cmake?arch=arm64&distro=debian-13" in {
        each.get("purl") for each in document["components"]
    }


def test_the_wheel_that_is_patched_is_the_engine_and_stands_there_once() -> None:
    document = cyclonedx("vllm-0.20.2-wheel")
    assert [each["type"] for each in document["components"] if each["name"] == "vllm"] == [
        "application"
    ]


def test_debian_packages_are_those_that_are_installed() -> None:
    assert [(each.name, each.version, each.source) for each in DPKG.packages] == [
        ("ca-certificates", "20250419", "ca-certificates"),
        ("libc6", "2.41-12+deb13u1", "glibc"),
        ("libgcc-s1", "1:14.2.0-19+b1", "gcc-14"),
    ]
    (gcc,) = [
        each for each in cyclonedx("hello-sm120-0.1.0")["components"] if each["name"] == "libgcc-s1"
    ]
    assert gcc["purl"] == "pkg:deb/debian/libgcc-s1@1:14.2.0-19%2Bb1?arch=amd64&distro=debian-13"
    assert ("builder:source", "gcc-14 14.2.0-19") in properties(gcc)
    assert parse("", "").packages == ()


def test_what_an_image_does_not_list_is_said() -> None:
    def completeness(document: dict[str, Any]) -> str:
        image = document["metadata"]["component"]["bom-ref"]
        (found,) = [each for each in document["compositions"] if each["assemblies"] == [image]]
        return str(found["aggregate"])

    assert completeness(cyclonedx("hello-sm120-0.1.0")) == "complete"
    unlisted = cyclonedx("hello-sm120-0.1.0", None)
    assert completeness(unlisted) == "incomplete"
    assert any(name == "builder:gap" for name, _ in properties(unlisted["metadata"]["component"]))
    assert scopes(unlisted)["libgomp1"] == "required"
    document = spdx("hello-sm120-0.1.0", None)
    assert any(each["relatedSpdxElement"] == "NOASSERTION" for each in document["relationships"])
    # Somebody else's image: its own parts are not known.
    assert completeness(cyclonedx("vllm-0.20.2")) == "incomplete"
    # A file alone, from scratch: no base is in it, and no package.
    alone = cyclonedx("hami-core-pr188", None)
    assert completeness(alone) == "complete"
    assert [name for name, scope in scopes(alone).items() if scope == "required"] == ["hami-core"]


def test_the_gpus_and_the_key_are_told_of_the_image() -> None:
    image = cyclonedx("beellama-0.1.1")["metadata"]["component"]
    key = of_catalog("beellama-0.1.1").key
    assert {("builder:architectures", "120"), ("builder:key", key)} <= properties(image)
    assert image["purl"].startswith(f"pkg:oci/beellama-0.1.1@{DIGEST}?")


@pytest.mark.parametrize("name", ENGINES)
def test_nothing_is_of_this_machine(name: str) -> None:
    for text in texts(name).values():
        for private in (str(REPOSITORY), str(Path.home()), "/somewhere/private", "file://"):
            assert private not in text


def in_catalog(root: Path, name: str, text: str) -> EngineImage:
    """A recipe of that text, with the real bases."""
    folder = root / "recipes"
    folder.mkdir(exist_ok=True)
    if not (folder / "bases").exists():
        (folder / "bases").symlink_to(REPOSITORY / "recipes" / "bases")
    (folder / f"{name}.toml").write_text(text)
    return rendered(root, name)


def test_an_archive_and_a_range_of_commits_are_told(tmp_path: Path) -> None:
    text = (REPOSITORY / "recipes" / "hello-sm120-0.1.0.toml").read_text()
    digest, after, to = "34" * 32, "56" * 20, "78" * 20
    source = f'archive = "https://example.org/hello-1.tar.gz"\nsha256 = "{digest}"\n'
    pick = f'pick = {{ after = "{after}", to = "{to}", git = "https://github.com/me/hello" }}'
    source += f'[[patch]]\n{pick}\nwhy = "it greets nobody"\n'
    made = in_catalog(
        tmp_path,
        "hello-sm120-0.1.0",
        text.replace('path = "engines/hello-sm120"\n', source),
    )
    found = sbom.documents(made, record_of(made), DPKG)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(found[sbom.CYCLONEDX]) is None
    engine = engine_of(json.loads(found[sbom.CYCLONEDX]))
    assert engine["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert engine["externalReferences"] == [
        {"type": "distribution", "url": "https://example.org/hello-1.tar.gz"}
    ]
    assert engine["purl"] == (
        f"pkg:generic/hello-sm120@0.1.0?checksum=sha256:{digest}"
        "&download_url=https://example.org/hello-1.tar.gz"
    )
    (patch,) = engine["pedigree"]["patches"]
    assert patch["diff"]["url"] == f"https://github.com/me/hello/compare/{after}...{to}.diff"
    packages = {each["name"]: each for each in json.loads(found[sbom.SPDX])["packages"]}
    assert packages["hello-sm120"]["downloadLocation"] == "https://example.org/hello-1.tar.gz"


def test_neither_a_token_in_a_url_nor_a_place_of_this_machine_is_told(tmp_path: Path) -> None:
    text = (REPOSITORY / "recipes" / "atomic-b8995.toml").read_text()
    for url in ("https://ghp_secret@git.example.org/me/fork.git", "file:///ghp_secret/fork"):
        changed = re.sub(r'git    = "[^"]*"', f'git    = "{url}"', text)
        assert url in changed
        made = in_catalog(tmp_path, "atomic-b8995", changed)
        found = sbom.documents(made, record_of(made), DPKG)
        for document in found.values():
            assert "ghp_secret" not in document
            assert "2e81dc5f634501c744b69a65a8eeb84ba42e82ee" in document
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(found[sbom.CYCLONEDX]) is None
        parsed = JsonLikeDictParser().parse(json.loads(found[sbom.SPDX]))
        assert validate_full_spdx_document(parsed) == []
    assert "git.example.org" not in found[sbom.SPDX]


def test_addresses() -> None:
    commit = "ab" * 20
    assert commit_purl("ssh://git@github.com/Me/Fork.git", commit, "x") == (
        f"pkg:github/me/fork@{commit}"
    )
    assert commit_purl("https://git.example.org/fork", commit, "x") == (
        f"pkg:generic/x@{commit}?vcs_url=git%2Bhttps://git.example.org/fork%40{commit}"
    )
    assert public("https://user:word@host:8443/a?b=c") == "https://host:8443/a"
    assert image_purl("localhost:5000/me/x", DIGEST) == (
        f"pkg:oci/x@{DIGEST}?repository_url=localhost:5000/me/x"
    )
    assert image_purl("me/x", DIGEST, "1").endswith("?repository_url=docker.io/me/x&tag=1")
    assert image_purl("x", DIGEST) == f"pkg:oci/x@{DIGEST}"


def test_a_workflow_of_github_is_the_builder() -> None:
    workflow = "me/farm/.github/workflows/nightly.yml@refs/heads/main"
    told = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_WORKFLOW_REF": workflow}
    assert platform(told) == f"https://github.com/{workflow}"
    assert platform({}) == LOCAL
    made = of_catalog("hello-sm120-0.1.0")
    document = json.loads(
        sbom.documents(made, record_of(made), DPKG, platform(told))[sbom.PROVENANCE]
    )
    assert document["predicate"]["runDetails"]["builder"]["id"] == f"https://github.com/{workflow}"


@docker_test
def test_the_packages_are_those_that_dpkg_tells(
    hello: dict[str, Any],
    images: dict[str, str],
    builder: Builder,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("BUILDER_STATE_DIR", str(hello["state"]))
    asked = subprocess.run(
        [
            *("docker", "run", "--rm", "--network=none", "--entrypoint=dpkg-query"),
            *(images["good"], "-W", "-f", "${Package} ${Version} ${Architecture}\n"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    told = set(asked.stdout.splitlines())
    assert len(told) > 50
    done = builder("sbom", "hello-sm120")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["metadata"]["component"]["hashes"][0]["content"] in hello["digest"]
    listed = {
        f"{each['name']} {each['version']} {re.search('arch=([a-z0-9]+)', each['purl'])[1]}"
        for each in document["components"]
        if each.get("purl", "").startswith("pkg:deb/") and "version" in each
    }
    assert listed == told
    # The base's digest is that of the image's own label.
    (digest,) = hello["base"].values()
    (cuda,) = [each for each in document["components"] if each["name"] == "cuda-13.0"]
    assert ("builder:image", digest) in properties(cuda)
    file = tmp_path / "out" / "hello.json"
    assert builder("sbom", "hello-sm120", "--format", "spdx", "--output-file", file).stdout == ""
    parsed = JsonLikeDictParser().parse(json.loads(file.read_text()))
    assert validate_full_spdx_document(parsed) == []
    unwritable = builder("sbom", "hello-sm120", "--output-file", file / "below-a-file")
    assert unwritable.returncode == 4
    assert "cannot be written" in unwritable.stderr


@docker_test
def test_an_image_without_dpkg_says_so(made: set[str], tmp_path: Path) -> None:
    name = "builder-test/without-dpkg:1"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("alone"))
    made.add(name)
    subprocess.run(["docker", "import", "-", name], input=packed.getvalue(), check=True)
    assert installed(name, tmp_path) is None
    with pytest.raises(UntriedError, match="cannot read"):
        installed("builder-test/that-is-not-there:1", tmp_path)


@docker_test
def test_there_is_no_bill_of_what_was_not_verified(builder: Builder) -> None:
    done = builder("sbom", "hello-sm120", "--format", "provenance")
    assert done.returncode == 4
    assert "there is no verified image" in done.stderr
    assert done.stdout == ""

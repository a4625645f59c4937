"""What is laid over a published image: whole, small, and nothing else changes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from shutil import rmtree

import pytest

from support import overlaid, upstreams
from support.commands import Builder
from support.overlaid import OVERLAID, PACKAGE, SITE, Build, StandIn, change, ran
from support.smoke_tests import docker, run_image

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("overlaid")]

FASTER = {**PACKAGE, "vllm/worker.py": "def work():\n    return 'fast'\n"}


def test_only_what_the_patches_change_is_laid_over(
    build: Build, published: StandIn, tmp_path: Path
) -> None:
    published.more = (
        f"RUN chown 1234:1235 {SITE}/vllm/ops.py && chmod 0664 {SITE}/vllm/ops.py "
        f"&& chown 77:78 {SITE}/vllm"
    )
    text = PACKAGE["vllm/ops.py"].replace("= 9", "= 12")
    patch = change(tmp_path, ops=text, old=None, new="NEW = 1\n")
    done = build(patch=patch)
    assert "is not pinned (made by a test)" in done.stderr
    record = json.loads(done.stdout)
    checks = {(c["kind"], c["subject"]): c for c in record["verdict"]["checks"]}
    follows = checks["contract", "words after the entrypoint"]["found"]
    assert follows == '["vllm", "serve"] and ["--default"]'
    assert checks["entrypoint", "--check --json"]["found"] == "overlaid-1, code not known"
    assert checks["contract", "working directory"]["found"] == "/srv"
    assert checks["contract", "user"]["found"] == "root"
    assert "files of" in checks["extended", "the image that it extends"]["found"]
    inspected = json.loads(docker("image", "inspect", OVERLAID))[0]
    assert inspected["Config"]["Entrypoint"] == ["/opt/builder/entrypoint", "--"]
    assert "OVERLAID=yes" in inspected["Config"]["Env"]
    assert f"PYTHONPATH={SITE}" in inspected["Config"]["Env"]
    listed = ran(
        OVERLAID, "stat", "--format=%n %u:%g %a", f"{SITE}/vllm/ops.py", f"{SITE}/vllm/new.py"
    )
    assert listed.splitlines() == [
        f"{SITE}/vllm/ops.py 1234:1235 664",
        f"{SITE}/vllm/new.py 77:78 644",
    ]
    compiled = ran(OVERLAID, "ls", f"{SITE}/vllm/__pycache__").split()
    assert sorted(name.split(".")[0] for name in compiled) == ["__init__", "new", "ops", "worker"]
    # What was compiled before is never taken, whatever the clock says (PEP 552: flags, bit 0).
    flags = "import sys; print(open(sys.argv[1], 'rb').read(8)[4])"
    (ops,) = [name for name in compiled if name.startswith("ops.")]
    assert ran(OVERLAID, "python3", "-c", flags, f"{SITE}/vllm/__pycache__/{ops}") == "3"
    sizes = docker(
        "history", "--format", "{{.Size}} {{.CreatedBy}}", "--human=false", "--no-trunc", OVERLAID
    )
    (layer,) = [line for line in sizes.splitlines() if "overlay.py" in line]
    assert int(layer.split()[0]) < 70_000
    left = ran(OVERLAID, "ls", "/run", "/opt")
    assert "overlay" not in left
    assert "inside" not in left
    for arguments, served in (((), "--default"), (("model",), "model")):
        done = run_image("--env=BUILDER_CPU=1", OVERLAID, *arguments)
        assert (done.returncode, done.stdout) == (0, f"serving serve {served}\n"), done.stderr


def test_a_pull_request_is_cut_to_what_the_package_has(build: Build, tmp_path: Path) -> None:
    upstream = upstreams.Upstream(tmp_path / "vllm")
    for path, text in {**PACKAGE, "tests/test_ops.py": "pass\n", "csrc/a.cu": "a\n"}.items():
        upstream.write(path, text)
    upstream.write("requirements/cuda.txt", "torch\n")
    base = upstream.record("one")
    ops = PACKAGE["vllm/ops.py"].replace("= 9", "= 12")
    heads = [
        upstream.pull(
            1, {"vllm/ops.py": ops, "tests/test_ops.py": "assert 1\n", "docs/a.md": "a\n"}
        ),
        upstream.pull(2, {"vllm/ops.py": ops, "csrc/a.cu": "b\n", "setup.py": "b\n"}),
        upstream.pull(3, {"vllm/ops.py": ops, "requirements/cuda.txt": "torch>2\n"}),
        upstream.pull(4, {"tests/test_ops.py": "assert 2\n"}),
    ]

    def part(number: int, more: str = "") -> str:
        return (
            f'[[patch]]\npull = {number}\ngit = "{upstream.url}"\nbase = "{base}"\n'
            f'head = "{heads[number - 1]}"\nwhy = "so"\n{more}'
        )

    done = build(part(1))
    assert (
        "left out, because the installed package lacks it: docs/a.md, tests/test_ops.py"
        in done.stderr
    )
    assert ran(OVERLAID, "python3", "-c", "import vllm.ops; print(vllm.ops.CAPABILITY)") == "12"
    done = build(part(2), expect=11)
    assert "pull 2 cannot overlay an installed package" in done.stderr
    assert "it changes compiled files: csrc/a.cu, setup.py" in done.stderr
    assert "build vllm from source" in done.stderr
    done = build(part(2, 'leave_out = ["csrc/*", "setup.py"]\n'), expect=11)
    assert "it changes compiled files: csrc/a.cu, setup.py" in done.stderr
    done = build(part(3), expect=11)
    assert "pull 3 changes requirements/cuda.txt" in done.stderr
    assert "they declare requirements of vllm" in done.stderr
    build(part(3, 'leave_out = ["requirements/*"]\n'))
    done = build(part(4), expect=11)
    assert "nothing is left of pull 4" in done.stderr


def test_files_of_another_repository_become_part_of_the_package(
    build: Build, tmp_path: Path
) -> None:
    other = upstreams.Upstream(tmp_path / "other")
    other.write("vllm/_genesis/__init__.py", "VERSION = 7\n")
    commit = other.record("one")
    part = '[[patch]]\nwhy = "so"\nadd = {{ git = "{}", commit = "{}", path = "{}", to = "{}" }}\n'
    build(part.format(other.url, commit, "vllm/_genesis", "vllm/_genesis"))
    assert ran(OVERLAID, "python3", "-c", "import vllm._genesis as g; print(g.VERSION)") == "7"
    done = build(part.format(other.url, commit, "vllm/_genesis", "vllm"), expect=11)
    assert "would replace existing files" in done.stderr
    done = build(part.format(other.url, commit, "nowhere", "vllm/_genesis"), expect=11)
    assert "has no nowhere" in done.stderr


# More that is wrong with a base, or with what it is patched to: test_inside_images.


def test_a_base_that_is_not_what_the_recipe_says(build: Build, tmp_path: Path) -> None:
    done = build(patch=change(tmp_path, worker="x = 1\n"), expect=6, version="2.0")
    assert "the base has vllm 1.0, and the recipe is for 2.0" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_patch_that_breaks_a_file(build: Build, tmp_path: Path) -> None:
    done = build(patch=change(tmp_path, worker="def work(:\n"), expect=6)
    assert "vllm/worker.py is no Python when patched" in done.stderr


def test_what_is_expected_to_be_absent_must_be_absent(build: Build, tmp_path: Path) -> None:
    absent = '[[patch]]\nfile = "absent.patch"\nwhy = "so"\nexpect = "absent"\n'
    folder = tmp_path / "catalog" / "patches"
    folder.mkdir(parents=True)
    lines = {"vllm/other.py": "a\n"}
    (folder / "absent.patch").write_text(
        overlaid.diff(lines, {"vllm/other.py": "b\n"}, tmp_path / "x")
    )
    done = build(absent)
    assert "file absent.patch is skipped: its files do not exist, as expected" in done.stderr
    labels = json.loads(docker("image", "inspect", OVERLAID))[0]["Config"]["Labels"]
    assert "builder.patches" not in labels
    (folder / "absent.patch").write_text(change(tmp_path, worker="x\n"))
    done = build(absent, expect=11)
    assert 'has expect = "absent", but files that it changes exist' in done.stderr


def test_what_only_adds_files_cannot_be_absent(build: Build, tmp_path: Path) -> None:
    patch = change(tmp_path, brandnew="x = 1\n")
    (tmp_path / "catalog" / "patches").mkdir(parents=True)
    (tmp_path / "catalog" / "patches" / "new.patch").write_text(patch)
    done = build('[[patch]]\nfile = "new.patch"\nwhy = "so"\nexpect = "absent"\n', expect=11)
    assert "only adds files, so none of its files can be absent" in done.stderr


def test_a_base_that_is_gone_is_pulled_again_for_the_checks(
    build: Build, published: StandIn, tmp_path: Path
) -> None:
    published.files["vllm/gone.py"] = "# no other test has this base\n"
    patch = change(tmp_path, worker=FASTER["vllm/worker.py"])
    record = json.loads(build(patch=patch).stdout)
    docker("image", "rm", "--force", *record["base"])
    rmtree(Path(os.environ["BUILDER_STATE_DIR"]) / "records")
    done = build(patch=patch, rebuild=False)
    assert "overlaid-1 is built already; running its smoke test again" in done.stderr
    assert json.loads(done.stdout)["digest"] == record["digest"]


def test_user_and_modes_stay_or_are_what_is_said(
    build: Build, published: StandIn, tmp_path: Path
) -> None:
    published.more = f"RUN chown 5:5 {SITE}/vllm/ops.py\nUSER 1234:5"
    other = "diff --git a/vllm/ops.py b/vllm/ops.py\nold mode 100644\nnew mode 100755\n"
    build(patch=other + change(tmp_path, worker=FASTER["vllm/worker.py"]))
    assert json.loads(docker("image", "inspect", OVERLAID))[0]["Config"]["User"] == "1234:5"
    told = ran(
        OVERLAID, "stat", "--format=%a %u", f"{SITE}/vllm/ops.py", f"{SITE}/vllm/__pycache__"
    )
    assert told.splitlines() == ["755 5", "755 0"]
    build(patch=change(tmp_path / "x", worker="x = 1\n"), more='user = "77"')
    assert json.loads(docker("image", "inspect", OVERLAID))[0]["Config"]["User"] == "77"


def test_the_doctor_runs_scripts_in_an_unpinned_base(
    build: Build, builder: Builder, tmp_path: Path
) -> None:
    scripts = upstreams.Upstream(tmp_path / "scripts")
    code = "from pathlib import Path\nPath('vllm/worker.py').write_text('x = 5\\n')\n"
    commit = scripts.commit("one", **{"p.py": code})
    build(
        f'[[patch]]\nwhy = "so"\nscript = {{ git = "{scripts.url}", commit = "{commit}", '
        'path = "p.py", edits = ["vllm/worker.py"] }\n'
    )
    done = builder("patch", "check", "overlaid-1", "--catalog", tmp_path / "catalog", "--json")
    assert done.returncode == 0, done.stderr
    assert [finding["state"] for finding in json.loads(done.stdout)] == ["applies"]


def test_an_image_of_another_platform(build: Build, tmp_path: Path, made: set[str]) -> None:
    name = "builder-test/published:arm64"
    made.add(name)
    options = ["--platform=linux/arm64", f"--output=type=image,name={name}", "--provenance=false"]
    docker("buildx", "build", *options, "-", text="FROM scratch\nLABEL a=b\n")
    done = build(patch=change(tmp_path, worker="x = 1\n"), image=name, expect=5)
    assert "is no image for linux/amd64" in done.stderr
    assert "it is for linux/arm64" in done.stderr


def test_a_published_image_is_pinned_by_its_digest(
    build: Build, builder: Builder, published: StandIn, tmp_path: Path, registry: str
) -> None:
    published.files["vllm/pinned.py"] = f"# {registry}\n"  # no other test has this image
    name = published.build(f"{registry}/vllm/vllm-openai:v1")
    docker("push", "--quiet", name)
    digest = json.loads(docker("image", "inspect", name))[0]["Id"]
    patch = change(tmp_path, worker=FASTER["vllm/worker.py"])
    # The tag alone: asked for, and a line says so.
    done = build(patch=patch, image=name)
    assert f"{name} is not pinned (made by a test); its digest today is {digest}" in done.stderr
    # By digest, out of the registry, whatever the tag means since.
    published.version = "2.0"
    published.build(name)
    docker("push", "--quiet", name)
    published.version = "1.0"
    record = json.loads(done.stdout)
    docker("image", "rm", "--force", *record["references"], *record["base"])
    docker("image", "rm", "--force", f"builder-base/stand-in:published-{digest[7:19]}")
    done = build(patch=patch, image=name, pin=f'digest = "{digest}"')
    assert f"pulling {registry}/vllm/vllm-openai@{digest}" in done.stderr
    assert "is not pinned" not in done.stderr
    assert ran(OVERLAID, "python3", "-c", "import vllm.worker as w; print(w.work())") == "fast"
    done = builder("pin", "mirror", "overlaid-1", "--catalog", tmp_path / "catalog")
    assert f"{name} in Docker, as builder-base/stand-in:published-" in done.stdout
    done = build(patch=patch, image=name, pin=f'digest = "sha256:{"0" * 64}"', expect=5)
    assert f"cannot pull {registry}/vllm/vllm-openai@sha256:0000" in done.stderr

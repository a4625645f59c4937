"""Images that are broken on purpose: a few lines on top of the Debian root, and the good engine.

They are real: built by buildx; where the break comes from compiling, the compiler of the base
made it.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.checks.check import check_layers, run_programs
from builder.checks.subject import Context, Subject
from builder.checks.verdict import Check, Verdict
from builder.docker.engine import Image
from builder.image.contents import Contents
from builder.recipes.catalog import parse
from builder.recipes.schema import Recipe
from support.environment import SHARED_CACHE

REPOSITORY = Path(__file__).resolve().parents[2]


def docker(*arguments: str, text: str | None = None) -> str:
    done = subprocess.run(
        ["docker", *arguments], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run_image(*arguments: str, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """``docker run`` of a program that prints something.

    It runs again where nothing came: see ``containers.run``.
    """
    call = ["docker", "run", "--rm", *arguments]
    for _ in range(2):
        done = subprocess.run(call, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False)
        if done.stdout or done.stderr:
            break
    return done


def images_at(address: str) -> list[str]:
    """The names of the engine's images that lie on a registry, by its address.

    The engine applies the filter before it measures images: each takes it 10 ms.
    """
    filters = [f"--filter=reference={address}{'/*' * depth}" for depth in range(1, 5)]
    return docker("image", "ls", "--format={{.Repository}}:{{.Tag}}", *filters).split()


def hello_recipe() -> Recipe:
    file = REPOSITORY / "recipes" / "hello-sm120-0.1.0.toml"
    found, problems = parse(file.read_text(), file, Recipe)
    assert found is not None, problems
    return found


def of_arch(*arch: str) -> Recipe:
    """The recipe, for other GPUs."""
    recipe = hello_recipe()
    return recipe.model_copy(update={"cuda": recipe.cuda.model_copy(update={"arch": [*arch]})})


def context_of(
    contents: Contents,
    recipe: Recipe | None = None,
    work: Path = Path(),
    reference: str = "image",
    **more: Any,
) -> Context:
    """What a check is given; ``more`` are fields of the subject."""
    subject = Subject(reference, "", recipe, **more)
    return Context(subject, contents, work)


def extended_image(layers: int, config: Mapping[str, Any]) -> Image:
    """An image that an image extends."""
    return Image("base", "", "linux/amd64", frozenset(), frozenset(), layers, config)


class SmokeTest:
    """Builds Dockerfiles and smoke-tests the images with hello-sm120's recipe, or a changed one."""

    def __init__(self, work: Path, made: set[str]) -> None:
        self.work = work
        self.made = made
        self.recipe = hello_recipe()

    def build(self, dockerfile: str, *options: str) -> str:
        """The name of the image."""
        told = "".join([dockerfile, *options])
        name = f"builder-test/smoke:{hashlib.sha256(told.encode()).hexdigest()[:12]}"
        self.made.add(name)
        fixed = ["--provenance=false", f"--output=type=image,name={name}"]
        docker("buildx", "build", *fixed, *options, "-", text=dockerfile)
        return name

    def __call__(
        self,
        dockerfile: str,
        *options: str,
        labels: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Verdict:
        """The verdict on what a Dockerfile makes; ``changes`` are of the recipe.

        Programs are run only where a test names probes: each takes a container.
        """
        name = self.build(dockerfile, *options)
        # A server is started only where a test is about one: see tests/docker/test_serving.py.
        changed = self.recipe.model_copy(update={"serve": None, "probe": [], **changes})
        subject = Subject(name, "", changed, labels=labels or {}, cache=SHARED_CACHE)
        return run_programs(check_layers(subject, self.work))


def failed(verdict: Verdict) -> set[str]:
    return {check.kind for check in verdict.failures}


def of(verdict: Verdict, kind: str) -> list[Check]:
    return [check for check in verdict.checks if check.kind == kind]


def failures_of(verdict: Verdict, kind: str) -> list[Check]:
    return [check for check in verdict.failures if check.kind == kind]


def as_root(command: str) -> str:
    return f"USER root\nRUN {command}\nUSER 10001:10001\n"


# What makes an image of the good engine's files its own image again.
CONFIGURED = (
    "USER 10001:10001\nEXPOSE 8080\nENV HELLO_ARG_HOST=0.0.0.0\n"
    'HEALTHCHECK CMD ["/usr/local/bin/healthcheck", "8080", "health"]\n'
    'ENTRYPOINT ["/opt/builder/entrypoint", "/opt/engine/bin/hello-server", "--"]\n'
)


def small(images: dict[str, str], more: str = "", engine: str = "/opt/engine") -> str:
    """The good engine on the small root, without the 600 MB of cuBLAS that the checks of its
    own libraries do not need: what needs them is missing, and nothing else is wrong."""
    return (
        f"FROM {images['small']} AS image\n"
        f"COPY --from={images['good']} /opt/engine {engine}\n"
        f"COPY --from={images['good']} /opt/builder /opt/builder\n"
        f"COPY --from={images['good']} /etc/ld.so.conf.d /etc/ld.so.conf.d\n"
        f"COPY --from={images['good']} /usr/local/bin/healthcheck /usr/local/bin/healthcheck\n"
        f"{more}{CONFIGURED}"
    )


def compiled(images: dict[str, str], how: str) -> str:
    """A library made by the base's own compilers, in the place of the engine's."""
    return (
        f"FROM {images['devel']} AS build\n"
        'RUN printf "#include <cstdio>\\n__global__ void k() {}\\nint main() { k<<<1,1>>>(); '
        'puts(\\"version: 0 (unknown)\\"); }\\n" > /k.cu && ' + how + "\n"
    ) + small(images, "COPY --from=build /out/ /opt/engine/lib/\n")

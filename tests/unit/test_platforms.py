"""The two platforms of a build."""

from __future__ import annotations

import pytest

from builder.core.platforms import Platforms, architecture, of_target


def test_what_is_linked_is_of_the_images_architecture() -> None:
    names = ["cmake", "libssl-dev:target", "libx:arm64", "target"]
    assert of_target(names, "amd64") == ["cmake", "libssl-dev:amd64", "libx:arm64", "target"]


@pytest.mark.parametrize(
    ("platforms", "prefix", "both"),
    [
        (Platforms("amd64"), "", ("amd64",)),
        (Platforms("arm64"), "x86_64-linux-gnu-", ("amd64", "arm64")),
        (Platforms("amd64", "arm64"), "aarch64-linux-gnu-", ("arm64", "amd64")),
        (Platforms("arm64", "arm64"), "", ("arm64",)),
    ],
)
def test_the_compiler_of_a_cross_build_has_a_prefix(
    platforms: Platforms, prefix: str, both: tuple[str, ...]
) -> None:
    assert (platforms.prefix, platforms.both) == (prefix, both)


def test_machines_have_dockers_names() -> None:
    found = [architecture(name) for name in ("x86_64", "aarch64", "arm64", "riscv64")]
    assert found == ["amd64", "arm64", "arm64", None]

"""An index is decided by its images and their order."""

from __future__ import annotations

from types import SimpleNamespace

from builder.publish.push import image_index, key_of_index
from builder.publish.registry import MANIFESTS, Manifest
from builder.publish.transport import INDEX

AMD64, ARM64 = (Manifest(content, MANIFESTS[0]) for content in (b'{"a": 1}', b'{"b": 2}'))


def test_the_key_follows_the_platforms_their_order_and_their_keys() -> None:
    def key(**keys: str) -> str:
        plans = [SimpleNamespace(platform=name, key=value * 64) for name, value in keys.items()]
        return key_of_index(plans)  # type: ignore[arg-type]

    others = [key(arm64="b", amd64="a"), key(amd64="a", arm64="c"), key(amd64="a")]
    found = {key(amd64="a", arm64="b"), *others}
    assert len(found) == 4
    assert key(amd64="a", arm64="b") in found
    assert all(len(each) == 64 for each in found)


def test_an_index_describes_each_image() -> None:
    images = {"linux/amd64": AMD64, "linux/arm64": ARM64}
    made = image_index(images, "1.0", "k")
    assert made.media_type == INDEX
    assert made.digest == image_index(dict(images), "1.0", "k").digest
    body = made.body
    assert body.annotations == {"org.opencontainers.image.version": "1.0", "builder.key": "k"}
    found = [
        (each.platform.name, each.digest, each.size) for each in body.manifests if each.platform
    ]
    assert found == [
        (platform, image.digest, len(image.content)) for platform, image in images.items()
    ]
    turned = image_index(dict(reversed(images.items())), "1.0", "k")
    assert turned.digest != made.digest

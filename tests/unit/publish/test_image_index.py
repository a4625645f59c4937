"""An index is decided by its images and their order."""

from __future__ import annotations

from builder.publish.image_index import image_index, index_key
from builder.tools.registry.client import MANIFESTS, Manifest
from builder.tools.registry.responses import INDEX

AMD64, ARM64 = (Manifest(content, MANIFESTS[0]) for content in (b'{"a": 1}', b'{"b": 2}'))


def test_the_key_follows_the_platforms_their_order_and_their_keys() -> None:
    keys = {"linux/amd64": "a" * 64, "linux/arm64": "b" * 64}
    turned = dict(reversed(keys.items()))
    others = [turned, {**keys, "linux/arm64": "c" * 64}, {"linux/amd64": "a" * 64}]
    found = {index_key(each) for each in (keys, *others)}
    assert len(found) == 4
    assert index_key(dict(keys)) in found
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

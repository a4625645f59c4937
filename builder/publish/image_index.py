"""One index for the images of a recipe's platforms, which its tags point to.

OCI image specification 1.1, "OCI Image Index Specification".  An engine that pulls a tag gets the
image of its own platform.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from builder.families.layout import LABEL_KEY
from builder.publish.remote_image import VERSION
from builder.tools.registry.client import Manifest
from builder.tools.registry.responses import INDEX


def index_key(keys: Mapping[str, str]) -> str:
    """The key of an index: sha256 (hex) over the platforms and the keys of their images.

    ``keys`` are by platform ("linux/amd64"), in the recipe's order, which decides the index.
    """
    canonical = json.dumps(list(keys.items()), separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def image_index(images: Mapping[str, Manifest], version: str, key: str) -> Manifest:
    """The index of images by platform, in that order; the same images give the same bytes."""
    content = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [_entry(platform, image) for platform, image in images.items()],
        "annotations": {VERSION: version, LABEL_KEY: key},
    }
    return Manifest(json.dumps(content, indent=1).encode(), INDEX)


def _entry(platform: str, image: Manifest) -> dict[str, Any]:
    """The descriptor of an image ("OCI Content Descriptors")."""
    system, _, architecture = platform.partition("/")
    return {
        "mediaType": image.media_type,
        "digest": image.digest,
        "size": len(image.content),
        "platform": {"architecture": architecture, "os": system},
    }

"""What an image is made of and how it came about, in the formats that others read."""

from __future__ import annotations

from builder.plan.rendered import EngineImage
from builder.records.record import Record
from builder.sbom import cyclonedx, provenance, spdx
from builder.sbom.bill import bill_of
from builder.sbom.debian import Dpkg

CYCLONEDX = "application/vnd.cyclonedx+json"
SPDX = "application/spdx+json"
PROVENANCE = "application/vnd.in-toto+json"


def documents(
    image: EngineImage,
    record: Record,
    packages: Dpkg | None,
    builder: str = provenance.LOCAL,
) -> dict[str, str]:
    """The bill of materials of a verified image in both formats, and its provenance: JSON texts by
    media type.

    ``image`` is what the image was made from, ``packages`` what dpkg has installed in it (None
    where it does not say), ``builder`` the URI of who made it.  For the same words of a
    recipe an image always gets the same texts; nothing in them is of this machine.
    """
    made = bill_of(image, record, packages)
    return {
        CYCLONEDX: cyclonedx.written(made),
        SPDX: spdx.written(made),
        PROVENANCE: provenance.written(made, image, record, builder),
    }

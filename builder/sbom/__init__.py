"""Bills of materials (CycloneDX, SPDX) and SLSA provenance of an image."""

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

    ``packages`` is the image's dpkg database (None where it has none), ``builder`` the URI of the
    builder.  The same recipe and image always give the same texts, which contain nothing of the
    build machine.
    """
    made = bill_of(image, record, packages)
    return {
        CYCLONEDX: cyclonedx.to_json(made),
        SPDX: spdx.to_json(made),
        PROVENANCE: provenance.to_json(made, image, record, builder),
    }

"""Bills of materials and SLSA provenance of an image.

The bills are SPDX, the format of BuildKit's own SBOM attestations
(https://docs.docker.com/build/metadata/attestations/sbom/) and the only format that ``docker
buildx imagetools inspect`` shows (docker/buildx, util/imagetools/loader.go).
"""

from __future__ import annotations

from builder.build.record import Record
from builder.plan.plan import Plan
from builder.publish import provenance, spdx
from builder.publish.debian import Dpkg
from builder.publish.sbom import bill_of

SPDX = "application/spdx+json"
PROVENANCE = "application/vnd.in-toto+json"


def documents(
    plan: Plan,
    record: Record,
    packages: Dpkg | None,
    builder: str = provenance.LOCAL,
) -> dict[str, str]:
    """The bill of materials of a verified image and its provenance: JSON texts by media type.

    ``packages`` is the image's dpkg database (None where it has none), ``builder`` the URI of the
    builder.  The same recipe and image always give the same texts, which contain nothing of the
    build machine.
    """
    made = bill_of(plan, record, packages)
    return {
        SPDX: spdx.to_json(made),
        PROVENANCE: provenance.to_json(made, plan, record, builder),
    }

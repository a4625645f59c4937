"""Nights after a security update of Debian, from its archive to the channel; and vulnerable ones.

No engine is asked: the registry has the image of each key, and this machine a record that it built
that image.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from builder.build import record
from builder.build.build import BuildSession
from builder.build.lookup import contract_of
from builder.build.record import Record
from builder.checks.verdict import Check, Verdict
from builder.cli.session import build_session
from builder.plan.plan import Plan
from builder.publish.attachments import SPDX, catalog_of
from builder.publish.nights import NightlyRun
from builder.publish.registry import Repository
from builder.publish.signing import IN_TOTO, UNSIGNED
from builder.publish.tags import moves
from builder.publish.verdicts import PREDICATE, SLSA, AttachedFile, referrers
from builder.publish.vulnerabilities import newest_scan
from builder.upstream import locks, night
from builder.upstream.patches import open_session
from support.bills import texts
from support.commands import Builder
from support.lock_farm import Farm
from support.platforms import RECIPE as TWO
from support.registries import attach, put_image
from support.scanners import GRYPE, on_path, stand_in
from support.upstreams import Upstream

pytestmark = pytest.mark.usefixtures("own_cache")
NAME = "me/builder-test/two"
NO_ENGINE = """#!/bin/sh
[ "$1 $2" = "image ls" ] && exit 0
echo "Error: No such image" >&2
exit 1
"""


class World:
    """A recipe with a channel on locked bases, its upstream, and the archive of their packages."""

    def __init__(self, farm: Farm, folder: Path) -> None:
        self.farm = farm
        upstream = Upstream(folder / "upstream")
        commit = upstream.commit("one", CMakeLists__txt="project(two NONE)\n")
        upstream.git("tag", "b1")
        text = TWO.format(
            source=f'[source]\ngit = "{upstream.url}"\ncommit = "{commit}"',
            track='[track]\ntag = "b*"\nchannel = "nightly"\nstill = 3650',
            channel=', "nightly"',
        )
        text = text.replace('"cuda-13.0"', '"cuda"')
        text = text.replace(', "linux/arm64"', "").replace('[cuda.arm64]\narch = ["121"]', "")
        (farm.catalog / "recipes" / "x-1.toml").unlink()
        (farm.catalog / "recipes" / "two-1.toml").write_text(text)

    def add(self, text: str) -> None:
        file = self.farm.catalog / "recipes" / "two-1.toml"
        file.write_text(f"{file.read_text()}\n{text}\n")

    def night(self) -> NightlyRun:
        """One night; the registry has the image of its key."""
        session = build_session(root=self.farm.catalog)
        (channel,) = night.channels(session.catalog, session.settings, ["two-1"])
        repository = Repository(channel.repository, print)
        with open_session(session.catalog, session.settings, print, offline=False) as sources:
            target = night.newest(channel, sources.repositories)
            frozen = night._frozen(session, channel, sources, target)
            frozen, _ = night._secured(session, frozen, repository, "nightly", sources)
        (plan,) = replace(session, catalog=frozen.catalog).plans(frozen.name)
        if not repository.head_digest(plan.immutable_tag):
            build(session, plan, repository, target.commit)
        (run,) = night.run_channels(session, ["two-1"])
        return run


def build(session: BuildSession, plan: Plan, repository: Repository, commit: str) -> None:
    """An image of this key in the registry, and the record of its build."""
    labels = {"org_opencontainers_image_revision": commit}
    there = put_image(repository, plan.key, plan.immutable_tag, **labels)
    bill = AttachedFile("bom.spdx.json", SPDX, texts("hello-sm120-0.1.0")[SPDX].encode())
    attach(repository, there, SPDX, {}, [bill])
    attach(repository, there, IN_TOTO, {PREDICATE: SLSA})
    checks = (Check.of("probe", "/data", "ready", "ready", True),)
    kept = Record(
        recipe=plan.name,
        key=plan.key,
        contract=contract_of(plan),
        references=plan.references,
        digest=there.digest,
        verdict=Verdict(there.digest, checks, 0, 0),
        created="2026-11-29T00:00:00+00:00",
        seconds={},
        built_here=True,
    )
    record.write(session.settings.state_dir, kept)


@pytest.fixture
def world(lock_farm: Farm, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    for name in ("root", "cuda"):
        lock_farm.lock(name)
    # The archive of the test is not signed by Debian.
    real, signed = locks.deb822, re.compile("^Signed-By: .*$", re.MULTILINE)
    monkeypatch.setattr(locks, "deb822", lambda sources: signed.sub("Trusted: yes", real(sources)))
    monkeypatch.setenv("BUILDER_DEBIAN_MIRROR", lock_farm.archive.mirror)
    monkeypatch.setenv("BUILDER_DEBIAN_SNAPSHOT", lock_farm.archive.snapshot)
    monkeypatch.setenv("BUILDER_DEBIAN_ROOT", "mmdebstrap")
    (programs := tmp_path / "engine").mkdir()
    (programs / "docker").write_text(NO_ENGINE)
    (programs / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin")  # no scanner
    monkeypatch.setenv("BUILDER_NAMESPACE", f"{registry}/me")
    return World(lock_farm, tmp_path)


def test_a_night_moves_the_channel_for_a_security_update(
    world: World, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, archive = Repository(f"{registry}/{NAME}", print), world.farm.archive
    first = world.night()
    assert (first.outcome, first.reason) == ("moved", "")
    assert world.night().outcome == "unchanged"
    archive.secure("libc", "1:2.0-1+deb1", "fix CVE-2026-11111", Multi_Arch="same")
    archive.add("libc-dev", "1:2.0-1", Depends="libc (>= 1:2.0-1)", Multi_Arch="same")
    archive.publish()
    second = world.night()
    why = "Debian's security updates: libc 1:2.0-1 -> 1:2.0-1+deb1 (CVE-2026-11111)"
    assert (second.outcome, second.reason) == ("moved", why)
    assert repository.head_digest("nightly") == second.digest != first.digest
    assert moves(repository, "nightly", UNSIGNED)[0].reason.endswith(f"; {why}")
    made = catalog_of(repository, "nightly", tmp_path / "lock")
    (lock,) = (made / "recipes/bases/locks").glob("root-*")
    assert 'version = "1:2.0-1+deb1"' in lock.read_text()
    third = world.night()
    assert (third.outcome, third.digest, third.reason) == ("unchanged", second.digest, "")
    # What one night took, a night without the archive does not take back.
    monkeypatch.setenv("BUILDER_DEBIAN_MIRROR", "http://127.0.0.1:9")
    (failed,) = night.run_channels(build_session(root=world.farm.catalog), ["two-1"])
    assert failed.outcome == "failed"
    assert failed.reason.startswith("whether Debian has security updates is not known: ")
    assert repository.head_digest("nightly") == second.digest


def test_a_vulnerable_image_is_refused_accepted_and_named(
    world: World,
    registry: str,
    builder: Builder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = Repository(f"{registry}/{NAME}", print)
    world.add("[budget]\nfixed = { critical = 30 }")
    unknown = world.night()
    assert unknown.outcome == "failed"
    assert "are not known, and [budget] fixed limits them" in unknown.reason
    assert "no scanner of vulnerabilities is installed" in unknown.reason
    stand_in(tmp_path / "bin", "grype", GRYPE)
    on_path(monkeypatch, tmp_path / "bin")
    refused = world.night()
    assert refused.outcome == "failed"
    assert "has vulnerabilities with a fix for longer than [budget] fixed allows" in refused.reason
    libc = "CVE-2026-1111 (critical) in libc6 2.41-12+deb13u1, mended in 2.41-12+deb13u2: "
    assert libc in refused.reason
    assert not repository.head_digest("nightly")
    why = 'why   = "the image answers nobody"'
    world.add(f'[[accept]]\ncheck = "vulnerabilities"\ncase  = "GHSA-aaaa-*"\n{why}')
    moved = world.night()
    assert moved.outcome == "moved", moved.reason
    found = newest_scan(referrers(repository, moved.digest), moved.digest)
    assert found is not None
    assert (found.scanner, found.fixed) == ("grype 0.110.0", {})
    assert world.night().outcome == "unchanged"
    # A vulnerability that is published later is named the next night, where it is served.
    later = json.loads(json.dumps(GRYPE["matches"][0]))
    later["vulnerability"] |= {"id": "CVE-2026-5555", "severity": "High"}
    later["relatedVulnerabilities"] = []
    stand_in(tmp_path / "bin", "grype", GRYPE | {"matches": [*GRYPE["matches"], later]})
    assert world.night().outcome == "unchanged"
    done = builder("status", "--json", "--catalog", world.farm.catalog)
    (status,) = json.loads(done.stdout)
    (scan,) = status["vulnerable"]
    assert (scan["fixed"], scan["late"]) == ({"high": 1}, [])
    done = builder("status", "--catalog", world.farm.catalog)
    assert "vulnerabilities (grype 0.110.0, " in done.stdout
    assert "1 high with a fix" in done.stdout
    later["vulnerability"]["severity"] = "Critical"
    stand_in(tmp_path / "bin", "grype", GRYPE | {"matches": [*GRYPE["matches"], later]})
    failed = world.night()
    assert failed.outcome == "failed"
    assert "CVE-2026-5555 (critical)" in failed.reason
    assert repository.head_digest("nightly") == moved.digest
    (status,) = json.loads(builder("status", "--json", "--catalog", world.farm.catalog).stdout)
    assert status["vulnerable"][0]["late"] == ["CVE-2026-5555"]

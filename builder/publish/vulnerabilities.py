"""The known vulnerabilities of an image, by a scanner that is installed, and the gate on them.

No scanner is our own: trivy, grype or osv-scanner reads the image's bill of materials, without the
parts that only built it.  The result is a statement of in-toto that is attached to the image
(https://github.com/in-toto/attestation, spec/predicates/vulns_02.md).  Where nothing could be
scanned the vulnerabilities are unknown, which is never good.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict

from builder.build.build import BuildSession
from builder.build.record import Record
from builder.core.errors import BuilderError, RegistryError, UntriedError, listed
from builder.docker import engine as docker
from builder.plan.plan import Plan
from builder.publish.attachments import SPDX, attached, documents
from builder.publish.registry import Repository
from builder.publish.signing import Trust
from builder.publish.verdicts import (
    Attachment,
    attach_all,
    referrers,
    stated,
    statement_of,
    statements_in,
)
from builder.recipes.probes import Severity

VULNERABILITIES = "https://in-toto.io/attestation/vulns/v0.2"
SUMMARY = "builder.vulnerabilities"
"""The annotation with a ``Summary`` as JSON, so that no file has to be fetched to list it."""
SEVERITIES: Sequence[Severity] = get_args(Severity)
Entries = Sequence[Mapping[str, Any]]
PATIENCE = 900.0  # seconds: trivy and grype fetch their databases first


class Found(NamedTuple):
    """A vulnerability of a package of the image."""

    severity: Severity
    id: str
    package: str
    version: str
    fixed: str  # the versions that mend it; empty: there is none
    since: str
    """The day (YYYY-MM-DD) since which there is a fix, else since which the vulnerability is known,
    which is no later; empty: not known."""
    names: tuple[str, ...] = ()  # its other ids


class Scan(NamedTuple):
    """What a scanner found in a bill, the worst first."""

    scanner: str
    version: str
    database: str  # when its database was made; empty: the scanner does not say it
    started: datetime
    found: tuple[Found, ...]


# The scanners.  A reader says of a report whether it is one of Debian's packages, the scanner's
# version, when its database was made (empty: it does not say), and the arguments of ``_found``.

Report = tuple[bool, str, str, Iterable[Sequence[Any]]]


def _trivy(report: Any, state: str) -> Report:
    """The report of trivy (pkg/types/report.go)."""
    about, system = json.loads(state), report["Metadata"].get("OS", {}).get("Family", "none")
    own = ("VulnerabilityID", "PkgName", "InstalledVersion")
    more = ("Severity", "FixedVersion", "PublishedDate", "VendorIDs")
    found = (each for part in report["Results"] for each in part.get("Vulnerabilities") or ())
    rows = ((*(e[name] for name in own), *(e.get(name) or "" for name in more)) for e in found)
    return system != "none", about["Version"], about["VulnerabilityDB"]["UpdatedAt"], rows


def _grype(report: Any, _: str) -> Report:
    """The report of grype (grype/presenter/models)."""
    rows, about = [], report["descriptor"]
    for match in report["matches"]:
        each, package = match["vulnerability"], match["artifact"]
        days = [one.get("date") or "" for one in each["fix"].get("available") or ()]
        names = [one["id"] for one in match.get("relatedVulnerabilities") or ()]
        word, fixed = each.get("severity", ""), ", ".join(each["fix"]["versions"])
        since = min(filter(None, days), default="")
        rows.append((each["id"], package["name"], package["version"], word, fixed, since, names))
    database = about.get("db") or {}
    built = (database.get("status") or database).get("built", "")
    return bool(report["distro"]["name"]), about["version"], str(built), rows


def _osv(report: Any, state: str) -> Report:
    """The report of osv-scanner 2 (pkg/models/results.go), with entries of the OSV schema."""
    packages, rows = [one for part in report["results"] for one in part["packages"]], []
    for each in packages:
        name, version, system = (each["package"][key] for key in ("name", "version", "ecosystem"))
        entries = {one["id"]: one for one in each.get("vulnerabilities") or ()}
        for group in each.get("groups") or ():
            first, fixed = entries[group["ids"][0]], []
            for place in first["affected"]:
                own = place.get("package") or {"name": "", "ecosystem": ""}
                if own["name"] == name and own["ecosystem"].startswith(system):
                    ranges = (one for one in place.get("ranges") or () if one["type"] != "GIT")
                    events = (event for one in ranges for event in one["events"])
                    fixed += [event["fixed"] for event in events if "fixed" in event]
            score, least = float(group.get("max_severity") or -1), {"critical": 9, "high": 7}
            least |= {"medium": 4, "low": 0}
            word = next((word for word, limit in least.items() if score >= limit), "")
            names, since = [*group["ids"], *(group.get("aliases") or ())], first.get("published")
            rows.append((first["id"], name, version, word, ", ".join(fixed), since, names))
    debian = any(each["package"]["ecosystem"].startswith("Debian") for each in packages)
    return debian, state.split("\n")[0].rpartition(" ")[2], "", rows


def _found(
    name: str, package: str, version: str, word: str, fixed: str, since: str, names: Iterable[str]
) -> Found:
    word = {"negligible": "low", "moderate": "medium"}.get(word.lower(), word.lower())
    severity: Severity = next((each for each in SEVERITIES if each == word), "unknown")
    day = str(date.fromisoformat(since[:10])) if since else ""
    others = tuple(each for each in dict.fromkeys(names) if each != name)
    return Found(severity, name, package, version, fixed, day, others)


class Scanner(NamedTuple):
    """A scanner of bills of materials; all print JSON on standard output."""

    page: str
    scan: str  # the arguments before the bill's file
    state: str  # the arguments that print its version, and of trivy the state of its database
    read: Callable[[Any, str], Report]  # of a report and that state
    good: tuple[int, ...] = (0,)  # exit codes after a scan


GITHUB = "https://github.com"
SCANNERS = {
    "trivy": Scanner(
        *(f"{GITHUB}/aquasecurity/trivy", "sbom --format=json --quiet", "version --format=json"),
        _trivy,
    ),
    "grype": Scanner(f"{GITHUB}/anchore/grype", "-o json -q", "version -o json", _grype),
    "osv-scanner": Scanner(
        f"{GITHUB}/google/osv-scanner",
        *("scan source --format=json --all-packages --lockfile", "--version", _osv),
        (0, 1),  # 1: it found something
    ),
}
"""In the order in which they are looked for."""


def scan(bill: str, work: Path) -> Scan:
    """Scan a bill of materials (SPDX) with the first scanner that is installed.

    ``work`` is an empty directory: a file of exceptions that lies about elsewhere does not count.
    Raises ``UntriedError`` where none is installed, or it fails, or its report is another one.
    """
    name = _installed()
    scanner, file, started = SCANNERS[name], work / "bom.spdx.json", datetime.now(UTC)
    try:
        document = json.loads(bill)
        debian = _without_build(document)
        file.write_text(json.dumps(document))
        text = _run([name, *scanner.scan.split(), file.name], scanner.good, work)
        state = _run([name, *scanner.state.split()], (0,), work)
        known, version, database, rows = scanner.read(json.loads(text), state)
        found = {_found(*each) for each in rows}
        why = "" if known or not debian else "it did not recognize the Debian packages"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
    if why:
        what = f"the bill, or the report of {name}, cannot be used"
        raise UntriedError(what, why, "try another version of it")
    ordered = sorted(found, key=lambda each: (SEVERITIES.index(each.severity), each))
    return Scan(name, version, database, started, tuple(ordered))


def _installed() -> str:
    """The first scanner on PATH; raises ``UntriedError``."""
    if name := next(filter(shutil.which, SCANNERS), ""):
        return name
    what, why = "no scanner of vulnerabilities is installed", f"looked for {', '.join(SCANNERS)}"
    raise UntriedError(what, why, "install one of them")


def _without_build(document: dict[str, Any]) -> bool:
    """Take the parts that only built the image out of its bill; whether it has Debian packages."""
    links, ends = document["relationships"], ("spdxElementId", "relatedSpdxElement")
    built = {e[ends[0]] for e in links if e["relationshipType"] == "BUILD_DEPENDENCY_OF"}
    document["packages"] = [each for each in document["packages"] if each["SPDXID"] not in built]
    document["relationships"] = [each for each in links if not built & {each[e] for e in ends}]
    return any(each["SPDXID"].startswith("SPDXRef-debian-") for each in document["packages"])


def _run(command: list[str], good: Sequence[int], work: Path) -> str:
    given: dict[str, Any] = {"cwd": work, "stdin": subprocess.DEVNULL, "timeout": PATIENCE}
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, **given)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        raise UntriedError(f"{command[0]} cannot be run", str(error)) from error
    if done.returncode not in good:
        last = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise UntriedError(f"{command[0]} ended with {done.returncode}", last)
    return str(done.stdout)


# The gate.


def late_in(
    found: Iterable[Found], limits: Mapping[Severity, int], today: datetime
) -> Iterator[Found]:
    """The vulnerabilities that have had a fix for longer than their severity's limit in days.

    An age that is not known is too high; a severity that is not known has the lowest limit.
    """
    least = {"unknown": min(limits.values(), default=inf)}
    for each in found:
        limit = limits.get(each.severity, least.get(each.severity, inf))
        since = date.fromisoformat(each.since).toordinal() if each.since else -inf
        if each.fixed and today.toordinal() - since > limit:
            yield each


class Summary(BaseModel):
    """The result of a scan, in short."""

    model_config = ConfigDict(frozen=True, strict=True)

    digest: str  # the image's
    scanner: str  # with its version
    scanned: str  # RFC 3339, UTC
    fixed: dict[str, int]
    """The number of vulnerabilities that have a fix and are not accepted, by severity."""
    late: list[str]  # ids of those that have had a fix for longer than the recipe allows
    result: str  # sha256 of all of them

    @property
    def text(self) -> str:
        """One line for people."""
        counts = ", ".join(f"{count} {severity}" for severity, count in self.fixed.items())
        late = f"; too late: {listed(self.late, 3, ', ')}" if self.late else ""
        about = f"vulnerabilities ({self.scanner}, {self.scanned[:10]})"
        return f"{about}: {counts or 'none'} with a fix{late}"


def newest_scan(entries: Iterable[Mapping[str, Any]], digest: str) -> Summary | None:
    """The newest scan of an image among its referrers; signatures do not count."""
    found = (each for each, _ in statements_in(entries, VULNERABILITIES, SUMMARY, Summary))
    own = (each for each in found if each.digest == digest)
    return max(own, key=lambda each: each.scanned, default=None)


def examine(
    session: BuildSession,
    plan: Plan,
    record: Record | None,
    image: tuple[Repository, str, Entries],
    trust: Trust,
) -> tuple[list[Attachment], BuilderError | None]:
    """Scan an image: the statement to attach, if it says anything new, and why the image is
    refused, if the recipe has limits.

    ``image`` is its repository, its digest and the descriptors of its referrers.  ``record`` is
    of the image that may be in the engine; else the attached bill is read.
    """
    (repository, digest, entries), limits = image, plan.recipe.budget.fixed
    folder = trust.work.with_name("scan")
    try:
        _installed()  # else nothing is fetched
        folder.mkdir()
        if record is not None and docker.image(record.digest) is not None:
            bill = documents(plan, record, folder)[SPDX]
        else:
            bill = attached(repository, digest, SPDX)[0].content.decode(errors="replace")
        done = scan(bill, folder)
    except (UntriedError, RegistryError) as error:
        text = ": ".join(filter(None, (error.what, error.why)))
        session.log(f"the vulnerabilities of {plan.name} are not known: {text}")
        what = f"the vulnerabilities of {plan.name} are not known, and [budget] fixed limits them"
        return [], UntriedError(what, text, error.hint) if limits else None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    known = [each for each in plan.recipe.accept if each.check == "vulnerabilities"]
    reasons = {
        each: next((one.why for one in known if any(map(one.covers, (each.id, *each.names)))), "")
        for each in done.found
    }
    fixed = [each for each, why in reasons.items() if each.fixed and not why]
    late = [*late_in(fixed, limits, done.started)]
    summary = Summary(
        digest=digest,
        scanner=f"{done.scanner} {done.version}",
        scanned=f"{done.started:%Y-%m-%dT%H:%M:%SZ}",
        fixed=dict(Counter(str(each.severity) for each in fixed)),
        late=[each.id for each in late],
        result=hashlib.sha256(repr(reasons).encode()).hexdigest(),
    )
    session.log(f"{plan.name}: {summary.text}")
    before, made = newest_scan(entries, digest), []
    if before is None or (before.result, before.late) != (summary.result, summary.late):
        text = statement_of(repository.name, digest, VULNERABILITIES, _predicate(done, reasons))
        values = {SUMMARY: summary.model_dump_json()}
        made = [stated(trust, text, VULNERABILITIES, "vulnerabilities", values)]
    return made, _refused(plan, late) if late else None


def _predicate(done: Scan, reasons: Mapping[Found, str]) -> dict[str, Any]:
    scanner: dict[str, Any] = {"uri": SCANNERS[done.scanner].page, "version": done.version}
    scanner |= {"db": {"lastUpdate": done.database}} if done.database else {}
    scanner["result"] = results = []
    for each, why in reasons.items():
        shown = {**each._asdict(), "accepted": why}
        severity = [{"method": done.scanner, "score": shown.pop("severity")}]
        head = {"id": shown.pop("id"), "severity": severity}
        results.append({**head, "annotations": [{n: value for n, value in shown.items() if value}]})
    times = {"scanStartedOn": done.started, "scanFinishedOn": datetime.now(UTC)}
    metadata = {name: f"{time:%Y-%m-%dT%H:%M:%SZ}" for name, time in times.items()}
    return {"scanner": scanner, "metadata": metadata}


def _refused(plan: Plan, late: Sequence[Found]) -> RegistryError:
    lines = [
        f"{each.id} ({each.severity}) in {each.package} {each.version}, mended in {each.fixed}: "
        f"since {each.since or 'when is not known'}"
        for each in late
    ]
    return RegistryError(
        f"{plan.name} has vulnerabilities with a fix for longer than [budget] fixed allows",
        listed(lines, 20, "\n"),
        "take the fixes: `builder pin lock` of the base has Debian's; or accept one: "
        '[[accept]] check = "vulnerabilities", case = "ID", why = "REASON"',
    )


def rescan(
    session: BuildSession, plans: Sequence[Plan], repository: Repository, digest: str, trust: Trust
) -> None:
    """Scan images of a registry again, as of today, and attach what is new.

    ``digest`` is of the index of their images, where there are several.  Raises like ``push``.
    """
    there = repository.manifest(digest) if len(plans) > 1 else None
    listed = (there.body.manifests if there else None) or ()
    platforms = {each.platform.name: each.digest for each in listed if each.platform}
    problems = []
    for plan in plans:
        own = platforms.get(plan.platform, digest)
        image = repository, own, referrers(repository, own)
        made, problem = examine(session, plan, None, image, trust)
        if made and (subject := repository.manifest(own)):
            attach_all(repository, subject, made)
        problems.append(problem)
    for problem in filter(None, problems):
        raise problem

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
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from builder.build.build import BuildSession
from builder.build.record import Record
from builder.core.errors import BuilderError, RegistryError, UntriedError, listed
from builder.docker import engine as docker
from builder.plan.plan import Plan
from builder.publish.attachments import SPDX, attached, documents
from builder.publish.registry import Repository
from builder.publish.signing import Trust
from builder.publish.verdicts import Attachment, annotations_of, attach_all, referrers, stated
from builder.publish.verdicts import statement_of as in_toto
from builder.recipes.probes import Accept, Severity

VULNERABILITIES = "https://in-toto.io/attestation/vulns/v0.2"
SUMMARY = "builder.vulnerabilities"
"""The annotation with a ``Summary`` as JSON, so that no file has to be fetched to list it."""
SEVERITIES: Sequence[Severity] = get_args(Severity)
PATIENCE = 900.0  # seconds: trivy and grype fetch their databases first


class Found(NamedTuple):
    """A vulnerability of a package of the image."""

    severity: Severity
    id: str
    package: str
    version: str
    fixed: str
    """The versions that mend it; empty: there is none."""
    since: str
    """The day (YYYY-MM-DD) since which there is a fix, else since which the vulnerability is known,
    which is no later; empty: not known."""
    names: tuple[str, ...] = ()
    """Its other ids."""

    def days(self, today: datetime) -> int | None:
        """The days since then; None: not known."""
        with suppress(ValueError):
            return (today - datetime.fromisoformat(self.since).replace(tzinfo=UTC)).days
        return None


# The scanners.


def _trivy(document: Any, debian: bool) -> Iterator[Found]:
    """The report of trivy (pkg/types/report.go); raises ``ValueError``."""
    if debian and document["Metadata"].get("OS", {}).get("Family", "none") == "none":
        raise ValueError("it did not recognize the distribution of the Debian packages")
    if not document.get("Results"):
        raise ValueError("it looked at no package")
    for each in (one for part in document["Results"] for one in part.get("Vulnerabilities") or []):
        yield Found(
            _severity(each.get("Severity", "")),
            each["VulnerabilityID"],
            each["PkgName"],
            each["InstalledVersion"],
            each.get("FixedVersion", ""),
            each.get("PublishedDate", "")[:10],
            tuple(each.get("VendorIDs") or ()),
        )


def _grype(document: Any, debian: bool) -> Iterator[Found]:
    """The report of grype (grype/presenter/models); raises ``ValueError``."""
    if debian and not document["distro"]["name"]:
        raise ValueError("it did not recognize the distribution of the Debian packages")
    for match in document["matches"]:
        each, package = match["vulnerability"], match["artifact"]
        dates = [fix["date"][:10] for fix in each["fix"].get("available") or [] if fix.get("date")]
        yield Found(
            _severity(each.get("severity", "")),
            each["id"],
            package["name"],
            package["version"],
            ", ".join(each["fix"]["versions"]),
            min(dates, default=""),
            tuple(other["id"] for other in match.get("relatedVulnerabilities") or []),
        )


def _osv(document: Any, debian: bool) -> Iterator[Found]:
    """The report of osv-scanner 2 (pkg/models/results.go), with entries of the OSV schema."""
    packages = [one for part in document["results"] for one in part["packages"]]
    if debian and not any(_of_debian(each["package"]) for each in packages):
        raise ValueError("it looked at no Debian package")
    for package in packages:
        name, own = package["package"]["name"], package["package"]["ecosystem"]
        entries = {each["id"]: each for each in package.get("vulnerabilities") or []}
        for group in package.get("groups") or []:
            first = entries[group["ids"][0]]
            places = [each for each in first["affected"] if each["package"]["name"] == name]
            places = [each for each in places if each["package"]["ecosystem"].startswith(own)]
            events = (event for each in places for way in each["ranges"] for event in way["events"])
            score = float(group.get("max_severity") or -1)
            limits = {"critical": 9, "high": 7, "medium": 4, "low": 0}
            names = dict.fromkeys((*group["ids"], *(group.get("aliases") or ())))
            yield Found(
                _severity(next((word for word, least in limits.items() if score >= least), "")),
                first["id"],
                name,
                package["package"]["version"],
                ", ".join(event["fixed"] for event in events if "fixed" in event),
                first.get("published", "")[:10],
                tuple(other for other in names if other != first["id"]),
            )


def _of_debian(package: Mapping[str, str]) -> bool:
    return package["ecosystem"].startswith("Debian")


def _severity(word: str) -> Severity:
    word = {"negligible": "low", "moderate": "medium"}.get(word.lower(), word.lower())
    return next((each for each in SEVERITIES if each == word), "unknown")


@dataclass(frozen=True, slots=True)
class Scanner:
    """A scanner of bills of materials; all print JSON on standard output."""

    page: str
    scan: tuple[str, ...]
    """The arguments before the bill's file."""
    state: tuple[str, ...]
    """The arguments that print its version, and of trivy the state of its database."""
    read: Callable[[Any, bool], Iterator[Found]]
    good: tuple[int, ...] = (0,)
    """Exit codes after a scan."""


SCANNERS = {
    "trivy": Scanner(
        "https://github.com/aquasecurity/trivy",
        ("sbom", "--format=json", "--quiet"),
        ("version", "--format=json"),
        _trivy,
    ),
    "grype": Scanner(
        "https://github.com/anchore/grype", ("-o", "json", "-q"), ("version", "-o", "json"), _grype
    ),
    "osv-scanner": Scanner(
        "https://github.com/google/osv-scanner",
        ("scan", "source", "--format=json", "--all-packages", "--lockfile"),
        ("--version",),
        _osv,
        (0, 1),  # 1: it found something
    ),
}
"""In the order in which they are looked for."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scanner found in a bill, the worst first."""

    scanner: str
    version: str
    database: str
    """When its database was made, as the scanner says; empty: it does not say."""
    started: datetime
    found: tuple[Found, ...]


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
        report = _run((name, *scanner.scan, file.name), scanner.good, work)
        state = _run((name, *scanner.state), (0,), work)
        parsed = json.loads(report)
        found = sorted({*scanner.read(parsed, debian)}, key=_rank)
        version, database = _state(name, state, parsed)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        what = f"the bill, or the report of {name}, cannot be used"
        raise UntriedError(what, why, "try another version of it") from error
    return Scan(name, version, database, started, tuple(found))


def _installed() -> str:
    """The first scanner on PATH; raises ``UntriedError``."""
    name = next(filter(shutil.which, SCANNERS), None)
    if name is None:
        what, why = (
            "no scanner of vulnerabilities is installed",
            f"looked for {', '.join(SCANNERS)}",
        )
        raise UntriedError(what, why, "install one of them")
    return name


def _rank(found: Found) -> tuple[int, Found]:
    return SEVERITIES.index(found.severity), found


def _without_build(document: dict[str, Any]) -> bool:
    """Take the parts that only built the image out of its bill; whether it has Debian packages."""
    built = {
        each["spdxElementId"]
        for each in document["relationships"]
        if each["relationshipType"] == "BUILD_DEPENDENCY_OF"
    }
    document["packages"] = [each for each in document["packages"] if each["SPDXID"] not in built]
    ends = ("spdxElementId", "relatedSpdxElement")
    document["relationships"] = [
        each for each in document["relationships"] if not built & {each[end] for end in ends}
    ]
    return any(each["SPDXID"].startswith("SPDXRef-debian-") for each in document["packages"])


def _run(command: Sequence[str], good: Sequence[int], work: Path) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        raise UntriedError(f"{command[0]} cannot be run", str(error)) from error
    if done.returncode not in good:
        last = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise UntriedError(f"{command[0]} ended with {done.returncode}", last)
    return done.stdout


def _state(name: str, answer: str, report: Any) -> tuple[str, str]:
    """The version of a scanner, and when its database was made."""
    if name == "trivy":
        state = json.loads(answer)
        return state["Version"], state["VulnerabilityDB"]["UpdatedAt"]
    if name == "grype":
        database = report["descriptor"].get("db") or {}
        built = (database.get("status") or database).get("built", "")
        return report["descriptor"]["version"], str(built)
    return answer.split("\n")[0].rpartition(" ")[2], ""


# The gate.


def late_in(
    found: Iterable[Found], limits: Mapping[Severity, int], today: datetime
) -> Iterator[Found]:
    """The vulnerabilities that have had a fix for longer than their severity's limit in days.

    An age that is not known is too high; a severity that is not known has the lowest limit.
    """
    lowest = min(limits.values(), default=None)
    for each in found:
        limit = limits.get(each.severity, lowest if each.severity == "unknown" else None)
        days = each.days(today)
        if each.fixed and limit is not None and (days is None or days > limit):
            yield each


def accepted(found: Found, exceptions: Sequence[Accept]) -> str:
    """The reason for which a recipe accepts a vulnerability; empty: it does not."""
    own = [each for each in exceptions if each.check == "vulnerabilities"]
    names = (found.id, *found.names)
    return next((each.why for each in own if any(map(each.covers, names))), "")


class Summary(BaseModel):
    """The result of a scan, in short."""

    model_config = ConfigDict(frozen=True, strict=True)

    digest: str
    """The image's."""
    scanner: str
    """With its version."""
    database: str
    """When its database was made; empty: not known."""
    scanned: str
    """RFC 3339, UTC."""
    fixed: dict[str, int]
    """The number of vulnerabilities that have a fix and are not accepted, by severity."""
    other: int
    """The number of others."""
    late: list[str]
    """Ids of those that have had a fix for longer than the recipe allows."""
    result: str
    """sha256 of all of them."""

    @property
    def text(self) -> str:
        """One line for people."""
        counts = [f"{count} {severity}" for severity, count in self.fixed.items()]
        late = f"; too late: {listed(self.late, 3, ', ')}" if self.late else ""
        with_fix = f"{', '.join(counts) or 'none'} with a fix"
        return f"vulnerabilities ({self.scanner}, {self.scanned[:10]}): {with_fix}{late}"


def newest_scan(entries: Iterable[Mapping[str, Any]], digest: str) -> Summary | None:
    """The newest scan of an image among its referrers; signatures do not count."""
    found = []
    for values in annotations_of(entries, VULNERABILITIES):
        with suppress(ValidationError):
            found.append(Summary.model_validate_json(values.get(SUMMARY, "")))
    own = [each for each in found if each.digest == digest]
    return max(own, key=lambda each: each.scanned, default=None)


def examine(
    session: BuildSession,
    plan: Plan,
    record: Record | None,
    image: tuple[Repository, str],
    work: Path,
    trust: Trust,
    entries: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[list[Attachment], BuilderError | None]:
    """Scan an image: the statement to attach, if it says anything new, and why the image is
    refused, if the recipe has limits.

    ``image`` is its repository and its digest, ``entries`` are the descriptors of its referrers.
    ``record`` is of the image that may be in the engine; else the attached bill is read.
    """
    (repository, digest), limits = image, plan.recipe.budget.fixed
    try:
        _installed()  # else nothing is fetched
        (folder := work / "scan").mkdir()
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
        shutil.rmtree(work / "scan", ignore_errors=True)
    reasons = {each: accepted(each, plan.recipe.accept) for each in done.found}
    open_ = [each for each in done.found if not reasons[each]]
    late = [*late_in(open_, limits, done.started)]
    summary = Summary(
        digest=digest,
        scanner=f"{done.scanner} {done.version}",
        database=done.database,
        scanned=f"{done.started:%Y-%m-%dT%H:%M:%SZ}",
        fixed=dict(Counter(str(each.severity) for each in open_ if each.fixed)),
        other=sum(not each.fixed or bool(reasons[each]) for each in done.found),
        late=[each.id for each in late],
        result=hashlib.sha256(repr(reasons).encode()).hexdigest(),
    )
    session.log(f"{plan.name}: {summary.text}")
    known = referrers(repository, digest) if entries is None else entries
    before, made = newest_scan(known, digest), []
    if before is None or (before.result, before.late) != (summary.result, summary.late):
        text = in_toto(repository.name, digest, VULNERABILITIES, _predicate(done, reasons))
        values = {SUMMARY: summary.model_dump_json()}
        made = [stated(trust, text, VULNERABILITIES, "vulnerabilities", values)]
    return made, _refused(plan, late, done.started) if late else None


def _predicate(done: Scan, reasons: Mapping[Found, str]) -> dict[str, Any]:
    results = []
    for each, why in reasons.items():
        more = {name: getattr(each, name) for name in ("package", "version", "fixed", "since")}
        more = {name: value for name, value in {**more, "accepted": why}.items() if value}
        severity = [{"method": done.scanner, "score": each.severity}]
        aliases = [{"alias": name} for name in each.names]
        results.append({"id": each.id, "severity": severity, "annotations": [more, *aliases]})
    scanner = {
        "uri": SCANNERS[done.scanner].page,
        "version": done.version,
        **({"db": {"lastUpdate": done.database}} if done.database else {}),
        "result": results,
    }
    ended = datetime.now(UTC)
    times = {"scanStartedOn": done.started, "scanFinishedOn": ended}
    return {
        "scanner": scanner,
        "metadata": {name: f"{time:%Y-%m-%dT%H:%M:%SZ}" for name, time in times.items()},
    }


def _refused(plan: Plan, late: Sequence[Found], today: datetime) -> RegistryError:
    ages = {each: each.days(today) for each in late}
    lines = [
        f"{each.id} ({each.severity}) in {each.package} {each.version}, mended in {each.fixed}: "
        + ("since when is not known" if ages[each] is None else f"{ages[each]} days")
        for each in late
    ]
    return RegistryError(
        f"{plan.name} has vulnerabilities with a fix for longer than [budget] fixed allows",
        listed(lines, 20, "\n"),
        "take the fixes: `builder pin lock` of the base has Debian's; or accept one: "
        '[[accept]] check = "vulnerabilities", case = "ID", why = "REASON"',
    )


def rescan(
    session: BuildSession,
    plans: Sequence[Plan],
    repository: Repository,
    digest: str,
    work: Path,
    trust: Trust,
) -> None:
    """Scan images of a registry again, as of today, and attach what is new.

    ``digest`` is of the index of their images, where there are several.  Raises like ``push``.
    """
    there = repository.manifest(digest) if len(plans) > 1 else None
    entries = (there.body.manifests if there else None) or ()
    platforms = {each.platform.name: each.digest for each in entries if each.platform}
    problems = []
    for plan in plans:
        own = platforms.get(plan.platform, digest)
        made, problem = examine(session, plan, None, (repository, own), work, trust)
        subject = repository.manifest(own) if made else None
        if subject is not None:
            attach_all(repository, subject, made)
        problems += [problem] if problem else []
    if problems:
        raise problems[0]

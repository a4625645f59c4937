"""Git: exact commits out of bare mirrors.

GitPython starts the git executable, so git's own configuration rules: ``url.<base>.insteadOf``,
proxies, credential helpers.  Every URL and commit was checked by the schema and stands behind
``--``.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from builder.errors import FetchError, WorldError

if TYPE_CHECKING:
    from git import Repo

ATTEMPTS = 4
# What git says when asking again may help; everything else is an answer.
PASSING = (
    "Could not resolve host",
    "Connection timed out",
    "Connection refused",
    "Connection reset",
    "early EOF",
    "unexpected disconnect",
    "The requested URL returned error: 429",
    "The requested URL returned error: 5",
)
ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
    "LC_ALL": "C",
}


def export(url: str, commit: str, cache: Path, target: Path) -> None:
    """Write the tree of ``commit`` (40 hex digits) below ``target``, without ``.git``.

    The commit is fetched at depth 1 into the mirror of ``url`` unless it is there.  Raises
    ``FetchError`` when the repository does not have it, or does not answer.
    """
    mirror = cache / "git" / f"{hashlib.sha256(url.encode()).hexdigest()[:20]}.git"
    mirror.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{mirror}.lock"):
        repository = _open(mirror)
        if not _has(repository, commit):
            _fetch(repository, url, commit)
        if not _has(repository, commit):
            raise FetchError(
                f"{commit} of {url} is no commit", hint="pin a commit, not a tag object or a tree"
            )
        _check_out(repository, commit, target)


def _open(mirror: Path) -> Repo:
    try:
        from git import InvalidGitRepositoryError, NoSuchPathError, Repo
    except ImportError as error:
        raise WorldError("there is no git on this machine", str(error), "install git") from error
    try:
        repository = Repo(mirror)
    except (InvalidGitRepositoryError, NoSuchPathError):
        repository = Repo.init(mirror, bare=True)
    repository.git.update_environment(**ENVIRONMENT)
    return repository


def _has(repository: Repo, commit: str) -> bool:
    from git import GitCommandError

    try:
        return str(repository.git.cat_file("-t", commit)) == "commit"
    except GitCommandError:
        return False


def _fetch(repository: Repo, url: str, commit: str) -> None:
    from git import GitCommandError
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

    retrying = Retrying(
        retry=retry_if_exception(lambda error: any(word in str(error) for word in PASSING)),
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_random_exponential(multiplier=0.5, max=20),
        reraise=True,
    )
    try:
        retrying(repository.git.fetch, "--depth=1", "--no-tags", "--quiet", "--", url, commit)
    except GitCommandError as error:
        said = str(error.stderr).replace("stderr:", "").strip().strip("'").strip()
        raise FetchError(
            f"cannot fetch {commit} of {url}",
            said,
            "check the commit and the URL; `git ls-remote` shows whether the repository answers",
        ) from error


def _check_out(repository: Repo, commit: str, target: Path) -> None:
    """Write exactly what the commit holds: ``git archive`` would leave out export-ignore paths."""
    from git import GitCommandError

    target.mkdir()
    index = target.with_suffix(".index")
    git = repository.git
    try:
        with git.custom_environment(GIT_INDEX_FILE=str(index)):
            git(c="core.autocrlf=false").read_tree(commit)
            git(c="core.autocrlf=false", work_tree=str(target)).checkout_index("--all")
    except GitCommandError as error:
        raise FetchError(f"the tree of {commit} cannot be written", str(error.stderr)) from error
    finally:
        index.unlink(missing_ok=True)

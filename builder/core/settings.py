"""The user's settings for all recipes: from the environment, or from a file.

The file is ``settings.toml`` in the user's configuration directory; the variable ``BUILDER_X``
overrides its ``x``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from platformdirs import user_cache_path, user_config_path, user_state_path
from pydantic import BeforeValidator, Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from builder.core.errors import WorldError, in_words, suggestion
from builder.core.files import require_writable
from builder.core.names import REPOSITORY
from builder.core.platforms import Architecture
from builder.core.toml_lines import line_numbers, line_of

API = r"^https?://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._/-]*)?$"

# As Docker reads names: the first part is a registry if it has a dot or a port.
NAMESPACE = rf"^$|^(?:[a-z0-9][a-z0-9.-]*(?::[0-9]+)?/)?{REPOSITORY.removeprefix('^')}"

API_OR_NONE = rf"^$|{API}"
HOST = r"^[a-z0-9.-]+$"

WORDS = {
    HOST: "must be host names without a port: auth.example.com",
    API: "must be an http or https URL",
    API_OR_NONE: "must be an http or https URL",
    NAMESPACE: "must be names of lower-case letters, digits and . _ -, joined by /, after the "
    "registry if it is not Docker Hub: me, 127.0.0.1:5000/me",
}
"""The rule of each pattern in words."""

ALIASES = ("BUILDX_BUILDER",)
"""Variables without the prefix."""

RootWay = Literal["auto", "registry", "mmdebstrap"]


SNAPSHOT = "https://snapshot.debian.org"


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of Debian that the user chose."""

    mirror: str = ""
    """Has ``debian`` and ``debian-security`` below it; empty: the sources of this machine."""
    snapshot: str = SNAPSHOT


def settings_file() -> Path:
    """The path of the user's settings."""
    return user_config_path("builder") / "settings.toml"


def _listed(value: object) -> object:
    return value.replace(",", " ").split() if isinstance(value, str) else value


class Settings(BaseSettings):
    """The settings; their defaults work on a fresh machine."""

    model_config = SettingsConfigDict(
        env_prefix="BUILDER_", extra="forbid", frozen=True, populate_by_name=True
    )

    namespace: Annotated[str, StringConstraints(pattern=NAMESPACE)] = ""
    """Prefix of every repository: the account on Docker Hub, or REGISTRY/ACCOUNT."""
    debian_root: RootWay = "auto"
    """Source of the Debian root; auto: an existing root, else the first of these that works."""
    debian_mirror: Annotated[str, StringConstraints(pattern=API_OR_NONE)] = ""
    """URL of a server with ``debian`` and ``debian-security``; empty: this machine's sources."""
    debian_snapshot: Annotated[str, StringConstraints(pattern=API)] = SNAPSHOT
    """URL of a server that keeps every state of Debian's archives, as snapshot.debian.org does."""
    jobs: Annotated[int, Field(ge=0, le=4096)] = 0
    """Number of parallel compile jobs; 0: as many as cores and memory allow."""
    buildx: Annotated[str, Field(validation_alias=ALIASES[0])] = ""
    """The buildx builder that compiles, from Docker's own variable; empty: the engine's own."""
    compile_on: Architecture | None = None
    """The architecture that compiles, where it is not the builder's own: it is emulated."""
    layer_cache: Annotated[str, StringConstraints(pattern=NAMESPACE)] = ""
    """Repository for the layer cache: REGISTRY/NAME; empty: none."""
    cache_dir: Path = Field(default_factory=lambda: user_cache_path("builder"))
    """Directory for downloads, work directories and locks."""
    state_dir: Path = Field(default_factory=lambda: user_state_path("builder"))
    """Directory for records and logs."""
    models_dir: Path = Path("~/models")
    """Directory of models, for all checkouts: OWNER/NAME/FILE, as on the Hugging Face Hub."""

    farm_url: Annotated[str, StringConstraints(pattern=API_OR_NONE)] = ""
    """URL of this farm's git repository, for git and for a browser: the site links to it."""
    hub_api: Annotated[str, StringConstraints(pattern=API)] = "https://hub.docker.com"
    """URL of Docker Hub's API."""
    cosign_key: str = ""
    """Signer of images: a key (a file or a key URI of cosign), or the identity of a workflow
    (``IDENTITY;ISSUER``); empty: images are not signed."""
    trusted_keys: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)] = ()
    """Public keys (files or key URIs of cosign) and identities whose signed verdicts and statements
    are trusted, separated by commas or spaces; ``cosign_key`` always is."""
    sigstore: Path | None = None
    """Directory with ``trusted_root.json`` and ``signing_config.json`` of a Sigstore of one's own;
    None: the public one."""

    token_hosts: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=HOST)], ...],
        NoDecode,
        BeforeValidator(_listed),
    ] = ()
    """Hosts that may issue tokens for registries, and so get their logins, besides the registry's
    own; separated by commas or spaces."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments override the environment, which overrides the file."""
        file = TomlConfigSettingsSource(settings_cls, settings_file())
        return init_settings, env_settings, file

    @property
    def debian_servers(self) -> Servers:
        """The servers of Debian packages."""
        return Servers(self.debian_mirror, self.debian_snapshot)

    def repository(self, name: str) -> str:
        """The name of a repository with the namespace."""
        return f"{self.namespace}/{name}" if self.namespace else name

    def require_directories(self) -> None:
        """Create the cache and state directories.

        Raises ``WorldError`` if one cannot be created or is not writable.
        """
        for name in ("cache_dir", "state_dir"):
            folder: Path = getattr(self, name)
            hint = f"set BUILDER_{name.upper()} to a directory that you can write to"
            require_writable(folder, hint)
            folder.mkdir(parents=True, exist_ok=True)


def load() -> Settings:
    """Read the settings; raises ``WorldError`` that lists all invalid ones."""
    try:
        return Settings()
    except ValidationError as error:
        raise WorldError(
            "the settings are invalid",
            "\n".join(_problem(item) for item in error.errors(include_url=False)),
            _next_step(error.errors(include_url=False)),
        ) from error
    except ValueError as error:
        raise WorldError(
            f"{settings_file()} is not TOML", str(error), "correct the file"
        ) from error


def _next_step(problems: list[ErrorDetails]) -> str:
    for item in problems:
        name = re.sub(r"^\w+://|/+$", "", str(item["input"])).lower()
        if item["loc"] == ("namespace",) and re.fullmatch(NAMESPACE, name):
            return f"write {name}: lower case, without https://"
    return "correct them where they are set, or unset them: docs/commands.md has all settings"


def _problem(item: ErrorDetails) -> str:
    name = str(item["loc"][0])
    place = _place(name)
    if item["type"] == "extra_forbidden":
        return f"{place}: unknown setting{suggestion(name, sorted(Settings.model_fields))}"
    given = f"it is {item['input']!r}"
    words = WORDS.get(item.get("ctx", {}).get("pattern", ""))
    if words:
        return f"{place} {words}; {given}"
    return f"{place}: {in_words(item['msg'])}; {given}"


def _place(name: str) -> str:
    """Where a setting has its value: the variable, else the file, its line and the key."""
    variable = name if name in ALIASES else f"BUILDER_{name.upper()}"
    if variable in {each.upper() for each in os.environ}:
        return variable
    file = settings_file()
    return f"{file}:{line_of((name,), line_numbers(file.read_text('utf-8')))}: {name}"

"""What a user may set, once for all recipes: in the environment, or in a file.

The file is ``settings.toml`` in the user's configuration directory; a variable ``BUILDER_X``
goes before its ``x``.
"""

from __future__ import annotations

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

from builder.errors import WorldError
from builder.recipes.schema.fields import REPOSITORY
from builder.tools.files import require_writable

API = r"^https?://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._/-]*)?$"

# As Docker reads names: what stands first is a registry where it has a dot or a port.
NAMESPACE = rf"^$|^(?:[a-z0-9][a-z0-9.-]*(?::[0-9]+)?/)?{REPOSITORY.removeprefix('^')}"

HOST = r"^[a-z0-9.-]+$"

WORDS = {
    HOST: "must be host names, without a port: auth.example.com",
    API: "must be an http or https URL",
    NAMESPACE: "must be a name of lower-case letters, digits and . _ -, or several with /, after a "
    "registry where it is not Docker Hub: me, 127.0.0.1:5000/me",
}
"""What each pattern asks for, in words."""

RootWay = Literal["auto", "registry", "mmdebstrap"]


def settings_file() -> Path:
    """Where the user's settings stand."""
    return user_config_path("builder") / "settings.toml"


def _listed(value: object) -> object:
    return value.replace(",", " ").split() if isinstance(value, str) else value


class Settings(BaseSettings):
    """The settings, each with a default that works on a fresh machine."""

    model_config = SettingsConfigDict(
        env_prefix="BUILDER_", extra="forbid", frozen=True, populate_by_name=True
    )

    namespace: Annotated[str, StringConstraints(pattern=NAMESPACE)] = ""
    """Goes before every repository: the account on Docker Hub, or REGISTRY/ACCOUNT."""
    debian_root: RootWay = "auto"
    """Where the Debian root comes from; auto: what is there already, else in this order."""
    jobs: Annotated[int, Field(ge=0, le=4096)] = 0
    """Compile jobs; 0: as many as cores and memory carry."""
    buildx: Annotated[str, Field(validation_alias="BUILDX_BUILDER")] = ""
    """The builder of buildx that compiles, by Docker's own variable; empty: the engine's own."""
    layer_cache: Annotated[str, StringConstraints(pattern=NAMESPACE)] = ""
    """The repository that layers are taken from and kept in: REGISTRY/NAME; empty: none."""
    cache_dir: Path = Field(default_factory=lambda: user_cache_path("builder"))
    """Fetched files, work directories and locks."""
    state_dir: Path = Field(default_factory=lambda: user_state_path("builder"))
    """Records and logs."""

    github_api: Annotated[str, StringConstraints(pattern=API)] = "https://api.github.com"
    """Where GitHub's REST API is: another one for GitHub Enterprise."""
    hub_api: Annotated[str, StringConstraints(pattern=API)] = "https://hub.docker.com"
    """Where Docker Hub's own API is."""
    cosign_key: str = ""
    """What images are signed with: a file, or one of cosign's key URIs; empty: they are not."""
    trusted_keys: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_listed)] = ()
    """Public keys whose signed verdicts count here, as files or cosign's key URIs, separated by
    commas or spaces; the public key of ``cosign_key`` counts as well."""

    token_hosts: Annotated[
        tuple[Annotated[str, StringConstraints(pattern=HOST)], ...],
        NoDecode,
        BeforeValidator(_listed),
    ] = ()
    """Hosts that registries may name for tokens, and that get their logins, beside those that
    share the registry's domain; separated by commas or spaces."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the file."""
        file = TomlConfigSettingsSource(settings_cls, settings_file())
        return init_settings, env_settings, file

    def repository(self, name: str) -> str:
        """The repository of an image, with the namespace."""
        return f"{self.namespace}/{name}" if self.namespace else name

    def require_directories(self) -> None:
        """Make the cache's and the state's directory.

        Raises ``WorldError`` where one cannot be made, or not be written to.
        """
        for name in ("cache_dir", "state_dir"):
            folder: Path = getattr(self, name)
            hint = f"set BUILDER_{name.upper()} to a directory that you can write to"
            require_writable(folder, hint)
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                why = error.strerror or str(error)
                raise WorldError(f"cannot make the directory {folder}", why, hint) from error


def load() -> Settings:
    """Read the settings; raises ``WorldError`` with every one that is wrong."""
    try:
        return Settings()
    except ValidationError as error:
        raise WorldError(
            "the settings are wrong",
            "\n".join(_told(item) for item in error.errors(include_url=False)),
            f"correct them in {settings_file()}, or in the environment (BUILDER_JOBS sets jobs)",
        ) from error
    except ValueError as error:
        raise WorldError(f"{settings_file()} is not TOML", str(error)) from error


def _told(item: ErrorDetails) -> str:
    name = ".".join(str(part) for part in item["loc"])
    words = WORDS.get(item.get("ctx", {}).get("pattern", ""))
    return f"{name} {words}; it is {item['input']!r}" if words else f"{name}: {item['msg']}"

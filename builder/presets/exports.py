"""The files of ``builder export``: a function for each format, and values that no template can
break."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from ipaddress import ip_address
from pathlib import PurePosixPath
from textwrap import wrap
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from builder.core import sizes
from builder.core.errors import RecipeError, as_started, plain
from builder.engines.layout import NO_CARD
from builder.presets.command import container_options
from builder.presets.schema import DIRECTORY, ContainerOptions
from builder.presets.service import (
    HOST,
    KEY,
    STOP,
    Mount,
    Service,
    container_needs,
    in_url,
)

WIDTH = 88  # characters of a line of comments


def comment(text: str) -> str:
    """Text as one line, without control characters: it cannot end a comment."""
    return as_started(" ".join(plain(text).split()))


def comments(text: str) -> list[str]:
    """Text as lines of comments: prose is wrapped, and a command stays whole.

    Commands stand after two blanks on a line of their own, or between backticks.
    """
    found = []
    for line in text.split("\n"):
        if line.startswith("  "):
            found.append(f"  {comment(line)}")
            continue
        kept = re.sub("`[^`]*`", lambda part: part[0].replace(" ", "\0"), comment(line))
        lines = wrap(kept, WIDTH, break_long_words=False, break_on_hyphens=False)
        found += [each.replace("\0", " ") for each in lines]
    return found


def heading(service: Service) -> list[str]:
    """The prerequisites, the served model, and the caveats, as lines of comments."""
    incomplete = [f"Incomplete: {each}" for each in service.incomplete]
    texts = (*incomplete, service.title, *service.missing, *service.caveats)
    return [line for each in texts for line in comments(each)]


def reasons(service: Service) -> Iterator[str]:
    """The heading, and the reason for each setting."""
    yield from heading(service)
    needs = (why for *_, why in container_needs(service.container))
    named = [*zip(container_options(service.container), needs, strict=True)]
    named += [(each.name, each.why) for each in service.environment]
    for each in service.arguments:
        named.append((each.words[0] if each.words[0].startswith("-") else "model", each.why))
    for name, why in named:
        if why:
            yield from comments(f"{name}: {why}")


def access(service: Service, own: str = "This machine alone reaches") -> str:
    """Who reaches the server, and which key it asks for, in a line."""
    who = own if _on_loopback(service) else "The network reaches"
    key = f"the key in {service.key_file}" if service.key_file else "no key"
    return f"{who} it; it asks for {key}."


def request(service: Service) -> str:
    """A command that asks the server for its models."""
    key = f'"Authorization: Bearer $(cat {shlex.quote(service.key_file)})" '
    return f"curl {f'-H {key}' if service.key_file else ''}{service.url}/v1/models"


def _on_loopback(service: Service) -> bool:
    return ip_address(service.listen).is_loopback


def scalar(value: str) -> str:
    """A text as YAML's double-quoted scalar (YAML 1.2, section 7.3.1).

    JSON's escapes are YAML's, too.  Characters that are not printable are escaped, because
    YAML 1.1 takes some of them, such as U+2028, for the end of a line.
    """
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in quoted)


def rendered(template: str, **values: Any) -> str:
    """A template of this package with these values."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("builder", "presets/templates"),
        autoescape=False,  # noqa: S701  (no HTML)
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"scalar": scalar, "comment": comment, "comments": comments}
    environment.globals |= {"host": HOST, "stop": STOP, "reasons": reasons, "heading": heading}
    environment.globals |= {"access": access, "request": request}
    return environment


# A file for Docker Compose.
#
# The keys follow the Compose Specification (docs.docker.com, "Compose file reference"); a
# dollar sign is doubled, because Compose replaces variables in every value ("Interpolation").
# ``start_interval`` needs Compose 2.20.2 (its specification, "healthcheck") and Engine 25 (Engine
# API 1.44, "StartInterval").

COMPOSE_NEEDS = {
    "ipc": "ipc: {}",
    "shm_size": "shm_size: {}",
    "memlock": "ulimits: {{memlock: {}}}",
    "capabilities": "cap_add: [{}]",
}  # the keys of a preset's [container], with the values that its schema allows


def compose(service: Service) -> str:
    """``compose.yaml``."""
    needs = [
        (COMPOSE_NEEDS[key].format(value), why)
        for key, value, why in container_needs(service.container)
    ]
    return rendered("compose.yaml.j2", service=service, needs=needs, value=_value, source=_source)


def _source(mount: Mount) -> str:
    """The path on the host; a variable, or a line of ``.env``, replaces the models directory."""
    if mount.target == DIRECTORY and re.fullmatch(r"[^${}]+", mount.source):
        return scalar(f"${{MODELS_DIR:-{mount.source}}}")
    return _value(mount.source)


def _value(text: str) -> str:
    """A text in which Compose, and Kubernetes, replace nothing."""
    return scalar(text.replace("$", "$$"))


# ``docker run``: the command line that starts a service.


def words(service: Service) -> list[str]:
    """The arguments of ``docker``: ``run``, its options, the image, the engine's arguments."""
    return [word for each in lines(service) for word in each]


def line(service: Service) -> str:
    """The command for a shell, an option a line."""
    first, *others = lines(service)
    return " \\\n    ".join(shlex.join(each) for each in (["docker", *first], *others))


def docker_run(service: Service) -> str:
    """A shell script: the reasons as comments, and the command.

    It first removes the container of an earlier start, whose name it takes.
    """
    remove = f"docker rm --force {service.name}"
    needs = f"Needs Docker{' and the NVIDIA Container Toolkit' if service.cards else ''}."
    ask = f"{access(service)} Ask it for its models:\n  {request(service)}"
    stop = f"A second start replaces the container of the first. To stop it:\n  {remove}"
    shown = [*reasons(service), *comments(f"{needs}\n{ask}\n{stop}")]
    head = "".join(f"# {each}\n" for each in shown)
    return f"#!/bin/sh\n{head}{remove} >/dev/null 2>&1\nexec {line(service)}\n"


def lines(service: Service) -> list[list[str]]:
    """The words after ``docker``, an option a line."""
    single = ["--pull=never"] if service.local else []
    single += [f"--restart={service.restart}"] if service.restart else []
    single += _gpus(service)
    single += [f"--publish={service.publish}"]
    single += [f"--mount={_bind(mount)}" for mount in service.mounts]
    if service.cache:
        single += [f"--mount=type=volume,source={service.name}-cache,target={service.cache}"]
    single += container_options(service.container)
    single += [f"--env={each.name}={each.value}" for each in service.environment]
    return [
        ["run", "--detach", "--name", service.name],
        ["--init", f"--stop-timeout={STOP}"],
        ["--cap-drop=ALL", "--security-opt=no-new-privileges"],
        *([["--read-only", "--tmpfs=/tmp"]] if service.read_only else []),
        *([word] for word in single),
        [service.image],
        *(list(option.words) for option in service.arguments),
    ]


def _bind(mount: Mount) -> str:
    """The value of ``--mount``, a CSV line.

    Unlike ``--volume`` it takes a path with a colon, and refuses one that does not exist, where
    ``--volume`` makes a directory that belongs to root (docs.docker.com, "Bind mounts").
    """
    line = StringIO()
    fields = ("type=bind", f"source={mount.source}", f"target={mount.target}", "readonly")
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def _gpus(service: Service) -> list[str]:
    """The options for the GPUs: ``--gpus`` takes a CSV line, so several numbers are quoted."""
    numbers = service.devices
    if service.cdi:
        return [f"--device=nvidia.com/gpu={each}" for each in numbers or range(service.cards)]
    if len(numbers) > 1:
        return [f'--gpus="device={",".join(map(str, numbers))}"']
    if numbers:
        return [f"--gpus=device={numbers[0]}"]
    return [f"--gpus={service.cards}"] if service.cards else []


# Manifests for Kubernetes: a Deployment and a Service.
#
# Keys follow the API reference of apps/v1 and v1; labels are "Recommended Labels".  The security
# contexts follow the level "restricted" of the Pod Security Standards; vLLM's own images run as
# root, and no level allows ``hostPath``.  In arguments and variables ``$(NAME)`` is replaced and
# ``$$`` becomes ``$`` (API reference, Container), so every ``$`` is doubled.

UNITS = {"k": "Ki", "m": "Mi", "g": "Gi"}
"""Docker's units of memory are powers of 1024 (docker run(1)); Kubernetes writes them so."""


def image_of(service: Service) -> dict[str, str]:
    """The reference of a service's image, and its repository, tag and digest.

    The digest is empty where no registry has it: nodes make their own.
    """
    name, _, digest = service.image.partition("@")
    repository, _, tag = name.rpartition(":")
    reference = name if service.local or not digest else service.image
    digest = "" if service.local else digest
    return {"reference": reference, "repository": repository, "tag": tag, "digest": digest}


def kubernetes(service: Service) -> str:
    """``NAME.yaml``."""
    image = image_of(service)
    texts = {
        "name": scalar(service.name),
        "version": scalar(image["tag"]),
        "image": scalar(image["reference"]),
        "port": str(service.published),
        "secret_name": scalar(f"{service.name}-api-key"),
    }
    return rendered("kubernetes.yaml.j2", **kubernetes_facts(service), **texts)


def kubernetes_facts(service: Service) -> dict[str, Any]:
    """The variables of both objects' templates, without the texts that a chart has as values."""
    size = service.container.shm_size
    secret = next((each for each in service.mounts if each.target.startswith(KEY)), None)
    key = PurePosixPath(secret.target).name if secret else ""
    make = ["kubectl", "create", "secret", "generic", f"{service.name}-api-key"]
    mounts = tuple(each for each in service.mounts if each is not secret)
    ram = {**service.ram, **({"of /dev/shm": sizes.memory_of(size)} if size else {})}
    return {
        "service": replace(service, mounts=mounts),
        # The Secret with the API key, as the engine reads it, and the key's name in it.
        "secret": secret,
        "key": key,
        "make_secret": shlex.join([*make, f"--from-file={key}={secret.source}"]) if secret else "",
        "kind": "ClusterIP" if _on_loopback(service) else "LoadBalancer",
        # None: nothing is known of the service.
        "memory": f"{-(-sum(ram.values()) >> 30)}Gi" if ram else None,
        "ram": "; ".join(f"{sizes.gib(count)} {what}" for what, count in ram.items()),
        "parts": image_of(service),
        "size": f"{size[:-1]}{UNITS[size[-1]]}" if size else None,
        "needs": dict.fromkeys(ContainerOptions.model_fields, "")
        | {key: why for key, _, why in container_needs(service.container)},
        # MiB of each card that the run took, as HAMi counts it (docs/gpu-memory-factor.md).
        "gpumem": -(-service.memory // (service.cards << 20)) if service.cards else 0,
        "value": _value,
        "plain": scalar,
        "period": 10,
    }


# A chart of Helm: the manifests for Kubernetes, with model, context and resources as values.
#
# Files and keys follow helm.sh, "Charts" and "Chart Template Guide".  The objects are made by
# ``kubernetes``: both formats have the same templates.

EXPRESSIONS = {
    "model": "{{ .Values.model }}",
    "draft": "{{ .Values.draft }}",
    "mmproj": "{{ .Values.mmproj }}",
    # Numbers of values are floating-point: 1048576 would be 1.048576e+06.
    "context": "{{ int .Values.context }}",
}  # the placeholders of the chart's values in arguments, by the names of ``Service.places``
TEXTS = {
    "name": "{{ quote .Release.Name }}",
    "version": "{{ quote .Chart.AppVersion }}",
    "secret_name": "{{ quote .Values.apiKeySecret }}",
    "image": '"{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}'
    '{{ with .Values.image.digest }}@{{ . }}{{ end }}"',
}
PORT = "{{ int .Values.service.port }}"


def helm_chart(service: Service) -> Mapping[str, str]:
    """The files of the chart, by their path: all of them in a directory of the chart's name."""
    known = kubernetes_facts(service)
    arguments = [
        replace(
            each, words=tuple("".join(_parts(word, service)) for word in each.written or each.words)
        )
        for each in service.arguments
    ]
    places = {
        place: text if place == "context" else scalar(text)
        for place, text in service.places.items()
    }
    files = {
        "Chart.yaml": rendered("helm/Chart.yaml.j2", **known),
        "values.yaml": rendered("helm/values.yaml.j2", **known, arguments=arguments, places=places),
        "values.schema.json": rendered("helm/values.schema.json"),
        "templates/deployment.yaml": rendered("helm/deployment.yaml.j2", **known, **TEXTS),
        "templates/service.yaml": rendered("helm/service.yaml.j2", **known, **TEXTS, port=PORT),
        "templates/NOTES.txt": rendered("helm/NOTES.txt.j2", **known, escaped=escaped),
    }
    return {f"{service.name}/{path}": text for path, text in files.items()}


def escaped(text: str) -> str:
    """A text that Go's templates give out as it is."""
    return text.replace("{{", '{{ "{{" }}')


def _parts(word: str, service: Service) -> Iterator[str]:
    names = "|".join(map(re.escape, service.places))
    texts = re.split(rf"\{{({names})\}}", word) if names else [word]
    for number, text in enumerate(texts):
        if number % 2:
            yield EXPRESSIONS[text]
        elif text.endswith("{") and number + 1 < len(texts):
            yield escaped(text[:-1]) + '{{ "{" }}'  # not "{{{"
        else:
            yield escaped(text)


# A model of llama-swap, which starts the server on request and stops it for another one.
#
# Keys and macros follow its ``docs/configuration.md`` and ``config-schema.json``
# (mostlygeek/llama-swap): ``cmd`` is split as a shell does, ``${NAME}`` is a macro everywhere in
# it.

MACRO = "${"
START = (
    '{ docker stop "$0"; while docker container inspect "$0"; do docker rm --force "$0" || '
    'sleep 0.2; done; } >/dev/null 2>&1; exec "$@"'
)
"""Waits for a container of that name to end: Docker removes it after ``docker stop`` has returned,
and it runs on without its client if that was killed."""
SPLIT = "$''{"
"""A literal ``${`` between single quotes: the quotes end and begin again in its middle."""


def llama_swap(service: Service) -> str:
    """``config.yaml``, with one model; its entry can be copied to another one."""
    asks = (
        f"It passes the key in {service.key_file} on to the engine, unless it has apiKeys of its "
        "own. Its own pages, such as /logs and /unload, ask for no key."
    )
    return rendered(
        "llama-swap.yaml.j2",
        service=service,
        command=_command(service),
        short=service.run.partition("@")[0],
        usage=FORMATS["llama-swap"].usage(service),
        asks=asks if service.key_file else "",
    )


def _command(service: Service) -> list[str]:
    for word in service.words + [each.value for each in service.environment]:
        if any(not (each.isprintable() or each == " ") for each in word):
            raise RecipeError(
                f"llama-swap cannot pass the argument {word!r} to the engine",
                "its commands are lines of text",
                "choose another format: --format compose",
            )
    options = lines(replace(service, restart=None))
    start = ["sh", "-c", START, service.name]
    first = ["docker", "run", "--rm", f"--name={service.name}"]
    published = f"--publish={service.publish}"
    port = f"--publish={HOST}:${{PORT}}:{service.port}"
    rest = [
        port
        if each == [published]
        else " ".join(shlex.quote(word).replace(MACRO, SPLIT) for word in each)
        for each in options[1:]
    ]
    return [shlex.join(start), shlex.join(first), *rest]


# A unit of Podman's Quadlet: ``NAME.container``, which systemd runs.
#
# The keys follow podman-systemd.unit(5), and systemd.service(5) for [Service]; ``Notify=healthy``
# and ``StopTimeout=`` came with Podman 5.0 (its release notes).  Words are quoted as
# systemd.syntax(7) describes; Quadlet passes them on to ``ExecStart=``, where ``%`` begins a
# specifier and ``$`` a variable (systemd.service(5), "Command lines"), so both are doubled.

LOST = {"": "drops it and all that follow", ";": "makes it the end of the command"}
"""Arguments that Podman's generator does not pass on (Podman 5.4), each with its fate."""
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "%": "%%", "$": "$$"}


def quadlet(service: Service) -> str:
    """``NAME.container``."""
    for lost in LOST.keys() & {*service.words}:
        raise RecipeError(
            f"Quadlet cannot pass the argument {lost!r} to the engine",
            f"Podman's generator {LOST[lost]}",
            "choose another format: --format compose",
        )
    policy, _, most = (service.restart or "no").partition(":")
    return rendered(
        "quadlet.container.j2",
        service=service,
        image=_qualified(service),
        arguments=[" ".join(map(word, option.words)) for option in service.arguments],
        path=_path,
        word=word,
        no_card=NO_CARD,
        # systemd knows "always", "on-failure" and "no".
        restart="always" if policy == "unless-stopped" else policy,
        starts=int(most or 3),
    )


def word(text: str) -> str:
    """A word as systemd reads it, between double quotes."""

    def escaped(character: str) -> str:
        code = ord(character)
        if character in ESCAPES or character.isprintable():
            return ESCAPES.get(character, character)
        return f"\\U{code:08x}" if code > 0x7F else f"\\x{code:02x}"

    return '"' + "".join(map(escaped, text)) + '"'


def _path(text: str) -> str:
    if ":" in text or not text.isprintable():
        raise RecipeError(
            f"Quadlet cannot mount {text}",
            "its paths have no colons and no control characters",
            "rename the file, or choose another format: --format compose",
        )
    return text.replace("%", "%%").replace("$", "$$")


def _qualified(service: Service) -> str:
    """An image with its registry: Podman takes short names from several (containers-registries).

    Docker reads the first part as a registry where it has a dot or a port, or is localhost. Podman
    (5.4) loads an image of ``docker save`` under the name that Docker pulls it by, and makes a
    digest of its own for it.
    """
    image = service.image.partition("@")[0] if service.local else service.image
    first, _, rest = image.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        return image
    return f"docker.io/{image}" if rest else f"docker.io/library/{image}"


# The formats of ``builder export``.


@dataclass(frozen=True, slots=True)
class Format:
    """A format: the writer of its files, and the commands that use them.

    ``{name}`` is the service's name, ``{listen}`` its address and port.
    """

    writer: Callable[[Service], str] | Callable[[Service], Mapping[str, str]]
    """Gives the text of ``file``, or all texts by their path."""
    file: str | None  # the only file; None: there are several
    commands: str

    def usage(self, service: Service) -> str:
        """The commands for the files of a service, a line each."""
        listen = f"{in_url(service.listen)}:{service.published}"
        return self.commands.format(name=service.name, listen=listen)

    def files(self, service: Service) -> Mapping[str, str]:
        """Texts by their path.  Raises ``RecipeError`` where the format cannot express it."""
        written = self.writer(service)
        if isinstance(written, str):
            return {(self.file or "").format(name=service.name): written}
        return written


FORMATS: Mapping[str, Format] = {
    "compose": Format(compose, "compose.yaml", "docker compose up --detach"),
    "docker-run": Format(docker_run, "{name}.sh", "sh {name}.sh"),
    "helm": Format(helm_chart, None, "helm install {name} ./{name}"),
    "kubernetes": Format(kubernetes, "{name}.yaml", "kubectl apply --filename {name}.yaml"),
    "llama-swap": Format(
        llama_swap, "config.yaml", "llama-swap --config config.yaml --listen {listen}"
    ),
    "quadlet": Format(
        quadlet,
        "{name}.container",
        "mkdir -p ~/.config/containers/systemd\n"
        "mv {name}.container ~/.config/containers/systemd\n"
        "systemctl --user daemon-reload\n"
        "systemctl --user start {name}\n"
        "loginctl enable-linger",
    ),
}

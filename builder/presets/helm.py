"""A chart of Helm: the manifests for Kubernetes, with model, context and resources as values.

Files and keys follow helm.sh, "Charts" and "Chart Template Guide".  The objects are made by
``kubernetes``: both formats have the same templates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from builder.presets.exports import rendered, scalar
from builder.presets.kubernetes import facts
from builder.presets.service import Service, ServiceOption

EXPRESSIONS = {
    "model": "{{ .Values.model }}",
    "draft": "{{ .Values.draft }}",
    "mmproj": "{{ .Values.mmproj }}",
    # Numbers of values are floating-point: 1048576 would be 1.048576e+06.
    "context": "{{ int .Values.context }}",
}
"""The placeholders of the chart's values in arguments, by the names of ``Service.places``."""
TEXTS = {
    "name": "{{ quote .Release.Name }}",
    "version": "{{ quote .Chart.AppVersion }}",
    "image": '"{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}'
    '{{ with .Values.image.digest }}@{{ . }}{{ end }}"',
}
PORT = "{{ int .Values.service.port }}"


def documents(service: Service) -> Mapping[str, str]:
    """The files of the chart, by their path: all of them in a directory of the chart's name."""
    known = facts(service)
    arguments = [_templated(option, service) for option in service.arguments]
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


def _templated(option: ServiceOption, service: Service) -> ServiceOption:
    """The option with Helm's expressions in place of the values of the chart."""
    written = option.written or option.words
    return replace(option, words=tuple("".join(_parts(word, service)) for word in written))


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

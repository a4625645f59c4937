"""The steps of a build, by name instead of by the text of the instruction."""

from __future__ import annotations

import re

# "#14 [build 4/5] RUN ...": as buildx prints them with --progress=plain.
STEP = re.compile(r"#\d+ (?:\[((?!internal|context)[^\]]+)\] (.*)|(exporting layers)$)")
RUN_OPTIONS = re.compile(r"(?<=^RUN )(?:--\S+ )+")
WIDTH = 100  # of an instruction that has no name

# What an instruction of our Dockerfiles contains, and its name.  The first that fits counts.
NAMES = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"--directory=/entrypoint", "compile the entrypoint"),
        (r"/builder/needs\"", "write the needs of the image"),
        (r"assemble_cuda\.py", "install CUDA's libraries"),
        (r"useradd ", "create the user"),
        (r"--add-architecture", "add an architecture to dpkg"),
        (r"apt-get|/debian/.*\.deb", "install Debian packages"),
        (r"cross\.cmake", "set up the cross compiler"),
        (r"\"cmake\".* \"-S\"", "configure"),
        (r"\"cmake\", \"--build\"", "compile"),
        (r"\"compileall\"", "compile Python's files"),
        (r"extension\.py", "compile the extension"),
        (r"-name 'libggml-cuda", "set the library of kernels apart"),
        (r"\"pip\", \"wheel\"", "compile the Python package"),
        (r"-m pip .*install ", "install Python packages"),
        (r"\"pip\".* \"check\"", "check the Python packages"),
        (r"\"-m\", \"venv\"", "create a virtual environment"),
        (r"\"cmake\", \"--install\"|collect\.py|^RUN \[\"install\"", "install"),
        (r"diet\.py", "remove device code that no card runs"),
        (r"ln -s libcudart", "link CUDA's toolkit"),
        (r"relink\.py", "link copies of libraries"),
        (r"overlay\.py", "replace the patched files"),
        (r"/run/entrypoint/\.", "install the entrypoint"),
        (r"\"find\".* \"-delete\"", "remove static libraries"),
        (r"; ldconfig\"", "update the loader cache"),
        (r"^RUN \[\"/inside/reproducible\", \"[^\"]*\"\]", "set times and modes"),
        (r"^ADD rootfs", "unpack Debian's root"),
        (r"^COPY .*--from=source ", "copy the source"),
        (r"^COPY .*--from=devel /libraries/", "copy CUDA's libraries"),
        (r"^COPY .*--from=build /kernels/", "copy the kernels"),
        (r"^COPY .*--from=build ", "copy the engine"),
        (r"^COPY .*--from=entrypoint ", "copy the entrypoint"),
    )
)


def step_name(line: str) -> str | None:
    """The step that a line of buildx's output begins: ``[build 4/5] compile``.

    An instruction without a name is shown itself, without options and shortened.  None: the line
    begins no step.
    """
    found = STEP.match(line)
    if found is None:
        return None
    position, instruction, export = found.groups()
    if export:
        return str(export)
    instruction = RUN_OPTIONS.sub("", instruction)
    name = next((name for pattern, name in NAMES if pattern.search(instruction)), instruction)
    text = f"[{position}] {name}"
    return text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."

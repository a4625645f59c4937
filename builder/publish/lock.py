"""The lock of an image: all that it was made of, in one archive that is attached to it.

It is a catalog (``builder --catalog``) with one recipe: its bases, locks, patches and sources of
this repository, the scripts, the rendered Dockerfiles, and ``lock.json``.  Commits, wheels and
Debian packages are in the recipe's pins and locks.  It needs no signature: its files have to give
the key of the image, which the signed verdict names.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from builder import __version__
from builder.core import archives
from builder.core.errors import RegistryError
from builder.core.farm import installed
from builder.plan.inputs import LOCK, LocalTree, Lock, RegistryRoot, tree_files
from builder.plan.plan import Plan
from builder.publish.verdicts import AttachedFile, Attachment
from builder.recipes.catalog import Catalog
from builder.recipes.patches import FilePatch
from builder.recipes.schema import PathSource
from builder.sources.git import head_of

KIND = "application/vnd.builder.lock.v1.tar+gzip"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def lock_of(plan: Plan, catalog: Catalog) -> Attachment:
    """The lock of a plan's image; ``oras pull`` unpacks it into a directory of the recipe's name.

    Raises ``RecipeError`` where a file of the catalog cannot be read.
    """
    packed, made = io.BytesIO(), set[PurePosixPath]()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, content in _members(plan, catalog):
            above = [each for each in PurePosixPath(member.name).parents if each.name]
            for folder in reversed(above):  # oras unpacks no file whose directory is not listed
                if folder not in made:
                    tar.addfile(_member(str(folder), tarfile.DIRTYPE, 0o755))
                    made.add(folder)
            tar.addfile(member, io.BytesIO(content))
        end = tar.offset + 2 * tarfile.BLOCKSIZE  # oras's digest has no padding behind the end
    text = packed.getvalue()[:end]
    unpacks = {  # as oras packs a directory
        "io.deis.oras.content.digest": f"sha256:{hashlib.sha256(text).hexdigest()}",
        "io.deis.oras.content.unpack": "true",
    }
    content = gzip.compress(text, mtime=0)
    return Attachment(KIND, (AttachedFile(plan.name, LAYER, content, unpacks),))


def _files(plan: Plan, catalog: Catalog) -> dict[str, bytes]:
    """The files of a lock but for the source, by their paths in it."""
    bases = {each.name: each for below in plan.bases() for each in below.chain()}
    texts = {f"recipes/{name}": text for name, text in catalog.engine(plan.name).texts().items()}
    for base in bases:
        own = catalog.base(base).texts()
        texts |= {f"recipes/bases/{name}": text for name, text in own.items()}
    found = {}
    for each in (plan, *bases.values()):
        texts[f"dockerfiles/{each.name}.Dockerfile"] = each.text
        for folder, names in {"scripts": each.scripts, "entrypoint": each.entrypoint}.items():
            for name in names:
                file = each.dockerfiles / folder / name
                found[f"dockerfiles/{folder}/{name}"] = file.read_bytes()
    for planned in plan.patches:
        if isinstance(planned.patch, FilePatch):
            found[f"patches/{planned.patch.file}"] = planned.content
    lock = Lock(
        key=plan.key,
        recipe_key=plan.recipe_key,
        build=plan.platforms.build,
        platform=plan.platform,
        roots={
            name: base.root.digest if isinstance(base.root, RegistryRoot) else base.root.way
            for name, base in bases.items()
            if base.root is not None
        },
        builder=__version__,
        commit=head_of(installed()),
    )
    texts[LOCK] = lock.model_dump_json(indent=1) + "\n"
    return found | {name: text.encode() for name, text in texts.items()}


def _members(plan: Plan, catalog: Catalog) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """The members of the archive but for directories, with their contents."""
    for name, content in sorted(_files(plan, catalog).items()):
        yield _member(f"{plan.name}/{name}", size=len(content)), content
    source = plan.recipe.source
    if not (isinstance(plan.source, LocalTree) and isinstance(source, PathSource)):
        return
    for file in tree_files(plan.source.path):
        name = f"{plan.name}/{source.path}/{file.relative_to(plan.source.path).as_posix()}"
        if file.is_symlink():
            member = _member(name, tarfile.SYMTYPE)
            member.linkname = str(file.readlink())
            yield member, b""
            continue
        content = file.read_bytes()
        mode = 0o755 if file.stat().st_mode & stat.S_IXUSR else 0o644
        yield _member(name, mode=mode, size=len(content)), content


def _member(
    name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o644, size: int = 0
) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.size = kind, mode, size
    return member


def unpacked(file: AttachedFile, folder: Path) -> Path:
    """The catalog of an attached lock, below the new directory ``folder``.

    Raises ``FetchError`` where the archive is damaged, ``RegistryError`` where it is no lock, or
    not of one recipe.
    """
    archive = folder.with_name(f"{folder.name}.tar.gz")
    archive.write_bytes(file.content)
    archives.unpack(archive, folder)
    archive.unlink()
    found = [each for each in folder.iterdir() if (each / LOCK).is_file()]
    recipes = [name for each in found for name in each.glob("recipes/*.toml")]
    if len(found) != 1 or len(recipes) != 1:
        lacks = f"has {len(recipes)} recipes" if len(found) == 1 else f"has no {LOCK}"
        what = f"the lock {file.name} that is attached to the image {lacks}"
        raise RegistryError(what, hint="nothing is built of it")
    return found[0]

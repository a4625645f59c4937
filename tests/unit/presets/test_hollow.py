"""Hollow models: of files, of URLs and of the Hub; every failure is one message."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import gguf as reference
import pytest

from builder.core import remote_file
from builder.core.errors import FetchError
from builder.presets import hollow, made_models
from support import model_hub

REPO, NAME = "me/Model-GGUF", "small.gguf"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_models.write_shape("qwen3-0.6b", tmp_path_factory.mktemp("model") / NAME)


@pytest.fixture
def hub(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[model_hub.Hub]:
    """A Hub with one repository, whose endpoint the environment names."""
    folder = tmp_path / "hub"
    (folder / REPO).mkdir(parents=True)
    (folder / REPO / NAME).symlink_to(small)
    with model_hub.served(folder) as served:
        model_hub.use(monkeypatch, HF_ENDPOINT=f"{served.endpoint}/")
        yield served


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def write(text: str | Path, folder: Path) -> hollow.HollowModel:
    return hollow.write_hollow(str(text), folder, lambda _: None)


def split(folder: Path) -> list[Path]:
    """A model in three files, as llama.cpp's package splits it."""
    writer = reference.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=2)
    writer.add_context_length(512)
    for number in range(5):
        data = reference.np.full((4, 32), number, reference.np.float32)
        writer.add_tensor(f"t{number}", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("m-*.gguf"))


def test_a_file_becomes_its_header_and_a_hole(small: Path, work: Path) -> None:
    found = write(small, work)
    assert found.file == work / NAME
    assert found.size == found.file.stat().st_size == small.stat().st_size
    assert found.file.stat().st_blocks * 512 < found.header.size + (1 << 20)
    assert found.header.architecture == "qwen3"
    real = small.read_bytes()[: found.header.size]
    content = found.file.read_bytes()
    assert content[: found.header.size] == real
    assert not any(content[found.header.size :])
    assert found.weights == sum(each.size or 0 for each in found.header.tensors)


def test_the_weights_of_a_real_file_are_not_copied(tmp_path: Path, work: Path) -> None:
    (parts := tmp_path / "parts").mkdir()
    first = split(parts)[0]
    found = write(first, work)
    assert any(first.read_bytes()[found.header.size :])
    assert not any(found.file.read_bytes()[found.header.size :])


def test_the_hub_gives_the_header_alone(hub: model_hub.Hub, work: Path) -> None:
    found = write(f"{REPO}:{NAME}", work)
    assert found.size == (hub.folder / REPO / NAME).stat().st_size
    assert hub.sent < found.header.size + 2 * remote_file.BLOCK < found.size / 8
    assert hub.requests[0][:2] == ("127.0.0.1", f"/{REPO}/resolve/main/{NAME}")
    assert hub.requests[1][0] == "localhost"


def test_a_url_is_read_too(hub: model_hub.Hub, work: Path) -> None:
    found = write(f"{hub.endpoint}/cdn/{REPO}/{NAME}?download=true", work)
    assert found.file.name == NAME


def test_the_token_goes_to_the_hub_and_to_nobody_else(
    hub: model_hub.Hub, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated = True
    monkeypatch.setenv("HF_TOKEN", model_hub.TOKEN)
    write(f"{REPO}:{NAME}", work)
    by_host = {(host, given) for host, _, given in hub.requests}
    assert by_host == {("127.0.0.1", f"Bearer {model_hub.TOKEN}"), ("localhost", None)}

    hub.requests.clear()
    write(f"http://localhost:{hub.port}/cdn/{REPO}/{NAME}", work)
    assert {given for _, _, given in hub.requests} == {None}


def test_the_token_of_a_login_is_found(
    hub: model_hub.Hub, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated = True
    model_hub.use(monkeypatch, HF_HOME=str(tmp_path))
    (tmp_path / "token").write_text(f"{model_hub.TOKEN}\n")
    write(f"{REPO}:{NAME}", work)
    assert hub.requests[0][2] == f"Bearer {model_hub.TOKEN}"


def test_a_gated_model_is_told_with_the_next_step(hub: model_hub.Hub, work: Path) -> None:
    hub.gated = True
    with pytest.raises(FetchError, match="cannot fetch me/Model-GGUF:small") as caught:
        write(f"{REPO}:{NAME}", work)
    assert "Access to model me/Model-GGUF is restricted" in caught.value.why
    assert f"{hub.endpoint}/{REPO}" in caught.value.hint
    assert "HF_TOKEN" in caught.value.hint


def test_a_file_that_the_repository_does_not_have(hub: model_hub.Hub, work: Path) -> None:
    with pytest.raises(FetchError) as caught:
        write(f"{REPO}:other.gguf", work)
    assert caught.value.why == "404 Not Found: Entry not found"
    assert len(hub.requests) == 1


def test_a_server_without_ranges_is_refused(hub: model_hub.Hub, work: Path) -> None:
    hub.ranges = False
    with pytest.raises(FetchError, match="cannot read the header") as caught:
        write(f"{REPO}:{NAME}", work)
    assert caught.value.why == "the server gives only complete files (no HTTP range requests)"
    assert caught.value.hint == "download the file, and name it: --model FILE"


def test_an_empty_file_of_a_server(hub: model_hub.Hub, work: Path) -> None:
    (hub.folder / REPO / "empty.gguf").touch()
    with pytest.raises(FetchError, match="cannot read the header") as caught:
        write(f"{REPO}:empty.gguf", work)
    assert caught.value.why == "the server refuses the range"


def test_a_server_that_does_not_answer(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.core.web.GIVE_UP", 0.1)
    with pytest.raises(FetchError) as caught:
        write("http://127.0.0.1:9/model.gguf", work)
    assert caught.value.why == "connection refused"
    assert caught.value.hint == "check the URL and the network"


def test_a_server_that_is_tried_again_is_named(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.core.web.GIVE_UP", 1.5)
    monkeypatch.setattr("builder.core.web.GIVEN_UP", set())
    model_hub.use(monkeypatch, HF_ENDPOINT="http://127.0.0.1:9")
    lines: list[str] = []
    with pytest.raises(FetchError) as caught:
        hollow.write_hollow(f"{REPO}:{NAME}", work, lines.append)
    assert lines[1:] == ["127.0.0.1:9: connection refused; trying again in 1 second"]
    assert "HF_ENDPOINT" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        ("qwen", "it is neither a file, nor a URL, nor REPO:FILE", "for example unsloth/"),
        ("me/Model-GGUF", "it is neither", "with its file: me/Model-GGUF:FILE.gguf"),
        ("ftp://host/m.gguf", "only URLs of http and https", "download the file first"),
        (".", "it is a directory", "name a .gguf file in it"),
    ],
)
def test_what_is_nothing_of_the_three(work: Path, text: str, why: str, hint: str) -> None:
    with pytest.raises(FetchError) as caught:
        write(text, work)
    assert caught.value.what == f"there is no model {text}"
    assert caught.value.why.startswith(why)
    assert hint in caught.value.hint


@pytest.mark.parametrize("count", [0, 3, 100])
def test_a_file_that_ends_in_its_header_is_cut(
    small: Path, tmp_path: Path, work: Path, count: int
) -> None:
    with small.open("rb") as stream:
        (cut := tmp_path / "cut.gguf").write_bytes(stream.read(count))
    with pytest.raises(FetchError, match="is cut") as caught:
        write(cut, work)
    assert caught.value.why.startswith("it ends after ")
    assert caught.value.hint == "download it again"


@pytest.mark.parametrize("where", ["file", "hub"])
def test_a_cut_model_is_told_with_both_sizes(
    hub: model_hub.Hub, small: Path, work: Path, where: str
) -> None:
    cut = hub.folder / REPO / "cut.gguf"
    shutil.copy(small, cut)
    size = small.stat().st_size
    with cut.open("r+b") as stream:
        stream.truncate(size - 1)
    with pytest.raises(FetchError, match="is cut") as caught:
        write(cut if where == "file" else f"{REPO}:cut.gguf", work)
    assert caught.value.why == f"it has {size - 1} bytes; with its weights it would have {size}"


def test_a_cut_model_of_a_type_that_only_a_fork_knows(tmp_path: Path, work: Path) -> None:
    writer = reference.GGUFWriter(tmp_path / "turbo.gguf", "llama")
    for name in "ab":  # Q4_K: 144 bytes for 256 weights
        kind = reference.GGMLQuantizationType.Q4_K
        data = reference.np.zeros((512, 144 * 4), reference.np.uint8)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    whole = (tmp_path / "turbo.gguf").read_bytes()
    start = whole.index(b"a" + (2).to_bytes(4, "little"))
    kind = (12).to_bytes(4, "little")
    whole = (
        whole[:start] + whole[start:600].replace(kind, (142).to_bytes(4, "little")) + whole[600:]
    )
    (tmp_path / "turbo.gguf").write_bytes(whole)
    found = write(tmp_path / "turbo.gguf", work)
    assert found.weights == pytest.approx(2 * 144 * 4 * 512, abs=32)
    (tmp_path / "turbo.gguf").write_bytes(whole[: len(whole) * 3 // 4])
    with pytest.raises(FetchError, match="is cut"):
        write(tmp_path / "turbo.gguf", work)


def test_a_file_that_is_no_gguf(tmp_path: Path, work: Path) -> None:
    (other := tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    with pytest.raises(FetchError, match=r"is not a GGUF file for llama\.cpp") as caught:
        write(other, work)
    assert "not with 'GGUF'" in caught.value.why


def test_all_parts_of_a_split_model_are_written(tmp_path: Path, work: Path) -> None:
    (folder := tmp_path / "parts").mkdir()
    parts = split(folder)
    assert len(parts) == 3
    found = write(parts[0], work)
    assert found.file.name == "m-00001-of-00003.gguf"
    assert sorted(file.name for file in work.iterdir()) == [part.name for part in parts]
    assert found.weights == 5 * 4 * 32 * 4
    assert found.size == sum(part.stat().st_size for part in parts)


def test_the_parts_of_a_split_model_on_the_hub(hub: model_hub.Hub, work: Path) -> None:
    parts = split(hub.folder / REPO)
    found = write(f"{REPO}:{parts[0].name}", work)
    assert found.weights == 5 * 4 * 32 * 4
    assert len(list(work.iterdir())) == 3


def test_a_later_part_and_a_missing_part(tmp_path: Path, work: Path) -> None:
    (folder := tmp_path / "parts").mkdir()
    parts = split(folder)
    with pytest.raises(FetchError, match="is part 2 of a split model") as caught:
        write(parts[1], work)
    assert caught.value.hint == f"name {parts[0]}"
    parts[2].unlink()
    with pytest.raises(FetchError, match=r"cannot read .*m-00003-of-00003\.gguf"):
        write(parts[0], work)


def test_a_part_with_another_name(tmp_path: Path, work: Path) -> None:
    (folder := tmp_path / "parts").mkdir()
    renamed = split(folder)[0].rename(folder / "model.gguf")
    with pytest.raises(FetchError, match="wrong name for a part") as caught:
        write(renamed, work)
    assert caught.value.why == "its header says 3 parts, its name 1"


def test_a_name_that_a_container_cannot_mount_is_changed(small: Path, work: Path) -> None:
    odd = small.with_name("odd:name, é.gguf")
    odd.symlink_to(small)
    assert write(odd, work).file.name == "odd_name___.gguf"


def test_a_hole_is_told_from_bytes(tmp_path: Path) -> None:
    (full := tmp_path / "full").write_bytes(bytes(1 << 20))
    hole = tmp_path / "hole"
    with hole.open("wb") as stream:
        stream.truncate(1 << 20)
    assert hollow.is_hole(hole)
    assert not hollow.is_hole(full)


def test_the_file_system_is_tried_and_left_as_it_was(work: Path) -> None:
    hollow.require_holes(work)
    assert not list(work.iterdir())

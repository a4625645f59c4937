"""The chart of trials: memory by kind over the context, the limit, and what was refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.fit import plot
from builder.fit.results import CardPeak, Fit, FitCard, ModelFile, Refused, Trial

GIB = 1 << 30


def found() -> Fit:
    """A context that fits, and one that does not."""
    sizes = {"weights": 14 * GIB, "KV cache": 2 * GIB}
    card = CardPeak(
        name="RTX 5090 Laptop", memory=24 * GIB, context=GIB // 4, peak=17 * GIB, by_kind=sizes
    )
    full = card.model_copy(update={"peak": 23 * GIB})
    refused = Refused(
        requested=4 * GIB, free=GIB, card=card.name, function="llama_kv_cache", kind="KV cache"
    )
    return Fit(
        recipe="engine-1",
        image="engine:1",
        digest="sha256:0",
        model=ModelFile(name="m.gguf", size=1, read=1, architecture="qwen35", context=262144),
        cards=(FitCard(name=card.name, memory=card.memory, unverified={}),),
        trials=(
            Trial(context=32768, fits=True, cards=(card,), by_kind=sizes),
            Trial(
                context=262144,
                fits=False,
                why="no room",
                cards=(full,),
                by_kind=sizes,
                refused=refused,
            ),
        ),
        largest=32768,
        step=1024,
    )


def test_the_chart_names_kinds_limit_and_what_was_refused(tmp_path: Path) -> None:
    target = tmp_path / "fit.svg"
    plot.draw(found(), target)
    text = target.read_text()
    for words in ("weights", "KV cache", "CUDA context", "refused", "RTX 5090 Laptop: 24.00 GiB"):
        assert words in text, words
    assert ">32<" in text
    assert ">256<" in text
    plot.draw(found(), tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text


def test_a_chart_is_a_picture(tmp_path: Path) -> None:
    plot.draw(found(), tmp_path / "fit.png")
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"fit\.pdf: a chart is a \.png or a \.svg file"):
        plot.draw(found(), tmp_path / "fit.pdf")


def test_the_json_has_every_figure() -> None:
    data = found().model_dump(mode="json")
    assert data["trials"][1]["refused"]["requested"] == 4 * GIB
    assert Fit.model_validate(data) == found()


def test_each_card_has_its_own_limit(tmp_path: Path) -> None:
    one = found()
    other = FitCard(name="RTX 5080", memory=16 * GIB, unverified={})
    trials = tuple(
        each.model_copy(
            update={"cards": (*each.cards, each.cards[0].model_copy(update={"name": other.name}))}
        )
        for each in one.trials
    )
    two = one.model_copy(update={"cards": (*one.cards, other), "trials": trials})
    plot.draw(two, tmp_path / "two.svg")
    text = (tmp_path / "two.svg").read_text()
    assert "RTX 5090 Laptop: 24.00 GiB" in text
    assert "RTX 5080: 16.00 GiB" in text
    assert text.count(">refused<") == 1

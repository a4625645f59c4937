"""Charts of benchmarks, as PNG and SVG."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from builder.bench import plot
from support.benchmarks import benchmark


def test_a_picture_of_each_kind(tmp_path: Path) -> None:
    points = (*benchmark([50.0, 51.0]).points, *benchmark([40.0, 42.0], context=2048).points)
    sweep = benchmark([50.0, 51.0]).model_copy(update={"points": points})
    files = [tmp_path / "a.png", tmp_path / "deep" / "a.svg"]
    plot.draw([("bee", sweep), ("buun", benchmark([45.0, 46.0]))], files)
    png = files[0].read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    assert (width, height) == (1080, math.floor(120 * 5 * 2.1))
    texts = [node.text for node in ElementTree.parse(files[1]).iter() if node.text]
    for label in ("tokens per second", "run", "bee, 1K", "bee, 2K", "buun"):
        assert label in texts, texts
    again = [tmp_path / "b.png", tmp_path / "b.svg"]
    plot.draw([("bee", sweep), ("buun", benchmark([45.0, 46.0]))], again)
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in files]


def test_other_charts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.pdf: a chart is"):
        plot.draw([("a", benchmark([1.0]))], [tmp_path / "a.pdf"])
    with pytest.raises(ValueError, match="no runs to draw"):
        plot.draw([("a", benchmark([]))], [tmp_path / "a.png"])

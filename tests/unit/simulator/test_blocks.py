"""Random blocks: valid ones, of moderate size, and the same in each run."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.compilers import LEAST, MOST, case_of, known_blocks, nmse, q8_1, random_blocks


@pytest.mark.parametrize("name", ["q4_0", "iq1_m", "mxfp4", "nvfp4"])
def test_blocks_are_read_as_numbers_of_moderate_size(name: str) -> None:
    kind = known_blocks()[name]
    blocks, values = random_blocks(kind, 500, np.random.default_rng(3))
    assert len(blocks) == len(values) == 500
    largest = np.abs(values).max(axis=1)
    assert np.isfinite(values).all()
    assert (largest > LEAST).all()
    assert (largest < MOST).all()
    if name == "nvfp4":  # the scales have no sign
        assert (blocks[:, :4] < 128).all()


def test_a_case_is_the_same_in_each_run_and_the_product_of_its_values() -> None:
    one, other = case_of("q8_0"), case_of("q8_0")
    assert (one.rows == other.rows).all()
    # q8_0 by hand: a scale in half precision, and 32 bytes.
    blocks = one.rows.reshape(-1, one.blocks, 34)
    scales = blocks[..., :2].copy().view(np.float16).astype(np.float64)
    rows = (scales * blocks[..., 2:].copy().view(np.int8)).reshape(len(one.exact), -1)
    columns = one.column[:, :2].copy().view(np.float16).astype(np.float64)
    column = (columns * one.column[:, 4:].copy().view(np.int8)).reshape(-1)
    assert nmse(rows @ column, one.exact) < 1e-20


def test_a_column_in_blocks_means_nearly_the_same() -> None:
    column = np.random.default_rng(4).standard_normal(128).astype(np.float32)
    blocks, means = q8_1(column)
    assert blocks.shape == (4, 36)
    assert 0 < nmse(means, column.astype(np.float64)) < 1e-3
    sums = blocks[:, 2:4].copy().view(np.float16)[:, 0]
    assert np.allclose(sums, means.reshape(4, 32).sum(axis=1), rtol=2e-3, atol=2e-3)


def test_types_that_gguf_does_not_read() -> None:
    assert "q8_1" not in known_blocks()
    with pytest.raises(NotImplementedError):
        case_of("q1_0")

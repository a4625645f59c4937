"""Context sizes on the command line of `bench`."""

from __future__ import annotations

import pytest

from builder.bench.run import contexts_of


def test_sizes_of_contexts() -> None:
    assert contexts_of("32K, 64k,1000") == (32768, 65536, 1000)
    for wrong in ("", "0", "-1", "32M", "1.5K", "32K,,64K"):
        with pytest.raises(ValueError, match="not a number of tokens"):
            contexts_of(wrong)

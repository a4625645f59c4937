"""`recipe explain` names the origin of every value."""

from __future__ import annotations

from support.farms import Farm


def test_explain_tells_who_decides_what(farm: Farm) -> None:
    farm.write(farm.pull(6, **{"b.c": "c\n"}))
    told = farm.json("recipe", "explain", "eng")
    (definitions,) = told["definitions"]
    origins = {each["name"]: each["from"] for each in definitions}
    assert origins["GGML_CUDA_NO_VMM"] == "family llama-cpp"
    assert origins["CMAKE_EXE_LINKER_FLAGS"] == "base cuda-13.0"
    assert origins["CMAKE_CUDA_ARCHITECTURES"] == "builder"
    assert told["patches"][0]["why"] == "it breaks without"
    text = farm.run("recipe", "explain", "eng")
    assert "Patch pull 6: it breaks without" in text
    assert "from family llama-cpp:" in text

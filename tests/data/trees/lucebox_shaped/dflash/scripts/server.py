"""An OpenAI-like server that starts the program where the tree's layout has it."""

import argparse
import subprocess
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from layout import PROGRAM
from transformers import AutoTokenizer

assert AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    options = parser.parse_args()
    subprocess.run([PROGRAM, options.target, options.draft], check=True)
    app = FastAPI()

    @app.get("/v1/models")
    def models() -> dict[str, object]:
        return {"object": "list", "data": [{"id": options.target.name}]}

    uvicorn.run(app, host=options.host, port=options.port)


if __name__ == "__main__":
    main()

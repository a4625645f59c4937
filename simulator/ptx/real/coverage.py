"""Which instructions files of PTX have, and which of them the interpreter computes.

python simulator/ptx/real/coverage.py --library simulator/ptx/out/libptx.so FILE.ptx...
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from ptxlab.interpreter import Library, PtxError

HERE = Path(__file__).parent
# After a label, a brace or a semicolon; behind a guard.
OPCODE = re.compile(
    r"(?:^|[;{}]|:\s)\s*(?:@!?%\w+\s+)?([a-z][a-z0-9_]*(?:\.[\w:]+)*)(?=[\s;])", re.MULTILINE
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", type=Path, default=HERE.parent / "out/libptx.so")
    parser.add_argument("--list", action="store_true", help="print each opcode with its number")
    parser.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args()
    library = Library(given.library)
    opcodes: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    kernels = whole = 0
    for file in given.files:
        text = file.read_text()
        code = re.sub(r"//[^\n]*|^\s*\.[^\n]*", "", text, flags=re.MULTILINE)
        opcodes.update(OPCODE.findall(code))
        module = library.load(text)
        for kernel in module.kernels():
            kernels += 1
            try:
                lacks = module.lacks(kernel)
            except PtxError as error:
                lacks = [str(error)]
            missing.update(lacks)
            whole += not lacks
    bases = {opcode.split(".")[0] for opcode in opcodes}
    print(f"{len(given.files)} files, {kernels} kernels, {sum(opcodes.values())} instructions")
    print(f"{len(bases)} opcodes, {len(opcodes)} with their modifiers")
    print(f"{whole} kernels are computed whole; not computed: {dict(missing) or 'nothing'}")
    if given.list:
        for opcode, count in opcodes.most_common():
            print(f"{count:9} {opcode}")


if __name__ == "__main__":
    main()

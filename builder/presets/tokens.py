"""Vocabularies of the real size: characters and words, no text of anyone's tokenizer.

Every byte can be written with them, so that any prompt can be sent.  A character is a token; the
text of a real tokenizer has about four characters a token.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from builder.presets.shape import Tokenizer

if TYPE_CHECKING:
    import gguf

PAIRS = ("h e", "{space} t", "{space}t he")  # a tokenizer without merges is refused
WORDS = ("he", "{space}t", "{space}the")
SPACE_GPT2, SPACE_GEMMA = "\u0120", "\u2581"
SPECIAL_GPT2 = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPECIAL_GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")


PRINTABLE = range(33, 127)  # the characters of ASCII that are seen


def printable(tokenizer: Tokenizer) -> range:
    """The ids of the tokens that are one character of ``PRINTABLE``, in its order."""
    # A character of gpt2 stands for its byte; in gemma4 a line feed and a space come before.
    first = PRINTABLE.start
    if tokenizer.model == "gemma4":
        first = len(SPECIAL_GEMMA) + 256 + len(("\n", SPACE_GEMMA))
    return range(first, first + len(PRINTABLE))


def write(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Add the vocabulary to a file."""
    (_gemma4 if tokenizer.model == "gemma4" else _gpt2)(writer, tokenizer)
    if tokenizer.mask is not None:
        writer.add_mask_token_id(tokenizer.mask)


def _gpt2(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """A character for each byte, then words, then special tokens, as of Qwen."""
    from gguf import TokenType

    tokens = [*_bytes_as_characters(), *_with_space(WORDS, SPACE_GPT2)]
    rest = tokenizer.size - len(tokens) - len(SPECIAL_GPT2)
    tokens += [f"{SPACE_GPT2}word{number}" for number in range(rest)]
    kinds = [int(TokenType.NORMAL)] * len(tokens) + [int(TokenType.CONTROL)] * len(SPECIAL_GPT2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer.pre)
    writer.add_token_list([*tokens, *SPECIAL_GPT2])
    writer.add_token_types(kinds)
    writer.add_token_merges(_with_space(PAIRS, SPACE_GPT2))
    writer.add_eos_token_id(tokenizer.size - 1)
    writer.add_pad_token_id(tokenizer.size - 3)
    writer.add_add_bos_token(False)


def _bytes_as_characters() -> list[str]:
    """GPT-2's table: bytes that print are themselves, the others begin at U+0100."""
    shown = [*PRINTABLE, *range(161, 173), *range(174, 256)]
    others = count(256)
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]


def _gemma4(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Special tokens, bytes, characters, then words; a space is U+2581."""
    from gguf import TokenType

    characters = ["\n", SPACE_GEMMA, *map(chr, PRINTABLE), *_with_space(WORDS, SPACE_GEMMA)]
    tokens = [*SPECIAL_GEMMA, *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    rest = range(tokenizer.size - len(tokens))
    kinds = [int(TokenType.CONTROL)] * len(SPECIAL_GEMMA) + [int(TokenType.BYTE)] * 256
    kinds += [int(TokenType.NORMAL)] * (len(characters) + len(rest))
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list([*tokens, *(f"{SPACE_GEMMA}word{number}" for number in rest)])
    writer.add_token_scores([0.0] * tokenizer.size)
    writer.add_token_types(kinds)
    writer.add_token_merges(_with_space(PAIRS, SPACE_GEMMA))
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_space_prefix(False)
    writer.add_add_bos_token(True)


def _with_space(texts: tuple[str, ...], space: str) -> list[str]:
    return [text.format(space=space) for text in texts]

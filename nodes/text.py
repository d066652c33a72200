"""Text nodes: prompts, tokenizers, and showing and saving text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import numpy as np

from app.engine.events import Output
from app.folders import Folders
from app.graph.errors import InputError
from app.graph.node import Array, Help, NodeType, Out, Range, node
from app.graph.socket import SocketType
from nodes.output_files import claim, next_number, stem_of, unwritable
from nodes.tokenizer_files import load_tokenizer, stamp_of

Ids = Annotated[Array, SocketType("TENSOR", frozenset({"int64"}), (1, None))]
TokenizerName = Annotated[
    str,
    Help(
        "A tokenizer.json in a model folder, or a folder that holds one or CLIP's vocab.json and merges.txt",
        widget="tokenizer",
        literal_only=True,
    ),
]


@node(category="text", search_aliases=("prompt", "string", "constant"))
def text(
    text: Annotated[str, Help("The text", widget="multiline")] = "",
) -> Annotated[str, Out("text", "The same text")]:
    """Hold a text, such as a prompt."""
    return text


@node(category="text", search_aliases=("join", "append", "combine"))
def concatenate_text(
    a: Annotated[str, Help("First text", widget="multiline")] = "",
    b: Annotated[str, Help("Second text", widget="multiline")] = "",
    separator: Annotated[str, Help("What stands between them")] = "",
) -> Annotated[str, Out("text", "a, separator and b as one text")]:
    """Join two texts."""
    return f"{a}{separator}{b}"


class Tokens(NamedTuple):
    """A text in tokens."""

    input_ids: Annotated[Ids, Help("int64 [1, L]: numbers of the tokens")]
    attention_mask: Annotated[Ids, Help("int64 [1, L]: 1 for tokens of the text, 0 for padding")]


@node(category="text", search_aliases=("encode", "prompt", "bpe", "clip", "wordpiece"))
def tokenize(
    context: Any,
    text: Annotated[str, Help("Text to take apart", widget="multiline")],
    tokenizer: TokenizerName,
    max_length: Annotated[
        int,
        Range(
            0,
            1_000_000,
            1,
            help="Cut to this many tokens, and pad up to it if a padding token is known; 0: as the file says",
        ),
    ] = 0,
    add_special_tokens: Annotated[bool, Help("Put the tokenizer's start and end marks around the text")] = True,
) -> Tokens:
    """Turn a text into token numbers.

    CLIP's vocab.json and merges.txt cut and pad to the length in tokenizer_config.json, or 77. Raises InputError for
    a tokenizer that is missing or broken.
    """
    loaded = load_tokenizer(context.folders.model(tokenizer, "tokenizer"), max_length)
    encoding = loaded.encode(text, add_special_tokens=add_special_tokens)
    ids, mask = (np.array([row], np.int64).reshape(1, -1) for row in (encoding.ids, encoding.attention_mask))
    return Tokens(ids, mask)


@node(category="text", search_aliases=("decode", "tokens to text"))
def detokenize(
    context: Any,
    ids: Annotated[Array, Help("Token numbers: whole numbers [L] or [1, L]")],
    tokenizer: TokenizerName,
    skip_special_tokens: Annotated[bool, Help("Leave out start, end and padding marks")] = True,
) -> Annotated[str, Out("text", "The text; of several rows one line each")]:
    """Turn token numbers back into text.

    A number that stands for no token is left out: models often have room for more than the tokenizer knows. Raises
    InputError for what is no whole number from 0 on.
    """
    loaded = load_tokenizer(context.folders.model(tokenizer, "tokenizer"), 0)
    array = np.asarray(ids)
    if array.dtype.kind not in "iu":
        fix = "put an Argmax or Cast node before it"
        raise InputError("ids", found=f"dtype {array.dtype}", accepted="whole numbers", fix=fix)
    size = loaded.get_vocab_size(with_added_tokens=True)
    if array.size and not (array.min() >= 0 and array.max() < 2**32):
        accepted = f"numbers from 0 to {size - 1}"
        raise InputError("ids", found=f"{array.min()} to {array.max()}", accepted=accepted, fix="check the tokenizer")
    array = np.atleast_1d(array)
    rows = array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
    return "\n".join(loaded.decode(row.tolist(), skip_special_tokens=skip_special_tokens) for row in rows)


@node(category="text", output_node=True, search_aliases=("print", "display", "preview"))
def show_text(context: Any, text: Annotated[str, Help("Text to show")]) -> None:
    """Show a text as an output of the run."""
    context.emit(Output(context.node, "text", value=text, step=context.step))


@node(category="text", output_node=True, search_aliases=("write", "export", "file"))
def save_text(
    context: Any,
    text: Annotated[str, Help("Text to save")],
    filename_prefix: Annotated[
        str, Help("Start of the file's name, with / for subfolders of the output folder")
    ] = "text",
) -> None:
    """Save a text as a numbered UTF-8 file. Raises InputError for a prefix outside of the output folder."""
    stem = stem_of(context.folders.output, filename_prefix)
    path = claim(stem, ".txt", context.step, next_number(stem))
    try:
        path.write_text(text, "utf-8", "surrogatepass", newline="")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise unwritable(error, path) from None
    context.emit(Output(context.node, "text", path=str(path), value=text, step=context.step))


def text_nodes(folders: Folders) -> list[NodeType]:
    """Return the node types that read tokenizers, aware of changes to the files in these folders."""

    def fingerprint(literals: Mapping[str, Any]) -> str:
        try:
            return stamp_of(folders.model(literals.get("tokenizer", ""), "tokenizer"))
        except (InputError, OSError):
            return ""

    functions: tuple[Any, ...] = (tokenize, detokenize)
    return [replace(function.node_type, fingerprint=fingerprint) for function in functions]

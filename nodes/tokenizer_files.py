"""Tokenizers from model folders: a tokenizer.json, or CLIP's vocab.json and merges.txt."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.graph.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ACCEPTED = "a tokenizer.json, or a folder that holds one or vocab.json and merges.txt"
CLIP_LENGTH = 77
"""Positions of CLIP's text encoder (Radford et al. 2021, arXiv:2103.00020, section 2.4: 76 tokens and an end)."""

_CLIP_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
"""Words of CLIP's byte pair encoding."""

_CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the files that a tokenizer is made from, those beside it included. Raises InputError if it is none."""
    folder = path if path.is_dir() else path.parent
    beside = tuple(folder / name for name in _CONFIGS if (folder / name).is_file())
    if not path.is_dir():
        return (path, *beside)
    if (path / "tokenizer.json").is_file():
        return (path / "tokenizer.json", *beside)
    pair = (path / "vocab.json", path / "merges.txt")
    if all(file.is_file() for file in pair):
        return (*pair, *beside)
    raise InputError("tokenizer", found=f"{path}, which holds no tokenizer", accepted=ACCEPTED, fix="copy one there")


def stamp_of(path: Path) -> str:
    """Return a text that changes when any file of the tokenizer does. Raises InputError and OSError."""
    facts = ((file, file.stat()) for file in files_of(path))
    return "\n".join(f"{file}|{stat.st_mtime_ns}|{stat.st_size}" for file, stat in facts)


def load_tokenizer(path: Path, max_length: int) -> Tokenizer:
    """Return the tokenizer at a path, loaded once for each state of its files.

    max_length: 0 pads and cuts as the file says; else texts are cut to that many tokens, and padded up to it when
    the file names a padding token. Raises InputError for what is no tokenizer.
    """
    try:
        return _load(path, stamp_of(path), max_length)
    except OSError as error:
        found = f"{path}, which cannot be read ({error.strerror or error})"
        raise InputError("tokenizer", found=found, accepted=ACCEPTED, fix="check its permissions") from None


@lru_cache(maxsize=16)
def _load(path: Path, stamp: str, max_length: int) -> Tokenizer:
    files = files_of(path)
    configs = [_json(file) for file in files if file.name in _CONFIGS]
    if files[0].name == "vocab.json":
        tokenizer = _clip(files[0], files[1], _pad_token_in(configs))
        max_length = max_length or _length_in(configs)
    else:
        tokenizer = _from_json(files[0])
    if max_length:
        _fit(tokenizer, max_length, configs)
    return tokenizer


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        what = str(error) if isinstance(error, json.JSONDecodeError) else "bytes that are not UTF-8"
        found = f"{path}, which is not JSON ({what})"
        raise InputError("tokenizer", found=found, accepted=ACCEPTED, fix="download it again") from None


def _from_json(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    content = _json(path)
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        found = f"{path}, JSON without a tokenizer's model"
        raise InputError("tokenizer", found=found, accepted=ACCEPTED, fix="choose another file")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        found = f"{path}, which the tokenizers library refuses ({error})"
        raise InputError("tokenizer", found=found, accepted=ACCEPTED, fix="download it again") from None


def _clip(vocab: Path, merges: Path, pad_token: str) -> Tokenizer:
    """Return CLIP's tokenizer: lower-case byte pairs with `</w>` at word ends, start and end marks around a text.

    pad_token: empty for the end mark, which Stable Diffusion 1 pads with.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    ids = _json(vocab)
    start, end = "<|startoftext|>", "<|endoftext|>"
    if not isinstance(ids, dict) or start not in ids or end not in ids:
        found = f"{vocab} without {start} and {end}"
        fix = "use a tokenizer.json for other tokenizers than CLIP's"
        raise InputError("tokenizer", found=found, accepted=ACCEPTED, fix=fix)
    try:
        model = models.BPE.from_file(str(vocab), str(merges), unk_token=end, end_of_word_suffix="</w>")
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        found = f"{merges}, which does not fit {vocab.name} ({error})"
        raise InputError("tokenizer", found=found, accepted=ACCEPTED, fix="download both again") from None
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(Regex(r"\s+"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()])
    words = pre_tokenizers.Split(Regex(_CLIP_WORDS), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.post_processor = processors.BertProcessing((end, ids[end]), (start, ids[start]))
    ends = decoders.Replace("</w>", " ")
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), ends, decoders.Fuse(), decoders.Strip(" ", 0, 1)])
    tokenizer.add_special_tokens([start, end])
    padding = pad_token if pad_token in ids else end
    tokenizer.enable_padding(pad_id=ids[padding], pad_token=padding)
    return tokenizer


def _length_in(configs: list[Any]) -> int:
    for config in configs:
        length = config.get("model_max_length") if isinstance(config, dict) else None
        if isinstance(length, int) and 0 < length < 1_000_000:
            return length
    return CLIP_LENGTH


def _fit(tokenizer: Tokenizer, length: int, configs: list[Any]) -> None:
    """Cut and pad to a length: with the padding that the tokenizer has, or its configuration's padding token."""
    marks = tokenizer.num_special_tokens_to_add(False)
    if length < marks:
        found = f"{length}, with {marks} special tokens in every text"
        raise InputError("max_length", found=found, accepted=f"{marks} or more", fix="raise it")
    settings: dict[str, Any] = dict(tokenizer.padding or {})
    if not settings:
        token = _pad_token_in(configs)
        pad_id = tokenizer.token_to_id(token) if token else None
        settings = {} if pad_id is None else {"pad_id": pad_id, "pad_token": token}
    cut: dict[str, Any] = {key: value for key, value in (tokenizer.truncation or {}).items() if key != "max_length"}
    tokenizer.enable_truncation(max_length=length, **cut)
    if settings:
        tokenizer.enable_padding(**(settings | {"length": length}))


def _pad_token_in(configs: list[Any]) -> str:
    for config in configs:
        token = config.get("pad_token") if isinstance(config, dict) else None
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str) and token:
            return token
    return ""

"""Text nodes, with the tokenizers library and CLIP's published rules as peers."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from app.engine.events import Output
from app.graph.errors import InputError
from nodes.text import concatenate_text, detokenize, save_text, show_text, text, text_nodes, tokenize
from tests.nodes.context import context_in

DATA = Path(__file__).parent / "data"
WORDS = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "cat": 5, "sat": 6}
CLIP_TOKENS = ["a", "b", "c", "c</w>", "ab", "abc</w>", "!</w>", "!", "<|startoftext|>", "<|endoftext|>"]
CLIP = {token: index for index, token in enumerate(CLIP_TOKENS)}
START, END, PAD = CLIP["<|startoftext|>"], CLIP["<|endoftext|>"], CLIP["!"]


@pytest.fixture
def context(tmp_path: Path) -> Any:
    """Return a context whose model folder holds `words.json`, `padded.json` and `clip`."""
    made = context_in(tmp_path)
    models_folder = tmp_path / "models"
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(["[PAD]", "[CLS]", "[SEP]"])
    tokenizer.save(str(models_folder / "words.json"))
    tokenizer.enable_padding(length=6)
    tokenizer.enable_truncation(max_length=6)
    tokenizer.save(str(models_folder / "padded.json"))
    folder = models_folder / "clip"
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(CLIP))
    (folder / "merges.txt").write_text("#version: 0.2\na b\nab c</w>\n")
    return made


def ids_of(context: Any, *args: Any) -> list[int]:
    ids, mask = tokenize(context, *args)
    assert ids.dtype == mask.dtype == np.int64
    assert ids.shape == mask.shape == (1, ids.size)
    row: list[int] = ids[0].tolist()
    return row


def test_texts_pass_and_join() -> None:
    assert text("a\nb") == "a\nb"
    assert concatenate_text("a", "b", ", ") == "a, b"
    assert concatenate_text("a", "b") == "ab"


def test_tokens_with_and_without_marks(context: Any) -> None:
    assert ids_of(context, "a cat", "words.json") == [2, 4, 5, 3]
    assert ids_of(context, "a cat", "words.json", 0, False) == [4, 5]
    assert ids_of(context, "", "words.json", 0, False) == []
    assert ids_of(context, "dog", "words.json", 0, False) == [1]


def test_padding_and_cutting_come_from_the_file(context: Any) -> None:
    ids, mask = tokenize(context, "a cat", "padded.json")
    assert ids.tolist() == [[2, 4, 5, 3, 0, 0]]
    assert mask.tolist() == [[1, 1, 1, 1, 0, 0]]
    assert ids_of(context, "a a a a a a a a", "padded.json") == [2, 4, 4, 4, 4, 3]
    assert ids_of(context, "a cat", "padded.json", 8) == [2, 4, 5, 3, 0, 0, 0, 0]


def test_without_a_padding_token_a_length_only_cuts(context: Any, tmp_path: Path) -> None:
    assert ids_of(context, "a cat", "words.json", 8) == [2, 4, 5, 3]
    assert ids_of(context, "a cat", "words.json", 3) == [2, 4, 3]
    (tmp_path / "models" / "tokenizer_config.json").write_text(json.dumps({"pad_token": {"content": "[PAD]"}}))
    assert ids_of(context, "a cat", "words.json", 6) == [2, 4, 5, 3, 0, 0]
    with pytest.raises(InputError, match="2 special tokens"):
        tokenize(context, "a", "words.json", 1)


def test_clip_lowers_marks_pads_and_cuts(context: Any, tmp_path: Path) -> None:
    """77 positions padded with the end mark, as Stable Diffusion 1 has them; another padding token and length from
    tokenizer_config.json, as Stable Diffusion 2 has it."""
    word, mark = CLIP["abc</w>"], CLIP["!</w>"]
    assert ids_of(context, "ABC \n abc!", "clip") == [START, word, word, mark, END] + [END] * 72
    config = {"model_max_length": 6, "pad_token": "!"}
    (tmp_path / "models" / "clip" / "tokenizer_config.json").write_text(json.dumps(config))
    assert ids_of(context, "abc", "clip") == [START, word, END, PAD, PAD, PAD]
    assert ids_of(context, "abc abc abc abc abc abc", "clip") == [START, word, word, word, word, END]
    assert detokenize(context, np.array([[START, word, word, mark, END]]), "clip") == "abc abc !"


def test_clip_agrees_with_transformers(context: Any, tmp_path: Path) -> None:
    """Token for token: CLIPTokenizer of transformers 4.57.6 on the same vocab.json and merges.txt, all 77 positions."""
    shutil.copytree(DATA / "clip", tmp_path / "models" / "tokenizer")
    expected: dict[str, list[int]] = json.loads((DATA / "clip" / "expected.json").read_text("utf-8"))
    assert {text: ids_of(context, text, "tokenizer") for text in expected} == expected


def test_ids_become_text_again(context: Any) -> None:
    ids = np.array([2, 4, 5, 3, 0])
    assert detokenize(context, ids, "words.json") == "a cat"
    assert detokenize(context, ids, "words.json", False) == "[CLS] a cat [SEP] [PAD]"
    assert detokenize(context, np.array([[4], [5]], np.int32), "words.json") == "a\ncat"
    assert detokenize(context, np.array([4, 7, 5]), "words.json") == "a cat"
    assert detokenize(context, np.array(5), "words.json") == "cat"


@pytest.mark.parametrize(("shape", "text"), [((0,), ""), ((1, 0), ""), ((0, 3), ""), ((2, 0), "\n")])
def test_no_ids_give_no_text(context: Any, shape: tuple[int, ...], text: str) -> None:
    assert detokenize(context, np.zeros(shape, np.int64), "words.json") == text


@pytest.mark.parametrize("ids", [np.array([0.5]), np.array([-1]), np.array([2**40])])
def test_ids_that_are_none_are_refused(context: Any, ids: Any) -> None:
    with pytest.raises(InputError) as caught:
        detokenize(context, ids, "words.json")
    assert caught.value.input == "ids"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("none.json", None, "not there"),
        ("a.json", "{", "is not JSON"),
        ("b.json", b"\xff\xfe", "is not JSON"),
        ("c.json", "{}", "without a tokenizer's model"),
        ("d.json", "[]", "without a tokenizer's model"),
        ("e.json", '{"model": {"type": "BPE"}}', "library refuses"),
        ("empty/readme", "", "is not JSON"),
        ("empty", None, "holds no tokenizer"),
        ("../a.json", None, "outside"),
    ],
)
def test_what_is_no_tokenizer_gives_one_sentence(
    context: Any, tmp_path: Path, name: str, content: str | bytes | None, sentence: str
) -> None:
    path = tmp_path / "models" / name
    (tmp_path / "models" / "empty").mkdir()
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=sentence) as caught:
        tokenize(context, "a", name)
    assert caught.value.input == "tokenizer"
    assert "\n" not in str(caught.value)


def test_a_changed_file_is_read_again(context: Any, tmp_path: Path) -> None:
    fingerprints = []
    [fingerprint, _] = [node_type.fingerprint for node_type in text_nodes(context.folders)]
    assert fingerprint is not None
    path = tmp_path / "models" / "words.json"
    fingerprints.append(fingerprint({"tokenizer": "words.json"}))
    assert ids_of(context, "cat", "words.json", 0, False) == [5]
    content = json.loads(path.read_text())
    content["model"]["vocab"] |= {"cat": 6, "sat": 5}
    path.write_text(json.dumps(content))
    os.utime(path, ns=(1, 1))
    fingerprints.append(fingerprint({"tokenizer": "words.json"}))
    assert ids_of(context, "cat", "words.json", 0, False) == [6]
    fingerprints.append(fingerprint({"tokenizer": "none.json"}))
    assert len(set(fingerprints)) == 3


def test_show_and_save(context: Any, tmp_path: Path) -> None:
    show_text(context, "hé")
    save_text(context, "hé\n", "notes/a")
    context.step = 1
    save_text(context, "b", "notes/a")
    paths = [tmp_path / "output" / "notes" / name for name in ("a_00001.txt", "a_00002_step0002.txt")]
    assert [path.read_bytes() for path in paths] == ["hé\n".encode(), b"b"]
    assert context.shown == [
        Output("7", "text", value="hé"),
        Output("7", "text", str(paths[0]), "hé\n"),
        Output("7", "text", str(paths[1]), "b", 1),
    ]
    with pytest.raises(InputError, match="leaves the output folder"):
        save_text(context, "b", "../a")

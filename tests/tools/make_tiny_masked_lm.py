"""Make the tiny masked language model: `python tests/tools/make_tiny_masked_lm.py [FOLDER]`.

The model is the exact posterior of a small grammar (grammar.json of the folder), written down as an ONNX graph, with
no training. A sentence is drawn by choosing a class z, that is a topic and a sentence template, and a start s in the
text; slot j of the class then holds word v with probability K[z, v, j], independent of the other slots. Given the
visible words x, Bayes' rule gives

    score[z, s] = log prior(s) + sum over i of log K[z, x_i, i - s] inside and of free[z, x_i] outside of the sentence
    P(v at i | x) = sum over z, s of softmax(score)[z, s] * K[z, v, i - s]

where free is for what the user wrote before the sentence, and K is not 0 for a word that does not fit its slot but
far below free. The first sum over positions is a convolution of the one-hot text with log K, the second a transposed
convolution with K. So the graph is OneHot, Conv, Softmax, ConvTranspose, Log. A masked position is a column of zeros:
no evidence.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

FOLDER = Path(__file__).resolve().parents[2] / "workflows" / "models" / "tiny-masked-lm"

PAD, UNKNOWN, MASK = SPECIALS = ("[PAD]", "[UNK]", "[MASK]")
FREE, FREE_OF_TOPIC, FREE_AND_TELLING = -6.0, -4.0, -2.0
"""Log probability of a word outside of the sentence: any, one that the topic uses, one that tells the topic."""
MISFIT = -20.0
"""Log probability of a word that does not fit its slot, against that of the same word outside of the sentence."""
SHIFTED, LATER, EARLIER = -8.0, -4.0, -0.5
"""Log prior of a sentence that does not start at the beginning, then per position that it starts later or earlier."""
NEVER = -10000.0
"""Logit of the special tokens that the model must not write."""


@dataclass(frozen=True)
class Grammar:
    """The grammar: words by id, and for each class (topic and template) its slots, each a list of equally likely words.

    free: by class, log probability of words outside of the sentence that differ from FREE.
    """

    words: tuple[str, ...]
    classes: tuple[tuple[tuple[str, ...], ...], ...]
    free: tuple[dict[str, float], ...]

    @property
    def ids(self) -> dict[str, int]:
        """Id by word."""
        return {word: index for index, word in enumerate(self.words)}


def read_grammar(path: Path) -> Grammar:
    """Return the grammar of a file. Raises ValueError when a noun phrase would need `an`, or a template is too long."""
    document = json.loads(path.read_text(encoding="utf-8"))
    classes, free = [], []
    for topic in document["topics"].values():
        lists = {**topic, "TIME": document["times"]}
        for template in document["templates"]:
            slots = [tuple(lists.get(word, [word])) for word in template.split()]
            if any(slot == ("a",) and word[0] in "aeiou" for slot, after in pairwise(slots) for word in after):
                raise ValueError(f"`a` before a vowel in {slots}")
            if len(slots) > document["length"]:
                raise ValueError(f"more than {document['length']} words in {template}")
            classes.append(tuple(slots) + ((PAD,),) * (document["length"] - len(slots)))
            own = {word: FREE_OF_TOPIC for name in ("HOW", "DOES", "KIND", "LOOKS") for word in topic[name]}
            telling = {word: FREE_AND_TELLING for name in ("WHO", "WHAT", "PLACE", "HINTS") for word in topic[name]}
            free.append(own | telling)
    used = [word for slots in classes for slot in slots for word in slot]
    hints = [word for topic in document["topics"].values() for word in topic["HINTS"]]
    words = tuple(dict.fromkeys([*SPECIALS, *used, *document["lead_in"], *hints]))
    return Grammar(words, tuple(classes), tuple(free))


def slot_table(grammar: Grammar) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return where a word fits its slot, int64 [N, 3] of (class, word, slot), and log K there, float32 [N]."""
    ids = grammar.ids
    places, values = [], []
    for index, slots in enumerate(grammar.classes):
        for slot, words in enumerate(slots):
            for word in words:
                places.append((index, ids[word], slot))
                values.append(-np.log(len(words)))
    return np.array(places, np.int64), np.array(values, np.float32)


def free_table(grammar: Grammar) -> NDArray[np.float32]:
    """Return the log probability of each word outside of a class's sentence, float32 [Z, V]; padding is free."""
    ids = grammar.ids
    table = np.full((len(grammar.classes), len(grammar.words)), FREE, np.float32)
    table[:, ids[PAD]] = 0
    for row, words in zip(table, grammar.free, strict=True):
        for word, value in words.items():
            row[ids[word]] = value
    return table


def build_model(grammar: Grammar) -> onnx.ModelProto:
    """Return the model: input_ids int64 [B, S] -> logits float32 [B, S, V], the log posterior of every position."""
    classes, words, length = len(grammar.classes), len(grammar.words), len(grammar.classes[0])
    places, values = slot_table(grammar)
    baseline = np.full((1, words, 1), 1e-12, np.float32)
    baseline[0, grammar.ids[PAD]] = 1e-6  # where no sentence reaches, the text has ended
    forbidden = np.zeros((1, words, 1), np.float32)
    forbidden[0, [grammar.ids[UNKNOWN], grammar.ids[MASK]]] = NEVER
    constants: dict[str, Any] = {
        "mask_id": np.array(grammar.ids[MASK], np.int64),
        "outside": np.array(words, np.int64),
        "words": np.array([words], np.int64),
        "off_on": np.array([0, 1], np.float32),
        "table_shape": np.array([classes, words, length], np.int64),
        "places": places,
        "log_probabilities": values,
        "free": free_table(grammar),
        "axis_2": np.array([2], np.int64),
        "first": np.array(1 - length, np.int64),
        "one": np.array(1, np.int64),
        "shifted": np.array(SHIFTED, np.float32),
        "later": np.array(LATER, np.float32),
        "earlier": np.array(EARLIER, np.float32),
        "flat": np.array([0, -1], np.int64),
        "unflat": np.array([0, classes, -1], np.int64),
        "baseline": baseline,
        "forbidden": forbidden,
    }
    graph = helper.make_graph(
        [*_evidence_nodes(length), *_start_nodes(), *_posterior_nodes(length)],
        "tiny_masked_lm",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", words])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="ortloom")
    helper.set_model_props(model, {"mask_token_id": str(grammar.ids[MASK]), "pad_token_id": str(grammar.ids[PAD])})
    onnx.checker.check_model(model, full_check=True)
    return model


def _evidence_nodes(length: int) -> list[onnx.NodeProto]:
    """score [B, Z, S + T - 1]: log probability of the visible words for every class and start."""
    node = helper.make_node
    misfit = numpy_helper.from_array(np.array([MISFIT], np.float32))
    return [
        node("ConstantOfShape", ["table_shape"], ["misfit"], value=misfit),
        node("Unsqueeze", ["free", "axis_2"], ["free_column"]),
        node("Add", ["misfit", "free_column"], ["log_floor"]),
        node("ScatterND", ["log_floor", "places", "log_probabilities"], ["log_k"]),
        node("Sub", ["log_k", "free_column"], ["gain"]),
        node("Equal", ["input_ids", "mask_id"], ["is_mask"]),
        # OneHot gives a column of zeros for an id outside of the vocabulary.
        node("Where", ["is_mask", "outside", "input_ids"], ["visible"]),
        node("OneHot", ["visible", "words", "off_on"], ["text"], axis=1),
        node("Conv", ["text", "gain"], ["gained"], pads=[length - 1, length - 1]),
        node("ReduceSum", ["text", "axis_2"], ["counts"], keepdims=1),
        node("MatMul", ["free", "counts"], ["if_all_free"]),
        node("Add", ["gained", "if_all_free"], ["evidence"]),
    ]


def _start_nodes() -> list[onnx.NodeProto]:
    """log_prior [S + T - 1]: of starts from 1 - T to S - 1."""
    node = helper.make_node
    return [
        node("Shape", ["input_ids"], ["sequence"], start=1, end=2),
        node("Squeeze", ["sequence"], ["stop"]),
        node("Range", ["first", "stop", "one"], ["starts"]),
        node("Cast", ["starts"], ["start"], to=TensorProto.FLOAT),
        node("Relu", ["start"], ["positions_later"]),
        node("Sub", ["positions_later", "start"], ["positions_earlier"]),
        node("Sign", ["start"], ["direction"]),
        node("Abs", ["direction"], ["is_shifted"]),
        node("Mul", ["is_shifted", "shifted"], ["log_shifted"]),
        node("Mul", ["positions_later", "later"], ["log_later"]),
        node("Mul", ["positions_earlier", "earlier"], ["log_earlier"]),
        node("Sum", ["log_shifted", "log_later", "log_earlier"], ["log_prior"]),
    ]


def _posterior_nodes(length: int) -> list[onnx.NodeProto]:
    """logits [B, S, V]: log of the mixture of the slots' words, weighted by each class and start's posterior."""
    node = helper.make_node
    return [
        node("Add", ["evidence", "log_prior"], ["score"]),
        node("Reshape", ["score", "flat"], ["scores"]),
        node("Softmax", ["scores"], ["posterior_of_all"], axis=1),
        node("Reshape", ["posterior_of_all", "unflat"], ["posterior"]),
        node("Exp", ["log_k"], ["k"]),
        node("ConvTranspose", ["posterior", "k"], ["mixture"], pads=[length - 1, length - 1]),
        node("Add", ["mixture", "baseline"], ["probabilities"]),
        node("Log", ["probabilities"], ["log_probability"]),
        node("Add", ["log_probability", "forbidden"], ["by_word"]),
        node("Transpose", ["by_word"], ["logits"], perm=[0, 2, 1]),
    ]


def build_tokenizer(grammar: Grammar) -> Tokenizer:
    """Return the tokenizer: an id for each lower-case word or sign; decoding puts no space before a full stop."""
    tokenizer = Tokenizer(models.WordLevel(grammar.ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def main(folder: Path) -> None:
    """Read grammar.json of the folder and write model.onnx and tokenizer.json beside it."""
    grammar = read_grammar(folder / "grammar.json")
    onnx.save(build_model(grammar), str(folder / "model.onnx"))
    build_tokenizer(grammar).save(str(folder / "tokenizer.json"))
    print(
        f"{len(grammar.words)} words, {len(grammar.classes)} classes, "
        f"{(folder / 'model.onnx').stat().st_size} bytes in {folder}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)

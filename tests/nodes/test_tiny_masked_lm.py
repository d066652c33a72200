"""The tiny masked language model: its probabilities, and that masked diffusion on it writes sentences."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from tokenizers import Tokenizer

from app.folders import BUNDLED_MODELS
from tests.tools.make_tiny_masked_lm import build_model, build_tokenizer, read_grammar

FOLDER = BUNDLED_MODELS / "tiny-masked-lm"
MASK, GENERATED = 2, 16


@pytest.fixture(scope="module")
def session() -> ort.InferenceSession:
    return ort.InferenceSession(str(FOLDER / "model.onnx"), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def probabilities(session: ort.InferenceSession, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    logits = session.run(None, {"input_ids": ids})[0].astype(np.float64)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def masked(tokenizer: Tokenizer, prompt: str) -> NDArray[np.int64]:
    return np.array([[*tokenizer.encode(prompt).ids, *[MASK] * GENERATED]], np.int64)


def unmask(
    session: ort.InferenceSession, ids: NDArray[np.int64], *, steps: int, temperature: float, seed: int
) -> NDArray[np.int64]:
    """Low-confidence remasking in one block: each step writes the most confident 1 / (steps left) of what is masked."""
    x, draw = ids.copy(), np.random.default_rng(seed)
    for step in range(steps):
        certainty = probabilities(session, x)[0]
        noise = draw.gumbel(size=certainty.shape)
        tokens = (np.log(np.maximum(certainty, 1e-30)) + temperature * noise).argmax(-1)
        candidates = np.flatnonzero(x[0] == MASK)
        confidence = certainty[candidates, tokens[candidates]]
        count = -(-candidates.size // (steps - step))
        chosen = candidates[np.argsort(-confidence, kind="stable")[:count]]
        x[0, chosen] = tokens[chosen]
    return x


def is_sentence_of_grammar(text: str) -> bool:
    """Return whether one topic's words fill one template to give the text."""
    grammar = json.loads((FOLDER / "grammar.json").read_text(encoding="utf-8"))
    words = text.replace(",", " ,").replace(".", " .").split()
    for topic in grammar["topics"].values():
        lists = {**topic, "TIME": grammar["times"]}
        for template in grammar["templates"]:
            slots = template.split()
            fits = (word in lists.get(slot, [slot]) for word, slot in zip(words, slots, strict=False))
            if len(words) == len(slots) and all(fits):
                return True
    return False


def test_the_committed_files_are_what_the_script_makes() -> None:
    """The graph and every constant are equal, and so is the tokenizer; within 1 MB and with standard operators only."""
    grammar = read_grammar(FOLDER / "grammar.json")
    made, committed = build_model(grammar), onnx.load(str(FOLDER / "model.onnx"))
    assert [str(node) for node in committed.graph.node] == [str(node) for node in made.graph.node]
    for ours, theirs in zip(committed.graph.initializer, made.graph.initializer, strict=True):
        np.testing.assert_allclose(numpy_helper.to_array(ours), numpy_helper.to_array(theirs), rtol=1e-6)
    tokenizer = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    assert tokenizer["model"] == json.loads(build_tokenizer(grammar).to_str())["model"]
    assert (FOLDER / "model.onnx").stat().st_size < 1_000_000
    assert [(opset.domain, opset.version) for opset in committed.opset_import] == [("", 17)]


@pytest.mark.parametrize("prompt", ["", "at dawn , the", "sailor", "a story about the sea :", "zzz the owl"])
def test_probabilities_are_the_posterior_of_the_grammar(
    prompt: str, session: ort.InferenceSession, tokenizer: Tokenizer
) -> None:
    """Bayes' rule of the script's docstring, summed class by class and word by word in float64; absolute error 2e-5."""
    grammar = read_grammar(FOLDER / "grammar.json")
    ids = masked(tokenizer, prompt)
    np.testing.assert_allclose(probabilities(session, ids)[0], posterior(grammar, ids[0].tolist()), atol=2e-5)


def posterior(grammar: Any, ids: list[int]) -> NDArray[np.float64]:
    vocabulary, length = len(grammar.words), len(grammar.classes[0])
    visible = [(place, grammar.words[index]) for place, index in enumerate(ids) if index != MASK]
    starts = range(1 - length, len(ids))
    score = {}
    for number, (slots, free) in enumerate(zip(grammar.classes, grammar.free, strict=True)):
        for start in starts:
            total = 0.0 if start == 0 else -8 - 4 * max(start, 0) - 0.5 * max(-start, 0)
            for place, word in visible:
                outside = 0.0 if word == "[PAD]" else free.get(word, -6.0)
                slot = slots[place - start] if 0 <= place - start < length else None
                fits = slot is not None and word in slot
                total += outside if slot is None else -np.log(len(slot)) if fits else outside - 20
            score[number, start] = total
    highest = max(score.values())
    weight = {key: np.exp(value - highest) for key, value in score.items()}
    whole = sum(weight.values())
    result = np.full((len(ids), vocabulary), 1e-12)
    result[:, grammar.words.index("[PAD]")] = 1e-6
    for (number, start), value in weight.items():
        for place in range(max(start, 0), min(start + length, len(ids))):
            slot = grammar.classes[number][place - start]
            for word in slot:
                result[place, grammar.words.index(word)] += value / whole / len(slot)
    return np.asarray(result / result.sum(-1, keepdims=True))


def test_a_known_beginning_leaves_the_topics_words_equally_likely(
    session: ort.InferenceSession, tokenizer: Tokenizer
) -> None:
    """Only the sea has old sailors, only one template starts so, and it has three verbs: a third each, within 1e-3."""
    verbs = probabilities(session, masked(tokenizer, "the old sailor"))[0, 3]
    for verb in ("mends", "dries", "carries"):
        assert verbs[tokenizer.token_to_id(verb)] == pytest.approx(1 / 3, abs=1e-3)


@pytest.mark.parametrize("prompt", ["", "at dawn , the", "the old sailor", "the library is", "nobody"])
@pytest.mark.parametrize("steps", [4, 16])
def test_temperature_0_writes_a_sentence_of_the_grammar(
    prompt: str, steps: int, session: ort.InferenceSession, tokenizer: Tokenizer
) -> None:
    """With one word a step each is chosen in full knowledge of the others; the four steps must only fill every mask."""
    ids = unmask(session, masked(tokenizer, prompt), steps=steps, temperature=0, seed=0)
    assert MASK not in ids
    text = tokenizer.decode(ids[0].tolist())
    assert text.startswith(prompt.replace(" ,", ","))
    assert steps < GENERATED or is_sentence_of_grammar(text), text


def test_at_temperature_1_the_seed_chooses_the_sentence(session: ort.InferenceSession, tokenizer: Tokenizer) -> None:
    """The same seed writes the same sentence, eight seeds at least six different ones, all of them of the grammar."""
    start = masked(tokenizer, "at dawn , the")
    texts = [
        tokenizer.decode(unmask(session, start, steps=16, temperature=1, seed=seed)[0].tolist())
        for seed in (*range(8), 0)
    ]
    assert texts[-1] == texts[0]
    assert len(set(texts)) >= 6
    assert all(is_sentence_of_grammar(text) for text in texts), texts


def test_rows_of_a_batch_do_not_see_each_other(session: ort.InferenceSession, tokenizer: Tokenizer) -> None:
    """A batch gives what its rows give alone, absolute error 1e-6."""
    rows = [masked(tokenizer, prompt) for prompt in ("the old sailor", "the young reader")]
    together = probabilities(session, np.concatenate(rows))
    alone = np.concatenate([probabilities(session, row) for row in rows])
    np.testing.assert_allclose(together, alone, atol=1e-6)

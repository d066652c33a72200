"""Decoders, codecs and nested speech as graphs of Repeat Loops and component state.

Token values are those of the reference project's fixtures; the models' formulas are in models.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.topology.kit import Run, component


def state(*names: str, output: str = "present", init: str = "empty") -> list[dict[str, str]]:
    return [{"input": f"past.{name}", "output": f"{output}.{name}", "init": init} for name in names]


def decode(prompt: list[int], count: int, **body: Any) -> dict[str, Any]:
    """Greedy decoding: the whole prompt first, then one token a pass; `out` shows the tokens.

    The body must hold a node `decoder` with `logits`; it may use `tokens.ids` and `positions.tensor`.
    """
    return {
        "prompt": ("ListToTensor", {"items": [prompt]}),
        "tokens": (
            "RepeatLoop",
            {
                "count": count,
                "carry": "ids, position",
                "ids": "->prompt.tensor",
                "position": 0,
                "next_ids": "->row.tensor",
                "next_position": "->end.int",
                "collect": "token",
                "collect_token": "->best.indices",
                "collect_mode": "concatenate",
            },
        ),
        "size": ("TensorShape", {"tensor": "->tokens.ids", "axis": 1}),
        "end": ("MathExpression", {"expression": "a + b", "a": "->tokens.position", "b": "->size.size"}),
        "positions": ("Range", {"start": "->tokens.position", "length": "->size.size", "batch": 1}),
        "last": ("Slice", {"tensor": "->decoder.logits", "axis": -2, "start": -1}),
        "best": ("Argmax", {"tensor": "->flat.tensor", "axis": -1}),
        "flat": ("Reshape", {"tensor": "->last.tensor", "shape": [1, -1]}),
        "row": ("Reshape", {"tensor": "->best.indices", "shape": [1, 1]}),
        "out": ("Collect", {"value": "->tokens.collected_token"}),
        **body,
    }


def test_a_codec_is_two_components_in_a_row(run: Run) -> None:
    """Means of the pairs 0..15 are .5, 2.5, ...; each doubled and played twice."""
    (audio,) = run(
        wave=("ListToTensor", {"items": [[float(value) for value in range(16)]]}),
        codes=component("squeeze", waveform="->wave.tensor"),
        audio=component("unfold", codes="->codes.codes"),
        out=("Collect", {"value": "->audio.audio"}),
    )
    assert audio[0].tolist() == [value for pair in range(8) for value in [4.0 * pair + 1] * 2]


def test_a_speech_decoder_attends_to_the_encoder_with_a_growing_cache(run: Run) -> None:
    """16 ones / 4 = token 4; a cache that did not grow with the positions would shift it."""
    body = {
        "mel": ("TensorFill", {"shape": [1, 80, 8], "value": 3.0}),
        "encoder": component("ears", input_features="->mel.tensor"),
        "decoder": component(
            "words",
            decoder_input_ids="->tokens.ids",
            encoder_hidden_states="->encoder.encoder_hidden_states",
            position_ids="->positions.tensor",
            state=state("0.key", "0.value"),
        ),
    }
    assert run(**decode([1, 2], 5, **body))[0].tolist() == [4, 4, 4, 4, 4]


def test_a_static_cross_attention_cache_is_a_plain_wire(run: Run) -> None:
    body = {
        "mel": ("TensorFill", {"shape": [1, 80, 8], "value": 3.0}),
        "encoder": component("ears_cross", input_features="->mel.tensor"),
        "narrow": ("Cast", {"tensor": "->tokens.ids", "dtype": "int32"}),
        "decoder": component(
            "words_cross",
            ids="->narrow.tensor",
            past_key_cross_0="->encoder.present_key_cross_0",
            past_value_cross_0="->encoder.present_value_cross_0",
            state=[{"input": "past_key_self_0", "output": "present_key_self_0"}],
        ),
    }
    assert run(**decode([1, 2], 3, **body))[0].tolist() == [4, 4, 4]


def test_speech_codes_become_sound_after_the_loop(run: Run) -> None:
    """The token is the position: 0, 1, 2, 3 from a prompt of one; the vocoder doubles each and plays it twice."""
    body = {
        "decoder": component(
            "speaks_position", input_ids="->tokens.ids", position_ids="->positions.tensor", state=state("0.key")
        ),
        "codes": ("Cast", {"tensor": "->tokens.collected_token", "dtype": "float32"}),
        "row_of_codes": ("Reshape", {"tensor": "->codes.tensor", "shape": [1, -1]}),
        "vocoder": component("unfold", codes="->row_of_codes.tensor"),
        "sound": ("Collect", {"value": "->vocoder.audio"}),
    }
    nodes = decode([5], 4, **body)
    assert run(**nodes)[0].tolist() == [0, 1, 2, 3]
    nodes["out"] = ("Collect", {"value": "->vocoder.audio"})
    assert run(**nodes)[0][0].tolist() == [0, 0, 2, 2, 4, 4, 6, 6]


def codes_of_a_frame(hidden: str) -> dict[str, Any]:
    """The inner loop: four codes of a frame, each from the embedding of the one before it."""
    return {
        "codes": (
            "RepeatLoop",
            {
                "count": 4,
                "carry": "embeds",
                "embeds": hidden,
                "next_embeds": "->predictor.code_embedding",
                "collect": "code",
                "collect_code": "->code.indices",
                "collect_mode": "concatenate",
                "collect_axis": 1,
            },
        ),
        "predictor": component(
            "predictor", inputs_embeds="->codes.embeds", group="->codes.index", state=state("0.key")
        ),
        "code": ("Argmax", {"tensor": "->predictor.logits", "axis": -1}),
        "frame": ("Reshape", {"tensor": "->codes.collected_code", "shape": [1, 1, 4]}),
    }


COLLECT_FRAMES = {
    "collect": "frame", "collect_frame": "->frame.tensor", "collect_mode": "concatenate", "collect_axis": 1,
}  # fmt: skip


def test_nested_speech_a_loop_of_codes_in_a_loop_of_frames(run: Run) -> None:
    """The inner cache starts empty in every frame, the outer one lives through all: see the predictor's formula."""
    nodes = {
        "prompt": ("ListToTensor", {"items": [[5]]}),
        "frames": (
            "RepeatLoop",
            {
                "count": 3,
                "carry": "ids, position",
                "ids": "->prompt.tensor",
                "position": 0,
                "next_ids": "->token.indices",
                "next_position": "->end.int",
                **COLLECT_FRAMES,
            },
        ),
        "end": ("MathExpression", {"expression": "a + 1", "a": "->frames.position"}),
        "positions": ("Range", {"start": "->frames.position", "length": 1, "batch": 1}),
        "talker": component(
            "talker", input_ids="->frames.ids", position_ids="->positions.tensor", state=state("0.key")
        ),
        "token": ("Argmax", {"tensor": "->talker.logits", "axis": -1}),
        "hidden": ("Slice", {"tensor": "->talker.hidden", "axis": 1, "start": -1}),
        **codes_of_a_frame("->hidden.tensor"),
        "wave": ("Collect", {"value": "->frames.passes"}),
        "out": ("Collect", {"value": "->frames.collected_frame"}),
    }
    assert run(**nodes)[0].tolist() == [[[1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]]


def pre_embedded(**frames: Any) -> dict[str, Any]:
    """Each frame's codes, the first replaced by the outer token, are embedded for the next frame."""
    return {
        "talker": component("mean_talker", inputs_embeds=frames.pop("embeds"), state=state("0.key")),
        "last": ("Slice", {"tensor": "->talker.logits", "axis": 1, "start": -1}),
        "token": ("Argmax", {"tensor": "->last.tensor", "axis": -1}),
        "hidden": ("Slice", {"tensor": "->talker.hidden", "axis": 1, "start": -1}),
        **codes_of_a_frame("->hidden.tensor"),
        "first": ("Reshape", {"tensor": "->token.indices", "shape": [1, 1, 1]}),
        "rest": ("Slice", {"tensor": "->frame.tensor", "axis": 2, "start": 1}),
        "tuple": ("Concatenate", {"a": "->first.tensor", "b": "->rest.tensor", "axis": 2}),
        "out": ("Collect", {"value": "->frames.collected_frame"}),
        "frames": ("RepeatLoop", {**frames, **COLLECT_FRAMES}),
    }


def test_nested_speech_with_an_embedder_before_every_frame(run: Run) -> None:
    nodes = pre_embedded(
        embeds="->embedder.inputs_embeds", count=3, carry="codes", codes="->none.tensor", next_codes="->tuple.tensor"
    ) | {
        "none": ("TensorFill", {"shape": [1, 1, 4], "value": 0, "dtype": "int64"}),
        "text": ("TensorFill", {"shape": [1, 1, 8], "value": 0.0}),
        "embedder": component("step_embedder", codes="->frames.codes", text="->text.tensor"),
    }
    assert run(**nodes)[0].tolist() == [[[1, 2, 3, 4], [10, 11, 12, 13], [46, 47, 48, 49]]]


def test_nested_speech_with_a_prefill_and_trailing_text(run: Run) -> None:
    """The prefill is the first frame's input; later ones get a trailing row each, zeros when they are used up."""
    nodes = pre_embedded(
        embeds="->frames.embeds", count=2, carry="embeds", embeds_start=None, next_embeds="->embedder.inputs_embeds"
    )
    nodes["frames"][1].pop("embeds_start")
    nodes["frames"][1]["embeds"] = "->prefill.prefix"
    nodes |= {
        "prompt": ("ListToTensor", {"items": [[8]]}),
        "prefill": component("prefill", text_ids="->prompt.tensor"),
        "text": (
            "SelectRow",
            {"tensor": "->prefill.trailing", "index": "->frames.index", "axis": 1, "outside": "zeros"},
        ),
        "embedder": component("step_embedder", codes="->tuple.tensor", text="->text.tensor"),
    }
    assert run(**nodes)[0].tolist() == [[[9, 10, 11, 12], [43, 44, 45, 46]]]


def test_a_vision_language_model_with_an_embedder_on_every_token(run: Run) -> None:
    """Prompt 3 and the picture's placeholder 7; the features make the placeholder what its own row does not."""
    body = {
        "pixels": ("TensorFill", {"shape": [1, 3, 2, 2], "value": 1.0}),
        "eye": component("eye", pixel_values="->pixels.tensor"),
        "embedder": component("vision_embedder", input_ids="->tokens.ids", image_features="->eye.image_features"),
        "decoder": component("vision_talker", inputs_embeds="->embedder.inputs_embeds", state=state("0.key")),
    }
    assert run(**decode([3, 7], 4, **body))[0].tolist() == [0, 5, 6, 7]


@pytest.mark.parametrize(
    ("aux", "ids", "expected"),
    [
        ("->embedder.aux", "->tokens.ids", [0, 4, 0, 4]),
        ("->stale.tensor", "->tokens.ids", [5, 6, 7, 0]),
    ],
)
def test_an_embedder_with_two_outputs_feeds_both_anew_on_every_token(
    run: Run, aux: str, ids: str, expected: list[int]
) -> None:
    """With an `aux` that never agrees with the ids, every token is only one more than the last."""
    body = {
        "stale": ("TensorFill", {"shape": [1, 1, 1], "value": 99.0}),
        "embedder": component("double_embedder", input_ids="->tokens.ids"),
        "decoder": component("double_talker", inputs_embeds="->embedder.inputs_embeds", aux=aux, input_ids=ids),
    }
    assert run(**decode([1, 4] if aux.startswith("->embedder") else [4], 4, **body))[0].tolist() == expected


def test_several_position_axes_caches_and_recurrent_states(run: Run) -> None:
    """Positions 2, 3, 4 on three axes give 6, 9, 12; the states, six more each step, 0, 6, 12: 6, 15, 24."""
    body = {
        "axes": ("Tile", {"tensor": "->unsqueezed.tensor", "axis": 0, "count": 3}),
        "unsqueezed": ("Unsqueeze", {"tensor": "->positions.tensor", "axes": [0]}),
        "decoder": component(
            "multi_axis",
            input_ids="->tokens.ids",
            position_ids="->axes.tensor",
            state=[
                *state("3.key", "11.key"),
                {"input": "state_a", "output": "new_a", "init": "zeros"},
                {"input": "state_b", "output": "new_b", "init": "zeros"},
            ],
        ),
    }
    assert run(**decode([1, 2, 3], 3, **body))[0].tolist() == [6, 15, 24]

"""Tiny models whose every output is a closed form, written in ONNX's text format and saved into a folder.

Each is one of the shapes that real pipelines have; the formulas are in the comments beside them.
"""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import onnx.parser

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'

MODELS = {
    # Diffusion: what the loop feeds, what it takes back.
    "halving": """m (float[1,4] sample, float[1,4] cond) => (float[1,4] denoised) <float half = {0.5}>
        { sum = Add(sample, cond) denoised = Mul(sum, half) }""",
    "double_plus_one": """m (float[1,4] z) => (float[1,4] image) <float one = {1.0}>
        { twice = Add(z, z) image = Add(twice, one) }""",
    "adds_timestep": """m (float[1,4] sample, float[1] t) => (float[1,4] denoised) { denoised = Add(sample, t) }""",
    "two_states": """m (float[1,4] x, float[1,4] y, float[1,4] cond) => (float[1,4] x_next, float[1,4] y_next)
        <float half = {0.5}> { a = Add(x, cond) x_next = Mul(a, half) b = Add(y, x) y_next = Mul(b, half) }""",
    "two_conditions": """m (float[b,4] sample, float[b,4] cond_a, float[b,4] cond_b) => (float[b,4] denoised)
        { s = Add(sample, cond_a) denoised = Add(s, cond_b) }""",
    "only_condition": """m (float[b,4] sample, float[b,4] cond) => (float[b,4] denoised) <float zero = {0.0}>
        { none = Mul(sample, zero) denoised = Add(cond, none) }""",
    "control": """m (float[1,4] sample, float[1,4] hint) => (float[1,4] residual) { residual = Mul(sample, hint) }""",
    "controlled": """m (float[1,4] sample, float[1,4] residual) => (float[1,4] denoised)
        { denoised = Add(sample, residual) }""",
    # Position p has its highest logit at token p + 2, which beats the others by 10, 8, 6 and 4; token 1 is the mask.
    "constant_logits": """m (int64[1,4] input_ids) => (float[1,4,6] logits)
        <float[1,4,6] table = {0,0,10,0,0,0, 0,0,0,8,0,0, 0,0,0,0,6,0, 0,0,0,0,0,4}, float zero = {0.0}, int64[1] last = {-1}>
        { f = Cast<to = 1>(input_ids) z = Mul(f, zero) u = Unsqueeze(z, last) logits = Add(table, u) }""",
    # Audio codec: codes are means of pairs; each code is played twice, doubled.
    "squeeze": """m (float[1,16] waveform) => (float[1,8] codes) <int64[3] shape = {1,8,2}>
        { pairs = Reshape(waveform, shape) codes = ReduceMean<axes = [2], keepdims = 0>(pairs) }""",
    "unfold": """m (float[1,n] codes) => (float[1,m] audio) <int64[1] last = {-1}, int64[2] flat = {1,-1}>
        { twice = Add(codes, codes) u = Unsqueeze(twice, last) both = Concat<axis = 2>(u, u) audio = Reshape(both, flat) }""",
    # Speech recognition: the encoder gives states of ones; the decoder's token is their sum over the width 4.
    "ears": """m (float[1,80,8] input_features) => (float[1,4,4] encoder_hidden_states)
        <float zero = {0.0}, float one = {1.0}, int64[2] s = {0,0}, int64[2] e = {4,4}, int64[2] axes = {1,2}>
        { z = Mul(input_features, zero) o = Add(z, one) encoder_hidden_states = Slice(o, s, e, axes) }""",
    "words": """m (int64[1,S] decoder_input_ids, float[1,4,4] encoder_hidden_states, int64[1,S] position_ids,
       float[1,1,P,4] past_0_key, float[1,1,P,4] past_0_value)
       => (float[1,8] logits, float[1,1,T,4] present_0_key, float[1,1,T,4] present_0_value)
    <float[8] vocabulary = {0,1,2,3,4,5,6,7}, int64[4] shape = {1,1,-1,1}, int64[4] tile = {1,1,1,4}, int64 third = {2},
     int64[1] zeros = {0}, int64[1] ones = {1}, float quarter = {0.25}>
    { ids = Cast<to = 1>(decoder_input_ids) r = Reshape(ids, shape) now = Tile(r, tile)
      present_0_key = Concat<axis = 2>(past_0_key, now) present_0_value = Concat<axis = 2>(past_0_value, now)
      total = ReduceSum<keepdims = 0>(encoder_hidden_states) sum = Mul(total, quarter)
      size = Shape(past_0_key) past = Gather(size, third) begin = Slice(position_ids, zeros, ones, ones)
      first = ReduceMax<keepdims = 0>(begin) off = Sub(past, first) offf = Cast<to = 1>(off) token = Add(sum, offf)
      d = Sub(vocabulary, token) sq = Mul(d, d) n = Neg(sq) logits = Unsqueeze(n, zeros) }""",
    "ears_cross": """m (float[1,80,8] input_features)
       => (float[1,1,4,4] present_key_cross_0, float[1,1,4,4] present_value_cross_0)
    <float zero = {0.0}, float one = {1.0}, int64[2] s = {0,0}, int64[2] e = {4,4}, int64[2] axes = {1,2}, int64[1] first = {1}>
    { z = Mul(input_features, zero) o = Add(z, one) h = Slice(o, s, e, axes) present_key_cross_0 = Unsqueeze(h, first)
      present_value_cross_0 = Unsqueeze(h, first) }""",
    "words_cross": """m (int32[1,S] ids, float[1,1,P,4] past_key_self_0, float[1,1,4,4] past_key_cross_0,
       float[1,1,4,4] past_value_cross_0) => (float[1,8] logits, float[1,1,T,4] present_key_self_0)
    <float[8] vocabulary = {0,1,2,3,4,5,6,7}, int64[4] shape = {1,1,-1,1}, int64[4] tile = {1,1,1,4}, int64[1] zeros = {0},
     float eighth = {0.125}>
    { f = Cast<to = 1>(ids) r = Reshape(f, shape) now = Tile(r, tile)
      present_key_self_0 = Concat<axis = 2>(past_key_self_0, now) both = Add(past_key_cross_0, past_value_cross_0)
      total = ReduceSum<keepdims = 0>(both) token = Mul(total, eighth) d = Sub(vocabulary, token) sq = Mul(d, d) n = Neg(sq)
      logits = Unsqueeze(n, zeros) }""",
    # Speech synthesis: the token is the position.
    "speaks_position": """m (int64[1,S] input_ids, int64[1,S] position_ids, float[1,1,P,1] past_0_key)
           => (float[1,S,16] logits, float[1,1,T,1] present_0_key)
        <float[16] vocabulary = {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}, int64[1] last = {-1}, int64[4] shape = {1,1,-1,1}>
        { ids = Cast<to = 1>(input_ids) now = Reshape(ids, shape) present_0_key = Concat<axis = 2>(past_0_key, now)
          p = Cast<to = 1>(position_ids) u = Unsqueeze(p, last) d = Sub(u, vocabulary) sq = Mul(d, d) logits = Neg(sq) }""",
    # Nested speech. The talker's hidden state is the position; the predictor's code is the mean of what it is given plus
    # one, plus how much its cache is longer than the number of codes of this frame: 0 if it started the frame empty.
    "talker": """m (int64[1,S] input_ids, int64[1,S] position_ids, float[1,1,P,1] past_0_key)
           => (float[1,S,16] logits, float[1,S,8] hidden, float[1,1,T,1] present_0_key)
        <float[16] vocabulary = {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}, int64[1] last = {-1}, int64[4] shape = {1,1,-1,1},
         int64[3] wide = {1,1,8}>
        { ids = Cast<to = 1>(input_ids) now = Reshape(ids, shape) present_0_key = Concat<axis = 2>(past_0_key, now)
          p = Cast<to = 1>(position_ids) u = Unsqueeze(p, last) hidden = Tile(u, wide)
          d = Sub(u, vocabulary) sq = Mul(d, d) logits = Neg(sq) }""",
    "predictor": """m (float[1,1,8] inputs_embeds, int64 group, float[1,1,P,1] past_0_key)
           => (float[1,1,64] logits, float[1,1,8] code_embedding, float[1,1,T,1] present_0_key)
        <int64[3] wide = {1,1,8}, int64[4] shape = {1,1,1,1}, int64 two = {2}, float one = {1.0}, float start = {0.0},
         float end = {64.0}>
        { mean = ReduceMean<axes = [2]>(inputs_embeds) now = Reshape(mean, shape)
          present_0_key = Concat<axis = 2>(past_0_key, now) size = Shape(past_0_key) past = Gather(size, two)
          off = Sub(past, group) offf = Cast<to = 1>(off) next = Add(mean, one) code = Add(next, offf)
          code_embedding = Tile(code, wide) vocabulary = Range(start, end, one)
          d = Sub(code, vocabulary) sq = Mul(d, d) logits = Neg(sq) }""",
    "step_embedder": """m (int64[1,1,4] codes, float[1,1,8] text) => (float[1,1,8] inputs_embeds) <int64[1] last = {-1}>
        { f = Cast<to = 1>(codes) sum = ReduceSum(f, last) inputs_embeds = Add(sum, text) }""",
    "mean_talker": """m (float[1,S,8] inputs_embeds, float[1,1,P,1] past_0_key)
           => (float[1,S,64] logits, float[1,S,8] hidden, float[1,1,T,1] present_0_key)
        <int64[3] wide = {1,1,8}, int64[4] shape = {1,1,-1,1}, float one = {1.0}, float start = {0.0}, float end = {64.0}>
        { mean = ReduceMean<axes = [2]>(inputs_embeds) now = Reshape(mean, shape)
          present_0_key = Concat<axis = 2>(past_0_key, now) hidden = Tile(mean, wide) vocabulary = Range(start, end, one)
          d = Sub(mean, vocabulary) sq = Mul(d, d) logits = Neg(sq) }""",
    "prefill": """m (int64[1,L] text_ids) => (float[1,2,8] prefix, float[1,2,8] trailing)
        <int64[3] shape = {1,2,8}, int64[1] last = {-1}, float[1,2,1] rows = {1,2}, float[1,2,8] none = {
         0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}>
        { f = Cast<to = 1>(text_ids) sum = ReduceSum(f, last) prefix = Expand(sum, shape) trailing = Add(rows, none) }""",
    # Vision: the picture's features stand in for the placeholder 7; another token t is a one in place t mod 4.
    "eye": """m (float[1,3,2,2] pixel_values) => (float[1,1,4] image_features) <float[1,1,4] place = {0,0,0,1}>
        { level = ReduceMean<keepdims = 0>(pixel_values) image_features = Mul(place, level) }""",
    "vision_embedder": """m (int64[1,S] input_ids, float[1,1,4] image_features) => (float[1,S,4] inputs_embeds)
        <float[8,4] table = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1, 1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,0}, int64 seven = {7},
         int64[1] last = {-1}>
        { e = Gather(table, input_ids) is = Equal(input_ids, seven) f = Cast<to = 1>(is) u = Unsqueeze(f, last)
          add = Mul(u, image_features) inputs_embeds = Add(e, add) }""",
    # A one in place i asks for token (i + 5) mod 8.
    "vision_talker": """m (float[1,S,4] inputs_embeds, float[1,1,P,4] past_0_key)
           => (float[1,S,8] logits, float[1,1,T,4] present_0_key)
        <float[4,8] next = {0,0,0,0,0,1,0,0, 0,0,0,0,0,0,1,0, 0,0,0,0,0,0,0,1, 1,0,0,0,0,0,0,0}, int64[1] first = {1}>
        { now = Unsqueeze(inputs_embeds, first) present_0_key = Concat<axis = 2>(past_0_key, now)
          logits = MatMul(inputs_embeds, next) }""",
    # The next token is t + 1, and 3 more when the token ids and the embedder's second output agree.
    "double_embedder": """m (int64[1,S] input_ids) => (float[1,S,1] inputs_embeds, float[1,S,1] aux) <int64[1] last = {-1}>
        { f = Cast<to = 1>(input_ids) inputs_embeds = Unsqueeze(f, last) aux = Unsqueeze(f, last) }""",
    "double_talker": """m (float[1,S,1] inputs_embeds, float[1,S,1] aux, int64[1,S] input_ids)  => (float[1,S,8] logits)
        <float[8] vocabulary = {0,1,2,3,4,5,6,7}, int64[1] last = {-1}, float one = {1.0}, float three = {3.0},
         float eight = {8.0}>
        { f = Cast<to = 1>(input_ids) u = Unsqueeze(f, last) same = Equal(u, aux) s = Cast<to = 1>(same)
          more = Mul(s, three) a = Add(inputs_embeds, one) b = Add(a, more) t = Mod<fmod = 1>(b, eight)
          d = Sub(t, vocabulary) sq = Mul(d, d) logits = Neg(sq) }""",
    # Three position axes, two caches, two recurrent states that grow by 1 and by 2 in each of their two places: the token
    # is the sum of the last positions and of the states, plus what the caches' lengths differ from each other and from
    # the first position.
    "multi_axis": """m (int64[1,S] input_ids, int64[3,1,S] position_ids, float[1,1,P,1] past_3_key, float[1,1,Q,1] past_11_key,
           float[1,2] state_a, float[1,1,2] state_b)
           => (float[1,32] logits, float[1,1,T,1] present_3_key, float[1,1,U,1] present_11_key, float[1,2] new_a,
           float[1,1,2] new_b)
        <int64[4] shape = {1,1,-1,1}, float one = {1.0}, float two = {2.0}, int64[1] axis = {2}, int64[1] minus = {-1},
         int64[1] end = {99999}, int64 third = {2}, int64[1] zeros = {0}, int64[1] ones = {1}, float start = {0.0},
         float stop = {32.0}>
        { ids = Cast<to = 1>(input_ids) now = Reshape(ids, shape) present_3_key = Concat<axis = 2>(past_3_key, now)
          present_11_key = Concat<axis = 2>(past_11_key, now) new_a = Add(state_a, one) new_b = Add(state_b, two)
          p = Slice(position_ids, minus, end, axis) ps = ReduceSum<keepdims = 0>(p) pf = Cast<to = 1>(ps)
          sa = ReduceSum<keepdims = 0>(state_a) sb = ReduceSum<keepdims = 0>(state_b)
          size3 = Shape(past_3_key) n3 = Gather(size3, third) size11 = Shape(past_11_key) n11 = Gather(size11, third)
          differ = Sub(n3, n11) b = Slice(position_ids, zeros, ones, axis) bm = ReduceMax<keepdims = 0>(b)
          early = Sub(n3, bm) both = Add(differ, early) bf = Cast<to = 1>(both)
          x = Add(pf, sa) y = Add(x, sb) token = Add(y, bf) vocabulary = Range(start, stop, one)
          d = Sub(vocabulary, token) sq = Mul(d, d) neg = Neg(sq) logits = Unsqueeze(neg, zeros) }""",
    "plus_one": """m (float[1] x) => (float[1] y) <float one = {1.0}> { y = Add(x, one) }""",
}


def write_models(folder: Path) -> Path:
    """Write every model as NAME.onnx; returns the folder. Ports such as past_0_key become past.0.key, as exporters do."""
    for name, text in MODELS.items():
        model = onnx.parser.parse_model(HEAD + text)
        onnx.checker.check_model(model)
        # The text format knows no dots in names; both spellings have the same length, so the bytes stay well formed.
        data = re.sub(rb"(past|present)_(\d+)_(key|value)", rb"\1.\2.\3", model.SerializeToString())
        (folder / f"{name}.onnx").write_bytes(data)
    return folder

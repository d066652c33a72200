"""Denoise loops over the tiny models. Values: pipeline vectors of the reference project (its own tests), or by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.events import StepFinished
from nodes.schedulers.sampler import DenoiseCall, Sampling, SamplingJob, scheduler
from tests.engine.kit import engine, values, workflow
from tests.topology.kit import Run, component

CONDITION = [1.0, 2.0, 3.0, 4.0]


def tensor(values: list[float]) -> tuple[str, dict[str, Any]]:
    return "ListToTensor", {"items": [values]}


def halving(**loop: Any) -> dict[str, Any]:
    """(sample + cond) / 2 from a sample of zeros."""
    return {
        "zeros": tensor([0.0] * 4),
        "cond": tensor(CONDITION),
        "loop": ("DenoiseLoop", {"latent": "->zeros.tensor", "prediction": "->unet.denoised", **loop}),
        "unet": component("halving", sample="->loop.sample", cond="->cond.tensor"),
        "out": ("Collect", {"value": "->loop.latent"}),
    }


@pytest.mark.parametrize(("steps", "factor"), [(3, 7 / 8), (2, 3 / 4), (1, 1 / 2)])
def test_a_loop_without_a_scheduler_feeds_its_prediction_back(run: Run, steps: int, factor: float) -> None:
    (latent,) = run(**halving(steps=steps))
    assert latent[0].tolist() == [factor * value for value in CONDITION]


def test_what_stands_behind_the_loop_runs_once_after_it(run: Run) -> None:
    nodes = halving(steps=3) | {
        "vae": component("double_plus_one", z="->loop.latent"),
        "out": ("Collect", {"value": "->vae.image"}),
    }
    (image,) = run(**nodes)
    assert image[0].tolist() == [2.75, 4.5, 6.25, 8.0]


@pytest.mark.parametrize("lanes", ["separate", "batched"])
def test_guidance_of_two_conditions_at_once(run: Run, lanes: str) -> None:
    """s + a + b with a = 1, b = 10 against zeros, cfg 2: 0 + 2 * 11 = 22."""
    nodes = {
        "zeros": tensor([0.0] * 4),
        "a": tensor([1.0] * 4),
        "b": tensor([10.0] * 4),
        "pair_a": ("GuidancePair", {"positive": "->a.tensor", "negative": "->zeros.tensor"}),
        "pair_b": ("GuidancePair", {"positive": "->b.tensor", "negative": "->zeros.tensor"}),
        "loop": ("DenoiseLoop", {"latent": "->zeros.tensor", "prediction": "->unet.denoised", "steps": 1, "cfg": 2.0}),
        "unet": component(
            "two_conditions", sample="->loop.sample", cond_a="->pair_a.pair", cond_b="->pair_b.pair", lanes=lanes
        ),
        "out": ("Collect", {"value": "->loop.latent"}),
    }
    (latent,) = run(**nodes)
    assert latent[0].tolist() == [22.0] * 4


def test_guidance_with_one_condition_paired_and_one_shared(run: Run) -> None:
    """cond = a + b = 3 + 10, uncond = 1 + 10, cfg 3, from 0: 11 + 3 * (13 - 11) = 17, either way."""
    for lanes in ("separate", "batched"):
        nodes = {
            "zeros": tensor([0.0] * 4),
            "a": tensor([3.0] * 4),
            "u": tensor([1.0] * 4),
            "b": tensor([10.0] * 4),
            "pair": ("GuidancePair", {"positive": "->a.tensor", "negative": "->u.tensor"}),
            "loop": (
                "DenoiseLoop",
                {"latent": "->zeros.tensor", "prediction": "->unet.denoised", "steps": 1, "cfg": 3.0},
            ),
            "unet": component(
                "two_conditions", sample="->loop.sample", cond_a="->pair.pair", cond_b="->b.tensor", lanes=lanes
            ),
            "out": ("Collect", {"value": "->loop.latent"}),
        }
        assert run(**nodes)[0][0].tolist() == [17.0] * 4


@pytest.mark.parametrize("lanes", ["separate", "batched"])
@pytest.mark.parametrize(
    ("uncond", "cond", "cfg", "expected"), [(0.0, 2.0, 2.0, 4.0), (1.0, 2.0, 2.0, 3.0), (5.0, 2.0, 0.0, 5.0)]
)
def test_guidance_is_the_closed_form(
    run: Run, lanes: str, uncond: float, cond: float, cfg: float, expected: float
) -> None:
    """uncond + cfg * (cond - uncond), the denoiser giving its condition back."""
    nodes = {
        "zeros": tensor([0.0] * 4),
        "c": tensor([cond] * 4),
        "u": tensor([uncond] * 4),
        "pair": ("GuidancePair", {"positive": "->c.tensor", "negative": "->u.tensor"}),
        "loop": (
            "DenoiseLoop",
            {"latent": "->zeros.tensor", "prediction": "->unet.denoised", "steps": 1, "cfg": float(cfg)},
        ),
        "unet": component("only_condition", sample="->loop.sample", cond="->pair.pair", lanes=lanes),
        "out": ("Collect", {"value": "->loop.latent"}),
    }
    assert run(**nodes)[0][0].tolist() == [expected] * 4


def test_a_supplied_negative_condition_takes_part(run: Run) -> None:
    """(s + c) / 2 from 0 with c = 2 against 1, cfg 2: 0.5 + 2 * (1 - 0.5) = 1.5."""
    nodes = halving(steps=1, cfg=2.0) | {
        "cond": tensor([2.0] * 4),
        "uncond": tensor([1.0] * 4),
        "pair": ("GuidancePair", {"positive": "->cond.tensor", "negative": "->uncond.tensor"}),
        "unet": component("halving", sample="->loop.sample", cond="->pair.pair"),
    }
    assert run(**nodes)[0][0].tolist() == [1.5] * 4


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ({"steps": 3, "timesteps": [10.0, 20.0, 30.0]}, 60.0),
        ({"steps": 3}, 3.0),
        ({"steps": 4, "timesteps": [10.0, 20.0, 30.0, 40.0], "start_step": 2}, 70.0),
    ],
)
def test_the_denoiser_sees_explicit_timesteps_or_the_step_number(
    run: Run, loop: dict[str, Any], expected: float
) -> None:
    """s <- s + t from 0 adds up the timesteps."""
    nodes = {
        "zeros": tensor([0.0] * 4),
        "loop": ("DenoiseLoop", {"latent": "->zeros.tensor", "prediction": "->unet.denoised", **loop}),
        "unet": component("adds_timestep", sample="->loop.sample", t="->loop.timestep"),
        "out": ("Collect", {"value": "->loop.latent"}),
    }
    assert run(**nodes)[0][0].tolist() == [expected] * 4


@pytest.mark.parametrize(("output", "factor"), [("latent", 0.75), ("latent_y", 0.25)])
def test_two_tensors_are_carried_side_by_side(run: Run, output: str, factor: float) -> None:
    """x <- (x + c) / 2, y <- (y + x) / 2, two steps from zeros."""
    nodes = {
        "zeros": tensor([0.0] * 4),
        "cond": tensor(CONDITION),
        "loop": (
            "DenoiseLoop",
            {
                "extra_samples": "y",
                "steps": 2,
                "latent": "->zeros.tensor",
                "latent_y": "->zeros.tensor",
                "prediction": "->unet.x_next",
                "prediction_y": "->unet.y_next",
            },
        ),
        "unet": component("two_states", x="->loop.sample", y="->loop.sample_y", cond="->cond.tensor"),
        "out": ("Collect", {"value": f"->loop.{output}"}),
    }
    assert run(**nodes)[0][0].tolist() == [factor * value for value in CONDITION]


@scheduler(kind="adding_test")
def adding(job: SamplingJob) -> Sampling:
    """The next sample is the sample plus the prediction."""
    x = job.latent
    for step in range(job.start_step, job.steps):
        x = x + (yield DenoiseCall(x, float(step), step, 0.0))
    return x


def test_a_scheduler_of_ones_own_leads_the_loop(models: Path, tmp_path: Path) -> None:
    """next = s + (s + c) / 2 from 0: c / 2, then c / 2 + 3/4 c = 1.25 c."""
    nodes = halving(steps=2, scheduler="->own.sampler") | {"own": (adding.node_type.name, {})}
    (latent,) = values(engine(tmp_path, adding, models=models).run(workflow(**nodes)))
    assert latent[0].tolist() == [1.25 * value for value in CONDITION]


@pytest.mark.parametrize("cfg", [1.0, 2.5])
@pytest.mark.parametrize("steps", [2, 4, 8])
def test_masked_diffusion_unmasks_every_token(run: Run, steps: int, cfg: float) -> None:
    """With cfg the scheduler brings the negative lane itself, the prompt masked; both lanes give the same here."""
    nodes = {
        "masks": ("ListToTensor", {"items": [[1, 1, 1, 1]]}),
        "scheduler": ("MaskedDiffusionScheduler", {"mask_token_id": 1}),
        "loop": (
            "DenoiseLoop",
            {
                "scheduler": "->scheduler.sampler",
                "latent": "->masks.tensor",
                "prediction": "->lm.logits",
                "steps": steps,
                "cfg": cfg,
            },
        ),
        "lm": component("constant_logits", input_ids="->loop.sample"),
        "out": ("Collect", {"value": "->loop.latent"}),
    }
    assert run(**nodes)[0].tolist() == [[2, 3, 4, 5]]


def test_two_steps_of_masked_diffusion_commit_the_two_surest_tokens_first(run: Run) -> None:
    nodes = {
        "masks": ("ListToTensor", {"items": [[1, 1, 1, 1]]}),
        "scheduler": ("MaskedDiffusionScheduler", {"mask_token_id": 1}),
        "loop": (
            "DenoiseLoop",
            {"scheduler": "->scheduler.sampler", "latent": "->masks.tensor", "prediction": "->lm.logits", "steps": 2},
        ),
        "lm": component("constant_logits", input_ids="->loop.sample"),
        "out": ("Collect", {"value": "->loop.sample"}),
    }
    assert [value.tolist() for value in run(**nodes)] == [[[1, 1, 1, 1]], [[2, 3, 1, 1]]]


def test_a_controlnet_beside_the_denoiser_runs_on_every_step(run: Run) -> None:
    """s <- s + s * hint from ones, hint 0, 1, 2, 3: (1 + hint) ** steps."""
    nodes = {
        "ones": tensor([1.0] * 4),
        "hint": tensor([0.0, 1.0, 2.0, 3.0]),
        "loop": ("DenoiseLoop", {"latent": "->ones.tensor", "prediction": "->unet.denoised", "steps": 3}),
        "control": component("control", sample="->loop.sample", hint="->hint.tensor"),
        "unet": component("controlled", sample="->loop.sample", residual="->control.residual"),
        "out": ("Collect", {"value": "->loop.latent"}),
    }
    assert run(**nodes)[0][0].tolist() == [1.0, 8.0, 27.0, 64.0]


def test_cfg_made_from_the_step_number(run: Run) -> None:
    """cond 1, uncond 0 and a denoiser that gives its condition: each sample is cfg = 2 + step, the last 2 + 3."""
    nodes = {
        "zeros": tensor([0.0] * 4),
        "ones": tensor([1.0] * 4),
        "pair": ("GuidancePair", {"positive": "->ones.tensor", "negative": "->zeros.tensor"}),
        "loop": (
            "DenoiseLoop",
            {"latent": "->zeros.tensor", "prediction": "->unet.denoised", "steps": 4, "cfg": "->formula.float"},
        ),
        "formula": ("MathExpression", {"expression": "2 + a", "a": "->loop.step"}),
        "unet": component("only_condition", sample="->loop.sample", cond="->pair.pair"),
        "out": ("Collect", {"value": "->loop.latent"}),
    }
    assert run(**nodes)[0][0].tolist() == [5.0] * 4


def test_a_guidance_rule_inside_the_body(run: Run) -> None:
    """The rule folds the pair itself (cfg 3 from 1 to 2 is 4), so the loop's own cfg stays at 1."""
    nodes = {
        "zeros": tensor([0.0] * 4),
        "c": tensor([2.0] * 4),
        "u": tensor([1.0] * 4),
        "pair": ("GuidancePair", {"positive": "->c.tensor", "negative": "->u.tensor"}),
        "loop": ("DenoiseLoop", {"latent": "->zeros.tensor", "prediction": "->rule.prediction", "steps": 2}),
        "unet": component("only_condition", sample="->loop.sample", cond="->pair.pair"),
        "rule": ("GuidanceCombine", {"prediction": "->unet.denoised", "cfg": 3.0}),
        "out": ("Collect", {"value": "->loop.latent"}),
    }
    assert run(**nodes)[0][0].tolist() == [4.0] * 4


def test_rescaled_guidance_has_the_contrast_of_the_positive_lane(run: Run) -> None:
    """Rescale 1: the standard deviation of the result is that of the positive lane (Lin et al. 2023, section 3.4)."""
    cond, uncond = [1.0, 2.0, 3.0, 6.0], [0.5, 0.1, -1.0, 2.0]
    nodes = {
        "zeros": tensor([0.0] * 4),
        "c": tensor(cond),
        "u": tensor(uncond),
        "pair": ("GuidancePair", {"positive": "->c.tensor", "negative": "->u.tensor"}),
        "loop": ("DenoiseLoop", {"latent": "->zeros.tensor", "prediction": "->rule.prediction", "steps": 1}),
        "unet": component("only_condition", sample="->loop.sample", cond="->pair.pair"),
        "rule": ("GuidanceCombine", {"prediction": "->unet.denoised", "cfg": 5.0, "mode": "rescale", "rescale": 1.0}),
        "out": ("Collect", {"value": "->loop.latent"}),
    }
    (latent,) = run(**nodes)
    guided = np.array(uncond) + 5 * (np.array(cond) - np.array(uncond))
    assert latent[0] == pytest.approx(guided * np.std(cond) / np.std(guided), rel=1e-6)


def test_a_tap_records_every_step(run: Run) -> None:
    nodes = halving(steps=3) | {"out": ("Collect", {"value": "->unet.denoised"})}
    nodes["end"] = ("Collect", {"value": "->loop.latent"})
    assert [value[0, 3].tolist() for value in run(**nodes)] == [2.0, 3.0, 3.5]


@pytest.mark.parametrize(("cfg", "calls"), [(1.0, 3), (2.0, 6)])
def test_cfg_1_costs_one_lane(models: Path, tmp_path: Path, cfg: float, calls: int, monkeypatch: Any) -> None:
    """Session calls are counted where they are made."""
    from nodes.components import Component

    made: list[str] = []
    call = Component._call
    monkeypatch.setattr(Component, "_call", lambda self, feeds: (made.append(self._path.stem), call(self, feeds))[1])
    nodes = halving(steps=3, cfg=cfg) | {
        "pair": ("GuidancePair", {"positive": "->cond.tensor", "negative": "->zeros.tensor"}),
        "unet": component("halving", sample="->loop.sample", cond="->pair.pair"),
    }
    steps: list[int] = []

    def watch(event: Any) -> None:
        if isinstance(event, StepFinished):
            steps.append(event.step)

    values(engine(tmp_path, models=models).run(workflow(**nodes), watch))
    assert (made.count("halving"), steps) == (calls, [1, 2, 3])


def test_a_component_in_a_loop_in_a_loop_in_a_loop(run: Run) -> None:
    """x + 1 in the innermost of three loops of 2, 3 and 4 passes, from 0: 24."""
    nodes = {
        "zero": ("ListToTensor", {"items": [0.0]}),
        "outer": ("RepeatLoop", {"count": 2, "carry": "x", "x": "->zero.tensor", "next_x": "->middle.final_x"}),
        "middle": ("RepeatLoop", {"count": 3, "carry": "x", "x": "->outer.x", "next_x": "->inner.latent"}),
        "inner": ("DenoiseLoop", {"latent": "->middle.x", "prediction": "->add.y", "steps": 4}),
        "add": component("plus_one", x="->inner.sample"),
        "out": ("Collect", {"value": "->outer.final_x"}),
    }
    assert run(**nodes)[0].tolist() == [24.0]

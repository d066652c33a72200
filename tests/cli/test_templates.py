"""Every template runs, gives the same bytes twice, and is changed by its knobs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app.png import read_workflow
from tests.cli.kit import TEMPLATES, WORKFLOWS, node_id, ortloom

PICTURES = [name for name in TEMPLATES if name != "masked-diffusion"]


def run(template: str | Path, out: Path, *changes: str) -> Path:
    """Run a template; returns the file that its Save node wrote."""
    options = [part for change in changes for part in ("--set", change)]
    result = ortloom("run", template, "--out", out, "--json", *options)
    assert result.code == 0, result.err
    return Path(
        next(
            output["path"]
            for output in result.json["outputs"]
            if output["type"] in ("image", "text") and output["path"]
        )
    )


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"), np.int32)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_passes_the_check_and_names_its_loops(template: str) -> None:
    result = ortloom("check", template)
    assert (result.code, result.err) == (0, "")
    assert "ready to run" in result.out
    assert "repeats" in result.out


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_same_command_twice_gives_the_same_bytes(template: str, tmp_path: Path) -> None:
    first, second = run(template, tmp_path / "a"), run(template, tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size > 0


@pytest.mark.parametrize("template", PICTURES)
def test_a_picture_makes_itself_again(template: str, tmp_path: Path) -> None:
    picture = run(template, tmp_path / "a")
    assert np.array_equal(pixels(run(picture, tmp_path / "b")), pixels(picture))


LOOPS = {
    "text-to-image": ("Denoise", "Prompt", "Denoise.seed"),
    "image-to-image": ("Denoise", "Prompt", "Denoise.seed"),
    "inpainting": ("Denoise", "Prompt", "Denoise.seed"),
    "cfg-by-step": ("Denoise with cfg 3", "Prompt", "Denoise with cfg 3.seed"),
    "two-prompts": ("Denoise second", "Second prompt", "Seed.value"),
    "preview-every-step": ("Denoise", "Prompt", "Denoise.seed"),
}
"""The loop, the prompt and the seed of each template that draws."""


def knobs() -> list[tuple[str, str]]:
    """Return (template, change) for prompt, seed, steps, cfg and start_step of every template, and its own knobs."""
    found = [("inpainting", "Right half.x=0.25"), ("cfg-by-step", "cfg from 1 to 5.expression=1")]
    found += [("masked-diffusion", f"{change}") for change in ("Denoise.seed=5", "Scheduler.temperature=0")]
    found.append(("masked-diffusion", "Prompt.text=at night , the"))
    for template, (loop, prompt, seed) in LOOPS.items():
        changes = (f"{prompt}.text=owl", f"{seed}=1234", f"{loop}.steps=9", f"{loop}.cfg=1", f"{loop}.start_step=6")
        found += [(template, change) for change in changes]
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The output of every template as it is."""
    return {template: run(template, tmp_path_factory.mktemp("plain")) for template in TEMPLATES}


@pytest.mark.parametrize(("template", "change"), knobs())
def test_each_knob_changes_the_result_and_the_picture_remembers_it(
    template: str, change: str, plain: dict[str, Path], tmp_path: Path
) -> None:
    turned = run(template, tmp_path / "a", change)
    assert turned.read_bytes() != plain[template].read_bytes()
    if template in PICTURES:
        assert not np.array_equal(pixels(turned), pixels(plain[template]))
        assert np.array_equal(pixels(run(turned, tmp_path / "b")), pixels(turned))


def test_a_torch_seed_gives_another_picture_than_a_philox_seed(tmp_path: Path) -> None:
    philox, torch = (
        run("text-to-image", tmp_path / "a"),
        run("text-to-image", tmp_path / "b", "Denoise.noise_kind=torch"),
    )
    assert not np.array_equal(pixels(philox), pixels(torch))


def test_inpainting_keeps_the_half_that_is_not_masked(tmp_path: Path) -> None:
    """Outside of the mask the final latent is the picture's own: only the VAE's round trip and its blur remain."""
    result = pixels(run("inpainting", tmp_path))
    original = pixels(WORKFLOWS / "inputs" / "hamburger.png")
    kept, painted = np.abs(result - original)[:, :48].mean(), np.abs(result - original)[:, 80:].mean()
    assert kept < 8
    assert painted > 2 * kept


def test_a_preview_at_every_step_writes_one_picture_a_step(tmp_path: Path) -> None:
    result = ortloom("run", "preview-every-step", "--out", tmp_path, "--json", "--set", "Denoise.steps=4")
    previews = [output for output in result.json["outputs"] if output["type"] == "preview"]
    assert [output["step"] for output in previews] == [0, 1, 2, 3]
    assert all(Image.open(output["path"]).size == (128, 128) for output in previews)


def test_masked_diffusion_writes_words_and_shows_every_step(tmp_path: Path) -> None:
    result = ortloom("run", "masked-diffusion", "--out", tmp_path, "--json")
    texts = [output["value"] for output in result.json["outputs"] if output["type"] == "text"]
    assert len(texts) == 17
    assert texts[0].count("[MASK]") == 16
    assert texts[-1].startswith("at dawn")
    assert "[MASK]" not in texts[-1]


def test_json_says_what_was_written_how_long_it_took_and_what_was_loaded(tmp_path: Path) -> None:
    summary = ortloom("run", "text-to-image", "--out", tmp_path, "--json", "--set", "Denoise.steps=4").json
    (output,) = summary["outputs"]
    assert set(output) == {"node", "type", "path"}
    assert Path(output["path"]).is_file()
    assert summary["session_loads"] == 3
    assert summary["cached"] == []
    (steps,) = summary["timings"]["steps"].values()
    assert len(steps) == 4
    assert summary["timings"]["seconds"] >= sum(steps)


def test_a_set_may_name_a_node_by_id(tmp_path: Path) -> None:
    by_title = run("text-to-image", tmp_path / "a", "Prompt.text=owl")
    by_id = run("text-to-image", tmp_path / "b", "1.text=owl")
    assert np.array_equal(pixels(by_title), pixels(by_id))


def test_a_device_that_does_not_work_falls_back_and_says_so(tmp_path: Path) -> None:
    """This build of ONNX Runtime has no DirectML on Linux."""
    result = ortloom("run", "text-to-image", "--out", tmp_path, "--device", "directml", "--set", "Denoise.steps=2")
    assert result.code == 0
    assert "unet/model.onnx ran on CPUExecutionProvider (directml: " in result.err


def test_comfyuis_api_format_runs_with_slot_numbers_and_unknown_nodes_beside(tmp_path: Path) -> None:
    nodes = json.loads((WORKFLOWS / "text-to-image.json").read_text())["nodes"]
    nodes[node_id("text-to-image", "Save")]["inputs"]["image"] = [node_id("text-to-image", "To image"), 0]
    nodes["99"] = {"class_type": "SomebodyElsesNode", "inputs": {"x": 1}}
    (tmp_path / "api.json").write_text(json.dumps({"prompt": nodes, "client_id": "x"}))
    from_api = run(tmp_path / "api.json", tmp_path / "a")
    assert np.array_equal(pixels(from_api), pixels(run("text-to-image", tmp_path / "b")))
    assert "SomebodyElsesNode" in json.dumps(read_workflow(from_api))

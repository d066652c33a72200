"""Planning: the expected orders follow from the rules of the design by hand."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest

from app.graph.errors import WorkflowError
from app.graph.plan import Fold, Item, LoopPlan, plan
from tests.graph.wiring import graph


def shape(items: tuple[Item, ...]) -> list[Any]:
    """Return a plan as nested lists: a loop is [header, *body]."""
    return [[item.header, *shape(item.body)] if isinstance(item, LoopPlan) else item for item in items]


def problems_of(**links: str) -> list[Any]:
    with pytest.raises(WorkflowError) as caught:
        plan(graph(**links))
    return list(caught.value.problems)


def test_upstream_runs_before_inside_on_every_pass_and_downstream_after() -> None:
    text = graph(dec="a=L.result", unet="a=L.sample b=enc", L="start=noise back=unet", noise="", enc="")
    assert shape(plan(text).items) == ["noise", "enc", ["L", "unet"], "dec"]


def test_a_node_without_wires_to_a_loop_runs_once() -> None:
    assert shape(plan(graph(a="", b="a=a")).items) == ["a", "b"]


def test_a_loop_whose_sample_is_its_own_prediction_has_an_empty_body() -> None:
    assert shape(plan(graph(L="back=L.sample", end="a=L.result")).items) == [["L"], "end"]


def test_a_loop_without_feedback_still_runs_its_taps() -> None:
    (loop,) = plan(graph(L="", tap="a=L.sample")).items
    assert isinstance(loop, LoopPlan)
    assert (loop.body, loop.taps) == (("tap",), {"tap"})


def test_what_feeds_nothing_back_is_a_tap_and_the_rest_is_not() -> None:
    (loop,) = plan(graph(L="back=unet", unet="a=L.sample", small="a=unet", show="a=small")).items
    assert isinstance(loop, LoopPlan)
    assert loop.taps == {"small", "show"}
    assert set(loop.body) == {"unet", "small", "show"}


def test_a_controlnet_beside_the_denoiser_is_part_of_the_body() -> None:
    text = graph(L="back=unet", unet="a=L.sample b=control", control="a=L.sample b=hint", hint="")
    assert shape(plan(text).items) == ["hint", ["L", "control", "unet"]]


def test_loops_nest_to_any_depth() -> None:
    text = graph(
        L1="back=x1",
        x1="a=L2.result b=L1.sample",
        L2="start=L1.sample back=x2",
        x2="a=L3.result",
        L3="start=L2.sample back=x3",
        x3="a=L3.sample",
        end="a=L1.result",
    )
    assert shape(plan(text).items) == [["L1", ["L2", ["L3", "x3"], "x2"], "x1"], "end"]


def test_a_hundred_nested_loops_are_planned() -> None:
    depth = 100
    links = {f"L{level}": f"start=L{level - 1}.sample back=x{level}" for level in range(1, depth)}
    links["L0"] = "back=x0"
    links |= {f"x{level}": f"a=L{level + 1}.result b=L{level}.sample" for level in range(depth - 1)}
    links[f"x{depth - 1}"] = f"a=L{depth - 1}.sample"
    items = plan(graph(**links)).items
    for level in range(depth):
        loop = next(item for item in items if isinstance(item, LoopPlan))
        assert loop.header == f"L{level}"
        items = loop.body
    assert items == (f"x{depth - 1}",)


def test_loops_in_a_row_run_one_after_the_other() -> None:
    text = graph(M="", L2="start=L1.result back=y", y="a=L2.sample", L1="start=M back=x", x="a=L1.sample")
    assert shape(plan(text).items) == ["M", ["L1", "x"], ["L2", "y"]]


def test_an_inner_loop_that_only_watches_is_a_tap_of_the_outer_one() -> None:
    (outer,) = plan(graph(L1="back=x", x="a=L1.sample", L2="start=L1.sample back=y", y="a=L2.sample")).items
    assert isinstance(outer, LoopPlan)
    assert outer.taps == {"L2"}
    inner = next(item for item in outer.body if isinstance(item, LoopPlan))
    assert inner.taps == frozenset()


def test_the_formula_that_steers_cfg_runs_before_the_denoiser() -> None:
    """The denoiser stands first in the document; it must still wait for the guidance scale."""
    text = graph(unet="a=L.sample", formula="a=L.step", L="back=unet cfg=formula")
    assert shape(plan(text).items) == [["L", "formula", "unet"]]


def test_values_from_outside_may_enter_a_body() -> None:
    text = graph(L="back=x", x="a=L.sample b=early", early="", late="a=x")
    assert shape(plan(text).items) == ["early", ["L", "x", "late"]]


def test_a_cycle_without_a_loop_node_names_its_nodes_in_order() -> None:
    (problem,) = problems_of(a="a=c", b="a=a", c="a=b", outside="a=a")
    assert problem.code == "cycle_without_loop"
    assert "node a -> node b -> node c -> node a" in problem.message
    assert "outside" not in problem.message


def test_a_node_that_feeds_itself_is_a_cycle() -> None:
    (problem,) = problems_of(a="a=a")
    assert problem.code == "cycle_without_loop"


def test_two_cycles_are_both_reported() -> None:
    assert len(problems_of(a="a=b", b="a=a", c="a=d", d="a=c")) == 2


def test_loops_that_compete_for_a_circle_are_named() -> None:
    (problem,) = problems_of(L1="back=x", x="a=L2.sample", L2="start=L1.sample back=y", y="a=L2.sample")
    assert problem.code == "competing_loops"
    assert "node L1" in problem.message
    assert "node L2" in problem.message


def test_a_loop_whose_result_goes_into_its_own_body_cannot_be_a_header() -> None:
    (problem,) = problems_of(L="back=x", x="a=L.result b=L.sample")
    assert problem.code == "competing_loops"


def test_mixing_a_per_step_value_with_a_result_names_both_wires() -> None:
    (problem,) = problems_of(L="back=x", x="a=L.sample", mix="a=L.sample b=L.result")
    assert problem.code == "mixed_use"
    assert (problem.node, problem.input) == ("mix", "b")
    assert "a from sample of node L" in problem.message
    assert "b from result of node L" in problem.message


def test_mixing_through_other_nodes_is_found_too() -> None:
    (problem,) = problems_of(L="back=x", x="a=L.sample", after="a=L.result", mix="a=x b=after", innocent="a=mix")
    assert problem.code == "mixed_use"
    assert (problem.node, problem.input) == ("mix", "b")
    assert "out of node after" in problem.message


def test_mixing_the_steps_of_two_loops_is_an_error() -> None:
    (problem,) = problems_of(L1="back=x", x="a=L1.sample", L2="back=y", y="a=L2.sample", mix="a=x b=y")
    assert problem.code == "mixed_use"
    assert problem.node == "mix"


def test_a_per_step_value_of_an_inner_loop_cannot_close_the_outer_one() -> None:
    problems = problems_of(
        L1="back=x back2=y", x="a=L2.result", L2="start=L1.sample back=y", y="a=L2.sample", end="a=L1.result"
    )
    assert [(problem.code, problem.node, problem.input) for problem in problems] == [("mixed_use", "L1", "back2")]


def test_a_wire_from_inside_into_an_input_read_once_is_refused() -> None:
    (problem,) = problems_of(L="back=x start=x", x="a=L.sample")
    assert problem.code == "feedback_into_plain_input"
    assert (problem.node, problem.input) == ("L", "start")
    assert "back, back2, cfg" in problem.message


def test_folds_are_the_guidance_scales_behind_a_node() -> None:
    text = graph(L="back=unet cfg=formula", formula="a=L.step", unet="a=L.sample b=control", control="a=L.sample")
    folds = plan(text).folds
    assert folds["control"] == folds["unet"] == {Fold("L", "cfg")}


def test_a_fold_inside_the_body_counts_and_a_node_that_takes_the_pair_needs_both_lanes() -> None:
    folds = plan(graph(L="back=F", F="a=unet", unet="a=L.sample", M="a=L.sample")).folds
    assert folds["unet"] == {Fold("F", "cfg")}
    assert plan(graph(L="back2=unet", unet="a=L.sample")).folds["unet"] is None


def test_a_guidance_scale_made_from_the_prediction_itself_comes_too_late_to_save_a_lane() -> None:
    assert plan(graph(L="back=F", F="a=unet cfg=scale", scale="a=unet", unet="a=L.sample")).folds["unet"] is None


@pytest.mark.parametrize("kind", ["chain", "fan", "loops"])
def test_planning_time_grows_linearly(kind: str) -> None:
    """Ten times the nodes may take at most forty times the CPU time: quadratic work would take a hundred times."""

    def links(count: int) -> dict[str, str]:
        if kind == "chain":
            return {f"n{i}": f"a=n{i - 1}" if i else "" for i in range(count)}
        if kind == "fan":
            return {"n": "", **{f"n{i}": "a=n" for i in range(count)}}
        bodies = {f"x{i}": f"a=L{i}.sample" for i in range(count // 2)}
        return bodies | {f"L{i}": f"start=L{i - 1}.result back=x{i}" if i else "back=x0" for i in range(count // 2)}

    def seconds(count: int) -> float:
        text = graph(**links(count))
        best = float("inf")
        for _ in range(5):
            started = process_time()
            plan(text)
            best = min(best, process_time() - started)
        return best

    assert seconds(5000) < 40 * seconds(500)

"""The report's arithmetic and its verdicts."""

import pytest
from bench.goals import GOALS, Goal, Verdict, judge
from bench.session import Results, Sample
from bench.summary import best, median, percentile, ratio


def test_percentile_is_the_nearest_rank() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert percentile(values, 0.50) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values, 0.999) == 100
    assert percentile([7.0], 0.5) == 7


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError):
        percentile([], 0.5)


def test_median_of_an_even_count_is_the_mean_of_the_middle_two() -> None:
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5
    assert median([9.0, 1.0, 5.0]) == 5


def test_best_depends_on_the_direction() -> None:
    assert best([1.0, 3.0], higher_is_better=True) == 3
    assert best([1.0, 3.0], higher_is_better=False) == 1


def test_ratio_is_unknown_when_one_side_is() -> None:
    assert ratio(6.0, 4.0) == 1.5
    assert ratio(None, 4.0) is None
    assert ratio(6.0, None) is None
    assert ratio(6.0, 0.0) is None


@pytest.mark.parametrize(
    ("goal", "verdict", "measured"),
    [
        (Goal("a", "kafka", at_least=1.3), Verdict.PASS, 2.0),
        (Goal("a", "kafka", at_most=1.0), Verdict.BEHIND, 2.0),
        (Goal("a", "limit:write", at_least=0.7), Verdict.BEHIND, 0.5),
        (Goal("a", "row:b", at_least=0.8), Verdict.PASS, 0.8),
        (Goal("b", "number", at_most=300), Verdict.PASS, 250.0),
        (Goal("b", "kafka", at_least=1.0), Verdict.UNKNOWN, None),
        (Goal("absent", "number", at_least=1), Verdict.UNKNOWN, None),
    ],
)
def test_a_goal_is_judged_against_what_it_names(goal: Goal, verdict: Verdict, measured: float | None) -> None:
    figures = {"a": {"penstock": 200.0, "kafka": 100.0}, "b": {"penstock": 250.0}}
    judged = judge(goal, figures, {"write": 400.0})
    assert (judged.verdict, judged.measured) == (verdict, measured)


def test_every_goal_has_exactly_one_bound() -> None:
    assert all((goal.at_least is None) != (goal.at_most is None) for goal in GOALS)


def test_figures_are_medians_over_rounds() -> None:
    samples = [Sample("a", "kafka", n, value) for n, value in enumerate([1.0, 9.0, 2.0])]
    assert Results(samples).figures() == {"a": {"kafka": 2.0}}


def test_a_run_with_lost_records_gives_no_figure() -> None:
    samples = [Sample("a", "kafka", 1, 900.0, note="3 errors"), Sample("a", "kafka", 2, None, note="hung")]
    assert Results(samples).figures() == {}

"""The table of a study: what is printed of means and differences, and where seeds are missing."""

from __future__ import annotations

import io
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from denskit.cli import app
from denskit.evaluation.study.config import ENERGY, FORCES, STRESS, StudyConfig, changed, load_study
from denskit.evaluation.study.data import require_given
from denskit.evaluation.study.results import Column, Found, Results, tabulate
from denskit.evaluation.study.statistics import Mean, decimals
from denskit.evaluation.study.tables import as_latex, as_markdown, as_rich, published_table, text_of
from denskit.presets import study_names


def results_of(forces: Mapping[str, Mapping[int, float]], energy: float = 5.0) -> Results:
    """Of the forces' errors by variant and seed; energies of the first variant are ``energy``, then larger by 1."""
    found = [
        Found(variant=name, values={}, seed=seed, errors={"test": {ENERGY: energy + place, FORCES: error}},
              seconds=60.0, parameters=6, folder=Path("x"))
        for place, (name, errors) in enumerate(forces.items()) for seed, error in errors.items()
    ]  # fmt: skip
    return tabulate("t", found, list(forces))


def printed(results: Results, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(*as_rich(results, width), sep="\n")
    return console.export_text()


@pytest.mark.parametrize(("value", "error", "text"), [
    (25.21, 0.41, "25.2 ± 0.4"), (1.683, 0.024, "1.68 ± 0.02"), (1.7, 0.06, "1.70 ± 0.06"),
    (9.7, 2e-3, "9.700 ± 0.002"), (9.7, 1e-5, "9.700 ± 0.000"), (9.7, 0.0, "9.7 ± 0.0"), (9.7, 1e-16, "9.7 ± 0.0"),
    (0.169, 0.017, "0.169 ± 0.017"), (12.0, math.nan, "12.0"), (206.0, 14.0, "206.0 ± 14.0"),
])  # fmt: skip
def test_the_standard_error_has_a_digit(value: float, error: float, text: str) -> None:
    mean = Mean(value, error, 3)
    assert text_of(mean, decimals([mean])) == text


def test_the_means_of_a_point_have_the_same_decimals() -> None:
    """And those that print alike are the best together."""
    results = results_of(
        {"a": {0: 1.67, 1: 1.65, 2: 1.73}, "b": {0: 1.4, 1: 2.0, 2: 1.64}, "c": {0: 1.7, 1: 1.7, 2: 1.73}}
    )
    text = as_markdown(results)
    assert "| **1.68 ± 0.02** |" in text and "| **1.68 ± 0.17** |" in text and "| 1.71 ± 0.01 |" in text
    assert results.best(Column("test", FORCES)) == {("", "a"), ("", "b")}


def test_a_difference_of_zero_has_no_sign() -> None:
    equal = {seed: 1000.0 + seed for seed in range(3)}
    text = as_markdown(results_of({"a": equal, "b": {seed: error - 0.1 for seed, error in equal.items()}}))
    assert "| 0.0 % [0.0, 0.0] |" in text and "-0.0" not in text


class TestMissingSeeds:
    @pytest.mark.parametrize(("seeds", "remark"), [
        ([(0, 1), (1, 2)], "Seeds are missing: 'a' lacks 2; 'b' lacks 0 and has 1 pair in Δ."),
        ([(0, 1), (2, 3)], "Seeds are missing: 'a' lacks 2, 3; 'b' lacks 0, 1."),
        ([(0,), (0, 1)], "Seeds are missing: 'a' lacks 1; 'b' has 1 pair in Δ."),
        ([(0, 1, 2), (0, 1), (0, 1, 2)], "Seeds are missing: 'b' lacks 2 and has 2 pairs in Δ."),
        ([(0, 1), (0, 1)], ""),
    ])  # fmt: skip
    def test_they_are_told_below_the_table(self, seeds: Sequence[Sequence[int]], remark: str) -> None:
        forces = {name: {seed: 10.0 + seed for seed in own} for name, own in zip("abc", seeds, strict=False)}
        results = results_of(forces)
        for text in (as_markdown(results), printed(results, 400)):
            assert remark in text and ("Seeds are missing" in text) == bool(remark)

    def test_bold_and_difference_agree(self) -> None:
        results = results_of({"a": {0: 10.0, 1: 12.0}, "b": {1: 11.0, 2: 13.0}})
        assert "**" not in as_markdown(results) and "| -8.3 % |" in as_markdown(results)

    def test_the_terminal_counts_seeds(self) -> None:
        lines = printed(results_of({"a": {0: 10.0}, "b": {0: 11.0, 1: 13.0}}), 100).splitlines()
        cells = [[cell.strip() for cell in line.split("│")[1:3]] for line in lines if line.startswith("│")]
        assert cells == [["a", "1"], ["b", "2"]]


class TestPublishedNumbers:
    """A dry run shows them, also where the data are not at hand, and says what to give."""

    def test_of_the_mean_of_several_files(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(app, ["study", "oc20/2m", "--dry-run", "-o", str(tmp_path)], env={"COLUMNS": "200"})
        assert done.exit_code == 1
        cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.output.splitlines()]
        assert ["EquiformerV2 + DeNS, 30 epochs", "251", "18.02"] in cells, done.output
        assert "no data given" in done.output and "data.train=s2ef/2M/train" in done.output
        assert "tests.ood_both=s2ef/all/val_ood_both" in done.output

    def test_by_axes_and_by_test(self) -> None:
        study = StudyConfig(
            title="[t]", variants={"a": {}, "b": {}}, axes={"training.lr": (1, 2)},
            published={"a": {"1": 7.5, "2": {"ood": [3, 4], "simulation": {"stability_ps": 300}}}, "b": {}},
        )  # fmt: skip
        console = Console(width=200, file=io.StringIO(), record=True)
        console.print(published_table(study))
        text = console.export_text()
        assert "[t]: published" in text
        cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
        assert cells == [["lr 1", "a", "7.5", "-", "-", "-"], ["lr 2", "a", "-", "3", "4", "300"]]

    @pytest.mark.parametrize("given", ["data.path=x.xyz", "data.train=x"])
    def test_given_data_are_enough(self, given: str) -> None:
        require_given(changed(load_study("oc22/main"), [given]))

    @pytest.mark.parametrize("name", [name for name in study_names() if name.startswith("oc")])
    def test_what_a_study_needs_is_taken_as_it_is_printed(self, name: str) -> None:
        study = load_study(name)
        with pytest.raises(ValueError, match="such as data.train=") as failed:
            require_given(study)
        words = shlex.split(str(failed.value).partition("such as ")[2])
        grown = changed(study, words)
        require_given(grown)
        assert {key for key in study.needs if key.startswith("data.")} <= grown.settings.keys()
        assert grown.tests.keys() == {key.removeprefix("tests.") for key in study.needs if key.startswith("tests.")}


def test_crystals_have_a_difference_of_the_stress() -> None:
    found = [
        Found(variant=name, values={}, seed=seed, seconds=60.0, parameters=6, folder=Path("x"),
              errors={"test": {ENERGY: 5.0 + seed, FORCES: 20.0, STRESS: (2.0 + seed) * factor}})
        for name, factor in (("plain", 1.0), ("DeNS", 1.5)) for seed in range(2)
    ]  # fmt: skip
    results = tabulate("t", found, ["plain", "DeNS"])
    assert "Δ stress (%)" in as_markdown(results) and "| +50.0 % [" in as_markdown(results)
    narrow = " ".join(printed(results, 80).split())
    assert "Δ energy (%) and Δ stress (%) need a wider terminal; table.md (--output) has it." in narrow
    assert "+50.0 [" in printed(results, 200)


def test_energies_have_a_difference_where_the_terminal_is_wide_enough() -> None:
    seeds = range(3)
    results = results_of({name: {seed: 10.0 + seed + len(name) for seed in seeds} for name in ("plain", "with DeNS")})
    assert "| Δ energy (%) | Δ forces (%) |" in as_markdown(results) and "+20.0 % [+20.0, +20.0]" in as_markdown(
        results
    )
    assert r"$\Delta$ energy (\%) & $\Delta$ forces (\%)" in as_latex(results)
    wide, narrow = printed(results, 100), printed(results, 80)
    assert "+20.0 [+20.0, +20.0]" in wide and "wider terminal" not in wide
    assert max(map(len, wide.splitlines())) <= 100
    assert "+20.0" not in narrow and "Δ forces" in narrow
    assert "Δ energy (%) needs a wider terminal; table.md (--output) has it." in " ".join(narrow.split())

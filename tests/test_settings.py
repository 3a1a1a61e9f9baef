"""Nested settings as dotted keys, and what is wrong with settings in words."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from denskit.evaluation.study.config import StudyConfig
from denskit.settings import Settings, dotted, problems_in
from denskit.simulation.relaxation.settings import RelaxationSettings


def test_nested_entries_have_dotted_keys() -> None:
    nested = {"a": 1, "b": {"c": {}, "d.e": {2: None}}, "f": [{"g": 3}, {"h": 4}], "i": [5]}
    plain = {"a": 1, "b.c": {}, "b.d.e.2": None, "f": [{"g": 3}, {"h": 4}], "i": [5]}
    assert dict(dotted(nested)) == plain
    assert dict(dotted(nested, lists=True)) == {**{k: v for k, v in plain.items() if k != "f"}, "f.0.g": 3, "f.1.h": 4}


@pytest.mark.parametrize(
    ("cls", "values", "said"),
    [
        (StudyConfig, {"title": "t", "variants": {50: {}}}, "variants.50: 50: wanted a text"),
        (
            StudyConfig,
            {"title": "t", "variants": {"a": {}}, "simulation": {"foo": 1}},
            "simulation.foo: no such setting",
        ),
        (StudyConfig, {"title": "t", "variants": {"float": 3}}, "variants.float: 3: wanted a table"),
        (StudyConfig, {"title": "t", "variants": {"a": {}}, "simulation": {"int": 1}}, "simulation.int: no such"),
        (
            StudyConfig,
            {"title": "t", "variants": {"a": {}}, "published": {"float": {"": "y"}}},
            "published.float.: 'y': wanted a number, or a list [VALUE, ...], or a table {KEY: VALUE, ...}",
        ),
        (RelaxationSettings, {"optimizer": {"name": "foo"}}, "optimizer: {'name': 'foo'}: wanted lbfgs, fire"),
        (RelaxationSettings, {"optimizer": 3}, "optimizer: 3: wanted a table {KEY: VALUE, ...}"),
        (RelaxationSettings, {"optimizer": {"max_step": 1}}, "optimizer: {'max_step': 1}: wanted a table with a name"),
    ],
)
def test_wrong_settings_are_named_as_they_are_written(cls: type[Settings], values: dict, said: str) -> None:
    with pytest.raises(ValidationError) as error:
        cls.model_validate(values)
    assert said in problems_in(error.value)

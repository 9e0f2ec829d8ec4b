"""Generators: going back to an earlier state is noticed, drawing on is not."""

from __future__ import annotations

import pytest
import torch

from treeplay.trace.restore.randomness import TrackedGenerators, generator_in


def test_drawing_on_is_no_change() -> None:
    with TrackedGenerators([]) as generators:
        for _ in range(3):
            assert not generators.was_set(torch.default_generator)
            generators.draw(torch.default_generator)
        assert not generators.any_was_set()


def test_an_earlier_state_put_back_is_noticed() -> None:
    own = torch.Generator()
    with TrackedGenerators([own]) as generators:
        before = own.get_state()
        generators.draw(own)
        own.set_state(before)
        assert generators.was_set(own) and generators.any_was_set()


def test_seeding_is_noticed_and_everything_is_put_back() -> None:
    own = torch.Generator().manual_seed(3)
    states = torch.get_rng_state(), own.get_state()
    with TrackedGenerators([own]) as generators:
        torch.manual_seed(5)
        generators.draw(own)
        assert generators.was_set(torch.default_generator) and not generators.was_set(own)
    assert torch.equal(torch.get_rng_state(), states[0]) and torch.equal(own.get_state(), states[1])


def test_the_generator_of_an_operator_is_the_one_it_is_given() -> None:
    own = torch.Generator()
    cpu = torch.device("cpu")
    assert generator_in([1, own, None], cpu) is own and generator_in([1], cpu) is torch.default_generator
    assert not TrackedGenerators([]).is_known(own) and TrackedGenerators([own]).is_known(own)


def test_numbers_drawn_elsewhere_are_no_change() -> None:
    with TrackedGenerators([]) as generators:
        torch.randn(2)
        generators.draw(torch.default_generator)
        torch.randn(2)
        assert not generators.any_was_set()


def test_seeding_as_before_is_noticed_too() -> None:
    torch.manual_seed(3)
    with TrackedGenerators([]) as generators:
        torch.manual_seed(3)
        assert generators.was_set(torch.default_generator)


def test_seeds_that_cannot_all_be_given_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    own = torch.Generator().manual_seed(3)
    states = torch.get_rng_state(), own.get_state()
    draw = TrackedGenerators.draw

    def fail(self: TrackedGenerators, generator: torch.Generator) -> None:
        if generator is own:
            raise MemoryError
        draw(self, generator)

    monkeypatch.setattr(TrackedGenerators, "draw", fail)
    with pytest.raises(MemoryError), TrackedGenerators([own]):
        pass
    assert torch.equal(torch.get_rng_state(), states[0]) and torch.equal(own.get_state(), states[1])

import gc
import weakref

import pytest
import torch

from treeplay.observe import WeakIdDict


class Key:
    """Equal to every other key, and not hashable."""

    __hash__ = None

    def __eq__(self, other):
        return True


def test_O38_equal_unhashable_keys_are_different_entries():
    table = WeakIdDict()
    a, b = Key(), Key()
    table[a], table[b] = 1, 2
    assert (table[a], table[b], len(table)) == (1, 2, 2)
    assert table.values() == [1, 2]


def test_O38_get_default_contains_and_clear():
    table = WeakIdDict()
    a, b = Key(), Key()
    table[a] = 1
    assert a in table and b not in table
    assert (table.get(a), table.get(b), table.get(b, 7)) == (1, None, 7)
    assert (table.setdefault(a, 9), table.setdefault(b, 9), table[b]) == (1, 9, 9)
    with pytest.raises(KeyError):
        table[Key()]
    del table[a]
    with pytest.raises(KeyError):
        del table[a]
    table.clear()
    assert len(table) == 0 and b not in table


def test_O38_an_entry_goes_with_its_key():
    table = WeakIdDict()
    a, value = Key(), Key()
    table[a] = value
    watch = weakref.ref(value)
    del a, value
    gc.collect()
    assert len(table) == 0
    assert watch() is None


def test_O38_a_new_object_at_an_old_address_is_a_stranger():
    """An address is used again only by luck, so the stale entry is put there by hand."""
    table = WeakIdDict()
    old, new = Key(), Key()
    table[old] = "old"
    table._entries[id(new)] = table._entries[id(old)]
    assert new not in table
    assert table.get(new) is None
    table[new] = "new"
    del old
    gc.collect()
    assert table[new] == "new", "the death of the old key must not take the new one's entry"
    assert len(table) == 1


def test_O38_many_short_lives_never_inherit():
    table = WeakIdDict()
    for number in range(2000):
        key = Key()
        assert key not in table
        table[key] = number
    assert len(table) == 1


@pytest.mark.parametrize("key", [3, "text", None, (1,)])
def test_O38_keys_that_cannot_be_weakly_referenced_are_refused(key):
    table = WeakIdDict()
    with pytest.raises(TypeError, match=type(key).__name__):
        table[key] = 1
    assert key not in table


def test_O38_tensors_are_keys_by_identity_and_the_table_dies_alone():
    table = WeakIdDict()
    x, y = torch.ones(2), torch.ones(2)
    table[x] = "x"
    assert x in table and y not in table
    watch = weakref.ref(table)
    del table
    gc.collect()
    assert watch() is None
    del x

"""Everything treeplay raises, named by whose fault it is; each class also derives from the nearest builtin."""

from __future__ import annotations


class TreeplayError(Exception):
    """Base of every error of this package."""


class ArgumentError(TreeplayError, ValueError):
    """A call of treeplay's own functions was given an argument it cannot use (the caller's to mend)."""


class ArgumentTypeError(TreeplayError, TypeError):
    """A call of treeplay's own functions was given an argument of a type it cannot use (the caller's to mend)."""

"""Decisions before a program is lowered: which lowering, which device, which memory."""

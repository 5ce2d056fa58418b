"""Tests on top of unittest."""

from unittest import TestCase, main

__all__ = ["TestCase", "main"]

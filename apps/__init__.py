"""Screens. They draw what interp/ returns and compute nothing themselves."""

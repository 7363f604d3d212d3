"""What a panel of a paper figure is: its name, its settings, and where its numbers come from.

A panel is written ``NAME:KEY=VALUE+VALUE:KEY=VALUE``, e.g. ``patch:phase=3``; in values ``%2C %3A %2B %25`` stand
for ``, : + %``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

import plotly.graph_objects as go
import xarray as xr

from hooks.errors import did_you_mean
from interp.figures.base import FigureError
from interp.figures.theme import Theme

if TYPE_CHECKING:
    from hooks.sites import HookedModel

__all__ = ["Kind", "NotMeasured", "Panel", "Setting", "Sources", "View"]

T = TypeVar("T")


class NotMeasured(FigureError):
    """What a panel is drawn from was stopped, or failed, while it was measured."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of a panel.

    Attributes
    ----------
    key, title : str
        Its name in a panel's text, and in words.
    choices : tuple of str, optional
        What it may be; anything if None, a whole number from 0 on if `whole`.
    default : tuple of str
        Used where it is not given; empty where the panel decides.
    many : bool
        Whether it takes several values.
    """

    key: str
    title: str
    choices: tuple[str, ...] | None = None
    default: tuple[str, ...] = ()
    many: bool = False
    whole: bool = False

    def check(self, panel: str, values: Sequence[str]) -> tuple[str, ...]:
        """Values that are allowed.

        Raises
        ------
        FigureError
            For another value, or several where one is taken.
        """
        told = f"panel {panel!r}: {self.key}={'+'.join(values)!r}"
        if not values or (len(values) > 1 and not self.many):
            raise FigureError(f"{told}; valid: {'one or more values' if self.many else 'one value'}")
        for value in values:
            if self.whole and not (value.isascii() and value.isdecimal()):
                raise FigureError(f"{told}; valid: a whole number from 0 on")
            if self.choices is not None and value not in self.choices:
                raise FigureError(f"{told}; {did_you_mean(value, self.choices, 40)}")
        return tuple(values)


@dataclass(frozen=True)
class Panel:
    """A panel that was asked for: its name and the settings given, each a tuple of values."""

    name: str
    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Panel:
        """Read ``NAME:KEY=VALUE+VALUE``.

        Raises
        ------
        FigureError
            For a setting without a value, or one that is given twice.
        """
        name, *parts = text.split(":")
        given: dict[str, tuple[str, ...]] = {}
        for part in parts:
            key, _, values = part.partition("=")
            if not values or key in given:
                raise FigureError(f"panel {text!r}: {part!r} is no setting; write KEY=VALUE, each key once")
            given[key] = tuple(unquote(value) for value in values.split("+"))
        return cls(name, given)

    def __str__(self) -> str:
        given = (f":{k}={'+'.join(quote(v, safe=' /') for v in vs)}" for k, vs in self.given.items() if vs)
        return self.name + "".join(given)


def _load_report(name: str) -> Mapping[str, xr.Dataset]:
    from interp.report import load_results

    return load_results(name)


def _load_audit(name: str) -> xr.Dataset:
    from interp.results import load

    return load(name if name.endswith(".nc") else f"{name}.nc")


def _load_model(name: str) -> HookedModel:
    from hooks import load

    return load(name)


def _once() -> Callable[..., Any]:
    """A `run` that measures the same thing once, for panels of one figure that share it."""
    kept: dict[str, Any] = {}

    def run(what: str, model: HookedModel, arguments: Mapping[str, Any], work: Callable[[], Any]) -> Any:
        key = json.dumps([what, model.content_hash(), arguments], sort_keys=True)
        if key not in kept:
            kept[key] = work()
        return kept[key]

    return run


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where panels get what the results folder does not hold.

    Attributes
    ----------
    model : HookedModel, optional
        That of the panels that are measured now.
    reports, audits, models : tuple of str, optional
        Names that can be chosen; any that can be loaded if None.
    report, audit, load : function
        Load one by its name; a folder, a file with or without ``.nc``, and a model if left out.
    run : function
        ``run(what, model, arguments, work)``: calls `work`, or returns what it kept of an earlier call with the
        same model and arguments; None, after saying why, if it was stopped or failed.
    """

    model: HookedModel | None = None
    reports: tuple[str, ...] | None = None
    audits: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    report: Callable[[str], Mapping[str, xr.Dataset]] = _load_report
    audit: Callable[[str], xr.Dataset] = _load_audit
    load: Callable[[str], HookedModel] = _load_model
    run: Callable[..., Any] = field(default_factory=lambda: _once())


@dataclass(frozen=True)
class View:
    """All that one panel is drawn from."""

    panel: Panel
    found: Mapping[str, xr.Dataset]
    sources: Sources
    theme: Theme = field(default_factory=Theme)
    units: tuple[str, ...] = ()
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def many(self, key: str) -> tuple[str, ...]:
        """Values of a setting; empty if neither given nor set by default."""
        return self.chosen.get(key, ())

    def one(self, key: str) -> str | None:
        """Value of a setting, or None."""
        return next(iter(self.many(key)), None)

    def whole(self, key: str) -> int:
        """Value of a setting that is a number; 0 without one."""
        return int(self.one(key) or 0)

    @cached_property
    def model(self) -> HookedModel:
        """The model of panels that are measured now.

        Raises
        ------
        FigureError
            If there is none.
        """
        if self.sources.model is None:
            raise FigureError(f"panel {self.panel.name!r} is measured now and needs a model: --live MODEL")
        return self.sources.model

    def run(self, what: str, model: HookedModel, arguments: Mapping[str, Any], work: Callable[[], T]) -> T:
        """Measure, or take what is kept.

        Raises
        ------
        NotMeasured
            If it was stopped or failed, which `Sources.run` has told already.
        """
        done = self.sources.run(what, model, arguments, work)
        if done is None:
            raise NotMeasured(f"panel {self.panel.name!r}: {what} was not measured; run it again")
        return done


def _has_gates(model: HookedModel) -> bool:
    from interp.follow import followed_units

    return bool(followed_units(model))


@dataclass(frozen=True)
class Kind:
    """A panel that can be asked for.

    Attributes
    ----------
    title : str
        In words.
    build : function
        Draws it.
    needs : str
        A part of the results; "query sweep" for a sweep by query phase; "model", "gates of a model" or "sources"
        for what comes from elsewhere; empty for nothing.
    settings : function
        Settings that it takes, from what there is to draw.
    """

    title: str
    build: Callable[[View], go.Figure]
    needs: str = ""
    settings: Callable[[View], tuple[Setting, ...]] = lambda view: ()

    def there(self, found: Mapping[str, xr.Dataset], sources: Sources | None) -> bool:
        """Whether these results, and what comes from elsewhere, can fill it."""
        if self.needs in ("model", "gates of a model"):
            model = None if sources is None else sources.model
            return model is not None and (self.needs == "model" or _has_gates(model))
        if self.needs == "sources":
            return sources is not None
        if self.needs == "query sweep":
            return "sweep" in found and "accuracy_cell" in found["sweep"]
        return not self.needs or (self.needs in found and bool(found[self.needs].sizes.get("unit", 1)))

    def resolve(self, view: View) -> dict[str, tuple[str, ...]]:
        """Settings of a view: what was given, checked, over the defaults.

        Raises
        ------
        FigureError
            For a setting that the panel has not, or a value that it cannot take.
        """
        settings = {one.key: one for one in self.settings(view)}
        for key in view.panel.given:
            if key not in settings:
                valid = did_you_mean(key, settings) if settings else "it has no settings"
                raise FigureError(f"panel {view.panel.name!r} has no setting {key!r}; {valid}")
        return {
            key: one.check(view.panel.name, view.panel.given[key]) if key in view.panel.given else one.default
            for key, one in settings.items()
        }

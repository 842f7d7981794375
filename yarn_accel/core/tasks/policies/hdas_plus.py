"""`hdas+`: of three rules the one by which all that is known is expected to end first.

The usual rule, `guarded`, is `hdas` with two additions (`GuardedHdasPolicy`). It takes three quarters of the
time of `fifo` on the mean, but more than `fifo` or `hdas` in one world of twenty: where GPU tasks hold the
cores that other applications wait for, or where the guard keeps cores empty for too long. Which rule is the
best one follows from tasks, forms and places together, so it is worked out ahead (`forecast`): when an
application arrives, when workers come or go, and before a task that would end after all should have ended.
"""

from __future__ import annotations

import math
from dataclasses import replace

from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policies.base import FillingPolicy
from yarn_accel.core.tasks.policies.baselines import FifoPolicy
from yarn_accel.core.tasks.policies.forecast import Sketch
from yarn_accel.core.tasks.policies.hdas import GuardedHdasPolicy, HdasPolicy
from yarn_accel.core.tasks.policies.next_tasks import QueueingPolicy
from yarn_accel.core.tasks.policies.options import PolicyOptions
from yarn_accel.core.tasks.policies.values import Key, OpenPlace, TaskChoice
from yarn_accel.core.tasks.records import ChosenRule, PriorityLevel, ServedApp
from yarn_accel.core.tasks.table import TaskTable
from yarn_accel.core.tasks.values import Form

_USUAL = "guarded"
#: With more applications at once the usual rule stands: a forecast would cost more than what it is for.
_MOST_APPS = 8
#: Another rule than the present one has to save this part of the time at least: a forecast is no better.
_LEAST_GAIN = 0.03
#: Late tasks lead to a forecast each quarter of the time that one takes, at most.
_AGAIN = 1.25


class HdasPlusPolicy(QueueingPolicy):
    """Fills places by the rule of the time; the table has its name."""

    name = "hdas+"
    needs_figures = True
    withheld_later = (Form.CPU,)

    def __init__(self, options: PolicyOptions | None = None) -> None:
        super().__init__(options)
        rules = GuardedHdasPolicy(options), HdasPolicy(options), FifoPolicy(options)
        self._rules: dict[str, FillingPolicy] = {each.name: each for each in rules}
        self._rule = self._rules[_USUAL]

    def keys(self, form: Form) -> tuple[Key, ...]:
        """Those of the rule."""
        return self._rule.keys(form)

    def choose(self, place: OpenPlace) -> TaskChoice | None:
        """As the rule does; before a task that would end late the rule is chosen anew."""
        choice, chosen = self._rule.choose(place), self.table.chosen_rule
        if choice is not None and chosen is not None and self._would_end(choice, place) > chosen.late_s:
            self._choose_rule(chosen)
            choice = self._rule.choose(place)
            chosen = self.table.chosen_rule
            if choice is not None and chosen is not None:
                # If that task starts all the same, others like it need no forecast each.
                late_s = max(chosen.late_s, self._would_end(choice, place, _AGAIN))
                self.table.chosen_rule = replace(chosen, late_s=late_s)
        return choice if choice is None or self._rule.name == _USUAL else self._with_rule(choice)

    def best(self, apps: list[ServedApp], form: Form, place: OpenPlace) -> TaskChoice:
        """As the rule does."""
        choice = self._rule.best(apps, form, place)
        return choice if self._rule.name == _USUAL else self._with_rule(choice)

    def allowed(
        self, apps: list[ServedApp], form: Form, level: PriorityLevel, place: OpenPlace
    ) -> list[ServedApp]:
        """Those that the rule allows."""
        return self._rule.allowed(apps, form, level, place)

    def withheld(self, app: ServedApp, form: Form, level: PriorityLevel, place: OpenPlace) -> str:
        """Why the rule left it out."""
        return self._rule.withheld(app, form, level, place)

    def prepare(self) -> None:
        """Choose the rule anew, if it is time to."""
        table, last = self.table, self.table.chosen_rule
        if len(table.apps) > _MOST_APPS:
            if last is not None:
                self._set_rule(last, None)
        elif table.levels and (
            last is None
            or not last.why
            or last.n_opened != table.n_opened
            or last.n_kind_changes != table.n_kind_changes
        ):
            self._choose_rule(last)

    def _look_at(self, table: TaskTable, figures: FigureStore, now_s: float) -> None:
        super()._look_at(table, figures, now_s)
        self._follow_rule()

    def _follow_rule(self) -> None:
        chosen = self.table.chosen_rule
        self._rule = self._rules[chosen.rule if chosen else _USUAL]
        self._rule.table = self.table

    def _choose_rule(self, last: ChosenRule | None) -> None:
        """Follow the rule by which all ends first, or the last one if none gains enough.

        Nothing is worked out, and the usual rule stands, where something is not known yet.
        """
        table = self.table
        waiting = [app for app in table.apps.values() if app.n_waiting]
        best, late_s, found = _USUAL, math.inf, []
        if table.totals["cores"] and all(app.beliefs.is_complete for app in waiting):
            present = best = last.rule if last is not None else _USUAL
            limit_s = math.inf
            for name in (present, *(each for each in self._rules if each != present)):
                end_s = Sketch(table, self.now_s).last_end_s(self._rules[name], limit_s)
                took_s, most_s = end_s - self.now_s, limit_s - self.now_s
                found.append(f"{name} {took_s:.4g} s" if took_s < math.inf else f"{name} over {most_s:.4g} s")
                if end_s < limit_s:
                    best, late_s = name, end_s + _LEAST_GAIN * took_s
                    limit_s = self.now_s + took_s * (1 - _LEAST_GAIN if name == present else 1)
        why = ", ".join(found)
        self._set_rule(last, ChosenRule(best, why, late_s, table.n_opened, table.n_kind_changes))

    def _would_end(self, choice: TaskChoice, place: OpenPlace, factor: float = 1.0) -> float:
        profile = choice.app.profile(choice.form, place.accelerator)
        return self.now_s + factor * profile.alone_s if profile is not None else 0.0

    def _set_rule(self, last: ChosenRule | None, chosen: ChosenRule | None) -> None:
        self.table.chosen_rule = chosen
        self._follow_rule()
        if self._rule.name != (last.rule if last is not None else _USUAL):
            self.table.open_all()  # a place that one rule keeps empty another one may fill

    def _with_rule(self, choice: TaskChoice) -> TaskChoice:
        """The same choice, with the rule in its reason."""
        chosen = self.table.chosen_rule
        why = chosen.why if chosen else ""
        return choice._replace(reason=f"{choice.reason}, as {self._rule.name} would (all ends: {why})")

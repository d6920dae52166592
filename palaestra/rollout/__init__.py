"""Rollout: episodes, who acts in them, and what plays them."""

from palaestra.former import FormerModules

FormerModules(
    {
        "palaestra.rollout.field": "`Field` is `palaestra.rollout.strategies.RolloutContext` now",
        "palaestra.rollout.stage": "`Play` is in `palaestra.data` now, `Role` in `palaestra.rollout.roles`, and "
        "`Stage` is `palaestra.data.RunSetup`",
    }
)

"""Rollout: episodes, their agents and roles, and the runners that play them."""

from palaestra.former import FormerModules

FormerModules(
    {
        "palaestra.rollout.agent": "`Agent` is in `palaestra.rollout.episode` now",
        "palaestra.rollout.dynamic_sampling": "`DynamicSampling` is in `palaestra.rollout.strategies` now",
        "palaestra.rollout.retelling": "`retold` and `opening` are in `palaestra.rollout.strategies` now",
        "palaestra.rollout.self_play": "`SelfPlay` is in `palaestra.systems.pfsp.self_play` now",
        "palaestra.rollout.opponents": "`Pool` is in `palaestra.systems.pfsp.opponents` now",
        "palaestra.rollout.windows": "`WindowRunner` is in `palaestra.systems.t_ppo.windows` now",
        "palaestra.rollout.field": "`Field` is `palaestra.rollout.strategies.RolloutContext` now",
        "palaestra.rollout.stage": "`Play` is in `palaestra.data` now, `Role` in `palaestra.rollout.roles`, and "
        "`Stage` is `palaestra.data.RunSetup`",
    }
)

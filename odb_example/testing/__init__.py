"""The suite's own pytest plugin: options, tiers, the header, repeat lines, deviations, and baselines."""

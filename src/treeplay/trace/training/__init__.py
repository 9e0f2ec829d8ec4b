"""Parts of a training step that act outside of operators: schedules, averages, scaled gradients, hooks, fused optimizers."""

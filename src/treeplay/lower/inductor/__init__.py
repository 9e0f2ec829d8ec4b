"""The `inductor` lowering: a traced graph → one compiled artifact."""

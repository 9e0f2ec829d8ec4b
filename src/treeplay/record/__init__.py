"""What the ways of making a recording have in common, between the plan and the device."""

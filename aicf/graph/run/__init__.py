"""Plans and what runs them: plan, slots, variables, executor, program."""

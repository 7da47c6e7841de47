"""Who cleans, and when: `duty` is the work, `threads` and `tasks` repeat it in a process."""

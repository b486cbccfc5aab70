"""Messages for later: schedules, kept in a log of their own and appended to their topics when they are due."""

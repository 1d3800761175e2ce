"""The wheel of an earlier program, built from commit ba4c85a2, and fleets that change from it to today's under load."""

"""Durable workflows: functions whose steps are recorded, so that they go on where they were."""

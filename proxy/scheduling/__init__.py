"""Scheduling of long work: fair queues, a memory budget, work in steps and time slices."""

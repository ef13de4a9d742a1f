"""Generated session events for the tests of the report, its benchmark and a trial run.

They are not part of the installed package.
"""
